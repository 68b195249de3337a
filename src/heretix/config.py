"""Configuration: a file, its defaults, and a file of claims.

Values are checked here, once; everything below trusts them.
"""

from __future__ import annotations

import csv
import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from heretix.core.errors import ClaimError, ConfigError
from heretix.core.lenses import LENSES, RPL, WITHOUT_FILES, LensCode
from heretix.core.yaml_lines import Document, YamlFault, load
from heretix.evidence.search import SERVICES
from heretix.providers.catalog import Options
from heretix.readouts import SAMPLED, SLOTS, TRUTH_TOKEN, Readout

MAX_CLAIM_CHARS: Final = 10_000
_SEED_MAX: Final = 2**64 - 1

PRESETS: Final[Mapping[str, Mapping[str, int]]] = {
    "default": {},
    "wide": {"K": 16, "R": 1, "T": 16},
    "legacy": {"K": 7, "R": 3, "B": 2000},
}
"""Named sampling plans. Keys given beside a preset win over it."""

Index = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim to measure, with the id and the other columns its file gave it."""

    text: str
    claim_id: str | None = None
    columns: tuple[tuple[str, Any], ...] = ()


class EvidenceConfig(BaseModel):
    """Sources of the evidence lenses' documents."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    corpus: str | None = None
    """A local corpus by name; `demo` comes with the package."""
    search: str | None = None
    """A live service instead of a corpus: a built-in one, or a plug-in's."""
    record_to: str | None = None
    """A folder that keeps what the service answered."""
    replay_from: str | None = None
    """A folder of kept answers, used instead of the service."""
    policy: str | None = None
    as_of: date | None = None
    strict_dates: bool = False
    flagged: bool = False
    judge: str | None = None
    """A model that grades documents blind to their source, and says what they make of the claim."""
    documents: tuple[str, ...] = ()
    """Files, folders or addresses that SEL shows."""

    @field_validator("search")
    @classmethod
    def _check_search(cls, name: str | None) -> str | None:
        if name is not None and not SERVICES.offers(name):
            *others, last = (repr(known) for known in SERVICES.names())
            raise ValueError(f"should be {', '.join(others)} or {last}")
        return name

    @model_validator(mode="before")
    @classmethod
    def _tuples(cls, values: Any) -> Any:
        return _with_tuples(values)


