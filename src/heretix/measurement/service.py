"""The measuring service: prepare a request, gather what lenses show, keep it, run, assemble.

The library, the command line, jobs and the panels of episodes measure through it, so that the same
request gives the same plans and records wherever it is made.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import uuid
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from heretix.belief.estimator import MIN_SAMPLES
from heretix.config import AUTO, LANGUAGES, Claim, RunConfig, check_claim
from heretix.core import telemetry
from heretix.core.errors import ClaimError, ConfigError, InsufficientEvidenceError, RecordError
from heretix.core.lenses import LENSES, RPL, SHOWING
from heretix.measurement.execution import plan_json
from heretix.measurement.pacing import Limits, name_rate
from heretix.measurement.precision import Escalation
from heretix.measurement.runner import (
    DEFAULT_CONCURRENCY,
    NullObserver,
    Observer,
    Runner,
)
from heretix.plan import Estimate, Evidence, Plan, evidence_of, make_plan
from heretix.prompts.bank import Bank, load_bank, load_bank_file
from heretix.providers.catalog import (
    ModelId,
    Opener,
    Price,
    Spending,
    cost_micros,
    default_model,
    load_prices,
    open_provider,
    parse_model,
    require_keys,
    require_readout,
    resolve_model,
    select_sent_options,
)
from heretix.readouts import SAMPLED
from heretix.store import LEASE_S, Store
from heretix.store.budgets import STORE_BUDGET, select_budget
from heretix.store.db import has_rows
from heretix.store.runs import find_execution, register_bank, select_bank, tag_column
from heretix.store.samples import select_answers
from heretix.store.schema import budgets

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

    from heretix.config import EvidenceConfig
    from heretix.core.settings import Settings
    from heretix.evidence.bundle import Bundle
    from heretix.evidence.document import Document
    from heretix.measurement.calls import Payer
    from heretix.measurement.gather import Bundles
    from heretix.measurement.record import Artifact, RunRecord
    from heretix.measurement.runner import Retry


def plan_content(plan: Plan) -> dict[str, Any]:
    """A plan as JSON."""
    how = ("agg", "center", "trim", "B", "bootstrap_seed", "seed_source")
    return {
        "run_id": plan.run_id,
        "claim": plan.claim,
        "model": plan.model.identity,
        "provider": plan.model.provider,
        "demonstration": plan.model.is_demonstration,
        "prompt_version": plan.bank.version,
        "sampling": {"K": plan.K, "R": plan.R, "T": plan.T, "N": plan.N},
        "sampler": {
            "T_bank": plan.bank.T_bank,
            "rotation_offset": plan.rotation_offset,
            "tpl_indices": list(plan.tpl_indices),
            "seq": list(plan.seq),
        },
        "planned_counts": {str(index): count for index, count in plan.counts.items()},
        "imbalance_ratio": plan.imbalance_ratio,
        "aggregation": {name: getattr(plan, name) for name in how},
        "max_output_tokens": plan.max_output_tokens,
        "options": plan.options.as_dict(),
        "templates": [
            {"paraphrase_idx": index, "prompt_sha256": prompt.sha256, "user": prompt.user}
            for index, prompt in plan.prompts.items()
        ],
    }


_CHARS_PER_TOKEN: Final = 4
_ANSWER_TOKENS: Final = 12
"""`{"prob_true": 0.42}` in most tokenisers; reasoning comes on top and can't be foreseen."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Claims × models under one configuration."""

    config: RunConfig
    settings: Settings
    bank: Bank
    models: tuple[ModelId, ...]
    claims: tuple[Claim, ...]
    """Each text once, in order: what is measured."""
    rows: tuple[Claim, ...] = ()
    """All rows that were given, in order, duplicates too: what is delivered."""
    bundles: Bundles = field(default_factory=dict)
    """By claim and lens: what the evidence lenses show, or why they can't."""
    variants: tuple[tuple[Claim, Evidence], ...] = ()
    """Experiments on the bundles, measured with everything else."""
    other_bundles: tuple[Bundle, ...] = ()
    """Bundles of another source policy, which some of the variants show."""
    negation: Claim | None = None
    """The negation of the one claim: its raw prior is measured too."""
    siblings: tuple[tuple[Claim, Claim], ...] = ()
    """A claim, and another whose raw prior is measured in the same wordings, for a study."""
    since: str | None = None
    """Answers from before then don't count, though they are in the cache; None is no such limit."""
    beside: Measurement | None = None
    """The same claims by a read-out that asks the same prompts: a model may read each once for
    both."""
    budget_id: str = field(default_factory=lambda: f"run:{uuid.uuid4()}", compare=False)
    """Name of the budget that `budget_usd` caps. Measurements of one invocation share it."""
    spent: Spending | None = field(default=None, compare=False)
    """Account of what was paid for its evidence: judges, readers, writers of queries."""

    def plans(self, model: ModelId) -> Iterator[Plan]:
        """The plans of one model, claim by claim and lens by lens, made as they are needed."""
        beside = self.beside.plans(model) if self.beside is not None else ()
        for pair in itertools.zip_longest(self._own_plans(model), beside):
            yield from (plan for plan in pair if plan is not None)

    def _own_plans(self, model: ModelId) -> Iterator[Plan]:
        """A lens without enough evidence has no plan: there is nothing to measure."""
        for claim, lens in self.pairs():
            yield self.plan(claim, model, lens)
        for claim, evidence in self.variants:
            yield self._make(claim, model, evidence)
        denied = ((self.claims[0], self.negation),) if self.negation is not None else ()
        for claim, sibling in (*denied, *self.siblings):
            # The claim's own templates, for its sibling: rotation would choose others.
            chosen = self.plan(claim, model).tpl_indices
            same = self.config.model_copy(update={"template_include": tuple(sorted(chosen))})
            yield self._make(sibling, model, None, same, bank=self.bank_for(claim.text))

    def pairs(self) -> Iterator[tuple[Claim, str]]:
        """Claims and lenses that can be measured."""
        for claim in self.claims:
            for lens in self.config.lenses:
                if not isinstance(self.bundles.get((claim.text, lens)), InsufficientEvidenceError):
                    yield claim, lens

    def plan(self, claim: Claim, model: ModelId, lens: str = RPL) -> Plan:
        """The plan of one claim, model and lens."""
        bundle = self.bundles.get((claim.text, lens))
        assert not isinstance(bundle, InsufficientEvidenceError), "it isn't among `pairs`"
        return self._make(claim, model, evidence_of(lens, bundle))

    def _make(
        self,
        claim: Claim,
        model: ModelId,
        evidence: Evidence | None,
        config: RunConfig | None = None,
        *,
        bank: Bank | None = None,
    ) -> Plan:
        return make_plan(
            claim.text,
            model,
            bank or self.bank_for(claim.text),
            config or self.config,
            claim_id=claim.claim_id,
            env_seed=self.settings.rpl_seed,
            evidence=evidence,
            columns=claim.columns,
        )

    def bank_for(self, claim: str) -> Bank:
        """The bank that asks of a claim: with `language: auto`, that of its language."""
        if self.config.language != AUTO:
            return self.bank
        from heretix.prompts.languages import recognise

        return load_bank(LANGUAGES[recognise(claim) or "en"])

    @property
    def unrecognised(self) -> list[str]:
        """Claims that are asked in English because `language: auto` can't tell theirs."""
        if self.config.language != AUTO:
            return []
        from heretix.prompts.languages import recognise

        return [claim.text for claim in self.claims if recognise(claim.text) is None]

    @property
    def attempts(self) -> int:
        """Samples that the measurement will ask for, cached ones included."""
        pairs = len(list(self.pairs())) + len(self.variants) + len(self.siblings)
        pairs += self.negation is not None
        beside = self.beside.attempts if self.beside is not None else 0
        return self.config.K * self.config.R * len(self.models) * pairs + beside

    @property
    def shortfall(self) -> str | None:
        """Reason why no answers, however good, will give an estimate; None where they can."""
        config = self.config
        most = config.K * config.R
        if config.until_width is not None:
            most = max(most, config.max_samples or MIN_SAMPLES)
        if most >= MIN_SAMPLES:
            return None
        return (
            f"`K` times `R` must be at least {MIN_SAMPLES} for an estimate, got {config.K} times "
            f"{config.R}: there will be samples, and no belief; raise K or R"
        )

    def list_ignored_options(self, model: ModelId) -> list[str]:
        """Options that were asked for and that `model` doesn't accept: they aren't sent."""
        asked = self.config.options
        sent = select_sent_options(model, asked).as_dict()
        return [name for name in asked.as_dict() if name not in sent and name != "base_url"]

    def estimate(self, store: Store | None) -> Estimate:
        """Count calls, tokens and cost; a store tells what is cached already."""
        least = self._estimate(store, self.plans)
        if self.config.until_width is None:
            return least
        return replace(
            least, at_most=self._estimate(store, Escalation(self, NullObserver()).plan_largest)
        )

    def _estimate(
        self, store: Store | None, plans_of: Callable[[ModelId], Iterator[Plan]]
    ) -> Estimate:
        runs = attempts = to_call = 0
        dates = []
        taken: list[tuple[Price | None, int, int, int]] = []
        prices = load_prices(self.settings)
        for model in self.models:
            price = prices.find(model)
            dates += [price.as_of.isoformat()] if price and price.as_of else []
            for plan in plans_of(model):
                calls = {sample.cache_key: sample for sample in plan.samples}
                if store is not None and not self.settings.no_cache:
                    for key in store.read(select_answers, list(calls)):
                        del calls[key]
                asked = [plan.prompts[sample.paraphrase_idx] for sample in calls.values()]
                t_in = sum(
                    math.ceil((len(prompt.system) + len(prompt.user)) / _CHARS_PER_TOKEN)
                    for prompt in asked
                )
                most = plan.max_output_tokens
                answer = min(_ANSWER_TOKENS, most)
                taken.append((price, t_in, len(calls) * answer, len(calls) * most))
                runs, attempts, to_call = runs + 1, attempts + plan.N, to_call + len(calls)
        # One unknown price makes the whole unknown.
        known = [(price, t_in, t_out, t_max) for price, t_in, t_out, t_max in taken if price]
        priced = len(known) == len(taken)
        cost = sum(cost_micros(price, t_in, t_out) for price, t_in, t_out, _ in known) / 1e6
        cost_max = sum(cost_micros(price, t_in, t_max) for price, t_in, _, t_max in known) / 1e6
        return Estimate(
            runs=runs,
            attempts=attempts,
            cached=attempts - to_call,
            to_call=to_call,
            tokens_in=sum(t_in for _, t_in, _, _ in taken),
            tokens_out=sum(t_out for _, _, t_out, _ in taken),
            tokens_out_max=sum(t_max for _, _, _, t_max in taken),
            cost_usd=cost if priced else None,
            cost_usd_max=cost_max if priced else None,
            price_as_of=min(dates, default=None),
        )

    def register_bank(self, store: Store) -> None:
        """Keep the text of each bank beside what is measured with it."""
        asked = (self.bank_for(claim.text) for claim in self.claims)
        for bank in {bank.version: bank for bank in asked}.values():
            register_bank(
                store,
                prompt_version=bank.version,
                bank_sha256=bank.sha256,
                source=Path(bank.source).name,
                system=bank.system,
                user_template=bank.user_template,
                paraphrases=bank.paraphrases,
            )

    @property
    def _limits(self) -> Limits:
        """Limits of each model's calls."""
        config = self.config
        return Limits(
            concurrency=config.concurrency or DEFAULT_CONCURRENCY,
            fixed=config.concurrency is not None,
            rpm=config.rpm,
            tpm=config.tpm,
        )

    def _name_rate(self, model: ModelId) -> str | None:
        return name_rate(model, self.settings, self.config.options)

    def runner(
        self,
        store: Store,
        *,
        observer: Observer | None = None,
        retry: Retry | None = None,
        caps: Mapping[str, int] | None = None,
    ) -> Runner:
        """The runner that `run` uses; it can be asked how it is doing.

        `caps` are budgets of others that its calls count against, beside its own.
        """
        spending, caps = self._purse(store, caps or {})
        return Runner(
            store,
            spending=spending,
            caps=caps,
            budget_id=self.budget_id,
            limits=self._limits,
            rate_ids={m: name for m in self.models if (name := self._name_rate(m)) is not None},
            use_cache=not self.settings.no_cache and self.since is None,
            since=self.since,
            retry=retry,
            observer=observer,
            lease_s=self.settings.lease_s or LEASE_S,
        )

    def _purse(
        self, store: Store, caps: Mapping[str, int], asked: Sequence[ModelId] = ()
    ) -> tuple[Spending, dict[str, int]]:
        """An account of calls to its models, and the budgets that they count against."""
        budget_usd, models = self.config.budget_usd, dict.fromkeys((*self.models, *asked))
        spending = Spending(load_prices(self.settings), tuple(models), budget_usd=budget_usd)
        if self.spent is not None:
            spending = deepcopy(self.spent)
        caps = {**caps, **find_store_cap(store, self.settings)}
        if caps:
            spending.require_prices("HERETIX_BUDGET_USD" if STORE_BUDGET in caps else "budget_usd")
        if budget_usd is not None:
            caps[self.budget_id] = round(budget_usd * 1e6)
        return spending, caps

    @contextlib.asynccontextmanager
    async def asking(self, store: Store | None, asked: Sequence[str]) -> AsyncIterator[Payer]:
        """Open models that are asked for evidence: their calls are paid for as all others are."""
        from heretix.measurement.calls import paying

        with contextlib.ExitStack() as stack:
            store = store or stack.enter_context(Store.open(self.settings.db))
            models = [resolve_model(name, self.settings) for name in asked]
            spending, caps = self._purse(store, {}, models)
            async with paying(
                *(store, self.settings, models),
                spending=spending,
                caps=caps,
                limits=self._limits,
                since=self.since,
            ) as payer:
                yield payer

    async def run(
        self,
        store: Store,
        *,
        observer: Observer | None = None,
        retry: Retry | None = None,
        runner: Runner | None = None,
        opener: Opener = open_provider,
    ) -> None:
        """Measure everything; records reach the observer and the store."""
        runner = runner or self.runner(store, observer=observer, retry=retry)
        self.register_bank(runner.store)
        if self.config.on is not None:
            # Imported as needed: it brings the cluster's engine.
            from heretix.measurement.parts import measure_in_parts

            await measure_in_parts(self, store, runner)
            return
        async with contextlib.AsyncExitStack() as stack:
            providers = {}
            for model in self.models:
                provider = opener(model, self.settings, options=self.config.options)
                stack.push_async_callback(provider.aclose)
                providers[model] = provider
            if self.config.until_width is None:
                await runner.run([(providers[model], self.plans(model)) for model in self.models])
                return
            escalation = Escalation(self, runner.observer)
            runner.observer = escalation
            try:
                await runner.run([(providers[m], escalation.plan_first(m)) for m in self.models])
                while more := escalation.plan_next_round():
                    await runner.run([(providers[model], plans) for model, plans in more.items()])
            except BaseException:
                # Whatever ended it: an execution that has a step to show ends with that.
                runner.close(escalation.plan_interrupted())
                raise


