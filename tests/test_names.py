"""The public names of the package, and what importing it costs."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import rankprobe


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = (
        "import sys, rankprobe, rankprobe.data, rankprobe.cli.main\n"
        "heavy = {'numpy', 'scipy', 'h5py', 'torch'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "rankprobe.make_teacher\n"
        "assert 'numpy' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_public_name_is_there() -> None:
    for name in rankprobe.__all__:
        assert getattr(rankprobe, name) is not None
        assert name in dir(rankprobe)
    assert rankprobe.make_teacher is importlib.import_module("rankprobe.teachers").make_teacher


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="no attribute 'estimates'"):
        _ = rankprobe.estimates  # type: ignore[attr-defined]
