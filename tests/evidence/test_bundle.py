"""Bundles: frozen, content-addressed, verified."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
from datetime import date

import pytest
from documents import STUDY, document, prose

from heretix.core.canonical import canonical_json
from heretix.core.errors import RecordError
from heretix.core.lenses import Limits
from heretix.evidence.bundle import Bundle, Stance, dump_bundle, load_bundle, read_bundle
from heretix.evidence.policy.file import load_policy
from heretix.evidence.retrieval import Candidate, select
from heretix.evidence.text.fold import find_quote, fold


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    """Four items, one of them judged for its stance, and three dropped documents."""
    policy = load_policy()
    texts = [f"{STUDY} {prose(n, 30)}" for n in range(3)]
    texts += [
        f"The rate fell by 12% \u2014 \u201cno more\u201d. See https://x.example/a. {prose(9)}"
    ]
    urls = ["https://www.gov.uk/a", "https://www.cdc.gov/b", "https://www.nature.com/c",
            "https://www.who.int/d", "https://blog.example/e", "https://www.bbc.com/f",
            "https://www.bbc.co.uk/g"]  # fmt: skip
    candidates = []
    for n, url in enumerate(urls):
        text = texts[n] if n < len(texts) else texts[0]
        made = document(text, doc_id=f"d{n}", url=url, published=date(2024, 1, 1 + n))
        candidates.append(
            Candidate(
                document=made,
                classification=policy.classify(url),
                ranks={"neutral": n + 1},
                stance=Stance.REFUTES if n == 1 else None,
            )
        )
    return select(
        candidates,
        claim="The rate fell by 12%",
        lens="MEL",
        policy=policy,
        queries={"affirm": "rate fell", "negate": "rate did not fall", "neutral": "rate"},
        as_of=date(2026, 1, 1),
    )


def test_the_id_is_the_hash_of_the_content(bundle):
    """Anyone can recompute the id from the file with nothing but JSON and SHA-256."""
    content = json.loads(dump_bundle(bundle))
    said = content.pop("bundle_id")
    assert hashlib.sha256(canonical_json(content).encode()).hexdigest() == said == bundle.bundle_id


def test_a_bundle_survives_the_way_out_and_in(bundle):
    """Exported and imported, it is the same bundle."""
    assert load_bundle(dump_bundle(bundle)) == bundle
    assert read_bundle(json.loads(canonical_json(bundle.to_json()))) == bundle


def test_a_tool_that_writes_whole_floats_as_integers_changes_nothing(bundle):
    """1.0 and 1 are one number in JSON, so the id must not tell them apart."""
    item = dataclasses.replace(bundle.items[0], published_confidence=1.0)
    whole = dataclasses.replace(bundle, items=(item, *bundle.items[1:]))
    text = dump_bundle(whole)
    assert '"published_confidence": 1,' in text
    again = load_bundle(text.replace('"published_confidence": 1,', '"published_confidence": 1.0,'))
    assert again.bundle_id == whole.bundle_id


def test_items_say_where_every_word_came_from(bundle):
    """Spans and hashes of each item hold against its document."""
    assert bundle.policy.sha256 == load_policy().sha256
    for item in bundle.items:
        assert item.flaw() is None
        assert item.quote in item.text
        assert item.rule_id is not None
        assert item.text_sha256 == hashlib.sha256(item.text.encode()).hexdigest()
        assert item.quote_sha256 == hashlib.sha256(item.quote.encode()).hexdigest()
    stances = {item.doc_id: item.stance for item in bundle.items}
    assert stances["d1"] is Stance.REFUTES
    assert stances["d2"] is None
    assert {d.doc_id: d.reason.value for d in bundle.dropped} == {
        "d4": "wrong_class", "d5": "duplicate", "d6": "duplicate",
    }  # fmt: skip
    assert bundle.publishers == {"cdc.gov": 1, "gov.uk": 1, "nature.com": 1, "who.int": 1}


def test_a_model_is_shown_plain_text(bundle):
    """No address is shown, and what a model quotes is checked against what it saw."""
    item = next(item for item in bundle.items if item.doc_id == "d3")
    assert "https://" in item.text
    assert "https://" not in item.shown_text
    span = find_quote(item.shown_text, 'The rate fell by 12% - "no more".')
    assert fold(item.shown_text[span.start : span.end]) == 'The rate fell by 12% - "no more".'
    assert find_quote(item.shown_text, "The rate fell by 21%") is None


def leaves(value, path=()):
    """Every place in nested JSON that holds a plain value."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from leaves(part, (*path, key))
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from leaves(part, (*path, index))
    else:
        yield path


