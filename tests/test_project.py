"""The files around the code say the same as each other."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def commands() -> list[str]:
    """The lines of the README's shell blocks."""
    return [
        line for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL) for line in block.splitlines()
    ]


def test_continuous_integration_runs_the_commands_of_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    main_job, tests = commands()[:2]
    assert tests.endswith("scripts/check") and tests in script
    assert main_job.replace("demo.h5", '"$demo"') in script


def test_constraints_are_exact_and_the_same_everywhere() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9.]*", line)] == []
    pinned = {re.sub(r"[-_.]+", "-", line.split("==")[0]).lower() for line in lines}
    assert len(pinned) == len(lines)
    extras = PROJECT["optional-dependencies"]
    asked = [*PROJECT["dependencies"], *(one for extra in extras.values() for one in extra)]
    names = {re.split(r"[\[<>=]", one)[0] for one in asked} - {"rankprobe"}
    assert names <= pinned


def test_the_changelog_names_the_version_or_is_ahead_of_it() -> None:
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] in ("Unreleased", PROJECT["version"])
