"""`heretix panel`: waves that are never served from the cache, and what moved between them."""

import csv
import io
import json
import re
import subprocess
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import yaml

from faultserver import FaultServer, by_prompt, document, redirect, status
from heretix.api import Panel
from heretix.core.clock import utc_text
from heretix.measurement.record import RunRecord
from heretix.measurement.verify import verify_run
from heretix.providers.sim import SimProvider
from heretix.report.share import share_panel, table_csv
from heretix.store import Store, panels
from heretix.store.runs import find_record
from heretix.studies.drift import detect_drifts, measure_cell
from heretix.studies.panel import read_panel

CLAIMS = ["Tea is a drink.", "Salt is sweet.", "Rust is red.", "Tar is thin."]
ANCHORS = [f"Anchor number {n} holds." for n in range(8)]
STORE = "runs/heretix.sqlite"


@pytest.fixture
def panel(folder):
    """Write a panel file; keys given are laid over a small one."""

    def write(model="sim:m", *, anchors=ANCHORS, **keys):
        known = [{"claim": text, "truth": n % 2 == 0} for n, text in enumerate(anchors)]
        content = {
            "name": "p",
            "models": [model] if isinstance(model, str) else model,
            "claims": CLAIMS,
            "anchors": known,
            "horizon": 10,
            "B": 100,
            **keys,
        }
        # JSON is YAML.
        (folder / "panel.yaml").write_text(json.dumps(content))

    return write


def run_waves(heretix, count):
    return [heretix("panel", "run").code for _ in range(count)]


def loaded(heretix, *args):
    return json.loads(heretix("panel", "report", "--json", *args).out)


def drifting(model, texts):
    provider = SimProvider(model.removeprefix("sim:"))
    return [text for text in texts if provider.is_drifting(text)]


def test_nothing_moves_where_nothing_was_planted(heretix, panel):
    """Six waves of noise end with 0 each, and the report says so."""
    panel()
    assert run_waves(heretix, 6) == [0] * 6
    result = heretix("panel", "report")
    assert result.code == 0
    assert "nothing moved" in result.out
    assert "nobody's belief: no movement can be shown: " in result.out.splitlines()[1]
    found = loaded(heretix)
    assert (found["exit_code"], found["findings"]) == (0, [])
    assert len(found["waves"]) == 6


def test_a_panel_without_anchors_says_what_it_cannot_tell(heretix, panel):
    """Claims that all move together may be taken for noise: who reads `nothing moved` knows."""
    for name, anchors, said in (("bare", (), True), ("held", ANCHORS, False)):
        panel(anchors=anchors, name=name)
        assert run_waves(heretix, 2) == [0, 0]
        told = " ".join(heretix("panel", "report").out.split())
        assert ("no anchors: claims that all move together" in told) is said


def test_a_report_takes_a_panel_by_its_name_and_by_its_file(heretix, panel, folder):
    """A folder called like the panel, as a published site is, hides nothing."""
    panel()
    assert run_waves(heretix, 1) == [0]
    assert heretix("panel", "publish", "p").code == 0
    for ref in ("p", "panel.yaml"):
        result = heretix("report", ref, "-o", "p.html")
        assert (result.code, result.out[:8]) == (0, "panel p:"), result.err
    (folder / "c.yaml").write_text("claim: Tea.\n")
    refused = heretix("report", "c.yaml", "-o", "c.html")
    assert (refused.code, "`c.yaml` line 1: unknown key `claim`" in refused.err) == (2, True)