def changed(value):
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return "x" if value is None else f"{value}x"


def test_any_change_is_refused(bundle):
    """Whatever single value is changed, in an item or outside, the bundle is refused."""
    original = bundle.to_json()
    for path in leaves(original):
        forged = copy.deepcopy(original)
        place = forged
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = changed(place[path[-1]])
        with pytest.raises(RecordError):
            read_bundle(forged)


def test_a_changed_digit_is_refused_even_with_a_new_id(bundle):
    """Somebody who recomputes the id still has to face the hashes and the quote."""
    index = next(n for n, item in enumerate(bundle.items) if item.doc_id == "d3")
    item = bundle.items[index]
    for changes, message in (
        ({"text": item.text.replace("12%", "21%")}, "`text` isn't what `text_sha256`"),
        ({"quote": item.quote.replace("12%", "21%")}, "`quote` isn't what `quote_sha256`"),
        ({"quote": "The rate fell by 21%",
          "quote_sha256": hashlib.sha256(b"The rate fell by 21%").hexdigest()},
         "`quote` doesn't stand in `text` where"),
        ({"quote_end": item.quote_end - 1}, "`quote` doesn't stand in `text` where"),
        ({"quote_end": len(item.text) + 1}, "don't lie in `text`"),
        ({"text_end": item.text_end + 1}, "isn't as long as"),
        ({"id": "E09"}, "`id` must be E"),
    ):  # fmt: skip
        items = list(bundle.items)
        items[index] = dataclasses.replace(item, **changes)
        forged = dataclasses.replace(bundle, items=tuple(items))
        with pytest.raises(RecordError, match=message):
            load_bundle(dump_bundle(forged))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b.pop("claim"), "`claim` is missing"),
        (lambda b: b.update(extra=1), "unknown key `extra`"),
        (lambda b: b.update(schema="heretix-bundle/9"), "`schema` must be"),
        (lambda b: b.update(items={}), "`items` must be a list, got {}"),
        (lambda b: b.update(as_of="tomorrow"), "`as_of` must be a valid date.*, got 'tomorrow'"),
        (lambda b: b.update(queries=["x"]), "`queries` must be a mapping"),
        (lambda b: b.update(lens=None), "`lens` must be text, got None"),
        (lambda b: b["limits"].update(k=0), "`k` must be at least 1"),
        (lambda b: b["limits"].update(k=True), "`limits.k` must be a whole number, got True"),
        (
            lambda b: b["items"][0].update(cls="great"),
            r"`items\[0\].cls` must be one of `canonical`.*, got 'great'",
        ),
        (lambda b: b["items"][0].update(flags=[1]), r"`items\[0\].flags\[0\]` must be text"),
        (lambda b: b["items"][0].update(text=5), r"`items\[0\].text` must be text, got 5"),
        (lambda b: b["items"][0].pop("quote"), r"`items\[0\].quote` is missing"),
        (lambda b: b["policy"].update(sha256=5), "`policy.sha256` must be text, got 5"),
    ],
)
def test_malformed_bundles_are_refused_with_the_reason(bundle, change, message):
    """A file that isn't a bundle is told what is wrong with it."""
    value = json.loads(dump_bundle(bundle))
    change(value)
    with pytest.raises(RecordError, match=message) as caught:
        read_bundle(value, "evidence.json")
    assert "`evidence.json`" in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "5", "{", "null", "[" * 100_000])
def test_files_that_hold_something_else(text):
    """Any other file is refused without a crash."""
    with pytest.raises(RecordError):
        load_bundle(text)


def test_what_is_shown_has_a_hash_of_its_own(bundle):
    """Equal prompts have equal hashes, whatever else the bundles say; another order has not."""
    later = dataclasses.replace(bundle, dropped=(), as_of=None)
    assert later.bundle_id != bundle.bundle_id
    assert later.shown_sha256 == bundle.shown_sha256
    turned = dataclasses.replace(bundle, items=bundle.items[::-1])
    assert turned.shown_sha256 != bundle.shown_sha256


@pytest.mark.parametrize(
    "values",
    [{"k": 0}, {"chars_per_item": 0}, {"min_items": 0}, {"per_publisher": 0}, {"floor": 1.5}],
)
def test_limits_must_make_sense(values):
    """A limit that lets nothing in is a mistake."""
    with pytest.raises(ValueError, match=f"`{next(iter(values))}` must be"):
        Limits(**values)
