"""What stands on top of every output: the command, the code it ran, the machine."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[1]


def heading(*packages: str) -> str:
    """Lines that repeat the run; ``packages`` are named with their versions."""
    script = Path(sys.argv[0]).resolve().relative_to(ROOT)
    libraries = ", ".join(f"{name} {version(name)}" for name in ("rankprobe", "numpy", *packages))
    return "\n".join(
        [
            f"$ {shlex.join(['python', str(script), *sys.argv[1:]])}",
            f"commit {_git('rev-parse', '--short', 'HEAD')}, source {source()}",
            f"Python {platform.python_version()}, {libraries}",
            f"{_processor()}, {os.cpu_count()} cores",
            "",
        ]
    )


def source(path: str = "src") -> str:
    """Hash of the source code as it is committed; ``+`` behind it when it has changed since."""
    return _git("rev-parse", "--short", f"HEAD:{path}") + ("+" if _git("status", "--porcelain", path) else "")


def table(header: list[str], rows: list[list[str]]) -> str:
    """Columns two spaces apart, all to the right but the first."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = []
    for row in (header, *rows):
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        cells[0] = row[0].ljust(widths[0])
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", ROOT, *arguments], capture_output=True, text=True, check=True
    ).stdout.strip()


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
