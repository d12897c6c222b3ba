"""``rankprobe inspect``: the whole file is told, and the flags it proposes do read a pair."""

from __future__ import annotations

import json
import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from cli_support import run
from rankprobe.data import describe, open_pairs, save_results

RNG = np.random.default_rng(3)
X = RNG.standard_normal((6, 4, 5))
Y = RNG.standard_normal((6, 2, 4, 3))
MASK = np.ones((6, 4), dtype=np.int8)


def make(path: Path, /, **datasets: Any) -> Path:
    with h5py.File(path, "w") as file:
        for name, value in datasets.items():
            file.create_dataset(name, **(value if isinstance(value, dict) else {"data": value}))
    return path


FOREIGN: dict[str, dict[str, Any]] = {
    "the documented names": {"X": X, "Y": Y},
    "hidden states": {"hidden_states": X, "attn_out": Y, "attention_mask": MASK},
    "lower case in groups": {"l0/x": X, "l0/y": Y, "l1/x": X, "l1/y": Y},
    "hooks": {"blocks.0.hook_resid_pre": X, "blocks.0.attn.hook_z": Y},
    "a folder for each side": {"inputs/layer_0": X, "outputs/layer_0": Y},
    "flattened beside a mask": {
        "inputs": X.reshape(24, 5),
        "outputs": np.swapaxes(Y, 1, 2).reshape(24, 2, 3),
        "mask": MASK,
    },
    "spaces and letters": {"in put/hidden states": X, "in put/attn out ü": Y},
    "a group a sequence": {
        f"seq_{i}/{name}": part[i] for i in range(6) for name, part in (("x", X), ("attn_out", Y))
    },
    "sequences in two folders": {
        f"{name}/s{i:03d}": part[i] for i in range(6) for name, part in (("inputs", X), ("outputs", Y))
    },
    "sequences side by side": {
        f"{name}_{i}": part[i] for i in range(6) for name, part in (("x", X), ("y", Y), ("mask", MASK))
    },
    "a group a batch": {
        f"batch_{i}/{name}": part[2 * i : 2 * i + 2]
        for i in range(3)
        for name, part in (("x", X), ("y", Y), ("mask", MASK))
    },
    "bits of bfloat16": {"X": (X.astype("f4").view("u4") >> 16).astype("u2"), "Y": Y},
}


@pytest.mark.parametrize("name", FOREIGN)
def test_what_is_proposed_reads_the_pair(tmp_path: Path, name: str) -> None:
    path = make(tmp_path / "a b.h5", **FOREIGN[name])
    ran = run("inspect", "-q", path)
    assert ran.code == 0, ran.err
    assert len(ran.lines) == (2 if name == "lower case in groups" else 1)
    for line in ran.lines:
        target, *flags = shlex.split(line)
        options: dict[str, Any] = {
            flag.removeprefix("--"): value for flag, value in zip(flags[::2], flags[1::2], strict=True)
        }
        if "tokens" in options:
            options["tokens"] = int(options["tokens"])
        with open_pairs(target, **options) as pairs:
            x, y, _ = pairs.read(slice(None), 1)
        assert np.allclose(x, X, rtol=2**-7) and np.array_equal(y, Y[:, 1])


def test_the_length_comes_from_an_attribute_or_from_the_user(tmp_path: Path) -> None:
    path = make(tmp_path / "a.h5", **{"g/x": X.reshape(24, 5), "g/y": X.reshape(24, 5)})
    assert run("inspect", "-q", path).out == f"{path}::/g --x x --y y --tokens T\n"
    with h5py.File(path, "r+") as file:
        file.attrs["seq_len"] = 5  # no divisor of 24: it is about something else
        assert describe(path).pairs[0].proposal.asks == "T, the tokens of a sequence"
        file["g"].attrs["seq_len"] = 4
    assert run("inspect", "-q", path).out == f"{path}::/g --x x --y y --tokens 4\n"


def test_widths_and_heads_come_from_attributes_or_from_the_user(tmp_path: Path) -> None:
    rows = {"dtype": h5py.vlen_dtype(np.float64)}
    path = make(tmp_path / "a.h5", X={"shape": (6,), **rows}, Y={"shape": (6,), **rows})
    with h5py.File(path, "r+") as file:
        for i in range(6):
            file["X"][i], file["Y"][i] = X[i].ravel(), np.swapaxes(Y[i], 0, 1).ravel()
    assert run("inspect", "-q", path).out == f"{path} --dim D\n"
    assert "fill in D, the features of a token" in run("inspect", path, tty=True).out
    with h5py.File(path, "r+") as file:
        file.attrs["hidden_size"] = 5
    assert run("inspect", "-q", path).out == f"{path} --dim 5\n"
    assert "rows of float64" in run("inspect", path).out
    path = make(tmp_path / "b.h5", X=X, Y=np.swapaxes(Y, 1, 2).reshape(6, 4, 6))
    with h5py.File(path, "r+") as file:
        file.attrs["num_heads"] = 4  # 6 features do not split into 4 heads
        assert run("inspect", "-q", path).out == f"{path}\n"
        file["Y"].attrs["num_heads"] = 2
    assert run("inspect", "-q", path).out == f"{path} --heads 2\n"


