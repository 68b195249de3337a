"""An event loop whose clock jumps: hours of waiting are tested in milliseconds."""

from __future__ import annotations

import asyncio
import selectors
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")


class _Selector(selectors.DefaultSelector):
    """Where a loop would wait for its next timer, it is told that the time has come."""

    loop: VirtualTimeLoop

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None or (timeout > 0 and self.loop.waits_for_a_thread):
            return super().select(None)
        ready = super().select(0)
        if not ready:
            self.loop.now_s += max(0.0, timeout)
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Time passes when there is nothing else to do, and stands still while a thread works."""

    def __init__(self) -> None:
        selector = _Selector()
        selector.loop = self
        self.now_s = 0.0
        self._threads = 0
        super().__init__(selector)

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self.now_s

    @property
    def waits_for_a_thread(self) -> bool:
        """Something runs beside the loop, and will report to it."""
        return self._threads > 0

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        """Run a function in a thread; the clock waits for it."""
        self._threads += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._thread_ended)
        return future

    def _thread_ended(self, _: object) -> None:
        self._threads -= 1


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, however long that takes in its own time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
