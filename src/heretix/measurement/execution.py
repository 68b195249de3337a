"""An execution: a plan under way, and the record that it becomes."""

from __future__ import annotations

import json
import unicodedata
import uuid
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

from heretix.belief.diagnostics import diagnose
from heretix.belief.estimator import METHOD, METHOD_MEAN, METHOD_SIMPLE, Estimate, estimate
from heretix.core.canonical import canonical_json
from heretix.core.clock import utc_now
from heretix.core.errors import NoEstimateError
from heretix.measurement.precision import Shape, next_shape, unmet_gates
from heretix.measurement.record import (
    Aggregates,
    Aggregation,
    Balance,
    DiagnosticsRecord,
    EvidenceRecord,
    PluginRecord,
    PrecisionRecord,
    PriceRecord,
    Prompts,
    RunRecord,
    Sampler,
    SampleRecord,
    Sampling,
    SentOptions,
    Served,
    ShownItemRecord,
    TemplateRow,
    Usage,
    digest_of,
)
from heretix.plan import Plan, PlannedSample, PrecisionStep
from heretix.providers.prices import Price, cost_micros
from heretix.sample import Sample, logit_of, read_answer
from heretix.store import ExecutionResult, ExecutionStart, Store
from heretix.store.runs import finish_executions, start_executions
from heretix.store.samples import select_answers
from heretix.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from heretix.plan import Evidence
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

    def record(self) -> RunRecord:
        """What the execution found."""
        return build_run(
            self.plan,
            [
                (planned, self.held[planned.cache_key], planned.cache_key in self.reused)
                for planned in self.plan.samples
            ],
            execution_id=self.execution_id,
            started_at=self.started_at,
            finished_at=utc_now(),
            heretix_version=VERSION,
            price=self.price,
            plugins=[PluginRecord.of(plugin) for plugin in self.plan.plugins],
        )


def begin(
    store: Store, plans: Sequence[Plan], *, use_cache: bool, price: Price | None
) -> list[Execution]:
    """Write down that executions begin, and give them what the cache holds."""
    now = utc_now()
    executions = [Execution(plan, f"exec-{uuid.uuid4()}", now, price) for plan in plans]
    if use_cache:
        keys = [sample.cache_key for plan in plans for sample in plan.samples]
        cached = store.read(select_answers, keys)
        for execution in executions:
            for planned in execution.plan.samples:
                if planned.cache_key in cached:
                    execution.reuse(cached[planned.cache_key])
    store.write(
        start_executions,
        [
            ExecutionStart(
                execution_id=execution.execution_id,
                run=run_row(execution.plan),
                config_json=plan_json(execution.plan),
                created_at=now,
            )
            for execution in executions
        ],
    )
    return executions


def finish(store: Store, executions: Sequence[Execution]) -> list[RunRecord]:
    """Aggregate complete executions, whose samples are stored, and store their records."""
    records = [execution.record() for execution in executions]
    store.write(
        finish_executions,
        [
            ExecutionResult(
                execution_id=record.execution_id,
                status=record.status,
                record_json=canonical_json(record.model_dump(mode="json")),
                finished_at=record.finished_at,
                run=run_row(execution.plan, record),
                samples=tuple((s.cache_key, s.from_cache) for s in record.samples),
            )
            for execution, record in zip(executions, records, strict=True)
        ],
    )
    return records


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
    """What one attempt gave: an answer that was read, or the error that stood in its way."""
    reading = read_answer(reply.text, reply.finish) if reply else None
    return Sample(
        cache_key=planned.cache_key,
        run_id=plan.run_id,
        prompt_sha256=planned.prompt_sha256,
        paraphrase_idx=planned.paraphrase_idx,
        replicate_idx=planned.replicate_idx,
        prob_true=reading.prob_true if reading else None,
        logit=logit_of(reading.prob_true) if reading else None,
        json_valid=reading.json_valid if reading else False,
        noncompliance=reading.noncompliance if reading else None,
        raw_answer=reply.text if reply else None,
        error=error,
        provider_model_id=reply.provider_model_id if reply else None,
        response_id=reply.response_id if reply else None,
        fingerprint=reply.fingerprint if reply else None,
        tokens_in=reply.tokens_in if reply else None,
        tokens_out=reply.tokens_out if reply else None,
        temperature=reply.temperature if reply else None,
        attempts=attempts,
        latency_ms=latency_ms,
        created_at=created_at,
    )


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
        "variant": plan.evidence.variant if plan.evidence else None,
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
        ci_lo, ci_hi = belief.ci95 or (None, None)
        row |= {
            "prob_true_rpl": belief.prob_true_rpl,
            "ci_lo": ci_lo,
            "ci_hi": ci_hi,
            "ci_width": belief.ci_width,
            "stability_score": belief.stability_score,
            "stability_band": belief.stability_band,
            "is_stable": belief.is_stable,
            "template_iqr_logit": aggregation.template_iqr_logit,
            "imbalance_ratio": aggregation.imbalance_ratio,
            "rpl_compliance_rate": belief.rpl_compliance_rate,
            "cache_hit_rate": belief.cache_hit_rate,
            "counts_by_template_json": canonical_json(aggregation.counts_by_template),
        }
    return row


