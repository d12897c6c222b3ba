"""``rankprobe.estimate``: one call over all estimators, on arrays or on an open pair file."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from rankprobe.attention import Array
from rankprobe.errors import UsageError
from rankprobe.estimators.answer import estimate_of, tied
from rankprobe.estimators.choose import choose_maps, name_of
from rankprobe.estimators.inversion import Inversion, Refusal, Task
from rankprobe.estimators.invert import invert
from rankprobe.estimators.realized_mixer import mean_mixer, realized_mixer
from rankprobe.estimators.result import Estimate, Result
from rankprobe.estimators.source import Sampler, Source, source_of
from rankprobe.estimators.tolerance import Tolerance
from rankprobe.solver.parallel import workers

if TYPE_CHECKING:
    from rankprobe.data import PairFile

ESTIMATORS = ("v-unknown", "v-known", "realized-mixer")

_SMALL = 3_000_000
"""Below this many token entries a second thread costs more in hand-overs than it multiplies."""


def estimate(
    X: Array | PairFile | str | os.PathLike[str],
    Y: Array | None = None,
    *,
    V: Array | None = None,
    mask: Array | None = None,
    nan: Literal["error", "skip"] = "error",
    head: int | None = None,
    estimators: Sequence[str] = ("v-unknown",),
    solver: Literal["gauss-newton", "paper"] = "gauss-newton",
    attention: Literal["auto", "softmax", "linear", "fixed_operator"] = "auto",
    causal: bool | Literal["auto"] = "auto",
    bias: bool = True,
    residual: bool = False,
    scale: float | None = None,
    max_rank: int | None = None,
    curve: bool = False,
    tolerance: float | str | None = None,
    seed: int = 0,
    memory: int | None = None,
    progress: Callable[..., None] | None = None,
) -> Result:
    """Estimate the intrinsic query-key rank of one head from its inputs and outputs.

    Parameters
    ----------
    X : tokens [n, T, d], or a pair file (then ``Y``, ``V`` and ``mask`` come from it): its path, or one that
        :func:`rankprobe.open_pairs` has opened, which takes other names and layouts.
    Y : attention outputs [n, T, d_v], or [n, H, T, d_h] with ``head``.
    V : value map [d, d_v] (or [H, d, d_h]), needed by ``v-known`` only.
    mask : [n, T], true at real tokens; padded tokens are ignored as queries and as keys.
    nan : ``error`` refuses NaN and infinite values at real tokens, ``skip`` takes such tokens for padding.
    estimators : any of ``v-unknown``, ``v-known``, ``realized-mixer``, or ``all``; the first is the answer.
    solver : ``gauss-newton`` (joint least squares, method section 2) or ``paper`` (the paper's own, 4).
    attention, causal : kind of map; ``auto`` takes them from the file's attributes, else decides on
        held-out sequences.
    bias : fit biases of queries, keys, values and outputs through a constant feature.
    residual : Y also holds a linear map of the token itself (a skip connection): fit it beside the attention.
    scale : factor of the logits, divided out of the reported kernel; default the file's, else 1.
    max_rank : largest rank tried where the kernel is fitted in factored form.
    curve : also give the excess risk of each rank up to a little past the answer (:class:`Curve`); it takes
        several refits a rank.
    tolerance : ε of r*(ε), the least rank with excess risk ≤ ε: squared error a sequence (summed over
        T · d_v) beyond the noise, or as ``"1%"`` a share of the variance that can be explained. Implies
        ``curve``.
    seed : of the sample of sequences and of the simulated noise.
    memory : bytes the sequences in memory may take; default a quarter of the machine's.
    progress : called as ``progress(done, total=None, text=None)``.

    Returns
    -------
    Result, with the fields of its main :class:`Estimate`.

    Raises
    ------
    UsageError, DataError : the call or the data cannot be used as they are.
    """
    epsilon = None if tolerance is None else Tolerance.of(tolerance)
    curve = curve or epsilon is not None
    if curve and solver == "paper":
        raise UsageError("the paper's solver has no curve; leave out solver, or curve and tolerance")
    with _source(X, Y, V, mask, nan) as source, _threads(source):
        names = _names(estimators, source, head)
        results, shared = _run(
            source,
            head,
            names,
            solver,
            attention,
            causal,
            bias,
            residual,
            scale,
            max_rank,
            curve,
            epsilon,
            seed,
            memory,
            progress,
        )
        return Result(results, names[0], {**shared, **_provenance(source, seed)})


@contextlib.contextmanager
def _source(X: Any, Y: Array | None, V: Array | None, mask: Array | None, nan: Any) -> Iterator[Source]:
    """The data of a call; a file that was named is open as long as they are read."""
    if Y is None and isinstance(X, str | os.PathLike):
        from rankprobe.data import open_pairs

        with open_pairs(X, nan=nan) as pairs:
            yield pairs
    else:
        yield source_of(X, Y, V, mask, nan)


def _run(
    source: Source,
    head: int | None,
    names: list[str],
    solver: str,
    attention: str,
    causal: bool | str,
    bias: bool,
    residual: bool,
    scale: float | None,
    max_rank: int | None,
    curve: bool,
    tolerance: Tolerance | None,
    seed: int,
    memory: int | None,
    progress: Callable[..., None] | None,
) -> tuple[dict[str, Estimate], dict[str, Any]]:
    sampler = Sampler(source, head, seed)
    noted = source.attributes
    maps, chosen = choose_maps(sampler, attention, causal, bias, residual)
    if scale is None:
        scale = float(noted.get("scale") or 1.0)
    if not scale > 0:
        raise UsageError(f"scale is {scale}; it must be positive")
    steps = 0

    def report(text: str) -> None:
        nonlocal steps
        steps += 1
        if progress is not None:
            progress(steps, None, text)

    known = source.value_map(head)
    fitting = _fitting(source, memory)
    tasks = [
        Task(sampler, kind, causal, bias, scale, residual, None, max_rank, fitting, report)
        for kind, causal in maps
    ]
    if solver == "paper":
        from rankprobe.estimators.paper import paper_estimates

        return paper_estimates(tasks[0], names, known), chosen
    results, inversions = _inverted(tasks[0], names, known)
    if len(maps) > 1 and results[names[0]].status.usable:
        others = [_inverted(task, names, known)[0] for task in tasks[1:]]
        answers = dict(zip(map(name_of, maps), [results, *others], strict=True))
        results = {name: tied({of: each[name] for of, each in answers.items()}) for name in names}
    if curve:
        from rankprobe.estimators.curve import with_curve

        for name, (task, inversion) in inversions.items():
            if name in results:
                results[name] = with_curve(task, inversion, results[name], tolerance)
    return results, chosen


def _inverted(
    task: Task, names: list[str], known: Array | None
) -> tuple[dict[str, Estimate], dict[str, tuple[Task, Inversion | Refusal]]]:
    """The answer of every estimator of ``names``, and the inversions they rest on; ``known`` is V."""
    inversions: dict[str, tuple[Task, Inversion | Refusal]] = {}
    results: dict[str, Estimate] = {}
    for name in names:
        base = name if name != "realized-mixer" else next(iter(inversions), "v-unknown")
        if base not in inversions:
            told = replace(task, value_map=known) if base == "v-known" else task
            inversions[base] = told, invert(told)
            results.setdefault(base, estimate_of(told, base, inversions[base][1]))
        outcome = inversions[base][1]
        if name == "realized-mixer":
            inverted = results[base]
            results[name] = (
                inverted
                if isinstance(outcome, Refusal)
                else realized_mixer(inverted, mean_mixer(task, outcome))
            )
    return {name: results[name] for name in names}, inversions


def _names(estimators: Sequence[str], source: Source, head: int | None) -> list[str]:
    """The estimators asked for; ``all`` is every one the data allow."""
    names: list[str] = []
    known = source.value_map(head) is not None
    for name in estimators:
        if name == "all":
            names += [each for each in ESTIMATORS if each != "v-known" or known]
        elif name not in ESTIMATORS:
            raise UsageError(f"there is no estimator {name!r}; choose from {', '.join(ESTIMATORS)} or all")
        elif name == "v-known" and not known:
            raise UsageError("v-known needs the value map; pass --v NAME (V= in Python), or use v-unknown")
        else:
            names.append(name)
    return list(dict.fromkeys(names))


def _fitting(source: Source, memory: int | None) -> int:
    """How many sequences the memory holds: features of three roles, outputs, and six T × T work arrays."""
    if memory is None:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4
    length = source.tokens
    each = 8 * length * (5 * (source.dim + 1) + 5 * source.value_dim + 6 * length)
    count = memory // each
    if count < 2:
        raise UsageError(
            f"{memory} bytes hold {count} sequences of {length} tokens; raise --memory above {2 * each}"
        )
    return int(count)


@contextlib.contextmanager
def _threads(source: Source) -> Iterator[None]:
    """As many threads over blocks as BLAS was allowed, and BLAS on one."""
    from threadpoolctl import ThreadpoolController

    controller = ThreadpoolController()
    allowed = max((int(pool["num_threads"]) for pool in controller.info()), default=1)
    entries = min(source.sequences, 400) * source.tokens * (source.dim + source.tokens)
    with controller.limit(limits=1), workers(allowed if entries > _SMALL else 1):
        yield


def _provenance(source: Source, seed: int) -> dict[str, Any]:
    import platform

    import numpy

    import rankprobe

    return {
        "seed": seed,
        "storage_dtype": source.storage_dtype,
        "sequences": source.sequences,
        "versions": {
            "rankprobe": rankprobe.__version__,
            "python": platform.python_version(),
            "numpy": numpy.__version__,
        },
    }
