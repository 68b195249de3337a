"""Heretix measures what AI models believe.

    import heretix

    belief = heretix.measure("Coffee beans are seeds.", model="mock:gpt-5")
    belief.prob, belief.ci, belief.stability

Names are loaded when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from heretix.version import VERSION

if TYPE_CHECKING:
    from heretix.api import (
        Belief,
        BeliefDifference,
        Beliefs,
        BeliefVector,
        Panel,
        Study,
        compare,
        frame,
        load,
        measure,
        measure_async,
        measure_many,
        panel,
        resume,
        study,
    )
    from heretix.core.errors import (
        HeretixError,
        InsufficientEvidenceError,
        NoEstimateError,
        ProviderError,
        StoreError,
        UsageError,
    )
    from heretix.measurement.record import Artifact, RunRecord
    from heretix.measurement.verify import Verification, verify_run

__all__ = [
    "Artifact",
    "Belief",
    "BeliefDifference",
    "BeliefVector",
    "Beliefs",
    "HeretixError",
    "InsufficientEvidenceError",
    "NoEstimateError",
    "Panel",
    "ProviderError",
    "RunRecord",
    "StoreError",
    "Study",
    "UsageError",
    "Verification",
    "__version__",
    "compare",
    "frame",
    "load",
    "measure",
    "measure_async",
    "measure_many",
    "panel",
    "resume",
    "study",
    "verify_run",
]

__version__ = VERSION

_HOMES = {
    "Artifact": "heretix.measurement.record",
    "Belief": "heretix.api",
    "BeliefDifference": "heretix.api",
    "BeliefVector": "heretix.api",
    "Beliefs": "heretix.api",
    "HeretixError": "heretix.core.errors",
    "InsufficientEvidenceError": "heretix.core.errors",
    "NoEstimateError": "heretix.core.errors",
    "Panel": "heretix.api",
    "ProviderError": "heretix.core.errors",
    "RunRecord": "heretix.measurement.record",
    "StoreError": "heretix.core.errors",
    "Study": "heretix.api",
    "UsageError": "heretix.core.errors",
    "Verification": "heretix.measurement.verify",
    "compare": "heretix.api",
    "frame": "heretix.api",
    "load": "heretix.api",
    "measure": "heretix.api",
    "measure_async": "heretix.api",
    "measure_many": "heretix.api",
    "panel": "heretix.api",
    "resume": "heretix.api",
    "study": "heretix.api",
    "verify_run": "heretix.measurement.verify",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'heretix' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
