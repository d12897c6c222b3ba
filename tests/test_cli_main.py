"""The command line as a whole: what starts, what fails and how, seen from a shell."""

from __future__ import annotations

import io
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cli_support import run
from rankprobe import __version__
from rankprobe.cli.exit_codes import ExitCode, worst
from rankprobe.errors import DataError, MissingDependencyError, UsageError

COMMANDS = ("estimate", "generate", "inspect", "schema")
HEAVY = {"numpy", "scipy", "h5py", "torch", "hdf5plugin", "transformers", "matplotlib", "click"}
PROGRAM = [sys.executable, "-m", "rankprobe"]


@pytest.mark.parametrize(
    "arguments,completion",
    [
        (["--help"], None),
        (["estimate", "--help"], None),
        (["generate", "--help"], None),
        (["inspect", "--help"], None),
        (["--version"], None),
        ([], "rankprobe estimate --att"),
    ],
)
def test_help_and_completion_start_light(arguments: list[str], completion: str | None) -> None:
    variables = {**os.environ, "COLUMNS": "80"}
    if completion is not None:
        variables |= {"_RANKPROBE_COMPLETE": "complete_bash", "COMP_WORDS": completion, "COMP_CWORD": "2"}
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "rankprobe", *arguments],
        capture_output=True,
        text=True,
        env=variables,
        check=False,
    )
    assert done.returncode == 0
    assert done.stdout
    if completion is not None:
        assert done.stdout.split() == ["--attention"]
    loaded = {line.rsplit("|", 1)[-1].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert "rankprobe" in loaded
    assert not loaded & HEAVY


def test_a_command_loads_no_other() -> None:
    script = "import sys; from rankprobe.cli.main import main; main(['schema']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert [name for name in COMMANDS if f"rankprobe.cli.{name}" in loaded] == ["schema"]


def test_version() -> None:
    assert run("--version").out == f"rankprobe {__version__}\n"


def test_help_names_every_command_and_every_option_has_a_text() -> None:
    listed = run("--help").out
    for command in COMMANDS:
        assert re.search(rf"^  {command} +\w", listed, re.MULTILINE)
        text = run(command, "--help").out
        assert "Example" in text
        options = text[text.index("Options:") :]
        for entry in re.split(r"\n  (?=-)", options)[1:]:
            assert re.search(r"(  |\n\s+)[A-Z]\w*", entry), entry


@pytest.mark.parametrize(
    "arguments,complaint",
    [
        ((), "missing command"),
        (("esimate",), "did you mean 'estimate'"),
        (("estimate",), "missing argument 'file'"),
        (("estimate", "x.h5", "--no-such"), "no such option: --no-such"),
        (("estimate", "x.h5", "--format", "xml"), "'xml' is not one of"),
        (("estimate", "x.h5", "--seed", "one"), "invalid value for '--seed'"),
        (("estimate", "x.h5", "--estimator", "best"), "'best' is not one of"),
        (("estimate", "x.h5", "--memory", "lots"), "--memory 'lots' is no size"),
        (("estimate", "x.h5", "--head", "5-3"), "--head '5-3' is no list of heads"),
        (("estimate", "x.h5", "--threads", "0"), "--threads must be at least 1"),
        (("estimate", "x.h5", "--max-rank", "-1"), "--max-rank must be at least 0"),
        (("estimate", "x.h5", "-o", "-"), "chosen with --format"),
        (("estimate", "x.h5", "-q", "--format", "json"), "exclude each other"),
        (("estimate", "x.h5", "--save", "-o", "y.h5"), "exclude each other"),
        (("estimate", "-", "-"), "can be read once only"),
        (("estimate", "-", "--save"), "--save cannot append to standard input"),
        (("generate",), "missing option '--output'"),
        (("generate", "-o", "x.h5", "--rank", "40"), "rank 40 does not fit"),
        (("generate", "-o", "x.h5", "-n", "0"), "must be at least 1"),
    ],
)
def test_usage_errors_are_one_line_and_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], complaint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = run(*arguments)
    assert ran.code == ExitCode.USAGE
    assert ran.err.startswith("rankprobe: error: ") and ran.err.count("\n") == 1
    assert complaint in ran.err.lower()
    assert ran.out == ""
    assert not list(tmp_path.iterdir())


def test_help_of_an_option_spelled_wrong_is_named() -> None:
    assert "see 'rankprobe estimate --help'" in run("estimate", "x.h5", "--no-such").err


