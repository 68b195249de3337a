"""The panel: measures an episode's models through the lens engine, and what they are shown."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from heretix.config import RunConfig
from heretix.core.canonical import require_sha256, sha256_hex
from heretix.core.errors import ConfigError, NoEstimateError, ProviderError, RecordError
from heretix.core.lenses import NUL, SHOWING
from heretix.economy.episode.challenges import find_failure
from heretix.economy.judging import inputs
from heretix.economy.judging.inputs import AFTER, BEFORE, PLACEBO, seed_of, side_of, variant_of
from heretix.economy.ledger import Reason
from heretix.evidence.bundle import load_bundle
from heretix.evidence.text.fold import fold
from heretix.evidence.text.injection import screen
from heretix.measurement.experiments import list_irrelevant_documents, make_sham_items
from heretix.measurement.service import Results, measure, prepare
from heretix.plan import Evidence
from heretix.prompts.bank import ShownItem, load_bank, load_frame
from heretix.providers.catalog import Opener, cost_micros, load_prices, open_provider, resolve_model
from heretix.store.bundles import find_bundle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from heretix.core.settings import Settings
    from heretix.economy.episode.challenges import BroughtEvidence
    from heretix.economy.episode.settlement import Measurement
    from heretix.economy.episode.state import Episode, Terms
    from heretix.evidence.bundle import Bundle
    from heretix.measurement.record import RunRecord
    from heretix.measurement.runner import Observer, Runner
    from heretix.measurement.service import Measurement as Request
    from heretix.store import Store

# What an episode's models are shown: the lens's own documents, then what was brought and accepted.
#
# Without documents there is still the frame of a lens (NUL), so that with and without evidence
# differ in the evidence and in nothing else. The raw prior has no frame, and can't be a lens here.

MAX_ITEMS: Final = 8
MAX_ITEM_CHARS: Final = 600
MAX_TITLE_CHARS: Final = 300
"""Limits of one bundle. Evidence that drowns the rest in text is refused, not weighed."""
_FRAME_CHARS: Final = 2_000
_CHARS_PER_TOKEN: Final = 4
_ANSWER_TOKENS: Final = 64
_MINOR_PER_USD: Final = 100
"""One unit of play money stands for one dollar of computing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeLens:
    """The `lens` of an episode's terms: how documents are asked about, and which are there."""

    clause: str
    """The lens whose frame stands around the documents."""
    bundle_id: str | None = None
    """The documents that are shown from the start, if any."""

    def __str__(self) -> str:
        return f"{self.clause}@{self.bundle_id}" if self.bundle_id else self.clause


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A document of a bundle that models aren't shown."""

    bundle_id: str
    item: str
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownDocuments:
    """Documents in the order in which they are shown, and those that aren't."""

    items: tuple[ShownItem, ...]
    left_out: tuple[LeftOut, ...] = ()


def read_lens(text: str) -> EpisodeLens:
    """Read the lens in an episode's terms: `HEL`, or `MEL@` and the id of a bundle."""
    clause, at, bundle_id = text.partition("@")
    clause = clause.upper()
    if clause not in SHOWING:
        raise ConfigError(
            f"`lens` must be one of {', '.join(SHOWING)}, got {text!r}; the raw prior shows "
            "nothing, so evidence could never be told from the frame it comes in"
        )
    if at:
        require_sha256("lens", bundle_id)
    return EpisodeLens(clause=clause, bundle_id=bundle_id or None)


def find_objection(bundle: Bundle, claim: str) -> Reason | None:
    """Find why a bundle can't be brought as evidence on a claim; None if it can."""
    if bundle.claim != claim:
        return Reason.of("other_claim", claim=bundle.claim)
    if not bundle.items:
        return Reason("no_document")
    if len(bundle.items) > MAX_ITEMS:
        return Reason.of("too_many_documents", most=MAX_ITEMS, got=len(bundle.items))
    for part, most in (("text", MAX_ITEM_CHARS), ("title", MAX_TITLE_CHARS)):
        longest = max(len(getattr(item, part)) for item in bundle.items)
        if longest > most:
            return Reason.of("document_too_long", part=part, most=most, got=longest)
    return None


def arrange(bundles: Sequence[Bundle]) -> ShownDocuments:
    """Arrange the documents of several bundles to be shown as one, in order.

    A passage that was shown before is left out: saying it again isn't evidence. So is one that
    gives orders to its reader, whatever the bundle says of it.
    """
    shown: dict[str, ShownItem] = {}
    left_out: list[LeftOut] = []
    for bundle in bundles:
        for item in bundle.items:
            key = fold(item.shown_text).casefold()
            # A bundle is its maker's own word: flags may have been left off, so the text is read.
            kinds = {flag.kind.value for flag in (*screen(item.title), *screen(item.text))}
            kinds |= {f.removeprefix("injection:") for f in item.flags if "injection:" in f}
            reason = Reason("shown_before") if key in shown else None
            if kinds:
                reason = Reason.of("instruction", kinds=", ".join(sorted(kinds)))
            if reason is None:
                text = f"{item.shown_title}\n{item.shown_text}"
                shown[key] = ShownItem(f"E{len(shown) + 1:02d}", text)
            else:
                left_out.append(LeftOut(bundle_id=bundle.bundle_id, item=item.id, reason=reason))
    return ShownDocuments(items=tuple(shown.values()), left_out=tuple(left_out))


