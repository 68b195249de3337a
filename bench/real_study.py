"""The study of the documentation: an embedded model on plain claims, by three read-outs.

    python bench/real_study.py [--model local:qwen2.5-coder-1.5b] [--claims docs/study/claims.jsonl]
                               [--readout NAME …] [--db study.sqlite] [--to docs/study]

It measures what is missing in `--db`, so it goes on where it was stopped, and writes the page
`README.md` and its charts to `--to`. Every sentence of the page with a finding in it is made from
the intervals: it says *more* or *less* only where they leave 0 out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.progress import Progress

from heretix.belief.logodds import logit
from heretix.config import RunConfig
from heretix.core.settings import Settings
from heretix.measurement.record import RunRecord
from heretix.measurement.runner import NullObserver
from heretix.measurement.service import Results, measure
from heretix.readouts import DISTRIBUTION, SAMPLED, TRUTH_TOKEN, Readout
from heretix.report.charts import figure as fig
from heretix.report.charts import save_chart
from heretix.report.charts.theme import LIGHT
from heretix.report.studies import study_facts, study_pictures, with_interval
from heretix.store import Store
from heretix.store.runs import find_record
from heretix.studies.study import (
    CalibrationResults,
    CoherenceResults,
    Item,
    Request,
    StudyRecord,
    finish_study,
    prepare_study,
    read_items,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

ROOT: Final = Path(__file__).parent.parent
READOUTS: Final[tuple[Readout, ...]] = (SAMPLED, DISTRIBUTION, TRUTH_TOKEN)
EXTREME: Final = (0.0, 1.0)
GOAL: Final = 0.9
LEVEL: Final = 0.95


class Showing(NullObserver):
    """An observer that shows how far it is."""

    def __init__(self, progress: Progress, total: int, name: str) -> None:
        self._progress = progress
        self._task = progress.add_task(name, total=total)

    def on_planned(self, plan: Any, cached: int) -> None:
        self._progress.advance(self._task, cached)

    def on_sampled(self, plan: Any, sample: Any) -> None:
        self._progress.advance(self._task)


def take(
    kind: Any,
    items: tuple[Item, ...],
    config: RunConfig,
    readouts: tuple[Readout, ...],
    store: Store,
) -> StudyRecord:
    """Measure a study by some read-outs, and conclude."""
    request = Request(kind=kind, items=items, config=config, name=kind, readouts=readouts)
    done = []
    for measurement in prepare_study(request, Settings.from_env()):
        with Progress(console=Console(stderr=True), transient=True) as progress:
            results = Results(Showing(progress, measurement.attempts, kind))
            asyncio.run(measure(measurement, store, results))
        done.append((measurement, results.executions))
    return finish_study(request, done, store)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Cost of one read-out, and the scatter of its answers."""

    answers: int
    dropped: int
    tokens_in: int
    tokens_out: int
    extreme: float
    """Share of answers of exactly 0 or 1; of a distribution, of its probability."""
    between: float
    """Variance of wordings' means about their claim's mean, log-odds²."""
    within: float | None
    """Variance of answers to one wording, log-odds²; None where none can be told."""
    missing: float | None


def weigh(store: Store, record: StudyRecord, readout: str) -> Cost:
    """Read from the stored runs what a read-out took."""
    answers = dropped = tokens_in = tokens_out = 0
    extreme: list[float] = []
    between: list[float] = []
    within: list[float] = []
    missing: list[float] = []
    for found in (run for run in record.runs if run.readout == readout):
        row = store.read(find_record, found.execution_id)
        run = RunRecord.model_validate_json(row.record_json)
        if len(found.logits) > 1:
            between.append(statistics.variance(map(statistics.fmean, found.logits.values())))
        if run.readout is not None and run.readout.missing_mass is not None:
            missing.append(run.readout.missing_mass)
        for sample in run.samples:
            answers += 1
            dropped += not sample.compliant
            tokens_in += sample.tokens_in or 0
            tokens_out += sample.tokens_out or 0
            if readout == SAMPLED and sample.compliant:
                extreme.append(float(sample.prob_true in EXTREME))
            elif readout == DISTRIBUTION and sample.compliant:
                share, variance = spread(sample.raw_answer or "")
                extreme.append(share)
                within.append(variance)
    return Cost(
        answers=answers,
        dropped=dropped,
        tokens_in=tokens_in,
        tokens_out=tokens_out,
        extreme=statistics.fmean(extreme) if extreme else 0.0,
        between=statistics.fmean(between),
        within=statistics.fmean(within) if within else None,
        missing=statistics.fmean(missing) if missing else None,
    )


def spread(raw: str) -> tuple[float, float]:
    """Probability of 0 and 1 together, and the variance of log-odds, of one distribution."""
    pairs = [(float(text), math.exp(logprob)) for text, logprob in json.loads(raw)["answers"]]
    mass = math.fsum(weight for _, weight in pairs)
    mean = math.fsum(weight * logit(prob) for prob, weight in pairs) / mass
    variance = math.fsum(weight * (logit(prob) - mean) ** 2 for prob, weight in pairs) / mass
    return math.fsum(weight for prob, weight in pairs if prob in EXTREME) / mass, variance


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def verdict(found: Any, more: str, less: str) -> str:
    """Say what an interval of a difference says."""
    if found is None:
        return "nothing can be said"
    if found.lo > 0:
        return more
    return less if found.hi < 0 else "the interval doesn't decide"


