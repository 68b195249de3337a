"""What somebody may ask a server to measure: a configuration without its dangerous parts.

No paths, no addresses, no output: banks by their packaged name, corpora and local models by the
name of a file in their folder, documents as text.
"""

from __future__ import annotations

import json
import re
from datetime import date
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from heretix.config import Claim, EvidenceConfig, RunConfig, check_claim
from heretix.errors import ConfigError, HeretixError, ModelError
from heretix.evidence.reading import clean_text
from heretix.plan import canonical_json
from heretix.prompts.bank import load_bank
from heretix.providers.catalog import parse_model

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heretix.settings import Settings

__all__ = ["MAX_SAMPLES", "GivenDocument", "MeasureRequest", "short_claim"]

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


Day = Annotated[date, BeforeValidator(_day)]
Lens = Literal["RPL", "NUL", "MEL", "HEL", "SEL"]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class GivenDocument(BaseModel):
    """A document that whoever asks brings along, for the lens SEL."""

    model_config = _FORBIDDING

    title: str = Field(min_length=1, max_length=300)
    text: str = Field(min_length=1, max_length=200_000)
    url: str | None = Field(default=None, pattern=r"^https?://\S+$", max_length=2000)
    """Where it stands, as it is told: nothing is fetched."""
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

    claims: Annotated[tuple[str, ...], BeforeValidator(_tuple)] = Field(
        min_length=1, max_length=100
    )
    models: Annotated[tuple[str, ...], BeforeValidator(_tuple)] = Field(default=(), max_length=8)
    """None named: the first provider with a key, else the embedded model."""
    lenses: Annotated[tuple[Lens, ...], BeforeValidator(_tuple)] = Field(
        default=("RPL",), min_length=1, max_length=5
    )
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
    documents: Annotated[tuple[GivenDocument, ...], BeforeValidator(_tuple)] = Field(
        default=(), max_length=20
    )
    influence: bool = False
    canary: bool = False
    sham: bool = False
    negation: str | None = None

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """Check plain values; every problem is named."""
        try:
            return cls.model_validate(dict(values))
        except ValidationError as exc:
            problems = "; ".join(_explain(error) for error in exc.errors(include_url=False))
            raise ConfigError(f"request: {problems}") from exc

    @classmethod
    def kept(cls, text: str) -> MeasureRequest:
        """The request in a stored job. One that an older Heretix took and this one wouldn't can
        still be looked at; measuring it says what is wrong."""
        values = json.loads(text)
        try:
            return cls.model_validate(values)
        except ValidationError:
            values["documents"] = [
                GivenDocument.model_construct(**document) for document in values["documents"]
            ]
            return cls.model_construct(**{name: _tuple(value) for name, value in values.items()})

    @field_validator("claims")
    @classmethod
    def _check_claims(cls, claims: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(_ours(check_claim, claim) for claim in claims))

    @field_validator("negation")
    @classmethod
    def _check_negation(cls, negation: str | None) -> str | None:
        return None if negation is None else _ours(check_claim, negation)

    @field_validator("models")
    @classmethod
    def _check_models(cls, models: tuple[str, ...]) -> tuple[str, ...]:
        for text in models:
            if len(text) > _MAX_MODEL_CHARS or not text.isascii() or not text.isprintable():
                raise ValueError(f"must be at most {_MAX_MODEL_CHARS} plain characters each")
            model = _ours(parse_model, text)
            if model.provider == "local" and not _FILE_NAME.fullmatch(model.name):
                raise ValueError(
                    f"must name a local model by the name of its file, got {text!r}: no path"
                )
        return tuple(dict.fromkeys(models))

    @field_validator("lenses")
    @classmethod
    def _check_lenses(cls, lenses: tuple[Lens, ...]) -> tuple[Lens, ...]:
        return tuple(dict.fromkeys(lenses))

    @field_validator("prompt_version")
    @classmethod
    def _check_bank(cls, name: str) -> str:
        _ours(load_bank, name)
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
        if ("SEL" in self.lenses) != bool(self.documents):
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
        """The request as text, the same for equal requests."""
        return canonical_json(self.model_dump(mode="json"))

    @property
    def title(self) -> str:
        """A few words to call it by."""
        short = short_claim(self.claims[0])
        more = len(self.claims) - 1
        return f"{short} (and {more} more)" if more else short

    @property
    def shows_evidence(self) -> bool:
        """Some lens shows documents."""
        return any(lens not in {"RPL", "NUL"} for lens in self.lenses)

    def config(self, settings: Settings, *, budget_usd: float | None) -> RunConfig:
        """The configuration that this stands for, on this machine."""
        same = ("prompt_version", "K", "R", "T", "B", "seed", "max_output_tokens", "temperature")
        more = ("reasoning_effort", "until_width", "max_samples", "lenses")
        values: dict[str, Any] = {name: getattr(self, name) for name in (*same, *more)}
        if self.models:
            values["models"] = tuple(_on_this_machine(name, settings) for name in self.models)
        if self.shows_evidence:
            values["evidence"] = EvidenceConfig(corpus=self.corpus, as_of=self.as_of)
        return RunConfig.parse({**values, "budget_usd": budget_usd}, source="request")

    def claims_asked(self) -> tuple[Claim, ...]:
        """The claims, as measurements have them."""
        return tuple(Claim(text) for text in self.claims)


def short_claim(claim: str) -> str:
    """A claim on one line, cut where it is long."""
    line = " ".join(claim.split())
    return line if len(line) <= 80 else f"{line[:79]}…"


def _on_this_machine(text: str, settings: Settings) -> str:
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


def _ours(check: Any, value: Any) -> Any:
    """Let Pydantic gather what our own checks find wrong."""
    try:
        return check(value)
    except HeretixError as exc:
        raise ValueError(str(exc)) from exc


def _explain(error: Any) -> str:
    name = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return f"unknown key `{name}`"
    message = str(error["msg"]).removeprefix("Value error, ").removeprefix("Input ").rstrip(".")
    return f"`{name}` {message}" if name and not message.startswith("`") else message
