"""Long computations of a session: one at a time, in a thread, with progress, each stopped by the next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import Lock
from typing import Any, TypeVar

PAUSE = 0.15
"""Seconds between two reports of progress."""

Result = TypeVar("Result")


class Superseded(Exception):
    """Something newer was asked for."""


class Jobs:
    """Of all the jobs of a session only the newest is computed; it begins when the one before has ended."""

    def __init__(self) -> None:
        self.newest, self.busy = 0, Lock()

    async def take(self, work: Callable[[Callable[[float], None]], Result], tell: Callable[[float], None]) -> Result:
        """What `work(report)` returns. It calls `report(done)` often; `tell(done)` hears of it now and then, on the
        server's loop. Superseded is raised in it, and here, as soon as there is another job."""
        self.newest += 1
        mine, reached = self.newest, 0.0

        def report(done: float) -> None:
            nonlocal reached
            if mine != self.newest:
                raise Superseded
            reached = done

        def begin() -> Result:
            with self.busy:
                report(0.0)
                return work(report)

        task = asyncio.ensure_future(asyncio.to_thread(begin))
        while not (await asyncio.wait({task}, timeout=PAUSE))[0]:
            if mine == self.newest:
                tell(reached)
        return task.result()

    def stop(self, *_: Any) -> None:
        """End what is under way, as when a session ends."""
        self.newest += 1
