"""rankprobe: the intrinsic query-key rank of attention, from inputs and outputs alone."""

__version__ = "0.1.0"
