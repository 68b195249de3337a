"""What operators do with episodes: draft, open, freeze, have them judged and measured, settle."""

from typing import Annotated, Any, Self

from fastapi import Depends
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from starlette.requests import Request

from heretix.economy.episode import Episode
from heretix.economy.market import MAX_POOL
from heretix.economy.parameters import HOUR_MS, Parameters
from heretix.economy.proposal import DAY_MS, PRACTICE_JUDGES, PRACTICE_MODELS, Proposal
from heretix.people import Person, Role
from heretix.web.api.episode_views import EpisodeView
from heretix.web.api.episodes import EpisodeId
from heretix.web.api.floor import begun, exchange_of, known_episode, note_move
from heretix.web.api.jobs import BEGUN, JobView
from heretix.web.api.resource import desk_of
from heretix.web.api.writing import Key, writes
from heretix.web.identity import VisitNow, require
from heretix.web.proceedings import Beginning

__all__ = ["router"]

router = writes("proceedings", role=Role.OPERATOR)

Operator = Annotated[Person, require(Role.OPERATOR)]
Model = Annotated[str, Field(max_length=200, pattern=r"^[A-Za-z0-9][!-~]*$", strict=True)]
Span = Annotated[int, Field(ge=0, le=3650 * DAY_MS, strict=True, description="Milliseconds.")]


async def _beginning(request: Request, key: Key, person: Operator, visit: VisitNow) -> Beginning:
    return Beginning(desk=desk_of(request), person=person, key=f"api {key}", address=visit.address)


BeginningNow = Annotated[Beginning, Depends(_beginning)]


