"""The array library of an array: numpy itself, or what array-api-compat knows."""

from __future__ import annotations

from typing import Any

import numpy as np


def array_namespace(*arrays: Any) -> Any:
    """The array-API namespace of ``arrays`` (None and Python scalars aside).

    numpy 2.1 follows the standard by itself. Asking array-api-compat for it costs more than a small matrix
    product, and its first answer as much as importing numpy does.
    """
    if all(isinstance(array, np.ndarray) for array in arrays):
        return np
    from array_api_compat import array_namespace as of

    return of(*arrays)
