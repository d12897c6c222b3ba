"""The curve of excess risk: against closed forms and another minimiser, and through the command line."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from scipy.optimize import minimize

import rankprobe
from cli_support import run
from rankprobe.cli.schema import build
from rankprobe.errors import MissingDependencyError, UsageError
from rankprobe.estimators.result import Curve, CurvePoint
from rankprobe.estimators.tolerance import Tolerance
from rankprobe.teachers import make_teacher

T, D = 8, 6
LINK = {"softmax_qk": "softmax", "linear_qk": "linear", "fixed_operator": "fixed_operator"}


def data_of(kind="softmax_qk", rank=3, n=300, tokens=T, dim=D, **options):
    teacher = make_teacher(kind, rank, tokens, dim, options.pop("value_dim", dim), **options)
    block = next(iter(teacher.blocks(n, n)))
    return teacher, block[0], block[1], block[2] if len(block) > 2 else None


def curve_of(X, Y, kind="softmax_qk", **options):
    options = {"causal": False, "curve": True, **options}
    return rankprobe.estimate(X, Y, attention=LINK[kind], **options)


@pytest.mark.parametrize("n", [60, 1000], ids=["cross-fit", "fresh"])
@pytest.mark.parametrize("kind", ["softmax_qk", "linear_qk"])
def test_excess_falls_to_zero_at_the_rank(kind, n):
    _, X, Y, _ = data_of(kind, 3, n, seed=1)
    answer = curve_of(X, Y, kind)
    curve = answer.curve
    assert (answer.rank, len(curve.points)) == (3, 6)
    assert curve.heldout == ("cross-fit" if n == 60 else "fresh")
    assert curve.sequences_heldout <= n
    for lower, higher in zip(curve.points[:3], curve.points[1:4], strict=True):
        assert lower.excess - higher.excess > 3 * lower.standard_error
    for point in curve.points[3:]:
        assert abs(point.excess) <= 3 * point.standard_error
    assert curve.floor == pytest.approx(0.05**2 * T * D, rel=0.05)
    assert len(curve.singular_values) == 5
    assert curve.singular_values[2] > 10 * curve.singular_values[3]


@pytest.mark.parametrize("known", [False, True])
def test_excess_of_a_fixed_operator_is_its_tail(known):
    # Y = A X V, X ~ N(0, I): E‖(A − B) X V‖² = ‖A − B‖² ‖V‖², least at the truncated A, whatever V is fitted.
    teacher, X, Y, _ = data_of("fixed_operator", 3, 2000, dim=D, seed=2)
    options = {"V": np.asarray(teacher.V), "estimators": ["v-known"]} if known else {}
    points = curve_of(X, Y, "fixed_operator", **options).curve.points
    values = np.linalg.svd(teacher.K, compute_uv=False)
    for r, point in enumerate(points):
        exact = np.sum(values[r:] ** 2) * np.sum(np.square(teacher.V))
        assert point.excess == pytest.approx(exact, abs=3.5 * point.standard_error + 1e-12)
        assert point.standard_error < 0.05 * exact + 1e-3


def test_excess_agrees_with_another_minimiser():
    # Linear attention, V known, no biases: least squares in W_Q and W_K by L-BFGS from five random starts.
    teacher, X, Y, _ = data_of("linear_qk", 3, 1000, seed=3)
    V = np.asarray(teacher.V)
    answer = curve_of(X, Y, "linear_qk", V=V, estimators=["v-known"], bias=False, seed=5)
    values, rng = X @ V, np.random.default_rng(0)

    def loss(flat, rank):
        W_Q, W_K = flat.reshape(2, D, rank)
        queries, keys = X @ W_Q, X @ W_K
        residual = queries @ np.swapaxes(keys, 1, 2) @ values - Y
        scores = residual @ np.swapaxes(values, 1, 2)
        gradient = np.stack(
            [
                np.sum(np.swapaxes(X, 1, 2) @ (scores @ keys), axis=0),
                np.sum(np.swapaxes(X, 1, 2) @ (np.swapaxes(scores, 1, 2) @ queries), axis=0),
            ]
        )
        return np.sum(residual**2) / len(X), 2 * gradient.ravel() / len(X)

    for rank in (1, 2):
        starts = rng.normal(size=(5, 2 * D * rank)) * 0.3
        found = min(minimize(loss, x, (rank,), "L-BFGS-B", jac=True).fun for x in starts)
        point = answer.curve.points[rank]
        assert point.excess == pytest.approx(found - answer.curve.floor, rel=0.01)
        assert point.standard_error < 0.1 * point.excess


@pytest.mark.parametrize("n,heldout", [(60, "left-out"), (300, "fresh")])
def test_kernels_in_factored_form_have_the_same_curve(n, heldout, monkeypatch):
    _, X, Y, _ = data_of("softmax_qk", 2, n, tokens=10, dim=12, seed=3)
    whole = curve_of(X, Y)
    monkeypatch.setattr("rankprobe.estimators.invert.FULL_LIMIT", 4)
    answer = curve_of(X, Y)
    assert (answer.kernel, answer.rank, answer.curve.heldout) == ("factored", 2, heldout)
    for one, two in zip(whole.curve.points, answer.curve.points, strict=True):
        assert one.parameters == two.parameters
        spread = np.hypot(one.standard_error, two.standard_error)
        assert one.excess == pytest.approx(two.excess, abs=3.5 * spread + 1e-12)


def test_parameters_are_those_of_the_manifold():
    _, X, Y, _ = data_of(rank=2, n=200, seed=4)
    points = curve_of(X, Y, bias=False).curve.points
    assert [point.parameters for point in points] == [r * (2 * D - r) for r in range(5)]


def test_the_curve_does_not_depend_on_units_or_rotation():
    _, X, Y, _ = data_of(rank=2, n=60, seed=5)
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(D, D)))[0]
    first = curve_of(X, Y).curve
    for other, unit in (
        (curve_of(X * 1e3, Y), 1.0),
        (curve_of(X @ turn, Y), 1.0),
        (curve_of(X, Y * 10), 100),
    ):
        for one, two in zip(first.points[:2], other.curve.points[:2], strict=True):
            assert two.excess == pytest.approx(unit * one.excess, rel=1e-3)
            assert two.explained == pytest.approx(one.explained, rel=1e-3)


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"padding": "left"}, {"scale": 2.0}], ids=str)
def test_rows_of_attention_move_less_than_the_bound(options):
    teacher, X, Y, mask = data_of(rank=3, n=100, seed=6, **options)
    causal = options.get("causal", False)
    answer = curve_of(X, Y, mask=mask, causal=causal)
    left, values, right = np.linalg.svd(teacher.scale * teacher.K)
    seen = np.ones((len(X), T, T), dtype=bool) if mask is None else mask[:, :, None] & mask[:, None, :]
    if causal:
        seen = seen & np.tril(np.ones((T, T), dtype=bool))

    def mixer(K):
        logits = np.where(seen, X @ K @ np.swapaxes(X, 1, 2), -1e9)
        weights = np.exp(logits - logits.max(axis=2, keepdims=True)) * seen
        return weights / np.maximum(weights.sum(axis=2, keepdims=True), 1e-300)

    A = mixer(teacher.scale * teacher.K)
    rows = np.sum(seen.any(axis=2))
    bounds = [point.kl_bound for point in answer.curve.points]
    assert bounds[3:] == [0.0, 0.0, 0.0]
    for r in range(3):
        B = mixer((left[:, :r] * values[:r]) @ right[:r])
        moved = A * (np.log(np.maximum(A, 1e-300)) - np.log(np.maximum(B, 1e-300)))
        assert 0 < np.sum(moved[A > 0]) / rows < bounds[r]


def test_the_bound_is_the_tail_of_the_data_weighted_spectrum():
    # Independent queries and keys cannot be had in self-attention; many tokens come near it.
    _, X, Y, _ = data_of(rank=3, n=60, tokens=48, scale=0.2, kernel="asymmetric", seed=7)
    answer = curve_of(X, Y)
    for r, point in enumerate(answer.curve.points[:3]):
        tail = 48 * np.sum(np.square(answer.singular_values_data[r:]))
        assert point.kl_bound == pytest.approx(min(tail / 4, np.sqrt(2 * tail)), rel=0.15)


def test_linear_mixers_have_no_bound():
    _, X, Y, _ = data_of("linear_qk", 2, n=100, seed=8)
    assert {point.kl_bound for point in curve_of(X, Y, "linear_qk").curve.points} == {None}


def test_rank_zero_has_a_curve_too():
    _, X, Y, _ = data_of(rank=0, n=400, seed=9)
    answer = curve_of(X, Y, tolerance=0.1)
    assert (answer.rank, answer.rank_at_tolerance, len(answer.curve.points)) == (0, 0, 3)
    assert all(abs(point.excess) <= 3 * point.standard_error for point in answer.curve.points)


def test_no_curve_unless_asked_for_or_usable():
    _, X, Y, _ = data_of(n=60, seed=10)
    assert curve_of(X, Y, curve=False).curve is None
    noise = np.random.default_rng(0).normal(size=Y.shape)
    answer = curve_of(X, noise, tolerance=1.0)
    assert not answer.status.usable and answer.curve is None and answer.rank_at_tolerance is None
    several = curve_of(X, Y, estimators=["v-unknown", "realized-mixer"])
    assert several.estimates["realized-mixer"].curve is None and several.curve is not None
    with pytest.raises(UsageError, match="paper"):
        curve_of(X, Y, solver="paper")


def drawn(*excess, error=0.1):
    points = tuple(CurvePoint(r, value, error, r, None, None) for r, value in enumerate(excess))
    return Curve(points, 1.0, 20.0, (), "fresh", 1, 1)


def test_least_rank_at_a_tolerance():
    curve = drawn(10.0, 4.0, 1.0, 0.05, -0.02, 0.0)
    assert Tolerance.of(4.5).least_rank(curve, 3, 3) == (1, (1, 1))
    assert Tolerance.of("4.1").least_rank(curve, 3, 3) == (1, (1, 2))
    assert Tolerance.of(3.9).least_rank(curve, 3, 3) == (2, (1, 2))
    assert Tolerance.of("5%").least_rank(curve, 3, 3) == (2, (2, 3))
    assert Tolerance.of("5%").excess(curve) == 1.0
    # Below what the error bars can tell, the decision on the integer is the better witness.
    assert Tolerance.of(1e-6).least_rank(curve, 3, 4) == (3, (3, 4))
    assert Tolerance.of(0).least_rank(drawn(0.1, 0.0, 0.0), 1, 1) == (1, (1, 1))
    for wrong in ("-1", "nan", "a lot", "%", ""):
        with pytest.raises(UsageError, match="tolerance"):
            Tolerance.of(wrong)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    path = tmp_path_factory.mktemp("curve") / "t.h5"
    assert run("generate", "-n", 400, "-T", T, "-d", D, "-r", 2, "--seed", 1, "-o", path).code == 0
    return path


def test_json_holds_the_curve_and_fits_the_schema(pair: Path) -> None:
    ran = run("estimate", pair, "--curve", "--tolerance", "1%", "--format", "json")
    assert (ran.code, ran.err) == (0, "")
    document = json.loads(ran.out)
    jsonschema.Draft202012Validator(build()).validate(document)
    (result,) = document["results"]
    assert [point["rank"] for point in result["curve"]["points"]] == [0, 1, 2, 3, 4]
    assert (result["rank_at_tolerance"], result["rank_at_tolerance_interval"]) == (2, [2, 2])
    assert result["tolerance"] == pytest.approx(0.01 * result["curve"]["explainable"])
    broken = json.loads(ran.out)
    del broken["results"][0]["curve"]["points"][0]["excess"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, build())


def test_tsv_has_a_row_a_rank(pair: Path) -> None:
    header, *rows = (line.split("\t") for line in run("estimate", pair, "--curve").lines)
    cells = [dict(zip(header, row, strict=True)) for row in rows]
    assert [cell["rank"] for cell in cells] == ["0", "1", "2", "3", "4"]
    assert [cell["decided"] for cell in cells] == ["false", "false", "true", "false", "false"]
    assert float(cells[1]["excess"]) > 10 * float(cells[1]["standard_error"]) > 0
    assert cells[0]["parameters"] == "0" and 0 < float(cells[1]["explained"]) < 1
    assert float(cells[0]["kl_bound"]) > float(cells[1]["kl_bound"]) > float(cells[2]["kl_bound"]) == 0
    assert {cell["rank_at_tolerance"] for cell in cells} == {""}


def test_table_and_quiet_answer_the_tolerance(pair: Path) -> None:
    ran = run("estimate", pair, "--tolerance", 1e9, tty=True, COLUMNS="200", NO_COLOR="1")
    assert "least rank 0, 95 % interval [0, 0]" in ran.out and "sequences the refits have not seen" in ran.out
    assert ran.out.count("yes") == 1
    assert run("estimate", pair, "--tolerance", 1e9, "-q").out == "0\n"
    assert run("estimate", pair, "--curve", "-q").out == "2\n"


def test_without_an_answer_there_is_a_row_and_no_figure(tmp_path: Path) -> None:
    path = tmp_path / "one.h5"
    assert run("generate", "-n", 1, "-T", T, "-d", D, "-r", 2, "-o", path).code == 0
    ran = run("estimate", path, "--tolerance", 1, "--plot", tmp_path / "c.png")
    assert ran.code == 4 and len(ran.lines) == 2 and "not_identifiable" in ran.lines[1]
    assert "not written" in ran.err and not (tmp_path / "c.png").exists()
    assert run("estimate", path, "--tolerance", 1, "-q").out == "NA\n"


@pytest.mark.parametrize(
    "suffix,magic", [("png", b"\x89PNG\r\n\x1a\n"), ("pdf", b"%PDF-"), ("svg", b"<?xml")]
)
def test_the_figure_is_of_its_kind(pair: Path, tmp_path: Path, suffix: str, magic: bytes) -> None:
    figure = tmp_path / f"c.{suffix}"
    ran = run("estimate", pair, "--tolerance", 0.5, "--plot", figure)
    assert (ran.code, ran.err) == (0, "")
    assert figure.read_bytes().startswith(magic) and figure.stat().st_size > 5000
    again = run("estimate", pair, "--plot", figure)
    assert again.code == 3 and "--force" in again.err and again.out == ""


def test_several_results_share_a_figure(pair: Path, tmp_path: Path) -> None:
    figure = tmp_path / "c.svg"
    figure.write_text("old")
    assert run("estimate", pair, pair, "--plot", figure, "--force").code == 0
    assert figure.read_text().count("noise edge") == 2


def test_figures_that_cannot_be_drawn_are_refused_at_once(
    pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = run("estimate", pair, "--plot", tmp_path / "c.gif")
    assert (ran.code, ran.out) == (2, "") and ".png, .pdf or .svg" in ran.err
    assert run("estimate", pair, "--tolerance", "much").code == 2

    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    ran = run("estimate", pair, "--plot", tmp_path / "c.png")
    assert (ran.code, ran.out) == (5, "") and "pip install 'rankprobe[plot]'" in ran.err
    from rankprobe.figures import require_matplotlib

    with pytest.raises(MissingDependencyError):
        require_matplotlib()
