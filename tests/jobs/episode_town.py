"""An episode to move on by jobs: people who bet, evidence, and workers that die on command."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from heretix.accounts import LOCAL
from heretix.core.canonical import encode
from heretix.core.clock import ManualClock
from heretix.core.settings import Settings
from heretix.economy.episode.challenges import evidence_commitment
from heretix.economy.episode.state import Direction, Ground, Parameters
from heretix.economy.exchange import Exchange
from heretix.economy.judging.workflow import DAY_MS, Proposal
from heretix.economy.ledger import user_account
from heretix.economy.market import Side
from heretix.evidence.bundle import dump_bundle
from heretix.evidence.retrieval import retrieve_provided
from heretix.evidence.sources.extract import make_document, read_stated_fields
from heretix.jobs import EpisodeRequest, Job, Jobs, Worker
from heretix.store import Store
from heretix.store.bundles import save_bundle

if TYPE_CHECKING:
    from heretix.economy.episode.state import Episode

NOW = 1_800_000_000_000
CLAIM = "Tin whiskers cause short circuits in satellites."
PAPERS = (
    "Tin whiskers shorted three satellites in 1998, the review board found in its report.",
    "Tin whiskers caused the short circuits of a fourth satellite, its operator said in 2000.",
)
PROPOSAL = Proposal(
    claim=CLAIM,
    models=("sim:lens?prior=0.4&hel=1.0&any_text=0",),
    judge_pool=tuple(f"sim:judge{n}?prior=0.{n}&hel=0.9&any_text=0" for n in range(2, 9)),
    R=1,
    B=300,
    parameters=Parameters(judges=3),
)


class Town:
    """An exchange, jobs and a clock that stands still."""

    def __init__(self, store: Store, settings: Settings | None = None) -> None:
        self.store = store
        self.settings = settings or Settings()
        self.clock = ManualClock(NOW)
        self.exchange = Exchange(store, clock=self.clock)
        self.jobs = Jobs(store, self.settings)
        self.judge_pool = PROPOSAL.judge_pool

    def propose(self, owner: Any = LOCAL, *, key: str | None = None, **changes: Any) -> Job:
        """Ask for a draft that is opened at once."""
        proposal = replace(PROPOSAL, judge_pool=self.judge_pool, **changes)
        request = EpisodeRequest(
            move="draft",
            claim=proposal.claim,
            models=proposal.models,
            proposal=encode(proposal),
            opens=True,
        )
        return self.jobs.submit(owner, request, key=key)

    def ask(
        self,
        move: Any,
        episode: Episode,
        owner: Any = LOCAL,
        *,
        key: str | None = None,
        **more: Any,
    ) -> Job:
        """Ask for a move of an episode."""
        models = episode.terms.models if move == "judge" else episode.judges
        request = EpisodeRequest(move=move, claim=CLAIM, models=models, episode=episode.id, **more)
        return self.jobs.submit(owner, request, key=key)

    def work(self) -> int:
        """Do all that waits; how many jobs were taken up."""
        worker = Worker(self.store, self.settings, clock=self.clock)
        return asyncio.run(worker.run_until_idle())

    def keep(self) -> int:
        """Have a worker make what is due, and do all that waits then; how many jobs there were."""
        worker = Worker(self.store, self.settings, clock=self.clock, keeps=True)
        return asyncio.run(worker.run_until_idle())

    def opened(self, **changes: Any) -> Episode:
        """An episode that takes bets and evidence."""
        job = self.propose(**changes)
        assert self.work() == 1
        done = self.jobs.get(job.id, by=LOCAL)
        assert done.episode is not None, done.error
        return self.exchange.episode(done.episode)

    def frozen(
        self,
        *,
        papers: int = 1,
        sides: tuple[Side, ...] = tuple(Side),
        models: tuple[str, ...] = PROPOSAL.models,
    ) -> Episode:
        """An episode with bets and evidence, whose close and judges are drawn."""
        episode = self.revealed(papers=papers, sides=sides, models=models)
        self.clock.hold(episode.terms.freeze_at_ms)
        return self.exchange.freeze(episode.id)

    def revealed(
        self,
        *,
        papers: int = 1,
        sides: tuple[Side, ...] = tuple(Side),
        models: tuple[str, ...] = PROPOSAL.models,
    ) -> Episode:
        """An episode with bets and evidence, which is shown already."""
        episode = self.opened(models=models)
        for person, side in zip(("ann", "bob"), sides, strict=False):
            self.exchange.join(person, "PLAY")
            self.exchange.stake(episode.id, person, side, 2_500, min_shares=0, key=person)
        self.exchange.join("cat", "PLAY")
        shown = [self._bring(episode.id, number) for number in range(papers)]
        self.clock.hold(episode.terms.close_until_ms + 1)
        for number, (nonce, sha256) in enumerate(shown):
            hidden = {"nonce": nonce, "bundle_sha256": sha256, "direction": Direction.UP}
            self.exchange.reveal(episode.id, number, "cat", **hidden)
        return episode

    def judged(self) -> Episode:
        """One whose judges are to be measured next."""
        return self.frozen(papers=0)

    def disputed(self) -> Episode:
        """One that was measured twice, and whose result is doubted."""
        episode = self.judged()
        for stage in ("first", "second"):
            self.clock.hold(self.clock.now_ms() + 7 * DAY_MS)
            self.ask("measure", episode, stage=stage)
            assert self.work() == 1
        ground = Ground.WRONG_LENS_OR_MODEL
        self.exchange.dispute(episode.id, "cat", ground=ground, bond=50_000, key="doubt")
        return self.exchange.episode(episode.id)

    def _bring(self, episode_id: str, number: int) -> tuple[bytes, str]:
        text, nonce = PAPERS[number], bytes([number + 1]) * 32
        found = read_stated_fields({"title": f"Report {number}"}, text=text)
        document = make_document(found, raw=text.encode(), url=None, retrieved_at="2026-11-01")
        bundle = retrieve_provided(CLAIM, [document])
        account = user_account("cat", "PLAY").id
        self.exchange.commit(
            episode_id,
            "cat",
            commitment=evidence_commitment(nonce, bundle.bundle_id, Direction.UP, account),
            amount=90_000,
            key=f"evidence {number}",
        )
        self.store.write(save_bundle, bundle.bundle_id, CLAIM, bundle.lens, dump_bundle(bundle))
        return nonce, bundle.bundle_id


def die_at(url: str, at_ms: int, room: str, name: str) -> None:
    """A worker whose process is killed when it is about to do something."""

    def die(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    setattr({"worker": Worker, "exchange": Exchange}[room], name, die)
    with Store.open(url) as store:
        asyncio.run(Worker(store, Settings(), clock=ManualClock(at_ms)).run())


def die_at_second_challenge(url: str, at_ms: int) -> None:
    """A worker whose process is killed when it has judged one challenge."""
    judge = Exchange.judge_challenge

    def die_later(self: Exchange, episode_id: str, number: int, *rest: Any, **more: Any) -> Any:
        if number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return judge(self, episode_id, number, *rest, **more)

    Exchange.judge_challenge = die_later  # type: ignore[method-assign]
    with Store.open(url) as store:
        asyncio.run(Worker(store, Settings(), clock=ManualClock(at_ms)).run())
