"""Verify a record: everything derived in it is derived again, from the record alone.

No database and no network: the bank, the raw answers and the settings in the record are enough
to make its identities, hashes, readings, estimate, interval, rates and diagnostics anew.
"""

from __future__ import annotations

import gzip
import json
import math
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter, ValidationError

from heretix.belief.diagnostics import weigh_extremes
from heretix.belief.logodds import logit, sigmoid
from heretix.belief.paired import Difference, paired_difference, unpaired_difference
from heretix.belief.student import PairedT, paired_template_t, paired_template_t_trimmed
from heretix.config import RunConfig, check_claim
from heretix.core.errors import BankError, HeretixError, RecordError
from heretix.core.lenses import LENSES
from heretix.evidence.bundle import read_bundle
from heretix.measurement.execution import build_run
from heretix.measurement.experiments import (
    leave_out,
    make_canary,
    show_bundle,
    show_under_policy,
    swap_order,
)
from heretix.measurement.record import (
    SCHEMA,
    Artifact,
    RunRecord,
    SampleRecord,
    digest_of,
)
from heretix.measurement.vector import (
    METRICS,
    compare_variants,
    lens_records,
    logits_by_stem,
    metrics_by_model,
)
from heretix.plan import Evidence, Plan, PlannedSample, Precision, make_plan
from heretix.prompts.bank import Bank, Frame, load_bank
from heretix.providers.catalog import PROVIDERS, ModelId, Price, parse_model
from heretix.readouts import DISTRIBUTION, SAMPLED, read_reply
from heretix.sample import Finish, Noncompliance, Reading, Sample, columns_of

if TYPE_CHECKING:
    from heretix.core.plugins import Plugin
    from heretix.evidence.bundle import Bundle
    from heretix.measurement.record import EvidenceRecord, MetricsRecord, PriceRecord


@dataclass(frozen=True, slots=True)
class Comparison:
    """The difference between two beliefs, B minus A."""

    a: str
    b: str
    paired: bool
    difference: Difference
    paired_template_t: PairedT | None
    """Over the shared wordings; null with fewer than 2 of them, as where the banks differ."""
    paired_template_t_trimmed: PairedT | None


def compare(a: RunRecord, b: RunRecord) -> Comparison:
    """Paired by template when the banks agree: what the wordings share then cancels out."""
    one, other = logits_by_stem(a), logits_by_stem(b)
    paired = a.prompts.bank_sha256 == b.prompts.bank_sha256 and len(one.keys() & other.keys()) >= 2
    difference = (paired_difference if paired else unpaired_difference)(
        one,
        other,
        B=a.aggregation.B,
        center=a.aggregation.center,
        trim=a.aggregation.trim,
        seed=a.aggregation.bootstrap_seed ^ b.aggregation.bootstrap_seed,
    )
    center = logit(difference.prob_a)
    return Comparison(
        a.execution_id,
        b.execution_id,
        paired,
        difference,
        paired_template_t(one, other) if paired else None,
        paired_template_t_trimmed(one, other, center_logit=center) if paired else None,
    )


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A place where the record and what follows from it don't agree."""

    path: str
    recorded: object
    derived: object


def find_sufficiency_differences(
    path: str, bundle: Bundle, runs: Sequence[RunRecord], claim: str
) -> Iterator[Mismatch]:
    """Find bundles called too small, or large enough, by a rule of their own.

    A record can't show what a search didn't find; it can show that what is said to be too little
    is, and that nothing was measured with it.
    """
    if bundle.claim != claim:
        yield Mismatch(f"{path}.claim", bundle.claim, claim)
    limits = LENSES[bundle.lens].limits if bundle.lens in LENSES else None
    if limits is None or bundle.limits.min_items != limits.min_items:
        needed = None if limits is None else limits.min_items
        yield Mismatch(f"{path}.limits.min_items", bundle.limits.min_items, needed)
    measured = [
        run.execution_id
        for run in runs
        if run.evidence and run.lens == bundle.lens and run.evidence.bundle_id is not None
    ]
    if not bundle.sufficient and measured:
        yield Mismatch(f"{path}.items", f"measured in {measured[0]}", "too few to be measured")


