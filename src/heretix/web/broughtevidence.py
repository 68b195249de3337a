"""Evidence as somebody brings it to a page: typed or uploaded, made into a bundle."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from heretix.economy.exhibit import MAX_ITEMS, arrange, objection
from heretix.errors import ConfigError
from heretix.evidence.bundle import Bundle
from heretix.evidence.extraction import make_document, stated_fields
from heretix.evidence.reading import clean_text
from heretix.evidence.retrieval import retrieve_provided
from heretix.measurement.execution import utc_now
from heretix.web.moneytext import amount_of

if TYPE_CHECKING:
    from starlette.datastructures import FormData, UploadFile

    from heretix.economy.exhibit import Exhibit
    from heretix.evidence.document import Document

__all__ = ["Brought", "EvidenceForm", "uploaded_text"]

TYPED: Final = 3
_MAX_CHARS: Final = 200_000
_MAX_TITLE: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """A bundle that can be brought, and what models will be shown of it."""

    bundle: Bundle
    exhibit: Exhibit


@dataclass(slots=True, kw_only=True)
class EvidenceForm:
    """The fields as they were sent; a mistake is shown beside them."""

    direction: str = "up"
    stake: str = ""
    typed: list[tuple[str, str]] = field(default_factory=list)
    """Titles and texts."""
    uploaded: list[tuple[str, str]] = field(default_factory=list)

    @classmethod
    async def sent(cls, data: FormData) -> EvidenceForm:
        """The form as somebody sent it, with the files read."""
        form = cls(direction=_text(data, "direction"), stake=_text(data, "stake"))
        titles, texts = data.getlist("doc_title"), data.getlist("doc_text")
        form.typed = [
            (str(title)[:_MAX_TITLE], str(text)) for title, text in zip(titles, texts, strict=False)
        ]
        for part in data.getlist("files"):
            if not isinstance(part, str) and part.filename:
                title = PurePosixPath(part.filename.replace("\\", "/")).stem[:_MAX_TITLE]
                form.uploaded.append((title, await uploaded_text(part)))
        return form.padded()

    def padded(self) -> EvidenceForm:
        """With room for some documents."""
        self.typed += [("", "")] * (TYPED - len(self.typed))
        return self

    def amount(self, least: int, currency: str) -> int:
        """The stake; without one, the least that is asked."""
        return amount_of("stake", self.stake, currency) if self.stake.strip() else least

    def bring(self, claim: str) -> Brought:
        """The bundle of the documents, if it can be brought."""
        given = [(title, text) for title, text in self.typed if text.strip()] + self.uploaded
        if not given:
            raise ConfigError("`documents` is empty: write or upload at least one")
        if len(given) > MAX_ITEMS:
            raise ConfigError(f"`documents` may be {MAX_ITEMS} at most, got {len(given)}")
        documents: dict[str, Document] = {}
        for number, (title, text) in enumerate(given, 1):
            made = _document(title.strip() or f"Document {number}", text)
            documents.setdefault(made.doc_id, made)
        found = retrieve_provided(claim, list(documents.values()))["SEL"]
        if not isinstance(found, Bundle):
            raise found
        refused = objection(found, claim)
        if refused is not None:
            raise ConfigError(f"`documents` can't be brought: {refused}")
        shown = arrange([found])
        if not shown.items:
            why = "; ".join(f"{item.item}: {item.reason}" for item in shown.left_out)
            raise ConfigError(f"`documents` hold nothing that can be shown ({why}); bring others")
        return Brought(bundle=found, exhibit=shown)


async def uploaded_text(part: UploadFile) -> str:
    """The text of an uploaded file; what isn't text is refused."""
    try:
        return (await part.read()).decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise ConfigError(
            f"`{(part.filename or 'file')[:100]}` must be plain text in UTF-8; "
            "save it as .txt or .md, or paste the passage that matters"
        ) from exc


def _document(title: str, text: str) -> Document:
    readable = clean_text(text[: _MAX_CHARS + 1])
    if not readable:
        raise ConfigError(f"`{title}` must hold some readable text")
    if len(text) > _MAX_CHARS:
        raise ConfigError(f"`{title}` may have {_MAX_CHARS:,} characters; bring what matters")
    stated = {"title": title, "text": text, "url": None, "published": None}
    found = stated_fields(stated, text=readable)
    return make_document(found, raw=readable.encode(), url=None, retrieved_at=utc_now())


def _text(data: FormData, name: str) -> str:
    value = data.get(name)
    return value[:100] if isinstance(value, str) else ""
