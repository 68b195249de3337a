"""A real cluster of two nodes on this machine: every call once, and the same bits."""

import contextlib
import importlib.util
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.postgres]

BENCH = Path(__file__).parents[2] / "bench"
CLAIMS = 400
"""Two parts, which two nodes share."""
WINDOW = 16


@pytest.fixture(scope="module")
def bench():
    """The benchmark, so that what it shows is what is tested."""
    sys.path.insert(0, str(BENCH))
    try:
        spec = importlib.util.spec_from_file_location("bench_cluster", BENCH / "cluster.py")
        module = sys.modules["bench_cluster"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(BENCH))
    return module


@pytest.fixture(scope="module")
def setting(bench, postgres_server):
    """A server that counts calls, a database server, and what one process measures."""
    with bench.serving({"latency_ms": 50}) as (port, _), tempfile.TemporaryDirectory() as folder:
        made = bench.Bench(Path(folder), port, postgres_server._uri, CLAIMS, WINDOW)
        out = made.folder / "alone.jsonl"
        with made.database() as db:
            made.run(db, None, out)
        yield made, bench.bits(out)


@pytest.fixture(scope="module")
def nodes(bench):
    """Two nodes and a head; skipped where Ray can't start."""
    with contextlib.ExitStack() as stack:
        try:
            yield stack.enter_context(bench.cluster(2))
        except (ImportError, OSError, RuntimeError, subprocess.SubprocessError) as exc:
            pytest.skip(f"Ray could not be started: {type(exc).__name__}: {exc}")


def test_two_nodes_pay_once_and_give_the_same_bits(bench, setting, nodes):
    """Every call is made once, records are those of one process, and one bar tells of both."""
    made, expected = setting
    out, before = made.folder / "two.jsonl", made.requests()
    with made.database() as db:
        made.run(db, nodes.address, out)
    assert made.requests() - before == made.samples
    assert bench.bits(out) == expected
    told = re.sub(r"\s+", " ", (made.folder / "log.txt").read_text())
    assert f"of {made.samples:,} samples" in told
    assert f"{made.samples:,} calls" in told
