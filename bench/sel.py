"""Does a belief follow the document it is shown? SEL on claims with a document for or against.

    python bench/sel.py [--model local:qwen2.5-coder-1.5b] [--claims 24] [--limit N]
                        [--db sel.sqlite] [--json]

Claims are taken from `--data` (JSON lines with `claim`, `evidence` and `stance`) in pairs that one
evidence decides, the one way and the other: it is shown to both (SEL), as is irrelevant text of its
length (the placebo). A move is right if it goes where the evidence points, and
a pair is in order if SEL believes the supported claim more. Each claim is asked in
eight wordings, once each, under RPL, SEL and placebo: 24 calls. What `--db` holds isn't asked
again, so it goes on where it was stopped; `--limit` takes the first claims of the same list.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from heretix.belief.student import mean_t
from heretix.config import RunConfig
from heretix.core.canonical import sha256_text
from heretix.core.errors import InsufficientEvidenceError
from heretix.core.lenses import LENSES, RPL, SEL
from heretix.core.settings import Settings
from heretix.evidence.retrieval import retrieve_provided
from heretix.evidence.sources.extract import Extract, make_document
from heretix.measurement.experiments import Experiments, plan_experiments
from heretix.measurement.runner import NullObserver
from heretix.measurement.service import Artifacts, Results, gather_evidence, measure, prepare
from heretix.store import Store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heretix.measurement.record import Artifact, RunRecord
    from heretix.measurement.service import Measurement

DATA: Final = Path(__file__).parents[2] / "shared" / "data" / "claim_evidence_stance.jsonl"
SIDES: Final = {"supports": 1, "refutes": -1}
SHAM: Final = "sham"


@dataclass(frozen=True, slots=True)
class Case:
    """A claim, the evidence that decides it, and which way."""

    claim: str
    evidence: str
    side: int
    """1 supports the claim, -1 refutes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Movement of the belief by the evidence of a case; None where a lens has no estimate."""

    claim: str
    pair: str
    side: int
    prob: dict[str, float | None]
    """By lens; the placebo is `sham`."""
    placebo: str | None
    """Verdict of the record, by lens minus sham."""
    quotes_given: int
    quotes_verified: int
    quotes_cut: int
    trusted: bool | None

    def towards(self, lens: str, base: str) -> float | None:
        """Distance that `lens` moved the belief from `base`, above 0 if the right way."""
        a, b = self.prob[base], self.prob[lens]
        return None if a is None or b is None else self.side * (b - a)


def draw(path: Path, claims: int) -> list[Case]:
    """Pairs of claims that one short evidence decides both ways, in an order by hash."""
    sides: defaultdict[str, dict[int, str]] = defaultdict(dict)
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        sides[row["evidence"]].setdefault(SIDES[row["stance"]], row["claim"])
    most = LENSES[SEL].limits.chars_per_item
    whole = [text for text, found in sides.items() if len(found) == 2 and len(text) <= most]
    cases: dict[str, Case] = {}
    for text in sorted(whole, key=sha256_text):
        pair = [Case(claim, text, side) for side, claim in sides[text].items()]
        if not any(case.claim in cases for case in pair):
            cases |= {case.claim: case for case in pair}
    return list(cases.values())[:claims]


def plan(cases: Sequence[Case], model: str) -> Measurement:
    """The measurement of the cases, with placebo; no search and no network."""
    config = RunConfig.parse(
        {
            "models": (model,),
            "K": 8,
            "R": 1,
            "lenses": (RPL, SEL),
            "evidence": {"checks": False},
        }
    )
    bundles = []
    for case in cases:
        # No title: the claim shouldn't stand above its evidence.
        found = Extract(title="", text=case.evidence)
        document = make_document(
            found, raw=case.evidence.encode(), url=None, retrieved_at="2024-01-01T00:00:00Z"
        )
        bundle = retrieve_provided(case.claim, [document])
        if isinstance(bundle, InsufficientEvidenceError):
            raise bundle
        bundles.append(bundle)
    prepared = prepare(config, Settings.from_env(), claims=[case.claim for case in cases])
    gathered = asyncio.run(gather_evidence(prepared, bundles=bundles))
    return plan_experiments(gathered, Experiments(sham=True))


class Showing(NullObserver):
    """An observer that says what is done."""

    def __init__(self, runs: int) -> None:
        self._runs, self._done = runs, 0

    def on_finished(self, record: RunRecord) -> None:
        self._done += 1
        found = record.aggregates.prob_true_rpl
        said = "no estimate" if found is None else f"{found:.3f}"
        variant = (record.evidence and record.evidence.variant) or ""
        line = f"{self._done}/{self._runs} {record.lens} {variant} {said} {record.claim}"
        print(line, file=sys.stderr, flush=True)


def read_move(artifact: Artifact, case: Case) -> Move:
    """Read the movement from the runs of a claim."""
    runs = {
        (run.evidence.variant if run.evidence else None) or run.lens: run for run in artifact.runs
    }
    metrics = next(iter((artifact.metrics or {}).values()), None)
    beside = metrics.beside if metrics else None
    shown = runs[SEL].evidence
    assert shown is not None, "SEL shows documents"
    return Move(
        claim=case.claim,
        pair=sha256_text(case.evidence)[:12],
        side=case.side,
        prob={name: runs[name].aggregates.prob_true_rpl for name in (RPL, SEL, SHAM)},
        placebo=beside.placebo[SEL].verdict if beside and SEL in beside.placebo else None,
        quotes_given=shown.quotes_given,
        quotes_verified=shown.quotes_verified,
        quotes_cut=shown.quotes_cut,
        trusted=shown.trusted,
    )


def count(moves: Sequence[Move]) -> dict[str, object]:
    """Count right moves and quotes; the interval is over pairs, by Student's t."""
    found: dict[str, object] = {"claims": len(moves)}
    for name, lens, base in (
        ("evidence", SEL, RPL),
        ("placebo", SHAM, RPL),
        ("evidence minus placebo", SEL, SHAM),
    ):
        pairs: defaultdict[str, list[float]] = defaultdict(list)
        for move in moves:
            if (moved := move.towards(lens, base)) is not None:
                pairs[move.pair].append(moved)
        every = [moved for pair in pairs.values() for moved in pair]
        means = [sum(pair) / len(pair) for pair in pairs.values()]
        mean = mean_t(means) if len(means) > 1 else None
        found[name] = {
            "right": sum(moved > 0 for moved in every),
            "of": len(every),
            "mean_right_way": mean.value if mean else None,
            "ci95": (mean.lo, mean.hi) if mean else None,
        }
    ends: defaultdict[str, dict[int, float]] = defaultdict(dict)
    for move in moves:
        if (prob := move.prob[SEL]) is not None:
            ends[move.pair][move.side] = prob
    both = [pair[1] > pair[-1] for pair in ends.values() if len(pair) == 2]
    found["pairs_in_order"] = {"right": sum(both), "of": len(both)}
    verdicts = [move.placebo for move in moves]
    found["verdicts"] = {str(one): verdicts.count(one) for one in sorted(set(verdicts), key=str)}
    names = ("quotes_given", "quotes_verified", "quotes_cut")
    found |= {name: sum(getattr(move, name) for move in moves) for name in names}
    found["untrusted"] = sum(move.trusted is False for move in moves)
    return found


