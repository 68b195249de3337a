"""Stores that something was measured in, and lakes to write them to."""

import shutil

import pytest
from lakes import CLAIMS

import heretix
from heretix.lake.files import Lake
from heretix.lake.read import _reader

FAULTS = "not_json=0.08&citation=0.08&refused=0.08&truncated=0.05&rejected=0.08"


@pytest.fixture(autouse=True)
def no_open_lakes():
    """Lakes are kept open by their place, and tests use few places."""
    _reader.cache_clear()
    yield
    _reader.cache_clear()


@pytest.fixture(scope="session")
def measured_template(tmp_path_factory, sqlite_template):
    """A store with sound and spoilt samples of two models."""
    path = tmp_path_factory.mktemp("measured") / "heretix.sqlite"
    shutil.copy(sqlite_template, path)
    options = {"K": 4, "R": 2, "T": 4, "B": 200, "store": str(path)}
    heretix.measure_many(CLAIMS, models=["mock:a", f"mock:b?{FAULTS}"], **options)
    heretix.measure_many(CLAIMS[:2], models=["mock:a"], **{**options, "K": 8, "T": 8})
    return path


@pytest.fixture
def measured(measured_template, tmp_path):
    """A copy of it."""
    return str(shutil.copy(measured_template, tmp_path / "heretix.sqlite"))


@pytest.fixture
def lake(tmp_path):
    """Where a lake can be made."""
    return Lake(str(tmp_path / "lake"))