@pytest.mark.parametrize(
    "error,code,line",
    [
        (UsageError("no"), 2, "no"),
        (DataError("x.h5: two\nlines"), 3, "x.h5: two lines"),
        (MissingDependencyError("pip install it"), 5, "pip install it"),
        (PermissionError(13, "Permission denied", "x.h5"), 3, "x.h5: Permission denied"),
        (ValueError("odd"), 1, "internal error: ValueError: odd; run again with --debug for the traceback"),
        (MemoryError(), 1, "out of memory; pass a smaller --memory"),
        (KeyboardInterrupt(), 130, None),
    ],
)
def test_every_error_is_one_line_and_its_own_code(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, line: str | None
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr("rankprobe.cli.schema.build", fail)
    ran = run("schema")
    assert ran.code == code
    assert ran.err == ("rankprobe: interrupted\n" if line is None else f"rankprobe: error: {line}\n")
    if line is not None:
        debugged = run("schema", "--debug")
        assert debugged.code == code
        assert "Traceback (most recent call last)" in debugged.err


def test_the_worst_code_of_several_files() -> None:
    assert worst([ExitCode.OK, ExitCode.UNUSABLE, ExitCode.DATA]) == ExitCode.DATA
    assert worst([ExitCode.DATA, ExitCode.INTERNAL]) == ExitCode.INTERNAL
    assert worst([ExitCode.USAGE, ExitCode.MISSING_DEPENDENCY]) == ExitCode.MISSING_DEPENDENCY
    assert worst([]) == ExitCode.OK


class Gone(io.RawIOBase):
    """A pipe whose reader has left, or a disk that is full."""

    def __init__(self, error: OSError) -> None:
        self.error = error

    def writable(self) -> bool:
        return True

    def write(self, data: object, /) -> int:
        raise self.error


def broken(error: OSError) -> io.TextIOWrapper:
    return io.TextIOWrapper(Gone(error), write_through=True)  # type: ignore[type-var]


def test_a_reader_that_left_is_no_error() -> None:
    for arguments in (("--version",), ("--help",), ("schema",), ("generate", "-n", "2", "-o", "-")):
        ran = run(*arguments, stdout=broken(BrokenPipeError(32, "Broken pipe")))
        assert (ran.code, ran.err) == (0, ""), arguments


def test_a_full_disk_is_an_error() -> None:
    ran = run("schema", stdout=broken(OSError(28, "No space left on device")))
    assert ran.code == ExitCode.DATA
    assert ran.err == "rankprobe: error: cannot write to standard output: No space left on device\n"


def shell(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    rankprobe = f"{sys.executable} -m rankprobe"
    return subprocess.run(
        ["bash", "-c", script.replace("rankprobe", rankprobe)],
        capture_output=True,
        text=True,
        cwd=folder,
        check=False,
    )


def test_head_in_a_real_pipe(tmp_path: Path) -> None:
    done = shell("rankprobe schema | head -n 1; echo ${PIPESTATUS[0]}; rankprobe --help | true", tmp_path)
    assert (done.stdout, done.stderr) == ("{\n0\n", "")


def test_closed_and_full_standard_output(tmp_path: Path) -> None:
    for redirection, reason in ((">&-", "Bad file descriptor"), ("> /dev/full", "No space left on device")):
        done = shell(f"rankprobe schema {redirection}; echo $? >&2", tmp_path)
        assert done.stderr == f"rankprobe: error: cannot write to standard output: {reason}\n3\n"


def test_interrupt_is_130_and_leaves_nothing(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*PROGRAM, "generate", "-n", "2000000", "-o", "big.h5"],
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    while not any(file.stat().st_size for file in tmp_path.iterdir()):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (130, "rankprobe: interrupted\n")
    assert not list(tmp_path.iterdir())


def test_an_interrupt_lost_in_a_destructor_strikes_again() -> None:
    script = """
import signal, sys, time
from rankprobe.__main__ import run
from rankprobe.cli import schema

class Doomed:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)

def build():
    Doomed()
    for _ in range(1000):
        time.sleep(0.01)

schema.build, sys.argv = build, ["rankprobe", "schema"]
sys.exit(run())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "rankprobe: interrupted\n")


def on_terminal(arguments: list[str], folder: Path, **variables: str) -> tuple[int, str]:
    """Run with all streams on a pseudo-terminal; exit code and all that appeared on it."""
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [*PROGRAM, *arguments],
        stdin=child,
        stdout=child,
        stderr=child,
        cwd=folder,
        env={**os.environ, "TERM": "xterm-256color", **variables},
    )
    os.close(child)
    seen = b""
    while True:
        try:
            part = os.read(parent, 4096)
        except OSError:  # the terminal is gone with its last process
            break
        if not part:
            break
        seen += part
    os.close(parent)
    return process.wait(), seen.decode()


def test_hdf5_is_not_written_to_a_terminal(tmp_path: Path) -> None:
    code, seen = on_terminal(["generate", "-o", "-"], tmp_path)
    assert code == 2
    assert seen == "rankprobe: error: -o - would write HDF5 to a terminal; redirect it or name a file\r\n"


def test_hdf5_is_not_read_from_a_terminal(tmp_path: Path) -> None:
    code, seen = on_terminal(["estimate", "-"], tmp_path)
    assert code == 2
    assert "which is a terminal" in seen


def test_a_table_on_a_real_terminal(tmp_path: Path) -> None:
    assert run("generate", "-n", 3, "-o", tmp_path / "t.h5").code == 0
    _, plain = on_terminal(["inspect", "t.h5"], tmp_path, TERM="dumb", COLUMNS="80")
    assert "\x1b" not in plain and "[3, 16, 32]" in plain
    _, seen = on_terminal(["inspect", "t.h5"], tmp_path, COLUMNS="80")
    assert "\x1b[" in seen and re.sub(r"\x1b\[[0-9;]*m", "", seen) == plain
    piped = shell("FORCE_COLOR=1 CI=1 COLUMNS=20 rankprobe inspect t.h5 | cat", tmp_path).stdout
    assert "\x1b" not in piped and "\t[3, 16, 32]\t" in piped
