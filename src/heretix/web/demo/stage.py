"""The stage that the demonstration's episodes are played on: the real exchange, a held clock.

A script is a generator. It yields when its next move is to happen, in days from now, and makes
that move when it is called on. All scripts share one clock, so their moves interleave in the
ledger as those of real episodes would.
"""

from __future__ import annotations

import hashlib
import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from heretix.economy.accounts import user_account
from heretix.economy.clerk import Clerk
from heretix.economy.clock import HeldClock
from heretix.economy.commitment import SECRET_BYTES, evidence_commitment
from heretix.economy.exchange import Exchange
from heretix.economy.judging import Direction
from heretix.economy.money import PLAY
from heretix.economy.panel import Panel
from heretix.economy.parameters import Parameters
from heretix.economy.proposal import DAY_MS, Proposal
from heretix.economy.track import Track
from heretix.evidence.bundle import Bundle
from heretix.evidence.bundlefile import dump_bundle
from heretix.evidence.demo import demo_documents
from heretix.evidence.retrieval import retrieve_provided

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from heretix.economy.episode import Ground
    from heretix.economy.market import Side
    from heretix.settings import Settings
    from heretix.store import Store

    Script = Callable[["Stage"], AsyncIterator[float]]

__all__ = ["CAST", "Stage", "play"]

ADA, BEN, CLEO, DOV, EVA = CAST = tuple(
    f"{name} (demo)" for name in ("Ada", "Ben", "Cleo", "Dov", "Eva")
)
"""Made-up people, who say so in their names."""

