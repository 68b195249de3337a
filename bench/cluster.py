"""Measure a cluster: speed, equal bits, and nodes and drivers that are killed.

    python bench/cluster.py [--claims 400] [--window 32] [--latency-ms 200] [--json]

Several raylets on this machine stand for nodes, with a PostgreSQL of their own. Calls are counted
by the server that answers them, never by our own books. Whoever is killed may cost its calls in
flight, a window, and all of them together the answers of one commit, which are no more than a
window. Everything that is ended here was started here.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from postgres import temporary_postgres
from sampling import HERETIX, MODEL, claim_text, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

K, R = 4, 2
PER_CLAIM: Final = K * R
_PART_CLAIMS: Final = 200
_QUIET: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    # Workers are nice by default; beside others on a busy machine they would hardly run.
    "RAY_worker_niceness": "0",
    "RAY_raylet_start_wait_time_s": "180",
}


@dataclass(kw_only=True)
class Row:
    """One scenario: what was needed, and what the server saw."""

    scenario: str
    samples: int
    requests: int
    allowed_extra: int
    wall_s: float
    equal_bits: bool
    note: str = ""
    holds: bool = field(init=False)

    def __post_init__(self) -> None:
        """Judge."""
        extra = self.requests - self.samples
        self.holds = self.equal_bits and 0 <= extra <= self.allowed_extra


class RayCluster:
    """Raylets of this machine, in a folder of their own; killed one by one, and none but these."""

    def __init__(self, folder: str, *, nodes: int, cpus: int = 1) -> None:
        os.environ.update(_QUIET)
        from ray.cluster_utils import Cluster

        common = {"object_store_memory": 80_000_000}
        head = {**common, "num_cpus": 0, "include_dashboard": False, "temp_dir": folder}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self._common = common
        self.nodes = [self.add(cpus) for _ in range(nodes)]

    @property
    def address(self) -> str:
        """Address that `--on` takes."""
        return str(self._cluster.address)

    def add(self, cpus: int = 1) -> Any:
        """One more node."""
        return self._cluster.add_node(num_cpus=cpus, **self._common)

    def kill(self, node: Any) -> None:
        """End a node as a power cut does: its raylet and its workers at the same moment."""
        raylet = next(
            info.process.pid
            for kind, infos in node.all_processes.items()
            if kind == "raylet"
            for info in infos
        )
        for pid in (raylet, *children_of(raylet)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._cluster.remove_node(node, allow_graceful=False)
        self.nodes.remove(node)

    def close(self) -> None:
        """End what is left."""
        self._cluster.shutdown()


def children_of(pid: int) -> list[int]:
    """All processes below one."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, path.read_text().split()):
                found += [child, *children_of(child)]
    return found


@contextlib.contextmanager
def cluster(nodes: int, cpus: int = 1) -> Iterator[RayCluster]:
    """A cluster for a block."""
    # A short path: a socket's name has room for about 100 characters.
    with tempfile.TemporaryDirectory(prefix="hx-ray-", ignore_cleanup_errors=True) as folder:
        started = RayCluster(folder, nodes=nodes, cpus=cpus)
        try:
            yield started
        finally:
            started.close()


