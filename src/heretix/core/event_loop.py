"""Running coroutines from code that isn't one, so that Ctrl-C is never overlooked."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import stat
import threading
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

_P = ParamSpec("_P")
_T = TypeVar("_T")

HANG_UP: Final = getattr(signal, "SIGHUP", None)
"""A terminal that is closed; Windows has no signal for that."""
STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, *filter(None, [HANG_UP]))
"""Signals that ask a program to stop."""


def run_async(
    work: Coroutine[Any, Any, _T],
    *,
    stop: Callable[[], bool] | None = None,
    signals: Sequence[signal.Signals] = (signal.SIGINT,),
) -> _T:
    """`asyncio.run`, with a Ctrl-C that always wakes the event loop.

    With `stop`, each of `signals` calls that, in the event loop: work that ends by itself then is
    let end. Where it returns False, the work is interrupted.
    """
    return asyncio.run(
        run_attentively(work if stop is None else _run_until_stopped(work, stop, signals))
    )


def interrupt() -> bool:
    """Interrupt work at the first signal; for `stop` of `run_async`."""
    return False


async def _run_until_stopped(
    work: Coroutine[Any, Any, _T], stop: Callable[[], bool], signals: Sequence[signal.Signals]
) -> _T:
    task = asyncio.current_task()
    assert task is not None, "a coroutine runs in a task"
    interrupted = False

    def heed() -> None:
        nonlocal interrupted
        if interrupted:
            raise KeyboardInterrupt
        if not stop():
            interrupted = True
            task.cancel()

    try:
        with handling_signals(heed, signals):
            return await work
    except asyncio.CancelledError:
        if interrupted:
            raise KeyboardInterrupt from None
        raise


@contextlib.contextmanager
def handling_signals(heed: Callable[[], None], signals: Sequence[signal.Signals]) -> Iterator[None]:
    """Call `heed` in the running event loop whenever one of `signals` comes.

    A closed terminal is heeded only if nothing was before: shells tell it more than once, and a
    second signal may mean more than a first. Where it is ignored (`nohup`) it stays so.
    """
    loop, heeded = asyncio.get_running_loop(), False

    def on_signal(number: signal.Signals) -> None:
        nonlocal heeded
        first, heeded = not heeded, True
        if number == HANG_UP:
            _leave_terminal(loop, number)
        if first or number != HANG_UP:
            heed()

    added = [n for n in signals if n != HANG_UP or signal.getsignal(n) != signal.SIG_IGN]
    # Elsewhere than in the main thread, and on Windows, signals are as they are.
    with contextlib.suppress(NotImplementedError, ValueError, RuntimeError):
        for number in added:
            loop.add_signal_handler(number, on_signal, number)
    try:
        yield
    finally:
        with contextlib.suppress(NotImplementedError, ValueError, RuntimeError):
            for number in added:
                loop.remove_signal_handler(number)


def _leave_terminal(loop: asyncio.AbstractEventLoop, number: signal.Signals) -> None:
    """Write nothing to a terminal that is gone, where every write fails; hear of it once."""
    loop.remove_signal_handler(number)
    signal.signal(number, signal.SIG_IGN)
    void = os.open(os.devnull, os.O_RDWR)
    for stream in (1, 2):
        with contextlib.suppress(OSError):
            if stat.S_ISCHR(os.fstat(stream).st_mode):
                os.dup2(void, stream)
    os.close(void)


async def run_attentively(work: Coroutine[Any, Any, _T]) -> _T:
    """Await `work`, and let every signal wake the event loop that it waits in.

    Python only marks a signal when it comes; the handler runs when the main thread next looks.
    A Ctrl-C that comes after the loop's last look and before it has fallen asleep, or that the
    system hands to another thread, would be seen when something else wakes the loop: with a
    model that reads for minutes, after minutes.
    """
    with _waking_on_signals(asyncio.get_running_loop()):
        return await work


@contextlib.contextmanager
def _waking_on_signals(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
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


async def run_in_thread(function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
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
