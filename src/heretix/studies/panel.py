"""Panels: the same claims asked of the same models in waves, and what moved between them.

A panel file says what is measured; the store keeps it under the panel's name with its waves. A wave
takes no answer from before it began, so the cache can't make a model look steadier than it is.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from heretix.config import AUTO, RunConfig, check_claim
from heretix.core.canonical import canonical_json
from heretix.core.clock import utc_now
from heretix.core.errors import (
    ConfigError,
    InsufficientEvidenceError,
    ProviderDownError,
    RecordError,
)
from heretix.core.lenses import SHOWING
from heretix.core.validation import find_faults
from heretix.core.yaml_lines import Document, YamlFault, load
from heretix.measurement.record import BesideRecord, RunRecord
from heretix.measurement.service import gather_evidence, keep_bundles, prepare
from heretix.providers.sim import WAVE_VARIABLE
from heretix.store.panels import (
    PanelRow,
    Wave,
    WaveRun,
    begin_wave,
    finish_wave,
    save_panel,
    select_panel,
    select_wave_runs,
    select_waves,
)
from heretix.store.runs import select_record
from heretix.studies.drift import ALPHA, Drift, PanelDrift, Variant, detect_drifts, measure_cell

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from heretix.belief.estimator import Floats
    from heretix.belief.student import TInterval
    from heretix.core.settings import Settings
    from heretix.measurement.service import Measurement
    from heretix.store import Store

_WORDINGS: Final = 16
"""Wordings a claim unless told otherwise: with one answer each, the best use of 16 calls."""
_MIN_ANCHORS: Final = 5
BASELINE_WAVES: Final = 4
"""Waves before a drift can be told well: a single one caps the evidence for ever."""
_MEASURING: Final[tuple[str, ...]] = (
    *("models", "lenses", "K", "R", "T", "B", "prompt_version", "prompts_file", "evidence"),
    *("language", "max_output_tokens", "temperature", "reasoning_effort", "base_url"),
    *("concurrency", "rpm", "tpm", "budget_usd", "on", "claims_file"),
)
"""Keys of a configuration that a panel file may have, too."""
_CHANGEABLE: Final = frozenset({"concurrency", "rpm", "tpm", "budget_usd", "on", "base_url", "B"})
"""Keys that don't change what a model is asked."""
_BESIDE: Final[TypeAdapter[BesideRecord | None]] = TypeAdapter(BesideRecord | None)


class Anchor(BaseModel):
    """A claim of known truth, which moves only when the model as a whole does."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    claim: str = Field(min_length=1)
    truth: bool


class _PanelKeys(BaseModel):
    """Keys of a panel file besides those of a measurement."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    claims: list[str] = []
    anchors: list[Anchor] = []
    horizon: int = Field(default=52, ge=1, le=10_000)
    alpha: float = Field(default=ALPHA, gt=0, lt=1)
    variant: Literal["cells", "wave_means", "ranks"] = "cells"
    webhook: str | None = Field(default=None, pattern=r"^(https?://\S+|\$[A-Za-z_][A-Za-z0-9_]*)$")


@dataclass(frozen=True, kw_only=True)
class Panel:
    """A panel file, read: claims and anchors, and how they are measured."""

    name: str
    claims: tuple[str, ...]
    anchors: tuple[Anchor, ...]
    horizon: int
    alpha: float
    variant: Variant
    webhook: str | None
    """An address, or `$NAME` of the variable that holds it: such an address is often a secret."""
    config: RunConfig

    def webhook_address(self, env: Mapping[str, str]) -> str | None:
        """The address that findings are sent to; None where there is none."""
        if self.webhook is None or not self.webhook.startswith("$"):
            return self.webhook
        address = env.get(self.webhook[1:], "")
        if not re.match(r"https?://\S+$", address):
            raise ConfigError(
                f"`webhook` names the variable {self.webhook}, which holds no address; set it to "
                "one that begins with https://, or take the key out"
            )
        return address