@contextlib.asynccontextmanager
async def asking(settings: Settings, asked: Sequence[str | None]) -> AsyncIterator[Opener]:
    """Open models that are asked outside of measurements: budgets, rates and replies are those of
    the store, which is made unless nobody is asked.
    """
    models = tuple(resolve_model(name, settings) for name in asked if name is not None)
    if not models:
        yield open_provider
        return
    from heretix.measurement.calls import paying

    with Store.open(settings.db) as store:
        spending, caps = Spending(load_prices(settings), models), find_store_cap(store, settings)
        if caps:
            spending.require_prices("HERETIX_BUDGET_USD")
        async with paying(store, settings, models, spending=spending, caps=caps) as payer:
            yield payer.open


def find_store_cap(store: Store, settings: Settings) -> dict[str, int]:
    """Find the budget that everything on a store shares: of the environment, or as it was set."""
    text = settings.env.get("HERETIX_BUDGET_USD")
    if text:
        try:
            usd = float(text)
        except ValueError:
            usd = math.nan
        if not 0 < usd < math.inf:
            raise ConfigError(f"`HERETIX_BUDGET_USD` must be dollars above 0, got {text!r}")
        return {STORE_BUDGET: round(usd * 1e6)}
    if not store.read(has_rows, budgets):
        return {}
    found = store.read(select_budget, STORE_BUDGET)
    return {} if found is None else {STORE_BUDGET: found.cap_micros}


