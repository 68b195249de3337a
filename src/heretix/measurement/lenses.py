"""What each lens shows: bundles for claims, gathered before anything is measured."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import platformdirs

from heretix.config import EvidenceConfig
from heretix.errors import ConfigError, InsufficientEvidenceError
from heretix.evidence.bundle import Bundle
from heretix.evidence.corpus import Corpus, corpus_path
from heretix.evidence.demo import DEMO_CORPUS, DEMO_POLICY, demo_documents
from heretix.evidence.document import Document
from heretix.evidence.intake import documents_from
from heretix.evidence.policy import load_policy
from heretix.evidence.retrieval import (
    SEARCHED,
    Retrieval,
    judge_all,
    retrieve,
    retrieve_provided,
)
from heretix.evidence.search import (
    GIVES_TEXT,
    LocalSearch,
    RecordingSearch,
    ReplaySearch,
    Search,
    service_from_env,
)
from heretix.evidence.search.fulltext import FullTextSearch
from heretix.plan import Evidence
from heretix.prompts.frame import ShownItem, load_frame

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from heretix.config import Claim
    from heretix.evidence.fetch import FetchOptions
    from heretix.evidence.policy import Policy
    from heretix.settings import Settings

__all__ = [
    "ALL_LENSES",
    "Bundles",
    "Network",
    "corpora_folder",
    "evidence_of",
    "gather_bundles",
    "searches_demo",
]

ALL_LENSES: Final = ("RPL", "NUL", "MEL", "HEL", "SEL")

Bundles = dict[tuple[str, str], Bundle | InsufficientEvidenceError]
"""By claim and lens."""

_PRIVATE_HOSTS: Final = "HERETIX_PRIVATE_HOSTS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """How services are asked and pages fetched, where it isn't as usual."""

    fetch: FetchOptions | None = None
    service: Mapping[str, Any] = field(default_factory=dict)
    """Options of the search service, such as `min_interval_s`."""

    def fetching(self, settings: Settings) -> FetchOptions:
        """As given or, usually, politely: private addresses only of HERETIX_PRIVATE_HOSTS."""
        # Imported as needed: this brings an HTTP client along.
        from heretix.evidence.fetch import FetchOptions

        hosts = settings.env.get(_PRIVATE_HOSTS, "").split(",")
        named = frozenset(host.strip() for host in hosts if host.strip())
        return self.fetch or FetchOptions(private_hosts=named)


def corpora_folder(settings: Settings) -> Path:
    """Where local corpora live."""
    given = settings.env.get("HERETIX_CORPORA_DIR")
    return Path(given) if given else Path(platformdirs.user_data_dir("heretix")) / "corpora"


def evidence_of(lens: str, bundle: Bundle | None) -> Evidence | None:
    """What a lens shows with a bundle; the raw prior shows nothing."""
    if lens == "RPL":
        return None
    return Evidence(
        lens=lens,
        frame=load_frame(),
        bundle_id=bundle.bundle_id if bundle else None,
        items=tuple(
            ShownItem(item.id, f"{item.shown_title}\n{item.shown_text}")
            for item in (bundle.items if bundle else ())
        ),
    )


async def gather_bundles(
    claims: Sequence[Claim],
    lenses: Sequence[str],
    config: EvidenceConfig | None,
    settings: Settings,
    *,
    network: Network | None = None,
) -> Bundles:
    """The bundles of every claim and lens that shows documents; or why there is none."""
    config = config or EvidenceConfig()
    network = network or Network()
    bundles: Bundles = {}
    searched = [lens for lens in lenses if lens in SEARCHED]
    async with contextlib.AsyncExitStack() as stack:
        judge = None
        if config.judge is not None:
            # Imported as needed: without a judge no model is asked here.
            from heretix.measurement.judging import opened_judge

            judge = await stack.enter_async_context(opened_judge(config.judge, settings))
        if searched:
            search = await stack.enter_async_context(_search(config, settings, network))
            how = Retrieval(
                search=search,
                policy=_policy(config),
                as_of=config.as_of,
                strict_dates=config.strict_dates,
                flagged=config.flagged,
                judge=judge,
                any_word=config.search is None,
            )
            for claim in claims:
                found = await retrieve(claim.text, how, searched)
                bundles |= {(claim.text, lens): bundle for lens, bundle in found.items()}
        if "SEL" in lenses:
            # Reading addresses runs an event loop of its own, which only another thread can have.
            fetch = network.fetching(settings) if any(map(_is_address, config.documents)) else None
            documents = await asyncio.to_thread(provided_documents, config.documents, fetch)
            for claim in claims:
                verdicts = await judge_all(judge, claim.text, documents) if judge else None
                given = retrieve_provided(claim.text, documents, verdicts)
                bundles[claim.text, "SEL"] = given["SEL"]
    return bundles


def searches_demo(config: EvidenceConfig | None) -> bool:
    """Whether the packaged corpus is searched: nothing else was named."""
    if config is None:
        return True
    return config.search is None and (config.corpus or DEMO_CORPUS) == DEMO_CORPUS


def _policy(config: EvidenceConfig) -> Policy:
    file = config.policy or (DEMO_POLICY if searches_demo(config) else None)
    return load_policy(file) if file else load_policy()


def _is_address(source: str) -> bool:
    return source.lower().startswith(("http://", "https://"))


def provided_documents(sources: Sequence[str], fetch: FetchOptions | None = None) -> list[Document]:
    """The user's own documents, in the order given, each once; an unreadable one is an error."""
    if not sources:
        raise ConfigError("`SEL` needs documents: --document FILE, or `evidence: {documents: […]}`")
    documents: dict[str, Document] = {}
    for found in documents_from(sources, fetch=fetch):
        if not isinstance(found, Document):
            raise ConfigError(f"`{found.source}` can't be shown: {found.reason}")
        documents.setdefault(found.doc_id, found)
    return list(documents.values())


@contextlib.asynccontextmanager
async def _search(
    config: EvidenceConfig, settings: Settings, network: Network
) -> AsyncIterator[Search]:
    if config.replay_from is not None:
        name = config.search or f"local:{config.corpus or DEMO_CORPUS}"
        yield ReplaySearch(Path(config.replay_from), name)
        return
    if config.search is not None:
        service = service_from_env(config.search, settings.env, **network.service)
        if config.search not in GIVES_TEXT:
            from heretix.evidence.fetch import Fetcher

            service = FullTextSearch(service, Fetcher(network.fetching(settings)))
        # Kept with the pages' text: a repetition needs no network at all.
        kept = RecordingSearch(service, Path(config.record_to)) if config.record_to else service
        try:
            yield kept
        finally:
            await kept.aclose()
        return
    with _corpus(config.corpus or DEMO_CORPUS, settings) as corpus:
        local = LocalSearch(corpus)
        yield RecordingSearch(local, Path(config.record_to)) if config.record_to else local


def _corpus(name: str, settings: Settings) -> Corpus:
    path = corpus_path(corpora_folder(settings), name)
    if name == DEMO_CORPUS:
        # It comes with the package: written on first use, and again when the package changes.
        corpus = Corpus.open(path)
        corpus.add(demo_documents())
        return corpus
    if not path.exists():
        raise ConfigError(
            f"`corpus` {name!r} doesn't exist; `heretix corpus add FILES --corpus {name}` makes "
            f"one, and {DEMO_CORPUS!r} comes with the package"
        )
    return Corpus.open(path)
