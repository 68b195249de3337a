"""An execution: a plan under way, from what the cache held to the record that is stored."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from heretix.core.canonical import canonical_json
from heretix.core.clock import utc_now
from heretix.measurement.build import build_run
from heretix.measurement.record import PluginRecord
from heretix.sample import Sample, logit_of, read_answer
from heretix.store import ExecutionResult, ExecutionStart, Store
from heretix.store.runs import finish_executions, start_executions
from heretix.store.samples import select_answers
from heretix.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heretix.measurement.record import RunRecord
    from heretix.plan import Plan, PlannedSample
    from heretix.providers.base import Reply
    from heretix.providers.prices import Price

__all__ = ["Execution", "begin", "finish", "make_sample", "plan_json"]


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