def draw(what: str, kind: str, subjects: Iterable[Any]) -> str:
    """Name the pictures of a study, one a read-out."""
    names = [one.readout for one in subjects]
    return "\n".join(f"![{what} by {name}]({kind}-{name}.svg)" for name in names)


def auroc_chart(calibrations: CalibrationResults, coherences: CoherenceResults) -> Any:
    """Draw every AUROC with its interval."""
    rows = [
        (f"{one.readout}, all claims", one.calibration.auroc)
        for one in calibrations.subjects
        if one.calibration is not None
    ]
    for pairs in coherences.subjects:
        for what, found in (("as said", pairs.as_said), ("freed", pairs.freed)):
            if found is not None:
                rows.append((f"{pairs.readout}, pairs {what}", found.auroc))
    intervals = [
        fig.IntervalRow(
            label=label, value=one.value, lo=one.lo, hi=one.hi, colour=LIGHT.series(number % 3)
        )
        for number, (label, one) in enumerate(rows)
    ]
    axis = fig.prob_axis("AUROC: chance that a true claim gets more than a false one")
    return fig.figure(
        fig.interval_panel(intervals, axis=axis, theme=LIGHT, reference=0.5),
        title="What each read-out knows",
        subtitle=["Bars: 95% intervals over claims. Dashed: chance."],
        description="; ".join(f"{label} {with_interval(one)}" for label, one in rows),
        theme=LIGHT,
        wide=True,
    )


def make_tables(
    model: str,
    scored: CalibrationResults,
    paired: CoherenceResults,
    costs: Mapping[str, Cost],
) -> dict[str, str]:
    """Make the tables of the page."""
    scores = ("auroc", "brier", "log_score", "ece", "slope", "intercept")
    found = {
        "scores": table(
            ("read-out", *scores),
            (
                [one.readout, *(with_interval(getattr(one.calibration, name)) for name in scores)]
                for one in scored.subjects
            ),
        )
    }
    against = []
    for between in (*scored.comparisons, *paired.comparisons):
        auroc = between.comparison.auroc
        names = (side.removeprefix(model).strip() for side in (between.b, between.a))
        p = "—" if auroc is None else f"{auroc.p_value:.3f}"
        said = verdict(auroc, "knows more", "knows less")
        against.append([*names, with_interval(auroc, signed=True), p, said])
    head = ("read-out", "against", "difference", "p", "the first")
    found["against"] = (
        f"{table(head, against)}\n\n{count_together(against)}"
        if against
        else "One read-out has no other beside it."
    )
    found["pairs"] = table(
        (
            *("read-out", "acquiescence, log-odds", "leans", "violation"),
            *("AUROC as said", "AUROC freed", "freed minus said"),
        ),
        (
            [
                one.readout,
                with_interval(one.summary and one.summary.acquiescence, signed=True),
                verdict(one.summary and one.summary.acquiescence, "to yes", "to no"),
                with_interval(one.summary and one.summary.violation),
                with_interval(one.as_said and one.as_said.auroc),
                with_interval(one.freed and one.freed.auroc),
                with_interval(one.gain and one.gain.auroc, signed=True),
            ]
            for one in paired.subjects
        ),
    )
    found["costs"] = table(
        (
            *("read-out", "answers", "dropped", "tokens read", "tokens written"),
            *("extreme", "between", "within", "mass left out"),
        ),
        (
            [
                readout,
                f"{cost.answers:,}",
                f"{cost.dropped:,}",
                f"{cost.tokens_in:,}",
                f"{cost.tokens_out:,}",
                f"{cost.extreme:.1%}" if readout != TRUTH_TOKEN else "—",
                f"{cost.between:.2f}",
                "—" if cost.within is None else f"{cost.within:.2f}",
                "—" if cost.missing is None else f"{cost.missing:.1%}",
            ]
            for readout, cost in costs.items()
        ),
    )
    return found


def count_together(against: Sequence[Sequence[str]]) -> str:
    """Say how many differences stand when all that were looked at are counted."""
    tried = [float(p) for *_, p, _ in against if p != "—"]
    left = sum(p * len(tried) < 1 - LEVEL for p in tried)
    return (
        f"Each p is that of one comparison alone. With all {len(tried)} counted (Bonferroni), "
        f"{left or 'none'} of them {'is' if left < 2 else 'are'} below {1 - LEVEL:.2f}."
    )


def find_best(scored: CalibrationResults) -> str:
    """Name the read-out with the highest AUROC, and hold it against the goal."""
    name, auroc = max(
        ((one.readout, one.calibration.auroc) for one in scored.subjects if one.calibration),
        key=lambda pair: pair[1].value or 0.0,
    )
    reached = "reached" if (auroc.value or 0.0) >= GOAL else "not reached"
    said = with_interval(auroc)
    return f"The highest AUROC has {name}, {said}: the goal of {GOAL:.2f} is {reached}."


