"""An execution: a plan under way, and the record that it becomes."""

from __future__ import annotations

import json
import unicodedata
import uuid
from collections import Counter
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

from heretix.belief.diagnostics import EXTREME_CLAMP, diagnose, weigh_extremes
from heretix.belief.estimator import (
    METHOD,
    METHOD_MEAN,
    METHOD_SIMPLE,
    Estimate,
    estimate,
    mean,
    trim_cut,
    trimmed_mean,
)
from heretix.belief.logodds import sigmoid
from heretix.belief.student import template_t
from heretix.core.canonical import canonical_json
from heretix.core.clock import utc_now
from heretix.core.errors import NoEstimateError
from heretix.measurement import record as records
from heretix.measurement.precision import Shape, find_unmet_gates, next_shape
from heretix.measurement.record import (
    EvidenceRecord,
    PrecisionRecord,
    ReasonRecord,
    RunRecord,
    SampleRecord,
)
from heretix.plan import Plan, PlannedSample, PrecisionStep
from heretix.prompts.bank import QUOTE_CHARS
from heretix.providers.catalog import Price, cost_micros
from heretix.readouts import (
    DISTRIBUTION,
    METHOD_PREFIX,
    READERS,
    SAMPLED,
    hold_numbers,
    missing_mass,
)
from heretix.sample import Attempt, Reading, Sample, columns_of
from heretix.store import ExecutionResult, ExecutionStart, Store
from heretix.store.runs import (
    finish_executions,
    save_used,
    select_finished,
    select_used,
    start_executions,
)
from heretix.store.samples import select_answers, select_samples
from heretix.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy import Connection

    from heretix.plan import Evidence
    from heretix.prompts.bank import Bank
    from heretix.providers.base import Reply


@dataclass(slots=True, eq=False)
class Execution:
    """A plan under way. It is complete when nothing is missing any more."""

    plan: Plan
    execution_id: str
    started_at: str
    price: Price | None
    held: dict[str, Sample] = field(default_factory=dict)
    """Samples by cache key."""
    reused: set[str] = field(default_factory=set)
    """Keys whose samples somebody else had paid for."""
    in_vain: list[Sample] = field(default_factory=list)
    """Answers that this execution paid for when another had come before."""

    @property
    def missing(self) -> list[PlannedSample]:
        """Attempts without a sample yet."""
        return [planned for planned in self.plan.samples if planned.cache_key not in self.held]

    @property
    def complete(self) -> bool:
        """Every attempt has its sample."""
        return len(self.held) == len(self.plan.samples)

    def reuse(self, sample: Sample) -> None:
        """Take a sample that was in the store."""
        self.held[sample.cache_key] = sample
        self.reused.add(sample.cache_key)

    def yield_to(self, first: Sample) -> None:
        """Take the answer that came first in place of our own: all executions use the same."""
        own = self.held[first.cache_key]
        if not own.failed and first.cache_key not in self.reused:
            self.in_vain.append(own)
        self.reuse(first)


def begin(
    store: Store, plans: Sequence[Plan], *, use_cache: bool, price: Price | None
) -> list[Execution]:
    """Write down that executions begin or grow, and give them what the store holds for them."""
    now = utc_now()
    begun = [plan.precision.begun if plan.precision else None for plan in plans]
    executions = [
        Execution(plan, of.execution_id, of.started_at, price)
        if of
        else Execution(plan, f"exec-{uuid.uuid4()}", now, price)
        for plan, of in zip(plans, begun, strict=True)
    ]
    used = store.read(select_used, [of.execution_id for of in begun if of]) if any(begun) else {}
    if use_cache or used:
        keys = [sample.cache_key for plan in plans for sample in plan.samples]
        known = store.read(select_answers, keys)
        for execution in executions:
            mine = used.get(execution.execution_id, {})
            for planned in execution.plan.samples:
                key = planned.cache_key
                if key not in known or not (use_cache or key in mine):
                    continue
                # What an earlier step called for was paid by this execution, and is no cache hit.
                if mine.get(key, True):
                    execution.reuse(known[key])
                else:
                    execution.held[key] = known[key]
    starts = [
        ExecutionStart(
            execution_id=execution.execution_id,
            run=run_row(execution.plan),
            config_json=plan_json(execution.plan),
            created_at=execution.started_at,
            grows=of is not None,
        )
        for execution, of in zip(executions, begun, strict=True)
    ]
    store.write(start_executions, starts)
    return executions


