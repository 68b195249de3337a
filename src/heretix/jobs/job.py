"""A job: what somebody asks a server to measure, and how it is doing."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from datetime import date
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from heretix.config import EvidenceConfig, RunConfig, check_claim
from heretix.core.canonical import canonical_json
from heretix.core.errors import ConfigError, HeretixError, ModelError
from heretix.core.lenses import LENSES, RPL, SEL, SHOWING, LensCode
from heretix.core.validation import explain
from heretix.evidence.sources.extract import clean_text
from heretix.prompts.bank import load_bank
from heretix.providers.catalog import parse_model

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heretix.core.settings import Settings

# What somebody may ask a server to measure: a configuration without its dangerous parts.
#
# No paths, no addresses, no output: banks by their packaged name, corpora and local models by the
# name of a file in their folder, documents as text.

MAX_SAMPLES: Final = 50_000
"""Samples that one job may ask for, before it is extended for precision."""
_MAX_READ_CHARS: Final = 4_000_000
"""Characters of documents that one job may have read: each claim reads all of them."""
_SEED_MAX: Final = 2**64 - 1
_FILE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_MAX_MODEL_CHARS: Final = 200
_FORBIDDING: Final = ConfigDict(frozen=True, extra="forbid", strict=True)


def _day(value: Any) -> Any:
    """JSON has no dates; strict checking wants them made before."""
    if not isinstance(value, str):
        return value
    try:
        return date.fromisoformat(value)
    except ValueError as exc:
        raise ValueError("must be a day like 2026-11-15") from exc


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


_T = TypeVar("_T")
Several = Annotated[tuple[_T, ...], BeforeValidator(_tuple)]
Day = Annotated[date, BeforeValidator(_day)]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class GivenDocument(BaseModel):
    """A document that whoever asks brings along, for the lens SEL."""

    model_config = _FORBIDDING

    title: str = Field(min_length=1, max_length=300)
    text: str = Field(min_length=1, max_length=200_000)
    url: str | None = Field(default=None, pattern=r"^https?://\S+$", max_length=2000)
    """Address as it is told: nothing is fetched."""
    published: Day | None = None

    @field_validator("text")
    @classmethod
    def _check_text(cls, text: str) -> str:
        if not clean_text(text):
            raise ValueError("must hold some readable text")
        return text


class MeasureRequest(BaseModel):
    """One request for measurement by somebody who isn't at the machine. Unknown keys are errors."""

    model_config = _FORBIDDING

    claims: Several[str] = Field(min_length=1, max_length=100)
    models: Several[str] = Field(default=(), max_length=8)
    """None named: the first provider with a key, else the embedded model."""
    lenses: Several[LensCode] = Field(default=(RPL,), min_length=1, max_length=len(LENSES))
    prompt_version: str = Field(default="rpl_v1", max_length=100)
    K: int = Field(default=8, ge=1, le=64)
    R: int = Field(default=2, ge=1, le=32)
    T: int | None = Field(default=None, ge=1, le=64)
    B: int | None = Field(default=None, ge=100, le=100_000)
    seed: int | None = Field(default=None, ge=0, le=_SEED_MAX)
    max_output_tokens: int = Field(default=1024, ge=1, le=32_768)
    temperature: float | None = Field(default=None, ge=0, le=2)
    reasoning_effort: Effort | None = None
    until_width: float | None = Field(default=None, gt=0, lt=1)
    max_samples: int | None = Field(default=None, ge=1, le=4096)
    budget_usd: float | None = Field(default=None, gt=0, le=1_000_000)
    corpus: str | None = None
    """By name; without one, the packaged demonstration corpus."""
    as_of: Day | None = None
    documents: Several[GivenDocument] = Field(default=(), max_length=20)
    influence: bool = False
    canary: bool = False
    swap: bool = False
    sham: bool = False
    negation: str | None = None
    checks: bool = True
    """SEL is measured with a planted order too, and with its documents in reverse order."""

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """Check plain values; every problem is named."""
        try:
            return cls.model_validate(dict(values))
        except ValidationError as exc:
            problems = "; ".join(explain(error) for error in exc.errors(include_url=False))
            raise ConfigError(f"request: {problems}") from exc

    @classmethod
    def load(cls, values: dict[str, Any]) -> MeasureRequest:
        """Read the request of a stored job. One that an older Heretix took and this one wouldn't
        can still be looked at; measuring it says what is wrong."""
        try:
            return cls.model_validate(values)
        except ValidationError:
            values["documents"] = [
                GivenDocument.model_construct(**document) for document in values["documents"]
            ]
            return cls.model_construct(**{name: _tuple(value) for name, value in values.items()})

    @field_validator("claims", "negation")
    @classmethod
    def _check_claims(cls, given: tuple[str, ...] | str | None) -> tuple[str, ...] | str | None:
        if isinstance(given, tuple):
            return tuple(dict.fromkeys(_run_check(check_claim, claim) for claim in given))
        return None if given is None else str(_run_check(check_claim, given))

    @field_validator("models")
    @classmethod
    def _check_models(cls, models: tuple[str, ...]) -> tuple[str, ...]:
        for text in models:
            if len(text) > _MAX_MODEL_CHARS or not text.isascii() or not text.isprintable():
                raise ValueError(f"must be at most {_MAX_MODEL_CHARS} plain characters each")
            model = _run_check(parse_model, text)
            if model.provider == "local" and not _FILE_NAME.fullmatch(model.name):
                raise ValueError(
                    f"must name a local model by the name of its file, got {text!r}: no path"
                )
        return tuple(dict.fromkeys(models))

    @field_validator("lenses")
    @classmethod
    def _check_lenses(cls, lenses: tuple[LensCode, ...]) -> tuple[LensCode, ...]:
        return tuple(dict.fromkeys(lenses))

    @field_validator("prompt_version")
    @classmethod
    def _check_bank(cls, name: str) -> str:
        _run_check(load_bank, name)
        return name

    @field_validator("corpus")
    @classmethod
    def _check_corpus(cls, name: str | None) -> str | None:
        if name is not None and not _FILE_NAME.fullmatch(name):
            raise ValueError("must be the name of a corpus: letters, digits, '.', '_' and '-'")
        return name

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.max_samples is not None and self.until_width is None:
            raise ValueError("`max_samples` is the cap of `until_width`, which isn't given")
        if self.negation is not None and len(self.claims) > 1:
            raise ValueError("`negation` belongs to one claim, and several are given")
        if (SEL in self.lenses) != bool(self.documents):
            raise ValueError("`documents` and the lens SEL belong together: give both or neither")
        read = len(self.claims) * sum(len(document.text) for document in self.documents)
        if read > _MAX_READ_CHARS:
            raise ValueError(
                f"`documents` may have {_MAX_READ_CHARS:,} characters for all claims together, "
                f"these have {read:,}; bring the passages that matter, or split it into several"
            )
        asked = self.K * self.R * len(self.claims) * len(self.lenses) * max(1, len(self.models))
        if asked > MAX_SAMPLES:
            raise ValueError(
                f"a job may ask for {MAX_SAMPLES:,} samples, this one asks for {asked:,}; "
                "split it into several"
            )
        return self

    @property
    def canonical(self) -> str:
        return canonical_json(self.model_dump(mode="json"))

    @property
    def title(self) -> str:
        short = short_claim(self.claims[0])
        more = len(self.claims) - 1
        return f"{short} (and {more} more)" if more else short

    @property
    def shows_evidence(self) -> bool:
        """Some lens shows documents."""
        return not set(self.lenses).isdisjoint(SHOWING)

    def config(self, settings: Settings, *, budget_usd: float | None) -> RunConfig:
        """The configuration that this stands for, on this machine."""
        same = ("prompt_version", "K", "R", "T", "B", "seed", "max_output_tokens", "temperature")
        more = ("reasoning_effort", "until_width", "max_samples", "lenses")
        values: dict[str, Any] = {name: getattr(self, name) for name in (*same, *more)}
        if self.models:
            values["models"] = tuple(_localise_model(name, settings) for name in self.models)
        if self.shows_evidence:
            values["evidence"] = EvidenceConfig(
                corpus=self.corpus, as_of=self.as_of, checks=self.checks
            )
        return RunConfig.parse({**values, "budget_usd": budget_usd}, source="request")


