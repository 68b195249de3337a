"""Why money moved, as people read it: records give reasons in whole minor units, parts per million
and milliseconds."""

from __future__ import annotations

import re
from typing import Final

from heretix.economy.money import PPM
from heretix.web.moneytext import holder, money, shares, when

__all__ = ["reason"]

_STEP: Final = re.compile(r"(step \d+) by (user:.+): (evidence [0-9a-f]+)")
_SLOTS: Final = re.compile(r"\bK must be at least \d+, got \d+")
# A 1 of a formula such as `(1-q)` isn't an amount, and neither is the number of a bet.
_NUMBER: Final = re.compile(
    r"(?<![\w.])(?:"
    r"(?P<named>(?:bet|step|challenge|dispute) \d+)"
    r"|(?P<shares>\d+) micro-shares"
    r"|(?P<least>\d+) ppm(?P<got>(?: wide)?, got )(?P<found>\d+)"
    r"|(?P<ppm>\d+) ppm"
    r"|(?<=\bat )(?P<at_ms>1\d{12})"
    r"|(?P<amount>-?\d+)"
    r")(?![\w.%]|-[a-z])"
)
_UNDERSCORE: Final = re.compile(r"(?<=[a-z])_(?=[a-z])")


def reason(text: str, currency: str) -> str:
    """A reason with its amounts in the currency, its shares as percent and its times as dates."""
    if found := _STEP.fullmatch(text):
        return f"{found[1]} by {holder(found[2])}: {found[3]}"
    if _SLOTS.search(text):
        return text
    said = _NUMBER.sub(lambda number: _said(number, currency), text)
    return _UNDERSCORE.sub(" ", said.replace(" - ", " − "))


def _said(number: re.Match[str], currency: str) -> str:
    match number.lastgroup:
        case "shares":
            return f"{shares(int(number['shares']), currency)} shares"
        case "found":
            return f"{_percent(number['least'])}{number['got']}{_percent(number['found'])}"
        case "ppm":
            return _percent(number["ppm"])
        case "at_ms":
            return when(int(number["at_ms"])).striptags()
        case "amount":
            return money(int(number["amount"]), currency).rpartition(" ")[0]
        case _:
            return number[0]


def _percent(ppm: str) -> str:
    return f"{100 * int(ppm) / PPM:.2f}".rstrip("0").rstrip(".") + "%"
