"""Evidence as a person brings it to an episode: documents, or a bundle of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heretix.cli import options as opt

if TYPE_CHECKING:
    from heretix.cli import acting
    from heretix.evidence.bundle import Bundle

__all__ = ["brought_by", "lens_of"]


def lens_of(counter: acting.Counter, lens: str, bundle: str | None, claim: str) -> str:
    """The lens of the terms, with the bundle that is shown from the start."""
    from heretix.economy.exhibit import EpisodeLens, read_lens
    from heretix.evidence.bundlefile import dump_bundle

    clause = read_lens(lens).clause
    if bundle is None:
        return clause
    found = brought_by(counter, claim.strip(), None, bundle)
    counter.store.save_bundle(found.bundle_id, found.claim, found.lens, dump_bundle(found))
    return str(EpisodeLens(clause=clause, bundle_id=found.bundle_id))


def brought_by(
    counter: acting.Counter, claim: str, documents: list[str] | None, bundle: str | None
) -> Bundle:
    """The documents, or the bundle, that a person brings."""
    from heretix.economy.exhibit import arrange, objection
    from heretix.errors import UsageError

    if bool(documents) == (bundle is not None):
        raise UsageError("`--document` or `--bundle` is needed, and only one of them")
    brought = _loaded(counter, bundle) if bundle is not None else _built(claim, documents or [])
    refused = objection(brought, claim)
    if refused is not None:
        raise UsageError(f"`evidence` can't be brought: {refused}")
    shown = arrange([brought])
    for item in shown.left_out:
        opt.err_console().print(f"{item.item} won't be shown: {item.reason}", style="yellow")
    if not shown.items:
        raise UsageError("`evidence` has no document that can be shown; bring another")
    return brought


def _loaded(counter: acting.Counter, ref: str) -> Bundle:
    from heretix.evidence.bundlefile import bundle_in_file, load_bundle

    return bundle_in_file(ref) or load_bundle(counter.store.bundle(ref), ref)


def _built(claim: str, documents: list[str]) -> Bundle:
    from heretix.evidence.bundle import Bundle
    from heretix.evidence.retrieval import retrieve_provided
    from heretix.measurement.lenses import provided_documents

    found = retrieve_provided(claim, provided_documents(documents))["SEL"]
    if not isinstance(found, Bundle):
        raise found
    return found