def load_panel(path: Path) -> Panel:
    """Read a panel file; every mistake in it is named with its line."""
    document = _read_yaml(path)
    values = {str(key): value for key, value in document.values.items()}
    known = [*_PanelKeys.model_fields, *_MEASURING]
    faults = [
        YamlFault(document.line_of([key]), f"unknown key `{key}`; a panel has {', '.join(known)}")
        for key in values
        if key not in known
    ]
    try:
        keys = _PanelKeys.model_validate(values)
    except ValidationError as exc:
        faults += find_faults(exc, document, (), known)
        raise _make_config_error(path, faults) from exc
    if faults:
        raise _make_config_error(path, faults)
    for name in ("claims_file", "prompts_file"):
        if isinstance(values.get(name), str):
            values[name] = str(path.parent / values[name])
    measuring = {key: values[key] for key in _MEASURING if key in values}
    config = RunConfig.parse(measuring, source=f"`{path}`", document=document)
    listed = [claim.text for claim in config.claims()] if config.claims_file else []
    claims = tuple(dict.fromkeys([*map(check_claim, keys.claims), *listed]))
    anchors = tuple(
        anchor.model_copy(update={"claim": check_claim(anchor.claim)}) for anchor in keys.anchors
    )
    _check_claims(path, claims, anchors)
    return Panel(
        name=keys.name,
        claims=claims,
        anchors=anchors,
        horizon=keys.horizon,
        alpha=keys.alpha,
        variant=keys.variant,
        webhook=keys.webhook,
        config=_fix_wordings(config, path),
    )


def _read_yaml(path: Path) -> Document:
    try:
        document = load(path.read_text(encoding="utf-8-sig"))
    except OSError as exc:
        raise ConfigError(
            f"`{path}` can't be read: {exc.strerror}; `heretix panel init {path}` writes one"
        ) from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"`{path}` isn't UTF-8 text; save it as UTF-8") from exc
    except YamlFault as fault:
        raise ConfigError(fault.at(str(path))) from fault
    if not isinstance(document.values, dict):
        raise ConfigError(f"`{path}` must hold `key: value` lines, such as `name: weekly`")
    return document


def _make_config_error(path: Path, faults: Iterable[YamlFault]) -> ConfigError:
    return ConfigError("\n".join(fault.at(str(path)) for fault in faults))


def _check_claims(path: Path, claims: Sequence[str], anchors: Sequence[Anchor]) -> None:
    if not claims:
        raise ConfigError(f"`{path}`: `claims` is empty: list some, or name a `claims_file`")
    if anchors and len(anchors) < _MIN_ANCHORS:
        raise ConfigError(
            f"`{path}`: `anchors` must be none or at least {_MIN_ANCHORS}, got {len(anchors)}; "
            "about 20 tell a model that moved from a claim that did"
        )
    names = [anchor.claim for anchor in anchors]
    twice = [name for name in names if names.count(name) > 1 or name in claims]
    if twice:
        raise ConfigError(f"`{path}`: {twice[0]!r} stands twice; an anchor is no claim besides")


def _fix_wordings(config: RunConfig, path: Path) -> RunConfig:
    """Ask every claim in the bank's first T wordings: rotation would give each its own."""
    from heretix.prompts.bank import load_bank, load_bank_file

    bank = (
        load_bank_file(config.prompts_file)
        if config.prompts_file is not None
        else load_bank(config.bank_name)
    )
    if config.language == AUTO:
        raise ConfigError(f"`{path}`: `language` must name one: a panel has one bank")
    T = config.T or min(_WORDINGS, bank.T_bank)
    K = config.K if "K" in config.model_fields_set else T
    R = config.R if "R" in config.model_fields_set else 1
    if K < T:
        raise ConfigError(
            f"`{path}`: `K` must be at least `T`, so that every claim is asked in all {T} "
            f"wordings, got {K}"
        )
    return config.override(K=K, R=R, T=T, template_include=tuple(range(min(T, bank.T_bank))))


