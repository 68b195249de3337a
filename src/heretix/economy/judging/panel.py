"""The panel: measures an episode's models through the lens engine, and what they are shown."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from heretix.config import RunConfig
from heretix.core.canonical import require_sha256, sha256_hex
from heretix.core.errors import ConfigError, NoEstimateError, ProviderError, RecordError
from heretix.core.lenses import NUL, SHOWING
from heretix.economy.episode.challenges import is_duplicate
from heretix.economy.judging.inputs import (
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
from heretix.economy.ledger import require_whole
from heretix.evidence.bundle import load_bundle
from heretix.evidence.text.fold import fold
from heretix.evidence.text.injection import screen
from heretix.measurement.service import Results, measure, prepare
from heretix.plan import Evidence
from heretix.prompts.bank import ShownItem, load_bank, load_frame
from heretix.providers.catalog import Opener, open_provider, resolve_model
from heretix.providers.prices import cost_micros, load_prices
from heretix.store.documents import find_bundle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from heretix.core.settings import Settings
    from heretix.economy.episode.challenges import BroughtEvidence
    from heretix.economy.episode.settlement import Measurement
    from heretix.economy.episode.state import Episode, Terms
    from heretix.evidence.bundle import Bundle, Item
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
"""What one bundle may bring. Evidence that drowns the rest in text is refused, not weighed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeLens:
    """The `lens` of an episode's terms: how documents are asked about, and which are there."""

    clause: str
    """MEL, HEL or SEL: the lens whose frame stands around the documents."""
    bundle_id: str | None = None
    """The documents that are shown from the start, if any."""

    def __str__(self) -> str:
        return f"{self.clause}@{self.bundle_id}" if self.bundle_id else self.clause


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A document of a bundle that models aren't shown."""

    bundle_id: str
    item: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownDocuments:
    """Documents in the order in which they are shown, and those that aren't."""

    items: tuple[ShownItem, ...]
    left_out: tuple[LeftOut, ...] = ()

    def evidence(self, lens: EpisodeLens, variant: str) -> Evidence:
        """The exhibit as a plan has it.

        `variant` names episode, stage and side. It stands in every sample's identity, so that no
        sample of another measurement can ever be taken for one of this.
        """
        return Evidence(
            lens=lens.clause if self.items else NUL,
            frame=load_frame(),
            # Documents of several bundles: the record holds them in full instead.
            bundle_id=None,
            items=self.items,
            variant=variant,
        )


def read_lens(text: str) -> EpisodeLens:
    """The lens in an episode's terms: `HEL`, or `MEL@` and the id of a bundle."""
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


def find_objection(bundle: Bundle, claim: str) -> str | None:
    """Why a bundle can't be brought as evidence on a claim, or None."""
    if bundle.claim != claim:
        return f"it was made for another claim: {bundle.claim!r}"
    if not bundle.items:
        return "it holds no document"
    if len(bundle.items) > MAX_ITEMS:
        return f"it may hold at most {MAX_ITEMS} documents, got {len(bundle.items)}"
    for name, most in (("text", MAX_ITEM_CHARS), ("title", MAX_TITLE_CHARS)):
        longest = max(len(getattr(item, name)) for item in bundle.items)
        if longest > most:
            return f"the {name} of a document may have at most {most} characters, got {longest}"
    return None


def arrange(bundles: Sequence[Bundle]) -> ShownDocuments:
    """The documents of several bundles as one exhibit, in order.

    A passage that was shown before is left out: saying it again isn't evidence. So is one that
    gives orders to its reader, whatever the bundle says of it.
    """
    shown: dict[str, ShownItem] = {}
    left_out: list[LeftOut] = []
    for bundle in bundles:
        for item in bundle.items:
            key = fold(item.shown_text).casefold()
            reason = _reason(item) or ("it was shown before" if key in shown else None)
            if reason is None:
                text = f"{item.shown_title}\n{item.shown_text}"
                shown[key] = ShownItem(f"E{len(shown) + 1:02d}", text)
            else:
                left_out.append(LeftOut(bundle_id=bundle.bundle_id, item=item.id, reason=reason))
    return ShownDocuments(items=tuple(shown.values()), left_out=tuple(left_out))


def _reason(item: Item) -> str | None:
    # A bundle is its maker's own word: flags in it may have been left off, so the text is read.
    kinds = {flag.kind.value for flag in (*screen(item.title), *screen(item.text))}
    kinds |= {flag.removeprefix("injection:") for flag in item.flags if "injection:" in flag}
    return f"it looks like an instruction: {', '.join(sorted(kinds))}" if kinds else None


# What an episode asks its models, whatever they are shown.

