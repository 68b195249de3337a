"""The demonstration world: made by the same parts as a real one, and marked wherever it shows."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from heretix.accounts import LOCAL, People
from heretix.config import RunConfig
from heretix.core.clock import ManualClock, SystemClock
from heretix.core.errors import ConflictError
from heretix.core.event_loop import run_async
from heretix.core.lenses import HEL, WITHOUT_FILES
from heretix.economy.episode.challenges import SECRET_BYTES, evidence_commitment
from heretix.economy.episode.state import Direction, Ground, Parameters, State
from heretix.economy.exchange import Exchange
from heretix.economy.exploration_service import ExplorationService
from heretix.economy.judging.panel import Panel
from heretix.economy.judging.workflow import DAY_MS, EpisodeWorkflow, Proposal
from heretix.economy.ledger import PLAY, user_account
from heretix.economy.market import Side
from heretix.evidence.bundle import Bundle, dump_bundle
from heretix.evidence.demo import demo_documents
from heretix.evidence.retrieval import retrieve_provided
from heretix.jobs import Jobs, JobState, MeasureRequest, Worker
from heretix.measurement.service import Results, measure, prepare
from heretix.store.bundles import save_bundle
from heretix.store.runs import count_runs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from heretix.core.clock import Clock
    from heretix.core.settings import Settings
    from heretix.store import Store

_FILLED: Final = "demo.fill"
_WHOLE: Final = "demo.end"
"""Entries of the audit log: a demonstration was begun here, and all of it is here."""


def is_marked(store: Store, mark: str = _FILLED) -> bool:
    """Say whether a demonstration was put here: pages say so, and it is made only once."""
    return bool(People(store).audit.entries(what=mark, limit=1))


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
_SHARKS: Final = "Sharks don't get cancer."
_LIGHTNING: Final = "Lightning never strikes the same place twice."
_WHISKERS: Final = "Tin whiskers can cause short circuits in electronics."
_GLASS: Final = "Glass is a liquid that flows slowly at room temperature."

LENS_MODEL: Final = (
    "sim:demo-reader?prior=0.72&mel=0.3&hel=-1.7&template_sd=0.12&noise_sd=0.1&any_text=0"
)
"""A model that evidence moves, heterodox documents far, so that there is something to find."""
ANY_TEXT_MODEL: Final = "sim:demo-any-text?prior=0.35&mel=1&hel=-0.8&template_sd=0.15&noise_sd=0.1"
"""A model that any text moves: irrelevant documents of the same length do as much."""
_EMBEDDED: Final = "smollm2-135m"
_LENSES: Final = {"lenses": WITHOUT_FILES, "K": 16, "sham": True}

_REQUESTS: Final[tuple[Mapping[str, Any], ...]] = (
    {
        "claims": (
            _COFFEE,
            _LIGHTNING,
            _SHARKS,
            _WHISKERS,
        ),
        "models": ("mock:demo-a", "mock:demo-b"),
        "R": 2,
    },
    {
        "claims": (_GLASS,),
        "models": ("mock:demo-faulty?not_json=0.2&refused=0.1",),
        "K": 16,
        "R": 2,
    },
    {"claims": (EXERCISE, HANDWASHING, WALL), "models": (ANY_TEXT_MODEL,), **_LENSES},
    {"claims": (EXERCISE, WALL), "models": (LENS_MODEL,), **_LENSES},
    {"claims": (DST,), "models": (LENS_MODEL,), **_LENSES, "influence": True},
)
_LOST: Final = {"claims": (_COFFEE,), "models": ("mock:demo-out-of-order?rejected=1",)}
_DROPPED: Final = {"claims": ("Bats are blind.",), "models": ("mock:demo-a",)}

_DRIFTER: Final = (
    "sim:demo-drifter?prior=0.4&drift=1.2&since=5&drifting=0.35&template_sd=0.2&noise_sd=0.2"
)
_WAVES: Final = 6
"""Of the panel: its model changes its mind about a claim in the last one."""

MEASURED_STEPS: Final = len(_REQUESTS) + 4  # steps that `measure_world` tells of


def measure_world(
    store: Store, settings: Settings, tell: Callable[[str], None], *, embedded: bool
) -> None:
    """Measure everything, as jobs of the one user of this machine."""
    jobs = Jobs(store, settings)

    def work(values: Mapping[str, Any], key: str) -> None:
        jobs.submit(LOCAL, MeasureRequest.parse(values), key=f"demo {key}")
        run_async(Worker(store, settings).run_until_idle())

    for number, values in enumerate(_REQUESTS):
        tell(f"measuring: {MeasureRequest.parse(values).title}")
        work({"B": 1000, "R": 1, **values}, str(number))
    tell("a job that fails, and one that is called off")
    work(_LOST, "lost")
    dropped = jobs.submit(LOCAL, MeasureRequest.parse(_DROPPED), key="demo dropped")
    if dropped.state is JobState.QUEUED:
        jobs.cancel(dropped.id, by=LOCAL)
    tell("one recipe, again and again")
    # For a chart of how a belief drifts. A planted model draws its noise from a sample's identity;
    # another token limit is another identity under the same recipe, so answers are drawn anew.
    again = {"models": ("sim:demo-restless?prior=0.6&template_sd=0.2&noise_sd=0.5",), "K": 8}
    for limit in range(1024, 1030):
        config = RunConfig.parse({**again, "R": 1, "B": 1000, "max_output_tokens": limit})
        run_async(prepare(config, settings, claims=[_COFFEE]).run(store))
    tell("a panel: the same claims in waves")
    run_async(_measure_waves(store, settings))
    tell("the embedded model")
    if embedded and _is_embedded_here(settings):
        # a few samples of a real, tiny model: it shows that the machine works, and knows nothing.
        model = f"local:{_EMBEDDED}"
        work({"claims": (_COFFEE,), "models": (model,), "K": 8, "R": 1}, "embedded")


async def _measure_waves(store: Store, settings: Settings) -> None:
    # Every server loads this file to look for a demonstration; few need the mathematics of panels.
    from heretix.studies import panel as panels
    from heretix.studies.drift import ALPHA

    panel = panels.Panel(
        name="demo-weekly",
        claims=(_COFFEE, _LIGHTNING, _SHARKS, _WHISKERS, _GLASS),
        anchors=(),
        horizon=2 * _WAVES,
        alpha=ALPHA,
        variant="cells",
        webhook=None,
        config=RunConfig.parse({"models": (_DRIFTER,), "K": 16, "T": 16, "R": 1, "B": 1000}),
    )
    for _ in range(_WAVES):
        wave, measurement = await panels.prepare_wave(
            panel, panels.prepare_panel(panel, settings), store
        )
        results = Results()
        await measure(measurement, store, results)
        panels.keep_wave(panel, store, wave, results.executions.values())


def _is_embedded_here(settings: Settings) -> bool:
    """Say whether the small model that may come with the package can be asked."""
    from importlib.util import find_spec

    from heretix.providers.gguf import ModelState, status

    there = {ModelState.INSTALLED, ModelState.PULLED}
    return find_spec("xllamacpp") is not None and status(_EMBEDDED, settings).state in there


# The stage that the demonstration's episodes are played on: the real exchange, a held clock.

ADA, BEN, CLEO, DOV, EVA = CAST = tuple(  # Made-up people, who say so in their names
    f"{name} (demo)" for name in ("Ada", "Ben", "Cleo", "Dov", "Eva")
)

FIRST_DAY: Final = -40.0
_JUDGES: Final = 3
_SHIFTS: Final = (0.7, 0.8, 0.9, 1.0, 0.85, 0.75, 0.95)
"""Of judges who start from different beliefs: as many as a dispute draws, to fill every round."""
_STANCE: Final = {Direction.UP: "supports", Direction.DOWN: "refutes"}


class Stage:
    """One store, played on from some days ago until `now_ms`."""

    def __init__(self, store: Store, settings: Settings, *, now_ms: int) -> None:
        self.store, self.now_ms = store, now_ms
        self.clock = ManualClock(now_ms + round(FIRST_DAY * DAY_MS))
        self._label = f"demonstration {len(Exchange(store, clock=self.clock).episodes(limit=1000))}"
        self._draws = self._moves = 0
        self.exchange = Exchange(store, clock=self.clock, entropy=self.draw)
        self.exploration = ExplorationService(self.exchange)
        panel = Panel(store, settings)
        self.workflow = EpisodeWorkflow(self.exchange, panel, settings=settings)
        self.documents = tuple(demo_documents())

    def draw(self, size: int) -> bytes:
        """Draw a secret, alike each time: nothing but play money hangs on it, and so the same
        world comes out."""
        self._draws += 1
        return hashlib.shake_256(f"{self._label} {self._draws}".encode()).digest(size)

    def next_key(self) -> str:
        """Make the key of the next move."""
        self._moves += 1
        return f"demo {self._label} {self._moves}"

    def hold(self, day: float) -> None:
        """Move the clock to a day, counted from now."""
        self.clock.hold(max(self.clock.now_ms(), self.now_ms + round(day * DAY_MS)))


class Story:
    """One episode as it is played: its id, and the evidence that was committed to."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._exchange = stage.exchange
        self._id = ""
        self._sealed: dict[str, tuple[int, bytes, Direction, Bundle]] = {}
        """By person: the number of the challenge, its nonce, and what it hides."""

    async def draft(self, claim: str, direction: Direction, begin_after_days: float = 0.0) -> None:
        """Measure what the lens's model believes, and write an episode down."""
        sign = 1 if direction is Direction.UP else -1
        drafted = await self._stage.workflow.draft(
            Proposal(
                claim=claim,
                models=(f"sim:demo-lens?prior=0.5&hel={sign * 0.9}&template_sd=0.2&any_text=0",),
                judge_pool=tuple(
                    f"sim:demo-judge-{n}?prior={0.3 + 0.05 * n:.2f}&hel={sign * shift}"
                    "&template_sd=0.2&any_text=0"
                    for n, shift in enumerate(_SHIFTS, 1)
                ),
                R=1,
                B=1000,
                challenge_after_ms=round(begin_after_days * DAY_MS),
                challenge_for_ms=5 * DAY_MS,
                candle_ms=DAY_MS,
                reveal_for_ms=DAY_MS,
                parameters=Parameters(judges=_JUDGES),
            )
        )
        self._id = drafted.episode

    async def open(self, claim: str, direction: Direction, begin_after_days: float = 0.0) -> None:
        """Draft and open at once, for evidence too unless that is to begin later."""
        await self.draft(claim, direction, begin_after_days)
        self._exchange.open(self._id)
        if not begin_after_days:
            self._exchange.begin_challenge(self._id)

    async def bet(self, person: str, side: Side, units: int) -> None:
        minor, key = units * 10**PLAY.exponent, self._stage.next_key()
        self._exchange.stake(self._id, person, side, minor, min_shares=0, key=key)

    async def commit(self, person: str, direction: Direction, which: int, units: int) -> None:
        """Commit to one of the packaged documents on the claim that argue that way."""
        terms = self._exchange.episode(self._id).terms
        arguing = [
            document
            for document in self._stage.documents
            if document.meta["stance_on"] == terms.claim
            and document.meta.get("stance") == _STANCE[direction]
        ]
        bundle = retrieve_provided(terms.claim, arguing[which : which + 1])
        assert isinstance(bundle, Bundle), "the packaged documents can be shown"
        nonce = self._stage.draw(SECRET_BYTES)
        account = user_account(person, terms.currency).id
        taken = self._exchange.commit(
            self._id,
            person,
            commitment=evidence_commitment(nonce, bundle.bundle_id, direction, account),
            amount=units * 10**PLAY.exponent,
            key=self._stage.next_key(),
        )
        self._sealed[person] = taken.number, nonce, direction, bundle

    async def reveal(self, person: str) -> None:
        """Show what was committed to. The bundle first: whoever judges must find it."""
        number, nonce, way, bundle = self._sealed[person]
        sha256, text = bundle.bundle_id, dump_bundle(bundle)
        self._stage.store.write(save_bundle, sha256, bundle.claim, bundle.lens, text)
        self._exchange.reveal(
            self._id, number, person, nonce=nonce, bundle_sha256=sha256, direction=way
        )

    async def freeze(self) -> None:
        """Draw the close and the judges, hear every challenge, and measure what is due."""
        self._exchange.freeze(self._id)
        while await self._stage.workflow.judge_next(self._id) is not None:
            pass
        await self.measure()

    async def measure(self) -> None:
        """Measure the judges, or conclude without: whichever is due."""
        await self._stage.workflow.measure(self._id)

    async def dispute(self, person: str, ground: Ground, units: int) -> None:
        bond, key = units * 10**PLAY.exponent, self._stage.next_key()
        self._exchange.dispute(self._id, person, ground=ground, bond=bond, key=key)

    async def rule(self) -> None:
        await self._stage.workflow.rule(self._id)

    async def close(self) -> None:
        self._exchange.close(self._id)

    async def credit(self, person: str, claim: str) -> None:
        """Credit the finding of a claim that evidence moves a planted model on: practice."""
        self._stage.exploration.credit(person, claim, model=LENS_MODEL, lens=HEL, simulated=True)

    async def decay(self) -> None:
        self._stage.exploration.decay()


