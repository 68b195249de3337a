"""When a measurement is precise enough, and what the next larger one is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from heretix.belief.estimator import is_stable_width

if TYPE_CHECKING:
    from heretix.plan import Precision

__all__ = ["Shape", "next_shape", "unmet_gates"]

_SLOTS_A_TEMPLATE: Final = 3
"""More than this many slots of a template become more replicates of each."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a plan."""

    K: int
    R: int
    T: int

    @property
    def N(self) -> int:
        """Attempts."""
        return self.K * self.R


def next_shape(shape: Shape, templates: int) -> Shape:
    """The next larger plan: more templates, then more slots, then more replicates."""
    slots = -(-shape.K // shape.T)
    if templates > shape.T:
        T = min(templates, 2 * shape.T)
        return Shape(K=T * slots, R=shape.R, T=T)
    if slots < _SLOTS_A_TEMPLATE:
        return Shape(K=shape.T * (slots + 1), R=shape.R, T=shape.T)
    return Shape(K=shape.K, R=shape.R + 1, T=shape.T)


def unmet_gates(rule: Precision, ci_width: float | None, compliance: float) -> tuple[str, ...]:
    """The gates that a result doesn't pass; without an estimate there is nothing to pass with."""
    if ci_width is None:
        return ("estimate",)
    gates = (
        ("ci_width", ci_width <= rule.until_width),
        ("is_stable", is_stable_width(ci_width)),
        ("rpl_compliance_rate", compliance >= rule.min_compliance),
    )
    return tuple(name for name, passed in gates if not passed)
