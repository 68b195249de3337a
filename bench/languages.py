"""Do the packaged banks ask the same in every language? Beliefs across languages; back-translation.

    python bench/languages.py [--model local:qwen2.5-coder-1.5b] [--limit N] [--readout NAME]
                              [--db languages.sqlite] [--back FILE] [--json]

Claims of `--claims` (JSON lines: `label`, and the claim by language code) are measured in each
language with its bank, in eight wordings. Against English: the mean difference of log-odds with
Student's interval over claims, the correlation of log-odds with Fisher's, and the AUROC of each.
What `--db` holds isn't asked again, so it goes on where it was stopped; `--limit` takes the first
claims. `--back` asks the model instead to translate every wording into English, at temperature 0,
and keeps the answers in FILE (JSON), beside the English wording, for somebody to read.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from rich.console import Console
from rich.table import Table

from heretix.belief.logodds import logit
from heretix.belief.student import mean_t
from heretix.config import LANGUAGES, RunConfig
from heretix.core.settings import Settings
from heretix.measurement.runner import NullObserver
from heretix.measurement.service import Results, measure, prepare
from heretix.prompts.bank import load_bank
from heretix.providers.base import Request
from heretix.providers.catalog import open_provider, resolve_model
from heretix.readouts import DISTRIBUTION, SAMPLED
from heretix.store import Store
from heretix.studies.calibration import Forecast, calibrate
from heretix.studies.study import read_run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CLAIMS: Final = Path(__file__).with_suffix(".jsonl")
CODES: Final = tuple(code for code in LANGUAGES if code != "auto")
NAMES: Final = {"fr": "French", "zh": "Chinese", "es": "Spanish", "de": "German"}
ENGLISH: Final = "en"
TRANSLATE: Final = (
    "You are a translator. Translate the user's {LANGUAGE} text into English, word for word. It is "
    "a question for somebody else, to be translated, not answered. Reply with one JSON object: "
    '{"english": TEXT}'
)
TRANSLATION: Final = {
    "type": "object",
    "properties": {"english": {"type": "string", "maxLength": 500}},
    "required": ["english"],
}
Z95: Final = 1.959963984540054


class Counting(NullObserver):
    """An observer that says how many wordings were asked."""

    def __init__(self, name: str, total: int) -> None:
        self._name, self._total, self._done = name, total, 0

    def on_sampled(self, plan: Any, sample: Any) -> None:
        self._done += 1
        if self._done % 20 == 0:
            print(f"{self._name} {self._done}/{self._total}", file=sys.stderr, flush=True)


def believe(
    rows: Sequence[Mapping[str, Any]], code: str, plan: Mapping[str, Any], store: Store
) -> list[float | None]:
    """Beliefs in the claims of one language; None where a claim has no estimate."""
    claims = [row[code] for row in rows]
    config = RunConfig.parse({**plan, "K": 8, "R": 1, "language": code})
    measurement = prepare(config, Settings.from_env(), claims=claims)
    results = Results(Counting(code, measurement.attempts))
    asyncio.run(measure(measurement, store, results))
    runs = [read_run(store, ref) for ref in results.executions.values()]
    found = {run.claim: run.prob_true for run in runs}
    return [found[claim] for claim in claims]


def correlate(own: Sequence[float | None], other: Sequence[float | None]) -> dict[str, Any]:
    """Hold beliefs in one language against the same in English."""
    pairs = [
        (logit(a), logit(b))
        for a, b in zip(own, other, strict=True)
        if a is not None and b is not None
    ]
    mean = mean_t([a - b for a, b in pairs])
    size = mean_t([abs(a - b) for a, b in pairs])
    r = float(np.corrcoef(np.array(pairs).T)[0, 1])
    half = Z95 / math.sqrt(len(pairs) - 3)
    return {
        "claims": len(pairs),
        "difference": (mean.value, mean.lo, mean.hi),
        "distance": (size.value, size.lo, size.hi),
        "correlation": (r, math.tanh(math.atanh(r) - half), math.tanh(math.atanh(r) + half)),
    }


def compare(
    rows: Sequence[Mapping[str, Any]], plan: Mapping[str, Any], store: Store
) -> dict[str, Any]:
    """Measure the claims in every language, and hold each against English."""
    beliefs = {code: believe(rows, code, plan, store) for code in CODES}
    found: dict[str, Any] = {}
    for code, probs in beliefs.items():
        told = [
            Forecast(claim=row[ENGLISH], prob=prob, outcome=bool(row["label"]))
            for row, prob in zip(rows, probs, strict=True)
            if prob is not None
        ]
        auroc = calibrate(told).auroc
        found[code] = {
            "auroc": (auroc.value, auroc.lo, auroc.hi),
            "mean_logit": sum(logit(one.prob) for one in told) / len(told),
            **(correlate(probs, beliefs[ENGLISH]) if code != ENGLISH else {"claims": len(told)}),
            "beliefs": probs,
        }
    return found


async def translate_back(model: str, path: Path) -> None:
    """Translate every wording that `path` doesn't hold yet into English."""
    rows = read_kept(path)
    kept = {(row["language"], row["wording"]) for row in rows}
    settings = Settings.from_env()
    named = resolve_model(model, settings)
    provider = open_provider(named, settings)
    slots = asyncio.Semaphore(2)

    async def translate(code: str, index: int, said: str, english: str) -> None:
        async with slots:
            request = Request(
                model=named.name,
                system=TRANSLATE.replace("{LANGUAGE}", NAMES[code]),
                user=said,
                max_output_tokens=200,
                temperature=0.0,
                answer_schema=TRANSLATION,
            )
            reply = await provider.ask(request)
        row = {"language": code, "index": index, "wording": said, "english": english}
        rows.append({**row, "back": reply.text})
        keep(path, rows)

    try:
        english = wordings(ENGLISH)
        await asyncio.gather(
            *(
                translate(code, index, said, english[index])
                for code in NAMES
                for index, said in enumerate(wordings(code))
                if (code, said) not in kept
            )
        )
    finally:
        await provider.aclose()


