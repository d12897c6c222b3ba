"""Teachers against independent formulas: einsum, scipy, closed-form spectra."""

import numpy as np
import pytest
import scipy.special

from rankprobe.errors import UsageError
from rankprobe.teachers import Teacher, make_teacher, spectrum_values

ENERGY_RANKS = {
    1: 1.000,
    2: 1.649,
    3: 2.623,
    4: 3.571,
    6: 5.448,
    8: 7.317,
}  # published for the sharp spectrum


def energy_rank(singular_values: np.ndarray) -> float:
    p = singular_values**2 / np.sum(singular_values**2)
    p = p[p > 1e-20]
    return float(np.exp(-np.sum(p * np.log(p))))


def drawn(teacher: Teacher, n: int, block: int | None = None) -> list[np.ndarray]:
    return [np.concatenate(parts) for parts in zip(*teacher.blocks(n, block), strict=True)]


@pytest.mark.parametrize("rank", ENERGY_RANKS)
@pytest.mark.parametrize("kernel", ["symmetric", "asymmetric", "traceless"])
def test_sharp_spectrum_has_the_published_energy_rank(rank: int, kernel: str) -> None:
    teacher = make_teacher(rank=rank, kernel=kernel)
    values = np.linalg.svd(teacher.K, compute_uv=False)
    assert energy_rank(values) == pytest.approx(ENERGY_RANKS[rank], abs=5e-4)
    np.testing.assert_allclose(values[:rank], spectrum_values("sharp", rank), atol=1e-12)
    np.testing.assert_allclose(values[rank:], 0, atol=1e-12)
    assert np.linalg.matrix_rank(teacher.K) == rank


def test_power_and_flat_spectra_have_the_published_energy_rank() -> None:
    for spectrum, expected in (("power", 2.43), ("flat", 4.00)):
        values = np.linalg.svd(make_teacher(rank=4, spectrum=spectrum).K, compute_uv=False)
        assert energy_rank(values) == pytest.approx(expected, abs=5e-3)


@pytest.mark.parametrize("kind", ["softmax_qk", "fixed_operator"])
@pytest.mark.parametrize("rank", [1, 2, 3, 8, 9, 16])
def test_traceless_kernels_have_trace_zero_and_full_rank_r(kind: str, rank: int) -> None:
    K = make_teacher(kind, rank=rank, tokens=16, dim=16, kernel="traceless").K
    assert abs(np.trace(K)) < 1e-13
    assert np.linalg.matrix_rank(K) == rank


def test_symmetric_is_symmetric_and_asymmetric_is_not() -> None:
    symmetric, asymmetric = make_teacher(kernel="symmetric").K, make_teacher(kernel="asymmetric").K
    np.testing.assert_allclose(symmetric, symmetric.T, atol=1e-14)
    assert np.abs(asymmetric - asymmetric.T).max() > 0.1


