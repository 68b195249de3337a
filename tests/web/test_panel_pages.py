"""Panels in the web app: the list, and one panel's beliefs over time."""

import json

from heretix.core.event_loop import run_async
from heretix.core.settings import Settings
from heretix.measurement.service import Results, measure
from heretix.studies.panel import keep_wave, load_panel, prepare_panel, prepare_wave

ODD = "<b>Tar</b> & feathers are light."
CLAIMS = ["Tea is a drink.", "Salt is sweet.", "Rust is red.", "Tar is thin.", ODD]


def run_wave(store, panel):
    wave, measurement = run_async(prepare_wave(panel, prepare_panel(panel, Settings()), store))
    results = Results()
    run_async(measure(measurement, store, results))
    keep_wave(panel, store, wave, results.executions.values())


def test_a_panel_is_listed_and_shows_what_moved(site, tmp_path):
    """The findings in words, a drawing for every claim, and no text that becomes markup."""
    assert "No panel has a wave here yet" in site.get("/panels").text
    file = tmp_path / "panel.yaml"
    model = "sim:some?drift=0.9&since=3&drifting=0.3"
    content = {"name": "weekly", "models": [model], "claims": CLAIMS, "horizon": 10, "B": 100}
    file.write_text(json.dumps(content))
    panel = load_panel(file)
    for _ in range(6):
        run_wave(site.store, panel)
    assert 'href="/panels/weekly"' in site.get("/panels").text
    answer = site.get("/panels/weekly")
    assert answer.status_code == 200
    moved = answer.text.partition("<h2>What moved</h2>")[2]
    words, _, numbers = moved.partition("<details>")
    assert "belief in “" in words
    assert "log-odds" not in words
    assert "this claim moved" in numbers.partition("</details>")[0]
    assert "log-odds" not in numbers.partition("</details>")[2]
    assert "since wave 3" in answer.text
    assert answer.text.count('aria-label="p(true) by wave') == len(CLAIMS)
    assert "<b>Tar" not in answer.text
    assert "&lt;b&gt;Tar&lt;/b&gt; &amp; feathers" in answer.text
    # The page's policy allows no style of its own.
    assert "style=" not in answer.text


def test_an_unknown_panel_is_not_found(site):
    """404, and an address that can't be a name is refused, too."""
    assert site.get("/panels/nowhere").status_code == 404
    assert site.get("/panels/%3Cb%3E").status_code == 422