def finish(store: Store, executions: Sequence[Execution]) -> list[RunRecord]:
    """Aggregate complete executions, whose samples are stored, and store their records.

    A step that a larger one has to follow leaves its execution open: what it used is stored.
    """
    made = [
        build_run(
            execution.plan,
            [
                (planned, execution.held[planned.cache_key], planned.cache_key in execution.reused)
                for planned in execution.plan.samples
            ],
            execution_id=execution.execution_id,
            started_at=execution.started_at,
            finished_at=utc_now(),
            heretix_version=VERSION,
            price=execution.price,
            plugins=[records.PluginRecord.fill(plugin) for plugin in execution.plan.plugins],
            in_vain=_count_in_vain(execution),
        )
        for execution in executions
    ]
    results = [
        ExecutionResult(
            execution_id=record.execution_id,
            status=record.status,
            record_json=canonical_json(record.model_dump(mode="json")),
            finished_at=record.finished_at,
            run=run_row(execution.plan, record),
            samples=tuple((s.cache_key, s.from_cache) for s in record.samples),
        )
        for execution, record in zip(executions, made, strict=True)
        if not is_open(record)
    ]
    steps = {
        # A call that failed is made again in the next step.
        record.execution_id: {s.cache_key: s.from_cache for s in record.samples if not s.error}
        for record in made
        if is_open(record)
    }
    tried = False

    def save(connection: Connection) -> None:
        nonlocal tried
        # The connection may have broken when all of it was done.
        ids = [result.execution_id for result in results]
        done = select_finished(connection, ids) if tried else frozenset()
        tried = True
        finish_executions(connection, [r for r in results if r.execution_id not in done])
        save_used(connection, steps)

    store.write(save)
    return made


def is_open(record: RunRecord) -> bool:
    """Tell a step of an adaptive measurement that a larger one has to follow."""
    return record.precision is not None and record.precision.stopped is None


def close(
    store: Store, plans: Sequence[Plan], *, use_cache: bool, price: Price | None
) -> list[RunRecord]:
    """End executions, whose larger step was interrupted, with the step before: that of `plans`."""
    executions = begin(store, plans, use_cache=use_cache, price=price)
    for execution in executions:
        keys = [planned.cache_key for planned in execution.missing]
        # All of it was called for, and failed: nothing else is missing from a step that ended.
        execution.held |= store.read(select_samples, keys)
    return finish(store, [execution for execution in executions if execution.complete])


def make_sample(
    plan: Plan,
    planned: PlannedSample,
    *,
    reply: Reply | None,
    error: str | None,
    attempts: int,
    latency_ms: int,
    created_at: str,
) -> Sample:
    """Make the sample of one attempt: an answer that was read, or the error in its way."""
    values = {
        "raw_answer": reply.text if reply else None,
        "error": error,
        "attempts": attempts,
        "latency_ms": latency_ms,
        "created_at": created_at,
    }
    reading = READERS[plan.readout](reply.text, reply.finish) if reply else Reading()
    return Sample(run_id=plan.run_id, **columns_of(planned, reading, reply) | values)


def run_row(plan: Plan, record: RunRecord | None = None) -> dict[str, object]:
    """The `runs` row of a plan: its inputs, and its aggregates once there are any."""
    row: dict[str, object] = {
        "run_id": plan.run_id,
        "claim": plan.claim,
        "model": plan.model.identity,
        "provider": plan.model.provider,
        "prompt_version": plan.bank.version,
        "lens": plan.lens,
        "bundle_id": plan.evidence.bundle_id if plan.evidence else None,
        # A read-out other than sampling is never taken for the belief of a claim and model.
        "variant": plan.evidence.variant if plan.evidence else _readout_variant(plan),
        "K": plan.K,
        "R": plan.R,
        "T": plan.T,
        "B": plan.B,
        "seed": str(plan.bootstrap_seed) if plan.seed_source != "derived" else None,
        "bootstrap_seed": str(plan.bootstrap_seed),
        "sampler_json": canonical_json(
            {
                "T_bank": plan.bank.T_bank,
                "rotation_offset": plan.rotation_offset,
                "tpl_indices": plan.tpl_indices,
                "seq": plan.seq,
            }
        ),
        "config_json": plan_json(plan),
    }
    if record is not None:
        belief, aggregation = record.aggregates, record.aggregation
        row |= belief.model_dump(exclude={"ci95"})
        row["ci_lo"], row["ci_hi"] = belief.ci95 or (None, None)
        row["template_iqr_logit"] = aggregation.template_iqr_logit
        row["imbalance_ratio"] = aggregation.imbalance_ratio
        row["counts_by_template_json"] = canonical_json(aggregation.counts_by_template)
    return row