@dataclass(frozen=True)
class Bench:
    """State that scenarios share."""

    folder: Path
    port: int
    uri: str
    claims: int
    window: int

    @property
    def samples(self) -> int:
        """Calls that are needed."""
        return self.claims * PER_CLAIM

    def requests(self) -> int:
        """Calls that the server has seen so far."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/stats", timeout=60) as reply:
            return int(json.load(reply)["requests"])

    @contextlib.contextmanager
    def database(self) -> Iterator[str]:
        """A fresh database."""
        import psycopg

        name = f"bench_{time.monotonic_ns()}"
        with psycopg.connect(self.uri, autocommit=True) as admin:
            admin.execute(f"CREATE DATABASE {name}")
            try:
                yield self.uri.replace("/postgres?", f"/{name}?")
            finally:
                admin.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def start(self, db: str, on: str | None, out: Path) -> subprocess.Popen[bytes]:
        """The same command every time, but for where it measures."""
        claims, config = self.folder / "claims.txt", self.folder / "config.yaml"
        claims.write_text("".join(f"{claim_text(n)}\n" for n in range(self.claims)))
        values = {"claims_file": str(claims), "model": MODEL, "concurrency": self.window}
        values |= {"base_url": f"http://127.0.0.1:{self.port}/v1", "K": K, "R": R, "T": K}
        config.write_text(json.dumps(values))
        where = ["--on", on] if on else []
        argv = [*HERETIX, "run", "--config", str(config), "--db", db, "--out", str(out), *where]
        ours = (n for n in os.environ if n.startswith("HERETIX_") or n.endswith("_API_KEY"))
        env = {name: value for name, value in os.environ.items() if name not in set(ours)}
        # A lease that ends soon: what a killed node was about to call for is soon free.
        env |= {**_QUIET, "HERETIX_LEASE_S": "10"}
        with (self.folder / "log.txt").open("ab") as log:
            return subprocess.Popen(argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=env)

    def run(self, db: str, on: str | None, out: Path) -> None:
        """Run to the end, or say what it said."""
        process = self.start(db, on, out)
        if process.wait() != 0:
            self.fail(process)

    def fail(self, process: subprocess.Popen[bytes]) -> None:
        """Show the end of the log."""
        told = (self.folder / "log.txt").read_bytes()[-3000:].decode("utf-8", "replace")
        raise SystemExit(f"the run ended with {process.returncode}:\n{told}")

    def until(self, requests: int, process: subprocess.Popen[bytes]) -> None:
        """Wait until the server has seen so many calls."""
        while self.requests() < requests:
            if process.poll() is not None:
                self.fail(process)
            time.sleep(0.02)


def bits(out: Path) -> str:
    """A hash of all estimates and samples, down to the last bit."""
    digest = hashlib.sha256()
    for line in out.read_text().splitlines():
        for run in json.loads(line)["runs"]:
            answers = sorted((s["cache_key"], s["raw_answer"]) for s in run["samples"])
            told = [run["run_id"], run["claim"], run["aggregates"]["prob_true_rpl"]]
            told += [run["aggregates"]["ci95"], run["aggregates"]["stability_score"], answers]
            digest.update(json.dumps(told).encode())
    return digest.hexdigest()


def scenarios(bench: Bench) -> Iterator[Row]:
    """Every row of the design's table that an engine has to do with."""
    out = bench.folder / "out.jsonl"
    with bench.database() as db:
        before, begun = bench.requests(), time.monotonic()
        bench.run(db, None, out)
        expected = bits(out)
        yield _row(bench, "one process", before, begun, 0, equal=True)
    for nodes in (1, 2):
        with cluster(nodes) as ray, bench.database() as db:
            before, begun = bench.requests(), time.monotonic()
            bench.run(db, ray.address, out)
            equal = bits(out) == expected
            yield _row(bench, f"{nodes} node{'s'[: nodes - 1]}", before, begun, 0, equal=equal)
    with cluster(2) as ray, bench.database() as db:
        before, begun = bench.requests(), time.monotonic()
        process = bench.start(db, ray.address, out)
        bench.until(before + bench.samples // 3, process)
        ray.kill(ray.nodes[0])
        if process.wait() != 0:
            bench.fail(process)
        equal = bits(out) == expected
        row = _row(bench, "node killed", before, begun, 2 * bench.window, equal=equal)
        row.note = "the other node goes on"
        yield row
    with cluster(2) as ray, bench.database() as db:
        before, begun = bench.requests(), time.monotonic()
        process = bench.start(db, ray.address, out)
        bench.until(before + bench.samples // 3, process)
        process.kill()
        process.wait()
        left = bench.requests() - before
        # Resumed by another machine, which has no Ray at all.
        bench.run(db, None, out)
        equal = bits(out) == expected
        row = _row(bench, "driver killed -9", before, begun, 3 * bench.window, equal=equal)
        row.note = f"killed at {left:,} calls; resumed without Ray"
        yield row


def _row(bench: Bench, scenario: str, before: int, begun: float, extra: int, *, equal: bool) -> Row:
    return Row(
        scenario=scenario,
        samples=bench.samples,
        requests=bench.requests() - before,
        allowed_extra=extra,
        wall_s=time.monotonic() - begun,
        equal_bits=equal,
    )


def main() -> int:
    """Measure, print, and end with 1 where something doesn't hold."""
    parser = argparse.ArgumentParser(description="What a cluster does to a measurement.")
    parser.add_argument("--claims", type=int, default=2 * _PART_CLAIMS)
    parser.add_argument("--window", type=int, default=32, help="calls in flight of a process")
    parser.add_argument("--latency-ms", type=float, default=200.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    with contextlib.ExitStack() as stack:
        uri = stack.enter_context(temporary_postgres())
        if uri is None:
            return 2
        port, _ = stack.enter_context(serving({"latency_ms": options.latency_ms}))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="heretix-bench-")))
        for row in scenarios(Bench(folder, port, uri, options.claims, options.window)):
            rows.append(row)
            if not options.json:
                extra = row.requests - row.samples
                verdict = "holds" if row.holds else "DOES NOT HOLD"
                same = "equal bits" if row.equal_bits else "OTHER BITS"
                print(
                    f"{row.scenario:<18} {row.samples:>7,} needed {row.requests:>7,} paid "
                    f"({extra:+d}, at most {row.allowed_extra:+d})  {same}  {row.wall_s:6.1f} s  "
                    f"{verdict}  {row.note}",
                    flush=True,
                )
    if options.json:
        print(json.dumps({"python": sys.version.split()[0], "rows": [asdict(r) for r in rows]}))
    return 0 if all(row.holds for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
