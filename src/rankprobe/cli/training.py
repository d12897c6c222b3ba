"""What the commands that train students share: their options, the open file, the estimate beside them."""

# No annotations as strings here: Typer would evaluate those of a command three times a start.
import contextlib
import platform
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rankprobe.cli.environment import Environment
from rankprobe.cli.estimate import AttentionName
from rankprobe.cli.inputs import held_threads, is_stdin
from rankprobe.cli.output import Record
from rankprobe.errors import DataError, UsageError

if TYPE_CHECKING:
    from rankprobe.data import PairFile

OptimizerName = Literal["adam", "lbfgs"]

FileArgument = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        show_default=False,
        help="HDF5 file of (X, Y); FILE::/group reads from that group, - reads standard input.",
    ),
]
HeadOption = Annotated[
    str | None, typer.Option("--head", metavar="LIST", show_default="all", help="Heads, as in 0,3-5.")
]
AttentionOption = Annotated[
    AttentionName,
    typer.Option(help="Link of map and student; auto: the file's, else decided on held-out sequences."),
]
CausalOption = Annotated[
    bool | None,
    typer.Option("--causal/--no-causal", show_default="auto", help="Whether tokens see only earlier ones."),
]
BiasOption = Annotated[bool, typer.Option("--bias/--no-bias", help="Students have biases too.")]
ScaleOption = Annotated[
    float | None,
    typer.Option(
        help="Factor on the students' scores; kernels are given without it.",
        show_default="the file's, else 1",
    ),
]
InitOption = Annotated[float, typer.Option("--init", help="Scale of the first W_Q and W_K.")]
SeedsOption = Annotated[int, typer.Option("--seeds", help="Students a rank, from seeds 0 to N − 1.")]
OptimizerOption = Annotated[
    OptimizerName,
    typer.Option(help="adam as in the paper, or lbfgs (float64), which converges in a tenth of the steps."),
]
StepsOption = Annotated[int | None, typer.Option("--steps", help="Most steps of a student.")]
PatienceOption = Annotated[
    int | None,
    typer.Option(
        "--patience",
        help="Stop after so many steps that lower the loss by less than 1e-5 of it; 0: never.",
        show_default="250, lbfgs 30",
    ),
]
WhitenOption = Annotated[
    bool, typer.Option("--whiten", help="Train in whitened tokens, where trained heads converge sooner.")
]
DeviceOption = Annotated[
    str, typer.Option("--device", help="Device of torch: cpu, cuda, mps, or auto for the best there is.")
]
SequencesOption = Annotated[
    int | None, typer.Option("--sequences", "-n", help="Use so many sequences.", show_default="all")
]
HoldoutOption = Annotated[
    float, typer.Option("--holdout", help="Share of the sequences kept from training, for held-out errors.")
]
CheckpointOption = Annotated[
    str | None,
    typer.Option(
        "--checkpoint",
        metavar="FILE",
        help="Where the state of a training is kept, so that it can be stopped and go on.",
        show_default="beside the input",
    ),
]
RestartOption = Annotated[bool, typer.Option("--restart", help="Begin anew, whatever the checkpoint holds.")]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of the sample of sequences, and of the noise.")]
ThreadsOption = Annotated[
    int | None, typer.Option("--threads", help="Threads of the linear algebra.", show_default="all cores")
]


@contextlib.contextmanager
def threads(limit: int | None) -> Iterator[int]:
    """Hold numpy's and torch's linear algebra to ``limit`` threads; yields how many may be used.

    Raises :class:`MissingDependencyError` where torch is not installed.
    """
    from rankprobe.training import require_torch

    require_torch()
    import torch

    if limit is not None and limit < 1:
        raise UsageError(f"--threads must be at least 1, not {limit}")
    with held_threads(limit) as used:
        before = torch.get_num_threads()
        torch.set_num_threads(used)
        try:
            yield used
        finally:
            torch.set_num_threads(before)


def checkpoint_of(file: str, head: int | None, command: str, given: str | None) -> str | None:
    """Where the state of this training is kept: as given, else beside the input; nowhere for a pipe."""
    if given is not None:
        named = Path(given)
        return given if head is None else str(named.with_name(f"{named.stem}.{head}{named.suffix}"))
    if is_stdin(file):
        return None
    from rankprobe.data import split_path

    path, group = split_path(file)
    parts = [path, *group.split("/"), command, "" if head is None else str(head), "pt"]
    return ".".join(part for part in parts if part)


@contextlib.contextmanager
def resumable(env: Environment, checkpoint: str | None) -> Iterator[None]:
    """Tell how to go on when Ctrl-C ends the training, and clear up when its results are out."""
    try:
        yield
    except KeyboardInterrupt:
        if checkpoint is not None and Path(checkpoint).exists():
            env.note(f"{checkpoint} holds the state of the training; the same command goes on from it")
        raise
    if checkpoint is not None:
        Path(checkpoint).unlink(missing_ok=True)


def saved_estimate(file: str, head: int | None, *, curve: bool) -> dict[str, Any] | None:
    """The last estimate under /estimates of this head with V unknown (and with a curve, if asked for)."""
    from rankprobe.data import read_results, split_path

    if is_stdin(file):
        return None
    group = split_path(file)[1]
    for record in reversed(read_results(file)):
        answer = record.get("estimates", {}).get("v-unknown")
        same = record.get("head") == head and split_path(str(record.get("file")))[1] == group
        if answer is None or not same or answer.get("solver") != "gauss-newton":
            continue
        if answer.get("curve") is not None or not curve:
            return {**record, **answer}
    return None


def provenance(env: Environment, file: str, head: int | None, pairs: "PairFile", used: int) -> Record:
    """What repeats a run."""
    import numpy
    import torch

    import rankprobe

    return {
        "file": file,
        "head": head,
        "command": shlex.join(["rankprobe", *env.argv]),
        "threads": used,
        "storage_dtype": pairs.storage_dtype,
        "sequences": pairs.sequences,
        "versions": {
            "rankprobe": rankprobe.__version__,
            "python": platform.python_version(),
            "numpy": numpy.__version__,
            "torch": torch.__version__,
        },
    }


def at_least(**values: tuple[int | None, int]) -> None:
    """Refuse numbers below their least, by the name of their option."""
    for name, (value, least) in values.items():
        if value is not None and value < least:
            raise UsageError(f"--{name.replace('_', '-')} must be at least {least}, not {value}")


def check_save(file: str, save: bool) -> None:
    """Refuse to append to what cannot be appended to."""
    if save and is_stdin(file):
        raise UsageError("--save cannot append to standard input; name a file")
    if save and not Path(_path(file)).exists():
        raise DataError(f"{_path(file)}: does not exist; check the name")


def _path(file: str) -> str:
    from rankprobe.data import split_path

    return split_path(file)[0]
