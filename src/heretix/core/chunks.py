"""Cutting long inputs into lists of a size; `itertools.batched` needs Python 3.12."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_T = TypeVar("_T")


def chunked(values: Iterable[_T], size: int) -> Iterator[list[_T]]:
    """Cut values into lists of `size`, the last of which may be shorter."""
    iterator = iter(values)
    while chunk := list(islice(iterator, size)):
        yield chunk