def weigh_repeats(cost: Cost | None) -> str:
    """Say whether wordings or repeats scatter more, by a walked distribution."""
    if cost is None:
        return "What repeats contribute isn't told: `distribution` wasn't measured."
    within = cost.within or 0.0
    sd = f"{math.sqrt(within):.1f} log-odds, of wordings {math.sqrt(cost.between):.1f}"
    more = (
        f"repeats scatter {within / cost.between:.1f} times as much as wordings"
        if within > cost.between
        else f"wordings scatter {cost.between / within:.1f} times as much as repeats"
    )
    return f"The standard deviation of answers to one wording is {sd}: by variance {more}."


PAGE: Final = """# A real study: what a small model says, and what it knows

`{model}` on {claims} plain claims, half of them true
([claims.jsonl](claims.jsonl)), and on {pairs} of them with their negations, in 8 wordings each, by
{how} [read-outs](../readouts.md). One command measures, draws the charts and writes this page:

```
uv run --group dev python bench/real_study.py --db study.sqlite{given}
```

It goes on where it was stopped, and takes about an hour on two cores.{rest}
The claims were written before anything was measured, and none was taken out.
Intervals are 95%, over claims.

{plans}

{best}

![AUROC by read-out](auroc.svg)

## Calibration

{scores}

With fewer than 400 claims the calibration error (ece) comes out too small: read the slope first.

{reliability}

## Read-outs against each other, paired by claim

AUROC of the first minus that of the second. *As said* and *freed* are the pairs with and without
acquiescence.

{against}

## Saying yes to a claim and to its negation

{paired}

A violation is never below 0: it holds what the scatter of wordings adds, which is most with sampled
answers. Acquiescence has no such bias.

{leaning}

## Variance, and what it cost

Over all {claims} claims. *Between*: variance of wordings' means, log-odds²; with one sampled answer
a wording it holds the chance within, too. *Within*: variance of answers to one wording, which
`distribution` tells without a repeat. *Extreme*: answers of exactly 0 or 1, or their probability.

{costs}

{weight}
How long a call takes: [validity.md](../validity.md#read-outs). Nobody was paid.
"""


def write_page(
    to: Path, model: str, calibration: StudyRecord, coherence: StudyRecord, costs: dict[str, Cost]
) -> None:
    """Write the page and its charts."""
    scored, paired = calibration.results, coherence.results
    assert isinstance(scored, CalibrationResults)
    assert isinstance(paired, CoherenceResults)
    pictures = {"auroc": auroc_chart(scored, paired)}
    for record in (calibration, coherence):
        names = (one.readout for one in record.results.subjects)
        for readout, (_, chart) in zip(names, study_pictures(record), strict=True):
            pictures[f"{record.kind}-{readout}"] = chart
    for name, chart in pictures.items():
        save_chart(chart, to / f"{name}.svg")
    tables = make_tables(model, scored, paired, costs)
    lacking = [f"`{name}`" for name in READOUTS if name not in costs]
    text = PAGE.format(
        model=model,
        how="all three" if not lacking else f"{len(costs)} of the three",
        given="".join(f" --readout {name}" for name in costs) if lacking else "",
        rest=f"\nWithout `--readout` it measures {' and '.join(lacking)}, too." if lacking else "",
        claims=len(calibration.items),
        pairs=len(coherence.items),
        plans="\n".join(f"- {said}" for name, said in study_facts(calibration) if name == "plan"),
        best=find_best(scored),
        scores=tables["scores"],
        against=tables["against"],
        paired=tables["pairs"],
        costs=tables["costs"],
        reliability=draw("Reliability", "calibration", scored.subjects),
        leaning=draw("Acquiescence", "coherence", paired.subjects),
        weight=weigh_repeats(costs.get(DISTRIBUTION)),
    )
    (to / "README.md").write_text(text, encoding="utf-8")


def main() -> int:
    """Measure what is missing, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="local:qwen2.5-coder-1.5b")
    parser.add_argument("--claims", type=Path, default=ROOT / "docs/study/claims.jsonl")
    parser.add_argument("--limit", type=int, help="Take only so many claims, from the first on.")
    parser.add_argument("--readout", action="append", choices=READOUTS)
    parser.add_argument("--db", type=Path, default=Path("study.sqlite"))
    parser.add_argument("--to", type=Path, default=ROOT / "docs/study")
    args = parser.parse_args()
    if not args.to.is_dir():
        parser.error(f"--to must be a folder, got {args.to}")
    items = read_items(args.claims, "calibration")[: args.limit]
    pairs = tuple(item for item in items if item.relation == "negation")
    config = RunConfig.parse({"models": (args.model,), "K": 8, "R": 1})
    readouts = tuple(name for name in READOUTS if name in (args.readout or READOUTS))
    with Store.open(str(args.db)) as store:
        coherence = take("coherence", pairs, config, readouts, store)
        calibration = take("calibration", items, config, readouts, store)
        costs: dict[str, Cost] = {name: weigh(store, calibration, name) for name in readouts}
    write_page(args.to, args.model, calibration, coherence, costs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
