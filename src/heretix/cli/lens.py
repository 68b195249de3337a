"""`heretix lens` and `anomalies`: a claim under several lenses, and where evidence moves most."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from heretix.cli import options as opt
from heretix.cli import output
from heretix.cli.run import deliver, exit_code, measure, with_evidence
from heretix.core.event_loop import run_async

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heretix.config import Claim
    from heretix.measurement.anomalies import Anomaly
    from heretix.measurement.gather import Bundles
    from heretix.measurement.service import Artifacts, Measurement


@opt.takes_options
def lens(
    *,
    claim: opt.ClaimArgument = None,
    config: opt.ConfigOption = None,
    evidence: opt.EvidenceOptions,
    out: opt.ArtifactOption = None,
    mock: opt.MockOption = False,
    sampling: opt.SamplingOptions,
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

    request = opt.read_config(config, claim, sampling, evidence)
    if "lenses" not in request.model_fields_set:
        given = bool(request.evidence and request.evidence.documents)
        request = request.replaced(lenses=parse_lenses("all", with_documents=given))
    # Imported when the options are known to be sound: a mistake in them is told at once.
    from heretix.measurement.experiments import Experiments, policy_notes, with_experiments
    from heretix.measurement.record import check_target
    from heretix.measurement.service import prepare

    if out is not None:
        check_target(out, lines=False)
    prepared = prepare(request, opt.read_settings(db), mock=mock)
    opposite = _read_negation(negation, prepared.claims)
    measurement = with_evidence(prepared)
    others = None
    if other_policy is not None:
        others = _bundles_under(other_policy, measurement)
        for note in policy_notes(measurement, others):
            output.warn(note)
    wanted = Experiments(influence=influence, canary=canary, sham=sham)
    measurement = with_experiments(measurement, wanted, other_policy=others)
    measurement = replace(measurement, negation=opposite)
    with opt.open_store(db, create=True) as store:
        results = measure(measurement, store, out=out, many=False, as_json=as_json)
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


def _read_negation(text: str | None, claims: Sequence[Claim]) -> Claim | None:
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


def _bundles_under(policy: str, measurement: Measurement) -> Bundles:
    """Gather what the lenses that a policy decides over would show under another one."""
    from heretix.config import EvidenceConfig
    from heretix.core.lenses import SEARCHED
    from heretix.measurement.gather import gather_bundles

    config = measurement.config
    evidence = (config.evidence or EvidenceConfig()).model_copy(update={"policy": policy})
    lenses = [lens for lens in config.lenses if lens in SEARCHED]
    with output.err_console().status("searching under the other policy"):
        return run_async(gather_bundles(measurement.claims, lenses, evidence, measurement.settings))


def _show(artifacts: Artifacts, *, evidence: bool) -> None:
    from heretix.report.terminal import bundle_view, vector_view

    console = output.console()
    for artifact in artifacts:
        # What lacks evidence was told, with the reason, before anything was measured.
        console.print(vector_view(artifact, lacking_told=True))
        for bundle in artifact.bundles or () if evidence else ():
            console.print()
            console.print(bundle_view(bundle))


def anomalies(
    limit: opt.LimitOption = 20,
    everything: Annotated[
        bool, typer.Option("--all", help="Also those that don't pass, with why.")
    ] = False,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Rank stored claims by how far evidence moves the belief in them.

    Listed are claims with at least 3 documents from 2 effective sources, verified quotes and a
    stable raw prior, which evidence moves more than irrelevant text does (`lens --sham`); of those
    listed, at most 10% are expected to be there by chance.
    """
    from heretix.measurement.anomalies import find_anomalies
    from heretix.report.terminal import anomalies_table

    with opt.open_store(db, absent=opt.NOTHING_SHOWN) as store:
        found = find_anomalies(store)
    shown: list[Anomaly] = [anomaly for anomaly in found if anomaly.listed or everything][:limit]
    nothing = (
        f"no anomalies among {len(found)} claims with evidence lenses; "
        "`heretix lens` measures more, --all shows why these don't pass"
        if found
        else 'no claim was measured with evidence yet; `heretix lens "A claim."` does that'
    )
    output.show(shown, anomalies_table, as_json=as_json, empty=nothing)
