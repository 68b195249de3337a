"""Planned samples and their identities, from a claim, a model and a bank. No calls, no clock.

Everything here is a pure function of its inputs, so that anyone can re-derive a plan from a
record: which templates, how many times each, and under which keys the samples are cached.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from heretix.core.canonical import canonical_json, sha256_text
from heretix.core.errors import ConfigError, InsufficientEvidenceError
from heretix.core.lenses import LENSES, RPL
from heretix.prompts.bank import (
    ANSWER_SCHEMA,
    Bank,
    Frame,
    Prompt,
    ShownItem,
    find_free_nonce,
    load_frame,
    render,
    render_in,
)
from heretix.providers.base import Request
from heretix.providers.catalog import PROVIDERS, ModelId, Options, select_sent_options
from heretix.readouts import SAMPLED, Readout

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from heretix.belief.estimator import Agg, Center
    from heretix.config import RunConfig
    from heretix.core.plugins import Plugin
    from heretix.evidence.bundle import Bundle

SeedSource = Literal["config", "environment", "derived"]

DEFAULT_T: Final = 8
"""Wordings of a plan that samples, where it doesn't say."""


@dataclass(frozen=True, slots=True)
class PlannedSample:
    """One attempt: a slot's wording, and which repeat of that wording it is."""

    slot: int
    paraphrase_idx: int
    replicate_idx: int
    prompt_sha256: str
    cache_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Evidence of a lens: a frozen bundle, in a frame. The raw prior is shown nothing."""

    lens: str
    frame: Frame
    bundle_id: str | None
    """None when there are no documents (NUL)."""
    items: tuple[ShownItem, ...]
    variant: str | None = None
    """Change of the bundle for an experiment (`without:E03`, `canary`, `swapped`, `sham`); None is
    the bundle as it is."""
    order: tuple[str, ...] | None = None
    """Ids of the whole bundle where an experiment takes items out or puts one in: the others then
    stand in the same order as in the whole one, wording by wording. `swapped` gives them reversed.
    None is the items' own."""

    def __post_init__(self) -> None:
        if LENSES[self.lens].needs_documents != bool(self.items):
            raise InsufficientEvidenceError(
                f"`{self.lens}` must be shown documents, got none; gather them first"
                if not self.items
                else f"`{self.lens}` must be shown no documents, got {len(self.items)}"
            )

    @property
    def shown_sha256(self) -> str:
        """Hash of what is shown, in its order. A bundle's id also changes with what was left out
        and with the time of retrieval, and those change no answer."""
        return sha256_text(canonical_json([[item.id, item.text] for item in self.items]))

    @property
    def nonce(self) -> str:
        """The code that marks the documents."""
        return find_free_nonce(self.shown_sha256, (item.text for item in self.items))

    @property
    def identity(self) -> dict[str, str]:
        """Part of a sample's identity that the lens adds."""
        shown = {"lens": self.lens, "frame": self.frame.version}
        if self.items:
            shown["shown"] = self.shown_sha256
        if self.variant is not None:
            shown["variant"] = self.variant
        if self.order is not None:
            shown["order"] = ",".join(self.order)
        return shown


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionStep:
    """A plan that was measured on the way to a target, and what it still lacked."""

    __pydantic_config__: ClassVar = {"extra": "forbid", "strict": True}

    K: int
    R: int
    T: int
    ci_width: float | None
    rpl_compliance_rate: float
    unmet: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OpenExecution:
    """The execution that a step goes on with."""

    execution_id: str
    started_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """The stopping rule of an adaptive measurement, and the steps before this one."""

    until_width: float
    min_compliance: float
    max_samples: int
    steps: tuple[PrecisionStep, ...] = ()
    interrupted: bool = False
    """No larger step follows, because the run was stopped."""
    begun: OpenExecution | None = None
    """None for the first step."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Plan of what will be measured, and how."""

    claim: str
    claim_id: str | None
    model: ModelId
    bank: Bank
    options: Options
    """Options sent besides the prompt; those that the model rejects are already gone."""
    K: int
    R: int
    T: int
    B: int
    center: Center
    trim: float
    agg: Agg
    max_output_tokens: int
    template_include: tuple[int, ...] | None
    template_exclude: tuple[int, ...] | None
    rotation_offset: int
    tpl_indices: tuple[int, ...]
    """Bank indices of the selected templates, after rotation."""
    seq: tuple[int, ...]
    """For each slot, the position in `tpl_indices` of its template."""
    bootstrap_seed: int
    seed_source: SeedSource
    prompts: dict[int, Prompt]
    """The prompts that are used, by bank index."""
    pool_size: int
    """Templates that could have been chosen."""
    evidence: Evidence | None = None
    """Evidence that the lens shows; None for the raw prior."""
    readout: Readout = SAMPLED
    """Way in which an answer is taken from the model."""
    precision: Precision | None = None
    """Beside the plan, and no part of its identity: why it has this size."""
    columns: tuple[tuple[str, Any], ...] = ()
    """Likewise: what else the user's file says of the claim."""

    @cached_property
    def run_id(self) -> str:
        """Identity of the recipe: unchanged by T, B, seed and token limit."""
        digest = sha256_text(
            f"{self.claim}|{self.model.identity}|{self.bank.version}|K={self.K}|R={self.R}"
            f"{self._folded}"
        )
        return f"heretix-{self.lens.lower()}-{digest[:12]}"

    @property
    def lens(self) -> str:
        """Lenses that the model is shown: RPL is nothing."""
        return self.evidence.lens if self.evidence else RPL

    @property
    def label(self) -> str:
        """The lens and what an experiment did to it, for people who watch."""
        variant = self.evidence.variant if self.evidence else None
        return f"{self.lens} {variant}" if variant else self.lens

    @property
    def plugins(self) -> tuple[Plugin, ...]:
        """Plug-ins that have a part in it: no part of its identity."""
        return tuple(filter(None, (PROVIDERS.plugin(self.model.provider), self.bank.plugin)))

    @cached_property
    def samples(self) -> tuple[PlannedSample, ...]:
        """The attempts, slot by slot. No two of them share a cache key."""
        return tuple(self._plan_samples())

    @property
    def N(self) -> int:
        """Attempts in the plan."""
        return self.K * self.R

    @cached_property
    def counts(self) -> dict[int, int]:
        """Planned attempts per template, by bank index, in the order of `tpl_indices`."""
        slots = Counter(self.seq)
        return {self.tpl_indices[position]: slots[position] * self.R for position in sorted(slots)}

    @property
    def imbalance_ratio(self) -> float:
        """Most over fewest planned attempts of a template; 1.0 when K is a multiple of T."""
        return max(self.counts.values()) / min(self.counts.values())

    def request(self, sample: PlannedSample) -> Request:
        """The question that one attempt asks."""
        prompt = self.prompts[sample.paraphrase_idx]
        return Request(
            model=self.model.name,
            system=prompt.system,
            user=prompt.user,
            max_output_tokens=self.max_output_tokens,
            temperature=self.options.temperature,
            reasoning_effort=self.options.reasoning_effort,
            claim=self.claim,
            paraphrase_idx=sample.paraphrase_idx,
            replicate_idx=sample.replicate_idx,
            seed=int(sample.cache_key[:8], 16) & 0x7FFFFFFF,
            lens=self.lens,
            readout=self.readout,
            answer_schema=ANSWER_SCHEMA if self.evidence else None,
        )

    @cached_property
    def _folded(self) -> str:
        """Part of an identity for what is sent beyond the bank's prompt; nothing by default.

        A digest has no '|', so identities still read unambiguously from the right, whatever the
        claim holds.
        """
        sent = {**self.options.as_dict(), **(self.evidence.identity if self.evidence else {})}
        if self.readout != SAMPLED:
            sent["readout"] = self.readout
        return f"|options={sha256_text(canonical_json(sent))[:16]}" if sent else ""

    def _plan_samples(self) -> Iterator[PlannedSample]:
        used: Counter[int] = Counter()
        folded = self._folded
        for slot, position in enumerate(self.seq):
            index = self.tpl_indices[position]
            prompt_sha256 = self.prompts[index].sha256
            # Replicates count over all slots of a template, so two slots never share a sample.
            for replicate in range(used[index], used[index] + self.R):
                key = sha256_text(
                    f"{self.claim}|{self.model.identity}|{self.bank.version}|{prompt_sha256}"
                    f"|{replicate}|{self.max_output_tokens}{folded}"
                )
                yield PlannedSample(slot, index, replicate, prompt_sha256, key)
            used[index] += self.R