def short_claim(claim: str) -> str:
    """A claim on one line, cut where it is long."""
    line = " ".join(claim.split())
    return line if len(line) <= 80 else f"{line[:79]}…"


def _localise_model(text: str, settings: Settings) -> str:
    """A local model by where its file lies in the models' folder; other models as they are."""
    model = parse_model(text)
    if model.provider != "local":
        return text
    from heretix.providers.gguf import KNOWN, models_dir

    if model.name in KNOWN:
        return text
    folder = models_dir(settings)
    for name in (model.name, f"{model.name}.gguf"):
        if (folder / name).is_file():
            return f"local:{folder / name}"
    raise ModelError(
        f"`local:{model.name}` isn't in the models' folder of this server; "
        f"known: {', '.join(sorted(KNOWN))}"
    )


def _run_check(check: Any, value: Any) -> Any:
    """Run a check of our own, so that pydantic gathers what it finds wrong."""
    try:
        return check(value)
    except HeretixError as exc:
        raise ValueError(str(exc)) from exc


# What an operator may have measured of an episode: one move, as a job keeps it.
#
# It says what the move was begun for, so that whoever takes the job up knows when that is done.

Move = Literal["draft", "judge", "measure", "rule"]


class EpisodeRequest(BaseModel):
    """One move of an episode that has to be measured."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    kind: Literal["episode"] = "episode"
    move: Move
    claim: str
    models: tuple[str, ...] = Field(strict=False)
    episode: str | None = None
    """None: a draft, which is written down when its belief was measured."""
    proposal: dict[str, Any] | None = None
    """Of a draft: the terms to be."""
    opens: bool = False
    stage: str | None = None
    """`first` or `second` measurement of the judges, `round:N` of a dispute; None: nothing of it
    is to be told apart, or there is nothing to measure for."""
    final: bool = False
    """Models that can't be reached count as missing, for good."""
    confirmed: bool | None = None
    """Tell whether the ground of a dispute was right; None: a recomputation says."""

    @property
    def canonical(self) -> str:
        return canonical_json(self.model_dump(mode="json"))

    @property
    def doing(self) -> str:
        """Description of what is done, in a few words."""
        if self.move == "measure" and self.stage is None:
            return "Concluding without measurement"
        return {
            "draft": "Measuring what the models believe now",
            "judge": "Judging challenges",
            "measure": f"The {self.stage} measurement of the judges",
            "rule": "The larger panel measures",
        }[self.move]

    @property
    def title(self) -> str:
        return f"{self.doing}: {short_claim(self.claim)}"


