"""Beliefs inside evals of inspect_ai: a task, a solver and a scorer; and runs as its logs.

Needs the extra `inspect`. `inspect eval heretix/beliefs -T claims=claims.csv --model openai/gpt-5`.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.log import (
    EvalConfig,
    EvalDataset,
    EvalLog,
    EvalMetric,
    EvalResults,
    EvalSample,
    EvalScore,
    EvalSpec,
    write_eval_log,
)
from inspect_ai.model import (
    ChatMessageSystem,
    ChatMessageUser,
    ModelOutput,
    get_model,
)
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
from inspect_ai.solver import Generate, Solver, TaskState, solver

from heretix.api import Belief
from heretix.config import RunConfig
from heretix.core.errors import ConfigError
from heretix.core.settings import Settings
from heretix.measurement.service import Results, prepare
from heretix.measurement.service import measure as run_measurement
from heretix.measurement.verify import plan_of_record
from heretix.providers.inspect_ai import evaluated
from heretix.report.findings import belief_finding
from heretix.store import Store

if TYPE_CHECKING:
    from pathlib import Path

    from heretix.measurement.record import RunRecord

_TRUE: Final = frozenset({"1", "1.0", "true", "yes", "c"})
_FALSE: Final = frozenset({"0", "0.0", "false", "no", "i"})
_BELIEF: Final = "heretix"


@task
def beliefs(
    claims: str,
    column: str | None = None,
    label: str = "label",
    store: str | None = None,
    **options: Any,
) -> Task:
    """Measure a file of claims with the model that is evaluated; options are those of `measure`.

    The column `label` says what is true, where the file has it: beliefs are then scored by it.
    """
    rows = RunConfig(claims_file=claims, claims_column=column).claims()
    ids = Counter(row.claim_id for row in rows)
    samples = [
        Sample(
            input=row.text,
            target="" if (truth := dict(row.columns).get(label)) is None else str(truth),
            # Rows may share an id, samples of an eval may not.
            id=row.claim_id if ids[row.claim_id] == 1 and row.claim_id else f"row {number}",
            metadata=dict(row.columns),
        )
        for number, row in enumerate(rows, start=1)
    ]
    dataset = MemoryDataset(samples, name=claims)
    return Task(dataset=dataset, solver=belief(store=store, **options), scorer=brier())


@solver
def belief(store: str | None = None, **options: Any) -> Solver:
    """Measure the belief of the evaluated model in the sample's input, in many wordings."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        del generate  # one call wouldn't do
        settings = Settings.from_env()
        model = get_model()
        config = RunConfig.parse({**options, "model": f"inspect:{model}"})
        measurement = prepare(config, settings, claims=[state.input_text], calls=False)
        results = Results(keep_records=True)
        token = evaluated.set(model)
        try:
            with Store.open(store or settings.db) as opened:
                await run_measurement(measurement, opened, results)
        finally:
            evaluated.reset(token)
        (record,) = results.records.values()
        state.metadata[_BELIEF] = Belief(record).to_dict()
        prob = record.aggregates.prob_true_rpl
        content = str(belief_finding(record)) if prob is None else f"{prob:.3f}"
        state.output = ModelOutput.from_content(str(model), content)
        return state

    return solve


@scorer(metrics=[mean(), stderr()])
def brier() -> Scorer:
    """Score a measured belief by its squared distance from the truth: 0 is best, .25 is a coin's.

    A sample without a belief, or without a truth to hold it against, has no score.
    """

    async def score(state: TaskState, target: Target) -> Score | None:
        found, truth = state.metadata.get(_BELIEF), target.text.strip().lower()
        if found is None:
            raise ConfigError("`brier` scores what the solver `belief` measured; use it before")
        if found["prob"] is None or not truth:
            return None
        if truth not in _TRUE | _FALSE:
            raise ConfigError(f"`target` must be 1 or 0, true or false, got {target.text!r}")
        distance = found["prob"] - (truth in _TRUE)
        lo, hi = found["ci_lo"], found["ci_hi"]
        return Score(
            value=distance**2,
            answer=f"{found['prob']:.3f}",
            explanation=f"95% interval {lo:.3f} to {hi:.3f}",
            metadata=found,
        )

    return score


def write_log(record: RunRecord, path: Path) -> None:
    """Write a run as a log of inspect_ai: an answer is a sample, the belief a metric."""
    plan = plan_of_record(record)
    samples = []
    for row in record.samples:
        prompt = plan.prompts[row.paraphrase_idx]
        answered = {"prob_true": Score(value=row.prob_true)} if row.prob_true is not None else None
        messages = [ChatMessageSystem(content=prompt.system), ChatMessageUser(content=prompt.user)]
        output = ModelOutput.from_content(record.model, row.raw_answer or "", error=row.error)
        samples.append(
            EvalSample(
                id=f"wording-{row.paraphrase_idx:02d}",
                epoch=row.replicate_idx + 1,
                input=list(messages),
                target="",
                output=output,
                scores=answered,
            )
        )
    belief = record.aggregates
    lo, hi = belief.ci95 or (None, None)
    told = {"prob_true_rpl": belief.prob_true_rpl, "ci_lo": lo, "ci_hi": hi}
    metrics = {name: value for name, value in told.items() if value is not None}
    found = EvalScore(
        name="belief",
        scorer=record.aggregation.method,
        metrics={name: EvalMetric(name=name, value=value) for name, value in metrics.items()},
    )
    log = EvalLog(
        status="success",
        eval=EvalSpec(
            created=record.started_at,
            task=f"heretix/{record.run_id}",
            dataset=EvalDataset(name=record.claim, samples=len(samples)),
            model=record.model,
            config=EvalConfig(epochs=max(sample.epoch for sample in samples)),
            metadata={"execution_id": record.execution_id, "claim": record.claim},
        ),
        results=EvalResults(
            total_samples=len(samples), completed_samples=len(samples), scores=[found]
        ),
        samples=samples,
    )
    write_eval_log(log, str(path), format="json" if path.suffix == ".json" else "eval")
