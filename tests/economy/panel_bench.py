"""A panel of simulated models for tests: what they believe, and how evidence moves them, is planted.

A bundle here is real: it is made, stored, loaded and shown as the command line does it.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import date

from playing import make_terms

from heretix.core.canonical import sha256_text
from heretix.core.settings import Settings
from heretix.economy.episode.state import Challenge, Direction, Fate, State, draft_episode
from heretix.economy.judging.panel import Panel
from heretix.economy.rewards import Step
from heretix.evidence.bundle import dump_bundle
from heretix.evidence.document import Document
from heretix.evidence.retrieval import retrieve_provided
from heretix.prompts.bank import load_bank
from heretix.store.bundles import save_bundle

CLAIM = "Tin whiskers cause short circuits in satellites."
PAPER = "Three satellites were lost to tin whiskers, the review board found in its 1998 report."
REPLY = "A later count by the operator put the number of such losses at four out of ninety."


def bundle_of(*texts: str, claim: str = CLAIM, title: str = "A report"):
    """A bundle of provided documents."""
    documents = [
        Document(
            doc_id=sha256_text(text)[:16],
            url=None,
            title=title,
            text=text,
            author=None,
            published=date(2020, 1, 1),
            published_method="metadata",
            published_confidence=1.0,
            retrieved_at="2026-11-15T00:00:00Z",
            raw_sha256=sha256_text(text),
            text_sha256=sha256_text(text),
        )
        for text in texts
    ]
    return retrieve_provided(claim, documents)


class Bench:
    """One store, one panel, and episodes in the state that a test needs."""

    def __init__(self, store, **settings) -> None:
        self.store = store
        self.panel = Panel(store, Settings(**settings))

    def keep(self, *bundles) -> None:
        for bundle in bundles:
            text = dump_bundle(bundle)
            self.store.write(save_bundle, bundle.bundle_id, bundle.claim, bundle.lens, text)

    def episode(self, *, models=("sim:lens?hel=1.0&any_text=0",), judges=(), name="ep-1", **terms):
        """A frozen episode without challenges, before these judges."""
        bank = load_bank("rpl_v1")
        found = make_terms(
            **{
                "claim": CLAIM,
                "lens": "HEL",
                "bank_sha256": bank.sha256,
                "models": tuple(models),
                "B": 500,
                **terms,
            }
        )
        drafted = draft_episode(name, found)
        return replace(drafted, state=State.FROZEN, terms_hash=found.hash(), judges=tuple(judges))

    def challenged(self, episode, *bundles, direction=Direction.UP, fate=Fate.REVEALED):
        """The episode with these bundles revealed, one a challenge."""
        self.keep(*bundles)
        challenges = tuple(
            Challenge(
                number=number,
                account=f"user:p{number}:PLAY",
                direction=direction,
                commitment=sha256_text(str(number)),
                stake=1_000,
                at_ms=2_000,
                least=1_000,
                bundle_sha256=bundle.bundle_id,
                fate=fate,
            )
            for number, bundle in enumerate(bundles)
        )
        return replace(episode, challenges=challenges)

    def accepted(self, episode, *bundles):
        """The episode with these bundles on its credited path."""
        episode = self.challenged(episode, *bundles, fate=Fate.ACCEPTED)
        steps = tuple(
            Step(
                number=number,
                account=f"user:p{number}:PLAY",
                evidence=bundle.bundle_id,
                c_from_ppm=500_000,
                c_to_ppm=500_000,
                bond=1_000,
            )
            for number, bundle in enumerate(bundles)
        )
        return replace(episode, steps=steps)

    def open(self, episode):
        return asyncio.run(self.panel.open(episode.id, episode.terms, episode.terms.models))

    def measure_gate(self, episode, number=0, **options):
        return asyncio.run(self.panel.measure_gate(episode, number, **options))

    def judge(self, episode, stage="first", **options):
        return asyncio.run(self.panel.judge(episode, stage, **options))