def find_shown_differences(
    run: RunRecord, bundles: Mapping[str, Bundle], runs: Sequence[RunRecord]
) -> Iterator[Mismatch]:
    """Find runs that showed something else than their bundle, or name one that isn't here."""
    shown = run.evidence
    if shown is None or (
        shown.bundle_id is None and not LENSES[run.lens].needs_documents and not shown.items
    ):
        return
    path = f"{run.execution_id}.evidence"
    bundle = bundles.get(shown.bundle_id or "")
    if bundle is None:
        yield Mismatch(f"{path}.bundle_id", shown.bundle_id, "no bundle of that id is here")
        return
    if (bundle.lens, bundle.claim) != (run.lens, run.claim):
        yield Mismatch(f"{path}.bundle_id", f"{run.lens} of this claim", bundle.lens)
        return
    whole = {
        other.evidence.bundle_id
        for other in runs
        if other.evidence and other.lens == run.lens and other.evidence.variant is None
    }
    of_another_policy = (shown.variant or "").startswith("policy:")
    if not of_another_policy and shown.bundle_id not in whole:
        yield Mismatch(f"{path}.bundle_id", shown.bundle_id, "not what the lens showed whole")
    yield from _find_item_differences(path, shown, bundle)


def _find_item_differences(path: str, shown: EvidenceRecord, bundle: Bundle) -> Iterator[Mismatch]:
    items = [(item.id, item.text) for item in shown.items]
    if shown.variant == "sham":
        # The texts are the package's; what the bundle decides is how many and how long.
        lengths = {item.id: len(item.text) for item in show_bundle(bundle).items}
        if [name for name, _ in items] != list(lengths) or any(
            len(text) > lengths[name] for name, text in items
        ):
            yield Mismatch(f"{path}.items", "as recorded", "as many, and none longer")
        return
    expected = _expect_evidence(shown.variant, bundle)
    if expected is None:
        yield Mismatch(f"{path}.variant", shown.variant, "no experiment on this bundle")
        return
    if items != [(item.id, item.text) for item in expected.items]:
        yield Mismatch(f"{path}.items", "as recorded", f"{shown.variant or 'the bundle'}")
    if (None if shown.order is None else tuple(shown.order)) != expected.order:
        yield Mismatch(f"{path}.order", shown.order, expected.order)


def _expect_evidence(variant: str | None, bundle: Bundle) -> Evidence | None:
    """Evidence that the experiment called `variant` shows of a bundle; None if there is none."""
    if variant is None:
        return show_bundle(bundle)
    if variant == "canary":
        return make_canary(bundle)
    if variant == "swapped":
        return swap_order(bundle)
    kind, _, name = variant.partition(":")
    made = None
    if kind == "without" and any(name in {item.id, item.publisher} for item in bundle.items):
        made = leave_out(bundle, name)
    elif kind == "policy":
        made = show_under_policy(bundle)
    return made if made is not None and made.variant == variant else None


