"""Bundles from live services, addresses and judges: over HTTP, on loopback."""

import asyncio
import json
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import pytest
from aiohttp import web
from documents import document
from localsite import Site

from faultserver import FaultServer, answer, answers
from heretix.config import Claim, EvidenceConfig
from heretix.core.errors import ConfigError, InsufficientEvidenceError, ServerError
from heretix.core.settings import Settings
from heretix.evidence.bundle import Stance, dump_bundle, load_bundle
from heretix.evidence.policy.file import load_policy
from heretix.evidence.reliability import find_middle_stance, read_declared_stance
from heretix.evidence.retrieval import Retrieval, retrieve
from heretix.evidence.search import Hit
from heretix.evidence.sources.fetch import FetchOptions
from heretix.evidence.sources.intake import read_file
from heretix.measurement.gather import Network, assess_judged, gather_bundles
from heretix.report.words import stance_text

DST = "Daylight saving time reduces electricity consumption."
PROSE = (
    "Daylight saving time and electricity consumption, part {n}. According to the operator, "
    "households used {n}3% less, as reported for 4,0{n}0 households on 3 May 201{n}. "
    "Critics disagree; limitations of the method are discussed at length in section {n}. "
)


@pytest.fixture
def site():
    with Site() as site:
        yield site


@dataclass
class Found:
    """A search that finds these documents, whatever is asked."""

    documents: list
    name: str = "found"

    async def search(self, _query, _k, **_filters):
        return [
            Hit(url=d.url, title=d.title, snippet="", published=d.published, score=1.0, document=d)
            for d in self.documents
        ]


@dataclass
class Desk:
    """A folder with a store and corpora."""

    folder: Path

    @property
    def settings(self):
        return Settings(
            db=str(self.folder / "heretix.sqlite"),
            env={"HERETIX_CORPORA_DIR": str(self.folder / "corpora")},
        )


@pytest.fixture
def desk(tmp_path):
    return Desk(tmp_path)


def serve(site, *, pages):
    """A metasearch engine whose results are pages of this site, under two names."""
    for n in range(pages):
        body = "".join(
            f"<p>{PROSE.format(n=n)} Unlike others: {'abcde'[n] * 9} {k}.</p>" for k in range(6)
        )
        site.page(f"/page{n}", f"<html><body><article>{body}</article></body></html>")
    hosts = ("localhost", "127.0.0.1")
    results = [
        {
            "url": site.url(f"/page{n}", hosts[n % 2]),
            "title": f"Page {n}",
            "content": "A snippet.",
            "publishedDate": "2020-02-11",
        }
        for n in range(pages)
    ]
    results.append({"url": site.url("/gone"), "title": "Gone", "content": "A snippet."})

    async def search(_site, request):
        first = request.query.get("pageno") == "1"
        return web.json_response({"results": results if first else []})

    site.handle("/search", search)


def gather(desk, config, *, network, lenses=("HEL",), **env):
    settings = Settings(db=desk.settings.db, env={**desk.settings.env, **env})
    found = gather_bundles([Claim(DST)], lenses, config, settings, network=network)
    return asyncio.run(found)


def test_pages_are_read_where_a_service_gives_snippets(site, desk):
    """The bundle holds the pages' text, each fetched once; a page that isn't there is told."""
    serve(site, pages=4)
    network = Network(
        fetch=FetchOptions(allow_private=True, host_delay_s=0.0), service={"min_interval_s": 0.0}
    )
    kept = desk.folder / "kept"
    config = EvidenceConfig(search="searxng", record_to=str(kept), on_request=True)
    bundle = gather(desk, config, network=network, SEARXNG_URL=site.url(""))[DST, "HEL"]
    assert len(bundle.items) >= 3
    assert all("households" in item.text for item in bundle.items)
    assert {item.cls for item in bundle.items} == {"unknown"}
    fetched = [call.path for call in site.calls if call.path.startswith("/page")]
    assert sorted(fetched) == [f"/page{n}" for n in range(4)]
    assert [(d.title, d.reason) for d in bundle.dropped if d.title == "Gone"] == [
        ("Gone", "unread")
    ]
    calls = len(site.calls)
    again = EvidenceConfig(search="searxng", replay_from=str(kept), on_request=True)
    assert gather(desk, again, network=network)[DST, "HEL"] == bundle
    assert len(site.calls) == calls


