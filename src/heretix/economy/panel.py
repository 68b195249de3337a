"""The panel: measures an episode's models through the lens engine.

Every sample is called for anew, none is taken from the cache; executions are stored like those of
any run, so that each number can be shown and verified. Stages are `c0`, `gate:N`, `first`,
`second`, and `round:N:first` and `round:N:second` of a dispute.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from heretix.config import RunConfig
from heretix.economy.challenge import is_duplicate
from heretix.economy.exhibit import Exhibit, arrange, objection, read_lens
from heretix.economy.hearing import (
    AFTER,
    BEFORE,
    Sides,
    belief_ppm,
    gate_evidence,
    judging_measurement,
    seed_of,
    side_of,
    variant_of,
    with_absent,
)
from heretix.economy.question import Question
from heretix.errors import ConfigError, NoEstimateError, ProviderError, RecordError
from heretix.evidence.bundlefile import load_bundle
from heretix.measurement.measurement import prepare
from heretix.measurement.runner import Silence
from heretix.plan import make_plan
from heretix.providers.prices import cost_micros, load_prices
from heretix.providers.registry import Opener, open_provider, resolve_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from heretix.economy.challenge import Evidence
    from heretix.economy.episode import Episode
    from heretix.economy.exhibit import LeftOut
    from heretix.economy.outcome import Measurement
    from heretix.evidence.bundle import Bundle
    from heretix.measurement.measurement import Measurement as Request
    from heretix.measurement.record import RunRecord
    from heretix.measurement.runner import Observer, Runner
    from heretix.plan import Plan
    from heretix.sample import Sample
    from heretix.settings import Settings
    from heretix.store import Store

__all__ = ["Hearing", "Judged", "Opening", "Panel"]

_CHARS_PER_TOKEN: Final = 4
_ANSWER_TOKENS: Final = 64
"""An answer with a quote or two."""
_MINOR_PER_USD: Final = 100
"""One unit of play money stands for one dollar of computing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """The belief before any challenge."""

    c0_ppm: int
    executions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hearing:
    """What became of a challenge's evidence."""

    evidence: Evidence | None
    """For the rules; None when there was nothing to measure, or nothing came of it."""
    reason: str | None
    """Why there is none."""
    executions: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A judging measurement, and the executions that it came from."""

    measurement: Measurement
    executions: tuple[str, ...]


class Panel:
    """Measures what the rules ask for, against one store."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        *,
        observer: Observer | None = None,
        watch: Callable[[Runner], None] = lambda _: None,
        budget_left_usd: Callable[[], float | None] = lambda: None,
        opener: Opener = open_provider,
    ) -> None:
        """`watch` is told of each runner before it begins; `budget_left_usd` is asked then."""
        self._store = store
        # A measurement that money depends on takes nothing that was there before.
        self._settings = replace(settings, no_cache=True, rpl_seed=None)
        self._observer = observer
        self._watch = watch
        self._budget_left_usd = budget_left_usd
        self._opener = opener

    def check(self, question: Question, models: Sequence[str]) -> None:
        """Refuse what can't be measured: no such bundle, a model twice or without key."""
        self._bundles(question, ())
        self._request(question, models, "c0")

    async def open(self, question: Question, models: Sequence[str]) -> Opening:
        """c₀: what the lens's models believe before any challenge."""
        shown = arrange(self._bundles(question, ()))
        found = await self._measure(question, models, {BEFORE: shown}, stage="c0")
        records = [found[model, BEFORE] for model in models]
        _refuse_failures(records)
        return Opening(c0_ppm=belief_ppm(records), executions=_named(records))

    async def hear(self, episode: Episode, number: int, *, final: bool = False) -> Hearing:
        """The lens with and without a challenge's evidence, on top of what was accepted before.

        Calls that failed are no fault of the challenger's: then nothing is decided, unless this
        is `final`.
        """
        challenge, terms = episode.challenges[number], episode.terms
        question, seed = Question.of(episode.id, terms), seed_of(episode.id, f"gate:{number}")
        if challenge.bundle_sha256 is None:
            return Hearing(evidence=None, reason="it was never revealed")
        if is_duplicate(episode, challenge):
            return Hearing(evidence=None, reason="an earlier challenge brought the same evidence")
        accepted = self._bundles(question, [step.evidence for step in episode.steps])
        try:
            (brought,) = self._stored([challenge.bundle_sha256])
        except RecordError:
            # Revealed, and never handed in. Whoever did that mustn't hold up the others for ever.
            if not final:
                raise
            return Hearing(evidence=None, reason="its evidence was never handed in")
        refused = objection(brought, terms.claim)
        if refused is not None:
            return Hearing(evidence=None, reason=refused)
        before, after = arrange(accepted), arrange([*accepted, brought])
        if before.items == after.items:
            return Hearing(evidence=None, reason="it shows nothing new", left_out=after.left_out)
        found = await self._measure(
            question,
            terms.models,
            {BEFORE: before, AFTER: after},
            stage=f"gate:{number}",
            final=final,
        )
        records = list(found.values())
        if not final:
            _refuse_failures(records)
        evidence, reason = gate_evidence(terms, _paired(found, terms.models), seed=seed)
        return Hearing(
            evidence=evidence,
            reason=reason,
            executions=_named(records),
            left_out=after.left_out,
        )

    async def judge(self, episode: Episode, stage: str, *, final: bool = False) -> Judged:
        """Every drawn judge, without and with all accepted evidence.

        A judge whose calls fail ends the measurement with an error, and it can be made again;
        as `final` it counts as missing, which may void the episode.
        """
        question = Question.of(episode.id, episode.terms)
        accepted = [step.evidence for step in episode.steps]
        shown = {
            BEFORE: arrange(self._bundles(question, ())),
            AFTER: arrange(self._bundles(question, accepted)),
        }
        found = await self._measure(question, episode.judges, shown, stage=stage, final=final)
        records = list(found.values())
        if not final:
            _refuse_failures(records)
        measured = _paired(found, episode.judges)
        measurement = judging_measurement(measured, seed=seed_of(episode.id, stage))
        return Judged(
            measurement=with_absent(measurement, episode.judges, episode.terms),
            executions=_named(records),
        )

    def samples(self, question: Question, models: Sequence[str], sides: int) -> int:
        """Calls that a measurement will make."""
        return question.K * question.R * len(models) * sides

    def compute_cost(self, question: Question, models: Sequence[str]) -> int | None:
        """What hearing one challenge costs in minor units; None where a price isn't known.

        It is counted with as many documents as a challenge may bring.
        """
        micros = 0
        prices = load_prices(self._settings)
        calls = self.samples(question, models, 1)
        for name in models:
            price = prices.find(resolve_model(name, self._settings))
            if price is None:
                return None
            tokens = calls * question.longest_prompt // _CHARS_PER_TOKEN // len(models)
            answers = 2 * calls // len(models) * _ANSWER_TOKENS
            micros += cost_micros(price, 2 * tokens, answers)
        return math.ceil(micros * _MINOR_PER_USD / 1e6)

    async def _measure(
        self,
        question: Question,
        models: Sequence[str],
        shown: Mapping[str, Exhibit],
        *,
        stage: str,
        final: bool = False,
    ) -> dict[tuple[str, str], RunRecord]:
        """Measure each model on each side; records by model and side."""
        request, names = self._request(question, models, stage)
        lens = read_lens(question.lens)
        collected = _Collected(self._observer)
        runner = request.runner(self._store, observer=collected)
        self._watch(runner)
        request.register_bank(self._store)
        async with contextlib.AsyncExitStack() as stack:
            lanes = []
            for model in request.models:
                provider = self._opener(model, self._settings, options=request.options)
                stack.push_async_callback(provider.aclose)
                plans = [
                    make_plan(
                        question.claim,
                        model,
                        request.bank,
                        request.config,
                        evidence=exhibit.evidence(lens, variant_of(question.episode, stage, side)),
                    )
                    for side, exhibit in shown.items()
                ]
                lanes.append((provider, plans))
            try:
                await runner.run(lanes)
            except ProviderError:
                if not final:
                    raise
        return {
            (names[record.model], side_of(record)): record
            for record in sorted(collected.records, key=lambda r: (r.model, side_of(r)))
        }

    def _request(
        self, question: Question, models: Sequence[str], stage: str
    ) -> tuple[Request, dict[str, str]]:
        """What is asked, and each model's name in the terms by its identity."""
        names: dict[str, str] = {}
        for name in models:
            identity = resolve_model(name, self._settings).identity
            if names.setdefault(identity, name) != name:
                raise ConfigError(f"`{name}` and `{names[identity]}` are the same model; keep one")
        config = RunConfig.parse(
            {
                "models": tuple(models),
                "prompt_version": question.bank,
                "K": question.K,
                "R": question.R,
                "T": question.T,
                "B": question.B,
                "seed": seed_of(question.episode, stage),
                "template_include": question.stems,
                "budget_usd": self._budget_left_usd(),
            }
        )
        request = prepare(config, self._settings, claims=[question.claim])
        if request.bank.sha256 != question.bank_sha256:
            raise ConfigError(
                f"`bank` {question.bank!r} must hold the text it had at open, "
                f"{question.bank_sha256[:12]}…, got {request.bank.sha256[:12]}…; use the Heretix "
                "that opened the episode"
            )
        return request, names

    def _bundles(self, question: Question, accepted: Iterable[str]) -> list[Bundle]:
        base = read_lens(question.lens).bundle_id
        return self._stored([*([base] if base else []), *accepted])

    def _stored(self, bundle_ids: Iterable[str]) -> list[Bundle]:
        return [load_bundle(self._store.bundle(ref), ref) for ref in bundle_ids]