def prepare(
    config: RunConfig,
    settings: Settings,
    *,
    claims: Sequence[str] | None = None,
    mock: bool = False,
    calls: bool = True,
    bundles: Bundles | None = None,
) -> Measurement:
    """Resolve claims, bank and models, and refuse at once what can't work.

    `claims` stands in for those of the configuration. With `calls=False` (describing) keys
    aren't needed.
    """
    chosen = config.claims() if claims is None else [Claim(check_claim(text)) for text in claims]
    if config.tags:
        chosen = [_tag_claim(claim, config.tags) for claim in chosen]
    if not chosen:
        raise ClaimError("`claims` is empty: give at least one")
    bank = (
        load_bank_file(config.prompts_file)
        if config.prompts_file is not None
        else load_bank(config.bank_name)
    )
    names = config.models or ((config.model,) if config.model else ())
    models = [resolve_model(name, settings) for name in names] or [default_model(settings)]
    if mock:
        models = [model.make_mock() for model in models]
    elif not names:
        models = [resolve_model(models[0].identity, settings)]
    models = list(dict.fromkeys(models))
    require_readout(models, config.readout)
    config = _with_base_url(config, models, settings)
    if config.on is None and settings.on is not None:
        config = config.override(on=settings.on)
    if calls and not (config.on or "").startswith("ray://"):
        # A cluster that is elsewhere has keys and models of its own.
        require_keys(models, settings)
        # Opening connects to nothing yet, but says what is wrong with a key or a name.
        for model in models:
            open_provider(model, settings, options=config.options)
    firsts: dict[str, Claim] = {}
    for claim in chosen:
        firsts.setdefault(claim.text, claim)
    measurement = Measurement(
        config=config,
        settings=settings,
        bank=bank,
        models=tuple(models),
        claims=tuple(firsts.values()),
        rows=tuple(chosen),
        bundles=bundles or {},
    )
    # A plan of each model shows whether T, K and the template lists fit the bank.
    for model in models:
        make_plan(measurement.claims[0].text, model, bank, config)
    return measurement


