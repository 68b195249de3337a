"""Near-duplicates: documents that share half of their five-word runs count as one source.

A wire story on eight sites is one story. Documents whose shingles overlap by a Jaccard index of 0.5
or more are linked, linked documents form a cluster, and the earliest one stands for all. Jaccard
doesn't see a short excerpt of a long text; the limit per publisher and diverse selection remain.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from heretix.evidence.text.fold import UNSPACED, fold

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SHINGLE_WORDS: Final = 5
DUPLICATE_JACCARD: Final = 0.5

# Chinese, Japanese and Thai put no spaces between words: there, each character is a word.
_WORD: Final = re.compile(rf"[{UNSPACED}]|[^\W{UNSPACED}]+")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Cluster:
    """Documents that are copies of each other, by their places in what was clustered."""

    kept: int
    """The earliest."""
    copies: tuple[int, ...]
    """The others, earliest first."""

    @property
    def n_copies(self) -> int:
        """Documents that the kept one stands for, itself included."""
        return 1 + len(self.copies)


def words(text: str) -> list[str]:
    """The words of `text`, folded and without case."""
    return _WORD.findall(fold(text).casefold())


def shingles(text: str) -> frozenset[tuple[str, ...]]:
    """All runs of five words. A shorter text is one run of all its words; an empty one has none."""
    found = words(text)
    if not found:
        return frozenset()
    if len(found) < SHINGLE_WORDS:
        return frozenset({tuple(found)})
    runs = range(len(found) - SHINGLE_WORDS + 1)
    return frozenset(tuple(found[at : at + SHINGLE_WORDS]) for at in runs)


def jaccard(a: frozenset[T], b: frozenset[T]) -> float:
    """Shared members over all members; two empty sets share nothing."""
    union = len(a | b)
    return len(a & b) / union if union else 0.0


def cluster(texts: Sequence[str], *, earliest: Callable[[int], object]) -> tuple[Cluster, ...]:
    """Clusters of near-duplicates, in the order of their kept documents.

    `earliest` is a sort key over places in `texts`; ties go to the smaller place. A cluster is
    everything that can be reached by links, so the order of `texts` doesn't decide who is in it.
    """
    sets = [shingles(text) for text in texts]
    group = list(range(len(texts)))

    def root(place: int) -> int:
        while group[place] != place:
            group[place] = group[group[place]]
            place = group[place]
        return place

    for (a, b), shared in _overlaps(sets).items():
        # Multiplied out: no rounding of a quotient decides about a copy.
        union = len(sets[a]) + len(sets[b]) - shared
        if shared >= DUPLICATE_JACCARD * union:
            group[root(a)] = root(b)

    members: defaultdict[int, list[int]] = defaultdict(list)
    for place in range(len(texts)):
        members[root(place)].append(place)
    clusters = []
    for places in members.values():
        kept, *copies = sorted(places, key=lambda place: (earliest(place), place))
        clusters.append(Cluster(kept, tuple(copies)))
    return tuple(sorted(clusters, key=lambda found: found.kept))


def _overlaps(sets: Sequence[frozenset[tuple[str, ...]]]) -> Counter[tuple[int, int]]:
    """Count the shingles that pairs share, for pairs that share any."""
    holders: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    for place, found in enumerate(sets):
        for shingle in found:
            holders[shingle].append(place)
    shared: Counter[tuple[int, int]] = Counter()
    for places in holders.values():
        for index, a in enumerate(places):
            for b in places[index + 1 :]:
                shared[a, b] += 1
    return shared
