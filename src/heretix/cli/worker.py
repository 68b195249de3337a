"""`heretix worker`: measure what others ask for."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from heretix.cli import options as opt

if TYPE_CHECKING:
    from heretix.jobs import Worker

__all__ = ["worker"]


def worker(
    once: Annotated[bool, typer.Option("--once", help="End when no job waits.")] = False,
    jobs: opt.JobsOption = opt.JOBS_AT_A_TIME,
    db: opt.DbOption = None,
) -> None:
    """Work on the jobs of a store until stopped.

    Any number of workers may share a store, on one machine or many. A worker that is stopped
    gives its jobs back; one that dies is replaced, and nothing is asked or paid for twice.
    """
    import logging

    import stamina.instrumentation

    from heretix.jobs import Worker
    from heretix.settings import Settings
    from heretix.store import Store

    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    # Every try is counted and every failure stored; a line for each would hide the rest.
    stamina.instrumentation.set_on_retry_hooks([])
    settings = Settings.from_env()
    settings = replace(settings, db=db or settings.db)
    console = opt.err_console()
    with Store.open(settings.db) as store:
        console.print(f"working on the jobs of {store.name}; Ctrl-C ends it", style="dim")
        done = asyncio.run(_work(Worker(store, settings, parallel=jobs), once=once))
    if once:
        typer.echo(f"{done} job{'' if done == 1 else 's'} done")


async def _work(worker: Worker, *, once: bool) -> int:
    """Work until a signal says stop: then what was answered is stored, and jobs are given back."""
    import signal

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, worker.stop)
    if once:
        return await worker.run_until_idle()
    await worker.run()
    return 0
