"""What an episode's models are shown: the lens's own documents, then what was brought and accepted.

Without documents there is still the frame of a lens (NUL), so that with and without evidence
differ in the evidence and in nothing else. The raw prior has no frame, and can't be a lens here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from heretix.economy.canon import require_sha256
from heretix.errors import ConfigError
from heretix.evidence.folding import fold
from heretix.evidence.injection import screen
from heretix.plan import Evidence
from heretix.prompts.frame import ShownItem, load_frame

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heretix.evidence.bundle import Bundle, Item

__all__ = ["EpisodeLens", "Exhibit", "LeftOut", "arrange", "objection", "read_lens"]

SHOWN_LENSES: Final = ("MEL", "HEL", "SEL")
MAX_ITEMS: Final = 8
MAX_ITEM_CHARS: Final = 600
MAX_TITLE_CHARS: Final = 300
"""What one bundle may bring. Evidence that drowns the rest in text is refused, not weighed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeLens:
    """The `lens` of an episode's terms: how documents are asked about, and which are there."""

    clause: str
    """MEL, HEL or SEL: the lens whose frame stands around the documents."""
    bundle_id: str | None = None
    """The documents that are shown from the start, if any."""

    def __str__(self) -> str:
        return f"{self.clause}@{self.bundle_id}" if self.bundle_id else self.clause


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A document of a bundle that models aren't shown."""

    bundle_id: str
    item: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhibit:
    """Documents in the order in which they are shown, and those that aren't."""

    items: tuple[ShownItem, ...]
    left_out: tuple[LeftOut, ...] = ()

    def evidence(self, lens: EpisodeLens, variant: str) -> Evidence:
        """The exhibit as a plan has it.

        `variant` names episode, stage and side. It stands in every sample's identity, so that no
        sample of another measurement can ever be taken for one of this.
        """
        return Evidence(
            lens=lens.clause if self.items else "NUL",
            frame=load_frame(),
            # Documents of several bundles: the record holds them in full instead.
            bundle_id=None,
            items=self.items,
            variant=variant,
        )


def read_lens(text: str) -> EpisodeLens:
    """The lens in an episode's terms: `HEL`, or `MEL@` and the id of a bundle."""
    clause, at, bundle_id = text.partition("@")
    clause = clause.upper()
    if clause not in SHOWN_LENSES:
        raise ConfigError(
            f"`lens` must be one of {', '.join(SHOWN_LENSES)}, got {text!r}; the raw prior shows "
            "nothing, so evidence could never be told from the frame it comes in"
        )
    if at:
        require_sha256("lens", bundle_id)
    return EpisodeLens(clause=clause, bundle_id=bundle_id or None)


def objection(bundle: Bundle, claim: str) -> str | None:
    """Why a bundle can't be brought as evidence on a claim, or None."""
    if bundle.claim != claim:
        return f"it was made for another claim: {bundle.claim!r}"
    if not bundle.items:
        return "it holds no document"
    if len(bundle.items) > MAX_ITEMS:
        return f"it may hold at most {MAX_ITEMS} documents, got {len(bundle.items)}"
    for name, most in (("text", MAX_ITEM_CHARS), ("title", MAX_TITLE_CHARS)):
        longest = max(len(getattr(item, name)) for item in bundle.items)
        if longest > most:
            return f"the {name} of a document may have at most {most} characters, got {longest}"
    return None


def arrange(bundles: Sequence[Bundle]) -> Exhibit:
    """The documents of several bundles as one exhibit, in order.

    A passage that was shown before is left out: saying it again isn't evidence. So is one that
    gives orders to its reader, whatever the bundle says of it.
    """
    shown: dict[str, ShownItem] = {}
    left_out: list[LeftOut] = []
    for bundle in bundles:
        for item in bundle.items:
            key = fold(item.shown_text).casefold()
            reason = _reason(item) or ("it was shown before" if key in shown else None)
            if reason is None:
                text = f"{item.shown_title}\n{item.shown_text}"
                shown[key] = ShownItem(f"E{len(shown) + 1:02d}", text)
            else:
                left_out.append(LeftOut(bundle_id=bundle.bundle_id, item=item.id, reason=reason))
    return Exhibit(items=tuple(shown.values()), left_out=tuple(left_out))


def _reason(item: Item) -> str | None:
    # A bundle is its maker's own word: flags in it may have been left off, so the text is read.
    kinds = {flag.kind.value for flag in (*screen(item.title), *screen(item.text))}
    kinds |= {flag.removeprefix("injection:") for flag in item.flags if "injection:" in flag}
    return f"it looks like an instruction: {', '.join(sorted(kinds))}" if kinds else None
