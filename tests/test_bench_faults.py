"""The bench of faults: real processes, stores and kills; paid calls are counted at the server."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

FAULTS = Path(__file__).parents[1] / "bench" / "faults.py"


@pytest.mark.soak
@pytest.mark.postgres
@pytest.mark.parametrize(
    "row",
    [
        "kill9",
        "sigstop",
        "store-killed",
        "store-gone",
        "clocks",
        "signals",
        "budget",
        "quotas",
        "processes",
    ],
)
def test_a_fault_costs_no_more_than_it_may(row):
    """Nothing is lost, nothing paid twice, and no budget exceeded."""
    command = [sys.executable, str(FAULTS), row, "--seconds", "5", "--trials", "5", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["held"], found


def test_the_rows_have_names(capsys, monkeypatch):
    """Each says what it does."""
    monkeypatch.setattr(sys, "argv", [str(FAULTS), "--list"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(FAULTS), run_name="__main__")
    assert not ended.value.code
    assert len(capsys.readouterr().out.splitlines()) == 15
