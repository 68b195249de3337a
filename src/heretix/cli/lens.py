"""`heretix lens`: the same claim under several lenses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heretix.cli import options as opt
from heretix.cli.run import deliver, measure, with_evidence

if TYPE_CHECKING:
    from heretix.cli.run import Artifacts

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
    from heretix.measurement.artifact import check_target
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
    with Store.open(settings.db) as store:
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


def _show(artifacts: Artifacts, *, evidence: bool) -> None:
    from heretix.report.lenses import bundle_view, vector_view

    console = opt.console()
    for artifact in artifacts:
        console.print(vector_view(artifact))
        for bundle in artifact.bundles or () if evidence else ():
            console.print()
            console.print(bundle_view(bundle))