def _readout_variant(plan: Plan) -> str | None:
    return None if plan.readout == SAMPLED else f"readout:{plan.readout}"


_ASKED: Final = (
    *("claim", "claim_id", "K", "R", "T", "B", "agg", "center", "trim", "bootstrap_seed"),
    *("seed_source", "max_output_tokens", "template_include", "template_exclude"),
)

_TARGET: Final = ("until_width", "max_samples")


def plan_json(plan: Plan) -> str:
    """The request, as the store keeps it."""
    return canonical_json(
        {
            **{name: getattr(plan, name) for name in _ASKED},
            "model": plan.model.identity,
            "prompt_version": plan.bank.version,
            "options": plan.options.as_dict(),
            **({} if plan.readout == SAMPLED else {"readout": plan.readout}),
            **({"columns": dict(plan.columns)} if plan.columns else {}),
            **({name: getattr(plan.precision, name) for name in _TARGET} if plan.precision else {}),
        }
    )


TRUSTED_RATE: Final = 0.9
"""Below this share of verified quotes, a lens isn't trusted: the model made sources up."""
_QUOTE_WORDS: Final = 3
"""A word or two stand in a document by chance: they show nothing of it."""
_QUOTE_LETTERS: Final = 12
"""In scripts without letter case, most of which put no spaces between words."""


def evidence_record(
    evidence: Evidence | None, answers: Sequence[str | None]
) -> EvidenceRecord | None:
    """Evidence shown, and what compliant answers did with it; None for the raw prior."""
    if evidence is None:
        return None
    texts = {item.id: item.text for item in evidence.items}
    quotes = [quote for answer in answers for quote in _read_quotes(answer)]
    verified = sum(quote is not None and _stands_in(texts, *quote) for quote in quotes)
    cut = sum(quote is not None and _is_cut(texts, *quote) for quote in quotes)
    used = Counter(name for answer in answers for name in _read_used(answer))
    whole = len(quotes) - cut
    rate = verified / whole if whole else None
    # Where every quote was cut, none was made up.
    trusted = (rate >= TRUSTED_RATE) if rate is not None else True if cut else None
    return EvidenceRecord.fill(
        evidence.frame,
        evidence,
        frame_version=evidence.frame.version,
        clauses=dict(evidence.frame.clauses),
        order=None if evidence.order is None else list(evidence.order),
        items=list(evidence.items),
        quotes_given=len(quotes),
        quotes_verified=verified,
        quotes_cut=cut,
        verified_quote_rate=rate,
        trusted=trusted,
        used={item.id: used[item.id] for item in evidence.items},
    )


def _stands_in(texts: dict[str, str], name: str, quote: str) -> bool:
    # Imported as needed: only lenses that show documents have quotes.
    from heretix.evidence.text.fold import find_quote

    text = texts.get(name)
    if text is None or not quote.strip() or find_quote(text, quote) is None:
        return False
    # An item that is shorter than any quote must be can still be quoted.
    return _is_long_enough(quote) or not _is_long_enough(text)


def _is_cut(texts: dict[str, str], name: str, quote: str) -> bool:
    """Check that the limit on a quote's length ended it early, and that what it holds till then is
    in the item: the part of a word that it ends with must begin the item's next word."""
    from heretix.evidence.text.fold import fold

    if len(quote) < QUOTE_CHARS or _stands_in(texts, name, quote):
        return False
    head = quote[:QUOTE_CHARS].rstrip()
    words = head.rpartition(" ")[0]
    return _stands_in(texts, name, words) and fold(head) in fold(texts[name])


def _is_long_enough(text: str) -> bool:
    """Tell whether a quote is long enough to show that the document was read."""
    from heretix.evidence.text.fold import fold

    folded = fold(text)
    uncased = sum(unicodedata.category(char) == "Lo" for char in folded)
    return len(folded.split()) >= _QUOTE_WORDS or uncased >= _QUOTE_LETTERS


def _read_quotes(answer: str | None) -> Iterator[tuple[str, str] | None]:
    """The quotes of an answer; None for each that isn't an id and a text."""
    given = _value(answer, "quotes")
    for quote in given if isinstance(given, list) else [given] if given is not None else []:
        name, text = (quote.get("id"), quote.get("text")) if isinstance(quote, dict) else (0, 0)
        yield (name, text) if isinstance(name, str) and isinstance(text, str) else None