_JUDGES: Final = 3
_POOL: Final = 2 * _JUDGES + 1
"""As many as a dispute draws, so that every round can be filled."""
_STANCE: Final = {Direction.UP: "supports", Direction.DOWN: "refutes"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """Evidence that was committed to and not shown yet."""

    episode: str
    number: int
    person: str
    nonce: bytes
    bundle: Bundle


class Stage:
    """One store, played on from some days ago until `now_ms`."""

    def __init__(self, store: Store, settings: Settings, *, now_ms: int, first_day: float) -> None:
        self.now_ms = now_ms
        self._store = store
        self._clock = HeldClock(now_ms + round(first_day * DAY_MS))
        known = len(Exchange(store, clock=self._clock).episodes(limit=1000))
        self._draws = _Draws(f"demonstration {known}")
        self.exchange = Exchange(store, clock=self._clock, entropy=self._draws)
        self.track = Track(store, clock=self._clock)
        self._clerk = Clerk(
            store, self.exchange, Panel(store, settings), clock=self._clock, settings=settings
        )
        self._moves = 0
        self._documents = tuple(demo_documents())

    def hold(self, day: float) -> None:
        """Move the clock to a day, counted from now."""
        self._clock.hold(max(self._clock.now_ms(), self.now_ms + round(day * DAY_MS)))

    async def draft(
        self, claim: str, direction: Direction, *, begin_after_days: float = 0.0
    ) -> str:
        """Measure what the lens's model believes, and write an episode down."""
        sign = 1 if direction is Direction.UP else -1
        drafted = await self._clerk.draft(
            Proposal(
                claim=claim,
                models=(f"sim:demo-lens?prior=0.5&hel={sign * 0.9}&template_sd=0.2",),
                judge_pool=_judge_pool(sign),
                R=1,
                B=1000,
                challenge_after_ms=round(begin_after_days * DAY_MS),
                challenge_for_ms=5 * DAY_MS,
                candle_ms=DAY_MS,
                reveal_for_ms=DAY_MS,
                parameters=Parameters(judges=_JUDGES),
            )
        )
        return drafted.episode

    async def opened(
        self, claim: str, direction: Direction, *, begin_after_days: float = 0.0
    ) -> str:
        """A draft that is opened at once, for evidence too unless that is to begin later."""
        episode = await self.draft(claim, direction, begin_after_days=begin_after_days)
        self.exchange.open(episode)
        if not begin_after_days:
            self.exchange.begin_challenge(episode)
        return episode

    def bet(self, episode: str, person: str, side: Side, amount: int) -> None:
        """Stake whole units of play money."""
        minor = amount * 10**PLAY.exponent
        self.exchange.stake(episode, person, side, minor, min_shares=0, key=self._key())

    def commit(
        self, episode: str, person: str, direction: Direction, documents: slice, *, units: int = 150
    ) -> Sealed:
        """Commit to some of the packaged documents on the claim that argue that way."""
        terms = self.exchange.episode(episode).terms
        bundle = self._bundle(terms.claim, direction, documents)
        nonce = self._draws(SECRET_BYTES)
        account = user_account(person, terms.currency).id
        taken = self.exchange.commit(
            episode,
            person,
            direction=direction,
            commitment=evidence_commitment(nonce, bundle.bundle_id, account),
            amount=units * 10**PLAY.exponent,
            key=self._key(),
        )
        return Sealed(
            episode=episode, number=taken.number, person=person, nonce=nonce, bundle=bundle
        )

    def reveal(self, sealed: Sealed) -> None:
        """Show what was committed to. The bundle first: whoever judges must find it."""
        bundle = sealed.bundle
        self._store.save_bundle(bundle.bundle_id, bundle.claim, bundle.lens, dump_bundle(bundle))
        self.exchange.reveal(
            sealed.episode,
            sealed.number,
            sealed.person,
            nonce=sealed.nonce,
            bundle_sha256=bundle.bundle_id,
        )

    async def freeze_and_judge(self, episode: str) -> None:
        """Draw the close and the judges, and hear every challenge."""
        self.exchange.freeze(episode)
        while await self._clerk.judge_next(episode) is not None:
            pass

    async def measure(self, episode: str) -> None:
        """Have the judges measured, or conclude without: whichever is due."""
        await self._clerk.measure(episode)

    async def rule(self, episode: str) -> None:
        """Have the larger panel measure."""
        await self._clerk.rule(episode)

    def dispute(self, episode: str, person: str, ground: Ground, units: int) -> None:
        """Put a bond against a result."""
        bond = units * 10**PLAY.exponent
        self.exchange.dispute(episode, person, ground=ground, bond=bond, key=self._key())

    def _bundle(self, claim: str, direction: Direction, documents: slice) -> Bundle:
        arguing = [
            document
            for document in self._documents
            if document.meta["stance_on"] == claim
            and document.meta.get("stance") == _STANCE[direction]
        ]
        found = retrieve_provided(claim, arguing[documents])["SEL"]
        assert isinstance(found, Bundle), "the packaged documents can be shown"
        return found

    def _key(self) -> str:
        self._moves += 1
        return f"demo {self._draws.label} {self._moves}"


class _Draws:
    """Secrets that are drawn alike each time: nothing but play money hangs on them, and so the
    same world comes out."""

    def __init__(self, label: str) -> None:
        self.label = label
        self._count = 0

    def __call__(self, size: int) -> bytes:
        self._count += 1
        return hashlib.shake_256(f"{self.label} {self._count}".encode()).digest(size)


async def play(stage: Stage, scripts: Mapping[str, Script], tell: Callable[[str], None]) -> None:
    """Play all scripts to their end, whoever's move is the earliest first."""
    waiting = []
    for number, (title, script) in enumerate(scripts.items()):
        story = script(stage)
        waiting.append((await anext(story), number, title, story))
    heapq.heapify(waiting)
    while waiting:
        day, number, title, story = heapq.heappop(waiting)
        stage.hold(day)
        try:
            following = await anext(story)
        except StopAsyncIteration:
            tell(f"episode {title}")
            continue
        heapq.heappush(waiting, (following, number, title, story))


def _judge_pool(sign: int) -> tuple[str, ...]:
    """Judges who start from different beliefs and are moved about alike."""
    shifts = (0.7, 0.8, 0.9, 1.0, 0.85, 0.75, 0.95)
    assert len(shifts) == _POOL
    return tuple(
        f"sim:demo-judge-{n}?prior={0.3 + 0.05 * n:.2f}&hel={sign * shift}&template_sd=0.2"
        for n, shift in enumerate(shifts, 1)
    )
