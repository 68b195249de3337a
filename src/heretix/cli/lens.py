"""`heretix lens` and `anomalies`: a claim under several lenses, and where evidence moves most."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heretix.cli import options as opt
from heretix.cli.output import print_json
from heretix.cli.run import deliver, exit_code, measure, with_evidence
from heretix.core.event_loop import run_async

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heretix.config import Claim
    from heretix.measurement.experiments import Experiments
    from heretix.measurement.gather import Bundles
    from heretix.measurement.service import Artifacts, Measurement

# `heretix lens`: the same claim under several lenses.


def lens(
    claim: opt.ClaimArgument = None,
    config: opt.ConfigOption = None,
    lenses: opt.LensOption = None,
    corpus: opt.CorpusOption = None,
    search: opt.SearchOption = None,
    policy: opt.PolicyOption = None,
    document: opt.DocumentOption = None,
    as_of: opt.AsOfOption = None,
    judge: opt.JudgeOption = None,
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
    sources outside the canon, SEL the documents you give. All of them are measured, SEL if there
    is a --document. Without --corpus or --search the demonstration corpus is used.

    Exit codes: 0 measured, 1 a lens has too little evidence or no estimate, 2 something to put
    right first, 3 the provider, the network or the store failed, 130 stopped.
    """
    from heretix.config import parse_lenses
    from heretix.core.settings import Settings

    request = opt.read_config(
        config,
        claim,
        models=model,
        K=K,
        R=R,
        T=T,
        B=B,
        seed=seed,
        **opt.evidence_options(lenses, corpus, search, policy, document, as_of, judge),
    )
    if lenses is None and "lenses" not in request.model_fields_set:
        given = bool(request.evidence and request.evidence.documents)
        request = request.replaced(lenses=parse_lenses("all", with_documents=given))
    # Imported when the options are known to be sound: a mistake in them is told at once.
    from heretix.measurement.experiments import Experiments
    from heretix.measurement.record import check_target
    from heretix.measurement.service import prepare
    from heretix.store import Store

    settings = Settings.from_env()
    settings = replace(settings, db=db or settings.db)
    if out is not None:
        check_target(out, lines=False)
    prepared = prepare(request, settings, mock=mock)
    opposite = _negation(negation, prepared.claims)
    measurement = with_evidence(prepared)
    wanted = Experiments(influence=influence, canary=canary, sham=sham)
    measurement = replace(_experimental(measurement, wanted, other_policy), negation=opposite)
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
    raise typer.Exit(exit_code(results, measurement))


def _negation(text: str | None, claims: Sequence[Claim]) -> Claim | None:
    """The negation of the claim, if one is given and can be one."""
    from heretix.config import Claim, check_claim
    from heretix.core.errors import ConfigError

    if text is None:
        return None
    negation = Claim(check_claim(text))
    if len(claims) > 1:
        raise ConfigError(f"`--negation` must go with one claim, got {len(claims)}; name one")
    if negation.text == claims[0].text:
        raise ConfigError("`--negation` must deny the claim, got the claim itself")
    return negation


def _experimental(
    measurement: Measurement, wanted: Experiments, other_policy: str | None
) -> Measurement:
    """The measurement with its experiments; where a policy changes nothing, that is told."""
    from heretix.measurement.experiments import policy_notes, with_experiments

    others = None
    if other_policy is not None:
        others = _bundles_under(other_policy, measurement)
        for note in policy_notes(measurement, others):
            opt.err_console().print(note, style="yellow", markup=False)
    return with_experiments(measurement, wanted, other_policy=others)


def _bundles_under(policy: str, measurement: Measurement) -> Bundles:
    """What the lenses that a policy decides over would show under another one."""
    from heretix.config import EvidenceConfig
    from heretix.core.lenses import SEARCHED
    from heretix.measurement.gather import gather_bundles

    config = measurement.config
    evidence = (config.evidence or EvidenceConfig()).model_copy(update={"policy": policy})
    lenses = [lens for lens in config.lenses if lens in SEARCHED]
    with opt.err_console().status("searching under the other policy"):
        return run_async(gather_bundles(measurement.claims, lenses, evidence, measurement.settings))


def _show(artifacts: Artifacts, *, evidence: bool) -> None:
    from heretix.report.terminal import bundle_view, vector_view

    console = opt.console()
    for artifact in artifacts:
        # What lacks evidence was told, with the reason, before anything was measured.
        console.print(vector_view(artifact, lacking_told=True))
        for bundle in artifact.bundles or () if evidence else ():
            console.print()
            console.print(bundle_view(bundle))


# `heretix anomalies`: where evidence moves a model most.


def anomalies(
    limit: Annotated[int, typer.Option("--limit", "-n", help="At most this many.", min=1)] = 20,
    everything: Annotated[
        bool, typer.Option("--all", help="Also those that don't pass, with why.")
    ] = False,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Rank stored claims by how far evidence moves the belief in them.

    Listed are claims with at least 3 documents from 2 effective sources, verified quotes and a
    stable raw prior; of those listed, at most 10% are expected to be there by chance.
    """
    from rich.table import Table
    from rich.text import Text

    from heretix.core.settings import Settings
    from heretix.measurement.anomalies import find_anomalies
    from heretix.store import Store

    location = db or Settings.from_env().db
    with Store.open(location, create=False, absent=opt.NOTHING_SHOWN) as store:
        found = find_anomalies(store)
    shown = [anomaly for anomaly in found if anomaly.listed or everything][:limit]
    if as_json:
        content = [
            {
                **asdict(anomaly),
                "shock_index": anomaly.shock_index and anomaly.shock_index.model_dump(),
                "amplification_gap": anomaly.amplification_gap
                and anomaly.amplification_gap.model_dump(),
            }
            for anomaly in shown
        ]
        print_json(content)
        return
    console = opt.console()
    if not found:
        console.print(
            'no claim was measured with evidence yet; `heretix lens "A claim."` does that'
        )
        return
    if not shown:
        console.print(
            f"no anomalies among {len(found)} claims with evidence lenses; "
            "`heretix lens` measures more, --all shows why these don't pass"
        )
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("Shock Index", "Amplification Gap", "model"):
        table.add_column(name, no_wrap=True)
    table.add_column("claim")
    for anomaly in shown:
        shock, gap = anomaly.shock_index, anomaly.amplification_gap
        claim = Text(" ".join(anomaly.claim.split()), no_wrap=True, overflow="ellipsis")
        if not anomaly.listed:
            why = ", ".join(anomaly.gates_failed) or "could be chance"
            claim = Text(f"({why}) ", style="yellow") + claim
        table.add_row(
            "—" if shock is None else f"{shock.value:.3f} [{shock.lo:.3f}, {shock.hi:.3f}]",
            "—" if gap is None else f"{gap.value:+.3f} [{gap.lo:+.3f}, {gap.hi:+.3f}]",
            Text(anomaly.model),
            claim,
        )
    console.print(table)