@dataclass(frozen=True, slots=True, kw_only=True)
class GateInputs:
    """Fate of a challenge's evidence."""

    evidence: BroughtEvidence | None
    """For the rules; None when there was nothing to measure, or nothing came of it."""
    reason: Reason | None
    executions: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A judging measurement, and the executions that it came from."""

    measurement: Measurement
    executions: tuple[str, ...]


class Panel:
    """Measures what the rules ask for, against one store.

    Every sample is called for anew, none is taken from the cache; executions are stored like those
    of any run, so that each number can be shown and verified. Stages are `c0`, `gate:N`, `first`,
    `second`, and `round:N:first` and `round:N:second` of a dispute.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        *,
        observer: Observer | None = None,
        watch: Callable[[Runner], None] = lambda _: None,
        caps: Mapping[str, int] | None = None,
        opener: Opener = open_provider,
    ) -> None:
        """`watch` is told of each runner before it begins; `caps` are budgets that every call
        counts against."""
        self._store = store
        # A measurement that money depends on takes nothing that was there before.
        self._settings = replace(settings, no_cache=True, rpl_seed=None)
        self._observer = observer
        self._watch = watch
        self._caps = caps
        self._opener = opener

    def check(self, terms: Terms, models: Sequence[str]) -> None:
        """Refuse what can't be measured: no such bundle, a model twice or without key."""
        self._bundles(terms, ())
        self._request("draft", terms, models, "c0")

    async def open(
        self, label: str, terms: Terms, models: Sequence[str]
    ) -> tuple[int, tuple[str, ...]]:
        """Measure c₀, what the lens's models believe before any challenge, and name the executions.

        The episode has no id yet; `label` tells its samples from others.
        """
        shown = arrange(self._bundles(terms, ()))
        found = await self._measure(label, terms, models, {BEFORE: shown}, "c0")
        records = [found[model, BEFORE] for model in models]
        return inputs.belief_ppm(records), _name_executions(records)

    async def measure_gate(
        self, episode: Episode, number: int, *, final: bool = False
    ) -> GateInputs:
        """Measure the lens with and without a challenge's evidence, on top of what was accepted.

        Calls that failed are no fault of the challenger's: then nothing is decided, unless this
        is `final`.
        """
        challenge, terms, stage = episode.challenges[number], episode.terms, f"gate:{number}"
        failure = find_failure(episode, challenge)
        if failure is not None or challenge.bundle_sha256 is None:
            return GateInputs(evidence=None, reason=failure)
        accepted = self._bundles(terms, [step.evidence for step in episode.steps])
        try:
            (brought,) = self._load([challenge.bundle_sha256])
        except RecordError:
            # Revealed, and never handed in. Whoever did that mustn't hold up the others for ever.
            if not final:
                raise
            return GateInputs(evidence=None, reason=Reason("never_handed_in"))
        refused = find_objection(brought, terms.claim)
        if refused is not None:
            return GateInputs(evidence=None, reason=refused)
        before, after = arrange(accepted), arrange([*accepted, brought])
        if before.items == after.items:
            nothing_new = Reason("nothing_new")
            return GateInputs(evidence=None, reason=nothing_new, left_out=after.left_out)
        fresh = after.items[len(before.items) :]
        sham = make_sham_items(fresh, list_irrelevant_documents(terms.claim))
        placebo = ShownDocuments(items=(*before.items, *sham))
        sides = {BEFORE: before, AFTER: after, PLACEBO: placebo}
        found = await self._measure(episode.id, terms, terms.models, sides, stage, final=final)
        seed = seed_of(episode.id, stage)
        evidence, reason = inputs.gate_evidence(
            terms,
            inputs.pair_sides(found),
            seed=seed,
            placebo={model: record for (model, side), record in found.items() if side == PLACEBO},
        )
        return GateInputs(
            evidence=evidence,
            reason=reason,
            executions=_name_executions(found.values()),
            left_out=after.left_out,
        )

    async def judge(self, episode: Episode, stage: str, *, final: bool = False) -> Judged:
        """Measure every drawn judge, without and with all accepted evidence.

        A judge whose calls fail ends the measurement with an error, and it can be made again;
        as `final` it counts as missing, which may void the episode.
        """
        terms, judges = episode.terms, episode.judges
        accepted = [step.evidence for step in episode.steps]
        sides = {
            BEFORE: arrange(self._bundles(terms, ())),
            AFTER: arrange(self._bundles(terms, accepted)),
        }
        found = await self._measure(episode.id, terms, judges, sides, stage, final=final)
        seed = seed_of(episode.id, stage)
        measurement = inputs.judging_measurement(inputs.pair_sides(found), seed=seed)
        return Judged(
            measurement=inputs.add_absent(measurement, judges, terms),
            executions=_name_executions(found.values()),
        )

    def compute_cost(self, terms: Terms) -> int | None:
        """Return what judging one challenge costs in minor units; None where a price isn't known.

        It is counted with as many documents as a challenge may bring.
        """
        prices, calls, micros = load_prices(self._settings), terms.K * terms.R, 0
        chars = _FRAME_CHARS + len(terms.claim) + MAX_ITEMS * (MAX_ITEM_CHARS + MAX_TITLE_CHARS)
        for name in terms.models:
            price = prices.find(resolve_model(name, self._settings))
            if price is None:
                return None
            tokens = calls * chars // _CHARS_PER_TOKEN
            # Without the evidence, with it, and with irrelevant text of its length.
            micros += cost_micros(price, 3 * tokens, 3 * calls * _ANSWER_TOKENS)
        return math.ceil(micros * _MINOR_PER_USD / 1e6)

    async def _measure(
        self,
        label: str,
        terms: Terms,
        models: Sequence[str],
        shown: Mapping[str, ShownDocuments],
        stage: str,
        *,
        final: bool = False,
    ) -> dict[tuple[str, str], RunRecord]:
        """Measure each model on each side; records by model and side."""
        request, names = self._request(label, terms, models, stage)
        lens, claim = read_lens(terms.lens), request.claims[0]
        # Only what the sides show is asked, and no lens by itself. The variant stands in every
        # sample's identity, so that none of another measurement is ever taken for one of this.
        variants = tuple(
            (
                claim,
                Evidence(
                    lens=lens.clause if documents.items else NUL,
                    frame=load_frame(),
                    # Documents of several bundles: the record holds them in full instead.
                    bundle_id=None,
                    items=documents.items,
                    variant=variant_of(label, stage, side),
                ),
            )
            for side, documents in shown.items()
        )
        request = replace(request, claims=(), variants=variants)
        results = Results(self._observer, keep_records=True)
        runner = request.runner(self._store, observer=results, caps=self._caps)
        self._watch(runner)
        try:
            await measure(request, self._store, results, runner=runner, opener=self._opener)
        except ProviderError:
            if not final:
                raise
        records = sorted(results.records.values(), key=lambda r: (r.model, side_of(r)))
        failed = sum(record.usage.failed for record in records)
        if failed and not final:
            failing = ", ".join(sorted({r.model for r in records if r.usage.failed}))
            raise NoEstimateError(
                f"`samples`: {failed} calls failed ({failing}), so nothing is decided; measure "
                "again, or let it stand with --final"
            )
        return {(names[record.model], side_of(record)): record for record in records}

    def _request(
        self, label: str, terms: Terms, models: Sequence[str], stage: str
    ) -> tuple[Request, dict[str, str]]:
        """Make the request, and name each model as the terms do by its identity."""
        names: dict[str, str] = {}
        for name in models:
            identity = resolve_model(name, self._settings).identity
            if names.setdefault(identity, name) != name:
                raise ConfigError(f"`{name}` and `{names[identity]}` are the same model; keep one")
        config = RunConfig.parse(
            {
                "models": tuple(models),
                "prompt_version": terms.bank,
                "K": terms.K,
                "R": terms.R,
                "T": terms.T,
                "B": terms.B,
                "seed": seed_of(label, stage),
                "template_include": draw_stems(terms),
            }
        )
        request = prepare(config, self._settings, claims=[terms.claim])
        if request.bank.sha256 != terms.bank_sha256:
            raise ConfigError(
                f"`bank` {terms.bank!r} must hold the text it had at open, "
                f"{terms.bank_sha256[:12]}…, got {request.bank.sha256[:12]}…; use the Heretix "
                "that opened the episode"
            )
        return request, names

    def _bundles(self, terms: Terms, accepted: Iterable[str]) -> list[Bundle]:
        base = read_lens(terms.lens).bundle_id
        return self._load([*([base] if base else []), *terms.paid, *accepted])

    def _load(self, bundle_ids: Iterable[str]) -> list[Bundle]:
        return [load_bundle(self._store.read(find_bundle, ref), ref) for ref in bundle_ids]


def draw_stems(terms: Terms) -> tuple[int, ...]:
    """Draw the wordings that every model answers: T of the bank's, from the claim.

    Left alone, each model would get a choice of its own, and judges could not be paired.
    """
    own, stems = f"{terms.claim}|{terms.bank_sha256}", range(load_bank(terms.bank).T_bank)
    ranked = sorted(stems, key=lambda stem: sha256_hex(f"{own}|{stem}".encode()))
    return tuple(sorted(ranked[: terms.T]))


def _name_executions(records: Iterable[RunRecord]) -> tuple[str, ...]:
    return tuple(record.execution_id for record in records)