def test_loopback_pages_are_refused_unless_their_host_is_named(site, desk):
    """A search result must not make this machine call itself."""
    serve(site, pages=4)
    network = Network(fetch=FetchOptions(host_delay_s=0.0), service={"min_interval_s": 0.0})
    config = EvidenceConfig(search="searxng")
    found = gather(desk, config, network=network, SEARXNG_URL=site.url(""))[DST, "HEL"]
    assert isinstance(found, InsufficientEvidenceError)
    assert {dropped.reason for dropped in found.bundle.dropped} == {"unread"}
    assert {call.path for call in site.calls} == {"/search"}


def test_an_address_can_be_a_document_of_ones_own(site, desk):
    """SEL reads addresses too; private ones only of hosts that the user names."""
    site.page("/mine", f"<html><body><p>{PROSE.format(n=1) * 3}</p></body></html>")
    config = EvidenceConfig(documents=(site.url("/mine"),))
    named = gather(
        desk, config, network=None, lenses=("SEL",), HERETIX_PRIVATE_HOSTS="127.0.0.1, other"
    )
    assert "households" in named[DST, "SEL"].items[0].text
    with pytest.raises(ConfigError, match="must be on the public internet"):
        gather(desk, config, network=None, lenses=("SEL",))


def test_documents_about_something_else_are_no_evidence(desk):
    """A local search finds what shares any word; a bundle holds what shares the subject."""
    bundles = gather(desk, EvidenceConfig(corpus="demo"), network=None, lenses=("MEL", "HEL"))
    for lens in ("MEL", "HEL"):
        bundle = bundles[DST, lens]
        assert all("daylight" in item.text.lower() for item in bundle.items)
        assert any(dropped.reason == "off_topic" for dropped in bundle.dropped)


@pytest.mark.parametrize(
    ("claim", "text", "candidate"),
    [
        # A claim of one or two words needs one, of three to five two, of six to eight three.
        ("Clocks lie.", "A clock is a thing with hands.", True),
        ("Dogs chase cats.", "The dog chased a cat around the house.", True),
        ("Dogs chase cats.", "The dog slept in the house all day.", False),
        ("Sugar causes tooth decay.", "What caused the decay was sugary tea.", True),
        ("AI is dangerous.", "Most uses of AI are harmless, says a report.", True),
        ("AI is dangerous.", "The air was clean and the aim was missed.", False),
        # Nothing but little words says nothing about the subject: nothing is held against it.
        ("It is what it is.", "Dogs sleep.", True),
        ("咖啡有益健康", "每天一杯咖啡对健康有什么影响?", True),
        ("咖啡有益健康", "夏令时并没有减少家庭用电量。", False),
        ("Le café réduit le risque.", "Le café ne réduit pas le risque de décès.", True),
    ],
)
def test_what_a_document_must_share_with_a_claim(claim, text, candidate):
    """More than a third of the claim's words, in any form, in any language."""
    how = Retrieval(search=Found([document(text)]), policy=load_policy(), any_word=True)
    bundle = asyncio.run(retrieve(claim, how, ["HEL"]))["HEL"].bundle
    assert any(dropped.reason == "off_topic" for dropped in bundle.dropped) is not candidate


def test_a_corpus_about_something_else_says_so():
    """Where every document is off topic, the message says so and what to do."""
    found = Found([document(f"Dog number {n} chased nothing.", doc_id=f"d{n}") for n in range(5)])
    how = Retrieval(search=found, policy=load_policy(), any_word=True, as_of=date(2025, 1, 1))
    lacking = asyncio.run(retrieve("Dogs prefer expensive red wine.", how, ["MEL"]))["MEL"]
    assert isinstance(lacking, InsufficientEvidenceError)
    assert "dropped: 5 off_topic, up to 2025-01-01" in str(lacking)
    assert "too few words" in str(lacking)


