"""Options that several commands share, and how they become a configuration."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from heretix.core.lenses import LENSES

if TYPE_CHECKING:
    from rich.console import Console

    from heretix.config import RunConfig
    from heretix.measurement.service import Measurement

__all__ = [
    "ClaimCommand",
    "console",
    "err_console",
    "read_config",
    "warn_of_shortfall",
]

DEMO_CORPUS_NOTE = (
    "The packaged `demo` corpus is about four claims only (docs/lenses.md); for others bring "
    "documents with --corpus, --search or --document."
)
NOTHING_SHOWN = 'no claim was measured with evidence here yet; run `heretix lens "A claim."` first'
"""What the lack of a store means to somebody who looks for what evidence does."""
JOBS_AT_A_TIME = 4
"""Enough for a short job to pass a long one; each that asks a service is mostly waiting for it."""
_UNCUT = 100_000
"""Columns, where there is no screen: more than any line has."""

ClaimArgument = Annotated[
    str | None, typer.Argument(help="The claim; or give --config with `claim:` or `claims_file:`.")
]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="YAML configuration.", metavar="FILE")
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
MockOption = Annotated[
    bool, typer.Option("--mock", help="Ask the built-in mock instead: no key, no cost.")
]
JobsOption = Annotated[
    int, typer.Option("--jobs", help="Jobs at a time; the others wait.", min=1, max=64)
]
KOption = Annotated[int | None, typer.Option("-K", help="Paraphrase slots.", min=1)]
ROption = Annotated[int | None, typer.Option("-R", help="Replicates per slot.", min=1)]
TOption = Annotated[int | None, typer.Option("-T", help="Templates.", min=1)]
BOption = Annotated[int | None, typer.Option("-B", help="Bootstrap replicas.", min=100)]
SeedOption = Annotated[int | None, typer.Option("--seed", help="Seed of the bootstrap.", min=0)]
AggOption = Annotated[
    str | None, typer.Option("--agg", help="clustered (default) or simple (legacy comparison).")
]
PresetOption = Annotated[
    str | None, typer.Option("--preset", help="A named plan: default, legacy.")
]
ClaimsFileOption = Annotated[
    str | None,
    typer.Option("--claims-file", help="Claims as .jsonl, .csv or .txt.", metavar="FILE"),
]
PromptsFileOption = Annotated[
    str | None,
    typer.Option("--prompts-file", help="A prompt bank of your own (YAML).", metavar="FILE"),
]
BaseUrlOption = Annotated[
    str | None,
    typer.Option("--base-url", help="Address of an OpenAI-compatible server.", metavar="URL"),
]
TemperatureOption = Annotated[
    float | None, typer.Option("--temperature", help="Sent where the model accepts it.")
]
EffortOption = Annotated[
    str | None, typer.Option("--reasoning-effort", help="none, minimal, low, medium, high, …")
]
MaxTokensOption = Annotated[
    int | None, typer.Option("--max-output-tokens", help="Token limit of an answer.", min=1)
]
LensOption = Annotated[
    str | None,
    typer.Option("--lens", help=f"Lenses, comma-separated: {', '.join(LENSES)}; or all."),
]
CorpusOption = Annotated[
    str | None, typer.Option("--corpus", help="Local corpus to search; `demo` is packaged.")
]
SearchOption = Annotated[
    str | None, typer.Option("--search", help="Live service: brave, exa, searxng, tavily.")
]
PolicyOption = Annotated[
    str | None, typer.Option("--policy", help="Source policy (YAML).", metavar="FILE")
]
DocumentOption = Annotated[
    list[str] | None,
    typer.Option(
        "--document",
        help="A document for SEL: file, folder or address. Repeat it.",
        metavar="SOURCE",
    ),
]
JudgeOption = Annotated[
    str | None,
    typer.Option("--judge", help="A model that grades documents, blind to their source."),
]
AsOfOption = Annotated[
    str | None, typer.Option("--as-of", help="Only documents up to this day (YYYY-MM-DD).")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
DbOption = Annotated[
    str | None,
    typer.Option(
        "--db", help="Store: a path or a database URL (else HERETIX_DB, else runs/heretix.sqlite)."
    ),
]


class ClaimCommand(TyperCommand):
    """A command whose argument is a claim: whoever forgets the quotes is told of them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as any command does, but refuse what is left over in words of our own."""
        ctx.allow_extra_args = True
        left: list[str] = super().parse_args(ctx, args)
        if left and not ctx.resilient_parsing:
            ctx.fail(
                f"Got unexpected extra arguments ({' '.join(left)}); put a claim of several words "
                f'in quotes: {ctx.command_path} "A claim."'
            )
        return left


def read_config(config: Path | None, claim: str | None, **options: object) -> RunConfig:
    """The configuration file, if any, with the command line laid over it."""
    from heretix.config import RunConfig, load_config, parse_lenses

    base = load_config(config) if config is not None else RunConfig()
    models = options.pop("models", None)
    if models:
        options["models"] = tuple(models) if isinstance(models, list) else models
    # Key by key: an option changes one thing about the evidence, not where all of it comes from.
    told = options.pop("evidence", None)
    kept = base.evidence.model_dump(exclude_unset=True) if base.evidence else {}
    evidence = {**kept, **(told if isinstance(told, dict) else {})}
    if evidence:
        options["evidence"] = evidence
    lenses = options.get("lenses")
    if isinstance(lenses, str):
        options["lenses"] = parse_lenses(lenses, with_documents=bool(evidence.get("documents")))
    return base.replaced(claim=claim, **options)


def evidence_options(
    lenses: str | None,
    corpus: str | None,
    search: str | None,
    policy: str | None,
    documents: list[str] | None,
    as_of: str | None,
    judge: str | None = None,
) -> dict[str, object]:
    """The keys `lenses` and `evidence`, from options; `read_config` lays them over a file's."""
    from datetime import date

    from heretix.core.errors import ConfigError

    given: dict[str, object] = {"corpus": corpus, "search": search, "policy": policy}
    given["judge"] = judge
    given["documents"] = tuple(documents) if documents else None
    try:
        given["as_of"] = date.fromisoformat(as_of) if as_of else None
    except ValueError as exc:
        raise ConfigError(f"`--as-of` must be a day like 2026-11-15, got {as_of!r}") from exc
    evidence = {name: value for name, value in given.items() if value is not None}
    return {"lenses": lenses, "evidence": evidence}


def console() -> Console:
    """Where results go. What a pipe or a file takes is whole: no screen's width cuts it off."""
    from rich.console import Console

    made = Console(highlight=False)
    if made.is_terminal or "COLUMNS" in os.environ:
        return made
    return Console(highlight=False, width=_UNCUT)


def err_console() -> Console:
    """Where progress and notes go, so that piped output stays clean."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def warn_of_shortfall(measurement: Measurement) -> None:
    """Say before anything is called that no answers can be enough."""
    if measurement.shortfall is not None:
        err_console().print(f"warning: {measurement.shortfall}", style="yellow", markup=False)