_TOLERANCE: Final = 1e-9
"""Another machine's mathematics may differ in the last bits of a logarithm; not by more."""
_RECORD_WANTED: Final = "give what `heretix run --out` wrote, or the id of a run (`heretix runs`)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Outcome of verifying one run."""

    execution_id: str
    run_id: str
    checked: int
    """Values that were derived again and compared."""
    differences: tuple[Mismatch, ...]
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Tell whether everything agrees."""
        return not self.differences


def read_artifacts(path: str | Path) -> list[Artifact]:
    """Read a JSON artifact, or a JSONL file of them; `.gz` is unpacked, `-` is standard input."""
    if str(path) == "-":
        return parse_artifacts(_decode(sys.stdin.buffer.read(), "standard input"), source="-")
    path = Path(path)
    try:
        content = path.read_bytes()
        if path.suffix.lower() == ".gz":
            content = gzip.decompress(content)
    except (gzip.BadGzipFile, EOFError, zlib.error) as exc:
        raise RecordError(f"`{path}` isn't a whole gzip file ({exc})") from exc
    except OSError as exc:
        raise RecordError(f"`{path}` can't be read: {exc.strerror}") from exc
    return parse_artifacts(_decode(content, str(path)), source=str(path))


def _decode(content: bytes, source: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise RecordError(f"`{source}` isn't UTF-8 text; {_RECORD_WANTED}") from exc


def parse_artifacts(text: str, *, source: str) -> list[Artifact]:
    """Parse one artifact, or one a line."""
    if not text.strip():
        raise RecordError(f"`{source}` is empty; {_RECORD_WANTED}")
    try:
        return [_artifact(_parse_strict_json(text, source), source)]
    except json.JSONDecodeError as whole:
        lines = [(n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
        artifacts = []
        for number, line in lines:
            try:
                place = f"{source} line {number}"
                artifacts.append(_artifact(_parse_strict_json(line, place), place))
            except json.JSONDecodeError as exc:
                if not artifacts:
                    # Not even the first line stands by itself: it is one artifact over many lines.
                    raise _make_json_error(f"`{source}`", text, whole) from whole
                raise _make_json_error(f"`{source}` line {number}", line, exc) from exc
        return artifacts


def verify_run(run: RunRecord) -> Verification:
    """Derive a run again and compare every value."""
    differences: list[Mismatch] = []
    derived_digest = digest_of(run)
    if derived_digest != run.sha256:
        differences.append(Mismatch("sha256", run.sha256, derived_digest))
    notes: list[str] = []
    checked = 1
    try:
        rebuilt = _rebuild(run)
        rebuilt = _drop_newer_fields(run, rebuilt)
    except (HeretixError, ArithmeticError, ValueError, KeyError, IndexError) as exc:
        differences.append(Mismatch("(plan)", "a plan", f"none: {exc}"))
    else:
        recorded = run.model_dump(mode="json", exclude={"sha256"})
        derived = rebuilt.model_dump(mode="json", exclude={"sha256"})
        pairs = list(compare_leaves("", recorded, derived))
        checked += len(pairs)
        differences += [pair for pair in pairs if not is_same_value(pair.recorded, pair.derived)]
        notes.append(_bank_note(run))
    return Verification(
        execution_id=run.execution_id,
        run_id=run.run_id,
        checked=checked,
        differences=tuple(differences),
        notes=tuple(notes),
    )


def _drop_newer_fields(run: RunRecord, rebuilt: RunRecord) -> RunRecord:
    """Leave out of a run made again what the version that wrote the record didn't know."""
    if run.beside is None:
        rebuilt = rebuilt.model_copy(update={"beside": None})
    if run.readout is not None and run.readout.extreme_mass is None:
        rebuilt = _drop_masses(rebuilt)
    if run.aggregation.bootstrap_seed_text is None:
        update = {"bootstrap_seed_text": None}
        how = rebuilt.aggregation.model_copy(update=update)
        rebuilt = rebuilt.model_copy(update={"aggregation": how})
    return rebuilt


def _drop_masses(run: RunRecord) -> RunRecord:
    """Hold the mean of each wording as if it were an answer, as the first distributions were."""
    if run.readout is None or run.readout.name != DISTRIBUTION:
        return run
    readout = run.readout.model_copy(update={"extreme_mass": None})
    run = run.model_copy(update={"readout": readout})
    belief, how, old = run.aggregates, run.aggregation, run.beside
    if old is None or belief.prob_true_rpl is None or belief.ci_width is None:
        return run
    probs = {
        row.prompt_sha256: [sigmoid(row.logit)]
        for row in run.samples
        if row.compliant and row.logit is not None
    }
    found = weigh_extremes(
        probs,
        prob_true=belief.prob_true_rpl,
        ci_width=belief.ci_width,
        center=how.center,
        trim=how.trim,
        agg=how.agg,
    )
    update = {
        "n_extreme": found.n_extreme,
        "extreme_share": found.share,
        "center_clamped": found.center_clamped,
        "clamp_sensitive": found.clamp_sensitive,
    }
    return run.model_copy(update={"beside": old.model_copy(update=update)})


def _mend_rounded_seed(run: RunRecord) -> RunRecord:
    """Take the seed from its text where a JSON tool rounded the number on the way."""
    text, seed = run.aggregation.bootstrap_seed_text, run.aggregation.bootstrap_seed
    if text is None or not text.isdecimal() or seed == int(text) or float(seed) != float(text):
        return run
    how = run.aggregation.model_copy(update={"bootstrap_seed": int(text)})
    return run.model_copy(update={"aggregation": how})


