"""Records of the first build, measured again: what is frozen keeps every digit.

`golden.json` was written by the tree as it was before its modules were regrouped, with the
wordings pinned and K a multiple of T, so that no rotation of templates plays a part. One case lets
in unknown sources, which were heterodox then and are admitted on request now.
"""

import hashlib
import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from heretix.cli.app import app

GOLDEN = json.loads(Path(__file__).with_name("golden.json").read_text())


@pytest.fixture(params=GOLDEN, ids=lambda case: case["name"])
def case(request, tmp_path, monkeypatch):
    """A golden case, and the artifact that the same configuration gives now."""
    monkeypatch.setenv("HERETIX_DB", str(tmp_path / "store.sqlite"))
    monkeypatch.setenv("HERETIX_CORPORA_DIR", str(tmp_path / "corpora"))
    config, out = tmp_path / "config.yaml", tmp_path / "out.json"
    config.write_text(yaml.safe_dump(request.param["config"]))
    command = [request.param["command"], "--config", str(config), "--out", str(out)]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return request.param, out


def frozen(run):
    """The part of a run that may not change: identities, method, estimate and interval."""
    keys = sorted(sample["cache_key"] for sample in run["samples"])
    aggregation = run["aggregation"]
    return {
        **{name: run[name] for name in ("run_id", "model", "lens", "prompt_version")},
        **{name: aggregation[name] for name in ("method", "template_iqr_logit", "imbalance_ratio")},
        "bootstrap_seed": str(aggregation["bootstrap_seed"]),
        "aggregates": {k: v for k, v in run["aggregates"].items() if k != "cache_hit_rate"},
        "cache_keys_sha256": hashlib.sha256("\n".join(keys).encode()).hexdigest(),
    }


def test_a_golden_record_comes_out_to_the_last_digit_and_verifies(case):
    golden, out = case
    artifact = json.loads(out.read_text())
    assert [frozen(run) for run in artifact["runs"]] == golden["runs"]
    metrics = artifact.get("metrics")
    for found in (metrics or {}).values():
        assert found.pop("beside")["movement"].keys() == found["movement"].keys()
    assert metrics == golden.get("metrics")
    result = CliRunner().invoke(app, ["verify", str(out)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
