"""Measure how fast the store takes samples and gives them back.

    python bench/store.py [--samples 20000] [--batch 500] [--postgres URL] [--json]

Without `--postgres` a server is started for the occasion, where the test tools are installed.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import statistics
import time
import uuid
from typing import TYPE_CHECKING, Final

from heretix.sample import Sample
from heretix.store import ExecutionStart, SampleWriter, Store
from heretix.store.runs import start_executions
from heretix.store.samples import save_samples, select_answers
from postgres import measure_both

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NOW: Final = "2026-11-15T20:00:00.000Z"
PRODUCERS: Final = 64
"""Tasks that put samples at the same time, as a runner's calls do."""


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description="How fast the store is.")
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=500, help="samples per save_samples call")
    parser.add_argument("--repeat", type=int, default=3, help="tries; the median is reported")
    parser.add_argument("--postgres", metavar="URL", help="an empty database to use")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = measure_both(measure, options)
    if options.json:
        print(json.dumps({"samples": options.samples, "batch": options.batch, "per_s": figures}))
        return
    for database, rates in figures.items():
        for what, per_s in rates.items():
            print(f"{database:<11} {what:<20} {per_s:>10,.0f} samples/s")


def measure(url: str, options: argparse.Namespace) -> dict[str, float]:
    """Samples per second, each way."""
    tries: dict[str, list[float]] = {}
    with Store.open(url) as store:
        for _ in range(options.repeat):
            for what, per_s in measure_once(store, options).items():
                tries.setdefault(what, []).append(per_s)
    return {what: statistics.median(rates) for what, rates in tries.items()}


def measure_once(store: Store, options: argparse.Namespace) -> dict[str, float]:
    """One try of everything, with samples that the store hasn't seen."""
    saved, put, single = (
        make_samples(store, count)
        for count in (options.samples, options.samples, max(1, options.samples // 20))
    )
    keys = [sample.cache_key for sample in saved]
    return {
        "save_samples": rate(saved, lambda: save_in_batches(store, saved, options.batch)),
        "writer": rate(put, lambda: asyncio.run(put_concurrently(store, put))),
        "writer, one by one": rate(single, lambda: asyncio.run(put_one_by_one(store, single))),
        "cached": rate(saved, lambda: store.read(select_answers, keys)),
    }


def rate(samples: Sequence[Sample], action: Callable[[], object]) -> float:
    """Samples per second of an action on all of `samples`."""
    begun = time.perf_counter()
    action()
    return len(samples) / (time.perf_counter() - begun)


def save_in_batches(store: Store, samples: Sequence[Sample], size: int) -> None:
    """Save as a caller that has samples in hand."""
    for start in range(0, len(samples), size):
        store.write(save_samples, samples[start : start + size])


async def put_concurrently(store: Store, samples: Sequence[Sample]) -> None:
    """Put as a runner does: many tasks, each sample durable as soon as it can be."""
    async with SampleWriter(store, save=save_samples) as writer:

        async def produce(part: Sequence[Sample]) -> None:
            for sample in part:
                await writer.put(sample)
                await asyncio.sleep(0)

        await asyncio.gather(*(produce(samples[n::PRODUCERS]) for n in range(PRODUCERS)))


async def put_one_by_one(store: Store, samples: Sequence[Sample]) -> None:
    """The slowest case: wait for the disk after each sample."""
    async with SampleWriter(store, save=save_samples) as writer:
        for sample in samples:
            await writer.put(sample)
            await writer.flush()


def make_samples(store: Store, count: int) -> list[Sample]:
    """New samples of a new run, as a provider would give them."""
    nonce = uuid.uuid4().hex
    run_id = f"heretix-rpl-{nonce[:12]}"
    run = {
        "run_id": run_id,
        "claim": "Tariffs don't cause inflation.",
        "model": "mock:gpt-5",
        "provider": "mock",
        "prompt_version": "bench",
        "lens": "RPL",
        "bundle_id": None,
        "variant": None,
        "K": 8,
        "R": 2,
        "T": 8,
        "B": 5000,
    }
    store.write(
        start_executions,
        [ExecutionStart(execution_id=f"exec-{nonce}", run=run, config_json="{}", created_at=NOW)],
    )
    return [
        Sample(
            cache_key=hashlib.sha256(f"{nonce}{number}".encode()).hexdigest(),
            run_id=run_id,
            prompt_sha256=hashlib.sha256(f"{nonce}{number % 8}".encode()).hexdigest(),
            paraphrase_idx=number % 8,
            replicate_idx=number // 8,
            prob_true=0.25,
            logit=-1.0986122886681098,
            json_valid=True,
            noncompliance=None,
            raw_answer='{"prob_true": 0.25}',
            error=None,
            provider_model_id="gpt-5-2026-08-07",
            response_id=f"resp_{nonce}{number}",
            fingerprint=None,
            tokens_in=210,
            tokens_out=12,
            temperature=None,
            attempts=1,
            latency_ms=431,
            created_at=NOW,
        )
        for number in range(count)
    ]


if __name__ == "__main__":
    main()
