"""The widest distance between two lenses, in probability."""

import numpy as np

from heretix.belief.estimator import interval
from heretix.belief.metrics import BeliefVector, Metric


def spread(vector: BeliefVector) -> Metric | None:
    """A number with its 95% interval; None where it doesn't apply."""
    if len(vector.probs) < 3:
        return None
    probs = vector.probs.values()
    lo, hi = interval(np.ptp(np.stack(list(vector.prob_replicas.values())), axis=0))
    return Metric(value=max(probs) - min(probs), lo=lo, hi=hi)