def main() -> int:
    """Measure what is missing, count and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--model", default="local:qwen2.5-coder-1.5b")
    parser.add_argument("--claims", type=int, default=24)
    parser.add_argument("--limit", type=int, help="take only so many of them, from the first on")
    parser.add_argument("--db", type=Path, default=Path("sel.sqlite"))
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if not args.data.is_file():
        print(f"{args.data} isn't there; name a file with --data", file=sys.stderr)
        return 2
    cases = draw(args.data, args.claims)[: args.limit]
    if not cases:
        print("no claims: --claims and --limit must be at least 1", file=sys.stderr)
        return 2
    measurement = plan(cases, args.model)
    with Store.open(str(args.db)) as store:
        results = Results(Showing(3 * len(cases)))
        asyncio.run(measure(measurement, store, results))
        artifacts = list(Artifacts(measurement, results.executions, store))
    moves = [read_move(*pair) for pair in zip(artifacts, cases, strict=True)]
    called = sum(run.usage.called for artifact in artifacts for run in artifact.runs)
    result = {"model": args.model, **count(moves), "calls_made_now": called}
    if args.json:
        print(json.dumps({**result, "moves": [asdict(move) for move in moves]}, indent=2))
        return 0
    for move in moves:
        said = {name: "–" if p is None else f"{p:.2f}" for name, p in move.prob.items()}
        probs = " ".join(f"{name} {prob}" for name, prob in said.items())
        print(f"{'for    ' if move.side > 0 else 'against'} {probs} {move.placebo}  {move.claim}")
    for name, value in result.items():
        print(f"{name}: {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
