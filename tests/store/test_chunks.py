"""Cutting long inputs into lists."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from heretix.store.db import chunked


@given(st.lists(st.integers()), st.integers(1, 7))
def test_chunks_are_full_and_together_everything(values: list[int], size: int):
    """All but the last have the size that was asked for; nothing is lost or reordered."""
    chunks = list(chunked(iter(values), size))
    assert [value for chunk in chunks for value in chunk] == values
    assert all(len(chunk) == size for chunk in chunks[:-1])
    assert all(chunks)
