"""A small corpus of the project's own writing, so that lenses show something on a fresh machine.
The documents argue for and against four claims, as established and as dissenting sources would.
They are marked as demonstrations, their sites are made up, and one of them tries an injection."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import yaml

from heretix.evidence.sources.extract import extract, make_document

if TYPE_CHECKING:
    from collections.abc import Iterator

    from heretix.evidence.document import Document

__all__ = ["DEMO_CORPUS", "DEMO_POLICY", "demo_claims", "demo_documents"]

DEMO_CORPUS: Final = "demo"
_HERE: Final = Path(__file__).parent
DEMO_POLICY: Final = _HERE / "policy.yaml"
"""The policy that knows the made-up sites; it extends the default one."""

_WRITTEN_AT: Final = "2026-11-15T00:00:00Z"


def demo_claims() -> list[str]:
    """The claims that the documents are about: two true, one false, one contested."""
    return list(_claims_by_id().values())


def demo_documents() -> Iterator[Document]:
    """The documents, always in one order; each declares its stance on its claim."""
    claims = _claims_by_id()
    for path in sorted((_HERE / "documents").glob("*.md")):
        data = path.read_bytes()
        found = extract(data, name=path.name, media_type="text/markdown")
        meta = {"stance_on": claims[found.meta["claim"]]}
        yield make_document(found, raw=data, url=found.url, retrieved_at=_WRITTEN_AT, meta=meta)


def _claims_by_id() -> dict[str, str]:
    entries = yaml.safe_load((_HERE / "claims.yaml").read_text(encoding="utf-8"))
    return {entry["id"]: entry["claim"] for entry in entries}
