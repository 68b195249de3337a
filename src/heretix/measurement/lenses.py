"""What each lens shows: bundles for claims, gathered before anything is measured."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

import platformdirs

from heretix.config import EvidenceConfig
from heretix.errors import ConfigError, InsufficientEvidenceError
from heretix.evidence.bundle import Bundle
from heretix.evidence.corpus import Corpus, corpus_path
from heretix.evidence.demo import DEMO_CORPUS, DEMO_POLICY, demo_documents
from heretix.evidence.document import Document
from heretix.evidence.intake import documents_from
from heretix.evidence.policy import load_policy
from heretix.evidence.retrieval import SEARCHED, Retrieval, retrieve, retrieve_provided
from heretix.evidence.search import (
    LocalSearch,
    RecordingSearch,
    ReplaySearch,
    Search,
    service_from_env,
)
from heretix.plan import Evidence
from heretix.prompts.frame import ShownItem, load_frame

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from heretix.config import Claim
    from heretix.settings import Settings

__all__ = ["ALL_LENSES", "Bundles", "corpora_folder", "evidence_of", "gather_bundles"]

ALL_LENSES: Final = ("RPL", "NUL", "MEL", "HEL", "SEL")

Bundles = dict[tuple[str, str], Bundle | InsufficientEvidenceError]
"""By claim and lens."""


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
) -> Bundles:
    """The bundles of every claim and lens that shows documents; or why there is none."""
    config = config or EvidenceConfig()
    bundles: Bundles = {}
    searched = [lens for lens in lenses if lens in SEARCHED]
    if searched:
        async with _search(config, settings) as search:
            demo = config.search is None and (config.corpus or DEMO_CORPUS) == DEMO_CORPUS
            policy_file = config.policy or (DEMO_POLICY if demo else None)
            how = Retrieval(
                search=search,
                policy=load_policy(policy_file) if policy_file else load_policy(),
                as_of=config.as_of,
                strict_dates=config.strict_dates,
                flagged=config.flagged,
            )
            for claim in claims:
                found = await retrieve(claim.text, how, searched)
                bundles |= {(claim.text, lens): bundle for lens, bundle in found.items()}
    if "SEL" in lenses:
        documents = provided_documents(config.documents)
        for claim in claims:
            bundles[claim.text, "SEL"] = retrieve_provided(claim.text, documents)["SEL"]
    return bundles


def provided_documents(sources: Sequence[str]) -> list[Document]:
    """The user's own documents, in the order given, each once; an unreadable one is an error."""
    if not sources:
        raise ConfigError("`SEL` needs documents: --document FILE, or `evidence: {documents: […]}`")
    documents: dict[str, Document] = {}
    for found in documents_from(sources):
        if not isinstance(found, Document):
            raise ConfigError(f"`{found.source}` can't be shown: {found.reason}")
        documents.setdefault(found.doc_id, found)
    return list(documents.values())


@contextlib.asynccontextmanager
async def _search(config: EvidenceConfig, settings: Settings) -> AsyncIterator[Search]:
    if config.replay_from is not None:
        yield ReplaySearch(Path(config.replay_from), config.search or f"local:{config.corpus}")
        return
    if config.search is not None:
        service = service_from_env(config.search, settings.env)
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
