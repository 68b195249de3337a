"""The cluster bootstrap against the obvious loops over replicas, in one run.

    python bench/bootstrap.py [--json]

One loop is plain Python, the other calls NumPy for each draw; both are what one writes first.
Ours must take at most a thirtieth of the faster one's time; the exit code says so.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from heretix.belief.estimator import cluster_bootstrap

if TYPE_CHECKING:
    from collections.abc import Callable

    from heretix.belief.estimator import Floats

TARGET_RATIO = 1 / 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Best times of each side."""

    T: int
    R: int
    B: int
    python_loop_ms: float
    numpy_loop_ms: float
    ours_ms: float
    ratio: float
    """`ours_ms` / the faster loop."""
    target_ratio: float
    met: bool


def python_loop(groups: list[list[float]], *, B: int, cut: int, rng: random.Random) -> list[float]:
    """Replica by replica: draw templates, draw replicates, average, trim."""
    T = len(groups)
    centers = []
    for _ in range(B):
        means = []
        for group in rng.choices(groups, k=T):
            drawn = rng.choices(group, k=len(group))
            means.append(sum(drawn) / len(drawn))
        means.sort()
        kept = means[cut : T - cut]
        centers.append(sum(kept) / len(kept))
    return centers


def numpy_loop(groups: list[Floats], *, B: int, cut: int, rng: np.random.Generator) -> list[float]:
    """The same loop with NumPy's draws and means."""
    T = len(groups)
    centers = []
    for _ in range(B):
        means = []
        for t in rng.integers(0, T, size=T):
            drawn = rng.choice(groups[t], size=len(groups[t]), replace=True)
            means.append(np.mean(drawn))
        centers.append(float(np.mean(np.sort(means)[cut : T - cut])))
    return centers


def best_ms(run: Callable[[], object], repeats: int) -> float:
    """Shortest of several runs: the one least disturbed by others."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times) * 1000


def compare(*, T: int, R: int, B: int, seed: int) -> Result:
    """Time all three on the same data, and see that they agree on the answer."""
    cut = int(0.2 * T)
    data = np.random.default_rng(seed).normal(0.4, 0.8, size=(T, R))
    groups = [np.sort(row) for row in data]
    lists = [group.tolist() for group in groups]

    def by_python() -> list[float]:
        return python_loop(lists, B=B, cut=cut, rng=random.Random(seed))

    def by_numpy() -> list[float]:
        return numpy_loop(groups, B=B, cut=cut, rng=np.random.default_rng(seed))

    def ours() -> Floats:
        return cluster_bootstrap(groups, B=B, cut=cut, rng=np.random.default_rng(seed))

    middles = [float(np.mean(run())) for run in (by_python, by_numpy, ours)]
    tolerance = 6 * float(ours().std()) * (2 / B) ** 0.5
    assert max(middles) - min(middles) < tolerance, "the sides don't estimate the same thing"
    python_ms, numpy_ms = best_ms(by_python, 5), best_ms(by_numpy, 3)
    ours_ms = best_ms(ours, 100)
    ratio = ours_ms / min(python_ms, numpy_ms)
    return Result(
        T=T,
        R=R,
        B=B,
        python_loop_ms=python_ms,
        numpy_loop_ms=numpy_ms,
        ours_ms=ours_ms,
        ratio=ratio,
        target_ratio=TARGET_RATIO,
        met=ratio <= TARGET_RATIO,
    )


def main() -> int:
    """Run from the command line; 1 when the target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--T", type=int, default=16, help="templates")
    parser.add_argument("--R", type=int, default=2, help="replicates of each")
    parser.add_argument("--B", type=int, default=5000, help="bootstrap replicas")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    result = compare(T=options.T, R=options.R, B=options.B, seed=options.seed)
    if options.json:
        print(json.dumps(asdict(result), indent=2))
    else:
        print(f"T={result.T} R={result.R} B={result.B}")
        print(f"loop in plain Python     {result.python_loop_ms:10.2f} ms")
        print(f"loop with NumPy's draws  {result.numpy_loop_ms:10.2f} ms")
        print(f"cluster_bootstrap        {result.ours_ms:10.2f} ms")
        verdict = "met" if result.met else "MISSED"
        print(f"1/{1 / result.ratio:.0f} of the faster loop (target 1/30: {verdict})")
    return 0 if result.met else 1


if __name__ == "__main__":
    raise SystemExit(main())
