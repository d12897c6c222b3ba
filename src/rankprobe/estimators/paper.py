from __future__ import annotations


def paper_estimates(task, names, V):
    raise SystemExit("todo")
