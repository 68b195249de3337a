"""Options that several commands share, each with its flag, limits and help in one place.

A dataclass of options is a parameter of a command like any other: `takes_options` puts its fields
into the command's signature, and `read_config` into the configuration, whose names they have. A new
sampling option is one field here.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_type_hints

import typer
from typer.core import TyperCommand

from heretix.cli.output import warn
from heretix.core.lenses import LENSES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from heretix.config import RunConfig
    from heretix.core.settings import Settings
    from heretix.measurement.service import Measurement
    from heretix.store import Store

DEMO_CORPUS_NOTE: Final = (
    "The packaged `demo` corpus is about four claims only (docs/lenses.md); for others bring "
    "documents with --corpus, --search or --document."
)
NOTHING_SHOWN: Final = (
    'no claim was measured with evidence here yet; run `heretix lens "A claim."` first'
)
"""Said where there is no store, to those who look for what evidence does."""
_INDEX_MAX: Final = 9_999
JOBS_AT_A_TIME: Final = 4
"""Enough for a short job to pass a long one; each that asks a service is mostly waiting for it."""

ClaimArgument = Annotated[
    str | None, typer.Argument(help="The claim; or give --config with `claim:` or `claims_file:`.")
]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="YAML configuration.", metavar="FILE")
]
ArtifactOption = Annotated[
    Path | None, typer.Option("--out", "-o", help="Write the artifact (.json).")
]
MockOption = Annotated[
    bool, typer.Option("--mock", help="Ask the built-in mock instead: no key, no cost.")
]
JobsOption = Annotated[
    int, typer.Option("--jobs", help="Jobs at a time; the others wait.", min=1, max=64)
]
ModelOption = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        "-m",
        help="provider:model, or a known name such as gpt-5. Repeat it for several.",
        metavar="MODEL",
    ),
]
BaseUrlOption = Annotated[
    str | None,
    typer.Option("--base-url", help="Address of an OpenAI-compatible server.", metavar="URL"),
]
BudgetOption = Annotated[
    float | None, typer.Option("--budget-usd", help="Stop when this much is spent.")
]
OnOption = Annotated[
    str | None,
    typer.Option("--on", help="Measure on a cluster: ray, or ray://HOST:PORT.", metavar="CLUSTER"),
]
PresetOption = Annotated[
    str | None,
    typer.Option("--preset", help="A named plan: default (8 wordings × 2), wide (16 × 1), legacy."),
]
LanguageOption = Annotated[
    str | None,
    typer.Option("--language", help="Ask in en, de, es, fr, zh; or auto: that of each claim."),
]
LensOption = Annotated[
    str | None,
    typer.Option("--lens", help=f"Lenses, comma-separated: {', '.join(LENSES)}; or all."),
]
CorpusOption = Annotated[
    str | None, typer.Option("--corpus", help="Local corpus to search; `demo` is packaged.")
]
PolicyOption = Annotated[
    str | None, typer.Option("--policy", help="Source policy (YAML).", metavar="FILE")
]
AsOfOption = Annotated[
    str | None, typer.Option("--as-of", help="Only documents up to this day (YYYY-MM-DD).")
]
LimitOption = Annotated[
    int, typer.Option("--limit", "-n", help="At most this many.", min=1, max=1_000_000)
]
VerboseOption = Annotated[
    bool, typer.Option("--verbose", "-v", help="Log every request on standard error.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
DbOption = Annotated[
    str | None,
    typer.Option(
        "--db", help="Store: a path or a database URL (else HERETIX_DB, else runs/heretix.sqlite)."
    ),
]


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """Options of sampling: models, repeats and wordings."""

    models: ModelOption = None
    K: Annotated[int | None, typer.Option("-K", help="Paraphrase slots.", min=1)] = None
    R: Annotated[int | None, typer.Option("-R", help="Replicates per slot.", min=1)] = None
    T: Annotated[int | None, typer.Option("-T", help="Templates.", min=1)] = None
    B: Annotated[int | None, typer.Option("-B", help="Bootstrap replicas.", min=100)] = None
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of the bootstrap.", min=0)] = None


@dataclass(frozen=True, kw_only=True)
class PlanOptions(SamplingOptions):
    """Options that decide which calls are made."""

    agg: Annotated[
        str | None, typer.Option("--agg", help="clustered (default) or simple (legacy comparison).")
    ] = None
    preset: PresetOption = None
    readout: Annotated[
        str | None,
        typer.Option("--readout", help="sampled (default), distribution or truth_token."),
    ] = None
    claims_file: Annotated[
        str | None,
        typer.Option(
            "--claims-file",
            help="Claims as .csv, .tsv, .json, .jsonl, .parquet or .txt; `-` is standard input.",
            metavar="FILE",
        ),
    ] = None
    claims_column: Annotated[
        str | None,
        typer.Option("--column", help="The column with the claim, if not `claim`.", metavar="NAME"),
    ] = None
    template_include: Annotated[
        str | None,
        typer.Option("--template-include", help="Only these wordings: 0,3,5-8.", metavar="LIST"),
    ] = None
    template_exclude: Annotated[
        str | None,
        typer.Option("--template-exclude", help="All wordings but these.", metavar="LIST"),
    ] = None
    prompts_file: Annotated[
        str | None,
        typer.Option("--prompts-file", help="A prompt bank of your own (YAML).", metavar="FILE"),
    ] = None
    language: LanguageOption = None
    base_url: BaseUrlOption = None
    temperature: Annotated[
        float | None, typer.Option("--temperature", help="Sent where the model accepts it.")
    ] = None
    reasoning_effort: Annotated[
        str | None, typer.Option("--reasoning-effort", help="none, minimal, low, medium, high, …")
    ] = None
    max_output_tokens: Annotated[
        int | None, typer.Option("--max-output-tokens", help="Token limit of an answer.", min=1)
    ] = None
    tags: Annotated[
        list[str] | None,
        typer.Option("--tag", help="A name for `runs --tag`. Repeat it.", metavar="NAME"),
    ] = None
    until_width: Annotated[
        float | None,
        typer.Option("--until-width", help="Sample on until the interval is this narrow."),
    ] = None
    max_samples: Annotated[
        int | None,
        typer.Option("--max-samples", help="With --until-width: the cap for a claim.", min=1),
    ] = None


@dataclass(frozen=True, kw_only=True)
class RunOptions(PlanOptions):
    """A plan, and how fast and how far it is carried out."""

    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", help="Calls in flight (else it adapts by itself).", min=1),
    ] = None
    rpm: Annotated[
        float | None, typer.Option("--rpm", help="Requests a minute at most, for each model.")
    ] = None
    tpm: Annotated[
        float | None, typer.Option("--tpm", help="Tokens a minute at most, for each model.")
    ] = None
    budget_usd: BudgetOption = None
    on: OnOption = None


@dataclass(frozen=True, kw_only=True)
class EvidenceOptions:
    """Lenses, and where the documents that they show come from."""

    lenses: LensOption = None
    corpus: CorpusOption = None
    search: Annotated[
        str | None, typer.Option("--search", help="Live service: brave, exa, searxng, tavily.")
    ] = None
    policy: PolicyOption = None
    documents: Annotated[
        list[str] | None,
        typer.Option(
            "--document",
            help="A document for SEL: file, folder or address. Repeat it.",
            metavar="SOURCE",
        ),
    ] = None
    checks: Annotated[
        bool | None,
        typer.Option(
            "--checks/--no-checks", help="Plant an order in SEL, and swap its documents' places."
        ),
    ] = None
    as_of: AsOfOption = None
    judge: Annotated[
        str | None,
        typer.Option("--judge", help="A model that grades documents, blind to their source."),
    ] = None
    queries: Annotated[
        str | None,
        typer.Option("--queries", help="A model that writes further queries, for and against."),
    ] = None
    stance: Annotated[
        str | None,
        typer.Option("--stance", help="A model that says whether each passage is for the claim."),
    ] = None


class ClaimCommand(TyperCommand):
    """A command whose argument is a claim: whoever forgets the quotes is told of them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as any command does, but refuse what is left over in words of our own."""
        ctx.allow_extra_args = True
        try:
            left: list[str] = super().parse_args(ctx, args)
        except typer.TyperException as exc:
            # `-k` for `-K`: nothing but its other case is near to an option of one letter.
            other = str(getattr(exc, "option_name", "")).swapcase()
            if any(other in parameter.opts for parameter in self.params):
                ctx.fail(f"No such option: {other.swapcase()} (did you mean {other}?)")
            raise
        if left and not ctx.resilient_parsing:
            ctx.fail(
                f"Got unexpected extra arguments ({' '.join(left)}); put a claim of several words "
                f'in quotes: {ctx.command_path} "A claim."'
            )
        return left


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """Put the fields of each parameter that is a dataclass of options into the signature."""
    kinds = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in kinds.items() if is_dataclass(kind)}
    parameters: dict[str, tuple[Any, Any]] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        if name not in groups:
            parameters[name] = kinds[name], parameter.default
            continue
        inner = get_type_hints(groups[name], include_extras=True)
        parameters |= {f.name: (inner[f.name], f.default) for f in fields(groups[name])}

    @functools.wraps(command)
    def call(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given)

    return set_parameters(call, parameters)


def set_parameters(
    command: Callable[..., None], parameters: Mapping[str, tuple[Any, Any]]
) -> Callable[..., None]:
    """Give a command a signature: the annotation and the default of each parameter."""
    command.__annotations__ = {name: kind for name, (kind, _) in parameters.items()}
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=value)
            for name, (kind, value) in parameters.items()
        ]
    )
    return command


def read_config(
    config: Path | None,
    claim: str | None,
    sampling: SamplingOptions,
    evidence: EvidenceOptions | None = None,
) -> RunConfig:
    """Read the configuration file, if any, and lay the command line over it."""
    from heretix.config import RunConfig, load_config, parse_lenses

    base = load_config(config) if config is not None else RunConfig()
    changes = asdict(sampling)
    changes["models"] = tuple(sampling.models) if sampling.models else None
    if "tags" in changes:
        changes["tags"] = tuple(changes["tags"] or ()) or None
    for name in ("template_include", "template_exclude"):
        if changes.get(name) is not None:
            changes[name] = _read_indices(name, changes[name])
    # Key by key: an option changes one thing about the evidence, not where all of it comes from.
    sources = base.evidence.model_dump(exclude_unset=True) if base.evidence else {}
    if evidence is not None:
        sources |= _read_sources(evidence)
        if evidence.lenses is not None:
            given = bool(sources.get("documents"))
            changes["lenses"] = parse_lenses(evidence.lenses, with_documents=given)
    return base.override(claim=claim, evidence=sources or None, **changes)


def require_shown(request: RunConfig, given: EvidenceOptions) -> RunConfig:
    """Return a request; refuse options of evidence that its lenses would pass over."""
    from heretix.config import check_shown

    check_shown(_read_sources(given), request.lenses)
    return request


def _read_indices(name: str, text: str) -> tuple[int, ...]:
    """Read a list of wordings with ranges, such as 0,3,5-8."""
    from heretix.core.errors import ConfigError

    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        last = last if "-" in part else first
        numbers = f"{first}{last}".isascii() and first.isdecimal() and last.isdecimal()
        if not numbers or int(last) < int(first):
            option = name.replace("_", "-")
            raise ConfigError(f"`--{option}` must list indices, such as 0,3,5-8, got {text!r}")
        if int(last) > _INDEX_MAX:
            raise ConfigError(f"`{name}` {last} is beyond any bank of wordings")
        found += range(int(first), int(last) + 1)
    return tuple(found)


def _read_sources(given: EvidenceOptions) -> dict[str, Any]:
    from datetime import date

    from heretix.core.errors import ConfigError

    sources = {name: value for name, value in asdict(given).items() if value is not None}
    sources.pop("lenses", None)
    sources["documents"] = tuple(given.documents or ())
    try:
        if given.as_of is not None:
            sources["as_of"] = date.fromisoformat(given.as_of)
    except ValueError as exc:
        raise ConfigError(f"`--as-of` must be a day like 2026-11-15, got {given.as_of!r}") from exc
    return {name: value for name, value in sources.items() if value != ()}


def read_settings(db: str | None, *, on: str | None = None) -> Settings:
    """Read the environment's settings, with the store and cluster that the command line names."""
    from heretix.core.settings import Settings

    settings = Settings.from_env()
    return replace(settings, db=db or settings.db, on=check_on(on) or settings.on)


def check_on(on: str | None) -> str | None:
    """Refuse what is no cluster's address, in the words of the configuration."""
    if on is not None:
        from heretix.config import RunConfig

        RunConfig.parse({"on": on})
    return on


def open_store(db: str | None, *, create: bool = False, absent: str | None = None) -> Store:
    """Open the store; `absent` says what to do first where there is none."""
    from heretix.store import Store
    from heretix.store.db import NOTHING_MEASURED

    return Store.open(read_settings(db).db, create=create, absent=absent or NOTHING_MEASURED)


def warn_of_shortfall(measurement: Measurement) -> None:
    """Say before anything is called what the user wouldn't expect of it."""
    if measurement.shortfall is not None:
        warn(f"warning: {measurement.shortfall}")
    if unsure := measurement.unrecognised:
        more = f" and {len(unsure) - 1:,} more" if len(unsure) > 1 else ""
        warn(f"note: asked in English, since their language isn't clear: {unsure[0][:60]!r}{more}")