def _read_used(answer: str | None) -> set[str]:
    given = _value(answer, "used")
    return {name for name in given if isinstance(name, str)} if isinstance(given, list) else set()


def _value(answer: str | None, key: str) -> Any:
    """A part of an answer. The rule of compliance only asks for `prob_true`; the rest may lack."""
    return json.loads(answer or "{}").get(key)


def build_run(
    plan: Plan,
    samples: Sequence[tuple[PlannedSample, Sample, bool]],
    *,
    execution_id: str,
    started_at: str,
    finished_at: str,
    heretix_version: str,
    price: Price | None,
    plugins: Sequence[records.PluginRecord] = (),
    in_vain: records.InVain | None = None,
) -> RunRecord:
    """Aggregate what an execution got, in the plan's order, and write it down.

    `samples` holds (attempt, sample, served from cache). Verification calls this again on what a
    record holds, so a number can't be recorded in one way and checked in another.
    """
    rows = [_sample_record(*of_attempt) for of_attempt in samples]
    logits: dict[str, list[float]] = {}
    for row in rows:
        if row.compliant and row.logit is not None:
            logits.setdefault(row.prompt_sha256, []).append(row.logit)
    belief, reason = _estimate(plan, logits, rows)
    compliant = [row for row in rows if row.compliant]
    compliance = len(compliant) / len(rows)
    models = {row.provider_model_id for row in rows if row.error is None}
    unsigned = RunRecord.fill(
        plan,
        execution_id=execution_id,
        model=plan.model.identity,
        provider=plan.model.provider,
        provider_model_id=models.pop() if len(models) == 1 else None,
        served=_count_served(rows),
        demonstration=plan.model.is_demonstration,
        readout=_readout(plan, compliant),
        evidence=evidence_record(plan.evidence, [row.raw_answer for row in compliant]),
        prompt_version=plan.bank.version,
        prompts=_prompts(plan.bank),
        sampling=records.Sampling.fill(plan),
        sampler=_sampler(plan),
        options=records.SentOptions.fill(plan, plan.options),
        aggregation=_aggregation(plan, belief, logits),
        paraphrase_balance=_balance(plan, compliant),
        aggregates=records.Aggregates.fill(
            belief,
            prob_true_rpl=belief.prob_true if belief else None,
            ci95=(belief.ci_lo, belief.ci_hi) if belief else None,
            rpl_compliance_rate=compliance,
            cache_hit_rate=sum(row.from_cache for row in rows) / len(rows),
        ),
        diagnostics=_diagnostics(plan, logits) if belief else None,
        beside=_make_beside(plan, belief, logits, compliant) if belief else None,
        precision=_precision(plan, belief, compliance),
        usage=_usage(rows, price, in_vain),
        status="ok" if belief else "no_estimate",
        reason=reason,
        started_at=started_at,
        finished_at=finished_at,
        heretix_version=heretix_version,
        plugins=list(plugins),
        samples=rows,
        sha256="",
    )
    return unsigned.model_copy(update={"sha256": records.digest_of(unsigned)})


def _sample_record(planned: PlannedSample, sample: Sample, from_cache: bool) -> SampleRecord:
    return SampleRecord(
        slot=planned.slot,
        from_cache=from_cache,
        compliant=sample.compliant,
        **columns_of(sample, planned),
    )


def _estimate(
    plan: Plan, logits: dict[str, list[float]], rows: Sequence[SampleRecord]
) -> tuple[Estimate | None, ReasonRecord | None]:
    """Estimate, or say why not. Where calls failed that is the cause, and no more samples help."""
    try:
        belief = estimate(
            logits,
            B=plan.B,
            center=plan.center,
            trim=plan.trim,
            seed=plan.bootstrap_seed,
            agg=plan.agg,
            planned_templates=len(plan.prompts),
        )
    except NoEstimateError as exc:
        failed = [row.error for row in rows if row.error is not None]
        if len(failed) == len(rows):
            return None, ReasonRecord(code="calls_failed", params={"error": failed[-1]})
        params = dict(exc.params)
        if failed:
            params |= {"failed": len(failed), "attempted": len(rows), "error": failed[-1]}
        return None, ReasonRecord.model_validate({"code": exc.code, "params": params})
    return belief, None


def _prompts(bank: Bank) -> records.Prompts:
    # A file is named without its folders: a record tells nothing of a machine.
    source, wordings = PurePath(bank.source).name, list(bank.paraphrases)
    return records.Prompts.fill(bank, bank_sha256=bank.sha256, source=source, paraphrases=wordings)


