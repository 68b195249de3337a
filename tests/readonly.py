"""Folders that may only be read, for processes that may do no more than their owner."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_DROP_FROM_BOUNDING_SET: Final = 24
_DAC_OVERRIDE: Final = 1
_DAC_READ_SEARCH: Final = 2
_CAPABILITIES_V3: Final = 0x2008_0522
_LIBC: Final = ctypes.CDLL(None) if sys.platform == "linux" else None
BOUND: Final = _LIBC is not None or os.geteuid() != 0
"""A process can be held to permissions, whoever starts it."""


def obey_permissions() -> None:
    """In a new process, before its program: root goes by permissions like everybody else."""
    if os.geteuid() == 0 and _LIBC is not None:
        for capability in (_DAC_OVERRIDE, _DAC_READ_SEARCH):
            _LIBC.prctl(_DROP_FROM_BOUNDING_SET, capability, 0, 0, 0)


@contextlib.contextmanager
def obeying_permissions() -> Iterator[None]:
    """Hold this thread, and those that it starts meanwhile, to permissions; then as it was."""
    if os.geteuid() != 0 or _LIBC is None:
        yield
        return
    # The version and this thread; then, for each half of them, what counts, may count, is handed on.
    header, held = (ctypes.c_uint32 * 2)(_CAPABILITIES_V3, 0), (ctypes.c_uint32 * 6)()
    assert _LIBC.capget(header, held) == 0
    obeying = (ctypes.c_uint32 * 6)(*held)
    obeying[0] &= ~(1 << _DAC_OVERRIDE | 1 << _DAC_READ_SEARCH)
    assert _LIBC.capset(header, obeying) == 0
    try:
        yield
    finally:
        assert _LIBC.capset(header, held) == 0


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[Path]:
    """Let nobody write to a folder or to the files in it, for a while."""
    files = list(folder.iterdir())
    modes = {path: path.stat().st_mode for path in (*files, folder)}
    for path in files:
        path.chmod(0o444)
    folder.chmod(0o555)
    try:
        yield folder
    finally:
        for path, mode in modes.items():
            path.chmod(mode)