def _tag_claim(claim: Claim, tags: Sequence[str]) -> Claim:
    """Put tags among the columns of a claim; one that its file has as a tag already stays one."""
    own = dict(claim.columns)
    for tag in tags:
        held = own.get(tag_column(tag))
        if str(held).lower() not in {"true", "none", ""}:
            raise ClaimError(
                f"`--tag` {tag} would overwrite the column `{tag_column(tag)}` of the claims, "
                f"which holds {held!r}; rename one of them"
            )
        own[tag_column(tag)] = True
    return replace(claim, columns=tuple(own.items()))


def _with_base_url(config: RunConfig, models: list[ModelId], settings: Settings) -> RunConfig:
    remote = [model for model in models if not model.endpoint.in_process]
    if config.base_url is not None and len({model.provider for model in remote}) > 1:
        names = ", ".join(model.identity for model in remote)
        raise ConfigError(f"`base_url` can serve the models of one provider only, got {names}")
    homeless = [model for model in remote if model.endpoint.base_url is None]
    if not homeless or config.base_url is not None:
        return config
    base_url = settings.env.get("HERETIX_BASE_URL")
    if not base_url:
        raise ConfigError(
            f"`{homeless[0]}` needs an address: set `base_url` in the configuration, "
            "--base-url, or HERETIX_BASE_URL"
        )
    return config.override(base_url=base_url)