def test_a_claim_that_moved_is_found_with_its_start_and_its_size(heretix, panel):
    """Claims that don't move aren't accused, and the anchors stay silent."""
    model = "sim:some?drift=0.9&since=4&drifting=0.3"
    moving = drifting(model, CLAIMS)
    steady = [text for text in (f"Anchor {n}." for n in range(40)) if not drifting(model, [text])]
    assert 0 < len(moving) < len(CLAIMS)
    panel(model, anchors=steady[:8])
    assert run_waves(heretix, 4) == [0] * 4
    assert run_waves(heretix, 3)[-1] == 1
    found = loaded(heretix)
    moved = [s for s in found["series"] if s["movement"] and s["movement"]["drifted"]]
    assert [s["claim"] for s in moved] == moving
    for series in moved:
        movement = series["movement"]
        assert 4 in movement["since_waves"]
        assert movement["size"]["lo"] < 0.9 < movement["size"]["hi"]
        assert movement["since_at"] == found["waves"][movement["since_wave"]]["started_at"]
    assert not found["models"][0]["movement"]["drifted"]
    shown = heretix("panel", "report")
    assert shown.code == 1
    assert "this claim moved" in shown.out
    assert "the model moved" not in shown.out


def test_a_common_shift_is_the_models_and_not_the_claims(heretix, panel):
    """Anchors that move together say that the model moved; no claim is accused."""
    panel("sim:all?drift=0.9&since=4", T=8)
    assert run_waves(heretix, 10)[-1] == 1
    found = loaded(heretix)
    assert found["models"][0]["movement"]["drifted"]
    assert not any(s["movement"] and s["movement"]["drifted"] for s in found["series"])
    assert "the model moved" in heretix("panel", "report").out


def test_an_anchor_that_moves_by_itself_is_left_out(heretix, panel):
    """It is named, and moves neither the model nor the claims."""
    model = "sim:one?drift=1.5&since=3&drifting=0.15"
    moving = drifting(model, [f"Fact {n}." for n in range(60)])[:1]
    steady = [f"Fact {n}." for n in range(60) if not drifting(model, [f"Fact {n}."])]
    still = [text for text in (f"Claim {n}." for n in range(20)) if not drifting(model, [text])][:3]
    panel(model, anchors=[*moving, *steady[:8]], claims=still)
    assert run_waves(heretix, 6) == [0] * 6
    assert [s["claim"] for s in loaded(heretix)["series"] if s["left_out"]] == moving


def test_a_wave_with_answers_of_0_or_1_has_both_intervals_of_its_records(
    heretix, panel, folder, monkeypatch
):
    """Everywhere: in the terminal, as data, on the page, in the CSV and in the frame."""
    monkeypatch.setenv("COLUMNS", "300")
    models = ["sim:sure?prior=0.9999999&noise_sd=1", "sim:torn?prior=0.9&template_sd=8"]
    panel(models, anchors=[], claims=CLAIMS[:2])
    run_waves(heretix, 1)
    with Store.open(STORE) as store:
        report = read_panel(store, "p")
        found = {series.points[0].execution_id: series.points[0] for series in report.series}
        stored = [store.read(find_record, execution) for execution in found]
    records = [RunRecord.model_validate_json(one.record_json) for one in stored]
    assert {record.beside.clamp_sensitive for record in records} == {True, False}
    assert all(record.beside.n_extreme for record in records)
    rows = [one["points"][0] for one in loaded(heretix)["series"]]
    assert rows == Panel(report).to_frame(as_="arrow").select(list(rows[0])).to_pylist()
    table = list(csv.DictReader(io.StringIO(table_csv(share_panel(report)).decode())))
    for name in ("t_lo", "t_hi", "extreme_share", "center_clamped"):
        assert [float(line[name]) for line in table] == [row[name] for row in rows]
    terminal = heretix("panel", "report").out
    heretix("panel", "publish", "site")
    page = (folder / "site" / "index.html").read_text()
    for record, row in zip(records, rows, strict=True):
        beside = record.beside
        assert (row["t_lo"], row["t_hi"]) == beside.template_t.ci95
        assert (row["ci_lo"], row["ci_hi"]) == record.aggregates.ci95
        assert row["extreme_share"] == beside.extreme_share
        assert row["center_clamped"] == beside.center_clamped
        assert row["clamp_sensitive"] == beside.clamp_sensitive
        share = f"{beside.extreme_share:.0%}"
        by_t = f"[{row['t_lo']:.3f}, {row['t_hi']:.3f}]"
        assert by_t in terminal
        assert share in terminal
        assert f"by t {by_t}, {share} exactly 0 or 1" in page
        assert f"{share} of answers exactly 0 or 1" in page
    clamped = sum(record.beside.clamp_sensitive for record in records)
    assert terminal.count("clamp-sensitive") == 2 * clamped  # first and last
    assert page.count("clamp-sensitive: ") == clamped


