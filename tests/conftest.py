"""Settings of every test process."""

from __future__ import annotations

import os

from hypothesis import settings

# Before numpy is imported, here and in the commands that tests start: the tests run in one process a core,
# and thread pools of several processes that share the cores wait for each other.
for _pool in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_pool, "1")

# A deadline measures the machine; the same examples on every run keep an unchanged commit green.
settings.register_profile("rankprobe", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("rankprobe")