class _Given(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ProposalGiven(_Given):
    """An episode to be. Without models, planted ones play: to learn the game without a key."""

    claim: str = Field(min_length=1, max_length=2_000)
    models: list[Model] = Field(default=list(PRACTICE_MODELS), min_length=1, max_length=8)
    judge_pool: list[Model] = Field(default=list(PRACTICE_JUDGES), min_length=3, max_length=64)
    lens: str = Field(default="HEL", pattern=r"^(MEL|HEL|SEL)(@[0-9a-f]{64})?$")
    bank: str = Field(default="rpl_v1", pattern=r"^[0-9A-Za-z][0-9A-Za-z_-]*$", max_length=100)
    K: int = Field(default=16, ge=1, le=64, strict=True)
    R: int = Field(default=2, ge=1, le=32, strict=True)
    T: int = Field(default=16, ge=1, le=64, strict=True)
    B: int = Field(default=5_000, ge=100, le=100_000, strict=True)
    judges: int = Field(default=5, ge=3, le=64, strict=True)
    seed_stake: int = Field(default=100_000, ge=1, le=MAX_POOL, strict=True)
    seed_heretic_ppm: int = Field(default=500_000, ge=1, le=999_999, strict=True)
    challenge_after_ms: Span = 0
    challenge_for_ms: Span = 7 * DAY_MS
    candle_ms: Span = DAY_MS
    reveal_for_ms: Span = DAY_MS
    durability_ms: Span = 7 * DAY_MS
    dispute_window_ms: Span = 48 * HOUR_MS
    draft_only: bool = Field(default=False, description="Written down, but not opened yet.")

    @field_validator("models", "judge_pool")
    @classmethod
    def _refuse_paths(cls, models: list[str]) -> list[str]:
        for name in models:
            if name.startswith("local:") and ("/" in name or "\\" in name):
                raise ValueError(f"must name a local model by its name, got {name!r}: no path")
        return models

    @model_validator(mode="after")
    def _check_candle(self) -> Self:
        if self.candle_ms > self.challenge_for_ms:
            raise ValueError("`candle_ms` must not be longer than `challenge_for_ms`")
        return self

    def proposal(self) -> Proposal:
        """As the economy has it."""
        apart = {"judges", "durability_ms", "dispute_window_ms", "draft_only"}
        same: dict[str, Any] = {
            name: getattr(self, name) for name in type(self).model_fields if name not in apart
        }
        same |= {"models": tuple(self.models), "judge_pool": tuple(self.judge_pool)}
        return Proposal(
            **same,
            parameters=Parameters(
                judges=self.judges,
                durability_ms=self.durability_ms,
                dispute_window_ms=self.dispute_window_ms,
            ),
        )


class Finality(_Given):
    """Whether failed calls count."""

    final: bool = Field(
        default=False, description="Models that can't be reached count as missing, for good."
    )


class Ruling(Finality):
    """How a dispute is to be ruled on."""

    ground_confirmed: bool | None = Field(
        default=None, description="Null: a recomputation is made, and says."
    )


@router.post("/episodes", status_code=202, responses=BEGUN)
def create_episode(given: ProposalGiven, beginning: BeginningNow) -> JobView:
    """Have measured what the models believe now, then fix the terms and, unless told not to, open
    it. The job says how far that is, and which episode came of it."""
    return JobView.of(beginning.draft(given.proposal(), opens=not given.draft_only))


@router.post("/episodes/{episode_id}/open")
def open_episode(request: Request, episode_id: EpisodeId) -> EpisodeView:
    """Fix the terms of a draft; the house's seed and the budget for rewards are set aside."""
    desk = desk_of(request)
    known_episode(desk, episode_id)
    exchange_of(desk).ensure_house()
    exchange_of(desk).open(episode_id)
    return _moved(request, "open", begun(desk, episode_id))


@router.post("/episodes/{episode_id}/begin")
def begin_challenges(request: Request, episode_id: EpisodeId) -> EpisodeView:
    """From now on evidence can be committed, once its time has come."""
    desk = desk_of(request)
    known_episode(desk, episode_id)
    return _moved(request, "begin", exchange_of(desk).begin_challenge(episode_id))


@router.post("/episodes/{episode_id}/freeze")
def freeze_episode(request: Request, episode_id: EpisodeId) -> EpisodeView:
    """Reveal the secret, draw the close and the judges, give late stakes back."""
    desk = desk_of(request)
    begun(desk, episode_id)
    return _moved(request, "freeze", exchange_of(desk).freeze(episode_id))


@router.post("/episodes/{episode_id}/judge", status_code=202, responses=BEGUN)
def judge_challenges(
    episode_id: EpisodeId, beginning: BeginningNow, given: Finality | None = None
) -> JobView:
    """Have every challenge that is left measured, in their order."""
    return JobView.of(beginning.judging(episode_id, final=bool(given and given.final)))


@router.post("/episodes/{episode_id}/measure", status_code=202, responses=BEGUN)
def measure_episode(
    episode_id: EpisodeId, beginning: BeginningNow, given: Finality | None = None
) -> JobView:
    """Have the judges measured: at the freeze, and again when the durability window is over."""
    return JobView.of(beginning.measuring(episode_id, final=bool(given and given.final)))


@router.post("/episodes/{episode_id}/rule", status_code=202, responses=BEGUN)
def rule_on_dispute(
    episode_id: EpisodeId, beginning: BeginningNow, given: Ruling | None = None
) -> JobView:
    """Have the larger panel measure, and rule on the dispute."""
    given = given or Ruling()
    job = beginning.ruling(episode_id, confirmed=given.ground_confirmed, final=given.final)
    return JobView.of(job)


@router.post("/episodes/{episode_id}/settle")
def settle_episode(request: Request, episode_id: EpisodeId) -> EpisodeView:
    """Pay everybody what is due, or give everything back where the episode is void."""
    desk = desk_of(request)
    known_episode(desk, episode_id)
    return _moved(request, "settle", exchange_of(desk).close(episode_id))


def _moved(request: Request, move: str, found: Episode) -> EpisodeView:
    """The episode after a move that was made at once."""
    note_move(request, move, found.id)
    return EpisodeView.of(found)
