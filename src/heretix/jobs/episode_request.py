"""What an operator may have measured of an episode: one move, as a job keeps it.

It says what the move was begun for, so that whoever takes the job up knows when that is done.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from heretix.jobs.request import short_claim
from heretix.plan import canonical_json

__all__ = ["EpisodeRequest", "Move"]

Move = Literal["draft", "judge", "measure", "rule"]


class EpisodeRequest(BaseModel):
    """One move of an episode that has to be measured."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    kind: Literal["episode"] = "episode"
    move: Move
    claim: str
    models: tuple[str, ...] = Field(strict=False)
    """Who is asked."""
    episode: str | None = None
    """None: a draft, which is written down when its belief was measured."""
    proposal: dict[str, Any] | None = None
    """Of a draft: the terms to be."""
    opens: bool = False
    """The draft is opened at once."""
    stage: str | None = None
    """`first` or `second` measurement of the judges, `round:N` of a dispute; None: nothing of it
    is to be told apart, or there is nothing to measure for."""
    final: bool = False
    """Models that can't be reached count as missing, for good."""
    confirmed: bool | None = None
    """Whether the ground of a dispute was right; None: a recomputation says."""

    @property
    def canonical(self) -> str:
        """The request as text, the same for equal requests."""
        return canonical_json(self.model_dump(mode="json"))

    @property
    def doing(self) -> str:
        """What is done, in a few words."""
        if self.move == "measure" and self.stage is None:
            return "Concluding without measurement"
        return {
            "draft": "Measuring what the models believe now",
            "judge": "Judging challenges",
            "measure": f"The {self.stage} measurement of the judges",
            "rule": "The larger panel measures",
        }[self.move]

    @property
    def title(self) -> str:
        """A few words to call it by."""
        return f"{self.doing}: {short_claim(self.claim)}"
