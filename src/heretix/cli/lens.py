"""`heretix lens` and `anomalies`: a claim under several lenses, and where evidence moves most."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from heretix.cli import options as opt
from heretix.cli import output
from heretix.cli.run import add_evidence, deliver, exit_code, logging_requests, measure
from heretix.core.event_loop import STOP_SIGNALS, interrupt, run_async

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from heretix.config import Claim
    from heretix.measurement.anomalies import Anomaly
    from heretix.measurement.service import Artifacts, Measurement


@dataclass(frozen=True, kw_only=True)
class ExperimentOptions:
    """Measurements beside the lenses, to tell what moved the belief."""

    influence: Annotated[
        bool,
        typer.Option("--influence", help="Also measure without each document: which one moved it?"),
    ] = False
    canary: Annotated[
        bool, typer.Option("--canary", help="Also measure with a document that gives orders.")
    ] = False
    swap: Annotated[
        bool, typer.Option("--swap", help="Also measure with the documents in reverse order.")
    ] = False
    sham: Annotated[
        bool, typer.Option("--sham", help="Also measure with irrelevant documents of that length.")
    ] = False
    negation: Annotated[
        str | None,
        typer.Option("--negation", help="The claim's negation: does the model just say yes?"),
    ] = None
    other_policy: Annotated[
        str | None,
        typer.Option("--other-policy", help="A second policy: how far do results depend on it?"),
    ] = None

    def add_to(self, measurement: Measurement) -> Measurement:
        """Add the variants that are asked for, once the evidence is gathered."""
        asked = self.influence or self.canary or self.swap or self.sham
        if not asked and self.other_policy is None:
            from heretix.measurement.service import add_checks

            return add_checks(measurement)
        from heretix.measurement.experiments import Experiments, list_policy_notes, plan_experiments

        others = None
        if self.other_policy is not None:
            under = _gather_under_policy(self.other_policy, measurement)
            others, measurement = under.bundles, replace(measurement, spent=under.spent)
            for note in list_policy_notes(measurement, others):
                output.warn(note)
        wanted = Experiments(
            influence=self.influence, canary=self.canary, swap=self.swap, sham=self.sham
        )
        return plan_experiments(measurement, wanted, other_policy=others)


@dataclass(frozen=True, kw_only=True)
class BudgetedSampling(opt.SamplingOptions):
    """Options of sampling: models, repeats, language, and the budget."""

    language: opt.LanguageOption = None
    budget_usd: opt.BudgetOption = None


@opt.takes_options
def lens(
    *,
    claim: opt.ClaimArgument = None,
    config: opt.ConfigOption = None,
    evidence: opt.EvidenceOptions,
    out: opt.ArtifactOption = None,
    mock: opt.MockOption = False,
    sampling: BudgetedSampling,
    experiments: ExperimentOptions,
    show_evidence: Annotated[
        bool, typer.Option("--evidence", help="Show the documents behind each lens.")
    ] = False,
    db: opt.DbOption = None,
    verbose: opt.VerboseOption = False,
    as_json: opt.JsonOption = False,
) -> None:
    """Measure a claim with no evidence, mainstream, heterodox and your own, and compare.

    RPL sees nothing, NUL the frame without documents, MEL canonical sources, HEL documented
    sources outside the canon, SEL the documents you give. All of them are measured, SEL if there
    is a --document, with a canary and a swap of places beside it (unless --no-checks). Without
    --corpus or --search the demonstration corpus is used. Several days of --as-of, with commas
    between, are measured one by one.

    Exit codes: 0 measured, 1 a lens has too little evidence or no estimate, 2 something to put
    right first, 3 the provider, the network or the store failed, 130 stopped.
    """
    from heretix.config import parse_lenses

    days = [day.strip() for day in (evidence.as_of or "").split(",")]
    requests = []
    for day in days:
        dated = replace(evidence, as_of=day or None)
        request = opt.read_config(config, claim, sampling, dated)
        if "lenses" not in request.model_fields_set:
            given = bool(request.evidence and request.evidence.documents)
            request = request.override(lenses=parse_lenses("all", with_documents=given))
        requests.append(opt.require_shown(request, dated))
    targets = [out if len(days) == 1 else _date_target(out, day) for day in days]
    # Imported when the options are known to be sound: a mistake in them is told at once.
    from heretix.measurement.record import check_target
    from heretix.measurement.service import prepare

    for file in filter(None, targets):
        check_target(file, lines=False, tables=True)
    codes: list[int] = []
    budget_id = ""
    for request, target in zip(requests, targets, strict=True):
        prepared = prepare(request, opt.read_settings(db), mock=mock)
        # All days are one command, and have one budget.
        prepared = replace(prepared, budget_id=(budget_id := budget_id or prepared.budget_id))
        opposite = _read_negation(experiments.negation, prepared.claims)
        measurement = replace(experiments.add_to(add_evidence(prepared)), negation=opposite)
        log = logging_requests(verbose=verbose, as_json=as_json)
        with log, opt.open_store(db, create=True) as store:
            results = measure(measurement, store, out=target, many=False, as_json=as_json)
            deliver(
                results,
                measurement,
                store,
                out=target,
                many=False,
                as_json=as_json,
                show=lambda artifacts: _show(artifacts, evidence=show_evidence),
            )
        codes.append(exit_code(results, measurement))
    if len(days) > 1 and out is not None:
        files = " ".join(str(target) for target in targets)
        output.warn(f"heretix report {files} -o series.html draws them over time", style="dim")
    raise typer.Exit(max(codes))


def _date_target(out: Path | None, day: str) -> Path | None:
    """The file of one day of a series: the day stands before the ending."""
    if out is None:
        return None
    head, dot, ending = out.name.partition(".")
    return out.with_name(f"{head}-{day}{dot}{ending}")


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


def _gather_under_policy(policy: str, measurement: Measurement) -> Measurement:
    """Gather what the lenses that a policy decides over would show under another one."""
    from heretix.config import EvidenceConfig
    from heretix.core.lenses import SEARCHED
    from heretix.measurement.service import gather_evidence

    config = measurement.config
    evidence = (config.evidence or EvidenceConfig()).model_copy(update={"policy": policy})
    lenses = tuple(lens for lens in config.lenses if lens in SEARCHED)
    other = config.model_copy(update={"evidence": evidence, "lenses": lenses})
    with output.err_console().status("searching under the other policy"):
        gathering = gather_evidence(replace(measurement, config=other))
        return run_async(gathering, stop=interrupt, signals=STOP_SIGNALS)


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