def list_fixed_content(panel: Panel, measurement: Measurement) -> dict[str, Any]:
    """List what may not change from wave to wave, or waves couldn't be compared."""
    config = panel.config
    asked = config.model_dump(mode="json", exclude=set(_CHANGEABLE) | {"claims_file", "claim"})
    if config.language is None:
        # Waves of before there were languages asked in English, too.
        del asked["language"]
    return {
        **asked,
        "models": [model.identity for model in measurement.models],
        "prompts_file": None,
        "bank_sha256": measurement.bank.sha256,
        "claims": list(panel.claims),
        "anchors": [anchor.model_dump() for anchor in panel.anchors],
        "horizon": panel.horizon,
        "alpha": panel.alpha,
        "variant": panel.variant,
    }


def prepare_panel(panel: Panel, settings: Settings, *, calls: bool = True) -> Measurement:
    """Resolve models, bank and claims, anchors last; without `calls` no key is needed."""
    texts = [*panel.claims, *(anchor.claim for anchor in panel.anchors)]
    return prepare(panel.config, settings, claims=texts, calls=calls)


async def prepare_wave(
    panel: Panel, measurement: Measurement, store: Store
) -> tuple[Wave, Measurement]:
    """Make the next wave ready, or the one that was interrupted.

    Documents are searched for once, before the first wave; all waves show the same.
    """
    fixed = list_fixed_content(panel, measurement)
    row = store.read(select_panel, panel.name)
    if row is None:
        measurement = await gather_evidence(measurement, store=store)
        _require_all(measurement)
        keep_bundles(store, measurement)
        shown = [b.bundle_id for b in measurement.bundles.values() if not isinstance(b, Exception)]
        row = PanelRow(
            panel=panel.name,
            fixed_json=canonical_json(fixed),
            bundles_json=canonical_json(shown),
            created_at=utc_now(),
        )
        row = store.write(save_panel, row)
    elif not set(panel.config.lenses).isdisjoint(SHOWING):
        kept = _load_kept_bundles(store, row)
        measurement = await gather_evidence(measurement, bundles=kept, store=store)
    _require_same(panel.name, json.loads(row.fixed_json), fixed)
    wave = store.write(begin_wave, panel.name)
    settings = measurement.settings
    settings = replace(settings, env={**settings.env, WAVE_VARIABLE: str(wave.wave)})
    return wave, replace(measurement, settings=settings, since=wave.started_at)


def _require_all(measurement: Measurement) -> None:
    for (claim, lens), bundle in measurement.bundles.items():
        if isinstance(bundle, InsufficientEvidenceError):
            raise InsufficientEvidenceError(
                f"{claim[:60]!r} under {lens}: {bundle}. A panel needs documents for every claim "
                "and lens, anchors too; give others, or leave the lens out"
            )


def _load_kept_bundles(store: Store, row: PanelRow) -> list[Any]:
    from heretix.evidence.bundle import load_bundle
    from heretix.store.bundles import find_bundle

    return [load_bundle(store.read(find_bundle, name)) for name in json.loads(row.bundles_json)]


