"""Capacity: the time of a measurement of any size, on paper and by a simulation that checks it.

    python bench/capacity.py [--json]
    python bench/capacity.py --samples 3200 --nodes 1 --window 32 --latency-ms 200 --latency-cv 0

The model is four divisions and a maximum. The simulation plays every call, commit and part of a
measurement as events, with the same constants and nothing of the model in it. Its constants were
measured on two busy cores (docs/scale.md says how and where).
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import random
from collections import deque
from dataclasses import asdict, dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Plant:
    """Hardware and limits that a measurement runs on."""

    samples: int
    per_claim: int = 16
    claims_a_part: int = 500
    nodes: int = 1
    processes: int = 1
    """On each node, one a processor."""
    window: int = 256
    latency_ms: float = 1000.0
    latency_cv: float = 0.3
    """Deviation of a call's duration, as a part of its mean."""
    cpu_ms: float = 1.05
    """Of a process for a sample: request, reply, storing, its share of the estimate."""
    store_ms: float = 0.28
    """Of the store for a sample; it works on one commit after the other."""
    rpm: float | None = None
    permits_a_s: float = 49_000.0
    """Turns that the shared rate can hand out."""
    start_s: float = 8.0

    @property
    def parts(self) -> int:
        """Parts that it is cut into."""
        return math.ceil(self.samples / (self.per_claim * self.claims_a_part))

    @property
    def workers(self) -> int:
        """Processes that have a part to measure."""
        return min(self.nodes * self.processes, self.parts)


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """Samples a second that each thing allows, and what follows."""

    calls: float
    processors: float
    store: float
    rate: float
    limited_by: str
    seconds: float


def estimate(plant: Plant) -> Capacity:
    """The model: the slowest of four, for as long as the busiest process has parts."""
    limits = {
        "calls": plant.workers * plant.window / (plant.latency_ms / 1000),
        "processors": plant.workers * 1000 / plant.cpu_ms,
        "store": 1000 / plant.store_ms,
        "rate": min(plant.permits_a_s, math.inf if plant.rpm is None else plant.rpm / 60),
    }
    slowest = min(limits, key=lambda name: limits[name])
    # All processes end together only when parts divide evenly among them.
    rounds = math.ceil(plant.parts / plant.workers)
    a_part = plant.samples / plant.parts
    uneven = rounds * a_part * plant.workers / plant.samples
    own = slowest in {"calls", "processors"}
    seconds = plant.samples / limits[slowest] * (uneven if own else 1.0)
    total = plant.start_s + seconds + plant.latency_ms / 1000
    return Capacity(**limits, limited_by=slowest, seconds=total)


class _Process:
    """A process: a window, a processor, a part at a time."""

    def __init__(self) -> None:
        self.left = 0
        self.in_flight = 0
        self.cpu_free = 0.0


def simulate(plant: Plant, *, seed: int = 1) -> float:
    """Seconds that it takes, played event by event."""
    dice = random.Random(seed)
    processes = [_Process() for _ in range(plant.workers)]
    full = plant.per_claim * plant.claims_a_part
    parts = deque(min(full, plant.samples - n) for n in range(0, plant.samples, full))
    events: list[tuple[float, int, str, int]] = []
    number = 0
    store_free = turn = 0.0
    end = plant.start_s
    turn_s = max(1 / plant.permits_a_s, 0.0 if plant.rpm is None else 60 / plant.rpm)

    def fill(index: int, now: float) -> None:
        """Begin what calls the window has room for."""
        nonlocal number, turn
        one = processes[index]
        while one.in_flight < plant.window:
            if not one.left:
                if not parts:
                    return
                one.left = parts.popleft()
            one.left -= 1
            one.in_flight += 1
            turn = max(turn, now) + turn_s
            number += 1
            heapq.heappush(events, (turn + _duration(plant, dice), number, "answer", index))

    for index in range(len(processes)):
        fill(index, plant.start_s)
    while events:
        now, _, kind, index = heapq.heappop(events)
        one = processes[index]
        number += 1
        if kind == "answer":
            one.cpu_free = max(one.cpu_free, now) + plant.cpu_ms / 1000
            heapq.heappush(events, (one.cpu_free, number, "worked", index))
        elif kind == "worked":
            # The place is free when the store has the sample: a slow store slows calls down.
            store_free = max(store_free, now) + plant.store_ms / 1000
            heapq.heappush(events, (store_free, number, "stored", index))
        else:
            end = now
            one.in_flight -= 1
            fill(index, now)
    return end


