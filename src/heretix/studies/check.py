"""Expectations on beliefs, judged by intervals: each holds, fails, or can't be decided yet.

A belief is judged by `template_t`, a difference by `paired_template_t` over the wordings that both
sides have. An expectation that the interval doesn't decide is never called met.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from heretix.belief.student import paired_template_t, template_t
from heretix.config import check_claim
from heretix.core.errors import ConfigError, NoEstimateError
from heretix.core.lenses import RPL
from heretix.measurement.vector import logits_by_stem
from heretix.measurement.verify import read_artifacts
from heretix.studies.study import make_config, read_yaml

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from heretix.config import RunConfig
    from heretix.studies.study import Logits, StudyRun

Verdict = Literal["holds", "fails", "undecided", "no_estimate"]
Prob = Annotated[float, Field(ge=0, le=1)]
_RULES = ("at_least", "at_most", "between", "within", "agree")


class Expectation(BaseModel):
    """One expectation on a claim. Exactly one of its rules is given."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    claim: str
    at_least: Prob | None = None
    at_most: Prob | None = None
    between: list[Prob] | None = Field(default=None, min_length=2, max_length=2)
    within: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Distance that the belief may have from `of`."""
    of: Prob | str | None = None
    """The baseline: a number, or an artifact of the same claim, relative to the file."""
    agree: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Distance that any two models may have."""
    models: list[str] | None = None
    """Of the file's; all of them, unless given."""

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        given = [name for name in _RULES if getattr(self, name) is not None]
        if len(given) != 1:
            got = ", ".join(given) or "none"
            raise ValueError(f"one of {', '.join(_RULES)} must be given, got {got}")
        if (self.of is None) != (self.within is None):
            raise ValueError("`within` and `of` go together: how far, and from what")
        if self.between is not None and self.between[0] >= self.between[1]:
            raise ValueError(f"`between` must be [low, high], got {self.between}")
        return self


class CheckFile(BaseModel):
    """Expectations, the models they are about, and the plan they are measured with."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    models: list[str] = Field(min_length=1)
    plan: dict[str, Any] = Field(default_factory=lambda: {"preset": "wide"})
    """Keys of a configuration; 16 wordings with one answer each, unless given."""
    checks: list[Expectation] = Field(min_length=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Result of an expectation, for one model, or for a pair that should agree."""

    claim: str
    models: tuple[str, ...]
    rule: str
    """In words: `p ≥ 0.9`."""
    about: Literal["belief", "difference"]
    verdict: Verdict
    value: float | None
    """The belief or difference that the rule is about."""
    lo: float | None
    hi: float | None


@dataclass(frozen=True, slots=True)
class Checks:
    """A file of expectations, ready to be measured."""

    config: RunConfig
    expectations: tuple[Expectation, ...]
    baselines: Mapping[str, Logits]
    """Of artifacts that expectations name, by name and claim."""

    @property
    def claims(self) -> list[str]:
        """The claims to measure, each once."""
        return list(dict.fromkeys(check_claim(one.claim) for one in self.expectations))


def read_checks(path: str | Path) -> Checks:
    """Read a file of expectations and the baselines it names. Mistakes are told with their line."""
    path = Path(path)
    declared = read_yaml(path, CheckFile, inner=list(Expectation.model_fields))
    known = set(declared.models)
    for expected in declared.checks:
        if strangers := [name for name in expected.models or () if name not in known]:
            raise ConfigError(
                f"`models` of {expected.claim!r} must be among the file's, got {strangers[0]!r}"
            )
        if expected.agree is not None and len(expected.models or declared.models) < 2:
            raise ConfigError(f"`agree` needs at least 2 models for {expected.claim!r}; name them")
    config = make_config(declared.plan, declared.models, source=str(path))
    baselines = {
        f"{expected.of}|{expected.claim.strip()}": _read_baseline(path, expected)
        for expected in declared.checks
        if isinstance(expected.of, str)
    }
    return Checks(config, tuple(declared.checks), baselines)


def _read_baseline(path: Path, expected: Expectation) -> Logits:
    artifacts = read_artifacts(path.parent / str(expected.of))
    runs = [run for artifact in artifacts for run in artifact.runs]
    own = [run for run in runs if run.claim == expected.claim.strip() and run.lens == RPL]
    if len(own) != 1:
        raise ConfigError(
            f"`of` {expected.of} must hold one raw prior of {expected.claim!r}, got {len(own)}; "
            "write it with `heretix run … --out`"
        )
    return logits_by_stem(own[0])


def judge(checks: Checks, names: Mapping[str, str], runs: Sequence[StudyRun]) -> list[Finding]:
    """Judge every expectation by what was measured; `names` leads from a model to its identity."""
    measured = {(run.claim, run.model): run.logits for run in runs if run.prob_true is not None}
    found = []
    for expected in checks.expectations:
        claim = expected.claim.strip()
        models = [names[name] for name in expected.models or checks.config.models or ()]
        groups = (
            itertools.combinations(models, 2) if expected.agree else ((name,) for name in models)
        )
        for group in groups:
            sides = [measured.get((claim, model)) for model in group]
            found.append(_judge_one(expected, group, sides, checks.baselines))
    return found


def _judge_one(
    expected: Expectation,
    models: tuple[str, ...],
    sides: Sequence[Logits | None],
    baselines: Mapping[str, Logits],
) -> Finding:
    claim = expected.claim.strip()
    known = [side for side in sides if side is not None]
    low, high, words = _bounds(expected)
    value = lo = hi = None
    verdict: Verdict = "no_estimate"
    if len(known) == len(sides):
        try:
            value, lo, hi = _interval(expected, known, baselines.get(f"{expected.of}|{claim}"))
        except NoEstimateError:
            pass
        else:
            verdict = decide(lo, hi, low, high)
    return Finding(
        claim=claim,
        models=models,
        rule=words,
        about="belief" if expected.within is None and expected.agree is None else "difference",
        verdict=verdict,
        value=value,
        lo=lo,
        hi=hi,
    )


def decide(lo: float, hi: float, low: float, high: float) -> Verdict:
    """Hold an interval against the range that is allowed: inside, outside, or across an end."""
    if low <= lo and hi <= high:
        return "holds"
    return "fails" if hi < low or lo > high else "undecided"


def _bounds(expected: Expectation) -> tuple[float, float, str]:
    if expected.at_least is not None:
        return expected.at_least, 1.0, f"p ≥ {expected.at_least:g}"
    if expected.at_most is not None:
        return 0.0, expected.at_most, f"p ≤ {expected.at_most:g}"
    if expected.between is not None:
        low, high = expected.between
        return low, high, f"{low:g} ≤ p ≤ {high:g}"
    if expected.within is not None:
        return -expected.within, expected.within, f"within {expected.within:g} of {expected.of}"
    assert expected.agree is not None
    return -expected.agree, expected.agree, f"models within {expected.agree:g} of each other"


def _interval(
    expected: Expectation, sides: Sequence[Logits], baseline: Logits | None
) -> tuple[float, float, float]:
    """The belief with its interval, or the difference that the rule is about with its own."""
    if expected.agree is not None or baseline is not None:
        a, b = sides if baseline is None else (baseline, sides[0])
        found = paired_template_t(a, b).diff_prob
        return found.value, found.lo, found.hi
    belief = template_t(sides[0])
    off = float(expected.of) if expected.within is not None and expected.of is not None else 0.0
    return belief.prob_true - off, belief.ci_lo - off, belief.ci_hi - off
