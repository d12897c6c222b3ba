"""Running the command line inside the test: replaceable streams, a stand-in for the estimator."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import pytest

from rankprobe.cli.environment import Environment
from rankprobe.cli.main import main
from rankprobe.estimators.result import Estimate, Result, Status


@dataclass(frozen=True)
class Ran:
    """What one run left behind."""

    code: int
    stdout: bytes
    err: str

    @property
    def out(self) -> str:
        return self.stdout.decode()

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


def run(
    *arguments: object,
    stdin: bytes = b"",
    tty: bool = False,
    stdout: io.TextIOWrapper | None = None,
    encoding: str = "utf-8",
    **variables: str,
) -> Ran:
    """``rankprobe ARGUMENTS`` with standard input ``stdin``; ``tty``: all three streams are terminals."""
    source = io.TextIOWrapper(io.BytesIO(stdin))
    sink = stdout or io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="\n")
    complaints = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace", newline="\n")
    env = Environment(
        stdin=source,
        stdout=sink,
        stderr=complaints,
        stdin_isatty=tty,
        stdout_isatty=tty,
        stderr_isatty=tty,
        variables={"TERM": "xterm-256color", "COLUMNS": "100", **variables},
    )
    code = main([str(argument) for argument in arguments], env)
    for stream in (sink, complaints):
        stream.flush()
    written = sink.buffer.getvalue() if isinstance(sink.buffer, io.BytesIO) else b""
    assert isinstance(complaints.buffer, io.BytesIO)
    return Ran(int(code), written, complaints.buffer.getvalue().decode())


def answer(name: str = "v-unknown", **changes: Any) -> Estimate:
    """A believable estimate."""
    facts: dict[str, Any] = {
        "estimator": name,
        "solver": "gauss-newton",
        "status": Status.IDENTIFIED,
        "message": "rank 4 fits to the noise, rank 3 does not",
        "rank": 4,
        "rank_interval": (4, 4),
        "confidence": 0.95,
        "energy_rank": 3.5712345678901234,
        "energy_rank_interval": [3.56, 3.58],
        "energy_rank_data": 3.3,
        "effective_rank": 3.8,
        "stable_rank": 2.6,
        "singular_values": (2.0, 1.6, 1.3, 1.0),
        "singular_values_data": (2.0, 1.6, 1.3, 1.0),
        "noise_edge": 0.1,
        "noise_sigma": 0.05,
        "r2_heldout": 0.99999,
        "sequences_used": 128,
        "attention": "softmax",
        "causal": False,
        "bias": True,
        "residual": False,
        "kernel": "full",
    }
    return Estimate(**{**facts, **changes})


class FakeEstimator:
    """Stands in for ``rankprobe.estimate``; remembers its calls, answers with ``changes``."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.changes: dict[str, Any] = {}
        self.names = ("v-unknown",)
        self.error: BaseException | None = None

    def __call__(self, pairs: Any, **options: Any) -> Result:
        self.calls.append({"pairs": pairs, **options})
        if self.error is not None:
            raise self.error
        return Result({name: answer(name, **self.changes) for name in self.names}, self.names[0], {"seed": 0})


@pytest.fixture
def estimator(monkeypatch: pytest.MonkeyPatch) -> FakeEstimator:
    fake = FakeEstimator()
    monkeypatch.setattr("rankprobe.estimate", fake, raising=False)
    return fake