def test_the_report_is_the_drift_test_on_the_records_of_the_waves(heretix, panel):
    """Cells and e-values are made again from the records, which later waves leave as they were."""
    panel(anchors=[])
    run_waves(heretix, 4)
    with Store.open(STORE) as store:
        report = read_panel(store, "p")
        rows = []
        for series in report.series:
            rows.append([])
            for point in series.points:
                stored = store.read(find_record, point.execution_id)
                record = RunRecord.model_validate_json(stored.record_json)
                assert verify_run(record).ok
                assert record.usage.from_cache == 0
                assert point.beside == record.beside
                probs = {}
                for sample in record.samples:
                    probs.setdefault(sample.paraphrase_idx, []).append(sample.prob_true)
                rows[-1].append([measure_cell(probs[index]) for index in range(16)])
    (expected,) = detect_drifts([(np.array(rows), None)], horizon=10)
    assert [s.movement.e_value for s in report.series] == [d.e_value for d in expected.claims]
    # Each wave was asked anew: no two of them are alike.
    assert len({str(wave) for wave in rows[0]}) == 4


def test_a_wave_that_was_stopped_goes_on_with_exactly_what_is_missing(heretix, panel, provider):
    """Nothing is paid for twice in a wave, and nothing is taken over from the wave before."""
    panel("openai-compatible:m", concurrency=1)
    calls = 16 * (len(CLAIMS) + len(ANCHORS))
    assert heretix("panel", "run").code == 0
    assert len(provider.calls) == calls
    provider.calls.clear()
    provider.script(*[by_prompt()] * 21, status(401))
    stopped = heretix("panel", "run")
    assert (stopped.code, len(provider.calls)) == (3, 22)
    status_now = heretix("panel", "status").out
    assert "wave 1" in status_now
    assert "not finished" in status_now
    assert heretix("panel", "run").code == 0
    assert len(provider.calls) == 22 + calls - 21
    waves = json.loads(heretix("panel", "status", "--json").out)["waves"]
    assert [wave["wave"] for wave in waves] == [0, 1]
    assert all(wave["finished_at"] for wave in waves)
    # An ordinary run may use what a wave paid for.
    provider.calls.clear()
    heretix("run", CLAIMS[0], "-m", "openai-compatible:m", "-K", 16, "-R", 1, "-T", 16)
    assert provider.calls == []


def test_a_model_that_answers_nothing_leaves_the_wave_open(heretix, panel, provider):
    """Exit 3, and the next run measures the same wave."""
    panel("openai-compatible:m", claims=CLAIMS[:1], anchors=[])
    provider.always(status(400))
    result = heretix("panel", "run", "--junit", "j.xml")
    assert result.code == 3
    assert "stays open" in result.err
    case = ET.parse("j.xml").getroot().find("testcase/error")
    assert "stays open" in case.get("message")
    # Nothing was asked to the end: no model is said to have answered badly.
    report = heretix("panel", "report", "--junit", "j.xml")
    assert report.code == 3
    assert "couldn't be read" not in report.out
    assert ET.parse("j.xml").getroot().get("skipped") == "1"
    provider.always(by_prompt())
    assert heretix("panel", "run").code == 0
    assert [wave["wave"] for wave in loaded(heretix)["waves"]] == [0]


def test_answers_at_the_ends_alone_cannot_be_read(heretix, panel, provider):
    """Exit 3: answers of exactly 0 or 1 say nothing about drift."""
    from faultserver import answer

    panel("openai-compatible:m", claims=CLAIMS[:1], anchors=[])
    provider.always(answer('{"prob_true": 1}'))
    result = heretix("panel", "run", "--junit", "out.xml")
    assert result.code == 3
    assert "couldn't be read" in result.out
    assert ET.parse("out.xml").getroot().get("errors") == "1"


