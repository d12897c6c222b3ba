"""Profile Gauss–Newton: joint least squares over a kernel of bounded rank and its value map."""

from rankprobe.solver.gauss_newton import Fit, Settings, fit
from rankprobe.solver.kernel import Kernel, Tangent
from rankprobe.solver.linearization import Linearization
from rankprobe.solver.problem import Problem
from rankprobe.solver.value_map import FittedValueMap, KnownValueMap, ValueMap

__all__ = [
    "Fit",
    "FittedValueMap",
    "Kernel",
    "KnownValueMap",
    "Linearization",
    "Problem",
    "Settings",
    "Tangent",
    "ValueMap",
    "fit",
]
