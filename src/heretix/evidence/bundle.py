"""Bundles: the evidence of one lens, frozen and content-addressed, in memory and in files. A bundle
holds what a model is shown and where every word of it came from, and says of everything left out
why. Its id is the SHA-256 of its canonical JSON: with one digit changed, it is another."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import date
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from heretix.core.canonical import sha256_json, sha256_text
from heretix.core.errors import InsufficientEvidenceError, RecordError
from heretix.core.lenses import Limits  # noqa: TC001 - pydantic looks it up
from heretix.core.validation import explain, make_adapter
from heretix.evidence.policy.policy import SourceClass  # noqa: TC001 - pydantic looks it up
from heretix.evidence.text.fold import fold

if TYPE_CHECKING:
    from pydantic import ConfigDict

BUNDLE_SCHEMA: Final = "heretix-bundle/2"
_STRICT: Final[ConfigDict] = {"extra": "forbid", "strict": True}
"""For pydantic: no value is bent into shape, since the id must come out as it went in."""


class Stance(StrEnum):
    """Stance of an item towards the claim. None in its place means that nobody has judged."""

    SUPPORTS = "supports"
    REFUTES = "refutes"
    NEUTRAL = "neutral"


class DropReason(StrEnum):
    """Reasons for leaving a document out, in the order in which they are looked for."""

    UNREAD = "unread"  # It was found, and its page couldn't be fetched or read
    OFF_TOPIC = "off_topic"
    WRONG_CLASS = "wrong_class"
    AFTER_AS_OF = "after_as_of"
    UNDATED = "undated"
    UNREADABLE = "unreadable"
    HOLDS_NONCE = "holds_nonce"
    INJECTION = "injection"
    BELOW_FLOOR = "below_floor"
    DUPLICATE = "duplicate"
    PUBLISHER_CAP = "publisher_cap"
    OVER_BUDGET = "over_budget"


_REMEDIES: Final = {
    DropReason.PUBLISHER_CAP: (
        "add documents of other publishers; a file names its own with `url` or `publisher`"
    ),
    DropReason.BELOW_FLOOR: (
        "`heretix evidence score FILE --explain` says what they lack; a judge may see more"
    ),
    DropReason.UNDATED: "give the documents dates, or leave `strict_dates` out",
    DropReason.WRONG_CLASS: (
        "add documents of sources that this lens admits, with their `url`, or widen the policy "
        "(`heretix policy explain URL`); HEL takes unknown sources with `evidence: {on_request: "
        "true}`"
    ),
    DropReason.OFF_TOPIC: (
        "they share too few words with the claim, and too little meaning: add documents about it, "
        "or write it in their words and language"
    ),
    DropReason.UNREAD: "see whether the pages can be fetched from here",
}
"""Remedies when a lens has too little, by the reason that documents were dropped for; those that
came furthest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One piece of evidence: a passage of a document, with where it came from."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    id: str  # `E01`, `E02`, …: what the model calls it
    doc_id: str
    url: str | None
    title: str
    publisher: str
    cls: SourceClass
    rule_id: str | None
    published: date | None
    published_method: str | None
    published_confidence: float | None
    retrieved_at: str
    text: str  # The passage, word for word as it stands in the document
    text_start: int
    text_end: int  # Place where the passage stands in the document's text
    quote: str
    quote_start: int
    quote_end: int  # Place where the quote stands in the passage
    raw_sha256: str
    document_sha256: str  # Of the document's whole text
    text_sha256: str
    quote_sha256: str
    reliability: Mapping[str, Any]  # `r` with its parts, as `Assessment.record` gives them
    stance: Stance | None
    n_copies: int  # Documents that this one stands for, itself included
    flags: tuple[str, ...]
    stance_by: str | None = None
    """Source of the stance: `declared`, or the judge. None where nobody has judged."""

    @property
    def shown_title(self) -> str:
        """The title as a model is shown it."""
        from heretix.evidence.text.injection import plain_text

        return plain_text(self.title)

    @property
    def shown_text(self) -> str:
        """The passage as a model is shown it."""
        from heretix.evidence.text.injection import plain_text

        return plain_text(self.text)

    def flaw(self) -> str | None:
        """Name what in the item contradicts itself, or None."""
        if sha256_text(self.text) != self.text_sha256:
            return "`text` isn't what `text_sha256` was taken of"
        if sha256_text(self.quote) != self.quote_sha256:
            return "`quote` isn't what `quote_sha256` was taken of"
        if len(self.text) != self.text_end - self.text_start:
            return "`text` isn't as long as `text_start` and `text_end` say"
        if not 0 <= self.quote_start < self.quote_end <= len(self.text):
            return "`quote_start` and `quote_end` don't lie in `text`"
        if fold(self.text[self.quote_start : self.quote_end]) != fold(self.quote):
            return "`quote` doesn't stand in `text` where the item says"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """A document that was found and isn't in the bundle."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    doc_id: str
    url: str | None
    title: str
    publisher: str
    cls: SourceClass
    reason: DropReason
    params: Mapping[str, Any]  # Parameters of the reason's sentence: JSON values, by name


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """Documents that a lens lacks to be measured, and what kept others out."""

    lens: str
    needed: int
    got: int
    dropped: Mapping[DropReason, int]  # Number of documents found and left out, by reason
    as_of: date | None
    exact: bool = False  # The documents were the user's own choice

    @property
    def remedy(self) -> str:
        """Advice by what nearly got in."""
        if self.exact:
            return "give documents that can be read"
        # What nearly got in says most about what is wanting.
        nearest = (remedy for reason, remedy in _REMEDIES.items() if self.dropped.get(reason))
        return next(nearest, "add documents about the claim")

    def __str__(self) -> str:
        listed = ", ".join(f"{count} {reason}" for reason, count in sorted(self.dropped.items()))
        # A search is told of the day, so that what is later isn't among what was dropped.
        found = f"dropped: {listed}" if listed else "nothing was found"
        searched = f"{found}, up to {self.as_of}" if self.as_of else found
        return (
            f"`insufficient_evidence`: {self.lens} needs at least {self.needed} "
            f"{'item' if self.needed == 1 else 'items'}, got {self.got} ({searched}); {self.remedy}"
        )

    def to_json(self) -> dict[str, Any]:
        """The shortfall as JSON values."""
        return dict(_json_value(self))

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Shortfall:
        """Read what `to_json` gave."""
        found: Shortfall = make_adapter(cls).validate_python(value)  # type: ignore[arg-type]
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRef:
    """The policy that decided; nothing where the user chose the documents."""

    version: str | None
    sha256: str | None


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """The evidence of one lens for one claim."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    claim: str
    lens: str
    as_of: date | None
    strict_dates: bool
    policy: PolicyRef
    queries: Mapping[str, str]  # The queries that found the documents, by name
    limits: Limits
    items: tuple[Item, ...]
    dropped: tuple[Dropped, ...]

    @cached_property
    def bundle_id(self) -> str:
        """SHA-256 of the canonical JSON of everything else."""
        return sha256_json(self._content())

    @cached_property
    def shown_sha256(self) -> str:
        """SHA-256 of what models are shown, and in which order: equal for equal prompts."""
        return sha256_json([[item.id, item.shown_title, item.shown_text] for item in self.items])

    @property
    def publishers(self) -> dict[str, int]:
        """Items per publisher, copies counted once: what source concentration is computed from."""
        return dict(sorted(Counter(item.publisher for item in self.items).items()))

    @property
    def sufficient(self) -> bool:
        """Tell whether there is enough to measure with."""
        return len(self.items) >= self.limits.min_items

    def require_sufficient(self) -> None:
        """Raise `InsufficientEvidenceError` unless there is enough to measure with."""
        if not self.sufficient:
            raise InsufficientEvidenceError(str(self.shortfall), bundle=self)

    @property
    def shortfall(self) -> Shortfall:
        """Items had and needed; of interest where the bundle isn't `sufficient`."""
        reasons = Counter(dropped.reason for dropped in self.dropped)
        return Shortfall(
            lens=self.lens,
            needed=self.limits.min_items,
            got=len(self.items),
            dropped=dict(sorted(reasons.items())),
            as_of=self.as_of,
            exact=self.limits.exact,
        )

    def to_json(self) -> dict[str, Any]:
        """The bundle as JSON values, with its id."""
        return {"bundle_id": self.bundle_id, **self._content()}

    def _content(self) -> dict[str, Any]:
        return {"schema": BUNDLE_SCHEMA, **_json_value(self)}


