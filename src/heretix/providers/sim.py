"""A simulated model whose beliefs are known: planted, so that a measurement can be checked.

In log-odds, an answer is the planted prior, plus what the frame does, plus what the lens's evidence
does, plus an effect of the wording that all lenses share, plus the wording's own response to the
evidence, plus noise. `sim:NAME?prior=0.7&hel=-1.2` plants a prior of 0.7 that heterodox evidence
moves down by 1.2. Any text moves it as far, unless `any_text=0` says that only text on the claim
does. In the waves of a panel noise is drawn anew, and `drift=0.6&since=5` moves the belief from
wave 5 on.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from dataclasses import dataclass, fields, replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Final, Self

from heretix.belief.logodds import logit, sigmoid
from heretix.core.canonical import normal, uniform
from heretix.core.errors import ModelError
from heretix.core.lenses import LENSES
from heretix.providers.base import Opening, Provider, Reply, Request
from heretix.readouts import SAMPLED, TRUTH_TOKEN, Logprob, dump_logprobs

if TYPE_CHECKING:
    from collections.abc import Iterator

_ITEM: Final = re.compile(r"<<(E\d+) ([0-9a-f]+)>>\n(.*?)\n<<END \2>>", re.DOTALL)
_QUOTE_WORDS: Final = 12
WAVE_VARIABLE: Final = "HERETIX_SIM_WAVE"
"""In the environment that a simulated model is opened with: the wave it answers in."""
_WORD: Final = re.compile(r"[^\W\d_]{4,}")
_SHARED_WORDS: Final = 0.25
"""Part of the claim's words that a document on it has at least."""
_NEITHER: Final = 0.01
"""Probability that a simulated judge says neither "True" nor "False"."""
_STEPS, _STEP_SD = 80, 0.05
"""Grid of a distribution: 4 standard deviations to each side, which leaves out 0.005%."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """Belief of a simulated model, and the scatter of its answers. Shifts are in log-odds."""

    prior: float = 0.7
    wrapper: float = 0.0
    """Effect of the frame alone."""
    mel: float = 0.5
    hel: float = -1.0
    sel: float = -0.5
    any_text: float = 1.0
    """Part of a lens's shift that text about something else gives."""
    template_sd: float = 0.4
    response_sd: float = 0.15
    """Deviation between wordings' responses to the same evidence."""
    noise_sd: float = 0.2
    drift: float = 0.0
    """Shift of the belief from wave `since` of a panel on."""
    since: float = 1.0
    drifting: float = 1.0
    """Share of claims that shift; a claim's text decides whether it is one."""
    renamed: float = math.inf
    """The wave from which another build is said to answer."""

    def center(self, lens: str, *, on_subject: bool = True) -> float:
        """The planted belief under a lens, in log-odds."""
        shift = getattr(self, lens.lower(), 0.0) if LENSES[lens].needs_documents else 0.0
        shift *= 1.0 if on_subject else self.any_text
        return logit(self.prior) + shift + (self.wrapper if LENSES[lens].framed else 0.0)

    def prob(self, lens: str) -> float:
        """The planted belief under a lens."""
        return sigmoid(self.center(lens))


