"""The demonstration world: made by the same parts as a real one, and marked wherever it shows."""

from __future__ import annotations

import hashlib
import heapq
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from heretix.accounts import LOCAL, People
from heretix.config import RunConfig
from heretix.core.clock import HeldClock, SystemClock
from heretix.core.errors import ConflictError
from heretix.core.event_loop import run_async
from heretix.core.lenses import HEL, WITHOUT_FILES
from heretix.economy.episode.challenges import SECRET_BYTES, evidence_commitment
from heretix.economy.episode.state import Ground, Parameters, State
from heretix.economy.exchange import Exchange
from heretix.economy.exploration_service import ExplorationService
from heretix.economy.judging.gate import Direction
from heretix.economy.judging.panel import Panel
from heretix.economy.judging.workflow import DAY_MS, EpisodeWorkflow, Proposal
from heretix.economy.ledger import PLAY, user_account
from heretix.economy.market import Side
from heretix.evidence.bundle import Bundle, dump_bundle
from heretix.evidence.demo import demo_documents
from heretix.evidence.retrieval import retrieve_provided
from heretix.jobs import Jobs, JobState, MeasureRequest, Worker
from heretix.measurement.service import prepare
from heretix.store.documents import save_bundle
from heretix.store.runs import count_runs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from heretix.core.clock import Clock
    from heretix.core.settings import Settings
    from heretix.store import Store

# The marks of a store that holds the demonstration: pages say so, and it is made only once.

_FILLED: Final = "demo.fill"
_WHOLE: Final = "demo.end"


def mark(store: Store) -> None:
    """Note in the audit log that a demonstration is put here."""
    People(store).audit.write(_FILLED, by=LOCAL)


def is_marked(store: Store) -> bool:
    """Whether a demonstration was put here."""
    return bool(People(store).audit.entries(what=_FILLED, limit=1))


def mark_whole(store: Store) -> None:
    """Note in the audit log that all of the demonstration is here."""
    People(store).audit.write(_WHOLE, by=LOCAL)


def is_whole(store: Store) -> bool:
    """Whether a demonstration was put here, and nobody stopped it."""
    return bool(People(store).audit.entries(what=_WHOLE, limit=1))


# What the demonstration measures: claims, lenses, and one recipe again and again.
#
# Every model here is planted, made up or embedded, and has `demo` in its name where it can have
# one.

EXERCISE: Final = "Regular moderate exercise lowers resting heart rate."
HANDWASHING: Final = "Handwashing with soap reduces the spread of diarrhoeal disease."
WALL: Final = "The Great Wall of China is visible to the naked eye from the Moon."
DST: Final = "Daylight saving time reduces electricity consumption."
"""The claims that the packaged documents are about."""
_COFFEE: Final = "Coffee beans are the seeds of a fruit."

LENS_MODEL: Final = "sim:demo-reader?prior=0.72&mel=0.3&hel=-1.7&template_sd=0.12&noise_sd=0.1"
"""A model that heterodox documents move far, so that there is something to find."""
_SECOND: Final = "sim:demo-sceptic?prior=0.35&mel=0.9&hel=-0.4&template_sd=0.15&noise_sd=0.1"
_EMBEDDED: Final = "smollm2-135m"

_ALL: Final = WITHOUT_FILES
_REQUESTS: Final[tuple[Mapping[str, Any], ...]] = (
    {
        "claims": (
            _COFFEE,
            "Lightning never strikes the same place twice.",
            "Sharks don't get cancer.",
            "Tin whiskers can cause short circuits in electronics.",
        ),
        "models": ("mock:demo-a", "mock:demo-b"),
        "R": 2,
    },
    {
        "claims": ("Glass is a liquid that flows slowly at room temperature.",),
        "models": ("mock:demo-faulty?not_json=0.2&refused=0.1",),
        "K": 16,
        "R": 2,
    },
    {"claims": (EXERCISE, HANDWASHING, WALL), "models": (_SECOND,), "lenses": _ALL, "K": 16},
    {"claims": (EXERCISE, WALL), "models": (LENS_MODEL,), "lenses": _ALL, "K": 16},
    {
        "claims": (DST,),
        "models": (LENS_MODEL,),
        "lenses": _ALL,
        "K": 16,
        "influence": True,
        "sham": True,
    },
)
_LOST: Final = {"claims": (_COFFEE,), "models": ("mock:demo-out-of-order?rejected=1",)}
_DROPPED: Final = {"claims": ("Bats are blind.",), "models": ("mock:demo-a",)}

_AGAIN: Final = 6
_FIRST_LIMIT: Final = 1024

MEASURED_STEPS: Final = len(_REQUESTS) + 3
"""Steps that `measure_world` tells of."""


