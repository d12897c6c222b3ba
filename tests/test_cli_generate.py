"""``rankprobe generate``: options reach the teacher, the file is what it says."""

from __future__ import annotations

import io
import typing
from pathlib import Path

import h5py
import numpy as np
import pytest

import rankprobe.cli.generate as command
from cli_support import run
from rankprobe import teachers
from rankprobe.teachers import make_teacher


@pytest.mark.parametrize(
    "offered,existing",
    [
        (command.TeacherName, teachers.Kind),
        (command.SpectrumName, teachers.Spectrum),
        (command.KernelName, teachers.Kernel),
        (command.InputsName, teachers.Inputs),
        (command.PaddingName, teachers.Padding),
    ],
)
def test_the_choices_are_those_of_the_teachers(offered: object, existing: object) -> None:
    assert typing.get_args(offered) == typing.get_args(existing)


def test_defaults_are_the_reference_cell(tmp_path: Path) -> None:
    ran = run("generate", "-o", tmp_path / "t.h5", "-n", "70")
    assert (ran.code, ran.out) == (0, "")
    assert ran.err.startswith(f"rankprobe: wrote {tmp_path}/t.h5: softmax_qk of rank 4, X [70, 16, 32], ")
    X, Y = next(make_teacher(rank=4, seed=0).blocks(70, 70))
    with h5py.File(tmp_path / "t.h5") as file:
        np.testing.assert_array_equal(file["X"][:], X.astype(np.float32))
        np.testing.assert_array_equal(file["Y"][:], Y.astype(np.float32))
        assert file.attrs["encoding-type"] == "rankprobe-pair"
        assert file.attrs["attention"] == "softmax" and file.attrs["noise_sigma"] == 0.05
        assert file.attrs["scale"] == 1 / np.sqrt(32) and not file.attrs["causal"]
        assert file["teacher"].attrs["rank"] == 4 and file["teacher"].attrs["seed"] == 0
        np.testing.assert_array_equal(file["teacher/K"][:], make_teacher().K)
        np.testing.assert_array_equal(file["teacher/V"][:], make_teacher().V)
        assert set(file) == {"X", "Y", "teacher"}


def test_every_option_reaches_the_teacher(tmp_path: Path) -> None:
    path = tmp_path / "t.h5"
    ran = run(
        *("generate", "--teacher", "linear_qk", "--rank", 3, "--tokens", 7, "--dim", 6, "--value-dim", 5),
        *("--sequences", 9, "--noise", 0.2, "--spectrum", "power", "--kernel", "asymmetric", "--scale", 0.5),
        *("--inputs", "layernorm", "--causal", "--heads", 2, "--padding", "left", "--dtype", "float64"),
        *("--seed", 11, "-o", path),
    )
    assert ran.code == 0, ran.err
    teacher = make_teacher(
        "linear_qk",
        3,
        7,
        6,
        5,
        noise=0.2,
        spectrum="power",
        kernel="asymmetric",
        scale=0.5,
        inputs="layernorm",
        causal=True,
        heads=2,
        padding="left",
        seed=11,
    )
    X, Y, mask = next(teacher.blocks(9, 9))  # type: ignore[misc]
    with h5py.File(path) as file:
        np.testing.assert_array_equal(file["X"][:], X)
        np.testing.assert_array_equal(file["Y"][:], Y)
        np.testing.assert_array_equal(file["mask"][:], mask)
        np.testing.assert_array_equal(file["teacher/K"][:], teacher.K)


def test_fixed_operator_keeps_its_operator(tmp_path: Path) -> None:
    path = tmp_path / "t.h5"
    ran = run("generate", "--teacher", "fixed_operator", "-r", 3, "-d", 12, "-n", 5, "-o", path)
    assert ran.code == 0, ran.err
    with h5py.File(path) as file:
        assert file.attrs["attention"] == "fixed_operator"
        assert file["teacher/A"].shape == (16, 16)


def test_standard_output_is_the_same_file(tmp_path: Path) -> None:
    ran = run("generate", "-n", 5, "-o", "-")
    assert (ran.code, ran.err) == (0, "")
    with h5py.File(io.BytesIO(ran.stdout)) as file:
        assert file["X"].shape == (5, 16, 32)


def test_an_existing_file_is_kept_without_force(tmp_path: Path) -> None:
    path = tmp_path / "t.h5"
    path.write_bytes(b"precious")
    ran = run("generate", "-n", 5, "-o", path)
    assert ran.code == 3
    assert ran.err == f"rankprobe: error: {path}: exists; pass --force to replace it\n"
    assert path.read_bytes() == b"precious"
    assert run("generate", "-n", 5, "-o", path, "--force").code == 0
    with h5py.File(path) as file:
        assert len(file["X"]) == 5


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    ran = run("generate", "-n", 5, "-o", tmp_path / "no" / "t.h5")
    assert ran.code == 3 and ran.err.count("\n") == 1