def test_a_spent_budget_is_no_drift(heretix, panel, provider, folder, monkeypatch):
    """1 means drift here, so what else would end with 1 ends with 3."""
    prices = "openai-compatible: {models: {m: {input: 1000, output: 1000, as_of: 2026-01-01}}}\n"
    (folder / "prices.yaml").write_text(prices)
    monkeypatch.setenv("HERETIX_PRICES", "prices.yaml")
    panel("openai-compatible:m", budget_usd=0.0001, concurrency=1)
    result = heretix("panel", "run")
    assert result.code == 3
    assert "`budget_usd`" in result.err


def test_another_build_is_an_alert_of_its_own(heretix, panel):
    """It is told with the wave and both names, and moves no exit code."""
    panel("sim:m?renamed=2")
    assert run_waves(heretix, 4) == [0] * 4
    found = loaded(heretix)
    assert [(c["wave"], c["before"], c["after"], c["new"]) for c in found["served"]] == [
        (2, ["m"], ["m-next"], False)
    ]
    assert "another model answers" in heretix("panel", "report").out


def test_junit_tells_of_another_build_and_fails_nothing(heretix, panel, folder):
    """A claim whose name reads like that finding is a case, and no change of a build."""
    panel("sim:some?renamed=1&drift=0.9&since=1", claims=["another model answers as x."])
    assert heretix("panel", "run").code == 0
    heretix("panel", "run", "--junit", "j.xml")
    told = ET.parse(folder / "j.xml").getroot().findtext("system-out").splitlines()
    assert [line.partition(" since ")[0] for line in told] == ["another model answers as some"]


def test_findings_are_posted_when_they_are_new(heretix, panel, monkeypatch):
    """Once, in the wave that brought them; quiet waves post nothing."""
    with FaultServer() as hook:
        hook.always(document({}))
        monkeypatch.setenv("HOOK", f"{hook.origin}/other/secret")
        panel("sim:m?renamed=2", webhook="$HOOK")
        assert run_waves(heretix, 4) == [0] * 4
        assert [call.body["wave"] for call in hook.calls] == [2]
        sent = hook.calls[0].body
        assert sent["exit_code"] == 0
        assert sent["served"] == [
            {"model": "sim:m?renamed=2", "wave": 2, "after": ["m-next"], "new": True}
        ]
        assert "another model answers" in sent["text"]


@pytest.mark.parametrize("outcome", [status(500), redirect("http://127.0.0.1:1/")])
def test_findings_that_cannot_be_sent_are_told_of(heretix, panel, monkeypatch, outcome):
    """Exit 3 where nothing moved; the wave is kept, and the secret path isn't printed."""
    with FaultServer() as hook:
        hook.always(outcome)
        panel("sim:m?renamed=1", webhook=f"{hook.origin}/other/secret")
        codes = run_waves(heretix, 1)
        result = heretix("panel", "run")
    assert (codes, result.code) == ([0], 3)
    assert "weren't sent" in result.err
    assert "secret" not in result.err
    assert len(loaded(heretix)["waves"]) == 2


