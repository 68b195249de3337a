"""Running coroutines from code that isn't one, so that Ctrl-C is never overlooked."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

_P = ParamSpec("_P")
_T = TypeVar("_T")


def run_async(work: Coroutine[Any, Any, _T]) -> _T:
    """`asyncio.run`, with a Ctrl-C that always wakes the event loop."""
    return asyncio.run(attentive(work))


async def attentive(work: Coroutine[Any, Any, _T]) -> _T:
    """Await `work`, and let every signal wake the event loop that it waits in.

    Python only marks a signal when it comes; the handler runs when the main thread next looks.
    A Ctrl-C that comes after the loop's last look and before it has fallen asleep, or that the
    system hands to another thread, would be seen when something else wakes the loop: with a
    model that reads for minutes, after minutes.
    """
    with _woken_by_signals(asyncio.get_running_loop()):
        return await work


@contextlib.contextmanager
def _woken_by_signals(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    bell, cord = socket.socketpair()
    with bell, cord:
        bell.setblocking(False)
        cord.setblocking(False)
        try:
            loop.add_reader(bell, bell.recv, 4096)
        except NotImplementedError:  # Windows: its loop is woken by signals as it is.
            yield
            return
        before = signal.set_wakeup_fd(cord.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            # Whoever has put another one in its place since then keeps it.
            ours = signal.set_wakeup_fd(before)
            if ours != cord.fileno():
                signal.set_wakeup_fd(ours)
            loop.remove_reader(bell)


async def in_thread(function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Run a function in a thread, to its end even when cancelled.

    What it writes must not come after its caller is gone: a lease that is taken then would hold up
    the next run, and nobody would give it back.
    """
    work = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise
