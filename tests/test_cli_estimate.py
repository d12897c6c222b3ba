"""``rankprobe estimate`` around a stand-in estimator: files, heads, formats, exit codes."""

from __future__ import annotations

import io
import json
import math
import os
import re
import shlex
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from cli_support import FakeEstimator, answer, estimator, run  # noqa: F401
from rankprobe.cli.schema import build
from rankprobe.errors import DataError
from rankprobe.estimators.result import Status

pytestmark = pytest.mark.usefixtures("estimator")

SCHEMA = build()
RESULT = {**SCHEMA, "$ref": "#/$defs/result"}
for name in ("type", "properties", "required"):
    RESULT.pop(name)


def strict_json(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = Path("t.h5")
    assert run("generate", "-n", 4, "-T", 5, "-d", 4, "-r", 2, "-o", path).code == 0
    return path


@pytest.fixture
def heads(tmp_path: Path) -> Path:
    path = tmp_path / "heads.h5"
    assert run("generate", "-n", 4, "-T", 5, "-d", 4, "-r", 2, "--heads", 6, "-o", path).code == 0
    return path


def test_json_is_strict_and_fits_the_schema(pair: Path, estimator: FakeEstimator) -> None:  # noqa: F811
    estimator.changes = {"r2_heldout": math.nan, "singular_values": (math.inf, 1.0)}
    ran = run("estimate", pair, "--format", "json")
    assert (ran.code, ran.err) == (0, "")
    document = strict_json(ran.out)
    jsonschema.Draft202012Validator(SCHEMA).validate(document)
    assert document["schema_version"] == 1
    (result,) = document["results"]
    assert result["rank"] == 4 and result["rank_interval"] == [4, 4] and result["status"] == "identified"
    assert result["energy_rank"] == 3.5712345678901234
    assert result["r2_heldout"] is None and result["singular_values"] == [None, 1.0]
    assert result["file"] == str(pair) and result["head"] is None and result["threads"] >= 1
    assert shlex.split(result["command"]) == ["rankprobe", "estimate", str(pair), "--format", "json"]


def test_the_schema_refuses_what_is_wrong(pair: Path) -> None:
    document = strict_json(run("estimate", pair, "--format", "json").out)
    for name, value in (("rank", "4"), ("status", "fine"), ("rank_interval", [4]), ("head", -1)):
        broken = {"schema_version": 1, "results": [{**document["results"][0], name: value}]}
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(broken, SCHEMA)
    missing = dict(document["results"][0])
    del missing["status"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"schema_version": 1, "results": [missing]}, SCHEMA)


def test_the_printed_schema_is_the_checked_in_one() -> None:
    ran = run("schema")
    assert ran.code == 0
    jsonschema.Draft202012Validator.check_schema(json.loads(ran.out))
    kept = Path(__file__).parent.parent / "docs" / "estimate.schema.json"
    assert ran.out == kept.read_text(), "run: rankprobe schema > docs/estimate.schema.json"


def test_jsonl_is_one_result_a_line(heads: Path) -> None:
    ran = run("estimate", heads, "--format", "jsonl")
    results = [strict_json(line) for line in ran.lines]
    assert [result["head"] for result in results] == [0, 1, 2, 3, 4, 5]
    for result in results:
        jsonschema.validate(result, RESULT)


def test_piped_output_is_whole_tsv(pair: Path) -> None:
    ran = run("estimate", pair, COLUMNS="20", FORCE_COLOR="1", CI="true")
    header, row = (line.split("\t") for line in ran.lines)
    cells = dict(zip(header, row, strict=True))
    assert cells == {
        "file": str(pair),
        "head": "",
        "estimator": "v-unknown",
        "rank": "4",
        "interval": "[4, 4]",
        "status": "identified",
        "energy_rank": "3.5712345678901234",
        "energy_rank_data": "3.3",
        "r2_heldout": "0.99999",
        "noise_sigma": "0.05",
        "attention": "softmax",
        "causal": "false",
        "sequences_used": "128",
        "message": "rank 4 fits to the noise, rank 3 does not",
    }
    assert ran.out == run("estimate", pair, "--format", "tsv", tty=True).out


