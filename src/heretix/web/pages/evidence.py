"""Evidence: a bundle with everything it holds and left out, and the source policy behind it."""

from functools import cache
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from heretix.accounts import Role
from heretix.core.errors import PolicyError
from heretix.core.lenses import LENSES
from heretix.evidence.bundle import DropReason
from heretix.evidence.policy.file import load_policy
from heretix.evidence.policy.policy import Policy, SourceClass
from heretix.evidence.reliability import Primitive
from heretix.report.words import DROP_PHRASES
from heretix.store.runs import select_runs_of_claim
from heretix.web.auth import require
from heretix.web.state import App
from heretix.web.templating import page

router = APIRouter(include_in_schema=False, dependencies=[require(Role.READER)])

POLICIES = ("default", "demo")
"""Policies that come with the package; no path is taken from an address."""

CLASSES = {
    SourceClass.CANONICAL: "official, or established as a source of record",
    SourceClass.HETERODOX: "documented, with an author who can be held to it, outside the canon",
    SourceClass.CONTESTED: "its standing is itself disputed, or awaits a review",
    SourceClass.FLAGGED: "known for made-up stories, or satire that gets taken for news",
    SourceClass.FACTCHECK: "publishes verdicts, which no lens may hand over",
    SourceClass.UNKNOWN: "no rule covers it, which says nothing against it; most sources are here",
    SourceClass.PROVIDED: "given by the user",
}


@router.get("/bundles/{ref}")
def bundle(
    request: Request, app: App, ref: Annotated[str, Path(pattern=r"^[0-9A-Fa-f]{4,64}$")]
) -> Response:
    """Show a bundle: documents, quotes, class and why, reliability and why, influence."""
    with app.store.snapshot():
        found = app.cache.bundle(ref.lower())
        if found.bundle_id != ref:
            return RedirectResponse(f"/bundles/{found.bundle_id}", 303)
        asked = app.store.read(select_runs_of_claim, found.claim)
    # The rules that the items name, where the policy is one that is known here.
    policies = [known for known in map(_policy, POLICIES) if known.sha256 == found.policy.sha256]
    runs = [
        run for run in asked if run.bundle_id == found.bundle_id and run.prob_true_rpl is not None
    ]
    return page(
        request,
        "bundle.html",
        bundle=found,
        record=found.to_json(),
        rules={rule.id: rule for known in policies[:1] for rule in known.rules},
        runs=[run for run in runs if run.variant is None],
        influence=_influence(runs),
        classes=CLASSES,
        reasons=DROP_PHRASES,
        off_topic=DropReason.OFF_TOPIC,
        primitives={primitive.name: primitive.value for primitive in Primitive},
    )


@router.get("/policy")
def policy(
    request: Request,
    url: Annotated[str, Query(max_length=2000)] = "",
    name: Annotated[str, Query(max_length=20)] = "default",
) -> Response:
    """Show the rules that give sources their class, and which of them covers an address."""
    loaded, typed = _policy(name), url.strip()
    # As people type it: without a scheme it is an address of the web.
    address = typed if "://" in typed else f"https://{typed}"
    explained = loaded.explain(address) if typed else None
    return page(
        request,
        "policy.html",
        policy=loaded,
        name=name,
        names=POLICIES,
        url=url,
        explained=explained,
        classes=CLASSES,
        admits={code: lens.admits for code, lens in LENSES.items() if lens.admits},
    )


@cache
def _policy(name: str) -> Policy:
    if name not in POLICIES:
        raise PolicyError(f"`name` must be one of {', '.join(POLICIES)}, got {name!r}")
    if name == "demo":
        from heretix.evidence.demo import DEMO_POLICY

        return load_policy(DEMO_POLICY)
    return load_policy()


def _influence(runs: list[Any]) -> dict[str, list[Any]]:
    """Find by item the runs that left it out, with what the whole bundle gave the same model."""
    whole = {run.model: run for run in runs if run.variant is None}
    found: dict[str, list[Any]] = {}
    for run in runs:
        item = (run.variant or "").removeprefix("without:")
        if run.variant and run.variant.startswith("without:") and run.model in whole:
            found.setdefault(item, []).append((run, whole[run.model]))
    return found
