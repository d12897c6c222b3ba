"""The paper's tables: what they compare, that stopping them costs one cell, and what a quick one finds."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from cli_support import run
from rankprobe import spectra
from rankprobe.data import read_results
from rankprobe.errors import DataError, UsageError
from rankprobe.experiments import reproduce, table1, table2, table3, table4, table5
from rankprobe.experiments.table import Entry
from rankprobe.teachers import spectrum_values

torch.set_num_threads(1)

TINY = {"sequences": 100, "sweep_steps": 100, "recovery_steps": 50}


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (table1, table2, table3, table4, table5):
        monkeypatch.setattr(module, "settings", lambda quick: TINY)


def test_the_cells_are_the_papers() -> None:
    # Two teachers, six ranks, five seeds; each with students, recovery and refit, and one full sweep.
    cells = table3.cells(quick=False)
    rows = {(cell["teacher"], cell["rank"], cell["seed"]) for cell in cells}
    assert len(rows) == 2 * 6 * 5
    assert len(cells) == 3 * len(rows) + 2 * 6
    assert all((cell["tokens"], cell["dim"], cell["sequences"]) == (16, 32, 3000) for cell in cells)
    swept = [cell for cell in cells if (cell["teacher"], cell["rank"], cell["seed"]) == ("softmax_qk", 4, 0)]
    assert sorted(rank for cell in swept for rank in cell.get("ranks", ())) == list(range(1, 9))
    for module, tokens, dim in ((table1, 16, 12), (table2, 12, 10), (table5, 10, 12), (table4, 16, 32)):
        assert {(cell["tokens"], cell["dim"]) for cell in module.cells(quick=False)} == {(tokens, dim)}
    for module in (table1, table2, table3, table4, table5):
        assert {cell["seed"] for cell in module.cells(quick=False)} == set(range(5))
        keys = [json.dumps(cell, sort_keys=True) for cell in module.cells(quick=False)]
        assert len(set(keys)) == len(keys) > len(module.cells(quick=True))


def test_what_the_paper_prints_of_its_teachers_is_their_closed_form() -> None:
    for name, values in table5.PAPER.items():
        assert values[0] == pytest.approx(spectra.energy_rank(spectrum_values(name, 4)), abs=0.006)
    for rank, printed in zip(table3.RANKS, table4.PAPER["linear_qk"]["V-known R̃"], strict=True):
        assert printed == pytest.approx(spectra.energy_rank(spectrum_values("sharp", rank)), abs=0.01)
    assert table1.PAPER_EFFECTIVE[2] == pytest.approx(spectra.effective_rank([2.0, 1.5, 1.0]), abs=0.005)


def test_a_deviation_is_marked_and_explained_with_the_evidence() -> None:
    close = Entry("r = 1", "excess", 1.10, 1.0)
    assert close.deviation == pytest.approx(0.1) and not close.differs
    zero = Entry("r = 3", "excess", -0.004, 0.0002, 0.0)
    assert zero.deviation is None and not zero.differs
    far = Entry("r = 1", "excess", 12.0, 9.0, 12.1, "closed form", (11.0, 13.0), note="as drawn")
    assert far.differs
    for part in ("12 against 9 (+33%)", "closed form for our draws is 12.1", "from 11 to 13", "as drawn"):
        assert part in far.explanation()
    assert "ours is right" not in Entry("r", "excess", 20.0, 9.0, 12.1, "best found").explanation()
    assert Entry("r", "excess", float("nan"), 9.0).differs
    assert not Entry("r", "excess", None, 9.0).differs


@pytest.mark.parametrize("name", ["table1", "table2"])
def test_quick_tables_hold_the_papers_facts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    more = {"sequences": 150, "sweep_steps": 250, "recovery_steps": 250}
    for module in (table1, table2):
        monkeypatch.setattr(module, "settings", lambda quick: more)
    made = reproduce(name, quick=True)
    of = {(entry.row, entry.column): entry for entry in made.entries}
    if name == "table1":
        ratio = of["excess at r = 1 over r = 2", "ratio"]
        assert ratio.reference == 3.25 and ratio.ours == pytest.approx(3.25, rel=0.1)
        assert all(abs(of[f"r = {r}", "excess"].ours or 0.0) < 0.03 for r in range(3, 7))
        assert of["data alone", "rank"].ours == 3
    if name == "table2":
        rungs = {entry.row.split()[0]: entry.ours for entry in made.entries}
        assert abs(rungs["B0"] or 1.0) < 0.03
        assert all((rungs[rung] or 0.0) > 10.0 for rung in ("B1", "B1c", "B2", "B3"))
        assert (rungs["B3"] or 0.0) < min(rungs[rung] or 0.0 for rung in ("B1", "B1c", "B2"))


@pytest.mark.usefixtures("tiny")
def test_what_a_weak_last_direction_weighs() -> None:
    made = reproduce("table5", quick=True)
    of = {(entry.row, entry.column): entry for entry in made.entries}
    for spectrum in table5.PAPER:
        exact = of[spectrum, "teacher R̃"].ours
        assert of[spectrum, "R̃, data alone"].ours == pytest.approx(exact, abs=0.02)
    # λ₄² of both; so short a training has not found it, the refits have.
    power, sharp = (of[spectrum, "excess at r*−1"].reference or 0.0 for spectrum in ("power", "sharp"))
    assert power / sharp == pytest.approx(1 / 16, rel=0.3)


@pytest.mark.usefixtures("tiny")
def test_data_alone_ours_is_exact_where_the_papers_counts_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table4, "TEACHERS", ("softmax_qk",))
    made = reproduce("table4", quick=True)
    of = {(entry.row, entry.column): entry.ours for entry in made.entries}
    for rank in (1, 8):
        assert of[f"softmax r* = {rank}", "rank, ours, v-unknown"] == rank
    assert (of["softmax r* = 8", "numerical rank"] or 0) >= 15
    assert (of["softmax r* = 8", "V-unknown R̃"] or 0) > 10


KILLED = """
import sys, torch
torch.set_num_threads(1)
from rankprobe.experiments import reproduce, table2
table2.settings = lambda quick: TINY
reproduce("table2", sys.argv[1], quick=True)
"""


@pytest.mark.usefixtures("tiny")
def test_killed_in_the_middle_no_finished_cell_runs_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cells.h5"
    script = KILLED.replace("TINY", repr(TINY))
    process = subprocess.Popen([sys.executable, "-c", script, str(path)])
    until = time.monotonic() + 60
    while time.monotonic() < until and process.poll() is None:
        if path.exists() and len(read_results(path, home="cells")) >= 2:
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    finished = [json.dumps(record["cell"]) for record in read_results(path, home="cells")]
    assert 2 <= len(finished) < 5
    ran: list[str] = []
    run_cell = table2.run

    def count(cell: Any, progress: Any = None) -> Any:
        ran.append(json.dumps(cell))
        return run_cell(cell, progress)

    monkeypatch.setattr(table2, "run", count)
    resumed = reproduce("table2", str(path), quick=True)
    assert len(ran) + len(finished) == 5 and not set(ran) & set(finished)
    assert resumed.entries == reproduce("table2", quick=True).entries
    # A file that holds all cells is a table at once.
    ran.clear()
    assert reproduce("table2", str(path), quick=True).entries == resumed.entries and not ran


@pytest.mark.usefixtures("tiny")
def test_the_command_prints_every_form_and_a_figure(tmp_path: Path) -> None:
    cells = ("--quick", "--threads", 1, "--cells", tmp_path / "cells.h5")
    ran = run("reproduce", "table2", *cells, "--format", "json", "--plot", tmp_path / "two.svg")
    assert ran.code == 0, ran.err
    (table,) = json.loads(ran.out)["results"]
    assert table["table"] == "table2" and table["quick"] and len(table["entries"]) == 5
    assert table["versions"]["torch"] == torch.__version__
    assert "table2" in (tmp_path / "two.svg").read_text()
    text = run("reproduce", "table2", *cells, "--format", "table").out
    assert "69.37" in text and "treat positions alike" in text and "doing nothing leaves" in text
    lines = run("reproduce", "table2", *cells).lines
    assert len(lines) == 6 and lines[0].split("\t")[:5] == ["table", "row", "column", "ours", "paper"]
    assert run("reproduce", "table2", *cells, "--plot", tmp_path / "two.svg").code == 3
    assert run("reproduce", "table2", *cells, "--plot", "two.txt").code == 2


def test_wrong_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="table1"):
        reproduce("table6")
    (tmp_path / "not.h5").write_text("no")
    with pytest.raises(DataError):
        reproduce("table1", str(tmp_path / "not.h5"))
    assert run("reproduce", "table6").code == 2
    monkeypatch.setitem(sys.modules, "torch", None)
    assert run("reproduce", "table1").code == 5