def measure_world(
    store: Store, settings: Settings, tell: Callable[[str], None], *, embedded: bool
) -> None:
    """Measure everything, as jobs of the one user of this machine."""
    jobs = Jobs(store, settings)
    for number, values in enumerate(_REQUESTS):
        tell(f"measuring: {MeasureRequest.parse(values).title}")
        _work(jobs, store, settings, {"B": 1000, "R": 1, **values}, key=f"demo {number}")
    tell("a job that fails, and one that is called off")
    _work(jobs, store, settings, _LOST, key="demo lost")
    dropped = jobs.submit(LOCAL, MeasureRequest.parse(_DROPPED), key="demo dropped")
    if dropped.state is JobState.QUEUED:
        jobs.cancel(dropped.id, by=LOCAL)
    tell("one recipe, again and again")
    _measure_again(store, settings)
    tell("the embedded model")
    if embedded and _embedded_is_here(settings):
        # A few samples of a real, tiny model: it shows that the machine works, and knows nothing.
        values = {"claims": (_COFFEE,), "models": (f"local:{_EMBEDDED}",), "K": 8, "R": 1}
        _work(jobs, store, settings, values, key="demo embedded")


def _embedded_is_here(settings: Settings) -> bool:
    """Whether the small model that may come with the package can be asked."""
    from importlib.util import find_spec

    from heretix.providers.gguf import ModelState, status

    there = {ModelState.INSTALLED, ModelState.PULLED}
    return find_spec("xllamacpp") is not None and status(_EMBEDDED, settings).state in there


def _work(
    jobs: Jobs, store: Store, settings: Settings, values: Mapping[str, Any], *, key: str
) -> None:
    jobs.submit(LOCAL, MeasureRequest.parse(values), key=key)
    run_async(Worker(store, settings).run_until_idle())


def _measure_again(store: Store, settings: Settings) -> None:
    """Fresh executions of one recipe, for a chart of how a belief drifts.

    A planted model draws its noise from a sample's identity. Another token limit is another
    identity under the same recipe: answers are drawn anew, and the planted belief stays.
    """
    for number in range(_AGAIN):
        config = RunConfig.parse(
            {
                "models": ("sim:demo-restless?prior=0.6&template_sd=0.2&noise_sd=0.5",),
                "K": 8,
                "R": 1,
                "B": 1000,
                "max_output_tokens": _FIRST_LIMIT + number,
            }
        )
        run_async(prepare(config, settings, claims=[_COFFEE]).run(store))


