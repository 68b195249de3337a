"""The form of a new episode: from what somebody typed to a proposal, and back."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from heretix.economy.exhibit import SHOWN_LENSES, EpisodeLens
from heretix.economy.parameters import Parameters
from heretix.economy.proposal import PRACTICE_JUDGES, PRACTICE_MODELS, Proposal
from heretix.errors import ConfigError
from heretix.providers.catalog import parse_model
from heretix.web.moneytext import amount_of, duration_ms

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.datastructures import FormData, QueryParams

__all__ = ["EpisodeForm"]

DEFAULTS: Final[Mapping[str, str]] = {
    "claim": "",
    "models": "",
    "judge_pool": "",
    "lens": "HEL",
    "bundle": "",
    "K": "16",
    "R": "2",
    "T": "16",
    "B": "5000",
    "judges": "5",
    "seed_stake": "1000",
    "base_rate": "50",
    "begin_after": "0s",
    "challenge_for": "7d",
    "candle": "1d",
    "reveal_for": "1d",
    "durability": "7d",
    "dispute_for": "2d",
}
_PRACTICE_TIMES: Final = {
    "challenge_for": "10m",
    "candle": "2m",
    "reveal_for": "2m",
    "durability": "2m",
    "dispute_for": "2m",
}
"""Short enough to see the end of it."""
_WHOLE: Final = {"K": 64, "R": 32, "T": 64, "B": 100_000, "judges": 64}
_BUNDLE: Final = re.compile(r"[0-9a-f]{64}")
_MAX_CHARS: Final = 10_000
_MAX_MODELS: Final = 64


@dataclass(slots=True, kw_only=True)
class EpisodeForm:
    """The fields as text, just as they were typed: a mistake is shown beside them."""

    fields: dict[str, str] = field(default_factory=lambda: dict(DEFAULTS))
    practice: bool = False
    draft_only: bool = False

    @classmethod
    def asked(cls, query: QueryParams) -> EpisodeForm:
        """The form as an address fills it in."""
        form = cls(practice="practice" in query)
        if form.practice:
            form.fields |= _PRACTICE_TIMES
        form.fields["claim"] = query.get("claim", "")[:_MAX_CHARS]
        return form

    @classmethod
    def sent(cls, data: FormData) -> EpisodeForm:
        """The form as somebody sent it."""
        given = {name: data.get(name) for name in DEFAULTS}
        return cls(
            fields={
                name: value[:_MAX_CHARS] if isinstance(value, str) else DEFAULTS[name]
                for name, value in given.items()
            },
            practice=bool(data.get("practice")),
            draft_only=bool(data.get("draft_only")),
        )

    def proposal(self) -> Proposal:
        """What is proposed; the first mistake is named."""
        models, judges = self._models("models"), self._models("judge_pool")
        if self.practice:
            models, judges = models or PRACTICE_MODELS, judges or PRACTICE_JUDGES
        if not models or not judges:
            raise ConfigError(
                "`models` and `judges` are missing: name the models of the lens and those that may "
                "judge, or practise with simulated ones"
            )
        sizes = {name: self._whole(name, most) for name, most in _WHOLE.items()}
        return Proposal(
            claim=self.fields["claim"],
            models=models,
            judge_pool=judges,
            lens=self._lens(),
            K=sizes["K"],
            R=sizes["R"],
            T=sizes["T"],
            B=sizes["B"],
            seed_stake=amount_of("seed stake", self.fields["seed_stake"], "PLAY"),
            seed_heretic_ppm=self._base_rate_ppm(),
            challenge_after_ms=self._span("begin_after"),
            challenge_for_ms=self._span("challenge_for"),
            candle_ms=self._span("candle"),
            reveal_for_ms=self._span("reveal_for"),
            parameters=Parameters(
                judges=sizes["judges"],
                durability_ms=self._span("durability"),
                dispute_window_ms=self._span("dispute_for"),
            ),
        )

    def _lens(self) -> str:
        clause = self.fields["lens"].upper()
        if clause not in SHOWN_LENSES:
            raise ConfigError(f"`lens` must be one of {', '.join(SHOWN_LENSES)}, got {clause!r}")
        bundle = self.fields["bundle"].strip()
        if bundle and not _BUNDLE.fullmatch(bundle):
            raise ConfigError(f"`bundle` must be the id of a stored bundle, got {bundle[:80]!r}")
        return str(EpisodeLens(clause=clause, bundle_id=bundle or None))

    def _models(self, name: str) -> tuple[str, ...]:
        found = tuple(dict.fromkeys(self.fields[name].replace(",", " ").split()))
        if len(found) > _MAX_MODELS:
            raise ConfigError(f"`{name}` may name {_MAX_MODELS} models, got {len(found)}")
        for text in found:
            model = parse_model(text)
            if model.provider == "local" and ("/" in model.name or "\\" in model.name):
                raise ConfigError(
                    f"`{name}` must name a local model by its name, got {text!r}: no path"
                )
        return found

    def _whole(self, name: str, most: int) -> int:
        text = self.fields[name].strip()
        if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= most):
            raise ConfigError(f"`{name}` must be a whole number from 1 to {most:,}, got {text!r}")
        return int(text)

    def _base_rate_ppm(self) -> int:
        text = self.fields["base_rate"].strip()
        try:
            percent = float(text)
        except ValueError as exc:
            raise ConfigError(f"`base rate` must be a number of percent, got {text!r}") from exc
        if not 0.01 <= percent <= 99.99:
            raise ConfigError(f"`base rate` must lie from 0.01 to 99.99 percent, got {text!r}")
        return round(percent * 10_000)

    def _span(self, name: str) -> int:
        return duration_ms(name.replace("_", " "), self.fields[name])