def grades(stance):
    return json.dumps({**dict.fromkeys("PHREA", 0.5), "stance": stance})


def judge_env(server):
    return {"HERETIX_BASE_URL": server.url("openai-compatible")}


def test_a_blinded_judge_grades_and_takes_sides(desk):
    """Class, source and author are never sent; the median of three answers counts."""
    said = {"calls": 0}

    def verdict(call):
        said["calls"] += 1
        text = call.body["messages"][-1]["content"]
        assert DST in text
        assert ".example" not in text
        return grades("refutes" if "increases electricity consumption" in text else "supports")

    with FaultServer() as server:
        server.always(answers(verdict))
        config = EvidenceConfig(corpus="demo", judge="openai-compatible:judge")
        found = gather(desk, config, network=None, lenses=("MEL", "HEL"), **judge_env(server))
    items = [item for bundle in found.values() for item in bundle.items]
    assert {item.stance_by for item in items} == {"judge openai-compatible:judge"}
    sides = {item.publisher: item.stance for item in items}
    assert sides["independent-review.example"] == Stance.REFUTES
    assert sides["contrarian-notes.example"] == Stance.SUPPORTS
    assert all(item.reliability["judged"] for item in items)
    plain = gather(desk, EvidenceConfig(), network=None, lenses=("MEL",))[DST, "MEL"]
    unjudged = {item.doc_id: item.reliability["r"] for item in plain.items}
    assert all(
        item.reliability["r"] > unjudged[item.doc_id] for item in items if item.doc_id in unjudged
    )
    assert said["calls"] % 3 == 0


def test_answers_that_are_no_grades_are_passed_over(desk):
    """One odd answer of three is left out; a judge who never answers is an error."""
    path = desk.folder / "d.md"
    path.write_text("# A trial\n\nWe sampled n=400 people in May 2019.")
    turns = iter(["no", grades("neutral"), grades("neutral")])
    with FaultServer() as server:
        settings = Settings(db=desk.settings.db, env=judge_env(server))
        server.always(answers(lambda call: next(turns)))
        found = asyncio.run(assess_judged(read_file(path), "openai-compatible:judge", settings))
        assert found.judged is not None
        server.always(answers(lambda call: "no"))
        with pytest.raises(ServerError, match="no grades"):
            asyncio.run(assess_judged(read_file(path), "openai-compatible:judge", settings))
        config = EvidenceConfig(corpus="demo", judge="openai-compatible:judge")
        with pytest.raises(ServerError, match="no grades"):
            gather(desk, config, network=None, **judge_env(server))


def test_a_declared_stance_is_one_towards_this_claim(desk):
    """A record names the claim; a document given for it need not; nothing is guessed."""
    path = desk.folder / "d.md"
    front = "---\nstance: Refutes\n{more}---\n\nClocks went forward and the meters stood still.\n"
    path.write_text(front.format(more=f"stance_on: {DST.rstrip('.')}\n"))
    named = read_file(path)
    assert read_declared_stance(named, DST) == Stance.REFUTES
    assert read_declared_stance(named, "Another claim.") is None
    assert read_declared_stance(named, "Another claim.", given=True) is None
    path.write_text(front.format(more=""))
    assert read_declared_stance(read_file(path), DST) is None
    assert read_declared_stance(read_file(path), DST, given=True) == Stance.REFUTES
    path.write_text("---\nstance: maybe\n---\n\nNobody can say.\n")
    assert read_declared_stance(read_file(path), DST, given=True) is None


def test_the_middle_of_several_stances():
    """For and against meet at neutral; a majority wins."""
    supports, refutes, neutral = Stance.SUPPORTS, Stance.REFUTES, Stance.NEUTRAL
    assert find_middle_stance([supports, refutes, neutral]) == neutral
    assert find_middle_stance([supports, refutes, supports]) == supports
    assert (
        find_middle_stance([refutes, neutral]) == find_middle_stance([supports, neutral]) == neutral
    )
    assert find_middle_stance([refutes]) == refutes