def plan_json(plan: Plan) -> str:
    """What was asked for, as the store keeps it."""
    return canonical_json(
        {
            "claim": plan.claim,
            "claim_id": plan.claim_id,
            "model": plan.model.identity,
            "prompt_version": plan.bank.version,
            "K": plan.K,
            "R": plan.R,
            "T": plan.T,
            "B": plan.B,
            "agg": plan.agg,
            "center": plan.center,
            "trim": plan.trim,
            "bootstrap_seed": plan.bootstrap_seed,
            "seed_source": plan.seed_source,
            "max_output_tokens": plan.max_output_tokens,
            "template_include": plan.template_include,
            "template_exclude": plan.template_exclude,
            "options": plan.options.as_dict(),
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
    """What was shown, and what compliant answers did with it; None for the raw prior."""
    if evidence is None:
        return None
    texts = {item.id: item.text for item in evidence.items}
    quotes = [quote for answer in answers for quote in _quotes(answer)]
    verified = sum(quote is not None and _stands_in(texts, *quote) for quote in quotes)
    used = Counter(name for answer in answers for name in _used(answer))
    rate = verified / len(quotes) if quotes else None
    frame = evidence.frame
    return EvidenceRecord(
        frame_version=frame.version,
        system=frame.system,
        user_template=frame.user_template,
        no_documents=frame.no_documents,
        clauses=dict(frame.clauses),
        bundle_id=evidence.bundle_id,
        variant=evidence.variant,
        order=None if evidence.order is None else list(evidence.order),
        items=[ShownItemRecord(id=item.id, text=item.text) for item in evidence.items],
        quotes_given=len(quotes),
        quotes_verified=verified,
        verified_quote_rate=rate,
        trusted=None if rate is None else rate >= TRUSTED_RATE,
        used={item.id: used[item.id] for item in evidence.items},
    )


def _stands_in(texts: dict[str, str], name: str, quote: str) -> bool:
    # Imported as needed: only lenses that show documents have quotes.
    from heretix.evidence.text.fold import find_quote

    text = texts.get(name)
    if text is None or not quote.strip() or find_quote(text, quote) is None:
        return False
    # An item that is shorter than any quote must be can still be quoted.
    return _tells(quote) or not _tells(text)


def _tells(text: str) -> bool:
    """Long enough to show that the document was read."""
    from heretix.evidence.text.fold import fold

    folded = fold(text)
    uncased = sum(unicodedata.category(char) == "Lo" for char in folded)
    return len(folded.split()) >= _QUOTE_WORDS or uncased >= _QUOTE_LETTERS


def _quotes(answer: str | None) -> Iterator[tuple[str, str] | None]:
    """The quotes of an answer; None for each that isn't an id and a text."""
    given = _value(answer, "quotes")
    for quote in given if isinstance(given, list) else [given] if given is not None else []:
        name, text = (quote.get("id"), quote.get("text")) if isinstance(quote, dict) else (0, 0)
        yield (name, text) if isinstance(name, str) and isinstance(text, str) else None


def _used(answer: str | None) -> set[str]:
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
    plugins: Sequence[PluginRecord] = (),
) -> RunRecord:
    """Aggregate what an execution got, in the plan's order, and write it down.

    `samples` holds (attempt, sample, served from cache). Verification calls this again on what a
    record holds, so a number can't be recorded in one way and checked in another.
    """
    rows = [_sample_record(*triple) for triple in samples]
    logits = _logits_by_template(rows)
    belief, reason = _estimate(plan, logits)
    compliant = sum(row.compliant for row in rows)
    values: dict[str, Any] = {
        "execution_id": execution_id,
        "run_id": plan.run_id,
        "claim": plan.claim,
        "claim_id": plan.claim_id,
        "model": plan.model.identity,
        "provider": plan.model.provider,
        "provider_model_id": _only_model(rows),
        "served": _served(rows),
        "demonstration": plan.model.is_demonstration,
        "lens": plan.lens,
        "evidence": evidence_record(
            plan.evidence, [row.raw_answer for row in rows if row.compliant]
        ),
        "prompt_version": plan.bank.version,
        "prompts": Prompts(
            bank_sha256=plan.bank.sha256,
            # A file is named without its folders: a record tells nothing of a machine.
            source=PurePath(plan.bank.source).name,
            system=plan.bank.system,
            user_template=plan.bank.user_template,
            paraphrases=list(plan.bank.paraphrases),
        ),
        "sampling": Sampling(K=plan.K, R=plan.R, T=plan.T, N=plan.N),
        "sampler": _sampler(plan),
        "options": SentOptions(
            max_output_tokens=plan.max_output_tokens,
            temperature=plan.options.temperature,
            reasoning_effort=plan.options.reasoning_effort,
            base_url=plan.options.base_url,
        ),
        "aggregation": _aggregation(plan, belief, logits),
        "paraphrase_balance": _balance(plan, rows),
        "aggregates": _aggregates(belief, rows, compliant),
        "diagnostics": _diagnostics(plan, logits) if belief else None,
        "precision": _precision(plan, belief, compliant / len(rows)),
        "usage": _usage(rows, price),
        "status": "ok" if belief else "no_estimate",
        "reason": _why_not(reason, rows),
        "started_at": started_at,
        "finished_at": finished_at,
        "heretix_version": heretix_version,
        "plugins": list(plugins),
        "samples": rows,
    }
    unsigned = RunRecord(**values, sha256="")
    return unsigned.model_copy(update={"sha256": digest_of(unsigned)})


def _estimate(plan: Plan, logits: dict[str, list[float]]) -> tuple[Estimate | None, str | None]:
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
        return None, str(exc)
    return belief, None


def _why_not(reason: str | None, rows: Sequence[SampleRecord]) -> str | None:
    """Why there is no number. Where calls failed that is the cause, and no more samples help."""
    failed = [row.error for row in rows if row.error is not None]
    if reason is None or not failed:
        return reason
    if len(failed) == len(rows):
        return f"every call failed, the last with: {failed[-1]}"
    return f"{reason}; {len(failed)} of {len(rows)} calls failed, the last with: {failed[-1]}"


def _logits_by_template(rows: Sequence[SampleRecord]) -> dict[str, list[float]]:
    logits: dict[str, list[float]] = {}
    for row in rows:
        if row.compliant and row.logit is not None:
            logits.setdefault(row.prompt_sha256, []).append(row.logit)
    return logits


def _sample_record(planned: PlannedSample, sample: Sample, from_cache: bool) -> SampleRecord:
    return SampleRecord(
        slot=planned.slot,
        paraphrase_idx=planned.paraphrase_idx,
        replicate_idx=planned.replicate_idx,
        prompt_sha256=planned.prompt_sha256,
        cache_key=planned.cache_key,
        from_cache=from_cache,
        prob_true=sample.prob_true,
        logit=sample.logit,
        json_valid=sample.json_valid,
        compliant=sample.compliant,
        noncompliance=sample.noncompliance,
        raw_answer=sample.raw_answer,
        error=sample.error,
        provider_model_id=sample.provider_model_id,
        response_id=sample.response_id,
        fingerprint=sample.fingerprint,
        tokens_in=sample.tokens_in,
        tokens_out=sample.tokens_out,
        temperature=sample.temperature,
        attempts=sample.attempts,
        latency_ms=sample.latency_ms,
        created_at=sample.created_at,
    )


def _sampler(plan: Plan) -> Sampler:
    include, exclude = plan.template_include, plan.template_exclude
    return Sampler(
        T_bank=plan.bank.T_bank,
        rotation_offset=plan.rotation_offset,
        tpl_indices=list(plan.tpl_indices),
        seq=list(plan.seq),
        template_include=None if include is None else list(include),
        template_exclude=None if exclude is None else list(exclude),
    )


def _aggregation(
    plan: Plan, belief: Estimate | None, logits: dict[str, list[float]]
) -> Aggregation:
    return Aggregation.model_validate(
        {
            "agg": plan.agg,
            "method": _method(plan),
            "B": plan.B,
            "center": plan.center,
            "trim": plan.trim,
            "bootstrap_seed": plan.bootstrap_seed,
            "seed_source": plan.seed_source,
            "n_templates": len(logits),
            "counts_by_template": {sha: len(logits[sha]) for sha in sorted(logits)},
            "imbalance_ratio": belief.imbalance_ratio if belief else None,
            "template_iqr_logit": belief.template_iqr_logit if belief else None,
        }
    )


def _method(plan: Plan) -> str:
    if plan.agg == "simple":
        return METHOD_SIMPLE
    return METHOD if plan.center == "trimmed" else METHOD_MEAN


def _balance(plan: Plan, rows: Sequence[SampleRecord]) -> Balance:
    counts = Counter(row.paraphrase_idx for row in rows if row.compliant)
    # A planned template that gave nothing has a count of 0 and is left out of the ratio,
    # which would be infinite; the zero stands in `counts`.
    present = [count for count in counts.values() if count]
    return Balance(
        counts={str(index): counts[index] for index in plan.counts},
        imbalance_ratio=max(present) / min(present) if present else None,
        planned_imbalance_ratio=plan.imbalance_ratio,
    )


def _aggregates(
    belief: Estimate | None, rows: Sequence[SampleRecord], compliant: int
) -> Aggregates:
    return Aggregates.model_validate(
        {
            "prob_true_rpl": belief.prob_true if belief else None,
            "ci95": (belief.ci_lo, belief.ci_hi) if belief else None,
            "ci_width": belief.ci_width if belief else None,
            "stability_score": belief.stability_score if belief else None,
            "stability_band": belief.stability_band if belief else None,
            "is_stable": belief.is_stable if belief else None,
            "rpl_compliance_rate": compliant / len(rows),
            "cache_hit_rate": sum(row.from_cache for row in rows) / len(rows),
        }
    )


def _diagnostics(plan: Plan, logits: dict[str, list[float]]) -> DiagnosticsRecord:
    index_of = {prompt.sha256: index for index, prompt in plan.prompts.items()}
    found = diagnose(logits, center=plan.center, trim=plan.trim)
    split = found.variance
    return DiagnosticsRecord(
        variance_between=split.between if split else None,
        variance_within=split.within if split else None,
        between_share=split.between_share if split else None,
        variance_note=found.variance_reason,
        paraphrase_range_prob=found.paraphrase_range_prob,
        paraphrase_sd_prob=found.paraphrase_sd_prob,
        templates=[
            TemplateRow(
                paraphrase_idx=index_of[row.template],
                prompt_sha256=row.template,
                n=row.n,
                mean_logit=row.mean_logit,
                prob=row.prob,
                sd_logit=row.sd_logit,
                min_prob=row.min_prob,
                max_prob=row.max_prob,
                trimmed=row.trimmed,
                influence_prob=row.influence_prob,
            )
            for row in sorted(found.templates, key=lambda row: index_of[row.template])
        ],
    )


def _precision(plan: Plan, belief: Estimate | None, compliance: float) -> PrecisionRecord | None:
    rule = plan.precision
    if rule is None:
        return None
    width = belief.ci_width if belief else None
    unmet = unmet_gates(rule, width, compliance)
    larger = next_shape(Shape(plan.K, plan.R, plan.T), plan.pool_size)
    this = PrecisionStep(
        K=plan.K, R=plan.R, T=plan.T, ci_width=width, rpl_compliance_rate=compliance, unmet=unmet
    )
    stopped = "max_samples" if rule.max_samples < larger.N else None
    return PrecisionRecord.model_validate(
        {
            "until_width": rule.until_width,
            "min_compliance": rule.min_compliance,
            "max_samples": rule.max_samples,
            "steps": [{**asdict(step), "unmet": list(step.unmet)} for step in (*rule.steps, this)],
            "stopped": stopped if unmet else "gates_passed",
        }
    )


def _served(rows: Sequence[SampleRecord]) -> list[Served]:
    counts = Counter((row.provider_model_id, row.fingerprint) for row in rows if row.error is None)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], str(item[0])))
    return [
        Served(provider_model_id=model, fingerprint=fingerprint, samples=count)
        for (model, fingerprint), count in ordered
    ]


