"""Every command and option is documented, and no text names one that is not there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer.main

from rankprobe.cli.main import application

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PROGRAM: Any = typer.main.get_command(application([]))  # Typer has a Click of its own
COMMANDS = PROGRAM.commands

FLAG = re.compile(r"(?<![\w-])--[a-z][\w-]*")
OTHERS = {"--index-url", "--layer"}
"""Options of pip, and of the example that records a head."""


def options_of(command: Any) -> list[Any]:
    return [option for option in command.params if option.param_type_name == "option"]


def flags_of(command: Any) -> set[str]:
    return {flag for option in options_of(command) for flag in [*option.opts, *option.secondary_opts]}


def section(command: str) -> str:
    """What docs/commands.md says of a command."""
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    return text.partition(f"\n## {command}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_a_command_is_documented_with_its_help(name: str) -> None:
    text = section(name)
    for option in options_of(COMMANDS[name]):
        line = next((line for line in text.splitlines() if f"`{option.opts[0]}`" in line), None)
        assert line is not None, f"docs/commands.md does not name {option.opts[0]} of {name}"
        assert all(f"`{flag}`" in line for flag in [*option.opts, *option.secondary_opts])
        assert option.help and option.help.replace("|", r"\|") in line


@pytest.mark.parametrize("name", COMMANDS)
def test_no_option_is_documented_that_is_not_there(name: str) -> None:
    for line in section(name).splitlines():
        assert set(FLAG.findall(line.partition(" | ")[0])) <= flags_of(COMMANDS[name])


def test_texts_and_errors_name_only_options_there_are() -> None:
    there = {"--version", "--help"}.union(OTHERS, *map(flags_of, COMMANDS.values()))
    for page in [*PAGES, *sorted((ROOT / "src").rglob("*.py"))]:
        assert set(FLAG.findall(page.read_text(encoding="utf-8"))) <= there, page
