"""Read-outs: how an answer is taken from a model.

`sampled` asks for a number and reads it, again and again. The others ask once a wording and read
the log-probabilities of the answer's tokens: `truth_token` those of "True" and "False",
`distribution` those of every number that the model could have said. A sample of theirs keeps the
log-probabilities as its raw answer, so that the reading can be made again from the record alone.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from heretix.belief.logodds import logit, sigmoid
from heretix.core.canonical import canonical_json
from heretix.sample import Finish, Noncompliance, Reading, read_answer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

Readout = Literal["sampled", "distribution", "truth_token"]

SAMPLED: Final = "sampled"
DISTRIBUTION: Final = "distribution"
TRUTH_TOKEN: Final = "truth_token"  # noqa: S105
FROM_LOGPROBS: Final[tuple[Readout, ...]] = (DISTRIBUTION, TRUTH_TOKEN)
"""Read-outs that need log-probabilities. They ask once a wording: a repeat would say the same."""
SLOTS: Final = 16
"""Wordings that they ask by default: as many calls as a sampled plan makes."""

TOP_LOGPROBS: Final = 20
"""Alternatives asked for at each token: the most that APIs give."""
MAX_MISSING_MASS: Final = 0.03
"""Part of a distribution that may be unknown; a wording with more is dropped."""

MIN_BRANCH: Final = 0.001
"""Least probability of a branch that is walked."""
MIN_THIRD: Final = 0.005
"""Least probability of a number of two decimals for which a third is looked for."""
ANSWER_PREFIX: Final = '{"prob_true":'
"""The answer up to its number: the walk begins here."""
_BEGUN: Final = re.compile(r"( (0(\.\d{0,3})?|1(\.0{0,3})?)?)?")
_COMPLETE: Final = re.compile(r" (0(?:\.\d{1,3})?|1(?:\.0{1,3})?)\}")
_NEARLY_KNOWN: Final = re.compile(r" 0\.(?!00|99)\d\d")
"""Two decimals, but not those beside 0 and 1, where a third is worth several log-odds."""
_SINGLE: Final = " .}0123456789"
_ANY_NUMBER: Final = re.compile(
    r"""\s*\{\s*"prob_true"\s*:\s*(?P<number>[01]?(?:\.\d*)?)(?P<rest>.*)""", re.DOTALL
)

_KEYS: Final[Mapping[str, str]] = {DISTRIBUTION: "answers", TRUTH_TOKEN: "first_token"}


class Logprob(NamedTuple):
    """A text that the model could have written, and its natural log-probability."""

    text: str
    logprob: float


def dump_logprobs(readout: Readout, logprobs: Iterable[Logprob]) -> str:
    """Write log-probabilities as a raw answer, the likeliest first."""
    ordered = sorted(logprobs, key=lambda one: (-one.logprob, one.text))
    return canonical_json({_KEYS[readout]: [list(one) for one in ordered]})


def _read_logprobs(readout: Readout, text: str, finish: Finish) -> Reading:
    if finish is Finish.REFUSED:
        return Reading(noncompliance=Noncompliance.REFUSED)
    logprobs = _load(readout, text)
    if logprobs is None:
        return Reading(noncompliance=Noncompliance.NOT_JSON)
    return _read_words(logprobs) if readout == TRUTH_TOKEN else _read_numbers(logprobs)


READERS: Final[Mapping[Readout, Callable[[str, Finish], Reading]]] = {
    SAMPLED: read_answer,
    **{name: partial(_read_logprobs, name) for name in FROM_LOGPROBS},
}
"""The rule by which each read-out's answers are read."""
METHOD_PREFIX: Final[Mapping[Readout, str]] = {
    SAMPLED: "",
    **{name: f"{name}_" for name in FROM_LOGPROBS},
}
"""Stands before a method of aggregation, so that no two read-outs share one."""


def read_reply(readout: Readout, text: str, finish: Finish = Finish.STOP) -> Reading:
    """Read an answer by the rule of its read-out."""
    return READERS[readout](text, finish)


def missing_mass(readout: Readout, text: str) -> float | None:
    """Probability that the reading leaves out: of numbers unknown, or of neither word."""
    logprobs = _load(readout, text)
    if logprobs is None:
        return None
    if readout == TRUTH_TOKEN:
        logprobs = [one for one in logprobs if _word(one.text)]
    return max(0.0, 1.0 - math.fsum(math.exp(one.logprob) for one in logprobs))


def hold_numbers(text: str, *, within: float) -> tuple[float, float] | None:
    """Measure a distribution: probability of exactly 0 and 1, and mean log-odds with every number
    held at `within` from them; None where there is no number."""
    numbers = [(float(name), math.exp(lp)) for name, lp in _load(DISTRIBUTION, text) or ()]
    mass = math.fsum(weight for _, weight in numbers)
    if mass == 0:
        return None
    held = [(min(max(prob, within), 1 - within), weight) for prob, weight in numbers]
    return (
        math.fsum(weight for prob, weight in numbers if prob in (0, 1)) / mass,
        math.fsum(weight * logit(prob) for prob, weight in held) / mass,
    )


def _load(readout: Readout, text: str) -> list[Logprob] | None:
    try:
        pairs = json.loads(text)[_KEYS[readout]]
        found = [Logprob(str(word), float(logprob)) for word, logprob in pairs]
    except (ValueError, TypeError, KeyError):
        return None
    return found if all(one.logprob <= 0 for one in found) else None


def _read_words(logprobs: Sequence[Logprob]) -> Reading:
    masses = {"true": 0.0, "false": 0.0}
    for text, logprob in logprobs:
        if word := _word(text):
            masses[word] += math.exp(logprob)
    if not all(masses.values()):
        # How unlikely the other word is can't be known: only that it is less so than those listed.
        return Reading(json_valid=True, noncompliance=Noncompliance.NO_TRUTH_TOKEN)
    log_odds = math.log(masses["true"]) - math.log(masses["false"])
    return Reading(sigmoid(log_odds), True, log_odds=log_odds)


def _word(token: str) -> str | None:
    """The word that a token is, whatever its case and what is set around it."""
    word = token.strip(" \t\r\n\"'*`.").casefold()
    return word if word in {"true", "false"} else None


def _read_numbers(logprobs: Sequence[Logprob]) -> Reading:
    try:
        answers = [(float(text), math.exp(logprob)) for text, logprob in logprobs]
    except ValueError:
        return Reading(noncompliance=Noncompliance.NO_PROB_TRUE)
    if not all(0 <= prob <= 1 for prob, _ in answers):
        return Reading(json_valid=True, noncompliance=Noncompliance.OUT_OF_RANGE)
    mass = math.fsum(weight for _, weight in answers)
    lacking = Noncompliance.MISSING_MASS if mass < 1 - MAX_MISSING_MASS else None
    if mass == 0:
        return Reading(json_valid=True, noncompliance=lacking)
    mean = math.fsum(weight * prob for prob, weight in answers) / mass
    log_odds = math.fsum(weight * logit(prob) for prob, weight in answers) / mass
    return Reading(min(mean, 1.0), True, lacking, log_odds=log_odds)


def read_top(
    entries: Iterable[Any], *, text: str = "token", logprob: str = "logprob"
) -> list[Logprob]:
    """Read a provider's list of alternatives, whose fields it names; what is no number is none."""
    found: dict[str, float] = {}
    for entry in entries:
        if not isinstance(entry, dict):
            continue
        token, value = entry.get(text), entry.get(logprob)
        if isinstance(token, str) and isinstance(value, int | float) and value <= 1e-6:
            # Rounding puts certain tokens a little above 0; a token that is listed twice is one.
            found.setdefault(token, min(float(value), 0.0))
    return [Logprob(token, value) for token, value in found.items()]


async def walk_numbers(
    next_tokens: Callable[[str], Awaitable[Sequence[Logprob]]], *, together: int = 1
) -> list[Logprob]:
    """Find every number of up to three decimals that a model could say, and its log-probability.

    `next_tokens` gives the likeliest tokens after a beginning of the answer. Those that can't
    belong to an answer are left out, as by a grammar, and the others share their probability.
    Branches below `MIN_BRANCH` aren't walked: what they hold is missing from the sum. Neither are
    those whose number can't change any more, nor such below `MIN_THIRD` in which only a third
    decimal is open: it moves the number by less than .01, and each would take a reading of its own.
    A server that reads several texts at a time is asked for so many branches `together`.
    """
    masses: defaultdict[str, float] = defaultdict(float)
    branches = [("", 1.0)]
    while branches:
        now = [branches.pop() for _ in range(min(together, len(branches)))]
        calls = (next_tokens(ANSWER_PREFIX + begun) for begun, _ in now)
        tokens = await asyncio.gather(*calls, return_exceptions=True)
        longer = []
        for (begun, mass), alternatives in zip(now, tokens, strict=True):
            # Only now: a call that fails leaves none of the others behind.
            if isinstance(alternatives, BaseException):
                raise alternatives
            fitting, unlisted = _sum_fitting(begun, alternatives)
            whole = math.fsum(fitting.values()) + unlisted
            for text, prob in fitting.items():
                share = mass * prob / whole
                number = _read_known_number(ANSWER_PREFIX + text)
                if number is None and share < MIN_THIRD and _NEARLY_KNOWN.fullmatch(text):
                    number = text.strip()
                if number is not None:
                    masses[number] += share
                elif share >= MIN_BRANCH:
                    longer.append((text, share))
        # The likeliest is walked next, in one order whatever the order of the list.
        branches += sorted(longer, key=lambda branch: (branch[1], branch[0]))
    return [Logprob(text, min(0.0, math.log(mass))) for text, mass in masses.items()]


def _sum_fitting(begun: str, tokens: Sequence[Logprob]) -> tuple[dict[str, float], float]:
    """Probabilities of the longer texts that can become an answer, and what isn't listed of it."""
    texts = {begun + token: math.exp(logprob) for token, logprob in tokens if token}
    fitting = {text: prob for text, prob in texts.items() if _fits(text) and prob > 0}
    least = min(texts.values(), default=0.0)
    unlisted = max(0.0, 1.0 - math.fsum(texts.values()))
    if all(len(text) == len(begun) + 1 for text in fitting):
        # Each digit is a token: one that isn't listed is less likely than the last that is.
        absent = sum(_fits(begun + one) and begun + one not in texts for one in _SINGLE)
        unlisted = min(unlisted, absent * least)
    return fitting, unlisted if fitting else 1.0


def _fits(text: str) -> bool:
    return bool(_BEGUN.fullmatch(text) or _COMPLETE.fullmatch(text))


def follow_path(path: Sequence[tuple[str, Sequence[Logprob]]]) -> list[Logprob]:
    """Read what one answer's tokens, with their alternatives, tell of the number's distribution.

    Only a branch whose number is known counts: one that ends with the token, has three decimals or
    can't but be 1. What else could have followed a token that wasn't chosen isn't known.
    """
    masses: defaultdict[str, float] = defaultdict(float)
    before, mass = "", 1.0
    for chosen, alternatives in path:
        among = dict(alternatives)
        for token, logprob in among.items():
            number = _read_known_number(before + token)
            if number is not None:
                masses[number] += mass * math.exp(logprob)
        begun = _ANY_NUMBER.fullmatch(before + chosen)
        if _read_known_number(before + chosen) is not None or chosen not in among:
            break
        if begun and begun["number"]:
            # What comes before the number tells nothing of it: the mass is counted from there.
            mass *= math.exp(among[chosen])
        before += chosen
    known = {text: mass for text, mass in masses.items() if mass > 0}
    return [Logprob(text, min(0.0, math.log(mass))) for text, mass in known.items()]


def _read_known_number(text: str) -> str | None:
    """The number of a beginning of an answer, if nothing that follows can change it."""
    found = _ANY_NUMBER.fullmatch(text)
    if found is None or not found["number"].strip("."):
        return None
    number = found["number"]
    ended = found["rest"].lstrip()[:1] in {"}", ","} if found["rest"].strip() else False
    sure = number.startswith("1") or len(number.partition(".")[2]) >= 3
    return (number if number[-1] != "." else number[:-1]) if ended or sure else None
