"""What each strategy came to: its mean return for an episode, with a 99% interval.

A return is whole minor units, net of stakes, bonds, fees and what was spent on asking models.
Seats of one strategy in one episode share its luck, so the episode is the unit that is counted.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist, fmean, stdev
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from heretix.economy.transfers import Code

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from heretix.economy.simulation.agents import Kind
    from heretix.economy.transfers import Transfer

__all__ = ["Result", "Source", "Standing", "Verdict", "sources_of", "standing", "t_quantile"]

_CONFIDENCE: Final = 0.99


class Verdict(StrEnum):
    """Where the interval lies."""

    GAINS = "gains"
    LOSES = "loses"
    NEITHER = "neither"
    UNKNOWN = "unknown"
    """Fewer than two episodes have no interval."""


class Source(StrEnum):
    """Where a return came from."""

    MARKET = "market"
    EVIDENCE = "evidence"
    """Stakes of challenges, bonds and rewards."""
    YIELD = "yield"
    """From others' failed challenges, or one's own."""
    DISPUTES = "disputes"
    COMPUTE = "compute"


_SOURCES: Final[Mapping[Code, Source]] = MappingProxyType(
    {
        Code.STAKE: Source.MARKET,
        Code.LATE_STAKE_REFUND: Source.MARKET,
        Code.PAYOUT: Source.MARKET,
        Code.STAKE_REFUND: Source.MARKET,
        Code.CHALLENGE: Source.EVIDENCE,
        Code.CHALLENGE_REFUND: Source.EVIDENCE,
        Code.BOND_RETURN: Source.EVIDENCE,
        Code.REWARD: Source.EVIDENCE,
        Code.RESILIENCE_YIELD: Source.YIELD,
        Code.DISPUTE: Source.DISPUTES,
        Code.DISPUTE_RETURN: Source.DISPUTES,
        Code.BURN: Source.COMPUTE,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What the seats of one strategy came to in one episode."""

    episode: int
    strategy: str
    seats: int
    amount: int
    """All seats together, in minor units."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One line of the report. Means are minor units for a seat and an episode."""

    strategy: str
    kind: Kind
    agents: int
    episodes: int
    """In which it was seated."""
    mean: float | None
    lo: float | None
    hi: float | None
    """The 99% interval of the mean; None with fewer than two episodes."""
    total: int
    sources: Mapping[Source, int]

    @property
    def verdict(self) -> Verdict:
        """Whether the strategy pays, as far as can be told."""
        if self.lo is None or self.hi is None:
            return Verdict.UNKNOWN
        if self.lo > 0:
            return Verdict.GAINS
        return Verdict.LOSES if self.hi < 0 else Verdict.NEITHER


def standing(
    strategy: str,
    kind: Kind,
    *,
    agents: int,
    results: Sequence[Result],
    sources: Mapping[Source, int],
) -> Standing:
    """The mean of a strategy's episodes and its interval, by Student's t."""
    returns = [result.amount / result.seats for result in results]
    mean = fmean(returns) if returns else None
    half = None
    if len(returns) > 1:
        quantile = t_quantile((1 + _CONFIDENCE) / 2, len(returns) - 1)
        half = quantile * stdev(returns) / math.sqrt(len(returns))
    lo, hi = (None, None) if mean is None or half is None else (mean - half, mean + half)
    return Standing(
        strategy=strategy,
        kind=kind,
        agents=agents,
        episodes=len(results),
        mean=mean,
        lo=lo,
        hi=hi,
        total=sum(result.amount for result in results),
        sources=sources,
    )


def sources_of(
    transfers: Iterable[Transfer], owners: Mapping[str, str]
) -> dict[str, dict[Source, int]]:
    """Where each strategy's money came from and went to; what it was given is left out.

    `owners` says which strategy an account belongs to.
    """
    sums: dict[str, defaultdict[Source, int]] = {
        strategy: defaultdict(int) for strategy in owners.values()
    }
    for transfer in transfers:
        source = _SOURCES.get(transfer.code)
        if source is None:
            continue
        for account, amount in (
            (transfer.debit, -transfer.amount),
            (transfer.credit, transfer.amount),
        ):
            if account in owners:
                sums[owners[account]][source] += amount
    return {
        strategy: {source: found.get(source, 0) for source in Source}
        for strategy, found in sums.items()
    }


def t_quantile(share: float, freedom: int) -> float:
    """Quantile of Student's t (Abramowitz and Stegun 26.7.5), to 1% from 4 degrees on.

    With fewer, the expansion falls short of the exact forms that there are for 1 and 2.
    """
    if freedom == 1:
        return math.tan(math.pi * (share - 0.5))
    if freedom == 2:
        return (2 * share - 1) * math.sqrt(2 / (4 * share * (1 - share)))
    z = NormalDist().inv_cdf(share)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92_160,
    )
    return z + sum(term / float(freedom) ** power for power, term in enumerate(terms, 1))
