"""Rows of the lake, made from records, and records made again from rows.

What follows from other columns is left out: identities of prompts, log-odds, estimates beyond
those that queries want, the record's every derived part. A record is made again by the function
that made it; where that wouldn't give the very same one (it was made by another version, say), the
lake keeps the record whole.
"""

from __future__ import annotations

import itertools
import json
import struct
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydantic import BaseModel
from sqlalchemy.dialects.sqlite import dialect

from heretix.core.canonical import canonical_json
from heretix.core.clock import utc_text
from heretix.core.errors import HeretixError, RecordError
from heretix.lake.files import Part, load
from heretix.measurement.execution import build_run
from heretix.measurement.record import (
    Aggregation,
    EvidenceRecord,
    PluginRecord,
    PrecisionRecord,
    PriceRecord,
    Prompts,
    RunRecord,
    Sampler,
    Sampling,
    SentOptions,
)
from heretix.measurement.verify import plan_of_record, read_price
from heretix.sample import Attempt, Noncompliance, Reading, Sample
from heretix.store.schema import AnyText

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from heretix.measurement.record import SampleRecord
    from heretix.plan import Plan

Row = dict[str, Any]
_Kind = TypeVar("_Kind", bound=BaseModel)
KEY_BYTES: Final = 16
"""Of a key's 32: enough to tell 10^10 samples apart (two share them with a chance of 10^-19). The
others follow from the recipe, and whoever looks a key up knows all of them."""

_TEXT: Final = AnyText()
_DIALECT: Final = dialect()

_KINDS: Final = {"str": "string", "Noncompliance": "string", "float": "float64", "int": "int64"}
_DERIVED: Final = {"cache_key", "prompt_sha256", "logit", "json_valid"}
"""Columns of a sample that follow from others, or that whoever looks it up knows."""
_GIVEN: Final = tuple(one for one in fields(Attempt) if one.name not in _DERIVED)
_SAMPLE: Final = {
    "cache_key": f"binary:{KEY_BYTES}",
    "run_id": "string",
    **{one.name: _KINDS[str(one.type).removesuffix(" | None")] for one in _GIVEN},
    "created_at": "timestamp",
    # Counts the answers to one key in one part: a rerun without the cache asks again.
    "version": "int32",
}
_RUN: Final = {
    "execution_id": "string",
    "run_id": "string",
    "claim": "string",
    "claim_id": "string",
    "model": "string",
    "provider": "string",
    "bank": "string",
    "lens": "string",
    "variant": "string",
    "bundle_id": "string",
    "K": "int32",
    "R": "int32",
    "T": "int32",
    "B": "int32",
    "seed": "uint64",
    "prob_true": "float64",
    "ci_lo": "float64",
    "ci_hi": "float64",
    "stability_score": "float64",
    "compliant": "int32",
    "called": "int32",
    "tokens_in": "int64",
    "tokens_out": "int64",
    "cost_usd": "float64",
    "status": "string",
    "started_at": "timestamp",
    "finished_at": "timestamp",
    "heretix_version": "string",
    "sha256": "binary:32",
    "cached": "binary",
    "refs": "binary",
    "inputs_json": "string",
    "record_json": "string",
}
_COMPARED: Final = (*(one.name for one in _GIVEN), "logit", "json_valid", "compliant")
_TEXTS: Final = {
    name for columns in (_SAMPLE, _RUN) for name, kind in columns.items() if kind == "string"
}


@cache
def schema_of(table: str) -> Any:
    """The columns of a table, as Arrow has them."""
    arrow = load("pyarrow")
    columns = {"samples": _SAMPLE, "runs": _RUN}[table]

    def kind(name: str) -> Any:
        if name.startswith("binary:"):
            return arrow.binary(int(name.partition(":")[2]))
        return arrow.timestamp("ms", "UTC") if name == "timestamp" else getattr(arrow, name)()

    return arrow.schema([(name, kind(column)) for name, column in columns.items()])


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """An execution as rows."""

    part: Part
    run: Row
    samples: list[tuple[Part, Row]]
    """In the order of the plan."""


def pack(record: RunRecord) -> Packed:
    """Make rows of a record. Raises `RecordError` where they couldn't say what it says."""
    rows = [_pack_sample(record, sample) for sample in record.samples]
    run = _pack_run(record)
    parts = [part_of(record, sample.created_at) for sample in record.samples]
    if not _rebuilds(record, run, rows):
        run["record_json"] = _bind(canonical_json(record.model_dump(mode="json")))
    return Packed(
        part=part_of(record, record.finished_at),
        run=run,
        samples=list(zip(parts, rows, strict=True)),
    )