def test_x_and_y_in_two_files_are_proposed(tmp_path: Path) -> None:
    x = make(tmp_path / "in.h5", **{"l3/hidden_states": X, "l3/attention_mask": MASK, "n": np.ones(3)})
    y = make(tmp_path / "out.h5", **{"l3/attn_out": Y})
    ran = run("inspect", "-q", x, y)
    line = f"{x} --x l3/hidden_states --y {y}::/l3/attn_out --mask l3/attention_mask"
    assert (ran.code, ran.out) == (3, f"{line}\n")
    assert ran.err.startswith(f"rankprobe: error: {y}: no pair is in sight")
    assert run("inspect", "-q", x).code == 3
    (record, _) = json.loads(run("inspect", "--format", "json", x, y).out)["results"]
    assert [record["pairs"][0][name] for name in ("sequences", "heads", "problem")] == [6, 2, None]


def test_layers_are_no_series(tmp_path: Path) -> None:
    flat = {f"layer_{i:02d}/{name}": X.reshape(24, 5) for i in range(3) for name in "xy"}
    path = make(tmp_path / "a.h5", **flat)
    assert run("inspect", "-q", path).lines == [
        f"{path}::/layer_{i:02d} --x x --y y --tokens T" for i in range(3)
    ]


def test_json_tells_everything(tmp_path: Path) -> None:
    path = make(
        tmp_path / "a.h5",
        X={"data": X.astype(">f4"), "chunks": (2, 4, 5), "compression": "gzip", "shuffle": True},
        Y=Y.astype(np.float16),
        late={"shape": (3, 3), "dtype": "f4"},
        title="words",
    )
    with h5py.File(path, "r+") as file:
        file.attrs["model"] = np.bytes_("m")
        file["X"].attrs["unit"] = h5py.Empty("f4")
        file["away"] = h5py.ExternalLink("other.h5", "/X")
        file["group/gone"] = h5py.SoftLink("/nowhere")
    save_results(path, [{"rank": 3}], run="mine")
    ran = run("inspect", "--format", "json", path)
    assert ran.code == 0
    document = json.loads(ran.out)
    assert document["schema_version"] == 1
    (record,) = document["results"]
    assert (record["file"], record["attributes"], record["runs"]) == (
        str(path),
        {"model": "m"},
        ["/estimates/mine"],
    )
    datasets = {one["dataset"]: one for one in record["datasets"]}
    assert list(datasets) == ["/X", "/Y", "/late", "/title"]
    assert datasets["/X"] == {
        "dataset": "/X",
        "shape": [6, 4, 5],
        "dtype": "float32 (big-endian)",
        "storage": "chunked",
        "chunks": [2, 4, 5],
        "filters": ["shuffle", "gzip"],
        "stored_bytes": datasets["/X"]["stored_bytes"],
        "attributes": {"unit": None},
        "role": "X",
        "flags": [],
        "problem": None,
    }
    assert datasets["/Y"]["dtype"] == "float16" and datasets["/title"]["dtype"] == "string"
    assert datasets["/late"]["problem"].startswith("was declared but never written")
    assert [problem.split(" is ")[0] for problem in record["problems"]] == [
        f"{path}::/away:",
        f"{path}::/group/gone:",
    ]
    (pair,) = record["pairs"]
    assert pair["command"] == f"rankprobe estimate {path}" and pair["problem"] is None
    assert [pair[name] for name in ("sequences", "tokens", "dim", "value_dim", "heads")] == [6, 4, 5, 3, 2]


def test_saved_estimates_are_listed(tmp_path: Path) -> None:
    path = make(tmp_path / "a.h5", X=X, Y=Y)
    noted = {"file": "b.h5", "estimator": "v-unknown", "status": "misfit"}
    for run_name, rank in (("one", 4), ("two", None)):
        save_results(path, [{**noted, "rank": rank, "head": head} for head in (3, None)], run=run_name)
    (record,) = json.loads(run("inspect", "--format", "json", path).out)["results"]
    times = [one.pop("saved") for one in record["estimates"]]
    assert all(abs(datetime.now(UTC) - datetime.fromisoformat(time)) < timedelta(minutes=1) for time in times)
    assert record["estimates"][1:3] == [
        {"path": "/estimates/one/000001", **noted, "rank": 4, "head": None},
        {"path": "/estimates/two/000000", **noted, "rank": None, "head": 3},
    ]
    assert [line.split("\t")[1] for line in run("inspect", path).lines if "\testimate\t" in line] == [
        f"/estimates/{run_name}/00000{number}" for run_name in ("one", "two") for number in (0, 1)
    ]
    shown = run("inspect", path, tty=True, NO_COLOR="1", COLUMNS="140").out
    assert "/estimates/one/000000: rank 4, misfit, v-unknown, b.h5, head 3, 20" in shown
    assert "/estimates/two/000001: rank –, misfit, v-unknown, b.h5, 20" in shown