def test_linear_teacher_is_its_closed_form() -> None:
    teacher = make_teacher("linear_qk", rank=3, tokens=7, dim=5, value_dim=4, noise=0.0, kernel="asymmetric")
    X, Y = drawn(teacher, 20)
    expected = np.einsum("nta,ab,nsb,nsc,cv->ntv", X, teacher.K, X, X, teacher.V) / np.sqrt(5)
    np.testing.assert_allclose(Y, expected, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_softmax_teacher_is_its_closed_form(causal: bool) -> None:
    teacher = make_teacher(rank=3, tokens=7, dim=5, noise=0.0, kernel="asymmetric", causal=causal, scale=0.8)
    X, Y = drawn(teacher, 20)
    logits = 0.8 * np.einsum("nta,ab,nsb->nts", X, teacher.K, X)
    if causal:
        logits = np.where(np.tri(7, dtype=bool), logits, -np.inf)
    expected = scipy.special.softmax(logits, axis=-1) @ X @ teacher.V
    np.testing.assert_allclose(Y, expected, atol=1e-12)


def test_causal_outputs_do_not_depend_on_later_tokens() -> None:
    teacher = make_teacher("linear_qk", rank=2, tokens=6, dim=4, noise=0.0, causal=True)
    X, Y = drawn(teacher, 5)
    first = np.einsum("na,ab,nb,nc,cv->nv", X[:, 0], teacher.K, X[:, 0], X[:, 0], teacher.V) / 2
    np.testing.assert_allclose(Y[:, 0], first, atol=1e-12)


def test_fixed_operator_mixes_positions() -> None:
    teacher = make_teacher("fixed_operator", rank=3, tokens=16, dim=12, noise=0.0)
    assert teacher.K.shape == (16, 16)
    assert np.linalg.matrix_rank(teacher.K) == 3
    X, Y = drawn(teacher, 4)
    np.testing.assert_allclose(Y, np.einsum("ts,nsa,av->ntv", teacher.K, X, teacher.V), atol=1e-12)


def test_heads_share_tokens_and_have_their_own_maps() -> None:
    teacher = make_teacher(rank=2, tokens=5, dim=6, value_dim=3, heads=3, noise=0.0)
    X, Y = drawn(teacher, 9)
    assert Y.shape == (9, 3, 5, 3) and teacher.K.shape == (3, 6, 6) and teacher.V.shape == (3, 6, 3)
    for h in range(3):
        logits = X @ teacher.K[h] @ X.swapaxes(1, 2) / np.sqrt(6)
        expected = scipy.special.softmax(logits, axis=-1) @ X @ teacher.V[h]
        np.testing.assert_allclose(Y[:, h], expected, atol=1e-12)
    assert np.abs(teacher.K[0] - teacher.K[1]).max() > 0.1


@pytest.mark.parametrize("padding", ["none", "left"])
def test_data_depend_on_neither_block_size_nor_length(padding: str) -> None:
    teacher = make_teacher(rank=2, tokens=5, dim=4, padding=padding)
    whole = drawn(teacher, 150, 150)
    for block in (1, 7, 64, 1000, None):
        for a, b in zip(whole, drawn(teacher, 150, block), strict=True):
            np.testing.assert_array_equal(a, b)
    for a, b in zip(whole, drawn(teacher, 65), strict=True):
        np.testing.assert_array_equal(a[:65], b)
    assert [len(parts[0]) for parts in teacher.blocks(150, 64)] == [64, 64, 22]


def test_the_seed_makes_the_data_and_changes_all_of_it() -> None:
    (X, Y), (X1, Y1), (X2, _) = (drawn(make_teacher(tokens=4, dim=4, seed=s), 8) for s in (3, 3, 4))
    np.testing.assert_array_equal(X, X1)
    np.testing.assert_array_equal(Y, Y1)
    assert not np.any(X == X2)


def test_noise_has_the_stated_level_and_leaves_the_tokens_alone() -> None:
    (X0, Y0), (X, Y) = (drawn(make_teacher(noise=noise), 400) for noise in (0.0, 0.3))
    np.testing.assert_array_equal(X0, X)
    assert np.std(Y - Y0) == pytest.approx(0.3, rel=0.01)
    assert abs(np.mean(Y - Y0)) < 0.003


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", ["linear_qk", "softmax_qk"])
def test_padding_is_the_short_sequence_alone(kind: str, causal: bool) -> None:
    teacher = make_teacher(kind, rank=2, tokens=6, dim=4, padding="right", noise=0.0, causal=causal)
    X, Y, mask = drawn(teacher, 80)
    lengths = mask.sum(axis=1)
    assert set(lengths) == {2, 3, 4, 5, 6}
    assert np.all(X[~mask] == 0) and np.all(Y[~mask] == 0)
    for x, y, length in zip(X, Y, lengths, strict=True):
        real = x[:length]
        logits = real @ teacher.K @ real.T / 2
        if causal:
            logits = np.where(np.tri(length, dtype=bool), logits, -np.inf if kind == "softmax_qk" else 0)
        A = scipy.special.softmax(logits, axis=-1) if kind == "softmax_qk" else logits
        np.testing.assert_allclose(y[:length], A @ real @ teacher.V, atol=1e-12)


def test_left_and_right_padding_hold_the_same_sequences() -> None:
    for heads in (None, 2):
        left, right = (
            drawn(make_teacher(tokens=6, dim=4, heads=heads, padding=side), 40) for side in ("left", "right")
        )
        assert np.all(left[2][:, -1]) and np.all(right[2][:, 0])
        axis = (0, 1) if heads is None else (0, 2)
        Yl, Yr = (np.moveaxis(side[1], axis, (0, 1)) for side in (left, right))
        np.testing.assert_array_equal(left[0][left[2]], right[0][right[2]])
        np.testing.assert_array_equal(Yl[left[2]], Yr[right[2]])
        assert np.all(Yl[~left[2]] == 0)


def test_rank_zero_is_a_kernel_of_zeros() -> None:
    teacher = make_teacher(rank=0, tokens=5, dim=4, noise=0.0)
    X, Y = drawn(teacher, 3)
    assert not teacher.K.any() and teacher.visible_spectrum().shape == (0,)
    np.testing.assert_allclose(Y, np.repeat(X.mean(axis=1, keepdims=True), 5, axis=1) @ teacher.V, atol=1e-14)


def token_spaces(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Projections on the ranges of the second moment and of the within-sequence covariance, from data."""
    second = np.einsum("nta,ntb->ab", X, X)
    moved = X - X.mean(axis=1, keepdims=True)
    within = np.einsum("nta,ntb->ab", moved, moved)
    out = []
    for C in (second, within):
        values, vectors = np.linalg.eigh(C)
        kept = vectors[:, values > 1e-10 * values[-1]]
        out.append(kept @ kept.T)
    return out[0], out[1]


@pytest.mark.parametrize("kind", ["linear_qk", "softmax_qk"])
@pytest.mark.parametrize(
    "inputs,dims",
    [
        ("gaussian", (8, 8)),
        ("anisotropic", (8, 8)),
        ("layernorm", (8, 7)),
        ("constant-feature", (8, 7)),
        ("low-rank", (4, 4)),
    ],
)
def test_visible_spectrum_is_what_the_tokens_span(kind: str, inputs: str, dims: tuple[int, int]) -> None:
    teacher = make_teacher(kind, rank=3, tokens=5, dim=8, inputs=inputs, kernel="asymmetric")
    X, _ = drawn(teacher, 200)
    queries, keys = token_spaces(X)
    assert (round(np.trace(queries)), round(np.trace(keys))) == dims
    P = keys if kind == "softmax_qk" else queries
    expected = np.linalg.svd(queries @ teacher.K @ P, compute_uv=False)
    np.testing.assert_allclose(teacher.visible_spectrum(), expected[:3], atol=1e-8)


def test_input_laws_are_what_they_say() -> None:
    X = {inputs: drawn(make_teacher(inputs=inputs, dim=8), 300)[0] for inputs in ("anisotropic", "layernorm")}
    X["constant-feature"] = drawn(make_teacher(inputs="constant-feature", dim=8), 2)[0]
    variances = np.linalg.eigvalsh(np.cov(X["anisotropic"].reshape(-1, 8).T))[::-1]
    np.testing.assert_allclose(variances, 8 / np.arange(1, 9) / np.sum(1 / np.arange(1, 9)), rtol=0.1)
    assert np.all(X["constant-feature"][..., -1] == 1)
    # Some direction gives the same number on every LayerNorm-ed token.
    flat = X["layernorm"].reshape(-1, 8)
    c, *_ = np.linalg.lstsq(flat, np.ones(len(flat)), rcond=None)
    np.testing.assert_allclose(flat @ c, 1.0, atol=1e-10)


def test_truth_repeats_the_teacher_and_attributes_do_not_tell_the_rank() -> None:
    teacher = make_teacher(rank=3, seed=5, noise=0.1)
    truth = teacher.truth()
    assert truth["rank"] == 3 and truth["seed"] == 5
    np.testing.assert_array_equal(truth["K"], teacher.K)
    np.testing.assert_array_equal(truth["spectrum"], [2.0, 1.5, 1.0])
    assert teacher.attributes() == {
        "attention": "softmax",
        "causal": False,
        "noise_sigma": 0.1,
        "scale": 1 / np.sqrt(32),
    }
    assert "A" in make_teacher("fixed_operator").truth()


@pytest.mark.parametrize(
    "bad",
    [
        {"rank": -1},
        {"rank": 33},
        {"kind": "fixed_operator", "rank": 17},
        {"rank": 1, "dim": 1, "kernel": "traceless"},
        {"tokens": 0},
        {"heads": 0},
        {"noise": -0.1},
        {"noise": float("nan")},
        {"scale": 0.0},
        {"seed": -1},
        {"spectrum": "round"},
        {"inputs": "layernorm", "dim": 1, "rank": 0},
        {"kind": "fixed_operator", "causal": True},
        {"kind": "fixed_operator", "padding": "left"},
    ],
)
def test_impossible_teachers_are_usage_errors(bad: dict) -> None:
    with pytest.raises(UsageError):
        make_teacher(**bad)
