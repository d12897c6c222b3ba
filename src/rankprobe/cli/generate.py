"""``rankprobe generate``: a pair file whose rank is known."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rankprobe.cli.options import DebugOption, environment
from rankprobe.cli.progress import Meter
from rankprobe.errors import UsageError

if TYPE_CHECKING:
    from rankprobe.teachers import Teacher

# The names of rankprobe.teachers, which imports numpy: spelled again for --help, compared by a test.
TeacherName = Literal["fixed_operator", "linear_qk", "softmax_qk"]
SpectrumName = Literal["sharp", "power", "flat"]
KernelName = Literal["symmetric", "asymmetric", "traceless"]
InputsName = Literal["gaussian", "anisotropic", "layernorm", "constant-feature", "low-rank"]
PaddingName = Literal["none", "left", "right"]
DtypeName = Literal["float16", "bfloat16", "float32", "float64"]


def generate(
    context: typer.Context,
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE|-",
            show_default=False,
            help="The HDF5 file to write; - is standard output.",
        ),
    ],
    teacher: Annotated[TeacherName, typer.Option(help="The map from X to Y.")] = "softmax_qk",
    rank: Annotated[int, typer.Option("--rank", "-r", help="Rank of the kernel; 0 is K = 0.")] = 4,
    tokens: Annotated[int, typer.Option("--tokens", "-T", help="Tokens of a sequence, T.")] = 16,
    dim: Annotated[int, typer.Option("--dim", "-d", help="Features of a token, d.")] = 32,
    value_dim: Annotated[
        int | None, typer.Option("--value-dim", help="Features of an output token.", show_default="d")
    ] = None,
    sequences: Annotated[int, typer.Option("--sequences", "-n", help="Number of sequences, n.")] = 3000,
    noise: Annotated[float, typer.Option(help="Standard deviation of the noise on each entry of Y.")] = 0.05,
    spectrum: Annotated[
        SpectrumName,
        typer.Option(help="Singular values of K: sharp 2 to 1 in equal steps, power 1/i, flat 1."),
    ] = "sharp",
    kernel: Annotated[
        KernelName,
        typer.Option(
            help="Kernel: U diag Uᵀ, U diag Wᵀ, or with trace 0 and the same singular values.",
        ),
    ] = "symmetric",
    scale: Annotated[
        float | None, typer.Option(help="Factor on the scores X K Xᵀ.", show_default="1/√d")
    ] = None,
    inputs: Annotated[InputsName, typer.Option(help="Law of the tokens.")] = "gaussian",
    causal: Annotated[
        bool, typer.Option("--causal/--no-causal", help="A token sees only itself and earlier ones.")
    ] = False,
    heads: Annotated[
        int | None,
        typer.Option(
            help="Heads over the same X; Y becomes [n, H, T, d_v].", show_default="one, without an axis"
        ),
    ] = None,
    padding: Annotated[
        PaddingName, typer.Option(help="Random lengths from 2 to T, padded on this side, with a mask.")
    ] = "none",
    dtype: Annotated[DtypeName, typer.Option(help="Stored type of X and Y.")] = "float32",
    seed: Annotated[int, typer.Option(help="The same seed gives the same file.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    debug: DebugOption = False,
) -> None:
    """Write a file of (X, Y) pairs from attention of known rank.

    The defaults are the reference cell: a softmax head of rank 4, T = 16, d = 32, n = 3000, noise .05. The
    truth (K, V, spectrum, seed) is kept under /teacher, which no estimator opens unless it is named.

    \b
    Examples:
      rankprobe generate -o t.h5
      rankprobe generate --teacher linear_qk --rank 8 -o - | rankprobe estimate - -q
      rankprobe generate --kernel traceless --inputs layernorm --causal --heads 4 -o heads.h5
    """
    env = environment(context)
    if output == "-" and env.stdout_isatty:
        raise UsageError("-o - would write HDF5 to a terminal; redirect it or name a file")
    if sequences < 1:
        raise UsageError(f"--sequences must be at least 1, not {sequences}")

    from rankprobe.data import write_pairs
    from rankprobe.teachers import make_teacher

    made = make_teacher(
        teacher,
        rank,
        tokens,
        dim,
        value_dim,
        spectrum=spectrum,
        kernel=kernel,
        scale=scale,
        inputs=inputs,
        causal=causal,
        heads=heads,
        padding=padding,
        noise=noise,
        seed=seed,
    )
    shape: dict[str, Any] = {
        "sequences": sequences,
        "tokens": made.tokens,
        "dim": made.dim,
        "value_dim": made.value_dim,
        "heads": made.heads,
        "dtype": dtype,
        "mask": made.padding != "none",
        "attributes": made.attributes(),
        "teacher": made.truth(),
    }
    if output != "-":
        with Meter(env, "generating", sequences) as meter:
            write_pairs(output, made.blocks(sequences), force=force, progress=meter.advance, **shape)
        size = _bytes(Path(output).stat().st_size)
        env.note(f"wrote {output}: {_summary(made, sequences, dtype)}, {size}")
        return
    # HDF5 has to seek while it writes, a pipe cannot: the file is made elsewhere first.
    with tempfile.TemporaryDirectory(prefix="rankprobe-") as folder:
        spool = Path(folder) / "pairs.h5"
        with Meter(env, "generating", sequences) as meter:
            write_pairs(spool, made.blocks(sequences), progress=meter.advance, **shape)
        with spool.open("rb") as source, env.binary_stdout() as out:
            shutil.copyfileobj(source, out, 1 << 20)


def _summary(teacher: Teacher, sequences: int, dtype: str) -> str:
    heads = "" if teacher.heads is None else f"{teacher.heads}, "
    return (
        f"{teacher.kind} of rank {teacher.rank}, X [{sequences}, {teacher.tokens}, {teacher.dim}], "
        f"Y [{sequences}, {heads}{teacher.tokens}, {teacher.value_dim}] {dtype}"
    )


def _bytes(size: int) -> str:
    amount, unit = float(size), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if amount < 1024 or unit == "TiB":
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