def bank_of(row: Mapping[str, Any]) -> Bank:
    """The bank that a row of `prompts` holds."""
    return Bank.of(
        version=row["prompt_version"],
        system=row["system"],
        user_template=row["user_template"],
        paraphrases=json.loads(row["paraphrases_json"]),
        source=row["source"],
    )


def _config_of(asked: Mapping[str, Any]) -> RunConfig:
    """The configuration behind what `plan_json` kept."""
    names = ("K", "R", "T", "B", "agg", "center", "trim", "max_output_tokens")
    return RunConfig.parse(
        {
            **{name: asked[name] for name in (*names, "template_include", "template_exclude")},
            **asked["options"],
            **{name: asked[name] for name in ("until_width", "max_samples") if name in asked},
            "readout": asked.get("readout", SAMPLED),
            "seed": asked["bootstrap_seed"] if asked["seed_source"] == "config" else None,
        },
        source="execution",
    )


def replan(config_json: str, bank: Bank) -> Plan:
    """Make the plan again whose `plan_json` this is, after a restart.

    Planning is a pure function, so what was asked for and the bank's text are enough. Another
    Heretix may plan otherwise: that the result is the same plan is checked.
    """
    asked = json.loads(config_json)
    seed, source = asked["bootstrap_seed"], asked["seed_source"]
    plan = make_plan(
        asked["claim"],
        parse_model(asked["model"]),
        bank,
        _config_of(asked),
        claim_id=asked.get("claim_id"),
        env_seed=seed if source == "environment" else None,
        columns=tuple(asked.get("columns", {}).items()),
    )
    if plan_json(plan) != config_json:
        raise RecordError(
            f"the plan of {asked['claim']!r} for {asked['model']} can't be made again: this "
            "Heretix plans differently than the one that submitted it; use that version"
        )
    return plan


