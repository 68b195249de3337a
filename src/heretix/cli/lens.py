"""`heretix lens`: the same claim under several lenses."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heretix.cli import options as opt
from heretix.cli.run import deliver, keep_bundles, measure, with_evidence

if TYPE_CHECKING:
    from heretix.cli.run import Artifacts
    from heretix.measurement.lenses import Bundles
    from heretix.measurement.measurement import Measurement

__all__ = ["lens"]


def lens(
    claim: opt.ClaimArgument = None,
    config: opt.ConfigOption = None,
    lenses: opt.LensOption = "all",
    corpus: opt.CorpusOption = None,
    search: opt.SearchOption = None,
    policy: opt.PolicyOption = None,
    document: opt.DocumentOption = None,
    as_of: opt.AsOfOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the artifact (.json).")
    ] = None,
    mock: opt.MockOption = False,
    model: opt.ModelOption = None,
    K: opt.KOption = None,
    R: opt.ROption = None,
    T: opt.TOption = None,
    B: opt.BOption = None,
    seed: opt.SeedOption = None,
    influence: Annotated[
        bool,
        typer.Option("--influence", help="Also measure without each document: which one moved it?"),
    ] = False,
    canary: Annotated[
        bool, typer.Option("--canary", help="Also measure with a document that gives orders.")
    ] = False,
    sham: Annotated[
        bool, typer.Option("--sham", help="Also measure with irrelevant documents of that length.")
    ] = False,
    negation: Annotated[
        str | None,
        typer.Option("--negation", help="The claim's negation: does the model just say yes?"),
    ] = None,
    other_policy: Annotated[
        str | None,
        typer.Option("--other-policy", help="A second policy: how far do results depend on it?"),
    ] = None,
    show_evidence: Annotated[
        bool, typer.Option("--evidence", help="Show the documents behind each lens.")
    ] = False,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Measure a claim with no evidence, mainstream, heterodox and your own, and compare.

    RPL sees nothing, NUL the frame without documents, MEL canonical sources, HEL documented
    sources outside the canon, SEL the documents you give. Without --corpus or --search the
    demonstration corpus is used.
    """
    from heretix.config import Claim, check_claim
    from heretix.measurement.artifact import check_target
    from heretix.measurement.experiments import Experiments, variants_of
    from heretix.measurement.measurement import prepare
    from heretix.settings import Settings
    from heretix.store import Store

    request = opt.read_config(
        config,
        claim,
        models=model,
        K=K,
        R=R,
        T=T,
        B=B,
        seed=seed,
        **opt.evidence_options(lenses, corpus, search, policy, document, as_of),
    )
    settings = Settings.from_env()
    settings = replace(settings, db=db or settings.db)
    if out is not None:
        check_target(out, lines=False)
    measurement = with_evidence(prepare(request, settings, mock=mock))
    experiments = Experiments(influence=influence, canary=canary, sham=sham)
    measurement = replace(
        measurement,
        variants=variants_of(
            measurement, experiments, other_policy=_bundles_under(other_policy, measurement)
        ),
        negation=Claim(check_claim(negation)) if negation else None,
    )
    with Store.open(settings.db) as store:
        keep_bundles(measurement, store)
        results = measure(measurement, store, as_json=as_json)
        deliver(
            results,
            measurement,
            store,
            out=out,
            many=False,
            as_json=as_json,
            show=lambda artifacts: _show(artifacts, evidence=show_evidence),
        )
    raise typer.Exit(results.exit_code)


def _bundles_under(policy: str | None, measurement: Measurement) -> Bundles | None:
    """What the lenses would show under another policy."""
    if policy is None:
        return None
    from heretix.config import EvidenceConfig
    from heretix.measurement.lenses import gather_bundles

    config = measurement.config
    evidence = (config.evidence or EvidenceConfig()).model_copy(update={"policy": policy})
    return asyncio.run(
        gather_bundles(measurement.claims, config.lenses, evidence, measurement.settings)
    )


def _show(artifacts: Artifacts, *, evidence: bool) -> None:
    from heretix.report.lenses import bundle_view, vector_view

    console = opt.console()
    for artifact in artifacts:
        console.print(vector_view(artifact))
        for bundle in artifact.bundles or () if evidence else ():
            console.print()
            console.print(bundle_view(bundle))