class RunConfig(BaseModel):
    """One request for measurement. Immutable; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    claim: str | None = None
    claims_file: str | None = None
    model: str | None = None
    models: tuple[str, ...] | None = Field(default=None, min_length=1)
    prompt_version: str = "rpl_v1"
    prompts_file: str | None = None
    readout: Readout = SAMPLED
    preset: Literal["default", "wide", "legacy"] = "default"
    K: int = Field(default=8, ge=1, le=10_000)
    R: int = Field(default=2, ge=1, le=1_000)
    T: int | None = Field(default=None, ge=1)
    B: int | None = Field(default=None, ge=100, le=1_000_000)
    seed: int | None = Field(default=None, ge=0, le=_SEED_MAX)
    agg: Literal["clustered", "simple"] = "clustered"
    center: Literal["trimmed", "mean"] = "trimmed"
    trim: float = Field(default=0.2, ge=0, lt=0.5)
    max_output_tokens: int = Field(default=1024, ge=1, le=1_000_000)
    temperature: float | None = Field(default=None, ge=0, le=2)
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = (
        None
    )
    base_url: str | None = Field(default=None, pattern=r"^https?://\S+$")
    template_include: tuple[Index, ...] | None = Field(default=None, min_length=1)
    template_exclude: tuple[Index, ...] | None = None
    concurrency: int | None = Field(default=None, ge=1, le=4096)
    rpm: float | None = Field(default=None, gt=0)
    tpm: float | None = Field(default=None, gt=0)
    budget_usd: float | None = Field(default=None, gt=0)
    until_width: float | None = Field(default=None, gt=0, lt=1)
    max_samples: int | None = Field(default=None, ge=1)
    lenses: tuple[LensCode, ...] = Field(default=(RPL,), min_length=1)
    evidence: EvidenceConfig | None = None

    @model_validator(mode="before")
    @classmethod
    def _apply_preset(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        values = _with_tuples(values)
        # One answer a wording, and no chance in it: a repeat would tell nothing.
        once = {} if values.get("readout", SAMPLED) == SAMPLED else {"K": SLOTS, "R": 1}
        return {**once, **PRESETS.get(str(values.get("preset")), {}), **values}

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.claim is not None and self.claims_file is not None:
            raise ValueError("`claim` and `claims_file` can't both be given")
        if self.model is not None and self.models is not None:
            raise ValueError("`model` and `models` can't both be given")
        if self.prompts_file is not None and "prompt_version" in self.model_fields_set:
            raise ValueError("`prompt_version` and `prompts_file` can't both be given")
        if self.max_samples is not None and self.until_width is None:
            raise ValueError("`max_samples` is the cap of `until_width`, which isn't given")
        self._check_readout()
        return self

    def _check_readout(self) -> None:
        """Refuse what a read-out of log-probabilities leaves no room for."""
        name = self.prompt_version if self.prompts_file is None else ""
        if name.startswith(TRUTH_TOKEN) and self.readout != TRUTH_TOKEN:
            raise ValueError(f"`prompt_version` {name} is for `readout` {TRUTH_TOKEN} alone")
        if self.readout == SAMPLED:
            return
        of = f"with `readout` {self.readout}"
        if self.R != 1:
            raise ValueError(f"`R` must be 1 {of}: each wording is asked once, got {self.R}")
        if self.lenses != (RPL,):
            raise ValueError(f"`lenses` must be {RPL} {of}, got {', '.join(self.lenses)}")
        if self.temperature is not None:
            raise ValueError(f"`temperature` has no part {of}: leave it out")
        if self.until_width is not None:
            raise ValueError(f"`until_width` samples on, which isn't done {of}: leave it out")

    @property
    def bank_name(self) -> str:
        """The packaged bank: as given, else that of the read-out."""
        of_its_own = self.readout == TRUTH_TOKEN and "prompt_version" not in self.model_fields_set
        return f"{TRUTH_TOKEN}_v1" if of_its_own else self.prompt_version

    @property
    def effective_B(self) -> int:
        """Bootstrap replicas: as given, else the default of the aggregation."""
        return self.B or (5000 if self.agg == "clustered" else 2000)

    @property
    def options(self) -> Options:
        """Options asked to be sent besides the prompt."""
        return Options(
            temperature=self.temperature,
            reasoning_effort=self.reasoning_effort,
            base_url=self.base_url,
        )

    @classmethod
    def parse(
        cls,
        values: Mapping[str, Any],
        *,
        source: str = "options",
        document: Document | None = None,
    ) -> Self:
        """Validate plain values; every problem is named, with the nearest known key.

        With the `document` they were read from, every problem has its line.
        """
        try:
            return cls.model_validate(dict(values))
        except ValidationError as exc:
            errors = exc.errors(include_url=False)
            if document is None:
                problems = "\n".join(_explain(error) for error in errors)
                raise ConfigError(f"{source}: {problems}") from exc
            # What two keys get wrong together is on no line of its own.
            lined = (
                f"{source} line {document.line_of(error['loc'])}: {_explain(error)}"
                if error["loc"]
                else f"{source}: {_explain(error)}"
                for error in errors
            )
            raise ConfigError("\n".join(lined)) from exc

    def replaced(self, **changes: Any) -> Self:
        """This request with the options of a command line laid over it; None changes nothing."""
        given = {name: getattr(self, name) for name in self.model_fields_set}
        changes = {name: value for name, value in changes.items() if value is not None}
        for one, other in (("claim", "claims_file"), ("model", "models")):
            if one in changes:
                given.pop(other, None)
            elif other in changes:
                given.pop(one, None)
        return type(self).parse({**given, **changes})

    def claims(self) -> list[Claim]:
        """The claims asked for, in order, each once."""
        if self.claim is not None:
            return [Claim(check_claim(self.claim))]
        if self.claims_file is not None:
            return _read_claims(Path(self.claims_file))
        raise ClaimError(
            '`claim` is missing: give one (`heretix run "…"`), or `claim:` or `claims_file:` '
            "in the configuration"
        )


def _with_tuples(values: Any) -> Any:
    """YAML has lists only; strict mode wants the tuples that a frozen record holds."""
    if not isinstance(values, Mapping):
        return values
    return {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}


def parse_lenses(text: str, *, with_documents: bool) -> tuple[str, ...]:
    """Read a list of lenses; `all` leaves out those for which the user has to give documents."""
    if text.strip().lower() == "all":
        return tuple(LENSES) if with_documents else WITHOUT_FILES
    names = tuple(dict.fromkeys(name.strip().upper() for name in text.split(",") if name.strip()))
    if not names or any(name not in LENSES for name in names):
        raise ConfigError(
            f"`--lens` must be all, or some of {', '.join(LENSES)} with commas, got {text!r}"
        )
    return names


def load_config(path: str | Path) -> RunConfig:
    """Read a YAML configuration. `claims_file` and `prompts_file` are relative to the file."""
    path = Path(path)
    try:
        document = load(path.read_text(encoding="utf-8-sig"))
    except OSError as exc:
        raise ConfigError(f"`{path}` can't be read: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"`{path}` isn't UTF-8 text; save it as UTF-8") from exc
    except YamlFault as fault:
        raise ConfigError(fault.at(str(path))) from fault
    values = document.values
    if not isinstance(values, dict):
        got = "nothing" if values is None else f"a {type(values).__name__}"
        raise ConfigError(f"`{path}` must hold `key: value` lines, such as `claim: ...`, got {got}")
    values = {str(key): value for key, value in values.items()}
    for name in ("claims_file", "prompts_file"):
        if isinstance(values.get(name), str):
            given = Path(values[name])
            # From the current folder if it is there, else beside the file.
            if not given.is_absolute() and not given.exists():
                values[name] = str(path.parent / given)
    return RunConfig.parse(values, source=f"`{path}`", document=document)


def check_claim(text: str) -> str:
    """A claim as it is measured: without white space around it, or refused."""
    claim = text.strip()
    if not claim:
        raise ClaimError("`claim` is empty: write the statement whose truth is to be measured")
    if len(claim) > MAX_CLAIM_CHARS:
        raise ClaimError(
            f"`claim` must have at most {MAX_CLAIM_CHARS:,} characters, got {len(claim):,}; "
            "state it more briefly"
        )
    for position, char in enumerate(claim):
        if (ord(char) < 32 and char not in "\n\r\t") or 0xD800 <= ord(char) <= 0xDFFF:
            raise ClaimError(
                f"`claim` has a control character (U+{ord(char):04X}) at position {position}; "
                "remove it"
            )
    return claim


def _explain(error: Any) -> str:
    name = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        nested = (f"evidence.{key}" for key in EvidenceConfig.model_fields)
        known = RunConfig.model_fields if len(error["loc"]) == 1 else nested
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
        hint = f"; did you mean `{near[0]}`?" if near else ""
        return f"unknown key `{name}`{hint}"
    message = str(error["msg"]).removeprefix("Value error, ")
    if not name:
        return message
    if error["type"] == "string_pattern_mismatch" and name == "base_url":
        message = "must begin with http:// or https:// and hold no space"
    if error["type"] == "tuple_type":
        message = "should be a list"
    if error["type"] == "too_short":
        message = "should hold at least one"
    message = message.removeprefix("Input ").rstrip(".")
    return f"`{name}` {message}, got {error['input']!r}"


def _read_claims(path: Path) -> list[Claim]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as exc:
        raise ConfigError(f"`claims_file` {path} can't be read: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"`claims_file` {path} isn't UTF-8 text; save it as UTF-8") from exc
    readers = {".jsonl": _jsonl_rows, ".ndjson": _jsonl_rows, ".csv": _csv_rows, ".txt": _txt_rows}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise ConfigError(f"`claims_file` must end in .jsonl, .csv or .txt, got {path.name!r}")
    claims: dict[str, Claim] = {}
    for line, claim, claim_id, columns in reader(path, text):
        try:
            checked = check_claim(claim)
        except ClaimError as exc:
            raise ClaimError(f"{path} line {line}: {exc}") from exc
        claims.setdefault(checked, Claim(checked, claim_id, columns))
    if not claims:
        raise ClaimError(f"`claims_file` {path} holds no claim")
    return list(claims.values())


_Row = tuple[int, str, str | None, tuple[tuple[str, Any], ...]]


def _own_columns(row: Mapping[str | None, Any]) -> tuple[tuple[str, Any], ...]:
    """Columns that mean nothing to us, and something to whoever wrote the file."""
    own = ((name, value) for name, value in row.items() if name not in {None, "claim", "id"})
    return tuple((str(name), value) for name, value in own if value is not None)


def _txt_rows(_path: Path, text: str) -> Iterable[_Row]:
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            yield number, line, None, ()


def _csv_rows(path: Path, text: str) -> Iterable[_Row]:
    reader = csv.DictReader(text.splitlines(keepends=True), strict=True)
    try:
        if "claim" not in (reader.fieldnames or ()):
            got = ", ".join(f"`{name}`" for name in reader.fieldnames or ()) or "no header"
            raise ConfigError(f"`claims_file` {path} needs a column `claim`, got {got}")
        for row in reader:
            yield reader.line_num, row["claim"] or "", row.get("id"), _own_columns(row)
    except csv.Error as exc:
        raise ConfigError(f"`claims_file` {path} line {reader.line_num}: {exc}") from exc


def _jsonl_rows(path: Path, text: str) -> Iterable[_Row]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line, parse_constant=str)
        except ValueError as exc:
            raise ConfigError(f"`claims_file` {path} line {number}: not JSON ({exc})") from exc
        if isinstance(row, str):
            row = {"claim": row}
        if not isinstance(row, dict) or not isinstance(row.get("claim"), str):
            raise ConfigError(
                f"`claims_file` {path} line {number}: needs an object with a text `claim`"
            )
        claim_id = row.get("id")
        claim_id = None if claim_id is None else str(claim_id)
        yield number, row["claim"], claim_id, _own_columns(row)
