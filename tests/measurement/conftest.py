"""Records to look at, measured once."""

import asyncio

import pytest

from heretix.api import _Call
from heretix.measurement.record import RunRecord
from heretix.measurement.runner import Retry


@pytest.fixture(scope="session")
def measured_record(tmp_path_factory) -> RunRecord:
    """A run with every kind of sample in it."""
    store = tmp_path_factory.mktemp("record") / "heretix.sqlite"
    faults = "not_json=0.08&citation=0.08&refused=0.08&truncated=0.05&error=0.05"
    options = {"K": 16, "R": 3, "T": 16, "B": 500}
    claims, models = ("Tea | coffee: “{CLAIM}” 🙂",), (f"mock:m?{faults}",)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Retry, "wait_s", lambda *_: 0.0)
        beliefs = asyncio.run(_Call(claims, models, str(store), None, options).run())
    return beliefs[0].record