def evidence_of(lens: str, bundle: Bundle | None) -> Evidence | None:
    """Show a bundle under a lens; the raw prior is shown nothing."""
    if not LENSES[lens].framed:
        return None
    return Evidence(
        lens=lens,
        frame=load_frame(),
        bundle_id=bundle.bundle_id if bundle else None,
        items=tuple(
            ShownItem(item.id, f"{item.shown_title}\n{item.shown_text}")
            for item in (bundle.items if bundle else ())
        ),
    )


def make_plan(
    claim: str,
    model: ModelId,
    bank: Bank,
    config: RunConfig,
    *,
    claim_id: str | None = None,
    env_seed: int | None = None,
    evidence: Evidence | None = None,
    precision: Precision | None = None,
    columns: tuple[tuple[str, Any], ...] = (),
) -> Plan:
    """Plan the measurement of one claim by one model. A seed in `config` wins over `env_seed`.

    Lenses share templates and slots with the raw prior, so that their samples pair by wording.
    """
    pool = list_selectable(bank, config)
    sampled = config.readout == SAMPLED
    T = config.T if config.T is not None else min(DEFAULT_T if sampled else config.K, len(pool))
    if len(pool) < T:
        raise ConfigError(f"`T` must be at most the {len(pool)} templates to choose from, got {T}")
    if not sampled and config.K > T:
        raise ConfigError(
            f"`K` must be at most the {T} templates with `readout` {config.readout}, which asks "
            f"each once, got {config.K}"
        )
    # The model is no part of it: all models of a claim are asked in the same wordings, and pair.
    offset = int(sha256_text(f"{claim}|{bank.version}")[:8], 16) % bank.T_bank
    shift = offset % len(pool)
    indices = tuple((pool[shift:] + pool[:shift])[:T])
    seq = _balance_slots(config.K, T)
    prompts = {
        indices[position]: _render(claim, bank, indices[position], evidence)
        for position in sorted(set(seq))
    }
    seed, source = _seed(
        claim, model, bank, config, env_seed, [prompt.sha256 for prompt in prompts.values()]
    )
    return Plan(
        claim=claim,
        claim_id=claim_id,
        model=model,
        bank=bank,
        options=select_sent_options(model, config.options),
        K=config.K,
        R=config.R,
        T=T,
        B=config.effective_B,
        center=config.center,
        trim=config.trim,
        agg=config.agg,
        max_output_tokens=config.max_output_tokens,
        template_include=config.template_include,
        template_exclude=config.template_exclude,
        rotation_offset=offset,
        tpl_indices=indices,
        seq=seq,
        bootstrap_seed=seed,
        seed_source=source,
        prompts=prompts,
        pool_size=len(pool),
        evidence=evidence,
        readout=config.readout,
        precision=precision,
        columns=columns,
    )


