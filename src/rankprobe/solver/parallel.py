"""Blocks of sequences on several threads.

Work is cut into blocks by the data alone and results are added in the order of the blocks, so any number of
threads gives the same digits. Each block multiplies on one thread (the caller holds BLAS to one): small
factorizations and products do not gain from a threaded BLAS and suffer where cores are shared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

Item = TypeVar("Item")
Answer = TypeVar("Answer")

_pool: ContextVar[ThreadPoolExecutor | None] = ContextVar("pool", default=None)


@contextmanager
def workers(count: int) -> Iterator[None]:
    """Let :func:`map_blocks` use ``count`` threads within the context."""
    if count < 2:
        yield
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(count) as pool:
        token = _pool.set(pool)
        try:
            yield
        finally:
            _pool.reset(token)


def map_blocks(function: Callable[[Item], Answer], blocks: Sequence[Item]) -> list[Answer]:
    """function of each block, in order."""
    pool = _pool.get()
    if pool is None or len(blocks) < 2:
        return [function(block) for block in blocks]
    return list(pool.map(function, blocks))
