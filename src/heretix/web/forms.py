"""Forms: from what somebody typed to a measurement, an episode or evidence, and back."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from heretix.core.clock import UNITS_MS, parse_duration_ms, utc_now
from heretix.core.errors import ConfigError
from heretix.core.lenses import HEL, RPL, SEL, SHOWING, WITHOUT_FILES
from heretix.economy.episode.state import Parameters
from heretix.economy.judging.workflow import PRACTICE_JUDGES, PRACTICE_MODELS, Proposal
from heretix.economy.ledger import parse_amount
from heretix.economy.market import MAX_POOL
from heretix.economy.sentences import sentence
from heretix.evidence.bundle import Bundle
from heretix.evidence.sources.extract import clean_text, make_document, read_stated_fields
from heretix.jobs import MeasureRequest
from heretix.providers.catalog import parse_model

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.datastructures import FormData, QueryParams, UploadFile

    from heretix.core.settings import Settings
    from heretix.economy.judging.panel import ShownDocuments
    from heretix.evidence.document import Document
    from heretix.store import Store

_KEYED: Final = (
    ("OPENAI_API_KEY", "gpt-5", "OpenAI"),
    ("ANTHROPIC_API_KEY", "claude-sonnet-5-5", "Anthropic"),
    ("GEMINI_API_KEY", "gemini-2.5-pro", "Google"),
)
DOCUMENTS: Final = 3  # documents that a form has room for at first
_NUMBERS: Final[Mapping[str, type[int] | type[float]]] = {
    **dict.fromkeys(("K", "R", "T", "seed", "max_samples"), int),
    **dict.fromkeys(("until_width", "budget_usd"), float),
}
_TEXTS: Final = ("negation", "corpus", "as_of", "reasoning_effort")
_TICKS: Final = ("influence", "canary", "swap", "sham", "unchecked")


@dataclass(slots=True, kw_only=True)
class MeasureForm:
    """The fields as text, just as they were typed: a mistake is shown beside them."""

    claims: str = ""  # one a line
    models: str = ""
    lenses: tuple[str, ...] = (RPL,)
    fields: dict[str, str] = field(default_factory=dict)
    ticks: frozenset[str] = frozenset()
    documents: list[dict[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.documents += [{"title": "", "text": ""}] * (DOCUMENTS - len(self.documents))

    @classmethod
    def from_query(cls, query: QueryParams) -> MeasureForm:
        """Read the form as an address fills it in."""
        wanted = query.get("lenses", "")
        lenses = WITHOUT_FILES if wanted == "all" else _lenses(wanted.split(","))
        return cls(
            claims=query.get("claim", "")[:10_000],
            models=query.get("model", "")[:200],
            lenses=lenses or (RPL,),
            fields={name: query[name][:20] for name in ("K", "R") if name in query},
        )

    @classmethod
    def from_data(cls, data: FormData) -> MeasureForm:
        """Read the form as somebody sent it."""
        return cls(
            claims="\n".join(filter(None, [_text(data, "claims").strip(), *_read_upload(data)])),
            # A model that is named and ticked is one.
            models=" ".join(dict.fromkeys([*_text(data, "models").split(), *_read_ticked(data)])),
            lenses=_lenses([str(lens) for lens in data.getlist("lenses")]),
            fields={name: _text(data, name) for name in (*_NUMBERS, *_TEXTS)},
            ticks=frozenset(name for name in _TICKS if data.get(name)),
            documents=[{"title": title, "text": text} for title, text in _read_typed(data)],
        )

    def value(self, name: str) -> str:
        """Give what stands in a field."""
        return self.fields.get(name, "")

    def request(self) -> MeasureRequest:
        """Read what is asked for; every mistake is named."""
        claims = [line.strip() for line in self.claims.splitlines() if line.strip()]
        values: dict[str, Any] = {"claims": claims, "models": self.models.replace(",", " ").split()}
        for name, kind in _NUMBERS.items():
            if text := self.value(name).strip():
                try:
                    values[name] = kind(text)
                except ValueError as exc:
                    what = "a whole number" if kind is int else "a number"
                    raise ConfigError(f"`{name}` must be {what}, got {text!r}") from exc
        values |= {name: text for name in _TEXTS if (text := self.value(name).strip())}
        values |= dict.fromkeys(self.ticks - {"unchecked"}, True)
        values["checks"] = "unchecked" not in self.ticks
        documents = [d for d in self.documents if d["text"].strip()]
        # SEL can't be ticked: it follows from bringing documents.
        lenses = [lens for lens in self.lenses if lens != SEL] + [SEL] * bool(documents)
        values["lenses"] = lenses or [RPL]
        if documents:
            values["documents"] = [
                {"title": d["title"].strip() or f"Document {number}", "text": d["text"]}
                for number, d in enumerate(documents, 1)
            ]
        if not claims:
            raise ConfigError("`claims` is empty: write a statement that is true or false")
        return MeasureRequest.parse(values)


def suggest_models(settings: Settings) -> list[tuple[str, str]]:
    """List models that can be asked here and now, with a word on each."""
    from heretix.providers import gguf
    from heretix.providers.catalog import default_model

    found = {default_model(settings).identity: "the default here"}
    for variable, name, who in _KEYED:
        if settings.env.get(variable):
            found.setdefault(name, f"{who}, costs money")
    for name in gguf.KNOWN:
        status = gguf.status(name, settings)
        if status.state in {gguf.ModelState.INSTALLED, gguf.ModelState.PULLED}:
            said = "runs here; knows nothing" if status.demonstration else "runs here"
            found[f"local:{name}"] = said
    found["mock:gpt-5"] = "made-up answers, at once"
    return list(found.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """Facts that somebody who chooses a model wants to know."""

    name: str
    said: str
    price: str
    key: str  # empty where none is needed
    ready: bool
    speed: str


def describe_models(settings: Settings, store: Store) -> list[ModelCard]:
    """Describe the models that can be asked here, and what the others lack."""
    from heretix.providers.catalog import load_prices
    from heretix.store.jobs import select_mean_latency_ms

    prices, cards = load_prices(settings), []
    offered = dict(suggest_models(settings))
    for _, name, who in _KEYED:
        offered.setdefault(name, who)
    for name, said in offered.items():
        model = parse_model(name)
        price, variable = prices.find(model), model.endpoint.key_variable
        needs = variable if model.endpoint.needs_key else None
        latency_ms = store.read(select_mean_latency_ms, model.identity)
        if price is None:
            cost = "price unknown"
        elif price.is_free:
            cost = "free"
        else:
            ends = f"${price.input_usd_per_mtok:.2f} in, ${price.output_usd_per_mtok:.2f} out"
            cost = f"{ends}, a million tokens"
        cards.append(
            ModelCard(
                name=name,
                said=said,
                price=cost,
                key=needs or "",
                ready=not needs or bool(settings.env.get(needs)),
                speed="not asked here yet" if latency_ms is None else f"{latency_ms / 1000:.1f} s",
            )
        )
    return cards


def _lenses(given: list[str]) -> tuple[str, ...]:
    return tuple(lens for lens in WITHOUT_FILES if lens in given)


_MOST_BYTES: Final = 1_000_000


def _read_upload(data: FormData) -> list[str]:
    """Read claims from a file that was sent, in the format that its ending names."""
    from heretix.claims_file import read_sent

    sent = data.get("file")
    if sent is None or isinstance(sent, str) or not sent.filename:
        return []
    content = sent.file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ConfigError(f"`file` may have at most {_MOST_BYTES:,} bytes")
    # A claim stands on one line of the form.
    return [" ".join(claim.split()) for claim in read_sent(sent.filename, content)]


def _read_ticked(data: FormData) -> list[str]:
    return [str(name)[:200] for name in data.getlist("model")][:20]


def _text(form: FormData, name: str) -> str:
    value = form.get(name)
    return value if isinstance(value, str) else ""


def _read_typed(data: FormData) -> list[tuple[str, str]]:
    """Pair the titles and texts of the documents that were typed."""
    pairs = zip(data.getlist("doc_title"), data.getlist("doc_text"), strict=False)
    return [(str(title), str(text)) for title, text in pairs]


DEFAULTS: Final[Mapping[str, str]] = {
    "claim": "",
    "models": "",
    "judge_pool": "",
    "lens": HEL,
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
_PRACTICE_TIMES: Final = {  # Short enough to see the end of it
    "challenge_for": "10m",
    **dict.fromkeys(("candle", "reveal_for", "durability", "dispute_for"), "2m"),
}
_SPANS: Final = (*_PRACTICE_TIMES, "begin_after")
_WHOLE: Final = {"K": 64, "R": 32, "T": 64, "B": 100_000, "judges": 64}
_BUNDLE: Final = re.compile(r"[0-9a-f]{64}")
_MAX_CHARS: Final = 10_000
_MAX_MODELS: Final = 64
_SPAN: Final[Mapping[str, Any]] = {"longest_ms": 3_650 * UNITS_MS["d"], "rule": "ten years at most"}


@dataclass(slots=True, kw_only=True)
class EpisodeForm:
    """The fields as text, just as they were typed: a mistake is shown beside them."""

    fields: dict[str, str] = field(default_factory=lambda: dict(DEFAULTS))
    practice: bool = False
    draft_only: bool = False

    @classmethod
    def from_query(cls, query: QueryParams) -> EpisodeForm:
        """Read the form as an address fills it in."""
        form = cls(practice="practice" in query)
        if form.practice:
            form.fields |= _PRACTICE_TIMES
        form.fields["claim"] = query.get("claim", "")[:_MAX_CHARS]
        return form

    @classmethod
    def from_data(cls, data: FormData) -> EpisodeForm:
        """Read the form as somebody sent it."""
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
        """Read what is proposed; the first mistake is named."""
        models, judges = self._models("models"), self._models("judge_pool")
        if self.practice:
            models, judges = models or PRACTICE_MODELS, judges or PRACTICE_JUDGES
        if not models or not judges:
            raise ConfigError(
                "`models` and `judges` are missing: name the models of the lens and those that may "
                "judge, or practise with simulated ones"
            )
        sizes: dict[str, Any] = {}
        for name, most in _WHOLE.items():
            text = self.fields[name].strip()
            if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= most):
                rule = f"must be a whole number from 1 to {most:,}"
                raise ConfigError(f"`{name}` {rule}, got {text!r}")
            sizes[name] = int(text)
        spans = {
            name: parse_duration_ms(name.replace("_", " "), self.fields[name].strip(), **_SPAN)
            for name in _SPANS
        }
        judge_count, stake = sizes.pop("judges"), self.fields["seed_stake"]
        return Proposal(
            claim=self.fields["claim"],
            models=models,
            judge_pool=judges,
            lens=self._lens(),
            **sizes,
            seed_stake=parse_amount(stake, "PLAY", name="seed stake", most=MAX_POOL),
            seed_heretic_ppm=self._base_rate_ppm(),
            challenge_after_ms=spans["begin_after"],
            challenge_for_ms=spans["challenge_for"],
            candle_ms=spans["candle"],
            reveal_for_ms=spans["reveal_for"],
            parameters=Parameters(
                judges=judge_count,
                durability_ms=spans["durability"],
                dispute_window_ms=spans["dispute_for"],
            ),
        )

    def _lens(self) -> str:
        clause, bundle = self.fields["lens"].upper(), self.fields["bundle"].strip()
        if clause not in SHOWING:
            raise ConfigError(f"`lens` must be one of {', '.join(SHOWING)}, got {clause!r}")
        if bundle and not _BUNDLE.fullmatch(bundle):
            raise ConfigError(f"`bundle` must be the id of a stored bundle, got {bundle[:80]!r}")
        from heretix.economy.judging.panel import EpisodeLens

        return str(EpisodeLens(clause=clause, bundle_id=bundle or None))

    def _base_rate_ppm(self) -> int:
        text = self.fields["base_rate"].strip()
        try:
            percent = float(text)
        except ValueError as exc:
            raise ConfigError(f"`base rate` must be a number of percent, got {text!r}") from exc
        if not 0.01 <= percent <= 99.99:
            raise ConfigError(f"`base rate` must lie from 0.01 to 99.99 percent, got {text!r}")
        return round(percent * 10_000)

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


_MAX_DOCUMENT_CHARS: Final = 200_000
_MAX_TITLE: Final = 300


@dataclass(slots=True, kw_only=True)
class EvidenceForm:
    """Evidence for an episode, typed or uploaded; a mistake is shown beside what was sent."""

    direction: str = "up"
    stake: str = ""
    typed: list[tuple[str, str]] = field(default_factory=list)  # titles and texts
    uploaded: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.typed += [("", "")] * (DOCUMENTS - len(self.typed))

    @classmethod
    async def from_data(cls, data: FormData) -> EvidenceForm:
        """Read the form as somebody sent it, and its files."""
        form = cls(
            direction=_text(data, "direction")[:100],
            stake=_text(data, "stake")[:100],
            typed=[(title[:_MAX_TITLE], text) for title, text in _read_typed(data)],
        )
        for part in data.getlist("files"):
            if not isinstance(part, str) and part.filename:
                title = PurePosixPath(part.filename.replace("\\", "/")).stem[:_MAX_TITLE]
                form.uploaded.append((title, await read_uploaded_text(part)))
        return form

    def amount(self, least: int, currency: str) -> int:
        """Read the stake; without one, it is the least that is asked."""
        if not self.stake.strip():
            return least
        return parse_amount(self.stake, currency, name="stake", most=MAX_POOL)

    def make_bundle(self, claim: str) -> tuple[Bundle, ShownDocuments]:
        """Make the bundle of the documents, if it can be brought, and what models would be shown
        of it."""
        # Imported where it is used: judging brings all that measures, and pages need none of it.
        from heretix.economy.judging.panel import MAX_ITEMS, arrange, find_objection
        from heretix.evidence.retrieval import retrieve_provided

        given = [(title, text) for title, text in self.typed if text.strip()] + self.uploaded
        if not given:
            raise ConfigError("`documents` is empty: write or upload at least one")
        if len(given) > MAX_ITEMS:
            raise ConfigError(f"`documents` may be {MAX_ITEMS} at most, got {len(given)}")
        documents: dict[str, Document] = {}
        for number, (title, text) in enumerate(given, 1):
            made = _document(title.strip() or f"Document {number}", text)
            documents.setdefault(made.doc_id, made)
        found = retrieve_provided(claim, list(documents.values()))
        if not isinstance(found, Bundle):
            raise found
        refused = find_objection(found, claim)
        if refused is not None:
            raise ConfigError(f"`documents` can't be brought: {sentence(refused)}")
        shown = arrange([found])
        if not shown.items:
            why = "; ".join(f"{item.item}: {sentence(item.reason)}" for item in shown.left_out)
            raise ConfigError(f"`documents` hold nothing that can be shown ({why}); bring others")
        return found, shown


async def read_uploaded_text(part: UploadFile) -> str:
    """Read the text of an uploaded file; what isn't text is refused."""
    try:
        return (await part.read()).decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise ConfigError(
            f"`{(part.filename or 'file')[:100]}` must be plain text in UTF-8; "
            "save it as .txt or .md, or paste the passage that matters"
        ) from exc


def _document(title: str, text: str) -> Document:
    readable = clean_text(text[: _MAX_DOCUMENT_CHARS + 1])
    if not readable:
        raise ConfigError(f"`{title}` must hold some readable text")
    if len(text) > _MAX_DOCUMENT_CHARS:
        raise ConfigError(
            f"`{title}` may have {_MAX_DOCUMENT_CHARS:,} characters; bring what matters"
        )
    stated = {"title": title, "text": text, "url": None, "published": None}
    found = read_stated_fields(stated, text=readable)
    return make_document(found, raw=readable.encode(), url=None, retrieved_at=utc_now())
