"""Arrays that cannot be used are refused in one line, which says what to pass instead."""

import ml_dtypes
import numpy as np
import pytest
import torch

import rankprobe
from rankprobe.errors import DataError, UsageError
from rankprobe.estimators.source import ArraySource

RNG = np.random.default_rng(5)
X = RNG.standard_normal((40, 6, 8))
Y = RNG.standard_normal((40, 6, 4))
HEADS = RNG.standard_normal((40, 3, 6, 4))


def refused(kind, match, *arrays, **options):
    with pytest.raises(kind, match=match) as error:
        rankprobe.estimate(*arrays, **options)
    assert "\n" not in str(error.value) and ";" in str(error.value)


@pytest.mark.parametrize(
    "match,arrays",
    [
        ("X is a list, Y is a list; pass arrays of one library", (X.tolist(), Y.tolist())),
        ("X is a ndarray, Y is a list", (X, Y.tolist())),
        ("X is a ndarray, Y is a Tensor", (X, torch.asarray(Y))),
        ("X is a ndarray, Y is a float", (X, 0.0)),
        ("X requires gradients.*X.detach", (torch.asarray(X).requires_grad_(), torch.asarray(Y))),
        ("the arrays lie on cpu and meta", (torch.asarray(X), torch.asarray(Y).to("meta"))),
    ],
)
def test_calls_that_are_refused(match, arrays):
    refused(UsageError, match, *arrays)


@pytest.mark.parametrize(
    "match,arrays",
    [
        (r"X \(0, 6, 8\) and Y \(0, 6, 4\) hold no values", (X[:0], Y[:0])),
        (r"hold no values", (X[:, :0], Y[:, :0])),
        (r"hold no values", (X, HEADS[:, :0])),
        (r"X is \(6, 8\), Y \(6, 4\)", (X[0], Y[0])),
        ("X holds complex128; pass the real part", (X + 0j, Y)),
        ("Y holds complex64", (torch.asarray(X), torch.asarray(Y).to(torch.complex64))),
        ("X holds object, not real numbers", (X.astype(object), Y)),
        ("Y holds str", (X, Y.astype(str))),
    ],
)
def test_values_that_are_refused(match, arrays):
    refused(DataError, match, *arrays)


def test_heads_that_are_not_there():
    for head in (0, 3):
        refused(UsageError, "has no axis for heads", X, Y, head=head)
    for head in (None, 3, -1):
        refused(UsageError, "name one of 0 to 2", X, HEADS, head=head)


def test_masks_and_value_maps_that_do_not_fit():
    real = np.ones((40, 6))
    refused(DataError, "mask holds other values", X, Y, mask=real - 1e9)
    refused(DataError, r"V \(8,\) does not fit", X, Y, V=np.ones(8))
    refused(DataError, r"V \(3, 8, 4\) does not fit", X, Y, V=np.ones((3, 8, 4)))
    refused(DataError, "V: holds values that are not finite", X, Y, V=np.full((8, 4), np.nan))
    for mask in (real, real.astype(int), real.astype(bool)):
        _, _, read = ArraySource(X, Y, mask=mask).read(np.arange(3))
        assert read.dtype == bool and read.all()


NUMPY = {"float64": "f8", "float32": "f4", "float16": "f2", "bfloat16": ml_dtypes.bfloat16}


@pytest.mark.parametrize("precision", NUMPY)
def test_precision_is_that_of_the_coarser_array_whatever_its_type(precision):
    kind = NUMPY[precision]
    for rounded in (X.astype(kind), X.astype(kind).astype("f8"), X.astype(kind).astype("f8").astype(">f8")):
        assert ArraySource(rounded, HEADS).storage_dtype == precision
    assert ArraySource(X, Y.astype(kind).astype("f8")).storage_dtype == precision
    tensor = torch.asarray(X).to(getattr(torch, precision))
    for rounded in (tensor, tensor.to(torch.float64)):
        assert ArraySource(rounded, torch.asarray(HEADS)).storage_dtype == precision