def prepare_resumption(store: Store, ref: str, settings: Settings) -> Measurement:
    """Make an execution that was stopped ready to go on, for its claim and model alone.

    The plan is the same, so what is stored is taken from the cache, and exactly the missing calls
    are made.
    """
    started = store.read(find_execution, ref)
    if not started.run_id.startswith("heretix-rpl-"):
        raise RecordError(
            f"`{started.execution_id}` was shown evidence, which isn't kept with what was asked; "
            "give the same `heretix lens` or `heretix run` command again: its samples are cached"
        )
    asked: dict[str, Any] = json.loads(started.config_json)
    if asked["seed_source"] == "environment":
        settings = replace(settings, rpl_seed=asked["bootstrap_seed"])
    model = resolve_model(asked["model"], settings)
    # The bank as the store has it: the file it came from may be gone.
    row = store.read(select_bank, asked["prompt_version"])
    if row is None:
        raise RecordError(f"`{store.name}` has no text of prompt bank {asked['prompt_version']}")
    measurement = Measurement(
        config=_config_of(asked),
        settings=settings,
        bank=bank_of(row),
        models=(model,),
        claims=(
            Claim(asked["claim"], asked.get("claim_id"), tuple(asked.get("columns", {}).items())),
        ),
    )
    # Opening connects to nothing yet, but says what is wrong with a key.
    open_provider(model, settings, options=measurement.config.options)
    return measurement


RunName = tuple[str, str, str, str | None]
"""A run within a measurement: claim, model, lens, and the variant that an experiment made, or the
read-out where it isn't sampled."""


