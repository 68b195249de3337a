"""Configuration: a file, its defaults, and a file of claims.

Values are checked here, once; everything below trusts them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from heretix.core.errors import ClaimError, ConfigError
from heretix.core.lenses import LENSES, RPL, SEL, SHOWING, WITHOUT_FILES, LensCode
from heretix.core.validation import explain, in_quotes
from heretix.core.yaml_lines import Document, YamlFault, load
from heretix.evidence.search import SERVICES
from heretix.providers.catalog import Options
from heretix.readouts import SAMPLED, SLOTS, TRUTH_TOKEN, Readout

MAX_CLAIM_CHARS: Final = 10_000
_SEED_MAX: Final = 2**64 - 1
ON_A_CLUSTER: Final = r"^(ray|ray://[^\s/]+|[^\s/:]+:\d+)$"

PRESETS: Final[Mapping[str, Mapping[str, int]]] = {
    "default": {},
    "wide": {"K": 16, "R": 1, "T": 16},
    "legacy": {"K": 7, "R": 3, "B": 2000},
}
"""Named sampling plans. Keys given beside a preset win over it."""

AUTO: Final = "auto"
LANGUAGES: Final[Mapping[str, str]] = {
    "en": "rpl_v1",
    "de": "rpl_de_v1",
    "es": "rpl_es_v1",
    "fr": "rpl_fr_v1",
    "zh": "rpl_zh_v1",
}
"""The packaged bank of each language; `auto` takes that of each claim."""

Index = Annotated[int, Field(ge=0)]
Tag = Annotated[str, Field(pattern=r"^[^\s\x00-\x1f][^\x00-\x1f]{0,63}$")]


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
    on_request: bool = False
    """Let the classes into a lens that it admits only on request: unknown and flagged sources."""
    judge: str | None = None
    """A model that grades documents blind to their source, and says what they make of the claim."""
    stance: str | None = None
    """A model that says what each passage shown makes of the claim, blind to its source."""
    queries: str | None = None
    """A model that writes further queries, for and against the claim."""
    documents: tuple[str, ...] = ()
    """Files, folders or addresses that SEL shows."""
    checks: bool = True
    """SEL is measured twice more: with a planted order, and with its documents in reverse order."""

    @field_validator("search")
    @classmethod
    def _check_search(cls, name: str | None) -> str | None:
        if name is not None and not SERVICES.offers(name):
            *others, last = (repr(known) for known in SERVICES.names())
            raise ValueError(f"should be {', '.join(others)} or {last}")
        return name

    @model_validator(mode="before")
    @classmethod
    def _convert_lists(cls, values: Any) -> Any:
        return _convert_lists(values)


class RunConfig(BaseModel):
    """One request for measurement. Immutable; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    claim: str | None = None
    claims_file: str | None = None
    claims_column: str | None = None
    """The column of `claims_file` that holds the claim; else `claim`."""
    model: str | None = None
    models: tuple[str, ...] | None = Field(default=None, min_length=1)
    prompt_version: str = "rpl_v1"
    prompts_file: str | None = None
    language: Literal["en", "de", "es", "fr", "zh", "auto"] | None = None
    """The language in which claims are asked; `auto` recognises that of each. None is English."""
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
    tags: tuple[Tag, ...] = ()
    """Names under which `heretix runs --tag` finds what was measured."""
    on: str | None = Field(default=None, pattern=ON_A_CLUSTER)
    """Place to measure: `ray`, or the address of a cluster; None: in this process."""
    lenses: tuple[LensCode, ...] = Field(default=(RPL,), min_length=1)
    evidence: EvidenceConfig | None = None

    @model_validator(mode="before")
    @classmethod
    def _apply_preset(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        values = _convert_lists(values)
        # One answer a wording, and no chance in it: a repeat would tell nothing.
        once = {} if values.get("readout", SAMPLED) == SAMPLED else {"K": SLOTS, "R": 1}
        return {**once, **PRESETS.get(str(values.get("preset")), {}), **values}

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.claim is not None and self.claims_file is not None:
            raise ValueError("`claim` and `claims_file` can't both be given")
        if self.claims_column is not None and self.claims_file is None:
            raise ValueError("`claims_column` names a column of `claims_file`, which isn't given")
        if self.model is not None and self.models is not None:
            raise ValueError("`model` and `models` can't both be given")
        if self.prompts_file is not None and "prompt_version" in self.model_fields_set:
            raise ValueError("`prompt_version` and `prompts_file` can't both be given")
        if self.language is not None and self.model_fields_set & {"prompt_version", "prompts_file"}:
            raise ValueError("`language` chooses a bank: leave out `prompt_version`/`prompts_file`")
        if self.max_samples is not None and self.until_width is None:
            raise ValueError("`max_samples` is the cap of `until_width`, which isn't given")
        self._check_readout()
        return self

    def _check_readout(self) -> None:
        """Refuse what a read-out of log-probabilities leaves no room for."""
        name = self.prompt_version if self.prompts_file is None else ""
        if name.startswith(TRUTH_TOKEN) and self.readout != TRUTH_TOKEN:
            raise ValueError(f"`prompt_version` {name} is for `readout` {TRUTH_TOKEN} alone")
        if self.readout == TRUTH_TOKEN and self.language not in {None, "en"}:
            raise ValueError(f"`language` must be en with `readout` {TRUTH_TOKEN}: it has no other")
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
        """The packaged bank: as given, else that of the read-out or the language."""
        of_its_own = self.readout == TRUTH_TOKEN and "prompt_version" not in self.model_fields_set
        if of_its_own:
            return f"{TRUTH_TOKEN}_v1"
        return LANGUAGES.get(self.language or "", self.prompt_version)

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
            inner = {error["loc"][:-1] for error in errors}
            # Pydantic counts without the entries it refused: those are told already.
            errors = [e for e in errors if e["type"] != "too_short" or e["loc"] not in inner]
            if document is None:
                problems = "\n".join(_explain(error) for error in errors)
                raise ConfigError(f"{source}: {problems}") from exc
            # What two keys get wrong together is on no line of its own.
            lined = (
                f"{source} line {document.line_of(error['loc'])}: "
                f"{_explain(error)}{in_quotes(error)}"
                if error["loc"]
                else f"{source}: {_explain(error)}"
                for error in errors
            )
            raise ConfigError("\n".join(lined)) from exc

    def override(self, **changes: Any) -> Self:
        """Lay the options of a command line over this request; None changes nothing."""
        given = {name: getattr(self, name) for name in self.model_fields_set}
        changes = {name: value for name, value in changes.items() if value is not None}
        for one, other in (("claim", "claims_file"), ("model", "models")):
            if one in changes:
                given.pop(other, None)
            elif other in changes:
                given.pop(one, None)
        if "claims_file" not in given and "claims_file" not in changes:
            given.pop("claims_column", None)
        return type(self).parse({**given, **changes})

    def claims(self) -> list[Claim]:
        """The claims asked for, a row each, in order; one may stand in several rows."""
        if self.claim is not None:
            return [Claim(check_claim(self.claim))]
        if self.claims_file is not None:
            return _read_claims(self.claims_file, self.claims_column)
        raise ClaimError(
            '`claim` is missing: give one (`heretix run "…"`), or `claim:` or `claims_file:` '
            "in the configuration"
        )


def config_schema() -> dict[str, Any]:
    """The JSON Schema of a configuration file, for editors."""
    schema = RunConfig.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _convert_lists(values: Any) -> Any:
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


def check_shown(given: Collection[str], lenses: Collection[str]) -> None:
    """Refuse keys of `evidence`, given by hand, that no lens asked for would use."""
    if "documents" in given and SEL not in lenses:
        raise ConfigError(
            f"`documents` are shown under {SEL}, which isn't asked for; add it to the lenses, "
            f"such as {RPL},{SEL}"
        )
    if given and not set(SHOWING) & set(lenses):
        names = ", ".join(f"`{name}`" for name in sorted(given))
        raise ConfigError(
            f"{names}: nothing is shown under {', '.join(lenses)}; add some of "
            f"{', '.join(SHOWING)} to the lenses"
        )


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
            # From the current folder if it is there, else beside the file; `-` is a pipe.
            if str(given) != "-" and not given.is_absolute() and not given.exists():
                values[name] = str(path.parent / given)
    return RunConfig.parse(values, source=f"`{path}`", document=document)


def _read_escaped(text: str) -> str:
    """Read the bytes that Python escapes in arguments where the locale is ASCII: they are UTF-8."""
    try:
        return text.encode("ascii", "surrogateescape").decode()
    except UnicodeError:
        return text


def check_claim(text: str) -> str:
    """A claim as it is measured: without white space around it, or refused."""
    if not isinstance(text, str):
        raise ClaimError(f"`claim` must be text, got {text!r}")
    claim = _read_escaped(text).strip()
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
    at_the_top = len(error["loc"]) == 1
    name = str(error["loc"][-1]) if error["loc"] else ""
    if at_the_top and error["type"] == "extra_forbidden" and name in EvidenceConfig.model_fields:
        return f"unknown key `{name}`: it stands within `evidence`"
    return explain(error, tuple((RunConfig if at_the_top else EvidenceConfig).model_fields))


def _read_claims(name: str, column: str | None) -> list[Claim]:
    from heretix.claims_file import STDIN, read_rows

    where, claims = "standard input" if name == STDIN else name, []
    for row, text, claim_id, columns in read_rows(name, column):
        try:
            claims.append(Claim(check_claim(text), claim_id, columns))
        except ClaimError as exc:
            raise ClaimError(f"{where} {row}: {exc}") from exc
    if not claims:
        raise ClaimError(f"`claims_file` {where} holds no claim")
    return claims
