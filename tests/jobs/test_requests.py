"""What may be asked of a server, and what may not."""

from datetime import date

import pytest
from jobs_support import request

from heretix.core.errors import ConfigError, ModelError
from heretix.core.settings import Settings
from heretix.jobs import MeasureRequest


def parse(**changes):
    """A request with these values."""
    return MeasureRequest.parse({"claims": ["Tea is good"], **changes})


@pytest.mark.parametrize(
    "dangerous",
    [
        {"prompts_file": "/etc/passwd"},
        {"claims_file": "/etc/passwd"},
        {"base_url": "http://169.254.169.254/"},
        {"out": "x.json"},
        {"evidence": {"policy": "/etc/passwd"}},
        {"search": "brave"},
        {"concurrency": 4096},
        {"prompt_version": "../../etc/passwd"},
        {"prompt_version": "bank.yaml"},
        {"corpus": "../secret"},
        {"corpus": "/tmp/x"},
        {"corpus": ""},
        {"models": ["local:/etc/passwd"]},
        {"models": ["local:../model.gguf"]},
        {"models": ["local:~/model.gguf"]},
        {"models": ["local:a\\b"]},
        {"models": ["local:.hidden"]},
        {"documents": ["/etc/passwd"], "lenses": ["SEL"]},
        {"documents": [{"title": "t", "text": "x", "path": "/etc/passwd"}], "lenses": ["SEL"]},
        {
            "documents": [{"title": "t", "text": "x", "url": "file:///etc/passwd"}],
            "lenses": ["SEL"],
        },
    ],
)
def test_nothing_reaches_files_or_addresses(dangerous):
    """Paths, addresses, unknown keys and live services are refused at the door."""
    with pytest.raises(ConfigError):
        parse(**dangerous)


@pytest.mark.parametrize(
    "wrong",
    [
        {"claims": []},
        {"claims": [" "]},
        {"claims": ["a\x00b"]},
        {"claims": ["x" * 10_001]},
        {"claims": [f"claim {n}" for n in range(101)]},
        {"models": ["gpt 5"]},
        {"models": ["nobody:knows"]},
        {"models": ["mock:" + "x" * 200]},
        {"K": 0},
        {"K": 65},
        {"K": "8"},
        {"K": True},
        {"R": 33},
        {"B": 99},
        {"seed": 2**64},
        {"temperature": 3.0},
        {"budget_usd": 0.0},
        {"budget_usd": float("nan")},
        {"as_of": "yesterday"},
        {"lenses": []},
        {"lenses": ["XYZ"]},
        {"lenses": ["SEL"]},
        {"documents": [{"title": "t", "text": "x"}]},
        {"documents": [{"title": "t", "text": " \n "}], "lenses": ["SEL"]},
        {"max_samples": 100},
        {"negation": "no", "claims": ["a", "b"]},
        {"claims": [f"claim {n}" for n in range(100)], "K": 64, "R": 32},
    ],
)
def test_values_out_of_range_are_refused(wrong):
    """Each with a message that names the key or the rule."""
    with pytest.raises(ConfigError) as caught:
        parse(**wrong)
    assert str(caught.value).startswith("request: ")


def test_every_problem_is_named():
    """Not only the first."""
    with pytest.raises(ConfigError) as caught:
        parse(K=0, R=0, colour="red")
    assert all(name in str(caught.value) for name in ("`K`", "`R`", "unknown key `colour`"))


def test_a_request_is_put_in_order():
    """Claims are trimmed and taken once, days are read, and equal requests are equal as text."""
    asked = parse(
        claims=[" Tea ", "Tea", "Milk"],
        models=["mock:a", "mock:a"],
        as_of="2026-01-02",
        lenses=["RPL"],
    )
    assert (asked.claims, asked.models, asked.as_of) == (
        ("Tea", "Milk"),
        ("mock:a",),
        date(2026, 1, 2),
    )
    assert asked.canonical == MeasureRequest.model_validate_json(asked.canonical).canonical
    assert asked.title == "Tea (and 1 more)"


def test_a_request_becomes_a_configuration():
    """What was asked arrives; what can't be asked keeps its default."""
    config = request(K=5, R=3, T=5, seed=7, until_width=0.2).config(Settings(), budget_usd=0.5)
    assert (config.K, config.R, config.T, config.seed, config.until_width) == (5, 3, 5, 7, 0.2)
    assert (config.budget_usd, config.base_url, config.prompts_file) == (0.5, None, None)


def test_local_models_come_from_their_folder(tmp_path):
    """By the name of the file, with or without its ending, and from nowhere else."""
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "mine.gguf").write_bytes(b"GGUF")
    settings = Settings(models_dir=folder)
    for name in ("local:mine", "local:mine.gguf"):
        config = request(models=(name,)).config(settings, budget_usd=None)
        assert config.models == (f"local:{folder / 'mine.gguf'}",)
    assert request(models=("local:smollm2-135m",)).config(settings, budget_usd=None).models == (
        "local:smollm2-135m",
    )
    with pytest.raises(ModelError, match="models' folder"):
        request(models=("local:other",)).config(settings, budget_usd=None)