def test_a_bundle_says_who_judged_and_nothing_where_nobody_did(desk):
    """Bundles come back whole from a file, and those without judges have no such field."""
    declared = gather(desk, EvidenceConfig(), network=None, lenses=("MEL",))[DST, "MEL"]
    assert {item.stance_by for item in declared.items} == {"declared"}
    assert load_bundle(dump_bundle(declared)) == declared
    (desk.folder / "own.txt").write_text("The meters fell by 2% when the clocks went forward.")
    config = EvidenceConfig(documents=(str(desk.folder / "own.txt"),))
    own = gather(desk, config, network=None, lenses=("SEL",))[DST, "SEL"]
    assert all(item.stance is None for item in own.items)
    assert "stance_by" not in dump_bundle(own)
    assert load_bundle(dump_bundle(own)) == own


def passages(desk):
    """Documents of one's own that say nothing about their stance."""
    texts = {"more": "Daylight saving time increases electricity use.", "other": "Clocks tick."}
    for name, text in texts.items():
        (desk.folder / f"{name}.md").write_text(f"---\ntitle: Secret {name}\n---\n{text}")
    return tuple(str(desk.folder / f"{name}.md") for name in texts)


def test_a_model_places_each_passage_shown_and_nothing_else(desk):
    """One question a passage, with the claim and without source or title; records name it."""

    def read(call):
        text = call.body["messages"][-1]["content"]
        assert DST in text
        assert "Secret" not in text
        return json.dumps({"stance": "refutes" if "increases" in text else "neither"})

    with FaultServer() as server:
        server.always(answers(read))
        config = EvidenceConfig(documents=passages(desk), stance="openai-compatible:reader")
        bundle = gather(desk, config, network=None, lenses=("SEL",), **judge_env(server))[
            DST, "SEL"
        ]
        assert len(server.calls) == 2
    assert [item.stance for item in bundle.items] == [Stance.REFUTES, Stance.NEUTRAL]
    assert {item.stance_by for item in bundle.items} == {"model openai-compatible:reader"}
    assert load_bundle(dump_bundle(bundle)) == bundle
    assert stance_text(bundle.to_json()) == "provided 1 against, 1 neither"


def test_what_a_reader_says_beside_the_point_is_no_stance(desk):
    """An answer that names no stance leaves the passage unjudged; a declared one is not asked."""
    declared = desk.folder / "declared.md"
    declared.write_text("---\nstance: supports\n---\nDaylight saving time reduces use.")
    with FaultServer() as server:
        server.always(answers(lambda call: "It supports the claim."))
        sources = (*passages(desk), str(declared))
        config = EvidenceConfig(documents=sources, stance="openai-compatible:reader")
        bundle = gather(desk, config, network=None, lenses=("SEL",), **judge_env(server))[
            DST, "SEL"
        ]
        assert len(server.calls) == 2
    assert [item.stance for item in bundle.items] == [None, None, Stance.SUPPORTS]
    assert stance_text(bundle.to_json()) == "provided 1 for, 2 not judged"


def test_written_queries_are_kept_and_replayed_with_the_searches(desk):
    """What a model would search for is asked once; a replay calls neither it nor the corpus."""
    queries = ["clocks electricity", "lighter evenings", "no savings", "air conditioning"]
    kept, model = str(desk.folder / "kept"), "openai-compatible:m"
    with FaultServer() as server:
        server.always(answer(json.dumps({"claims": queries})))
        env = judge_env(server)
        config = EvidenceConfig(queries=model, record_to=kept)
        first = gather(desk, config, network=None, lenses=("MEL", "HEL"), **env)
        again = EvidenceConfig(queries=model, replay_from=kept)
        assert gather(desk, again, network=None, lenses=("MEL", "HEL"), **env) == first
        assert len(server.calls) == 1
    assert set(queries) <= set(first[DST, "MEL"].queries.values())