_ROUNDED: Final = (
    "`bootstrap_seed` was rounded by a JSON tool on the way; it is taken from `bootstrap_seed_text`"
)


def verify_artifact(artifact: Artifact) -> list[Verification]:
    """Verify every run and, where there are lenses, the vector, the bundles and the metrics.

    One run of a lens may stand by itself, as the store gives it out. Several can't: with what lies
    between them taken away, nothing would hold them against their bundles.
    """
    mended = [_mend_rounded_seed(run) for run in artifact.runs]
    found = [verify_run(run) for run in mended]
    for number, (run, whole) in enumerate(zip(artifact.runs, mended, strict=True)):
        if run is not whole:
            found[number] = replace(found[number], notes=(*found[number].notes, _ROUNDED))
    artifact = artifact.model_copy(update={"runs": mended})
    between = (artifact.metrics, artifact.lenses, artifact.bundles, artifact.experiments)
    shown = any(run.evidence for run in artifact.runs)
    if any(part is not None for part in between) or (shown and len(found) > 1):
        return [*found, verify_vector(artifact)]
    if artifact.claim not in {None, *(run.claim for run in artifact.runs)}:
        difference = Mismatch("claim", artifact.claim, artifact.runs[0].claim)
        found[0] = replace(found[0], differences=(*found[0].differences, difference))
    return [replace(one, notes=(*one.notes, _NO_BUNDLE)) for one in found] if shown else found


_NO_BUNDLE: Final = (
    "a run by itself: what was shown is checked by its hashes; whether its bundle says the same "
    "can be checked in the artifact of the whole vector"
)


def verify_vector(artifact: Artifact) -> Verification:
    """Verify what lies between the runs: bundles, lines, metrics, experiments."""
    runs, claim = artifact.runs, artifact.claim or artifact.runs[0].claim
    differences: list[Mismatch] = []
    bundles: dict[str, Bundle] = {}
    for number, bundle in enumerate(artifact.bundles or []):
        try:
            loaded = read_bundle(bundle)
        except HeretixError as exc:
            differences.append(Mismatch(f"bundles[{number}]", "a bundle", f"none: {exc}"))
        else:
            bundles[loaded.bundle_id] = loaded
            differences += find_sufficiency_differences(f"bundles[{number}]", loaded, runs, claim)
    for run in runs:
        differences += find_shown_differences(run, bundles, runs)
    publishers = {bundle_id: bundle.publishers for bundle_id, bundle in bundles.items()}
    lines = lens_records(runs, claim, list(bundles.values()))
    recorded = artifact.metrics or {}
    again, notes = _plugin_metrics(recorded)
    derived = metrics_by_model(runs, claim, publishers, lines, again)
    for model, record in recorded.items():
        if model in derived:
            # Those that can't be computed here stand as they were written.
            both = {**record.plugins, **derived[model].plugins}
            derived[model] = derived[model].model_copy(update={"plugins": both})
    experiments = compare_variants(runs, claim)
    if not any(run.beside for run in runs):  # by an older version, which put nothing beside
        none = {"beside": None}
        derived = {model: found.model_copy(update=none) for model, found in derived.items()}
        experiments = [found.model_copy(update=none) for found in experiments]
    sides: dict[str, tuple[Any, Any]] = {
        "metrics": (recorded, derived),
        "lenses": (artifact.lenses or [], lines),
        "experiments": (artifact.experiments or [], experiments),
    }
    pairs = [
        pair for name, both in sides.items() for pair in compare_leaves(name, *map(_plain, both))
    ]
    differences += [pair for pair in pairs if not is_same_value(pair.recorded, pair.derived)]
    return Verification(
        execution_id="belief vector",
        run_id=runs[0].run_id,
        checked=len(pairs) + len(artifact.bundles or []),
        differences=tuple(differences),
        notes=tuple(notes),
    )