async def gather_evidence(
    measurement: Measurement,
    *,
    documents: Sequence[Document] | None = None,
    bundles: Sequence[Bundle] = (),
    store: Store | None = None,
) -> Measurement:
    """Gather what the lenses of a measurement show; one without enough is marked, not measured.

    `documents` are the user's own, if they were read already; a lens and claim that one of
    `bundles` is for shows that bundle, and nothing is searched for it. What models are asked about
    documents counts against the budgets of `store`, or of the one in the settings.
    """
    config = measurement.config
    if set(config.lenses).isdisjoint(SHOWING):
        return measurement
    # Imported as needed: the raw prior is measured without any of it.
    from heretix.measurement.gather import gather_bundles

    found: Bundles = {}
    for bundle in bundles:
        found[bundle.claim, bundle.lens] = bundle
        try:
            bundle.require_sufficient()
        except InsufficientEvidenceError as exc:
            found[bundle.claim, bundle.lens] = exc
    lenses = [
        lens
        for lens in config.lenses
        if any((claim.text, lens) not in found for claim in measurement.claims)
    ]
    gather = partial(
        gather_bundles,
        *(measurement.claims, lenses, config.evidence, measurement.settings),
        documents=documents,
    )
    asked = list_asked_models(config.evidence) if lenses else ()
    if not asked:
        return replace(measurement, bundles={**await gather(), **found})
    async with measurement.asking(store, asked) as payer:
        gathered = await gather(opener=payer.open)
    return replace(measurement, bundles={**gathered, **found}, spent=payer.spending)


def list_asked_models(evidence: EvidenceConfig | None) -> tuple[str, ...]:
    """Name the models that are asked about documents before anything is measured."""
    if evidence is None:
        return ()
    # Queries that were kept are read again, and nobody is asked.
    queries = evidence.queries if evidence.replay_from is None else None
    return tuple(name for name in (evidence.judge, evidence.stance, queries) if name is not None)


def drop_models(measurement: Measurement) -> Measurement:
    """A measurement whose evidence is gathered without asking any model."""
    evidence = measurement.config.evidence
    if evidence is None or not list_asked_models(evidence):
        return measurement
    queries = evidence.queries if evidence.replay_from is not None else None
    plain = evidence.model_copy(update={"judge": None, "stance": None, "queries": queries})
    return replace(measurement, config=measurement.config.model_copy(update={"evidence": plain}))


def add_checks(measurement: Measurement) -> Measurement:
    """Add the checks of documents that users gave; other lenses have none unasked."""
    if not any(LENSES[lens].limits.exact for lens in measurement.config.lenses):
        return measurement
    from heretix.measurement.experiments import Experiments, plan_experiments

    return plan_experiments(measurement, Experiments())


def require_evidence(measurement: Measurement) -> None:
    """Raise `InsufficientEvidenceError` if lenses need documents and none of them has enough."""
    found = measurement.bundles.values()
    lacking = [one for one in found if isinstance(one, InsufficientEvidenceError)]
    if lacking and len(lacking) == len(found):
        said = "\n".join(dict.fromkeys(str(one) for one in lacking))
        raise InsufficientEvidenceError(said, bundle=lacking[0].bundle)


def keep_bundles(store: Store, measurement: Measurement) -> None:
    """Store the bundles of a measurement, before anything is measured with them."""
    if not measurement.bundles:
        return
    from heretix.evidence.bundle import dump_bundle
    from heretix.store.bundles import save_bundle

    for found in (*measurement.bundles.values(), *measurement.other_bundles):
        # What is too little to be measured with is kept too: it says what was left out, and why.
        bundle = found.bundle if isinstance(found, InsufficientEvidenceError) else found
        if bundle is not None:
            text = dump_bundle(bundle)
            store.write(save_bundle, bundle.bundle_id, bundle.claim, bundle.lens, text)


class Results:
    """Records of a measurement by name; an observer that passes every event on to another.

    The store has the records: they stay in memory only with `keep_records`.
    """

    def __init__(self, observer: Observer | None = None, *, keep_records: bool = False) -> None:
        self.executions: dict[RunName, str] = {}
        self.records: dict[RunName, RunRecord] = {}
        self._observer: Observer = observer or NullObserver()
        self._keep_records = keep_records
        self._failed: dict[RunName, bool] = {}
        """Runs without an estimate, and whether that is because every call failed."""
        self.missed = 0
        """Runs that ended wider than `until_width`, or without another of its gates."""
        self.on_planned = self._observer.on_planned
        self.on_extended = self._observer.on_extended
        self.on_sampled = self._observer.on_sampled
        self.on_shared = self._observer.on_shared
        self.on_heard = self._observer.on_heard

    def on_finished(self, record: RunRecord) -> None:
        """Keep the record's name."""
        variant = record.evidence.variant if record.evidence else None
        readout = record.readout.name if record.readout else None
        name = (record.claim, record.model, record.lens, variant or readout)
        self.executions[name] = record.execution_id
        if self._keep_records:
            self.records[name] = record
        if record.status != "ok":
            self._failed[name] = record.usage.failed == record.usage.attempted
        if record.precision is not None and record.precision.stopped != "gates_passed":
            self.missed += 1
        self._observer.on_finished(record)

    @property
    def without_estimate(self) -> int:
        """Runs that have no estimate."""
        return len(self._failed)

    @property
    def all_failed(self) -> bool:
        """Tell whether every call of every run failed."""
        return bool(self.executions) and sum(self._failed.values()) == len(self.executions)


