"""What is kept between requests: bounded, and made again when the store changes."""

import asyncio
import threading

from website import WEATHER, run_of

from heretix.accounts import LOCAL
from heretix.jobs import MeasureRequest, Worker
from heretix.web.assets import theme_css
from heretix.web.pages.runs import claim_view, vector_artifact
from heretix.web.state import AnomalyBoard, LruCache


def test_the_least_recently_used_goes_first():
    """A shelf never grows past its size."""
    kept = LruCache(2)
    made = []

    def make(key):
        return kept.get(key, lambda: made.append(key) or key)

    for key in ("a", "b", "a", "c", "a", "b"):
        make(key)
    assert made == ["a", "b", "c", "b"]
    assert len(kept) == 2


def test_threads_may_share_a_shelf():
    """All get the same value, whoever made it."""
    kept = LruCache(4)
    gate = threading.Barrier(8)
    found = []

    def ask():
        gate.wait()
        found.append(kept.get("key", lambda: "value"))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["value"] * 8
    assert len(kept) == 1


def test_the_vector_is_that_of_the_measurement(measured_site):
    """Lenses, metrics and experiments are those that `heretix lens` would write."""
    state = measured_site.state
    record = state.cache.record(run_of(measured_site, lens="HEL").execution_id)
    view = claim_view(state, record)
    assert [run.lens for run in view.vector] == ["RPL", "NUL", "MEL", "HEL"]
    assert {run.variant for run in view.variants} >= {"sham", "without:E01"}
    assert view.others == ()
    assert [(row.model, list(row.cells)) for row in view.rows] == [
        (record.model, ["HEL", *[lens for lens in view.rows[0].cells if lens != "HEL"]]),
        ("mock:gpt-5", ["RPL"]),
    ]
    artifact = vector_artifact(state, view)
    metrics = artifact.metrics[record.model]
    assert metrics.shock_index.value > 0.1
    assert metrics.beside.placebo["HEL"].verdict == "any_text"
    assert {found.variant for found in artifact.experiments} == {r.variant for r in view.variants}
    assert vector_artifact(state, view) is artifact


def test_the_feed_is_ranked_once_and_again_when_something_is_measured(site):
    """An empty store has an empty feed at once; a new run makes it look again."""
    board = AnomalyBoard(site.store, wait_s=20)
    first = board.read()
    assert first.complete
    assert first.found == ()
    board._rested_at = 0.0
    values = {"claims": [WEATHER], "models": ["sim:m"], "lenses": ["RPL", "HEL"], "B": 200}
    site.state.jobs.submit(LOCAL, MeasureRequest.parse(values))
    asyncio.run(Worker(site.store, site.state.settings).run_until_idle())
    again = board.read()
    assert again.complete
    assert [anomaly.claim for anomaly in again.found] == [WEATHER]


def test_a_feed_that_rests_says_that_it_is_behind(site):
    """Ranking never takes more than its share; meanwhile the old feed stands."""
    board = AnomalyBoard(site.store, wait_s=20)
    board.read()
    board._rested_at = float("inf")
    values = {"claims": ["Tea is a drink."], "models": ["mock:m"], "B": 200}
    site.state.jobs.submit(LOCAL, MeasureRequest.parse(values))
    asyncio.run(Worker(site.store, site.state.settings).run_until_idle())
    assert not board.read().complete


def test_colours_of_pages_are_those_of_charts():
    """One lens, one colour, in both themes."""
    from heretix.report.charts.theme import DARK, LIGHT

    css = theme_css()
    assert f"--hx-hel:{LIGHT.colour('HEL')}" in css
    assert f"--hx-hel:{DARK.colour('HEL')}" in css
    assert "data-theme=dark" in css