class SimProvider:
    """Answers as planted."""

    max_concurrency: int = 256

    def __init__(self, name: str, *, wave: int = 0) -> None:
        self._name, _, query = name.partition("?")
        self._wave = wave
        self.planted = _parse(name, query)

    @classmethod
    def open(cls, opening: Opening) -> Self:
        return cls(opening.model.name, wave=int(opening.settings.env.get(WAVE_VARIABLE, 0)))

    def is_drifting(self, claim: str) -> bool:
        """Tell whether the planted drift is in this claim."""
        return uniform("drifting", self._name, claim) < self.planted.drifting

    async def ask(self, request: Request) -> Reply:
        """Draw an answer; with documents, name one and quote it. Or tell how likely each is."""
        if request.readout != SAMPLED:
            return self._reply(request, dump_logprobs(request.readout, self._logprobs(request)))
        answer: dict[str, object] = {"prob_true": self._prob(request)}
        if LENSES[request.lens].framed:
            shown = _ITEM.findall(request.user)[:1]
            answer["used"] = [name for name, _, _ in shown]
            answer["quotes"] = [
                {"id": name, "text": " ".join(text.split()[:_QUOTE_WORDS])}
                for name, _, text in shown
            ]
        return self._reply(request, json.dumps(answer, ensure_ascii=False))

    def _reply(self, request: Request, text: str) -> Reply:
        return Reply(
            text=text,
            provider_model_id=self._name + "-next" * (self._wave >= self.planted.renamed),
            tokens_in=math.ceil((len(request.system) + len(request.user)) / 4),
            tokens_out=math.ceil(len(text) / 4) if request.readout == SAMPLED else 1,
            temperature=request.temperature,
        )

    async def aclose(self) -> None:
        """Do nothing: nothing is held."""

    def _logprobs(self, request: Request) -> Iterator[Logprob]:
        """The planted belief of a wording itself, or the distribution of its drawn answers."""
        log_odds = self._wording(request)
        if request.readout == TRUTH_TOKEN:
            for word, prob in (("True", sigmoid(log_odds)), ("False", sigmoid(-log_odds))):
                yield Logprob(word, math.log(prob * (1 - _NEITHER)))
            yield Logprob("The", math.log(_NEITHER))
            return
        noise = NormalDist()
        masses: defaultdict[str, float] = defaultdict(float)
        for step in range(-_STEPS, _STEPS + 1):
            z, half = step * _STEP_SD, _STEP_SD / 2
            answer = round(sigmoid(log_odds + self.planted.noise_sd * z), 6)
            masses[repr(answer)] += noise.cdf(z + half) - noise.cdf(z - half)
        for text, mass in masses.items():
            yield Logprob(text, math.log(mass))

    def _prob(self, request: Request) -> float:
        wave = (self._wave,) if self._wave else ()
        noise = normal("noise", *self._stem(request), request.lens, request.seed, *wave)
        return round(sigmoid(self._wording(request) + self.planted.noise_sd * noise), 6)

    def _stem(self, request: Request) -> tuple[str, str, int]:
        return self._name, request.claim, request.paraphrase_idx

    def _wording(self, request: Request) -> float:
        """Log-odds of a wording, about which its answers scatter."""
        planted, lens, stem = self.planted, request.lens, self._stem(request)
        on_subject = planted.any_text == 1 or _is_on_subject(request.claim, request.user)
        log_odds = planted.center(lens, on_subject=on_subject)
        log_odds += planted.template_sd * normal("stem", *stem)
        if LENSES[lens].framed:
            log_odds += planted.response_sd * normal("response", *stem, lens)
        if self._wave >= planted.since and self.is_drifting(request.claim):
            log_odds += planted.drift
        return log_odds


if TYPE_CHECKING:
    _conforms: Provider = SimProvider("x")


def _is_on_subject(claim: str, shown: str) -> bool:
    """Tell documents on the claim by the words that they share with it.

    Of the packaged ones, those on a claim have .29 or more of its longer words, others .14 at most.
    """
    about = set(_WORD.findall(claim.lower()))
    needed = _SHARED_WORDS * len(about)
    texts = [text.lower() for _, _, text in _ITEM.findall(shown)]
    return any(len(about & set(_WORD.findall(text))) >= needed for text in texts)


def _parse(name: str, query: str) -> Planted:
    known = {field.name for field in fields(Planted)}
    planted = Planted()
    for part in filter(None, query.split("&")):
        key, _, text = part.partition("=")
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if key not in known or not math.isfinite(value):
            raise ModelError(
                f"`sim:{name}`: {part!r} isn't a setting; write one of {', '.join(sorted(known))}, "
                "then = and a number, with & between: hel=-1.5&mel=0.3"
            )
        planted = replace(planted, **{key: value})
    if not 0 < planted.prior < 1:
        raise ModelError(f"`sim:{name}`: `prior` must lie between 0 and 1, got {planted.prior}")
    for sd in ("template_sd", "response_sd", "noise_sd"):
        if (value := getattr(planted, sd)) < 0:
            raise ModelError(f"`sim:{name}`: `{sd}` must be at least 0, got {value}")
    return planted