def test_junit_has_a_case_for_every_claim(heretix, panel, folder):
    """Skipped before there are two waves, failed where one moved, whatever characters it has."""
    odd = 'A <claim> & "more" ]]>.'
    model = "sim:some?drift=0.9&since=3&drifting=0.3"
    failing = len(drifting(model, CLAIMS))
    panel(model, anchors=[], claims=[*CLAIMS, odd])
    assert heretix("panel", "run", "--junit", "j.xml").code == 0
    suite = ET.parse(folder / "j.xml").getroot()
    assert (suite.get("tests"), suite.get("skipped"), suite.get("failures")) == ("5", "5", "0")
    run_waves(heretix, 5)
    assert heretix("panel", "report", "--junit", "j.xml").code == 1
    suite = ET.parse(folder / "j.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("5", str(failing))
    assert "since wave 3" in suite.find("testcase/failure").get("message")


@pytest.mark.parametrize(
    ("keys", "changed"),
    [
        ({"claims": CLAIMS[:3]}, "`claims`"),
        ({"model": "sim:other"}, "`models`"),
        ({"horizon": 11}, "`horizon`"),
        ({"T": 8, "K": 16}, "`T`"),
        ({"temperature": 0.5}, "`temperature`"),
    ],
)
def test_a_panel_that_changed_is_refused(heretix, panel, keys, changed):
    """Waves compare only with the same; nothing is measured."""
    panel()
    run_waves(heretix, 1)
    panel(**keys)
    result = heretix("panel", "run")
    assert result.code == 2
    assert changed in result.err
    assert "another `name`" in result.err
    panel(concurrency=2, webhook="$UNUSED")
    assert heretix("panel", "report").code == 0


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"name": "a b"}, "`name`"),
        ({"claims": []}, "`claims` is empty"),
        ({"anchors": ANCHORS[:3]}, "at least 5, got 3"),
        ({"anchors": [*ANCHORS, CLAIMS[0]]}, "stands twice"),
        ({"clams": []}, "unknown key `clams`"),
        ({"K": 4}, "`K` must be at least `T`"),
        ({"T": 99}, "at most the 16"),
        ({"horizon": 0}, "`horizon`"),
        ({"webhook": "ftp://x"}, "`webhook`"),
        ({"webhook": "$NOT_SET_ANYWHERE"}, "NOT_SET_ANYWHERE"),
        ({"model": "sim:m?drift=x"}, "drift=x"),
    ],
)
def test_a_mistake_in_the_file_is_told_at_once(heretix, panel, folder, keys, message):
    """Exit 2, with the rule; no store is made."""
    panel(**keys)
    result = heretix("panel", "run")
    assert (result.code, message in result.err) == (2, True), result.err
    assert not (folder / STORE).exists()


def test_junit_that_cannot_be_written_is_refused_before_a_wave(heretix, panel, folder):
    """Exit 2 with the option; a wave that was paid for isn't lost to CI."""
    panel()
    result = heretix("panel", "run", "--junit", ".")
    assert result.code == 2
    assert "`--junit` must be a file" in result.err
    assert not (folder / STORE).exists()


def test_there_is_no_report_before_the_first_wave(heretix, panel, folder):
    """Looking makes no store; the message says what to do."""
    panel()
    assert "no wave yet" in heretix("panel", "status").out
    result = heretix("panel", "report")
    assert result.code == 2
    assert "heretix panel run" in result.err
    assert not (folder / STORE).exists()


def test_models_and_lenses_are_told_apart(heretix, panel):
    """Each has its anchors; a lens without documents needs none gathered."""
    panel(["sim:a", "sim:b?drift=0.9&since=4"], lenses=["RPL", "NUL"], T=4, claims=CLAIMS[:1])
    assert run_waves(heretix, 10)[-1] == 1
    moved = {(m["model"], m["lens"]): m["movement"]["drifted"] for m in loaded(heretix)["models"]}
    assert moved == {
        ("sim:a", "RPL"): False,
        ("sim:a", "NUL"): False,
        ("sim:b?drift=0.9&since=4", "RPL"): True,
        ("sim:b?drift=0.9&since=4", "NUL"): True,
    }


@pytest.mark.parametrize(
    "told", [lambda _: utc_text(0), lambda ended: ended], ids=["back", "still"]
)
def test_a_wave_begins_after_the_one_before_whatever_the_clock_says(tmp_path, monkeypatch, told):
    """With a clock that was set back or stands still, no earlier answer can pass for a new one."""
    row = panels.PanelRow(panel="p", fixed_json="{}", bundles_json="[]", created_at="x")
    with Store.open(str(tmp_path / "s.sqlite")) as store:
        store.write(panels.save_panel, row)
        first = store.write(panels.begin_wave, "p")
        assert store.write(panels.begin_wave, "p") == first
        store.write(panels.finish_wave, "p", 0, [])
        ended = store.read(panels.select_waves, "p")[0].finished_at
        monkeypatch.setattr(panels, "utc_now", lambda: told(ended))
        second = store.write(panels.begin_wave, "p")
    assert second.wave == 1
    assert second.started_at > ended


