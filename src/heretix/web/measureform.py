"""The form of a new measurement: from what somebody typed to a request, and back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from heretix.errors import ConfigError
from heretix.jobs import MeasureRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.datastructures import FormData, QueryParams

    from heretix.settings import Settings

__all__ = ["LENSES", "MeasureForm", "suggested_models"]

LENSES: Final = ("RPL", "NUL", "MEL", "HEL")
"""What can be ticked; SEL follows from bringing documents."""
DOCUMENTS: Final = 3
_NUMBERS: Final[Mapping[str, type[int] | type[float]]] = {
    "K": int,
    "R": int,
    "T": int,
    "seed": int,
    "until_width": float,
    "max_samples": int,
    "budget_usd": float,
}
_TEXTS: Final = ("negation", "corpus", "as_of", "reasoning_effort")
_TICKS: Final = ("influence", "canary", "sham")


@dataclass(slots=True, kw_only=True)
class MeasureForm:
    """The fields as text, just as they were typed: a mistake is shown beside them."""

    claims: str = ""
    """One a line."""
    models: str = ""
    lenses: tuple[str, ...] = ("RPL",)
    fields: dict[str, str] = field(default_factory=dict)
    ticks: frozenset[str] = frozenset()
    documents: list[dict[str, str]] = field(default_factory=list)

    @classmethod
    def asked(cls, query: QueryParams) -> MeasureForm:
        """The form as an address fills it in."""
        wanted = query.get("lenses", "")
        lenses = LENSES if wanted == "all" else _lenses(wanted.split(","))
        return cls(
            claims=query.get("claim", "")[:10_000],
            models=query.get("model", "")[:200],
            lenses=lenses or ("RPL",),
            fields={name: query[name][:20] for name in ("K", "R") if name in query},
        ).padded()

    @classmethod
    def sent(cls, form: FormData) -> MeasureForm:
        """The form as somebody sent it."""
        titles, texts = form.getlist("doc_title"), form.getlist("doc_text")
        documents = [
            {"title": str(title), "text": str(text)}
            for title, text in zip(titles, texts, strict=False)
        ]
        return cls(
            claims=_text(form, "claims"),
            models=_text(form, "models"),
            lenses=_lenses([str(lens) for lens in form.getlist("lenses")]),
            fields={name: _text(form, name) for name in (*_NUMBERS, *_TEXTS)},
            ticks=frozenset(name for name in _TICKS if form.get(name)),
            documents=documents,
        ).padded()

    def padded(self) -> MeasureForm:
        """With room for some documents."""
        while len(self.documents) < DOCUMENTS:
            self.documents.append({"title": "", "text": ""})
        return self

    def value(self, name: str) -> str:
        """What stands in a field."""
        return self.fields.get(name, "")

    def request(self) -> MeasureRequest:
        """What is asked for; every mistake is named."""
        claims = [line.strip() for line in self.claims.splitlines() if line.strip()]
        values: dict[str, Any] = {"claims": claims, "models": self.models.replace(",", " ").split()}
        for name, kind in _NUMBERS.items():
            if text := self.value(name).strip():
                values[name] = _number(name, text, kind)
        values |= {name: text for name in _TEXTS if (text := self.value(name).strip())}
        values |= dict.fromkeys(self.ticks, True)
        documents = [d for d in self.documents if d["text"].strip()]
        lenses = [lens for lens in self.lenses if lens != "SEL"] + ["SEL"] * bool(documents)
        values["lenses"] = lenses or ["RPL"]
        if documents:
            values["documents"] = [
                {"title": d["title"].strip() or f"Document {number}", "text": d["text"]}
                for number, d in enumerate(documents, 1)
            ]
        if not claims:
            raise ConfigError("`claims` is empty: write a statement that is true or false")
        return MeasureRequest.parse(values)


def suggested_models(settings: Settings) -> list[tuple[str, str]]:
    """Models that can be asked here and now, with a word on each."""
    from heretix.providers import gguf
    from heretix.providers.catalog import default_model

    found = {default_model(settings).identity: "the default here"}
    keyed = (
        ("OPENAI_API_KEY", "gpt-5", "OpenAI"),
        ("ANTHROPIC_API_KEY", "claude-sonnet-5-5", "Anthropic"),
        ("GEMINI_API_KEY", "gemini-2.5-pro", "Google"),
    )
    for variable, name, who in keyed:
        if settings.env.get(variable):
            found.setdefault(name, f"{who}, costs money")
    for name in gguf.KNOWN:
        status = gguf.status(name, settings)
        if status.state in {gguf.ModelState.INSTALLED, gguf.ModelState.PULLED}:
            said = "runs here; knows nothing" if status.demonstration else "runs here"
            found[f"local:{name}"] = said
    found["mock:gpt-5"] = "made-up answers, at once"
    return list(found.items())


def _lenses(given: list[str]) -> tuple[str, ...]:
    return tuple(lens for lens in LENSES if lens in given)


def _text(form: FormData, name: str) -> str:
    value = form.get(name)
    return value if isinstance(value, str) else ""


def _number(name: str, text: str, kind: type[int] | type[float]) -> int | float:
    try:
        return kind(text)
    except ValueError as exc:
        what = "a whole number" if kind is int else "a number"
        raise ConfigError(f"`{name}` must be {what}, got {text!r}") from exc