def _plugin_metrics(
    recorded: Mapping[str, MetricsRecord],
) -> tuple[dict[str, list[Plugin]], list[str]]:
    """Plug-ins whose metrics can be computed again, by model; and a note on each of the others."""
    here = METRICS.plugins()
    again: dict[str, list[Plugin]] = {}
    notes: dict[str, None] = {}
    for model, record in recorded.items():
        for name, metric in record.plugins.items():
            plugin = here.get(name)
            if plugin and (plugin.package, plugin.version) == (metric.package, metric.version):
                again.setdefault(model, []).append(plugin)
            else:
                notes[
                    f"`{name}` not recomputed: plug-in {metric.package} {metric.version} "
                    "isn't installed"
                ] = None
    return again, list(notes)


def _plain(value: Any) -> Any:
    return TypeAdapter(Any).dump_python(value, mode="json")


def _rebuild(run: RunRecord) -> RunRecord:
    """The record that follows from this one's inputs: claim, model, bank, settings, answers."""
    plan = plan_of_record(run)
    if len(run.samples) != len(plan.samples):
        raise RecordError(f"{len(run.samples)} samples recorded, {len(plan.samples)} planned")
    return build_run(
        plan,
        [
            (planned, _reread(plan, planned, row), row.from_cache)
            for planned, row in zip(plan.samples, run.samples, strict=True)
        ],
        execution_id=run.execution_id,
        started_at=run.started_at,
        finished_at=run.finished_at,
        heretix_version=run.heretix_version,
        price=read_price(run.usage.price),
        plugins=run.plugins,
        in_vain=run.usage.in_vain,
    )


def read_price(price: PriceRecord | None) -> Price | None:
    """Read the price that a cost was counted with."""
    if price is None:
        return None
    return Price(
        Decimal(price.input_usd_per_mtok),
        Decimal(price.output_usd_per_mtok),
        date.fromisoformat(price.as_of) if price.as_of else None,
    )


def plan_of_record(run: RunRecord) -> Plan:
    """Make the plan again from what a record says was asked for."""
    bank = Bank.of(
        version=run.prompt_version,
        system=run.prompts.system,
        user_template=run.prompts.user_template,
        paraphrases=run.prompts.paraphrases,
        source=run.prompts.source,
    )
    aggregation, sampler, precision = run.aggregation, run.sampler, run.precision
    seed = aggregation.bootstrap_seed
    config = RunConfig.parse(
        {
            **run.sampling.model_dump(include={"K", "R", "T"}),
            **aggregation.model_dump(include={"B", "agg", "center", "trim"}),
            **sampler.model_dump(include={"template_include", "template_exclude"}),
            **run.options.model_dump(),
            "readout": run.readout.name if run.readout else SAMPLED,
            "seed": seed if aggregation.seed_source == "config" else None,
        },
        source="record",
    )
    return make_plan(
        check_claim(run.claim),
        _model(run),
        bank,
        config,
        claim_id=run.claim_id,
        env_seed=seed if aggregation.seed_source == "environment" else None,
        evidence=_evidence(run),
        precision=None
        if precision is None
        else Precision(
            until_width=precision.until_width,
            min_compliance=precision.min_compliance,
            max_samples=precision.max_samples,
            steps=tuple(precision.steps[:-1]),
            interrupted=precision.stopped == "interrupted",
        ),
    )


def _evidence(run: RunRecord) -> Evidence | None:
    shown = run.evidence
    if shown is None:
        return None
    return Evidence(
        lens=run.lens,
        frame=Frame(
            version=shown.frame_version,
            system=shown.system,
            user_template=shown.user_template,
            no_documents=shown.no_documents,
            clauses=shown.clauses,
        ),
        bundle_id=shown.bundle_id,
        items=tuple(shown.items),
        variant=shown.variant,
        order=None if shown.order is None else tuple(shown.order),
    )


def _model(run: RunRecord) -> ModelId:
    prefixed = run.model.startswith(f"{run.provider}:")
    name = run.model.removeprefix(f"{run.provider}:") if prefixed else run.model
    model = ModelId(run.provider, name)
    # A provider that isn't installed has answered already; its numbers need nothing of it.
    absent = prefixed and not PROVIDERS.offers(run.provider)
    if not absent and model != parse_model(run.model):
        raise RecordError(f"`model` {run.model!r} isn't one of provider {run.provider!r}")
    return model


_FINISHES: Final = {
    Noncompliance.REFUSED: Finish.REFUSED,
    Noncompliance.TRUNCATED: Finish.TRUNCATED,
}
"""Stop reasons, as the provider tells them; only these two matter."""


