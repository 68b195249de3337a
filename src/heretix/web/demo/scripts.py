"""The demonstration's episodes: one in each state, as they stand today. Days count from now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from heretix.economy.episode import Ground
from heretix.economy.judging import Direction
from heretix.economy.market import Side
from heretix.web.demo.measured import DST, EXERCISE, HANDWASHING, LENS_MODEL, WALL
from heretix.web.demo.stage import ADA, BEN, CLEO, DOV, EVA

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from heretix.web.demo.stage import Script, Stage

__all__ = ["FIRST_DAY", "SCRIPTS"]

FIRST_DAY: Final = -40.0
_SHARKS: Final = "Sharks don't get cancer."
_LIGHTNING: Final = "Lightning never strikes the same place twice."
_UP, _DOWN = Direction.UP, Direction.DOWN
_HERETIC, _ORTHODOX = Side.HERETIC, Side.ORTHODOX
_FIRST, _SECOND = slice(0, 1), slice(1, 2)


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
    second = stage.commit(episode, EVA, _UP, _SECOND, units=300)
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
    sealed = stage.commit(episode, DOV, _UP, _SECOND, units=250)
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
    sealed = stage.commit(episode, CLEO, _DOWN, _SECOND, units=300)
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
    stage.track.credit(ADA, DST, model=LENS_MODEL, lens="HEL", simulated=True)
    yield -5.0
    stage.track.credit(CLEO, WALL, model=LENS_MODEL, lens="HEL", simulated=True)
    yield -2.5
    stage.track.credit(EVA, EXERCISE, model=LENS_MODEL, lens="HEL", simulated=True)
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