def unpack(run: Mapping[str, Any], plan: Plan, found: Mapping[str, Sample]) -> RunRecord:
    """Make a record again from its row, its plan and its samples by key."""
    inputs = _inputs(run)
    flags = run["cached"]
    samples = [
        (planned, found[planned.cache_key], bool(flags[n // 8] >> n % 8 & 1))
        for n, planned in enumerate(plan.samples)
    ]
    return build_run(
        plan,
        samples,
        execution_id=run["execution_id"],
        started_at=utc_text(run["started_at"]),
        finished_at=utc_text(run["finished_at"]),
        heretix_version=run["heretix_version"],
        price=read_price(_read(PriceRecord, inputs["price"])),
        plugins=[_read(PluginRecord, plugin) for plugin in inputs["plugins"]],
    )


def plan_of(run: Mapping[str, Any]) -> Plan:
    """Make the plan of an execution again, with the keys of its samples."""
    inputs = _inputs(run)
    asked: dict[str, Any] = {
        "claim": run["claim"],
        "claim_id": run["claim_id"],
        "model": run["model"],
        "provider": run["provider"],
        "lens": run["lens"],
        "prompt_version": run["bank"],
        "prompts": _read(Prompts, inputs["prompts"]),
        "sampling": _make_partial(Sampling, K=run["K"], R=run["R"], T=run["T"]),
        "sampler": _make_partial(Sampler, **inputs["sampler"]),
        "options": _read(SentOptions, inputs["options"]),
        "aggregation": _make_partial(
            Aggregation, **inputs["aggregation"], B=run["B"], bootstrap_seed=run["seed"]
        ),
        "evidence": _evidence(inputs["evidence"], run),
        "precision": _read(PrecisionRecord, inputs["precision"]),
    }
    return plan_of_record(_make_partial(RunRecord, **asked))


def _make_partial(kind: type[_Kind], **values: Any) -> _Kind:
    """A part of a record: what a plan is made from, without what follows from it."""
    return kind.model_construct(**values)


def unpack_sample(row: Mapping[str, Any], cache_key: str, prompt_sha256: str) -> Sample:
    """Make a sample again; what its row lacks is known to whoever asks for it."""
    # A column that is younger than the file is missing there.
    values: dict[str, Any] = {one.name: row.get(one.name) for one in _GIVEN}
    values |= {name: _unbind(value) for name, value in values.items() if name in _TEXTS}
    reason = values["noncompliance"]
    values["noncompliance"] = None if reason is None else Noncompliance(reason)
    values["created_at"] = utc_text(row["created_at"])
    reading = Reading(prob_true=row["prob_true"], json_valid=row["prob_true"] is not None)
    return Sample(
        **values,
        cache_key=cache_key,
        run_id=row["run_id"],
        prompt_sha256=prompt_sha256,
        logit=reading.logit,
        json_valid=reading.json_valid,
    )


def unbind_run(row: Row) -> Row:
    """Give the texts of a run's row back as they were."""
    return {name: _unbind(value) if name in _TEXTS else value for name, value in row.items()}


def write_refs(finished_on: str, refs: Sequence[tuple[str, int]]) -> bytes | None:
    """Write down where samples are: the day of each, and its version there.

    None is nearly always the case: made on the day that the execution finished, and asked for once.
    """
    end = date.fromisoformat(finished_on)
    numbers = [((end - date.fromisoformat(day)).days, version) for day, version in refs]
    if not any(any(pair) for pair in numbers):
        return None
    return struct.pack(f"<{2 * len(numbers)}H", *itertools.chain.from_iterable(numbers))


def read_refs(run: Mapping[str, Any], count: int) -> list[tuple[str, int]]:
    """Read where the samples of an execution are."""
    end: date = run["finished_at"].date()
    numbers = struct.unpack(f"<{2 * count}H", run["refs"] or bytes(4 * count))
    pairs = zip(numbers[::2], numbers[1::2], strict=True)
    return [((end - timedelta(days=back)).isoformat(), version) for back, version in pairs]


def prefix_of(cache_key: str) -> bytes:
    """The bytes of a key that the lake keeps."""
    return bytes.fromhex(cache_key)[:KEY_BYTES]


def summary_of(record: RunRecord) -> dict[str, Any]:
    """Extract what lists and accounts need of a record that isn't in the database."""
    parts = {"claim_id", "aggregates", "usage"}
    return record.model_dump(mode="json", include=parts)


def part_of(record: RunRecord, moment: str) -> Part:
    """The part that something of a record belongs to which was made at a moment."""
    return Part(model=record.model, bank=record.prompt_version, date=moment[:10])


def _pack_sample(record: RunRecord, sample: SampleRecord) -> Row:
    row = {one.name: getattr(sample, one.name) for one in _GIVEN}
    row["noncompliance"] = None if sample.noncompliance is None else sample.noncompliance.value
    row |= {name: _bind(value) for name, value in row.items() if name in _TEXTS}
    row["cache_key"] = prefix_of(sample.cache_key)
    row["run_id"], row["version"] = record.run_id, 0
    row["created_at"] = _moment(sample.created_at)
    again = unpack_sample(row, sample.cache_key, sample.prompt_sha256)
    if any(getattr(again, name) != getattr(sample, name) for name in _COMPARED):
        raise RecordError(
            f"`{sample.cache_key}` can't be written to a lake: it says of itself what doesn't "
            "follow from its answer"
        )
    return row


def _pack_run(record: RunRecord) -> Row:
    belief, usage = record.aggregates, record.usage
    ci_lo, ci_hi = belief.ci95 or (None, None)
    derived = record.aggregation.seed_source == "derived"
    flags = bytearray(-(-len(record.samples) // 8))
    for n, sample in enumerate(record.samples):
        flags[n // 8] |= sample.from_cache << n % 8
    row: Row = {
        "execution_id": record.execution_id,
        "run_id": record.run_id,
        "claim": record.claim,
        "claim_id": record.claim_id,
        "model": record.model,
        "provider": record.provider,
        "bank": record.prompt_version,
        "lens": record.lens,
        "variant": record.evidence.variant if record.evidence else None,
        "bundle_id": record.evidence.bundle_id if record.evidence else None,
        **record.sampling.model_dump(include={"K", "R", "T"}),
        "B": record.aggregation.B,
        "seed": None if derived else record.aggregation.bootstrap_seed,
        "prob_true": belief.prob_true_rpl,
        "ci_lo": ci_lo,
        "ci_hi": ci_hi,
        "stability_score": belief.stability_score,
        **usage.model_dump(include={"compliant", "called", "tokens_in", "tokens_out", "cost_usd"}),
        "status": record.status,
        "started_at": _moment(record.started_at),
        "finished_at": _moment(record.finished_at),
        "heretix_version": record.heretix_version,
        "sha256": bytes.fromhex(record.sha256),
        "cached": bytes(flags),
        "refs": None,
        "inputs_json": canonical_json(_inputs_of(record)),
        "record_json": None,
    }
    return {name: _bind(value) if name in _TEXTS else value for name, value in row.items()}


def _inputs_of(record: RunRecord) -> dict[str, Any]:
    """Extract what a plan and a record need beside the columns; nearly always the same."""
    shown = record.evidence
    return {
        "prompts": record.prompts.model_dump(mode="json"),
        "sampler": record.sampler.model_dump(include={"template_include", "template_exclude"}),
        "options": record.options.model_dump(mode="json"),
        "aggregation": record.aggregation.model_dump(
            include={"agg", "center", "trim", "seed_source"}
        ),
        "evidence": shown and shown.model_dump(mode="json", include=set(_SHOWN)),
        "precision": record.precision and record.precision.model_dump(mode="json"),
        "price": record.usage.price and record.usage.price.model_dump(mode="json"),
        "plugins": [plugin.model_dump(mode="json") for plugin in record.plugins],
    }


_SHOWN: Final = (
    "frame_version",
    "system",
    "user_template",
    "no_documents",
    "clauses",
    "order",
    "items",
)


def _inputs(run: Mapping[str, Any]) -> dict[str, Any]:
    inputs: dict[str, Any] = json.loads(run["inputs_json"])
    return inputs


def _evidence(shown: dict[str, Any] | None, run: Mapping[str, Any]) -> Any:
    if shown is None:
        return None
    counts = dict.fromkeys(("quotes_given", "quotes_verified", "quotes_cut"), 0)
    derived = {**counts, "verified_quote_rate": None}
    more = {"bundle_id": run["bundle_id"], "variant": run["variant"], "trusted": None, "used": {}}
    return _read(EvidenceRecord, {**shown, **more, **derived})


def _read(kind: type[BaseModel], value: Any) -> Any:
    """Read a part of a record; as JSON, since records are strict about anything else."""
    return None if value is None else kind.model_validate_json(json.dumps(value))


def _rebuilds(record: RunRecord, run: Row, rows: list[Row]) -> bool:
    """Tell that the rows give the very record again."""
    run = unbind_run(run)
    try:
        plan = plan_of(run)
        found = {
            planned.cache_key: unpack_sample(row, planned.cache_key, planned.prompt_sha256)
            for planned, row in zip(plan.samples, rows, strict=True)
            if prefix_of(planned.cache_key) == row["cache_key"]
        }
        return unpack(run, plan, found) == record
    except (HeretixError, ArithmeticError, ValueError, KeyError, IndexError):
        return False


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None or utc_text(moment) != text:
        raise RecordError(f"`{text}` can't be written to a lake: it isn't UTC to the millisecond")
    return moment.astimezone(UTC)


def _bind(value: str | None) -> str | None:
    """Escape half characters, which models write and Parquet has no place for."""
    return _TEXT.process_bind_param(value, _DIALECT)


def _unbind(value: str | None) -> str | None:
    return _TEXT.process_result_value(value, _DIALECT)