# The stage that the demonstration's episodes are played on: the real exchange, a held clock.
#
# A script is a generator. It yields when its next move is to happen, in days from now, and makes
# that move when it is called on. All scripts share one clock, so their moves interleave in the
# ledger as those of real episodes would.

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from heretix.core.settings import Settings
    from heretix.store import Store

    Script = Callable[["Stage"], AsyncIterator[float]]


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
        self.track = ExplorationService(store, clock=self._clock)
        self._workflow = EpisodeWorkflow(
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
        drafted = await self._workflow.draft(
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
        self._store.write(
            save_bundle, bundle.bundle_id, bundle.claim, bundle.lens, dump_bundle(bundle)
        )
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
        while await self._workflow.judge_next(episode) is not None:
            pass

    async def measure(self, episode: str) -> None:
        """Have the judges measured, or conclude without: whichever is due."""
        await self._workflow.measure(episode)

    async def rule(self, episode: str) -> None:
        """Have the larger panel measure."""
        await self._workflow.rule(episode)

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
        found = retrieve_provided(claim, arguing[documents])
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


# The demonstration's episodes: one in each state, as they stand today. Days count from now.

FIRST_DAY: Final = -40.0
_SHARKS: Final = "Sharks don't get cancer."
_LIGHTNING: Final = "Lightning never strikes the same place twice."
_UP, _DOWN = Direction.UP, Direction.DOWN
_HERETIC, _ORTHODOX = Side.HERETIC, Side.ORTHODOX
_FIRST, _SCRIPTS_SECOND = slice(0, 1), slice(1, 2)


async def _settled(stage: Stage) -> AsyncIterator[float]:
    """Evidence moved the judges up, and they stayed there: the Heretics win."""
    yield -24.0
    episode = await stage.opened(EXERCISE, _UP)
    stage.bet(episode, ADA, _HERETIC, 400)
    stage.bet(episode, BEN, _ORTHODOX, 350)
    yield -23.0
    sealed = stage.commit(episode, ADA, _UP, _FIRST, units=600)
    stage.bet(episode, CLEO, _HERETIC, 120)
    yield -21.5
    second = stage.commit(episode, EVA, _UP, _SCRIPTS_SECOND, units=300)
    stage.bet(episode, DOV, _ORTHODOX, 200)
    yield -20.0
    stage.reveal(sealed)
    stage.reveal(second)
    # So late in the last day that it most likely comes after the close, and is given back.
    yield -19.01
    stage.bet(episode, DOV, _HERETIC, 900)
    yield -18.0
    await stage.freeze_and_judge(episode)
    await stage.measure(episode)
    yield -11.0
    await stage.measure(episode)
    yield -9.0
    stage.exchange.close(episode)


async def _disputed_and_settled(stage: Stage) -> AsyncIterator[float]:
    """The judges went down, somebody disputed it in vain: the Orthodox win."""
    yield -20.5
    episode = await stage.opened(DST, _DOWN)
    stage.bet(episode, CLEO, _ORTHODOX, 300)
    stage.bet(episode, EVA, _HERETIC, 280)
    yield -19.5
    wrong = stage.commit(episode, DOV, _UP, _FIRST, units=80)
    right = stage.commit(episode, CLEO, _DOWN, _FIRST, units=500)
    yield -18.5
    stage.reveal(wrong)
    stage.reveal(right)
    yield -14.5
    await stage.freeze_and_judge(episode)
    await stage.measure(episode)
    yield -7.5
    await stage.measure(episode)
    yield -7.0
    stage.dispute(episode, EVA, Ground.RECOMPUTATION_MISMATCH, 60)
    yield -6.5
    await stage.rule(episode)
    yield -4.0
    stage.exchange.close(episode)


async def _void(stage: Stage) -> AsyncIterator[float]:
    """Nobody bet against it, so there was nothing to measure for."""
    yield -12.0
    episode = await stage.opened(WALL, _DOWN)
    stage.bet(episode, BEN, _ORTHODOX, 250)
    yield -11.0
    stage.bet(episode, ADA, _ORTHODOX, 75)
    yield -6.0
    await stage.freeze_and_judge(episode)
    await stage.measure(episode)
    yield -3.5
    stage.exchange.close(episode)


async def _disputed(stage: Stage) -> AsyncIterator[float]:
    """Measured twice, and somebody has put money against the result."""
    yield -14.5
    episode = await stage.opened(HANDWASHING, _UP)
    stage.bet(episode, BEN, _HERETIC, 220)
    stage.bet(episode, DOV, _ORTHODOX, 260)
    yield -13.5
    sealed = stage.commit(episode, BEN, _UP, _FIRST, units=400)
    yield -12.5
    stage.reveal(sealed)
    yield -8.5
    await stage.freeze_and_judge(episode)
    await stage.measure(episode)
    yield -1.5
    await stage.measure(episode)
    yield -0.5
    stage.dispute(episode, DOV, Ground.WRONG_LENS_OR_MODEL, 50)


async def _measured(stage: Stage) -> AsyncIterator[float]:
    """Measured twice; until tomorrow the result can be disputed."""
    yield -14.0
    episode = await stage.opened(WALL, _DOWN)
    stage.bet(episode, ADA, _ORTHODOX, 180)
    stage.bet(episode, EVA, _HERETIC, 90)
    yield -13.0
    sealed = stage.commit(episode, ADA, _DOWN, _FIRST, units=350)
    yield -12.0
    stage.reveal(sealed)
    yield -8.0
    await stage.freeze_and_judge(episode)
    await stage.measure(episode)
    yield -1.0
    await stage.measure(episode)


async def _frozen(stage: Stage) -> AsyncIterator[float]:
    """Measured once; the second measurement shows whether it lasts."""
    yield -8.2
    episode = await stage.opened(EXERCISE, _UP)
    stage.bet(episode, DOV, _HERETIC, 140)
    stage.bet(episode, CLEO, _ORTHODOX, 160)
    yield -7.2
    sealed = stage.commit(episode, DOV, _UP, _SCRIPTS_SECOND, units=250)
    yield -6.2
    stage.reveal(sealed)
    yield -2.2
    await stage.freeze_and_judge(episode)
    await stage.measure(episode)


async def _challenge(stage: Stage) -> AsyncIterator[float]:
    """Bets and evidence are taken: one challenge is revealed, another still sealed."""
    yield -2.0
    episode = await stage.opened(DST, _DOWN)
    stage.bet(episode, BEN, _HERETIC, 130)
    stage.bet(episode, CLEO, _ORTHODOX, 210)
    yield -1.2
    sealed = stage.commit(episode, CLEO, _DOWN, _SCRIPTS_SECOND, units=300)
    stage.bet(episode, ADA, _ORTHODOX, 95)
    yield -0.8
    stage.reveal(sealed)
    yield -0.3
    stage.commit(episode, EVA, _UP, _FIRST, units=120)


async def _open(stage: Stage) -> AsyncIterator[float]:
    """Bets are taken; evidence is from tomorrow on."""
    yield -1.0
    episode = await stage.opened(_SHARKS, _UP, begin_after_days=2.0)
    yield -0.6
    stage.bet(episode, EVA, _ORTHODOX, 150)
    yield -0.2
    stage.bet(episode, BEN, _HERETIC, 60)


async def _draft(stage: Stage) -> AsyncIterator[float]:
    """On paper; no money yet."""
    yield -0.1
    await stage.draft(_LIGHTNING, _UP, begin_after_days=1.0)


async def _explored(stage: Stage) -> AsyncIterator[float]:
    """Credits for finding claims that evidence moves a planted model on: practice."""
    yield -16.0
    stage.track.credit(ADA, DST, model=LENS_MODEL, lens=HEL, simulated=True)
    yield -5.0
    stage.track.credit(CLEO, WALL, model=LENS_MODEL, lens=HEL, simulated=True)
    yield -2.5
    stage.track.credit(EVA, EXERCISE, model=LENS_MODEL, lens=HEL, simulated=True)
    yield -0.05
    stage.track.decay()


SCRIPTS: Final[Mapping[str, Script]] = {
    "settled": _settled,
    "disputed, then settled": _disputed_and_settled,
    "void": _void,
    "disputed": _disputed,
    "measured": _measured,
    "frozen": _frozen,
    "in its challenge period": _challenge,
    "open": _open,
    "in draft": _draft,
    "credits": _explored,
}


# Filling a store with the demonstration: what is measured, then what is played.

STEPS: Final = MEASURED_STEPS + len(SCRIPTS)
"""Steps that `fill` tells of."""
_MOST: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What a store holds once it is filled."""

    runs: int
    jobs: int
    episodes: dict[str, int]
    """By state; every state is there."""
    people: tuple[str, ...]
    transfers: int

    def as_dict(self) -> dict[str, Any]:
        """The counts, for programs."""
        return asdict(self)


def fill(
    store: Store,
    settings: Settings,
    *,
    force: bool = False,
    embedded: bool = True,
    clock: Clock | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> World:
    """Put the demonstration into a store. One that holds something is refused unless `force`.

    `embedded` asks the small model that comes with the package, if it is here. `tell` hears of
    each step when it begins or, for an episode, when it is over.
    """
    exchange = Exchange(store, clock=clock or SystemClock())
    _refuse_full(store, settings, exchange, force=force)
    mark(store)
    measure_world(store, settings, tell, embedded=embedded)
    # Now is when the measuring is over: records and moves then follow each other.
    now_ms = (clock or SystemClock()).now_ms()
    stage = Stage(store, settings, now_ms=now_ms, first_day=FIRST_DAY)
    stage.exchange.ensure_house()
    for person in CAST:
        stage.exchange.join(person)
    run_async(play(stage, SCRIPTS, tell))
    mark_whole(store)
    return _counted(store, settings, exchange)


def world_in(store: Store, settings: Settings) -> World | None:
    """What a store holds if the whole demonstration was put there before; else None."""
    if not is_whole(store):
        return None
    return _counted(store, settings, Exchange(store, clock=SystemClock()))


def _refuse_full(store: Store, settings: Settings, exchange: Exchange, *, force: bool) -> None:
    if is_marked(store) and not is_whole(store) and not force:
        raise ConflictError(
            f"`{store.name}` holds a demonstration that was stopped before it was whole; delete "
            "it and start again, or choose another store with --db"
        )
    jobs = Jobs(store, settings)
    if jobs.list(by=LOCAL, state=JobState.QUEUED, limit=1):
        # The demonstration works through the queue of the store, and these might cost money.
        raise ConflictError(
            f"`{store.name}` has jobs that wait; let `heretix worker --once --db {store.name}` do "
            "them, or choose another store with --db"
        )
    holds = (
        store.read(count_runs)
        or People(store).count()
        or jobs.list(by=LOCAL, limit=1)
        or exchange.balances(limit=1)
    )
    if holds and not force:
        raise ConflictError(
            f"`{store.name}` must be empty, and holds something already; choose another store "
            "with --db, or add the demonstration to what is there with --force"
        )


def _counted(store: Store, settings: Settings, exchange: Exchange) -> World:
    return World(
        runs=store.read(count_runs),
        jobs=len(Jobs(store, settings).list(by=LOCAL, limit=_MOST)),
        episodes={state.value: len(exchange.episodes(state=state, limit=_MOST)) for state in State},
        people=CAST,
        transfers=exchange.verify().count,
    )
