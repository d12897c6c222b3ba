"""The curvature JᵀPJ, modelled as I ⊗ S in whitened query features: preconditioner and noise metric."""

from __future__ import annotations

import math
from functools import reduce

import numpy as np

from rankprobe.arrays import array_namespace
from rankprobe.attention import Array
from rankprobe.solver.kernel import Kernel, Tangent
from rankprobe.solver.linearization import Block, Linearization
from rankprobe.solver.parallel import map_blocks
from rankprobe.solver.problem import contract


class Curvature:
    """S = Σ_t C_t C_tᵀ, [p_k, p_k], with C_t = Cov_{A_t}(key, B) [p_k, d_v], from random value-side probes.

    JᵀJ = Σ_t x_t x_tᵀ ⊗ C_t C_tᵀ exactly; with Σ_t x_t x_tᵀ ∝ I the mean over tokens gives I ⊗ S. One
    probe z costs one pull, since C_t z is the pull of the constant residual z.
    """

    def __init__(self, lin: Linearization, rng: np.random.Generator, probes: int = 8) -> None:
        problem = lin.problem
        xp = array_namespace(problem.outputs)
        width = int(problem.outputs.shape[2])
        draws = rng.standard_normal((width, min(probes, width)))
        directions = np.linalg.qr(draws)[0].T * math.sqrt(width)

        def second_moment(block: Block) -> Array:
            S: Array = 0.0
            for z in directions:
                probe = xp.asarray(z, dtype=block.B.dtype, device=block.B.device)
                shape = (block.B.shape[0], *block.A.shape[1:])
                constant = xp.broadcast_to((block.B @ probe)[:, None, :], shape)
                C = block.problem.attention.pull(block.A, constant, block.problem.visible) @ block.problem.key
                S = S + contract(C, C) / len(directions)
            return S

        S = reduce(lambda a, b: a + b, map_blocks(second_moment, lin.blocks))
        eigenvalues, self.vectors = xp.linalg.eigh(S)
        self.eigenvalues = xp.clip(eigenvalues, 0.0, None)
        self.mean = float(xp.mean(self.eigenvalues))
        """μ, the unit of damping: mean eigenvalue of S."""

    def solve(self, kernel: Kernel, gradient: Tangent, damping: float) -> Tangent:
        """(I ⊗ (S + damping))^{-1} restricted to the tangent space of ``kernel``, exactly."""
        xp = array_namespace(self.vectors)
        inverse = 1.0 / (self.eigenvalues + damping)
        if gradient.second is None:
            rotated = gradient.first @ (kernel.right.T @ self.vectors)
            return Tangent((rotated * inverse) @ (self.vectors.T @ kernel.right), None)
        left, right = kernel.left, kernel.right
        # Rows of the gradient inside range(U) are free over all key directions; the part outside
        # range(U) only over range(V).
        inside = left.T @ gradient.first
        rows = inside @ right.T + gradient.second.T
        rows = ((rows @ self.vectors) * inverse) @ self.vectors.T
        seen = right.T @ self.vectors
        core = (seen * (self.eigenvalues + damping)) @ seen.T
        outside = xp.linalg.solve(core, (gradient.first - left @ inside).T).T
        return kernel.tangent(left @ (rows @ right) + outside, rows.T)

    def scaled(self, matrix: Array, power: float, floor: float = 1e-6) -> Array:
        """matrix [p_q, p_k] times (S + floor · μ)^power.

        Power ½ on a kernel and −½ on a gradient make their noise alike in every key direction.
        """
        return ((matrix @ self.vectors) * (self.eigenvalues + floor * self.mean) ** power) @ self.vectors.T
