"""Coroutines run to their end, or to the Ctrl-C that always reaches them."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import threading

import pytest

from heretix.core.event_loop import run_async, run_attentively

WAITING = """
import asyncio, signal, threading
from heretix.core.event_loop import run_attentively, run_async

def press():
    # As it is when Ctrl-C comes in the moment in which the loop falls asleep: the main thread
    # isn't woken by the system. A thread that takes the signal itself makes this happen always.
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)

async def asleep():
    threading.Timer(0.5, press).start()
    await asyncio.Event().wait()

for wait in (run_async, lambda work: asyncio.Runner().run(run_attentively(work))):
    try:
        wait(asleep())
    except KeyboardInterrupt:
        print("interrupted")
"""


def test_ctrl_c_wakes_a_loop_that_nothing_else_will_wake():
    """Even when the system hands the signal to another thread."""
    done = subprocess.run(
        [sys.executable, "-c", WAITING],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        # A shell's background job has Ctrl-C switched off, and hands that on to its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert (done.stdout, done.stderr, done.returncode) == ("interrupted\n" * 2, "", 0)


async def number():
    await asyncio.sleep(0)
    return 5


async def broken():
    raise ValueError("no")


def wakeup_fd():
    found = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(found)
    return found


def test_a_result_and_an_error_come_through_and_nothing_is_left_behind():
    before = wakeup_fd()
    assert run_async(number()) == 5
    with pytest.raises(ValueError, match="no"):
        run_async(broken())
    assert wakeup_fd() == before


def test_it_works_beside_the_main_thread():
    """Where there are no signals to be woken by."""
    results = []
    thread = threading.Thread(target=lambda: results.append(run_async(number())))
    thread.start()
    thread.join(timeout=60)
    assert results == [5]


HUNG_UP = """
import os, signal
from heretix.core.event_loop import STOP_SIGNALS, handling_signals, run_async

async def work(sent):
    heard = []
    with handling_signals(lambda: heard.append(1), STOP_SIGNALS):
        for number in sent:
            os.kill(os.getpid(), number)
            for _ in range(3):
                await __import__("asyncio").sleep(0)
    # A shell that tells it late does no harm, either.
    os.kill(os.getpid(), signal.SIGHUP)
    return len(heard)

"""
EACH_ALONE = """
for before, *sent in CASES:
    if child := os.fork():
        assert os.waitpid(child, 0)[1] == 0
        continue
    signal.signal(signal.SIGHUP, before)
    print(run_async(work(sent)))
    break
"""


def test_a_closed_terminal_stops_once_and_is_never_a_second_signal():
    """Shells tell it twice, a second signal drops calls, and `nohup` has it ignored."""
    default, ignored = int(signal.SIG_DFL), int(signal.SIG_IGN)
    hung_up, terminated, interrupted = map(int, (signal.SIGHUP, signal.SIGTERM, signal.SIGINT))
    heard = {
        (default, hung_up, hung_up): 1,
        (default, hung_up, terminated): 2,
        (default, interrupted, hung_up): 1,
        (ignored, hung_up): 0,
    }
    done = subprocess.run(
        [sys.executable, "-c", HUNG_UP + EACH_ALONE.replace("CASES", repr([*heard]))],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    said = [int(line) for line in done.stdout.splitlines()]
    assert (said, done.stderr, done.returncode) == ([*heard.values()], "", 0)


def test_after_a_closed_terminal_nothing_is_written_to_it():
    """Every write to it would fail; files that stand in for it go on."""
    program = HUNG_UP.replace(
        "    # A shell",
        '    print("more", file=__import__("sys").stderr, flush=True)\n    # A shell',
    )
    program += "print(run_async(work([signal.SIGHUP])))"
    ours, theirs = os.openpty()
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdout=out,
            stderr=theirs,
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
        )
        os.close(theirs)
        os.close(ours)
        assert process.wait(timeout=60) == 0
        out.seek(0)
        assert out.read() == "1\n"


def test_a_wake_up_that_the_work_has_set_stays():
    """Work with signal handlers of its own brings its loop's wake-up along."""

    async def with_a_handler():
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, lambda: None)
        return wakeup_fd()

    async def outside():
        theirs = await run_attentively(with_a_handler())
        kept = wakeup_fd() == theirs
        asyncio.get_running_loop().remove_signal_handler(signal.SIGUSR1)
        return kept

    assert asyncio.run(outside())