def _only_model(rows: Sequence[SampleRecord]) -> str | None:
    models = {row.provider_model_id for row in rows if row.error is None}
    return models.pop() if len(models) == 1 else None


def _usage(rows: Sequence[SampleRecord], price: Price | None) -> Usage:
    called = [row for row in rows if not row.from_cache]
    reasons = Counter(str(row.noncompliance) for row in rows if row.noncompliance is not None)
    return Usage(
        attempted=len(rows),
        compliant=sum(row.compliant for row in rows),
        noncompliant=dict(sorted(reasons.items())),
        failed=sum(row.error is not None for row in rows),
        from_cache=len(rows) - len(called),
        called=len(called),
        tokens_in=_total([row.tokens_in for row in called]),
        tokens_out=_total([row.tokens_out for row in called]),
        price=_price_record(price),
        cost_usd=_cost_usd([row for row in called if row.error is None], price),
    )


def _price_record(price: Price | None) -> PriceRecord | None:
    if price is None:
        return None
    return PriceRecord(
        input_usd_per_mtok=str(price.input_usd_per_mtok),
        output_usd_per_mtok=str(price.output_usd_per_mtok),
        as_of=price.as_of.isoformat() if price.as_of else None,
    )


def _cost_usd(answered: Sequence[SampleRecord], price: Price | None) -> float | None:
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
