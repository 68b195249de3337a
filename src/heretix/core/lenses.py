"""Lenses: one record each. Everything that knows a lens asks it here.

A lens changes what the model is shown, never how its belief is measured. A new one is a record
below, its code in `LensCode`, and a clause in the packaged frame.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

LensCode = Literal["RPL", "NUL", "MEL", "HEL", "SEL"]

RPL: Final = "RPL"
NUL: Final = "NUL"
MEL: Final = "MEL"
HEL: Final = "HEL"
SEL: Final = "SEL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a bundle: how much it may hold, and how little."""

    __pydantic_config__: ClassVar = {"extra": "forbid", "strict": True}

    k: int = 8
    chars_per_item: int = 600
    per_publisher: int | None = 2
    min_items: int = 3
    floor: float | None = None
    """Reliability below which documents are dropped."""
    exact: bool = False
    """The documents are the user's own choice: nothing is filtered, collapsed or reordered."""

    def __post_init__(self) -> None:
        for name in ("k", "chars_per_item", "min_items"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 1, got {getattr(self, name)}")
        if self.per_publisher is not None and self.per_publisher < 1:
            raise ValueError(f"`per_publisher` must be at least 1, got {self.per_publisher}")
        if self.floor is not None and not 0.0 <= self.floor <= 1.0:
            raise ValueError(f"`floor` must be from 0 to 1, got {self.floor}")

    @property
    def chars(self) -> int:
        """The one budget of characters."""
        return self.k * self.chars_per_item


@dataclass(frozen=True, slots=True, kw_only=True)
class Lens:
    """Lenses: what a model is shown, and how that is named and drawn."""

    code: LensCode
    name: str
    label: str
    """The name in a chart, where there is little room."""
    question: str
    shows: str
    """As a choice in a form."""
    about: str
    """A sentence for those who read how it works."""
    colour: str
    colour_dark: str
    style: str
    """Of text on a terminal."""
    shape: str
    """Of its mark in a chart: colour alone tells nothing in black and white."""
    framed: bool = True
    """The prompt has the frame that documents stand in."""
    admits: frozenset[str] = frozenset()
    """Source classes whose documents it shows; without any it shows no documents."""
    on_request: frozenset[str] = frozenset()
    """Source classes that it admits only when they are asked for."""
    searched: bool = False
    """Its documents are searched for; those of others are given by the user."""
    earns: bool = False
    """A belief that it moves earns exploration rewards."""
    limits: Limits = field(default_factory=Limits)

    @property
    def needs_documents(self) -> bool:
        """Without documents it has nothing to show, and so no number."""
        return bool(self.admits)

    @property
    def hollow(self) -> bool:
        """Drawn hollow: a control, the frame with nothing in it."""
        return self.framed and not self.admits


_ALL: Final = (
    Lens(
        code=RPL,
        name="raw prior",
        label="no evidence",
        question="what does it believe before looking?",
        shows="nothing: the raw prior",
        about="Nothing. The raw prior: what the model brings along.",
        colour="#20272f",
        colour_dark="#f0f2f5",
        style="cyan",
        shape="circle",
        framed=False,
    ),
    Lens(
        code=NUL,
        name="frame, no documents",
        label="frame, no documents",
        question="what does the wrapper alone do?",
        shows="the frame of the others, with no documents: a control",
        about="The frame that documents come in, with no documents. What the frame does by itself "
        "is told apart this way.",
        colour="#6d7781",
        colour_dark="#9ba5b0",
        style="dim",
        shape="circle",
    ),
    Lens(
        code=MEL,
        name="mainstream evidence",
        label="mainstream",
        question="what do the established sources do to the belief?",
        shows="documents from mainstream sources",
        about="Documents from sources of record.",
        colour="#0069a8",
        colour_dark="#5cb5ec",
        style="blue",
        shape="square",
        admits=frozenset({"canonical"}),
        searched=True,
    ),
    Lens(
        code=HEL,
        name="heterodox evidence",
        label="heterodox",
        question="what do the others do?",
        shows="documents from heterodox sources",
        about="Documents from outside the canon: heterodox or contested sources.",
        colour="#c84e00",
        colour_dark="#ff9550",
        style="magenta",
        shape="diamond",
        admits=frozenset({"heterodox", "contested"}),
        on_request=frozenset({"unknown", "flagged"}),
        searched=True,
        earns=True,
        # A dated text with nothing else in it that could be checked stays just below the floor.
        limits=Limits(floor=0.02),
    ),
    Lens(
        code=SEL,
        name="sandbox evidence",
        label="your documents",
        question="what follows from this bundle alone?",
        shows="the documents you give",
        about="Documents of your own.",
        colour="#00805c",
        colour_dark="#35c89c",
        style="green",
        shape="cross",
        admits=frozenset({"provided"}),
        earns=True,
        limits=Limits(per_publisher=None, min_items=1, exact=True),
    ),
)

LENSES: Final[Mapping[str, Lens]] = MappingProxyType({lens.code: lens for lens in _ALL})
"""By code, in the order of every list and table."""
SHOWING: Final = tuple(lens.code for lens in _ALL if lens.needs_documents)
SHOWN_AS: Final = rf"^({'|'.join(SHOWING)})(@[0-9a-f]{{64}})?$"
"""Pattern of the documents of an episode: a lens, or a bundle shown in a lens's frame."""
SEARCHED: Final = tuple(lens.code for lens in _ALL if lens.searched)
EARNING: Final = tuple(lens.code for lens in _ALL if lens.earns)
WITHOUT_FILES: Final = tuple(lens.code for lens in _ALL if lens.searched or not lens.admits)
"""Lenses that can be measured when the user gives no documents."""