def test_quiet_prints_the_integer(heads: Path, estimator: FakeEstimator) -> None:  # noqa: F811
    assert run("estimate", heads, "--head", "0,3-5", "-q").out == "4\n" * 4
    assert [call["head"] for call in estimator.calls] == [0, 3, 4, 5]
    estimator.changes = {"rank": None, "rank_interval": None, "status": Status.NOT_IDENTIFIABLE}
    ran = run("estimate", heads, "--head", "1,2", "-q")
    assert (ran.code, ran.out) == (4, "NA\nNA\n")
    assert ran.err.splitlines() == [
        f"rankprobe: {heads}, head {head}: not_identifiable: rank 4 fits to the noise, rank 3 does not"
        for head in (1, 2)
    ]


def test_a_row_for_every_estimator(pair: Path, estimator: FakeEstimator) -> None:  # noqa: F811
    estimator.names = ("v-unknown", "v-known", "realized-mixer")
    ran = run("estimate", pair, "--estimator", "all")
    assert [line.split("\t")[2] for line in ran.lines[1:]] == list(estimator.names)
    (result,) = strict_json(run("estimate", pair, "--estimator", "all", "--format", "json").out)["results"]
    assert list(result["estimates"]) == list(estimator.names)


def test_table_on_a_terminal(pair: Path) -> None:
    ran = run("estimate", pair, tty=True, COLUMNS="160")
    text = re.sub(r"\x1b\[[0-9;]*m", "", ran.out)
    assert "\x1b[" in ran.out and text.count("identified") == 2
    assert "singular values  2  1.6  1.3  1" in text and "rank 4 fits to the noise" in text
    assert "not shown" not in text
    assert "estimator" not in text and "head " not in text  # nothing to tell apart


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_no_colour_where_it_is_not_wanted(pair: Path, variables: dict[str, str]) -> None:
    ran = run("estimate", pair, tty=True, **variables)
    assert "identified" in ran.out
    assert not re.search(r"\x1b\[[0-9;]*[0-9]m", ran.out.replace("\x1b[1m", "").replace("\x1b[0m", ""))
    if "TERM" in variables:
        assert "\x1b" not in ran.out


def test_a_piped_table_has_no_escape_codes_and_is_not_cut(pair: Path) -> None:
    ran = run("estimate", pair, "--format", "table", COLUMNS="40", FORCE_COLOR="1")
    assert "\x1b" not in ran.out and str(pair) in ran.out and "not shown" not in ran.out


def test_a_narrow_terminal_hides_columns_and_says_so(pair: Path) -> None:
    ran = run("estimate", pair, tty=True, COLUMNS="60", NO_COLOR="1")
    assert "not shown: sequences_used, causal, noise_sigma" in " ".join(ran.out.split())
    assert "identified" in ran.out
    for line in ran.out.splitlines():
        assert len(re.sub(r"\x1b\[[0-9;]*m", "", line)) <= 60


def test_options_reach_the_estimator(pair: Path, estimator: FakeEstimator) -> None:  # noqa: F811
    ran = run(
        *("estimate", pair, "--estimator", "v-known", "--estimator", "v-unknown", "--solver", "paper"),
        *("--attention", "linear", "--causal", "--no-bias", "--scale", 0.25, "--max-rank", 7, "--seed", 3),
        *("--memory", "1.5G", "--threads", 1, "--v", "/teacher/V", "--nan", "skip"),
    )
    assert ran.code == 0, ran.err
    (call,) = estimator.calls
    expected = {
        "estimators": ("v-known", "v-unknown"),
        "solver": "paper",
        "attention": "linear",
        "causal": True,
        "bias": False,
        "scale": 0.25,
        "max_rank": 7,
        "seed": 3,
        "memory": 3 << 29,
        "head": None,
    }
    assert {name: call[name] for name in expected} == expected
    assert call["pairs"].v_name == "/teacher/V"
    run("estimate", pair)
    assert estimator.calls[1]["causal"] == "auto" and estimator.calls[1]["estimators"] == ("v-unknown",)