def _reread(plan: Plan, planned: PlannedSample, row: SampleRecord) -> Sample:
    """The sample that follows from the raw answer."""
    reading = Reading()
    if row.raw_answer is not None:
        finish = _FINISHES.get(row.noncompliance or Noncompliance.NOT_JSON, Finish.STOP)
        reading = read_reply(plan.readout, row.raw_answer, finish)
    elif row.error is None:
        raise RecordError(f"sample {row.cache_key} has neither an answer nor an error")
    return Sample(run_id=plan.run_id, **columns_of(row, planned, reading))


def _bank_note(run: RunRecord) -> str:
    try:
        packaged = load_bank(run.prompt_version)
    except BankError:
        return f"bank {run.prompt_version} isn't packaged here; its text is the record's own"
    if packaged.sha256 == run.prompts.bank_sha256:
        return f"bank {run.prompt_version} is the packaged one"
    return f"bank {run.prompt_version} DIFFERS from the packaged one of that version"


def compare_leaves(path: str, recorded: Any, derived: Any) -> Iterator[Mismatch]:
    """All leaves of two JSON trees, side by side; a leaf only one side has pairs with None."""
    if isinstance(recorded, Mapping) and isinstance(derived, Mapping):
        for key in sorted(recorded.keys() | derived.keys()):
            name = f"{path}.{key}" if path else str(key)
            yield from compare_leaves(name, recorded.get(key), derived.get(key))
    elif isinstance(recorded, list) and isinstance(derived, list) and len(recorded) == len(derived):
        for index, (one, other) in enumerate(zip(recorded, derived, strict=True)):
            yield from compare_leaves(f"{path}[{index}]", one, other)
    else:
        yield Mismatch(path, recorded, derived)


def is_same_value(recorded: object, derived: object) -> bool:
    if isinstance(recorded, float) and isinstance(derived, float):
        return math.isclose(recorded, derived, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
    return type(recorded) is type(derived) and recorded == derived


def _artifact(value: Any, source: str) -> Artifact:
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        got = value.get("schema") if isinstance(value, dict) else type(value).__name__
        raise RecordError(f"`{source}` must be an artifact of schema {SCHEMA!r}, got {got!r}")
    try:
        # JSON mode: a strict record takes a JSON array for a tuple, but no text for a number.
        return Artifact.model_validate_json(json.dumps(value))
    except ValidationError as exc:
        first = exc.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise RecordError(
            f"`{source}` doesn't fit the schema: `{where}` {first['msg']} "
            f"({exc.error_count()} in all)"
        ) from exc


def _make_json_error(subject: str, text: str, exc: json.JSONDecodeError) -> RecordError:
    """Fault of a text; often just that the end of it is missing."""
    begun, end = text.lstrip(), text.rstrip()
    in_last_line = "\n" not in end[exc.pos :]
    cut = exc.pos >= len(end) or (in_last_line and not end.endswith(("}", "]")))
    if begun.startswith(("{", "[")) and cut:
        where = f" in line {exc.lineno}" if "\n" in text else ""
        return RecordError(
            f"{subject} ends too early{where}, at character {len(end):,}: it was cut off, or "
            "is being written"
        )
    return RecordError(f"{subject} isn't JSON ({exc}); {_RECORD_WANTED}")


def _parse_strict_json(text: str, source: str) -> Any:
    """Parse JSON whose numbers are spelled as Heretix writes them.

    Two spellings can mean the same double, so a changed last digit could pass unseen; the one
    spelling that round-trips shortest is the only one taken.
    """
    try:
        return json.loads(text, parse_float=_read_shortest_float, parse_constant=_refuse_constant)
    except RecursionError:
        raise RecordError(f"`{source}` is nested deeper than any record") from None
    except RecordError as exc:
        raise RecordError(f"`{source}`: {exc}") from None


def _read_shortest_float(text: str) -> float:
    value = float(text)
    if repr(value) != text:
        raise RecordError(f"the number {text} isn't spelled as it was written ({value!r})")
    return value


def _refuse_constant(name: str) -> float:
    raise RecordError(f"{name} isn't JSON")
