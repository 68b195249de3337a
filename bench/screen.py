"""How many real sentences does the screen of documents call suspicious? Weights of its requests.

    python bench/screen.py FILE... [--fit]

Counts the sentences of text files that are flagged, and prints them by kind. `--fit` fits the
weights of the parts of requests (`evidence/text/requests.txt`) instead, by logistic regression with
a small ridge: the English forms of `tests/evidence/attacks.yaml` against the sentences of the files
that have the parts. It prints weights, and the highest sums of real sentences. The packaged weights
were fitted so, before half of the last forms were put there, with 50 hard sentences of our own.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import yaml

from heretix.evidence.text.excerpt import split_sentences
from heretix.evidence.text.injection import request_parts, screen

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ATTACKS: Final = Path(__file__).parents[1] / "tests" / "evidence" / "attacks.yaml"
KINDS: Final = ("paraphrases", "plain words", "not caught")
CHARS: Final = (20, 400)
FORMS_COUNT: Final = 8.0
"""How many real sentences a form weighs as much as."""
RIDGE: Final = 3.0


def read_sentences(paths: Iterable[Path]) -> Iterator[str]:
    """The sentences of files, each once, in one line."""
    seen: set[str] = set()
    for path in paths:
        text = path.read_text(encoding="utf-8", errors="ignore")
        for place in split_sentences(text):
            said = " ".join(text[place.start : place.end].split())
            if CHARS[0] <= len(said) <= CHARS[1] and said not in seen:
                seen.add(said)
                yield said


def hold_parts(said: str) -> list[float] | None:
    """The parts of a request that a sentence has, as 0 and 1; None if it isn't looked at."""
    parts = request_parts()
    found = [float(part.pattern.search(said.lower()) is not None) for part in parts]
    kinds = {kind for part, there in zip(parts, found, strict=True) if there for kind in part.kinds}
    return found if kinds >= {*"vaw"} or kinds >= {*"dbt"} else None


def fit(forms: Any, real: Any) -> Any:
    """Weights of the parts, the last that of nothing, by Newton's method."""
    x = np.vstack([forms, real])
    x = np.c_[x, np.ones(len(x))]
    y = np.r_[np.ones(len(forms)), np.zeros(len(real))]
    count = np.where(y > 0, FORMS_COUNT, 1.0)
    ridge = RIDGE * np.eye(x.shape[1])
    ridge[-1, -1] = 0.0
    weights = np.zeros(x.shape[1])
    for _ in range(30):
        prob = 1.0 / (1.0 + np.exp(-np.clip(x @ weights, -30.0, 30.0)))
        slope = x.T @ (count * (prob - y)) + ridge @ weights
        curve = (x * (count * prob * (1.0 - prob))[:, None]).T @ x + ridge
        weights -= np.linalg.solve(curve, slope)
    return weights


def main() -> int:
    """Count, or fit; print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--fit", action="store_true")
    args = parser.parse_args()
    real = list(read_sentences(args.files))
    if not args.fit:
        flagged: Counter[str] = Counter()
        for said in real:
            kinds = {flag.kind.value for flag in screen(said)}
            flagged.update(kinds or {"none"})
            if kinds:
                print(sorted(kinds), said)
        print(f"{len(real) - flagged.pop('none', 0)} of {len(real)} sentences", dict(flagged))
        return 0
    attacks = yaml.safe_load(ATTACKS.read_text(encoding="utf-8"))
    told = [form for kind in KINDS for form in attacks[kind] if form.isascii()]
    forms = [found for form in told if (found := hold_parts(form)) is not None]
    kept = [(said, found) for said in real if (found := hold_parts(said)) is not None]
    if not kept:
        print(f"none of {len(real)} sentences has the parts of a request: give more")
        return 2
    rows = np.array([found for _, found in kept])
    weights = fit(np.array(forms), rows)
    names = [" ".join(part.pattern.pattern.split())[:50] for part in request_parts()]
    for name, weight in zip([*names, "nothing"], weights, strict=True):
        print(f"{weight:+.1f}  {name}")
    sums = rows @ weights[:-1]
    for place in np.argsort(-sums)[:10]:
        print(f"{sums[place]:.1f}  {kept[place][0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