def _sampler(plan: Plan) -> records.Sampler:
    include, exclude = plan.template_include, plan.template_exclude
    return records.Sampler(
        T_bank=plan.bank.T_bank,
        rotation_offset=plan.rotation_offset,
        tpl_indices=list(plan.tpl_indices),
        seq=list(plan.seq),
        template_include=None if include is None else list(include),
        template_exclude=None if exclude is None else list(exclude),
    )


def _aggregation(
    plan: Plan, belief: Estimate | None, logits: dict[str, list[float]]
) -> records.Aggregation:
    method = METHOD if plan.center == "trimmed" else METHOD_MEAN
    method = METHOD_SIMPLE if plan.agg == "simple" else method
    return records.Aggregation.fill(
        plan,
        method=METHOD_PREFIX[plan.readout] + method,
        bootstrap_seed_text=str(plan.bootstrap_seed) if plan.bootstrap_seed > 2**53 else None,
        n_templates=len(logits),
        counts_by_template={sha: len(logits[sha]) for sha in sorted(logits)},
        # That of the samples: the plan has one of its own.
        imbalance_ratio=belief.imbalance_ratio if belief else None,
        template_iqr_logit=belief.template_iqr_logit if belief else None,
    )


def _balance(plan: Plan, compliant: Sequence[SampleRecord]) -> records.Balance:
    counts = Counter(row.paraphrase_idx for row in compliant)
    # A planned template that gave nothing has a count of 0 and is left out of the ratio,
    # which would be infinite; the zero stands in `counts`.
    return records.Balance(
        counts={str(index): counts[index] for index in plan.counts},
        imbalance_ratio=max(counts.values()) / min(counts.values()) if counts else None,
        planned_imbalance_ratio=plan.imbalance_ratio,
    )


def _diagnostics(plan: Plan, logits: dict[str, list[float]]) -> records.DiagnosticsRecord:
    index_of = {prompt.sha256: index for index, prompt in plan.prompts.items()}
    found = diagnose(logits, center=plan.center, trim=plan.trim)
    return records.DiagnosticsRecord.fill(
        found,
        variance_between=found.variance.between if found.variance else None,
        variance_within=found.variance.within if found.variance else None,
        between_share=found.variance.between_share if found.variance else None,
        variance_note=found.variance_reason,
        templates=[
            records.TemplateRow.fill(
                row, paraphrase_idx=index_of[row.template], prompt_sha256=row.template
            )
            for row in sorted(found.templates, key=lambda row: index_of[row.template])
        ],
    )


def _make_beside(
    plan: Plan,
    belief: Estimate,
    logits: dict[str, list[float]],
    compliant: Sequence[SampleRecord],
) -> records.BesideRecord:
    probs: dict[str, list[float]] = {}
    for row in compliant:
        prob = row.prob_true
        if plan.readout == DISTRIBUTION:
            # It is the numbers in it that are held, not their mean.
            found = hold_numbers(row.raw_answer or "", within=EXTREME_CLAMP)
            prob = sigmoid(found[1]) if found else None
        elif plan.readout != SAMPLED and row.logit is not None:
            # An answer in log-probabilities has log-odds of its own, which no probability clamps.
            prob = sigmoid(row.logit)
        if prob is not None:
            probs.setdefault(row.prompt_sha256, []).append(prob)
    extremes = weigh_extremes(
        probs,
        prob_true=belief.prob_true,
        ci_width=belief.ci_width,
        center=plan.center,
        trim=plan.trim,
        agg=plan.agg,
    )
    masses = _extreme_masses(plan, compliant)
    return records.BesideRecord.fill(
        extremes,
        template_t=_template_t(plan, logits) if plan.agg == "clustered" else None,
        n_extreme=sum(mass >= _LIKELY for mass in masses) if masses else extremes.n_extreme,
        extreme_share=mean(masses) if masses else extremes.share,
    )


def _template_t(plan: Plan, logits: dict[str, list[float]]) -> records.TemplateTRecord | None:
    try:
        found = template_t(logits, center=plan.center, trim=plan.trim)
    except NoEstimateError:
        return None
    return records.TemplateTRecord(
        ci95=(found.ci_lo, found.ci_hi),
        ci_width=found.ci_width,
        se_logit=found.logit.se,
        df=found.logit.df,
    )