def read_kept(path: Path) -> list[dict[str, Any]]:
    """The translations that a file holds; none where it isn't there yet."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []


def keep(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write the translations, by language and wording."""
    rows.sort(key=lambda row: (row["language"], row["index"]))
    path.write_text(json.dumps(rows, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def wordings(code: str) -> list[str]:
    """The wordings of a language's bank, without the claim."""
    bank = load_bank(LANGUAGES[code])
    return [text.replace("<claim>{CLAIM}</claim>", "").strip() for text in bank.paraphrases]


def main() -> int:
    """Measure what is missing, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="local:qwen2.5-coder-1.5b")
    parser.add_argument("--claims", type=Path, default=CLAIMS)
    parser.add_argument("--limit", type=int, help="take only so many claims, from the first on")
    parser.add_argument("--readout", choices=(SAMPLED, DISTRIBUTION), default=DISTRIBUTION)
    parser.add_argument("--db", type=Path, default=Path("languages.sqlite"))
    parser.add_argument("--back", type=Path, metavar="FILE")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.back is not None:
        asyncio.run(translate_back(args.model, args.back))
        return 0
    lines = args.claims.read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines][: args.limit]
    with Store.open(str(args.db)) as store:
        found = compare(rows, {"models": (args.model,), "readout": args.readout}, store)
    if args.json:
        print(json.dumps(found, indent=2))
        return 0
    table = Table(
        "language", "claims", "minus English", "distance", "correlation", "AUROC", box=None
    )
    for code, row in found.items():
        signs = {"difference": "+", "distance": "", "correlation": "+", "auroc": ""}
        cells = [
            "{:{s}.2f} [{:{s}.2f}, {:{s}.2f}]".format(*row[name], s=sign) if name in row else "–"
            for name, sign in signs.items()
        ]
        table.add_row(code, str(row["claims"]), *cells)
    Console(width=140).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
