"""Processes of the tests' own: real ones, without a second each to start."""

import multiprocessing

PROCESSES = multiprocessing.get_context("forkserver")
# One server a session imports what the children need, and forks. It finds installed modules only,
# and says nothing of others: the helpers in this folder would be left out.
PROCESSES.set_forkserver_preload(
    [
        *("alembic.command", "hypothesis", "psycopg", "pytest"),
        *("heretix.economy.exchange", "heretix.economy.judging.workflow", "heretix.jobs"),
    ]
)
