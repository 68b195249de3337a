"""The one record per lens, and that nothing else spells lenses out."""

import re
from pathlib import Path
from typing import get_args

import heretix
from heretix.core.lenses import (
    EARNING,
    LENSES,
    SEARCHED,
    SHOWING,
    WITHOUT_FILES,
    LensCode,
)
from heretix.evidence.policy.policy import SourceClass
from heretix.prompts.bank import load_frame

SOURCE = Path(heretix.__file__).parent


def test_codes_frames_and_source_classes_are_those_that_exist():
    """A lens has a code of the records' type, a clause if it is framed, and real classes."""
    assert tuple(LENSES) == get_args(LensCode)
    assert load_frame().clauses.keys() == {code for code, lens in LENSES.items() if lens.framed}
    for lens in LENSES.values():
        assert lens.admits | lens.on_request <= set(SourceClass)


def test_groups_follow_from_the_records():
    assert SHOWING == ("MEL", "HEL", "SEL")
    assert SEARCHED == ("MEL", "HEL")
    assert EARNING == ("HEL", "SEL")
    assert WITHOUT_FILES == ("RPL", "NUL", "MEL", "HEL")
    assert [code for code, lens in LENSES.items() if lens.hollow] == ["NUL"]


def test_lens_codes_are_quoted_in_few_files():
    """Whoever needs a lens asks its record; a code in quotes is a copy of what it knows."""
    quoted = re.compile(r"""["'](RPL|NUL|MEL|HEL|SEL)["']""")
    files = {path.name for path in SOURCE.rglob("*.py") if quoted.search(path.read_text())}
    assert len(files) <= 6, sorted(files)