def _readout(plan: Plan, compliant: Sequence[SampleRecord]) -> records.ReadoutRecord | None:
    if plan.readout == SAMPLED:
        return None
    masses = [missing_mass(plan.readout, row.raw_answer or "") for row in compliant]
    known = sorted(mass for mass in masses if mass is not None)
    extreme = _extreme_masses(plan, compliant)
    # One answer a wording: an answer's probability is its wording's mean.
    probs = [row.prob_true for row in compliant if row.prob_true is not None]
    cut = trim_cut(len(probs), center=plan.center, trim=plan.trim)
    return records.ReadoutRecord(
        name=plan.readout,
        prob_mean=trimmed_mean(probs, cut) if probs else None,
        missing_mass=mean(known) if known else None,
        missing_mass_max=max(known, default=None),
        extreme_mass=mean(extreme) if extreme else None,
    )


_LIKELY: Final = 0.005
"""Least probability of exactly 0 and 1 with which a distribution is counted among extremes."""


def _extreme_masses(plan: Plan, compliant: Sequence[SampleRecord]) -> list[float]:
    """Probabilities of exactly 0 and 1 in each distribution; none of other read-outs."""
    if plan.readout != DISTRIBUTION:
        return []
    found = [hold_numbers(row.raw_answer or "", within=EXTREME_CLAMP) for row in compliant]
    return [one[0] for one in found if one is not None]


def _precision(plan: Plan, belief: Estimate | None, compliance: float) -> PrecisionRecord | None:
    rule = plan.precision
    if rule is None:
        return None
    width = belief.ci_width if belief else None
    unmet = find_unmet_gates(rule, width, compliance)
    larger = next_shape(Shape(plan.K, plan.R, plan.T), plan.pool_size)
    this = PrecisionStep(
        K=plan.K, R=plan.R, T=plan.T, ci_width=width, rpl_compliance_rate=compliance, unmet=unmet
    )
    stopped = "max_samples" if rule.max_samples < larger.N else None
    if rule.interrupted:
        stopped = stopped or "interrupted"
    return PrecisionRecord.fill(
        rule, steps=[*rule.steps, this], stopped=stopped if unmet else "gates_passed"
    )


def _count_served(rows: Sequence[SampleRecord]) -> list[records.Served]:
    counts = Counter((row.provider_model_id, row.fingerprint) for row in rows if row.error is None)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], str(item[0])))
    return [
        records.Served(provider_model_id=model, fingerprint=fingerprint, samples=count)
        for (model, fingerprint), count in ordered
    ]


def _count_in_vain(execution: Execution) -> records.InVain | None:
    if not execution.in_vain:
        return None
    return records.InVain(
        calls=len(execution.in_vain),
        tokens_in=_total([sample.tokens_in for sample in execution.in_vain]),
        tokens_out=_total([sample.tokens_out for sample in execution.in_vain]),
        cost_usd=_cost_usd(execution.in_vain, execution.price),
    )


def _usage(
    rows: Sequence[SampleRecord], price: Price | None, in_vain: records.InVain | None
) -> records.Usage:
    called = [row for row in rows if not row.from_cache]
    reasons = Counter(str(row.noncompliance) for row in rows if row.noncompliance is not None)
    return records.Usage(
        attempted=len(rows),
        compliant=sum(row.compliant for row in rows),
        noncompliant=dict(sorted(reasons.items())),
        failed=sum(row.error is not None for row in rows),
        from_cache=len(rows) - len(called),
        called=len(called),
        tokens_in=_total([row.tokens_in for row in called]),
        tokens_out=_total([row.tokens_out for row in called]),
        price=None
        if price is None
        else records.PriceRecord(
            input_usd_per_mtok=str(price.input_usd_per_mtok),
            output_usd_per_mtok=str(price.output_usd_per_mtok),
            as_of=price.as_of.isoformat() if price.as_of else None,
        ),
        cost_usd=_cost_usd([row for row in called if row.error is None], price),
        in_vain=in_vain,
    )


def _cost_usd(answered: Sequence[Attempt], price: Price | None) -> float | None:
    """Cost of the answers, rounded once; unknown when a price or a count of tokens is."""
    if price is None:
        return None
    if price.is_free:
        return 0.0
    tokens_in = tokens_out = 0
    for row in answered:
        if row.tokens_in is None or row.tokens_out is None:
            return None
        tokens_in += row.tokens_in
        tokens_out += row.tokens_out
    return cost_micros(price, tokens_in, tokens_out) / 1e6


def _total(counts: Sequence[int | None]) -> int | None:
    """Sum of what is known; unknown when nothing is."""
    known = [count for count in counts if count is not None]
    return sum(known) if known or not counts else None
