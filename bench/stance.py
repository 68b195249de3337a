"""Measure how often a model places a passage rightly: supports or refutes a claim, beside chance.

    python bench/stance.py [--model local:qwen2.5-coder-1.5b] [--items 100] [--seed 14] [--json]

Half of the items support their claim and half refute it, drawn from `--data` (JSON lines with
`claim`, `evidence` and `stance`); every fourth of them is asked once more with the evidence of
another claim, which is neither. Chance is what a model would reach that always gave its most
frequent answer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from collections import Counter
from pathlib import Path

from heretix.core.settings import Settings
from heretix.evidence.bundle import Stance
from heretix.measurement.gather import open_reader

DATA = Path(__file__).parents[2] / "shared" / "data" / "claim_evidence_stance.jsonl"


def draw(path: Path, items: int, seed: int) -> list[tuple[str, str, Stance]]:
    """Claims with a passage and what it makes of them."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    rng = random.Random(seed)
    rng.shuffle(rows)
    drawn: list[tuple[str, str, Stance]] = []
    sides = [[row for row in rows if row["stance"] == side][: items // 2] for side in Stance]
    for number, pair in enumerate(zip(*sides[:2], strict=False)):
        drawn += [(row["claim"], row["evidence"], Stance(row["stance"])) for row in pair]
        if number % 4 == 0:
            a, b = pair
            drawn.append((a["claim"], b["evidence"], Stance.NEUTRAL))
    return drawn


async def ask(model: str, items: list[tuple[str, str, Stance]]) -> list[Stance | None]:
    """The model's answers, in order."""
    answers = []
    async with open_reader(model, Settings.from_env()) as reader:
        for claim, passage, _ in items:
            answers.append(await reader.read(claim, passage))
            if len(answers) % 10 == 0:
                print(f"{len(answers)} of {len(items)}", file=sys.stderr)
    return answers


def main() -> int:
    """Ask and count."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--model", default="local:qwen2.5-coder-1.5b")
    parser.add_argument("--items", type=int, default=100)
    parser.add_argument("--seed", type=int, default=14)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if not args.data.is_file():
        print(f"{args.data} isn't there; name a file with --data", file=sys.stderr)
        return 2
    items = draw(args.data, args.items, args.seed)
    answers = asyncio.run(ask(args.model, items))
    pairs = [(true, got) for (_, _, true), got in zip(items, answers, strict=True)]
    table = Counter((true.value, str(got)) for true, got in pairs)
    sides = [(true, got) for true, got in pairs if true != Stance.NEUTRAL]
    right = sum(true == got for true, got in sides)
    decided = [(true, got) for true, got in sides if got in {Stance.SUPPORTS, Stance.REFUTES}]
    result = {
        "model": args.model,
        "items": len(items),
        "with_a_side": len(sides),
        "accuracy": right / len(sides),
        "chance": 0.5,
        "decided": len(decided),
        "accuracy_decided": sum(t == g for t, g in decided) / len(decided) if decided else None,
        "unusable": sum(got is None for got in answers),
        "answers": {f"{true} read as {got}": n for (true, got), n in sorted(table.items())},
    }
    if args.json:
        print(json.dumps(result, indent=2))
        return 0
    for name, value in result.items():
        print(f"{name}: {value:.3f}" if isinstance(value, float) else f"{name}: {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