async def play(stage: Stage, tell: Callable[[str], None]) -> None:
    """Play all scripts to their end on one clock: whoever's move is the earliest comes first, so
    that moves interleave in the ledger as those of real episodes would."""
    stories = [Story(stage) for _ in SCRIPTS]
    moves = [
        (day, number, step, made)
        for number, script in enumerate(SCRIPTS.values())
        for step, (day, *made) in enumerate(script)
    ]
    titles = list(SCRIPTS)
    for day, number, step, made in sorted(moves, key=lambda move: move[:3]):
        stage.hold(day)
        for name, *given in made:
            await getattr(stories[number], name)(*given)
        if step + 1 == len(SCRIPTS[titles[number]]):
            tell(f"episode {titles[number]}")


# The demonstration's episodes: one in each state, as they stand today. Of each script a line is a
# day, counted from now, and the moves of that day: methods of `Story` with what they are given.

_UP, _DOWN = Direction.UP, Direction.DOWN
_HERETIC, _ORTHODOX = Side.HERETIC, Side.ORTHODOX

SCRIPTS: Final[Mapping[str, tuple[tuple[Any, ...], ...]]] = {
    # Evidence moved the judges up, and they stayed there: the Heretics win.
    "settled": (
        (-24.0, ("open", EXERCISE, _UP), ("bet", ADA, _HERETIC, 400), ("bet", BEN, _ORTHODOX, 350)),
        (-23.0, ("commit", ADA, _UP, 0, 900), ("bet", CLEO, _HERETIC, 120)),
        (-21.5, ("commit", EVA, _UP, 1, 300), ("bet", DOV, _ORTHODOX, 200)),
        # So late in the last day that it most likely comes after the close, and is given back.
        (-19.01, ("bet", DOV, _HERETIC, 900)),
        (-18.5, ("reveal", ADA), ("reveal", EVA)),
        (-18.0, ("freeze",)),
        (-11.0, ("measure",)),
        (-9.0, ("close",)),
    ),
    # The judges went down, somebody disputed it in vain: the Orthodox win.
    "disputed, then settled": (
        (-20.5, ("open", DST, _DOWN), ("bet", CLEO, _ORTHODOX, 300), ("bet", EVA, _HERETIC, 280)),
        (-19.5, ("commit", DOV, _UP, 0, 80), ("commit", CLEO, _DOWN, 0, 900)),
        (-15.0, ("reveal", DOV), ("reveal", CLEO)),
        (-14.5, ("freeze",)),
        (-7.5, ("measure",)),
        (-7.0, ("dispute", EVA, Ground.RECOMPUTATION_MISMATCH, 60)),
        (-6.5, ("rule",)),
        (-4.0, ("close",)),
    ),
    # Nobody bet against it or brought evidence, so there was nothing to measure for.
    "void": (
        (-12.0, ("open", _SHARKS, _DOWN), ("bet", BEN, _ORTHODOX, 250)),
        (-11.0, ("bet", ADA, _ORTHODOX, 75)),
        (-6.0, ("freeze",)),
        (-3.5, ("close",)),
    ),
    # Measured twice, and somebody has put money against the result.
    "disputed": (
        (
            -14.5,
            ("open", HANDWASHING, _UP),
            ("bet", BEN, _HERETIC, 220),
            ("bet", DOV, _ORTHODOX, 260),
        ),
        (-13.5, ("commit", BEN, _UP, 0, 900)),
        (-9.0, ("reveal", BEN)),
        (-8.5, ("freeze",)),
        (-1.5, ("measure",)),
        (-0.5, ("dispute", DOV, Ground.WRONG_LENS_OR_MODEL, 50)),
    ),
    # Measured twice; until tomorrow the result can be disputed.
    "measured": (
        (-14.0, ("open", WALL, _DOWN), ("bet", ADA, _ORTHODOX, 180), ("bet", EVA, _HERETIC, 90)),
        (-13.0, ("commit", ADA, _DOWN, 0, 900)),
        (-8.5, ("reveal", ADA)),
        (-8.0, ("freeze",)),
        (-1.0, ("measure",)),
    ),
    # Measured once; the second measurement shows whether it lasts. What the settled episode of this
    # claim paid for is shown before, so the same again moves nobody.
    "frozen": (
        (-8.2, ("open", EXERCISE, _UP), ("bet", DOV, _HERETIC, 140), ("bet", CLEO, _ORTHODOX, 160)),
        (-7.2, ("commit", DOV, _UP, 2, 250)),
        (-2.7, ("reveal", DOV)),
        (-2.2, ("freeze",)),
    ),
    # Bets and evidence are taken, which stays sealed until no bet is taken any more.
    "in its challenge period": (
        (-2.0, ("open", DST, _DOWN), ("bet", BEN, _HERETIC, 130), ("bet", CLEO, _ORTHODOX, 210)),
        (-1.2, ("commit", CLEO, _DOWN, 1, 900), ("bet", ADA, _ORTHODOX, 95)),
        (-0.3, ("commit", EVA, _UP, 0, 120)),
    ),
    # Bets are taken; evidence is from tomorrow on.
    "open": (
        (-1.0, ("open", _SHARKS, _UP, 2.0)),
        (-0.6, ("bet", EVA, _ORTHODOX, 150)),
        (-0.2, ("bet", BEN, _HERETIC, 60)),
    ),
    # On paper; no money yet.
    "in draft": ((-0.1, ("draft", _LIGHTNING, _UP, 1.0)),),
    "credits": (
        (-16.0, ("credit", ADA, DST)),
        (-5.0, ("credit", CLEO, WALL)),
        (-2.5, ("credit", EVA, EXERCISE)),
        (-0.05, ("decay",)),
    ),
}


