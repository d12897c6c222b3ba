"""The solver against dense linear algebra, finite differences and scipy."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.linalg import lstsq

from rankprobe.attention import Attention
from rankprobe.estimators.model import Model, Sample
from rankprobe.solver import FittedValueMap, Kernel, KnownValueMap, Linearization, Settings, Tangent, fit
from rankprobe.solver.conjugate_gradients import conjugate_gradients
from rankprobe.solver.curvature import Curvature
from rankprobe.solver.parallel import workers
from rankprobe.solver.start import first_kernel


def sample(n=30, T=6, d=5, d_v=4, seed=0, masked=False):
    rng = np.random.default_rng(seed)
    mask = None
    X, Y = rng.normal(size=(n, T, d)), rng.normal(size=(n, T, d_v))
    if masked:
        mask = np.arange(T) < rng.integers(2, T + 1, size=(n, 1))
        X, Y = X * mask[:, :, None], Y * mask[:, :, None]
    return Sample(X, Y, mask)


def problem(kind="softmax", causal=False, bias=True, **options):
    data = sample(**options)
    return Model.of(kind, causal, bias, data).problem(data)


def some_kernel(problem, rank, seed=1):
    rng = np.random.default_rng(seed)
    return Kernel.of(rng.normal(size=(problem.query.shape[2], problem.key.shape[2])) * 0.3, rank)


def some_tangent(kernel, seed=2):
    rng = np.random.default_rng(seed)
    return kernel.tangent(rng.normal(size=kernel.left.shape), rng.normal(size=kernel.right.shape))


def matrix(kernel, step):
    second = 0.0 if step.second is None else kernel.left @ step.second.T
    return step.first @ kernel.right.T + second


KINDS = [
    ("softmax", False, False),
    ("softmax", True, True),
    ("linear", True, False),
    ("fixed_operator", False, False),
]


@pytest.mark.parametrize(("kind", "causal", "masked"), KINDS)
@pytest.mark.parametrize("rank", [2, 5])
def test_jacobian_is_the_derivative_with_values_held(kind, causal, masked, rank):
    data = problem(kind, causal, masked=masked)
    kernel = some_kernel(data, rank)
    lin = Linearization(data, kernel, FittedValueMap(), 1e-6)
    step, h = some_tangent(kernel), 1e-6

    def outputs(length):
        K = kernel.matrix() + length * matrix(kernel, step)
        Z = data.regressors(data.mixer(K, np.eye(K.shape[1])))
        return Z @ lin.W

    expected = (outputs(h) - outputs(-h)) / (2 * h)
    np.testing.assert_allclose(np.concatenate(lin.push(step)), expected, atol=1e-7)


@pytest.mark.parametrize(("kind", "causal", "masked"), KINDS)
def test_normal_product_is_symmetric_and_matches_the_dense_projector(kind, causal, masked):
    data = problem(kind, causal, masked=masked)
    kernel = some_kernel(data, 2)
    ridge = 1e-3
    lin = Linearization(data, kernel, FittedValueMap(), ridge)
    u, v = some_tangent(kernel, 3), some_tangent(kernel, 4)
    assert lin.normal(u).dot(v) == pytest.approx(lin.normal(v).dot(u), rel=1e-10)
    Z = data.regressors(data.mixer(kernel.left * kernel.values, kernel.right))
    Z = Z.reshape(-1, Z.shape[2])
    rho = ridge * np.trace(Z.T @ Z) / Z.shape[1]
    projector = np.eye(len(Z)) - Z @ np.linalg.solve(Z.T @ Z + rho * np.eye(Z.shape[1]), Z.T)
    Ju, Jv = (np.concatenate(lin.push(step)).reshape(len(Z), -1) for step in (u, v))
    assert lin.normal(u).dot(v) == pytest.approx(np.sum(Ju * (projector @ Jv)), rel=1e-6)


def test_tangent_norm_is_the_norm_of_the_change():
    data = problem()
    for rank in (1, 3, 5):
        kernel = some_kernel(data, rank)
        step = some_tangent(kernel)
        assert step.dot(step) == pytest.approx(np.sum(matrix(kernel, step) ** 2))


def test_retraction_is_the_best_approximation_of_the_moved_kernel():
    kernel = some_kernel(problem(), 2)
    step = some_tangent(kernel).times(0.1)
    moved = kernel.matrix() + matrix(kernel, step)
    left, values, right = np.linalg.svd(moved)
    np.testing.assert_allclose(
        kernel.moved(step).matrix(), (left[:, :2] * values[:2]) @ right[:2], atol=1e-12
    )


@pytest.mark.parametrize("rank", [2, 5])
def test_curvature_solves_its_own_model(rank):
    data = problem()
    kernel = some_kernel(data, rank)
    curvature = Curvature(Linearization(data, kernel, FittedValueMap(), 1e-6), np.random.default_rng(0))
    S = (curvature.vectors * (curvature.eigenvalues + 0.7)) @ curvature.vectors.T
    gradient = some_tangent(kernel)
    solved = matrix(kernel, curvature.solve(kernel, gradient, 0.7)) @ S
    # The model applied to the solution, tested against every tangent direction, gives the gradient back.
    back = kernel.tangent(solved @ kernel.right, (kernel.left.T @ solved).T)
    left_part = back.second
    if left_part is not None:
        np.testing.assert_allclose(left_part, gradient.second, atol=1e-10)
    np.testing.assert_allclose(back.first, gradient.first, atol=1e-10)


def test_conjugate_gradients_against_a_dense_solve():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(12, 12))
    A, b = root @ root.T + np.eye(12), rng.normal(size=12)
    solution = conjugate_gradients(
        lambda v: Tangent((A @ v.first.ravel()).reshape(4, 3), None),
        lambda v: v,
        Tangent(b.reshape(4, 3), None),
        1e-14,
        100,
    )
    np.testing.assert_allclose(solution.x.first.ravel(), np.linalg.solve(A, b), rtol=1e-8)


def test_linear_link_with_known_values_is_scipys_least_squares():
    data = sample(n=25)
    model = Model.of("linear", False, False, data)
    V = np.random.default_rng(5).normal(size=(5, 4))
    known = KnownValueMap(model.value.dual().T @ V)
    task = model.problem(data)
    done = fit(
        task,
        first_kernel(task, known, 9, np.random.default_rng(0)),
        known,
        np.random.default_rng(0),
        Settings(decrement=1e-16),
    )
    X, B = data.X, data.X @ V
    design = np.einsum("nti,nsj,nsv->ntvij", X, X, B).reshape(-1, 25)
    expected = lstsq(design, data.Y.reshape(-1))[0].reshape(5, 5)
    got = model.in_tokens(done.kernel)
    np.testing.assert_allclose(got.matrix(), expected, atol=1e-6)


def test_any_number_of_threads_gives_the_same_digits():
    data = problem(n=900, T=6)
    assert len(data.blocks) > 2
    kernel = some_kernel(data, 3)
    losses, steps = [], []
    for count in (1, 2, 3):
        with workers(count):
            lin = Linearization(data, kernel, FittedValueMap(), 1e-6)
            losses.append(lin.loss)
            steps.append(lin.normal(some_tangent(kernel)).first)
    assert losses[0] == losses[1] == losses[2]
    np.testing.assert_array_equal(steps[0], steps[1])
    np.testing.assert_array_equal(steps[0], steps[2])


def test_blocks_cover_the_problem():
    data = problem(n=900, T=6, masked=True)
    assert sum(block.outputs.shape[0] for block in data.blocks) == 900
    np.testing.assert_array_equal(np.concatenate([block.value for block in data.blocks]), data.value)
    np.testing.assert_array_equal(np.concatenate([block.visible for block in data.blocks]), data.visible)


def test_torch_passes_through_the_same_functions():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 6, 5))
    K, V = rng.normal(size=(5, 2)) @ rng.normal(size=(2, 5)) * 0.5, rng.normal(size=(5, 4))
    Y = Attention("softmax").mixer(X @ K @ np.swapaxes(X, 1, 2)) @ X @ V
    spectra = []
    for convert in (np.asarray, torch.asarray):
        data = Sample(convert(X), convert(Y))
        model = Model.of("softmax", False, True, data)
        task = model.problem(data)
        values = FittedValueMap()
        start = first_kernel(task, values, 9, np.random.default_rng(0))
        done = fit(task, start, values, np.random.default_rng(0), Settings(floor=1e-24))
        spectra.append(np.asarray(model.in_tokens(done.kernel).values))
    np.testing.assert_allclose(spectra[0], spectra[1], atol=1e-6)
    np.testing.assert_allclose(spectra[1][:2], np.linalg.svd(K)[1][:2], rtol=1e-4)


def test_problem_is_immutable():
    data = problem()
    with pytest.raises(AttributeError):
        data.rows = 3  # type: ignore[misc]
    assert replace(data, rows=3).rows == 3