def _render(claim: str, bank: Bank, index: int, evidence: Evidence | None) -> Prompt:
    if evidence is None:
        return render(bank, index, claim)
    return render_in(
        evidence.frame,
        bank,
        index,
        claim,
        lens=evidence.lens,
        items=evidence.items,
        nonce=evidence.nonce,
        order=evidence.order,
    )


def list_selectable(bank: Bank, config: RunConfig) -> list[int]:
    """Bank indices that may be used, in bank order."""
    include, exclude = config.template_include, config.template_exclude or ()
    for name, indices in (("template_include", include or ()), ("template_exclude", exclude)):
        for index in indices:
            if index >= bank.T_bank:
                raise ConfigError(
                    f"`{name}` must hold indices from 0 to {bank.T_bank - 1}, got {index}"
                )
    wanted = range(bank.T_bank) if include is None else include
    pool = sorted(set(wanted) - set(exclude))
    if not pool:
        raise ConfigError("`template_include` and `template_exclude` leave no template")
    return pool


def _balance_slots(K: int, T: int) -> tuple[int, ...]:
    """Balance K slots over T templates; the first ones get the extras."""
    per, rem = divmod(K, T)
    return tuple(position for position in range(T) for _ in range(per + (position < rem)))


def _seed(
    claim: str,
    model: ModelId,
    bank: Bank,
    config: RunConfig,
    env_seed: int | None,
    hashes: Sequence[str],
) -> tuple[int, SeedSource]:
    if config.seed is not None:
        return config.seed, "config"
    if env_seed is not None:
        return env_seed, "environment"
    text = (
        f"{claim}|{model.identity}|{bank.version}|K={config.K}|R={config.R}"
        f"|center={config.center}|trim={config.trim!r}|B={config.effective_B}"
        f"|templates={','.join(sorted(set(hashes)))}"
    )
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big"), "derived"


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Estimate of a measurement, before any call. Costs are None where a price is unknown."""

    runs: int
    attempts: int
    cached: int
    to_call: int
    tokens_in: int
    tokens_out: int
    tokens_out_max: int
    cost_usd: float | None
    cost_usd_max: float | None
    price_as_of: str | None
    at_most: Estimate | None = None
    """With `until_width`: what its largest step takes, where this is what its first does."""

    def __add__(self, other: Estimate) -> Estimate:
        """Both together; one unknown price makes the whole unknown."""
        counts = ("runs", "attempts", "cached", "to_call", "tokens_in", "tokens_out")
        summed: dict[str, Any] = {
            name: getattr(self, name) + getattr(other, name) for name in (*counts, "tokens_out_max")
        }
        for name in ("cost_usd", "cost_usd_max"):
            costs = getattr(self, name), getattr(other, name)
            summed[name] = None if None in costs else sum(costs)
        dates = [one.price_as_of for one in (self, other) if one.price_as_of is not None]
        return replace(self, **summed, price_as_of=min(dates, default=None))