async def measure(
    measurement: Measurement,
    store: Store,
    results: Results,
    *,
    runner: Runner | None = None,
    opener: Opener = open_provider,
) -> None:
    """Keep the evidence, then measure everything; records reach the store and `results`."""
    runner = runner or measurement.runner(store, observer=results)
    with contextlib.ExitStack() as stack:
        if telemetry.spanners:
            models = " ".join(model.identity for model in measurement.models)
            stack.enter_context(telemetry.span("measure", models=models))
        keep_bundles(runner.store, measurement)
        await measurement.run(store, runner=runner, opener=opener)


@dataclass(frozen=True, slots=True)
class Artifacts:
    """Artifacts of a measurement, one a row that was given, read from the store in their order."""

    measurement: Measurement
    executions: Mapping[RunName, str]
    store: Store

    def __iter__(self) -> Iterator[Artifact]:
        from heretix.measurement.record import RowRecord, RunRecord, reissue
        from heretix.store.runs import find_record

        config = self.measurement.config
        of_file = config.claims_file is not None or bool(config.tags)
        rows = self.measurement.rows or self.measurement.claims
        for number, claim in enumerate(rows, start=1):
            names = run_names(self.measurement, claim.text)
            found = [self.executions[name] for name in names if name in self.executions]
            stored = [self.store.read(find_record, execution_id) for execution_id in found]
            runs = [
                reissue(RunRecord.model_validate_json(one.record_json), claim.text, claim.claim_id)
                for one in stored
            ]
            if runs:
                row = RowRecord(number=number, id=claim.claim_id, columns=dict(claim.columns))
                artifact = assemble(self.measurement, claim, runs)
                yield artifact.model_copy(update={"row": row}) if of_file else artifact


def assemble(measurement: Measurement, claim: Claim, runs: Sequence[RunRecord]) -> Artifact:
    """Assemble the artifact of a claim; evidence lenses and a negation add what lies between."""
    from heretix.measurement.record import Artifact

    if set(measurement.config.lenses) == {RPL} and measurement.negation is None:
        return Artifact.of(runs)
    # Imported as needed: the raw prior has nothing to compare.
    from heretix.evidence.search import SERVICES
    from heretix.measurement.vector import assemble_vector

    evidence = measurement.config.evidence
    search = SERVICES.plugin(evidence.search) if evidence and evidence.search else None
    found = [measurement.bundles.get((claim.text, lens)) for lens in measurement.config.lenses]
    shown = [one.bundle if isinstance(one, InsufficientEvidenceError) else one for one in found]
    others = [bundle for bundle in measurement.other_bundles if bundle.claim == claim.text]
    bundles = [*(bundle for bundle in shown if bundle is not None), *others]
    return assemble_vector(claim.text, runs, bundles, search)


def run_names(measurement: Measurement, claim: str) -> Iterator[RunName]:
    """Names of the runs of a claim, in the order of its artifact."""
    config = measurement.config
    readout = None if config.readout == SAMPLED else config.readout
    shown: list[tuple[str, str | None]] = [(lens, readout) for lens in config.lenses]
    shown += [(e.lens, e.variant) for c, e in measurement.variants if c.text == claim]
    for model in measurement.models:
        yield from ((claim, model.identity, lens, variant) for lens, variant in shown)
    if measurement.negation is not None:
        negation = measurement.negation.text
        yield from ((negation, model.identity, RPL, readout) for model in measurement.models)