# Filling a store with the demonstration: what is measured, then what is played.

STEPS: Final = MEASURED_STEPS + len(SCRIPTS)  # steps that `fill` tells of
_MOST: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The content of a store once it is filled."""

    runs: int
    jobs: int
    episodes: dict[str, int]  # by state; every state is there
    people: tuple[str, ...]
    transfers: int

    def as_dict(self) -> dict[str, Any]:
        """Give the counts to programs."""
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
    `embedded` asks the small model that comes with the package, if it is here. `tell` hears of each
    step when it begins or, for an episode, when it is over."""
    exchange = Exchange(store, clock=clock or SystemClock())
    _refuse_full(store, settings, exchange, force=force)
    audit = People(store).audit
    audit.write(_FILLED, by=LOCAL)
    measure_world(store, settings, tell, embedded=embedded)
    # Now is when the measuring is over: records and moves then follow each other.
    now_ms = (clock or SystemClock()).now_ms()
    stage = Stage(store, settings, now_ms=now_ms)
    stage.exchange.ensure_house()
    for person in CAST:
        stage.exchange.join(person)
    run_async(play(stage, tell))
    audit.write(_WHOLE, by=LOCAL)
    return _count(store, settings, exchange)


def find_world(store: Store, settings: Settings) -> World | None:
    """Count what a store holds if the whole demonstration was put there before; else None."""
    if not is_marked(store, _WHOLE):
        return None
    return _count(store, settings, Exchange(store, clock=SystemClock()))


def _refuse_full(store: Store, settings: Settings, exchange: Exchange, *, force: bool) -> None:
    if is_marked(store) and not is_marked(store, _WHOLE) and not force:
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


def _count(store: Store, settings: Settings, exchange: Exchange) -> World:
    return World(
        runs=store.read(count_runs),
        jobs=len(Jobs(store, settings).list(by=LOCAL, limit=_MOST)),
        episodes={state.value: len(exchange.episodes(state=state, limit=_MOST)) for state in State},
        people=CAST,
        transfers=exchange.verify().count,
    )