def test_saved_recoveries_are_listed(tmp_path: Path) -> None:
    path = make(tmp_path / "a.h5", X=X, Y=Y)
    noted = {"file": "a.h5", "head": 1, "rank": 4}
    save_results(path, [{**noted, "student": "B2", "verdict": "agrees"}], home="recovery", run="one")
    (record,) = json.loads(run("inspect", "--format", "json", path).out)["results"]
    (found,) = record["recoveries"]
    assert found.pop("saved") and record["estimates"] == []
    assert found == {"path": "/recovery/one/000000", **noted, "estimator": "B2", "status": "agrees"}
    assert record["runs"] == ["/recovery/one"]
    (row,) = [line.split("\t") for line in run("inspect", path).lines if "\trecovery\t" in line]
    assert row[1] == "/recovery/one/000000"
    shown = run("inspect", path, tty=True, NO_COLOR="1", COLUMNS="140").out
    assert "/recovery/one/000000: rank 4, agrees, B2, a.h5, head 1, 20" in shown


def test_tsv_has_a_row_for_each_dataset(tmp_path: Path) -> None:
    path = make(tmp_path / "a.h5", inputs=X, outputs=Y, other=np.ones(3))
    header, *rows = (line.split("\t") for line in run("inspect", path, path).lines)
    assert [row[header.index("dataset")] for row in rows] == ["/inputs", "/other", "/outputs"] * 2
    assert [row[header.index("flags")] for row in rows[:3]] == ["--x inputs", "", "--y outputs"]
    assert [row[header.index("shape")] for row in rows[:3]] == ["[6, 4, 5]", "[3]", "[6, 2, 4, 3]"]


def test_a_terminal_shows_the_command_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make(Path("a.h5"), hidden_states=X, attn_out=Y)
    ran = run("inspect", "a.h5", tty=True, NO_COLOR="1")
    assert "rankprobe estimate a.h5 --x hidden_states --y attn_out" in ran.out
    assert "6 sequences of 4 tokens, d = 5, d_v = 3, 2 heads" in ran.out
    make(Path("b.h5"), n=np.ones(3))
    assert "no pair is in sight" in run("inspect", "b.h5", tty=True).out


def test_standard_input_and_groups(tmp_path: Path) -> None:
    content = make(tmp_path / "a.h5", **{"l0/x": X, "l0/y": Y}).read_bytes()
    assert run("inspect", "-q", "-", stdin=content).out == "-::/l0 --x x --y y\n"
    assert run("inspect", "-q", "--", "-::/l0", stdin=content).out == "-::/l0 --x x --y y\n"


def test_one_bad_file_does_not_stop_the_others(tmp_path: Path) -> None:
    good = make(tmp_path / "a.h5", X=X, Y=Y)
    (tmp_path / "b.h5").write_bytes(b"")
    ran = run("inspect", "-q", tmp_path / "b.h5", tmp_path / "no.h5", good, make(tmp_path / "c.h5"))
    assert (ran.code, ran.out) == (3, f"{good}\n")
    assert [line.split(": ", 2)[2].split(" ")[0] for line in ran.err.splitlines()] == [
        f"{tmp_path}/b.h5:",
        f"{tmp_path}/no.h5:",
        f"{tmp_path}/c.h5:",
    ]
    assert run("inspect", f"{good}::/g").err.endswith(
        "::/g: no such group; the file has none: leave the part after :: out\n"
    )


def test_external_links_are_followed_when_allowed(tmp_path: Path) -> None:
    make(tmp_path / "other.h5", X=X)
    path = make(tmp_path / "a.h5", Y=Y)
    with h5py.File(path, "r+") as file:
        file["X"] = h5py.ExternalLink("other.h5", "/X")
    assert run("inspect", "-q", path).code == 3
    assert run("inspect", "-q", "--allow-external", path).out == f"{path} --allow-external\n"


def test_many_groups_are_listed_to_a_limit(tmp_path: Path) -> None:
    path = make(tmp_path / "a.h5", **{f"s{i:03d}/{n}": np.ones((2, 2, 2)) for i in range(40) for n in "XY"})
    found = describe(path)
    assert found.truncated and len(found.pairs) == 32 and len(found.datasets) == 80