class _Collected(Silence):
    """Keeps the records, and passes everything on to whoever watches."""

    def __init__(self, watching: Observer | None) -> None:
        self.records: list[RunRecord] = []
        self._watching: Observer = watching or Silence()

    def planned(self, plan: Plan, cached: int) -> None:
        self._watching.planned(plan, cached)

    def sampled(self, plan: Plan, sample: Sample) -> None:
        self._watching.sampled(plan, sample)

    def shared(self, plan: Plan, sample: Sample) -> None:
        self._watching.shared(plan, sample)

    def finished(self, record: RunRecord) -> None:
        self.records.append(record)
        self._watching.finished(record)


def _paired(found: Mapping[tuple[str, str], RunRecord], models: Sequence[str]) -> dict[str, Sides]:
    return {
        model: Sides(before=found[model, BEFORE], after=found[model, AFTER])
        for model in models
        if {(model, BEFORE), (model, AFTER)} <= found.keys()
    }


def _named(records: Sequence[RunRecord]) -> tuple[str, ...]:
    return tuple(record.execution_id for record in records)


def _refuse_failures(records: Sequence[RunRecord]) -> None:
    failed = sum(record.usage.failed for record in records)
    if failed:
        names = ", ".join(sorted({r.model for r in records if r.usage.failed}))
        raise NoEstimateError(
            f"`samples`: {failed} calls failed ({names}), so nothing is decided; measure again, or "
            "let it stand with --final"
        )