_FRAME_CHARS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Claim, lens, wordings and size. It stands before there are terms: c₀ is part of those."""

    episode: str
    """The episode's id; before it has one, whatever tells this question from others."""
    claim: str
    lens: str
    bank: str
    bank_sha256: str
    K: int
    R: int
    T: int
    B: int

    def __post_init__(self) -> None:
        read_lens(self.lens)
        for name in ("K", "R", "T", "B"):
            require_whole(name, getattr(self, name), least=1)
        bank = load_bank(self.bank)
        if bank.T_bank < self.T:
            raise ConfigError(
                f"`T` must be at most the {bank.T_bank} templates of {self.bank}, got {self.T}"
            )

    @classmethod
    def of(cls, episode: str, terms: Terms) -> Question:
        """What an episode asks, by its terms."""
        return cls(
            episode=episode,
            claim=terms.claim,
            lens=terms.lens,
            bank=terms.bank,
            bank_sha256=terms.bank_sha256,
            K=terms.K,
            R=terms.R,
            T=terms.T,
            B=terms.B,
        )

    @property
    def stems(self) -> tuple[int, ...]:
        """The wordings that every model answers: T of the bank's, drawn from the claim.

        Left alone, each model would get a choice of its own, and judges could not be paired.
        """
        ranked = sorted(range(load_bank(self.bank).T_bank), key=self._rank)
        return tuple(sorted(ranked[: self.T]))

    @property
    def longest_prompt(self) -> int:
        """Characters of a prompt with as many documents as a challenge may bring."""
        return _FRAME_CHARS + len(self.claim) + MAX_ITEMS * (MAX_ITEM_CHARS + MAX_TITLE_CHARS)

    def _rank(self, stem: int) -> str:
        return sha256_hex(f"{self.claim}|{self.bank_sha256}|{stem}".encode())


# The panel: measures an episode's models through the lens engine.
#
# Every sample is called for anew, none is taken from the cache; executions are stored like those of
# any run, so that each number can be shown and verified. Stages are `c0`, `gate:N`, `first`,
# `second`, and `round:N:first` and `round:N:second` of a dispute.

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
class GateInputs:
    """What became of a challenge's evidence."""

    evidence: BroughtEvidence | None
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

    async def measure_gate(
        self, episode: Episode, number: int, *, final: bool = False
    ) -> GateInputs:
        """The lens with and without a challenge's evidence, on top of what was accepted before.

        Calls that failed are no fault of the challenger's: then nothing is decided, unless this
        is `final`.
        """
        challenge, terms = episode.challenges[number], episode.terms
        question, seed = Question.of(episode.id, terms), seed_of(episode.id, f"gate:{number}")
        if challenge.bundle_sha256 is None:
            return GateInputs(evidence=None, reason="it was never revealed")
        if is_duplicate(episode, challenge):
            return GateInputs(
                evidence=None, reason="an earlier challenge brought the same evidence"
            )
        accepted = self._bundles(question, [step.evidence for step in episode.steps])
        try:
            (brought,) = self._stored([challenge.bundle_sha256])
        except RecordError:
            # Revealed, and never handed in. Whoever did that mustn't hold up the others for ever.
            if not final:
                raise
            return GateInputs(evidence=None, reason="its evidence was never handed in")
        refused = find_objection(brought, terms.claim)
        if refused is not None:
            return GateInputs(evidence=None, reason=refused)
        before, after = arrange(accepted), arrange([*accepted, brought])
        if before.items == after.items:
            return GateInputs(evidence=None, reason="it shows nothing new", left_out=after.left_out)
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
        return GateInputs(
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
        """Return what judging one challenge costs in minor units; None where a price isn't known.

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
        shown: Mapping[str, ShownDocuments],
        *,
        stage: str,
        final: bool = False,
    ) -> dict[tuple[str, str], RunRecord]:
        """Measure each model on each side; records by model and side."""
        request, names = self._request(question, models, stage)
        lens = read_lens(question.lens)
        claim = request.claims[0]
        # Only what the sides show is asked, and no lens by itself.
        request = replace(
            request,
            claims=(),
            variants=tuple(
                (claim, documents.evidence(lens, variant_of(question.episode, stage, side)))
                for side, documents in shown.items()
            ),
        )
        results = Results(self._observer, keep_records=True)
        runner = request.runner(self._store, observer=results)
        self._watch(runner)
        try:
            await measure(request, self._store, results, runner=runner, opener=self._opener)
        except ProviderError:
            if not final:
                raise
        return {
            (names[record.model], side_of(record)): record
            for record in sorted(results.records.values(), key=lambda r: (r.model, side_of(r)))
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
        return [load_bundle(self._store.read(find_bundle, ref), ref) for ref in bundle_ids]


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