# A job: a measurement that somebody asked for, and how it is doing.

JobKind = Literal["measure", "episode"]
Phase = Literal["waiting", "evidence", "measuring", "ended"]
Request = MeasureRequest | EpisodeRequest
"""Kinds of work that a job may be asked for."""


class JobState(StrEnum):
    """State of a job."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """Tell whether nobody will work on it any more, unless it is resumed."""
        return self not in {JobState.QUEUED, JobState.RUNNING}


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of a job. `done` and `total` count samples."""

    phase: Phase = "waiting"
    done: int = 0
    total: int = 0
    cached: int = 0
    """Of those done: taken from the store, or paid for by somebody else meanwhile."""
    failed: int = 0
    in_flight: int = 0
    runs_done: int = 0
    runs_total: int = 0
    spent_usd: float | None = 0.0
    per_second: float = 0.0
    eta_s: float | None = None

    @classmethod
    def of_json(cls, text: str) -> Progress:
        return cls(**json.loads(text))

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def as_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job, as it was when it was read."""

    id: str
    owner_id: str
    owner_name: str
    request: Request
    state: JobState
    created_at: str
    updated_at: str
    started_at: str | None
    finished_at: str | None
    attempt: int
    revision: int
    progress: Progress
    error: str | None
    error_kind: str | None
    budget_micros: int | None
    """Budget in millionths of a dollar; None: no limit."""
    spent_micros: int | None
    """Dollars spent; None when that isn't known."""
    cancel_requested: bool

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Job:
        same = set(cls.__slots__) - {"id", "request", "state", "progress"}
        # A request without a kind is a measurement of claims.
        request = json.loads(row["request_json"])
        return cls(
            id=row["job_id"],
            request=EpisodeRequest.model_validate(request)
            if request.get("kind") == "episode"
            else MeasureRequest.load(request),
            state=JobState(row["state"]),
            progress=Progress.of_json(row["progress_json"]),
            **{name: row[name] for name in same},
        )

    @property
    def title(self) -> str:
        return self.request.title

    @property
    def kind(self) -> JobKind:
        """Subject: claims, or a move of an episode."""
        return "episode" if isinstance(self.request, EpisodeRequest) else "measure"

    @property
    def episode(self) -> str | None:
        """The episode that it moves on; None for claims, and while a draft isn't written down."""
        if not isinstance(self.request, EpisodeRequest):
            return None
        if self.request.move == "draft" and self.state is JobState.DONE:
            # As needed: whoever only measures claims has no use for the economy.
            from heretix.economy.episode.state import draft_id

            return draft_id(self.id)
        return self.request.episode

    def as_dict(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self.__slots__}
        return values | {
            "title": self.title,
            "kind": self.kind,
            "episode": self.episode,
            "state": self.state.value,
            "request": self.request.model_dump(mode="json"),
            "progress": self.progress.as_dict(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    """One thing that a job has measured: a claim, a model and a lens."""

    run_id: str
    execution_id: str
    claim: str
    model: str
    lens: str
    variant: str | None
    status: str
    prob_true: float | None
    ci_lo: float | None
    ci_hi: float | None
    reason: str | None
    finished_at: str

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> JobRun:
        return cls(**{name: row[name] for name in cls.__slots__})

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