def _require_same(name: str, kept: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    changed = [key for key in asked if canonical_json(kept.get(key)) != canonical_json(asked[key])]
    if changed:
        names = ", ".join(f"`{key}`" for key in changed)
        raise ConfigError(
            f"panel `{name}` has waves that were measured with other {names}; waves compare only "
            "with the same: put it back, or give the file another `name` and begin anew"
        )


def keep_wave(panel: Panel, store: Store, wave: Wave, execution_ids: Iterable[str]) -> None:
    """Finish a wave with the records of its executions.

    A model that answered nothing leaves the wave open: the next `panel run` goes on with it.
    """
    runs = []
    for execution_id in execution_ids:
        row = store.read(select_record, execution_id)
        assert row is not None, "an execution is named when its record is stored"
        record = RunRecord.model_validate_json(row.record_json)
        runs.append(describe_run(record, wave.wave, wordings=panel.config.T or 0))
    for model in dict.fromkeys(run.model for run in runs):
        if not any(run.answered for run in runs if run.model == model):
            raise ProviderDownError(
                f"`{model}` answered nothing in wave {wave.wave}, which stays open; see "
                "`heretix doctor`, then `heretix panel run` goes on with it"
            )
    store.write(finish_wave, panel.name, wave.wave, runs)


def describe_run(record: RunRecord, wave: int, *, wordings: int) -> WaveRun:
    """Summarise a record of a wave: the mean of each wording, the belief, and who answered."""
    usable = [s for s in record.samples if s.compliant and s.prob_true is not None]
    by_wording: list[list[float]] = [[] for _ in range(wordings)]
    for sample in usable:
        by_wording[sample.paraphrase_idx].append(sample.prob_true or 0.0)
    cells = [measure_cell(probs) for probs in by_wording]
    lo, hi = record.aggregates.ci95 or (None, None)
    return WaveRun(
        wave=wave,
        execution_id=record.execution_id,
        claim=record.claim,
        model=record.model,
        lens=record.lens,
        prob_true=record.aggregates.prob_true_rpl,
        ci_lo=lo,
        ci_hi=hi,
        cells_json=canonical_json([None if math.isnan(cell) else cell for cell in cells]),
        beside_json=record.beside.model_dump_json() if record.beside else "null",
        served_json=canonical_json(
            sorted(
                [served.provider_model_id or "", served.fingerprint or ""]
                for served in record.served
            )
        ),
        attempted=record.usage.attempted,
        answered=record.usage.attempted - record.usage.failed,
        finished_at=record.finished_at,
    )


# The report: everything in it follows from the waves that are stored.


@dataclass(frozen=True, slots=True, kw_only=True)
class Movement:
    """Movement of one series: the evidence, since when, and how much."""

    e_value: float
    audit_e_value: float
    drifted: bool
    new: bool
    """True where it wasn't found a wave ago."""
    since_wave: int | None
    since_at: str | None
    """When the likeliest of these waves began."""
    since_waves: tuple[int, ...]
    """The 90% set."""
    size: TInterval | None
    """In log-odds."""
    overstated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A belief in one wave."""

    wave: int
    at: str
    prob_true: float | None
    ci_lo: float | None
    ci_hi: float | None
    beside: BesideRecord | None
    """The interval by Student's t, and what answers of exactly 0 or 1 weigh, as in the record."""
    execution_id: str

    @property
    def by_t(self) -> tuple[float, float] | None:
        """Ends of the interval by Student's t over wordings; None where the record has none."""
        found = self.beside.template_t if self.beside else None
        return found.ci95 if found else None

    @property
    def clamp_sensitive(self) -> bool:
        """True where answers of exactly 0 or 1 decide the belief."""
        return self.beside is not None and self.beside.clamp_sensitive

    def row(self) -> dict[str, Any]:
        """Give the point as a row of a table, by the names in `POINT_COLUMNS`."""
        t_lo, t_hi = self.by_t or (None, None)
        beside = self.beside
        return {
            "wave": self.wave,
            "at": self.at,
            "prob_true": self.prob_true,
            "ci_lo": self.ci_lo,
            "ci_hi": self.ci_hi,
            "t_lo": t_lo,
            "t_hi": t_hi,
            "extreme_share": beside.extreme_share if beside else None,
            "center_clamped": beside.center_clamped if beside else None,
            "clamp_sensitive": beside.clamp_sensitive if beside else None,
            "execution_id": self.execution_id,
        }


POINT_COLUMNS: Final = (
    ("wave", "int64"),
    ("at", "string"),
    *((name, "float64") for name in ("prob_true", "ci_lo", "ci_hi", "t_lo", "t_hi")),
    *((name, "float64") for name in ("extreme_share", "center_clamped")),
    ("clamp_sensitive", "bool_"),
    ("execution_id", "string"),
)
"""Columns of a belief in a wave, wherever waves are a table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One claim, asked of one model under one lens."""

    claim: str
    model: str
    lens: str
    truth: bool | None
    """Of an anchor; None for a claim."""
    points: tuple[Point, ...]
    movement: Movement | None
    """None for anchors, and before the second wave."""
    left_out: bool
    """An anchor that moved against the others, and isn't counted among them."""
    readable: int
    """Cells of the last wave with an answer between 0 and 1, of `wordings`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMovement:
    """Movement of a model as a whole, by its anchors."""

    model: str
    lens: str
    movement: Movement | None
    anchors: int
    """Number that was counted."""
    rho_varies: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedChange:
    """A wave in which another model or build answered than before, as its provider names it."""

    model: str
    wave: int
    at: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    new: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelReport:
    """A panel until now."""

    panel: str
    horizon: int
    alpha: float
    wordings: int
    waves: tuple[Wave, ...]
    """Finished ones."""
    under_way: Wave | None
    series: tuple[Series, ...]
    models: tuple[ModelMovement, ...]
    served: tuple[ServedChange, ...]

    @property
    def moved(self) -> tuple[Series, ...]:
        """Claims that moved by themselves."""
        return tuple(s for s in self.series if s.movement and s.movement.drifted)

    @property
    def moved_models(self) -> tuple[ModelMovement, ...]:
        """Models that moved as a whole."""
        return tuple(m for m in self.models if m.movement and m.movement.drifted)

    @property
    def unreadable(self) -> tuple[tuple[str, str], ...]:
        """Models and lenses whose last wave has no answer between 0 and 1; none before a wave."""
        if not self.waves:
            return ()
        groups = dict.fromkeys((s.model, s.lens) for s in self.series)
        read = {(s.model, s.lens) for s in self.series if s.readable}
        return tuple(group for group in groups if group not in read)

    @property
    def news(self) -> bool:
        """Tell whether the last wave brought a finding."""
        movements = [s.movement for s in self.moved] + [m.movement for m in self.moved_models]
        found = any(movement is not None and movement.new for movement in movements)
        return found or any(change.new for change in self.served)

    @property
    def exit_code(self) -> int:
        """1 where something moved, 3 where it can't be told, else 0."""
        if self.moved or self.moved_models:
            return 1
        return 3 if self.unreadable or not self.waves else 0


def read_panel(store: Store, name: str) -> PanelReport:
    """Say what moved in a panel, from the waves that the store has."""
    row = store.read(select_panel, name)
    if row is None:
        raise RecordError(f"`{name}` has no wave in {store.name}; `heretix panel run` measures one")
    fixed = json.loads(row.fixed_json)
    waves = store.read(select_waves, name)
    done = tuple(wave for wave in waves if wave.finished_at is not None)
    runs = store.read(select_wave_runs, name)
    groups = [(model, lens) for model in fixed["models"] for lens in fixed["lenses"]]
    table = _Table(fixed, groups, runs, len(done))
    now = table.detect(len(done))
    before = table.detect(len(done) - 1)
    series: list[Series] = []
    models: list[ModelMovement] = []
    for index, group in enumerate(groups):
        found = now[index] if now else None
        earlier = before[index] if before else None
        series += table.describe(group, found, earlier, done)
        if fixed["anchors"]:
            movement = _movement(
                found.model if found else None, earlier.model if earlier else None, done
            )
            left_out = len(found.anchors_dropped) if found else 0
            models.append(
                ModelMovement(
                    model=group[0],
                    lens=group[1],
                    movement=movement,
                    anchors=len(fixed["anchors"]) - left_out,
                    rho_varies=bool(found and found.rho_varies),
                )
            )
    return PanelReport(
        panel=name,
        horizon=fixed["horizon"],
        alpha=fixed["alpha"],
        wordings=fixed["T"],
        waves=done,
        under_way=next((wave for wave in waves if wave.finished_at is None), None),
        series=tuple(series),
        models=tuple(models),
        served=tuple(_find_served_changes(fixed["models"], runs, done)),
    )


class _Table:
    """Waves as arrays, a group for each model and lens."""

    def __init__(
        self,
        fixed: Mapping[str, Any],
        groups: Sequence[tuple[str, str]],
        runs: Sequence[WaveRun],
        n_waves: int,
    ) -> None:
        self._fixed = fixed
        self._groups = groups
        self._anchors = [anchor["claim"] for anchor in fixed["anchors"]]
        self._runs: dict[tuple[str, str, str], list[WaveRun]] = {}
        for run in runs:
            self._runs.setdefault((run.claim, run.model, run.lens), []).append(run)
        self._cells = {group: self._fill(group, n_waves) for group in groups}

    def _fill(self, group: tuple[str, str], n_waves: int) -> Floats:
        """Claims, then anchors, by waves and wordings; NaN is a missing cell."""
        texts = [*self._fixed["claims"], *self._anchors]
        cells = np.full((len(texts), n_waves, self._fixed["T"]), np.nan)
        for row, text in enumerate(texts):
            for run in self._runs.get((text, *group), ()):
                cells[row, run.wave] = np.array(json.loads(run.cells_json), dtype=np.float64)
        return cells

    def detect(self, n_waves: int) -> tuple[PanelDrift, ...]:
        """Test the first `n_waves`; nothing comes of fewer than two."""
        if n_waves < 2:
            return ()
        n = len(self._fixed["claims"])
        split = [
            (cells[:n, :n_waves], cells[n:, :n_waves] if self._anchors else None)
            for cells in (self._cells[group] for group in self._groups)
        ]
        return detect_drifts(
            split,
            horizon=self._fixed["horizon"],
            variant=self._fixed["variant"],
            alpha=self._fixed["alpha"],
        )

    def describe(
        self,
        group: tuple[str, str],
        found: PanelDrift | None,
        earlier: PanelDrift | None,
        waves: Sequence[Wave],
    ) -> Iterator[Series]:
        """The series of one model and lens, claims first."""
        n = len(self._fixed["claims"])
        truths = [None] * n + [anchor["truth"] for anchor in self._fixed["anchors"]]
        for row, text in enumerate([*self._fixed["claims"], *self._anchors]):
            is_claim = row < n
            last = self._cells[group][row, -1] if waves else np.array([])
            yield Series(
                claim=text,
                model=group[0],
                lens=group[1],
                truth=truths[row],
                points=tuple(_point(run) for run in self._runs.get((text, *group), ())),
                movement=_movement(
                    found.claims[row], earlier.claims[row] if earlier else None, waves
                )
                if found and is_claim
                else None,
                left_out=bool(found and not is_claim and row - n in found.anchors_dropped),
                readable=int(np.sum(~np.isnan(last))),
            )


def _point(run: WaveRun) -> Point:
    return Point(
        wave=run.wave,
        at=run.finished_at,
        prob_true=run.prob_true,
        ci_lo=run.ci_lo,
        ci_hi=run.ci_hi,
        beside=_BESIDE.validate_json(run.beside_json),
        execution_id=run.execution_id,
    )


def _movement(found: Drift | None, earlier: Drift | None, waves: Sequence[Wave]) -> Movement | None:
    if found is None:
        return None
    since = found.since
    return Movement(
        e_value=found.e_value,
        audit_e_value=found.audit_e_value,
        drifted=found.drifted,
        new=found.drifted and not (earlier is not None and earlier.drifted),
        since_wave=since.wave if since else None,
        since_at=waves[since.wave].started_at if since else None,
        since_waves=since.waves if since else (),
        size=found.size,
        overstated=found.overstated,
    )


def _find_served_changes(
    models: Sequence[str], runs: Sequence[WaveRun], waves: Sequence[Wave]
) -> Iterator[ServedChange]:
    """Waves in which a build answered that never had, or none of those of the wave before."""
    for model in models:
        by_wave: dict[int, set[str]] = {wave.wave: set() for wave in waves}
        for run in runs:
            if run.model == model:
                pairs = json.loads(run.served_json)
                by_wave[run.wave] |= {" ".join(filter(None, pair)) for pair in pairs} - {""}
        seen: set[str] = set()
        last: set[str] = set()
        for wave in waves:
            names = by_wave[wave.wave]
            if last and names and (names - seen or not names & last):
                yield ServedChange(
                    model=model,
                    wave=wave.wave,
                    at=wave.started_at,
                    before=tuple(sorted(last)),
                    after=tuple(sorted(names)),
                    new=wave is waves[-1],
                )
            seen |= names
            last = names or last
