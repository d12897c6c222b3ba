"""The commands that train: what they print, save, take up again and compare."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from cli_support import run
from rankprobe.cli.progress import Meter
from rankprobe.data import read_results

torch.set_num_threads(1)

QUICK = ("--threads", 1, "--optimizer", "lbfgs", "--steps", 60)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("training") / "pairs.h5"
    assert run("generate", "-r", 2, "-d", 8, "-T", 8, "-n", 300, "-o", path).code == 0
    return path


def results(*arguments: object) -> list[dict[str, Any]]:
    ran = run(*arguments, "--format", "json")
    assert ran.code == 0, ran.err
    found: list[dict[str, Any]] = json.loads(ran.out)["results"]
    return found


def test_recovery_and_estimate_agree_and_are_compared(tmp_path: Path, pairs: Path) -> None:
    path = tmp_path / "pairs.h5"
    path.write_bytes(pairs.read_bytes())
    (found,) = results("train-recover", path, *QUICK, "--seeds", 2, "--save")
    assert found["verdict"] == "agrees" and found["rank"] == found["estimate"]["rank"] == 2
    assert found["floor"] == pytest.approx(0.05**2 * 8 * 8)
    assert found["floor_from"] == "file"
    assert found["effective_rank_cv"] < 0.01
    assert [student["seed"] for student in found["students"]] == [0, 1]
    assert found["versions"]["torch"] == torch.__version__
    assert "train-recover" in found["command"]
    (kept,) = read_results(path, home="recovery")
    assert kept["students"] == found["students"]
    # What estimate has saved is not estimated again.
    assert run("estimate", path, "--save", "--threads", 1).code == 0
    (again,) = results("train-recover", path, *QUICK, "--seeds", 1)
    assert again["estimate_seconds"] is None and again["estimate"]["rank"] == 2
    rows = results("compare", path)
    assert [row["source"] for row in rows] == ["teacher", "estimate", "recovery", "recovery"]
    assert [row["rank"] for row in rows] == [2, 2, 2, 2]
    for row in rows:
        assert row["energy_rank"] == pytest.approx(1.6494, abs=0.02)  # λ = 2, 1
    assert run("compare", path, "-q").lines == ["2"] * 4
    assert [line.split("\t")[0] for line in run("compare", path).lines[1:]] == [row["source"] for row in rows]


def test_every_form_of_a_recovery(pairs: Path) -> None:
    arguments = ("train-recover", pairs, *QUICK, "--seeds", 1)
    assert run(*arguments, "-q").lines == ["2"]
    lines = run(*arguments, "--format", "tsv").lines
    assert [line.split("\t")[2] for line in lines] == ["source", "student 0", "estimate"]
    assert len(run(*arguments, "--format", "jsonl").lines) == 1
    table = run(*arguments, "--format", "table").out
    assert "agrees: the students' kernels have 2 directions above their noise, the estimate says 2" in table
    assert "\x1b" not in table


def test_a_recovery_that_has_not_converged_is_code_4(pairs: Path) -> None:
    ran = run("train-recover", pairs, "--threads", 1, "--steps", 25, "--seeds", 1, "-q")
    assert ran.code == 4
    assert "not_converged" in ran.err


def test_a_sweep_finds_the_transition(pairs: Path) -> None:
    (found,) = results("sweep", pairs, *QUICK, "--curve")
    assert found["rank"] == 2
    assert [point["rank"] for point in found["points"]] == [1, 2, 3, 4]
    below, at = found["points"][:2]
    assert not below["achieved"] and at["achieved"]
    # The curve needs no training and says the same.
    assert below["curve_excess"] == pytest.approx(below["excess"], rel=0.05)
    assert run("sweep", pairs, *QUICK, "--ranks", "1-3", "-q").lines == ["2"]
    short = run("sweep", pairs, *QUICK, "--ranks", "1", "-q")
    assert short.code == 4 and short.lines == ["NA"] and "no rank reaches the noise" in short.err
    table = run("sweep", pairs, *QUICK, "--ranks", "1,2", "--holdout", "0.2", "--format", "table").out
    assert "transition at rank 2" in table and "loss heldout" in table


def test_heads_are_trained_one_by_one(tmp_path: Path) -> None:
    path = tmp_path / "heads.h5"
    assert run("generate", "-r", 1, "-d", 6, "-T", 6, "-n", 200, "--heads", 2, "-o", path).code == 0
    found = results("sweep", path, *QUICK, "--ranks", "1-2")
    assert [(one["head"], one["rank"]) for one in found] == [(0, 1), (1, 1)]
    (second,) = results("train-recover", path, *QUICK, "--head", 1, "--seeds", 1, "--save")
    assert second["head"] == 1
    rows = results("compare", path)
    assert [(row["source"], row["head"]) for row in rows] == [("teacher", 0), ("teacher", 1), ("recovery", 1)]
    assert run("sweep", path, "--head", 5, "--ranks", "1").code == 2


def test_ctrl_c_leaves_a_state_that_the_same_command_takes_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, pairs: Path
) -> None:
    path = tmp_path / "pairs.h5"
    path.write_bytes(pairs.read_bytes())
    arguments = ("train-recover", path, "--threads", 1, "--steps", 200, "--seeds", 2, "--patience", 0)
    undisturbed = results(*arguments)[0]
    calls: list[float] = []
    stop = True

    def count(self: Meter, done: float, total: float | None = None, text: str | None = None) -> None:
        if text and "effective rank" in text:
            calls.append(done)
            if stop and len(calls) == 12:
                raise KeyboardInterrupt

    monkeypatch.setattr(Meter, "__call__", count)
    ran = run(*arguments)
    assert ran.code == 130 and "goes on from it" in ran.err
    assert ran.out.count("\n") <= 1
    (left,) = [one for one in tmp_path.iterdir() if one.suffix == ".pt"]
    assert left.name == "pairs.h5.train-recover.pt"
    stop = False
    other = run(*arguments[:4], "--steps", 300, "--seeds", 2)
    assert other.code == 3 and "--restart" in other.err
    calls.clear()
    resumed = results(*arguments)[0]
    assert calls[0] > 300  # of 400 steps
    assert not left.exists()
    for one, two in zip(resumed["students"], undisturbed["students"], strict=True):
        assert one["singular_values"] == two["singular_values"] and one["loss"] == two["loss"]


def test_the_ladder_names_the_rung(pairs: Path) -> None:
    small = ("-T", 6, "-d", 4, "-r", 2, "-n", 200, "--threads", 1, "--steps", 150)
    ran = run("ladder", *small, "-q")
    assert ran.code == 0 and ran.lines == ["B1"]
    (found,) = results("ladder", *small)
    assert [rung["solves"] for rung in found["rungs"]] == [True, False, False, False, False]
    # On a softmax head the rung of its own kind is the one that holds.
    (own,) = results("ladder", pairs, "-r", 2, *QUICK)
    assert own["breaks"] == "B0"
    assert {rung["rung"]: rung["solves"] for rung in own["rungs"]}["B2"]


def test_standard_input(pairs: Path) -> None:
    ran = run("sweep", "-", "--ranks", "1-2", *QUICK, "-q", stdin=pairs.read_bytes())
    assert ran.lines == ["2"]
    assert run("train-recover", "-", "--save", stdin=pairs.read_bytes()).code == 2


@pytest.mark.parametrize(
    "arguments,code,complaint",
    [
        (("train-recover", "missing.h5"), 3, "missing.h5"),
        (("train-recover", "PAIRS", "--seeds", 0), 2, "--seeds must be at least 1"),
        (("train-recover", "PAIRS", "--device", "abacus"), 2, "device 'abacus' cannot be used"),
        (("train-recover", "PAIRS", "--holdout", 1), 2, "below 1"),
        (("sweep", "PAIRS", "--ranks", "0-3"), 2, "--ranks '0-3' is no list of ranks"),
        (("sweep", "PAIRS", "--ranks", "a"), 2, "is no list of ranks"),
        (("ladder", "--rank", "20"), 2, "rank 20 does not fit"),
        (("compare", "EMPTY"), 3, "holds no teacher, estimate or recovery"),
    ],
)
def test_errors(
    tmp_path: Path, pairs: Path, arguments: tuple[object, ...], code: int, complaint: str
) -> None:
    if "EMPTY" in arguments:
        import h5py

        with h5py.File(tmp_path / "empty.h5", "w") as file:
            file["X"], file["Y"] = [[[1.0]]], [[[1.0]]]
    places = {"PAIRS": pairs, "EMPTY": tmp_path / "empty.h5"}
    ran = run(*(places.get(str(one), one) for one in arguments))
    assert ran.code == code
    assert complaint in ran.err and ran.err.count("\n") == 1


@pytest.mark.parametrize("command", ["train-recover", "sweep", "ladder"])
def test_missing_torch_is_code_5(monkeypatch: pytest.MonkeyPatch, pairs: Path, command: str) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    ran = run(command, pairs)
    assert ran.code == 5
    assert "pip install 'rankprobe[train]'" in ran.err


def test_help_of_these_commands_is_light_and_complete() -> None:
    code = (
        "import sys\n"
        "from rankprobe.cli import compare, ladder, sweep, train_recover\n"
        "heavy = {'numpy', 'scipy', 'h5py', 'torch'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    listed = run("--help").out
    for command in ("train-recover", "sweep", "ladder", "compare"):
        assert re.search(rf"^  {command} +\w", listed, re.MULTILINE)
        text = run(command, "--help").out
        assert "Example" in text
        for entry in re.split(r"\n  (?=-)", text[text.index("Options:") :])[1:]:
            assert re.search(r"(  |\n\s+)[A-Za-z]\w*", entry), entry
