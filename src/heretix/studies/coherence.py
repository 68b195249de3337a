"""Coherence: do beliefs about a claim, its negation and its relatives obey probability?

A model that says yes to everything believes a claim and its negation. In log-odds the part that
both share is acquiescence, the part in which they differ is belief. All statistics go over the
templates that the measurements share, so that what a wording does to all of them cancels out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Final, Literal

from heretix.belief.logodds import sigmoid
from heretix.belief.student import TInterval, combine_probs, mean_t, shared_means, template_t
from heretix.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Logits = Mapping[str, Sequence[float]]

Verdict = Literal["holds", "broken", "undecided"]
_SCATTER: Final = tuple(NormalDist().inv_cdf((i + 0.5) / 40) for i in range(40))
"""Equally likely standard normal numbers."""
SAME_WITHIN: Final = 0.05
"""Paraphrases whose beliefs lie this close, in probability, are called the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NegationPair:
    """A claim and its negation."""

    prob_claim: float
    prob_negation: float
    acquiescence: TInterval
    """Half of the sum of both log-odds: above 0 for saying yes to both."""
    belief: TInterval
    """Half of the claim's less the negation's log-odds: belief free of acquiescence."""
    prob_free: float
    """The same in probability, with its interval."""
    prob_free_lo: float
    prob_free_hi: float
    violation: float
    violation_lo: float
    violation_hi: float
    n_templates: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Acquiescence:
    """Many pairs: what a model does on average; claims are the draws."""

    acquiescence: TInterval
    violation: TInterval
    n_pairs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule of probability: by how much it is broken, above 0, or kept, below."""

    name: str
    excess: TInterval
    """In probability; for `paraphrase` the signed difference."""
    verdict: Verdict


def compare_negation(claim: Logits, negation: Logits) -> NegationPair:
    """Split a claim and its negation, as logits by template, into belief and acquiescence.

    Both by the trimmed mean over templates with the interval `template_t`.
    """
    side_p, side_q = shared_means([claim, negation])
    pairs = list(zip(side_p, side_q, strict=True))
    shared = template_t({f"{i:06}": [(x + y) / 2] for i, (x, y) in enumerate(pairs)}).logit
    free = template_t({f"{i:06}": [(x - y) / 2] for i, (x, y) in enumerate(pairs)}).logit
    # At a given belief the violation grows with the size of acquiescence: its interval follows.
    sizes = sorted((abs(shared.lo), abs(shared.hi)))
    least = 0.0 if shared.lo <= 0 <= shared.hi else sizes[0]
    return NegationPair(
        prob_claim=sigmoid(free.value + shared.value),
        prob_negation=sigmoid(shared.value - free.value),
        acquiescence=shared,
        belief=free,
        prob_free=sigmoid(free.value),
        prob_free_lo=sigmoid(free.lo),
        prob_free_hi=sigmoid(free.hi),
        violation=_violation_at(free.value, shared.value),
        violation_lo=_violation_at(free.value, least),
        violation_hi=_violation_at(free.value, sizes[1]),
        n_templates=len(pairs),
    )


def summarise_pairs(pairs: Sequence[NegationPair]) -> Acquiescence:
    """Average acquiescence and violation over claims, with Student's interval over claims."""
    return Acquiescence(
        acquiescence=mean_t([pair.acquiescence.value for pair in pairs]),
        violation=mean_t([pair.violation for pair in pairs]),
        n_pairs=len(pairs),
    )


def expect_violation(pairs: Sequence[NegationPair]) -> float:
    """Mean violation that the scatter of wordings alone gives a model that obeys probability.

    A violation is never below 0, so acquiescence that is only its own standard error adds to it,
    and the interval of a mean over claims says nothing of that.
    """
    return math.fsum(
        _violation_at(pair.belief.value, pair.acquiescence.se * z)
        for pair in pairs
        for z in _SCATTER
    ) / (len(pairs) * len(_SCATTER))


def violation(prob_claim: float, prob_negation: float) -> float:
    """-2·ln(√(p(1 - q)) + √((1 - p)q)): 0 where q = 1 - p, and the further off the larger."""
    p, q = prob_claim, prob_negation
    if not (0 <= p <= 1 and 0 <= q <= 1):
        raise ConfigError(f"`prob` must lie in [0, 1], got {p} and {q}")
    overlap = math.sqrt(p * (1 - q)) + math.sqrt((1 - p) * q)
    return max(0.0, -2 * math.log(overlap)) if overlap > 0 else math.inf


def check_conjunction(a: Logits, b: Logits, both: Logits) -> tuple[Rule, ...]:
    """P(A and B) is at most P(A), at most P(B), and at least P(A) + P(B) - 1."""
    return (
        _bound("conjunction_at_most_first", [both, a], [1, -1]),
        _bound("conjunction_at_most_second", [both, b], [1, -1]),
        _bound("conjunction_at_least", [a, b, both], [1, 1, -1], constant=-1.0),
    )


def check_disjunction(a: Logits, b: Logits, either: Logits) -> tuple[Rule, ...]:
    """P(A or B) is at least P(A), at least P(B), and at most P(A) + P(B)."""
    return (
        _bound("disjunction_at_least_first", [a, either], [1, -1]),
        _bound("disjunction_at_least_second", [b, either], [1, -1]),
        _bound("disjunction_at_most", [either, a, b], [1, -1, -1]),
    )


def check_entailment(premise: Logits, conclusion: Logits) -> Rule:
    """Check that what follows from a claim is at least as likely."""
    return _bound("entailment", [premise, conclusion], [1, -1])


def check_paraphrase(a: Logits, b: Logits, *, within: float = SAME_WITHIN) -> Rule:
    """Two ways to say one thing have one belief.

    Broken where the interval of the difference leaves 0 out and isn't wholly within `within`;
    holds where it is within; undecided where it is too wide to tell.
    """
    if not 0 < within < 1:
        raise ConfigError(f"`within` must lie between 0 and 1, got {within}")
    found = combine_probs([b, a], [1, -1])
    verdict: Verdict = "undecided"
    if -within <= found.lo and found.hi <= within:
        verdict = "holds"
    elif found.lo > 0 or found.hi < 0:
        verdict = "broken"
    return Rule(name="paraphrase", excess=found, verdict=verdict)


def _bound(
    name: str, sides: Sequence[Logits], weights: Sequence[float], *, constant: float = 0.0
) -> Rule:
    """Judge an inequality by the interval of what exceeds it."""
    found = combine_probs(sides, weights, constant=constant)
    verdict: Verdict = "broken" if found.lo > 0 else "holds" if found.hi <= 0 else "undecided"
    return Rule(name=name, excess=found, verdict=verdict)


def _violation_at(belief_logit: float, acquiescence: float) -> float:
    return violation(sigmoid(belief_logit + acquiescence), sigmoid(acquiescence - belief_logit))
