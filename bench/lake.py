"""Measure the size of a sample in the lake and in a compacted store, and the time of a warm rerun.

    python bench/lake.py [--claims 6250] [--postgres] [--json]

Measures claims with the mock (16 samples each), writes them to a lake, compacts the store, and
measures again: the second run calls nobody. Bytes are those of files on the disk; PostgreSQL is
asked for its own, after `VACUUM FULL`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from sqlalchemy import text

import heretix
from heretix.lake.files import Lake
from heretix.lake.query import query
from heretix.lake.verify import verify_lake
from heretix.lake.write import END_OF_TIME, compact_lake, compact_store
from heretix.store import Store
from heretix.store.db import Location, make_engine
from postgres import temporary_postgres

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")
MODEL = "mock:gpt-5"


def main() -> None:
    """Measure, and print lines or JSON."""
    parser = argparse.ArgumentParser(description="Bytes and speed of the lake.")
    parser.add_argument("--claims", type=int, default=6_250, help="16 samples each")
    parser.add_argument("--postgres", action="store_true", help="on a server, not a file")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        db = str(folder / "heretix.sqlite")
        if options.postgres:
            db = stack.enter_context(temporary_postgres()) or db
        figures = measure(db, Lake(str(folder / "lake")), options.claims)
    if options.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:<32} {value:>14,.2f}")


def measure(db: str, lake: Lake, count: int) -> dict[str, float]:
    """Every figure."""
    claims = [
        f"Claim {n}: the price of tea rose in the year {1900 + n % 120}." for n in range(count)
    ]
    run = lambda: heretix.measure_many(claims, models=[MODEL], store=db)  # noqa: E731
    first, cold_s = time_work(run)
    samples = sum(belief.record.usage.called for belief in first)
    probs = [belief.prob for belief in first]
    del first
    before = size_of(db)
    with Store.open(db) as store:
        done, compact_s = time_work(lambda: compact_store(store, lake, before=END_OF_TIME))
        _, shrink_s = time_work(store.shrink)
    assert done.moved_samples == done.samples == samples
    after = size_of(db)
    _, merge_s = time_work(lambda: compact_lake(lake))
    found, verify_s = time_work(lambda: verify_lake(lake))
    assert found.ok
    _, query_s = time_work(
        lambda: query(lake, "SELECT model, date, avg(prob_true) FROM samples GROUP BY ALL")
    )
    again, warm_s = time_work(run)
    assert sum(belief.record.usage.called for belief in again) == 0
    assert [belief.prob for belief in again] == probs
    manifest = lake.require_manifest()
    return {
        "samples": samples,
        "lake_bytes_a_sample": sum(file.bytes for file in manifest.files) / samples,
        "of_it_samples": sum(file.bytes for file in manifest.of("samples")) / samples,
        "of_it_runs": sum(file.bytes for file in manifest.of("runs")) / samples,
        "store_bytes_a_sample_before": before / samples,
        "store_bytes_a_sample_after": after / samples,
        "measure_s": cold_s,
        "compact_ms_a_claim": 1000 * compact_s / count,
        "shrink_s": shrink_s,
        "merge_s": merge_s,
        "verify_s": verify_s,
        "query_s": query_s,
        "warm_rerun_ms_a_claim": 1000 * warm_s / count,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def size_of(db: str) -> int:
    """Bytes of a store."""
    if "://" not in db:
        return Path(db).stat().st_size
    engine = make_engine(Location.parse(db), busy_timeout_ms=60_000)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("VACUUM FULL")
        size = connection.scalar(text("SELECT pg_database_size(current_database())"))
        empty = connection.scalar(
            text("SELECT pg_database_size(datname) FROM pg_database WHERE datname = 'template1'")
        )
    engine.dispose()
    return int(size or 0) - int(empty or 0)


def time_work(work: Callable[[], _T]) -> tuple[_T, float]:
    """Time some work; returns what it gives, and the seconds."""
    begun = time.perf_counter()
    return work(), time.perf_counter() - begun


if __name__ == "__main__":
    main()
