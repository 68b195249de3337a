"""`heretix policy`: which side of the canon a source stands on, and why."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from heretix.cli import options as opt
from heretix.cli.output import print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heretix.evidence.policy import Policy
    from heretix.evidence.rules import Problem

__all__ = ["app"]

app = typer.Typer(
    help="Source policies: membership in the canon, not quality.", no_args_is_help=True
)

_DOI: Final = re.compile(r"10\.\d{4,9}/\S+")

PolicyArgument = Annotated[
    str, typer.Argument(help="A policy file, or `default`.", metavar="POLICY")
]


@app.command("explain", short_help="Say which rule gives an address its class, and why.")
def explain(
    url: Annotated[str, typer.Argument(help="An address, or a domain like example.org.")],
    policy: opt.PolicyOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Say which rule gives an address its class, and on which facts it rests."""
    _require_address(url)
    found = _load(policy or "default").explain(url)
    given = found.classification
    if as_json:
        content = {
            "url": url,
            "class": given.cls,
            "rule": given.rule_id,
            "facts": list(given.facts),
            "publisher": given.publisher,
            "compared": [c.rule_id for c in found.compared],
            "later": [match.rule.id for match in found.later],
        }
        print_json(content)
        return
    console = opt.console()
    console.print(f"{given.cls}  {url}", style="bold", markup=False)
    console.print(f"publisher  {given.publisher}", markup=False)
    rule = given.rule_id or "none: unknown is an answer"
    console.print(f"rule       {rule}", markup=False)
    for fact in given.facts:
        console.print(f"fact       {fact}", markup=False)
    for match in found.later:
        console.print(f"later      {match.rule.id} would have said {match.cls}", style="dim")


@app.command("diff")
def diff(
    a: PolicyArgument,
    b: PolicyArgument,
    urls: Annotated[
        Path,
        typer.Option(
            "--urls",
            help="A file of addresses, one a line.",
            exists=True,
            dir_okay=False,
            readable=True,
        ),
    ],
    as_json: opt.JsonOption = False,
) -> None:
    """List the addresses whose class differs between two policies."""
    from heretix.errors import UsageError
    from heretix.evidence.policy import diff as policy_diff

    try:
        addresses = [line.strip() for line in urls.read_text(encoding="utf-8").splitlines()]
    except UnicodeDecodeError as exc:
        raise UsageError(f"`--urls` must be a text file in UTF-8, got {urls}") from exc
    addresses = [line for line in addresses if line]
    flips = policy_diff(_load(a), _load(b), addresses)
    if as_json:
        content = [
            {"url": flip.url, "before": flip.before.cls, "after": flip.after.cls} for flip in flips
        ]
        print_json(content)
        return
    console = opt.console()
    for flip in flips:
        console.print(f"{flip.before.cls} → {flip.after.cls}  {flip.url}", markup=False)
    console.print(f"{len(flips)} of {len(addresses)} differ", style="dim")


@app.command("check")
def check(policy: PolicyArgument = "default", as_json: opt.JsonOption = False) -> None:
    """Look for rules that can never apply, contradictions and slips. Ends with 1 on errors."""
    from heretix.evidence.policy import policy_problems
    from heretix.evidence.rules import Level

    loaded, problems = policy_problems(policy)
    if as_json:
        content = {
            "version": loaded and loaded.version,
            "sha256": loaded and loaded.sha256,
            "rules": loaded and len(loaded.rules),
            "problems": [{"level": one.level, "message": str(one)} for one in problems],
        }
        print_json(content)
    else:
        _print_check(loaded, problems)
    if loaded is None or any(problem.level is Level.ERROR for problem in problems):
        raise typer.Exit(1)


def _print_check(loaded: Policy | None, problems: Sequence[Problem]) -> None:
    console = opt.console()
    for problem in problems:
        console.print(f"{problem.level}: {problem}", markup=False)
    if loaded is not None:
        console.print(f"{loaded.version}: {len(loaded.rules)} rules, sha256 {loaded.sha256[:16]}")


def _require_address(url: str) -> None:
    from heretix.errors import UsageError
    from heretix.evidence.address import is_address

    if is_address(url):
        return
    doi = _DOI.search(url)
    remedy = f"; a DOI is written https://doi.org/{doi[0]}" if doi else ""
    raise UsageError(
        "`URL` must be an address like https://example.org/page, or a domain like example.org, "
        f"got {url!r}{remedy}"
    )


def _load(name: str) -> Policy:
    from heretix.evidence.policy import load_policy

    return load_policy(name)
