"""The house stays small: files that a command runs through, and a map that names what is there."""

import re
from pathlib import Path

import pytest

import heretix
from flow import flow
from heretix.evidence.demo import demo_claims

PACKAGE = Path(heretix.__file__).parent
DOCS = PACKAGE.parent.parent / "docs"


@pytest.mark.parametrize(
    ("args", "code", "most"),
    [
        (("run", "Tea is a plant.", "--mock"), 0, 32),
        (("lens", "Tea is a plant.", "-m", "sim:x?hel=-1.5"), 1, 50),
        (("lens", next(iter(demo_claims())), "-m", "sim:x?hel=-1.5"), 0, 50),
    ],
    ids=["run", "lens", "lens with documents"],
)
def test_a_measurement_is_followed_in_one_sitting(tmp_path, args, code, most):
    """From the command to the record a plain run goes through few files; add none that it needn't:
    what few runs use is imported, and asked, where it is used."""
    ended, files = flow(tmp_path, *args)
    assert ended == code
    assert {"cli/run.py", "measurement/runner.py", "store/samples.py"} <= set(files)
    assert len(files) <= most, files


def test_the_map_names_what_is_there():
    """Every room, file and module that `docs/architecture.md` names exists; no room is left out."""
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    rooms = dict(re.findall(r"^\| `([a-z_]+(?:/|\.py))` \| (.*) \|$", text, re.MULTILINE))
    there = {path.name for path in PACKAGE.iterdir() if path.suffix == ".py"}
    there |= {f"{path.name}/" for path in PACKAGE.iterdir() if path.is_dir()}
    there -= {"__init__.py", "__main__.py", "__pycache__/", "version.py"}
    assert rooms.keys() <= there
    assert [name for name in sorted(there) if f"`{name}`" not in text] == []
    for room, holds in rooms.items():
        for name in re.findall(r"`([a-z_]+)/?`", holds) if room.endswith("/") else ():
            path = PACKAGE / room / name
            assert path.is_dir() or path.with_suffix(".py").exists(), path
    named = set(re.findall(r"`([a-z_/]+\.(?:py|yaml)|[a-z_]+/[a-z_/]+/)`", text))
    assert {"cli/run.py", "measurement/service.py", "evidence/policies/default.yaml"} <= named
    assert [name for name in sorted(named) if not (PACKAGE / name).exists()] == []