def _duration(plant: Plant, dice: random.Random) -> float:
    mean = plant.latency_ms / 1000
    if not plant.latency_cv:
        return mean
    shape = 1 / plant.latency_cv**2
    return dice.gammavariate(shape, mean / shape)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A size on a plant: the model, and the simulation where it is small enough to be played."""

    name: str
    plant: Plant
    model: Capacity
    simulated_s: float | None

    @property
    def ratio(self) -> float | None:
        """The simulation's time as a part of the model's."""
        return None if self.simulated_s is None else self.simulated_s / self.model.seconds


_PLAYED = 1_000_000
"""Samples at the most that are played."""


def compare(name: str, plant: Plant) -> Row:
    """Work it out, and play it; of large ones a part in the same proportions."""
    model = estimate(plant)
    if plant.samples <= _PLAYED:
        return Row(name=name, plant=plant, model=model, simulated_s=simulate(plant))
    return Row(name=name, plant=plant, model=model, simulated_s=None)


def table() -> list[Row]:
    """10⁶, 10⁸ and 10¹⁰ samples, and small ones of every kind of limit that are played."""
    small = Plant(samples=320_000, window=64)
    rows = [
        ("played: calls are the limit", replace(small, nodes=4)),
        ("played: processors are", replace(small, nodes=4, cpu_ms=40.0)),
        ("played: the store is", replace(small, nodes=40, window=256)),
        ("played: the rate is", replace(small, nodes=4, rpm=3_000)),
        ("played: parts don't divide", replace(small, nodes=24, window=16)),
    ]
    for power, nodes in ((6, 1), (8, 10), (10, 100)):
        base = Plant(samples=10**power, nodes=nodes, processes=2)
        rows.append((f"10^{power}, {nodes} nodes", base))
        rows.append((f"10^{power}, {nodes} nodes, 10,000 a minute", replace(base, rpm=10_000)))
    return [compare(name, plant) for name, plant in rows]


def main() -> int:
    """Print the table, or one plant; 1 where model and simulation disagree by a tenth."""
    parser = argparse.ArgumentParser(description="How long a measurement of any size takes.")
    parser.add_argument("--samples", type=int)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument("--per-claim", type=int, default=16)
    parser.add_argument("--claims-a-part", type=int, default=500)
    parser.add_argument("--latency-ms", type=float, default=1000.0)
    parser.add_argument("--latency-cv", type=float, default=0.3)
    parser.add_argument("--cpu-ms", type=float, default=Plant.cpu_ms)
    parser.add_argument("--store-ms", type=float, default=Plant.store_ms)
    parser.add_argument("--start-s", type=float, default=8.0)
    parser.add_argument("--rpm", type=float)
    parser.add_argument("--json", action="store_true")
    given = vars(parser.parse_args())
    as_json = given.pop("json")
    rows = table() if given["samples"] is None else [compare("as given", Plant(**given))]
    if as_json:
        print(json.dumps([asdict(row) | {"ratio": row.ratio} for row in rows]))
    else:
        for row in rows:
            played = "" if row.ratio is None else f"  simulated ÷ model {row.ratio:.3f}"
            took = f"{row.model.seconds:>14,.0f} s"
            print(f"{row.name:<36}{took}  limited by {row.model.limited_by:<10}{played}")
    return int(any(abs(row.ratio - 1) > 0.1 for row in rows if row.ratio is not None))


if __name__ == "__main__":
    raise SystemExit(main())
