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
_LIBC: Final = ctypes.CDLL(None) if sys.platform == "linux" else None
BOUND: Final = _LIBC is not None or os.geteuid() != 0
"""A process can be held to permissions, whoever starts it."""


def obey_permissions() -> None:
    """In a new process, before its program: root goes by permissions like everybody else."""
    if os.geteuid() == 0 and _LIBC is not None:
        for capability in (_DAC_OVERRIDE, _DAC_READ_SEARCH):
            _LIBC.prctl(_DROP_FROM_BOUNDING_SET, capability, 0, 0, 0)


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
