"""Samples, executions and results as a measurement would hand them to the store."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from sqlalchemy import Connection, select

from heretix.sample import Sample
from heretix.store import ExecutionResult, ExecutionStart
from heretix.store.schema import late_samples

RUN_ID = "heretix-rpl-0123456789ab"
NOW = "2026-11-15T20:00:00.000Z"
LATER = "2026-11-15T20:01:00.000Z"
LATEST = "2026-11-15T20:02:00.000Z"


def key(number: int) -> str:
    """A cache key."""
    return hashlib.sha256(str(number).encode()).hexdigest()


def sample(number: int = 0, **changes: Any) -> Sample:
    """An answer; `changes` replace fields."""
    values: dict[str, Any] = {
        "cache_key": key(number),
        "run_id": RUN_ID,
        "prompt_sha256": hashlib.sha256(b"prompt").hexdigest(),
        "paraphrase_idx": number % 8,
        "replicate_idx": number // 8,
        "prob_true": 0.25,
        "logit": -1.0986122886681098,
        "json_valid": True,
        "noncompliance": None,
        "raw_answer": '{"prob_true": 0.25}',
        "error": None,
        "provider_model_id": "gpt-5-2026-08-07",
        "response_id": f"resp_{number}",
        "fingerprint": "fp_1",
        "tokens_in": 210,
        "tokens_out": 12,
        "temperature": None,
        "attempts": 1,
        "latency_ms": 431,
        "created_at": NOW,
    }
    return Sample(**values | changes)


def failed(number: int = 0, **changes: Any) -> Sample:
    """A call that failed for good."""
    nothing = {
        "prob_true": None,
        "logit": None,
        "json_valid": False,
        "raw_answer": None,
        "error": "ServerError: 503",
        "tokens_in": None,
        "tokens_out": None,
    }
    return sample(number, **nothing | changes)


def run(**changes: Any) -> dict[str, Any]:
    """The columns of a run that are known before it starts."""
    return {
        "run_id": RUN_ID,
        "claim": "Tariffs don't cause inflation.",
        "model": "gpt-5",
        "provider": "openai",
        "prompt_version": "rpl_v1_2026-11-15",
        "lens": "RPL",
        "bundle_id": None,
        "variant": None,
        "K": 8,
        "R": 2,
        "T": 8,
        "B": 5000,
        "seed": 42,
        "bootstrap_seed": 10572428983809627848,
        "sampler_json": '{"seq":[0,1,2,3,4,5,6,7]}',
    } | changes


def aggregates(**changes: Any) -> dict[str, Any]:
    """The columns of a run that an execution fills in."""
    return {
        "prob_true_rpl": 0.24,
        "ci_lo": 0.2,
        "ci_hi": 0.3,
        "ci_width": 0.1,
        "stability_score": 0.9,
        "stability_band": "medium",
        "is_stable": True,
        "template_iqr_logit": 0.11,
        "imbalance_ratio": 1.0,
        "rpl_compliance_rate": 1.0,
        "cache_hit_rate": 0.0,
        "counts_by_template_json": '{"ab":2}',
        "config_json": '{"K":8}',
    } | changes


NO_NUMBERS = dict.fromkeys(aggregates()) | {"config_json": '{"K":8}', "rpl_compliance_rate": 0.0}


def start(number: int = 1, *, created_at: str = NOW, **changes: Any) -> ExecutionStart:
    """The beginning of an execution; `changes` are columns of its run."""
    return ExecutionStart(
        execution_id=execution_id(number),
        run=run(**changes),
        config_json='{"K":8}',
        created_at=created_at,
    )


def result(
    number: int = 1,
    *,
    status: Any = "ok",
    finished_at: str = LATER,
    samples: tuple[tuple[str, bool], ...] = (),
    **changes: Any,
) -> ExecutionResult:
    """The end of an execution; `changes` are columns of its run."""
    numbers = aggregates() if status == "ok" else NO_NUMBERS
    return ExecutionResult(
        execution_id=execution_id(number),
        status=status,
        record_json=json.dumps({"execution_id": execution_id(number)}),
        finished_at=finished_at,
        run=run() | numbers | changes,
        samples=samples,
    )


def execution_id(number: int) -> str:
    """An execution's id, the same every time."""
    digits = hashlib.md5(str(number).encode()).hexdigest()
    return f"exec-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def paid_in_vain(connection: Connection) -> list[str]:
    """Keys of answers that came after another one."""
    return list(connection.scalars(select(late_samples.c.cache_key)))