def test_init_writes_a_panel_that_runs(heretix, folder):
    """With 20 anchors; a file that is there is never written over."""
    made = heretix("panel", "init", "my panel.yaml", "-m", "sim:m")
    assert made.code == 0, made.err
    assert "20 anchors" in made.out
    assert heretix("panel", "init", "my panel.yaml").code == 2
    assert heretix("panel", "run", "my panel.yaml").code == 0
    (folder / "c.txt").write_text("One.\nTwo.\n")
    made = heretix("panel", "init", "b.yaml", "-m", "sim:m", "--claims", "c.txt", "--json")
    assert json.loads(made.out) == {"file": "b.yaml", "claims": 2, "anchors": 20}
    assert heretix("panel", "init", "c.yaml", "--claims", "none.txt").code == 2
    assert not (folder / "c.yaml").exists()


def test_a_site_opens_offline_and_says_what_the_report_says(heretix, panel, folder):
    """One page without a script or an address of anybody, its data, and JUnit; text stays text."""
    model = "sim:some?drift=0.9&since=3&drifting=0.3"
    panel(model, anchors=[], claims=[*CLAIMS, "<script>alert(1)</script> is a claim."])
    run_waves(heretix, 6)
    result = heretix("panel", "publish", "site")
    assert result.code == 0, result.err
    page = (folder / "site" / "index.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert not re.findall(r"""(?:src|href)=["']?(?:https?:)?//""", page)
    assert "default-src 'none'" in page
    for claim in drifting(model, CLAIMS):
        assert f"this claim moved: &#39;{claim}&#39;" in page
    assert page.count("<svg") == 5
    # Six waves have a dot and an interval each, and what moved has a shaded start.
    assert page.count("<circle") == 30
    assert page.count("<rect") == len(drifting(model, CLAIMS))
    assert json.loads((folder / "site" / "panel.json").read_text()) == loaded(heretix)
    assert ET.parse(folder / "site" / "panel.xml").getroot().get("tests") == "5"


def test_a_schedule_is_a_cron_line_and_a_recipe(heretix, panel, folder):
    """The recipe is YAML that runs the same command; a percent sign is escaped for cron."""
    panel()
    (folder / "sub: #").mkdir()
    (folder / "panel.yaml").rename(folder / "sub: #" / "a 5% panel.yaml")
    file = "sub: #/a 5% panel.yaml"
    lines = set()
    for every, when in (("hour", "23 * * * *"), ("week", "23 5 * * 1")):
        made = json.loads(heretix("panel", "schedule", file, "--every", every, "--json").out)
        assert made["cron"].startswith(f"{when} cd {folder} && ")
        assert r"heretix panel run 'sub: #/a 5\% panel.yaml' --junit panel.xml" in made["cron"]
        lines.add(made["cron"].removeprefix(f"{when} ").replace(r"\%", "%"))
        recipe = yaml.safe_load(made["ci"])
        # YAML reads a bare `on` as true.
        assert recipe[True]["schedule"] == [{"cron": when}]
        steps = recipe["jobs"]["wave"]["steps"]
        assert f"heretix panel run '{file}' --junit panel.xml" in [s.get("run") for s in steps]
    # As cron runs it: from elsewhere, with next to no environment.
    (line,) = lines
    bare = {"PATH": "/usr/bin:/bin", "HOME": str(folder)}
    assert subprocess.run(["/bin/sh", "-c", line], cwd="/", env=bare, check=False).returncode == 0
    assert ET.parse(folder / "panel.xml").getroot().get("skipped") == "5"
    assert "wave 0" in heretix("panel", "status", file).out
    assert "crontab -e" in heretix("panel", "schedule", file).out
