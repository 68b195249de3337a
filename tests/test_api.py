"""The library, as a script, a coroutine and a notebook use it."""

import asyncio
import importlib
import pickle
import pkgutil

import pytest

import heretix
from heretix.core import errors


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_one_line_gives_a_belief():
    """`measure(...)` and then prob, ci, stability."""
    belief = heretix.measure("Coffee beans are seeds.", model="mock:gpt-5")
    lo, hi = belief.ci
    assert 0 < lo <= belief.prob <= hi < 1
    assert 0 < belief.stability <= 1
    assert belief.model == "mock:gpt-5"
    assert heretix.verify_run(belief.record).ok
    assert "mock:gpt-5: p=" in str(belief)


async def test_it_works_inside_a_running_event_loop():
    """As in a notebook, whose loop already runs."""
    inside = heretix.measure("x", model="mock:m")
    awaited = await heretix.measure_async("x", model="mock:m")
    assert inside.prob == awaited.prob
    assert awaited.record.aggregates.cache_hit_rate == 1.0


def test_many_claims_and_models_come_in_order():
    """Claim by claim, model by model, a claim once."""
    beliefs = heretix.measure_many(["b", "a", "b"], models=["mock:x", "mock:y"], K=3, T=3, B=200)
    assert [(b.claim, b.model) for b in beliefs] == [
        ("b", "mock:x"),
        ("b", "mock:y"),
        ("a", "mock:x"),
        ("a", "mock:y"),
    ]
    with pytest.raises(heretix.UsageError, match="`claims` is empty"):
        heretix.measure_many([])


def test_a_belief_is_saved_and_loaded(tmp_path):
    """The artifact holds the belief."""
    belief = heretix.measure("x", model="mock:m")
    belief.save(tmp_path / "x.json")
    assert heretix.load(tmp_path / "x.json") == [belief]


def test_no_estimate_is_an_error_at_the_number_not_before():
    """The record can be looked at; asking for the number says why there is none."""
    belief = heretix.measure("x", model="mock:m?not_json=1")
    assert belief.record.usage.compliant == 0
    with pytest.raises(heretix.NoEstimateError, match="compliant"):
        _ = belief.prob
    assert "no estimate" in str(belief)
    assert "No estimate" in belief._repr_html_()


def test_a_notebook_shows_a_picture_and_no_markup_of_the_claim():
    """Rich HTML, with the claim as text."""
    html = heretix.measure("<script>alert(1)</script>", model="mock:m")._repr_html_()
    assert "<svg" in html
    assert "<script" not in html
    assert "95% CI" in html


def test_wrong_options_are_refused():
    """The keys are those of a configuration."""
    with pytest.raises(heretix.UsageError, match="`Temperature`; did you mean `temperature`"):
        heretix.measure("x", model="mock:m", Temperature=1)


def test_the_public_names_are_complete_and_load():
    """`__all__` is sorted, and every name in it exists."""
    assert heretix.__all__ == sorted(heretix.__all__)
    for name in heretix.__all__:
        assert getattr(heretix, name) is not None
    assert dir(heretix) == heretix.__all__
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = heretix.nothing_like_it


def test_every_module_says_what_it_gives():
    """`__all__` of every module names things that are there."""
    for module in pkgutil.walk_packages(heretix.__path__, "heretix."):
        if ".migrations." in module.name:
            continue
        loaded = importlib.import_module(module.name)
        for name in getattr(loaded, "__all__", ()):
            assert hasattr(loaded, name), f"{module.name}.{name}"


def test_errors_survive_a_process_boundary():
    """Every error of the tree can be pickled, with what it carries."""
    for name in errors.__all__:
        error = getattr(errors, name)("what went wrong")
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again)) == (type(error), "what went wrong")
    limited = errors.RateLimitedError("slow down", retry_after_s=2.5)
    assert pickle.loads(pickle.dumps(limited)).retry_after_s == 2.5


def test_the_tree_of_errors_is_drawn_as_it_is():
    """The docstring names every error, and every error has its exit code."""
    drawing = errors.__doc__
    for name in errors.__all__:
        assert f" {name}" in drawing
        assert getattr(errors, name).exit_code in {1, 2, 3}


def test_cancelling_a_measurement_from_a_coroutine_is_possible():
    """A task can be cancelled without leaving threads waiting."""

    async def main():
        task = asyncio.create_task(heretix.measure_async("x", model="mock:m?latency_ms=60000"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