def _json_value(value: object) -> Any:
    """`value` as JSON has it. A float without a fraction becomes an integer: some tools that pass
    JSON on write 1.0 as 1, and the id must not change with them. A `stance_by` that is None is left
    out: nobody has judged."""
    if is_dataclass(value):
        return _json_value({field.name: getattr(value, field.name) for field in fields(value)})
    if isinstance(value, date | StrEnum):
        return str(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, tuple | list):
        return [_json_value(part) for part in value]
    if isinstance(value, Mapping):
        kept = ((k, v) for k, v in value.items() if v is not None or k != "stance_by")
        return {str(key): _json_value(part) for key, part in kept}
    return value


def dump_bundle(bundle: Bundle) -> str:
    """The bundle as a file's text."""
    return json.dumps(bundle.to_json(), ensure_ascii=False, indent=2, allow_nan=False) + "\n"


def load_bundle(text: str, source: str = "the bundle") -> Bundle:
    """The bundle in a file's text; `source` is what messages call it."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise RecordError(
            f"`{source}` isn't JSON ({exc}); "
            "give a bundle that `heretix evidence build --out` wrote"
        ) from exc
    return read_bundle(value, source)


def bundle_in_file(ref: str) -> Bundle | None:
    """The bundle in the file that `ref` names; None where it can't be meant as a file's name."""
    path = Path(ref)
    if not (path.is_file() or ref.endswith(".json")):
        return None
    try:
        return load_bundle(path.read_text(encoding="utf-8"), ref)
    except OSError as exc:
        raise RecordError(f"`{ref}` can't be read: {exc.strerror or exc}") from exc
    except UnicodeDecodeError as exc:
        raise RecordError(
            f"`{ref}` isn't UTF-8 text; give a bundle that `heretix evidence build --out` wrote"
        ) from exc


def read_bundle(value: object, source: str = "the bundle") -> Bundle:
    """The bundle in JSON values; every hash and span is checked before a word is believed."""
    from pydantic import ValidationError

    if not isinstance(value, dict):
        raise RecordError(f"`{source}` isn't a bundle: it must be an object")
    content = dict(value)
    schema, stated = content.pop("schema", None), content.pop("bundle_id", None)
    if schema != BUNDLE_SCHEMA:
        raise RecordError(
            f"`{source}` isn't a bundle: `schema` must be {BUNDLE_SCHEMA!r}, got {schema!r}"
        )
    try:
        # Strict about types, and dates are text only in JSON.
        bundle: Bundle = make_adapter(Bundle).validate_json(json.dumps(content))
    except ValidationError as exc:
        raise RecordError(f"`{source}` isn't a bundle: {explain(exc.errors()[0])}") from exc
    for number, item in enumerate(bundle.items, start=1):
        flaw = item.flaw()
        if item.id != f"E{number:02d}":
            flaw = f"`id` must be E{number:02d}, got {item.id!r}"
        if flaw is not None:
            raise RecordError(f"`{source}` was changed: item {item.id}: {flaw}")
    if bundle.bundle_id != stated:
        raise RecordError(
            f"`{source}` was changed: `bundle_id` says {stated}, "
            f"its content gives {bundle.bundle_id}"
        )
    return bundle
