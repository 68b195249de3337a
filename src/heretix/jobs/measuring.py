"""From a request to the measurement that it asks for, with its evidence.

What a lens shows is gathered once a job and kept: a worker that takes over shows the same
documents, so nothing that was answered is asked again.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING

from heretix.config import Claim
from heretix.errors import InsufficientEvidenceError
from heretix.evidence.bundlefile import dump_bundle, load_bundle
from heretix.evidence.extraction import make_document, stated_fields
from heretix.evidence.reading import clean_text
from heretix.evidence.retrieval import retrieve_provided
from heretix.measurement.experiments import Experiments, with_experiments
from heretix.measurement.lenses import gather_bundles
from heretix.measurement.measurement import Measurement, prepare

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heretix.evidence.bundle import Bundle
    from heretix.evidence.document import Document
    from heretix.jobs.request import GivenDocument, MeasureRequest
    from heretix.measurement.lenses import Bundles
    from heretix.settings import Settings
    from heretix.store import Store

__all__ = ["asked", "gathered", "keep_bundles", "kept_bundles", "with_bundles"]


def asked(
    request: MeasureRequest, settings: Settings, *, budget_usd: float | None, calls: bool = True
) -> Measurement:
    """The measurement that a request stands for, without its evidence yet."""
    config = request.config(settings, budget_usd=budget_usd)
    measurement = prepare(config, settings, claims=request.claims, calls=calls)
    negation = Claim(request.negation) if request.negation is not None else None
    return replace(measurement, negation=negation)


def with_bundles(
    measurement: Measurement, request: MeasureRequest, bundles: Bundles
) -> Measurement:
    """The measurement with its evidence, and with the experiments on it."""
    experiments = Experiments(influence=request.influence, canary=request.canary, sham=request.sham)
    return with_experiments(replace(measurement, bundles=bundles), experiments)


def gathered(request: MeasureRequest, settings: Settings, *, stamp: str) -> Bundles:
    """What the lenses show. Takes a while: call it from a thread that has no event loop."""
    if not request.shows_evidence:
        return {}
    claims = request.claims_asked()
    config = request.config(settings, budget_usd=None)
    searched = [lens for lens in request.lenses if lens != "SEL"]
    bundles = asyncio.run(gather_bundles(claims, searched, config.evidence, settings))
    if "SEL" in request.lenses:
        documents = _documents(request.documents, stamp)
        for claim in claims:
            bundles[claim.text, "SEL"] = retrieve_provided(claim.text, documents)["SEL"]
    return bundles


def keep_bundles(store: Store, bundles: Bundles) -> str:
    """Store what the lenses show, and return what a job remembers of it."""
    named = []
    for (claim, lens), found in bundles.items():
        lacking = str(found) if isinstance(found, InsufficientEvidenceError) else None
        bundle: Bundle | None = (
            found.bundle if isinstance(found, InsufficientEvidenceError) else found
        )
        if bundle is not None:
            store.save_bundle(bundle.bundle_id, bundle.claim, bundle.lens, dump_bundle(bundle))
        named.append(
            {
                "claim": claim,
                "lens": lens,
                "bundle_id": bundle.bundle_id if bundle is not None else None,
                "lacking": lacking,
            }
        )
    return json.dumps(named, ensure_ascii=False)


def kept_bundles(store: Store, bundles_json: str) -> Bundles:
    """What the lenses of a job show, as it was kept."""
    bundles: Bundles = {}
    for entry in json.loads(bundles_json):
        bundle_id, lacking = entry["bundle_id"], entry["lacking"]
        bundle = load_bundle(store.bundle(bundle_id)) if bundle_id is not None else None
        found: Bundle | InsufficientEvidenceError | None = bundle
        if lacking is not None:
            found = InsufficientEvidenceError(lacking, bundle=bundle)
        assert found is not None, "a bundle, or why there is none"
        bundles[entry["claim"], entry["lens"]] = found
    return bundles


def _documents(given: Sequence[GivenDocument], stamp: str) -> list[Document]:
    documents: dict[str, Document] = {}
    for document in given:
        text = clean_text(document.text)
        found = stated_fields(document.model_dump(mode="json"), text=text)
        made = make_document(found, raw=text.encode(), url=document.url, retrieved_at=stamp)
        documents.setdefault(made.doc_id, made)
    return list(documents.values())