def test_one_bad_file_does_not_stop_the_others(pair: Path, tmp_path: Path) -> None:
    (tmp_path / "text.h5").write_text("not a pair file")
    ran = run("estimate", tmp_path / "missing.h5", pair, tmp_path / "text.h5", pair, "-q")
    assert (ran.code, ran.out) == (3, "NA\n4\nNA\n4\n")
    errors = ran.err.splitlines()
    assert len(errors) == 2
    assert errors[0].startswith(f"rankprobe: error: {tmp_path}/missing.h5: no such file")
    assert errors[1].startswith(f"rankprobe: error: {tmp_path}/text.h5: ")


def test_quiet_lines_keep_their_place_when_heads_fail(
    heads: Path,
    pair: Path,
    estimator: FakeEstimator,  # noqa: F811
) -> None:
    def fail(pairs: Any, *, head: int | None, **options: Any) -> Any:
        if head == 2:
            raise DataError("head 2 is odd")
        return type(estimator).__call__(estimator, pairs, head=head, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rankprobe.estimate", fail)
        assert run("estimate", heads, pair, "-q").lines == ["4", "4", "NA", "NA", "NA", "NA", "4"]
        assert run("estimate", "no.h5", heads, "--head", "0,1", "-q").lines == ["NA", "NA", "4", "4"]


def test_the_table_of_several_answers_says_why_some_are_not_identified(
    heads: Path,
    estimator: FakeEstimator,  # noqa: F811
) -> None:
    def mixed(pairs: Any, *, head: int, **options: Any) -> Any:
        status = Status.LOWER_BOUND if head == 1 else Status.IDENTIFIED
        estimator.changes = {
            "status": status,
            "message": f"about [n, T, d] of head {head}, {'and ' * 60}so on",
        }
        return type(estimator).__call__(estimator, pairs, head=head, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rankprobe.estimate", mixed)
        shown = run("estimate", heads, "--head", "0-2", tty=True, COLUMNS="250", NO_COLOR="1").out
        estimator.names = ("v-unknown", "v-known")
        both = run("estimate", heads, "--head", "0-2", "--format", "table").out
    assert f"{heads}, head 1: lower_bound: about [n, T, d] of head 1, and" in " ".join(shown.split())
    assert shown.count("about") == 1
    assert [line for line in both.splitlines() if "about" in line] == [
        f"{heads}, {name}, head 1: lower_bound: about [n, T, d] of head 1, {'and ' * 60}so on"
        for name in ("v-unknown", "v-known")
    ]


def test_nothing_usable_is_still_a_document(tmp_path: Path) -> None:
    ran = run("estimate", tmp_path / "missing.h5", "--format", "json")
    assert ran.code == 3 and strict_json(ran.out) == {"schema_version": 1, "results": []}


@pytest.mark.parametrize(
    "status,code",
    [
        ("identified", 0),
        ("lower_bound", 0),
        ("not_identifiable", 4),
        ("misfit", 4),
        ("degenerate", 4),
    ],
)
def test_a_status_that_is_not_usable_is_code_4(
    pair: Path,
    estimator: FakeEstimator,  # noqa: F811
    status: str,
    code: int,
) -> None:
    estimator.changes = {"status": Status(status)}
    assert run("estimate", pair).code == code


def test_an_error_in_one_head_is_that_files(heads: Path, pair: Path, estimator: FakeEstimator) -> None:  # noqa: F811
    estimator.error = DataError("Y: 3 values are NaN")
    ran = run("estimate", heads, pair, "-q")
    assert ran.code == 3 and ran.err.count("rankprobe: error: Y: 3 values are NaN\n") == 2
    estimator.error = RuntimeError("odd")
    ran = run("estimate", pair)
    assert ran.code == 1 and "--debug" in ran.err
    assert "Traceback" in run("estimate", pair, "--debug").err
    estimator.error = KeyboardInterrupt()
    assert run("estimate", pair).code == 130


def test_heads_that_are_not_there(heads: Path, pair: Path) -> None:
    for path, head in ((heads, "6"), (pair, "0")):
        ran = run("estimate", path, "--head", head)
        assert ran.code == 2 and ran.err.count("\n") == 1 and "head" in ran.err


def test_standard_input(pair: Path, estimator: FakeEstimator) -> None:  # noqa: F811
    ran = run("estimate", "-", "--format", "json", stdin=pair.read_bytes())
    assert ran.code == 0, ran.err
    assert strict_json(ran.out)["results"][0]["file"] == "-"
    assert estimator.calls[0]["pairs"].sequences == 4
    ran = run("estimate", "-", stdin=b"")
    assert ran.code == 3 and ran.err.startswith("rankprobe: error: -: ")


def test_save_appends_and_output_goes_elsewhere(pair: Path, heads: Path, tmp_path: Path) -> None:
    from rankprobe.data import read_results

    assert run("estimate", pair, "--save").code == 0
    assert run("estimate", pair, "--save").code == 0
    assert [record["rank"] for record in read_results(pair)] == [4, 4]
    other = tmp_path / "out.h5"
    ran = run("estimate", pair, heads, "-o", other)
    assert ran.code == 0, ran.err
    assert [record["head"] for record in read_results(other)] == [None, 0, 1, 2, 3, 4, 5]
    refused = run("estimate", pair, "-o", other)
    assert refused.code == 3 and "--force" in refused.err and refused.out == ""
    assert run("estimate", pair, "-o", other, "--force").code == 0
    assert len(read_results(other)) == 1
    assert run("estimate", pair, "-o", pair, "--force").code == 2


def test_odd_file_names_survive_every_format(pair: Path) -> None:
    odd = pair.absolute().with_name("a\tb σ.h5")
    pair.rename(odd)
    assert strict_json(run("estimate", odd, "--format", "json").out)["results"][0]["file"] == str(odd)
    assert "a\\tb σ.h5\t" in run("estimate", odd).out
    latin = run("estimate", odd, encoding="ascii")
    assert latin.code == 0 and "\\u03c3" in latin.out
    bytes_name = Path(os.fsdecode(os.fsencode(odd.parent) + b"/\xff.h5"))
    odd.rename(bytes_name)
    assert strict_json(run("estimate", bytes_name, "--format", "json").out)["results"][0]["file"].endswith(
        "?.h5"
    )
    assert run("estimate", bytes_name).code == 0


def test_a_file_name_cannot_reach_the_terminal_as_an_escape_code(pair: Path) -> None:
    odd = pair.with_name("\x1b[31mred.h5")
    missing = run("estimate", odd)
    assert missing.err.startswith("rankprobe: error: \\x1b[31mred.h5: no such file")
    pair.rename(odd)
    for tty in (False, True):
        assert "\\x1b[31mred.h5" in run("estimate", odd, tty=tty, TERM="dumb").out


def test_results_of_a_file_are_saved_when_a_later_head_fails(heads: Path, estimator: FakeEstimator) -> None:  # noqa: F811
    from rankprobe.data import read_results

    def fail(pairs: Any, *, head: int, **options: Any) -> Any:
        if head == 2:
            raise DataError("head 2 is odd")
        return type(estimator).__call__(estimator, pairs, head=head, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rankprobe.estimate", fail)
        assert run("estimate", heads, "--save").code == 3
    assert [record["head"] for record in read_results(heads)] == [0, 1]


def test_results_stream_as_they_finish(heads: Path, estimator: FakeEstimator) -> None:  # noqa: F811
    seen: list[int] = []
    sink = io.TextIOWrapper(io.BytesIO(), newline="\n")

    def watch(pairs: Any, **options: Any) -> Any:
        seen.append(sink.buffer.getvalue().count(b"\n"))  # type: ignore[attr-defined]
        return type(estimator).__call__(estimator, pairs, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rankprobe.estimate", watch)
        run("estimate", heads, "--format", "jsonl", stdout=sink)
    assert seen == [0, 1, 2, 3, 4, 5]


def test_the_stand_in_is_a_real_result() -> None:
    assert answer().to_dict()["rank"] == 4
