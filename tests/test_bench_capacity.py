"""The capacity model: held against a simulation that knows nothing of its formulas."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "bench" / "capacity.py"
_spec = importlib.util.spec_from_file_location("bench_capacity", SCRIPT)
bench = sys.modules["bench_capacity"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(bench)

SMALL = bench.Plant(samples=16_000, claims_a_part=50, nodes=4, window=16, start_s=0.0)


@pytest.mark.parametrize(
    ("limit", "changes"),
    [
        ("calls", {}),
        ("calls", {"nodes": 13}),
        ("processors", {"cpu_ms": 200.0}),
        ("store", {"store_ms": 100.0}),
        ("rate", {"rpm": 600}),
    ],
)
def test_model_and_simulation_agree(limit, changes):
    """Whatever is the limit, and where parts don't divide evenly, they differ by less than 5%."""
    plant = replace(SMALL, **changes)
    model = bench.estimate(plant)
    assert model.limited_by == limit
    assert bench.simulate(plant) == pytest.approx(model.seconds, rel=0.05)


def test_a_rate_is_never_passed():
    """No more calls are played than the rate allows, however many processes there are."""
    plant = replace(SMALL, nodes=20, latency_ms=1.0, rpm=6_000)
    assert bench.simulate(plant) >= (plant.samples - 1) / 100


def test_the_same_dice_give_the_same_time():
    """A simulation can be repeated."""
    assert bench.simulate(SMALL, seed=7) == bench.simulate(SMALL, seed=7)
    assert bench.simulate(SMALL, seed=7) != bench.simulate(SMALL, seed=8)
