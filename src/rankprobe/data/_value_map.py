"""V as stored with a pair: [d, d_v], or for heads [H, d, d_h] or [d, H*d_h]."""

from __future__ import annotations

import numpy as np

from rankprobe.data._fields import Field, Inputs, Outputs
from rankprobe.data._values import Floats, all_finite
from rankprobe.errors import DataError


class ValueMap:
    """The value map of each head; raises :class:`DataError` when its shape does not fit X and Y."""

    def __init__(self, field: Field, inputs: Inputs, outputs: Outputs) -> None:
        self.field = field
        self._one = d, d_v = inputs.dim, outputs.value_dim
        allowed: list[tuple[int, ...]] = [(d, d_v)]
        if outputs.heads is not None:
            allowed += [(outputs.heads, d, d_v), (d, outputs.heads * d_v)]
        if field.shape in allowed:
            return
        turned = field.shape[::-1] in [one for one in allowed if len(one) == 2]
        expected = " or ".join(str(list(one)) for one in allowed)
        raise DataError(
            f"{field.label}: shape {list(field.shape)} is not [d, d_v] = {expected}"
            f"{'; it looks transposed' if turned else ''}; "
            "store the map that multiplies tokens from the right, or name another with --v"
        )

    def read(self, head: int | None) -> Floats:
        """V [d, d_v] of one head as float64."""
        V = self.field.stored.convert(self.field.all(), np.float64)
        if not all_finite(V):
            raise DataError(f"{self.field.label}: holds NaN or infinite values; store it again or drop --v")
        if head is None or V.shape == self._one:
            return V
        if V.ndim == 3:
            return np.ascontiguousarray(V[head])
        width = self._one[1]
        return np.ascontiguousarray(V[:, head * width : (head + 1) * width])
