"""Heads: all events up to one, and the ends of all chains then, signed with Ed25519, for others to
keep.

Whoever can write to a store can write its whole history anew; against a head that somebody kept,
that is found.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import platformdirs

from heretix.core.canonical import Record, decode, encode, exact_json, require_sha256
from heretix.core.errors import ConfigError, RecordError, UsageError
from heretix.economy.ledger import Breach

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from heretix.economy.audit import EpisodeAudit

FORMAT: Final = "heretix-head/2"
_KEY_BYTES: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Head(Record):
    """A place among all events, and hashes of everything up to it, signed."""

    format: str
    seq: int
    root: str
    """Hash of the event and of all before it, in their order."""
    chains: str
    """Top of the tree over the ends of all chains then, to which a path from each one leads."""
    at_ms: int
    """Moment of signing."""
    key: str
    """Public key, in hex."""
    signature: str
    """Over the other fields in canonical JSON, in hex."""

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise RecordError(
                f"`format` must be {FORMAT!r}, got {self.format!r}; give what "
                "`heretix ledger head --out` wrote"
            )
        require_sha256("root", self.root)
        require_sha256("chains", self.chains)

    @property
    def is_genuine(self) -> bool:
        """Tell whether the key that it names signed it."""
        _require_cryptography()
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        signed = {field.name: getattr(self, field.name) for field in fields(self)}
        del signed["signature"]
        try:
            public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(self.key))
            public.verify(bytes.fromhex(self.signature), _message(signed))
        except (InvalidSignature, ValueError):
            return False
        return True


def sign_head(*, seq: int, root: str, chains: str, at_ms: int, key_file: Path) -> Head:
    """Sign a place among all events with the key in a file, which is made on first use."""
    private = _load_key(key_file)
    body = {
        "format": FORMAT,
        "seq": seq,
        "root": root,
        "chains": chains,
        "at_ms": at_ms,
        "key": private.public_key().public_bytes_raw().hex(),
    }
    return decode(Head, body | {"signature": private.sign(_message(body)).hex()}, "head")


def compare_head(head: Head, **found: str | None) -> Iterator[Breach]:
    """Compare a head with what was found of its event, by the head's fields: history up to there is
    what it was when the head was signed."""
    if not head.is_genuine:
        yield Breach("head", str(head.seq), f"wasn't signed by the key {head.key}")
    for name, value in found.items():
        if value != (said := getattr(head, name)):
            detail = f"`{name}` is {said} in the head, and {value} in what is held against it"
            yield Breach("head", str(head.seq), detail)


def prove(audit: EpisodeAudit, head: Head) -> EpisodeAudit:
    """Hold an audited record against a head that somebody kept: up to there the episode's chain is
    what it was when the head was signed."""
    proofs = {proof.seq: proof for proof in audit.chain.proofs}
    if (proof := proofs.get(head.seq)) is None:
        held, name = ", ".join(map(str, proofs)) or "none", audit.episode.id
        raise UsageError(
            f"`--against` must be a head of an event that the record has a proof for ({held}), got "
            f"one of event {head.seq}; export it for that head: "
            f"`heretix episode export {name} --against HEAD`"
        )
    found = compare_head(head, chains=proof.top)
    return replace(audit, breaches=(*audit.breaches, *found))


def read_head(path: Path) -> Head:
    """Read a head from the file that `heretix ledger head --out` wrote."""
    try:
        return decode(Head, json.loads(path.read_text(encoding="utf-8")), str(path))
    except OSError as exc:
        raise RecordError(f"`{path}` can't be read: {exc.strerror}") from exc
    except ValueError as exc:
        raise RecordError(
            f"`{path}` isn't JSON ({exc}); give what `heretix ledger head --out` wrote"
        ) from exc


def dump_head(head: Head) -> str:
    """Write a head as the JSON that `read_head` reads."""
    return json.dumps(encode(head), indent=2) + "\n"


def key_file_of(env: Mapping[str, str]) -> Path:
    """Name the file of the signing key: HERETIX_SIGNING_KEY, or one among the user's data."""
    given = env.get("HERETIX_SIGNING_KEY")
    return Path(given or Path(platformdirs.user_data_dir("heretix")) / "signing.key")


def find_key(env: Mapping[str, str]) -> Path | None:
    """Find the signing key, if there is one and what signs is installed: looking makes none."""
    path = key_file_of(env)
    return path if path.is_file() and find_spec("cryptography") is not None else None


def _load_key(path: Path) -> Ed25519PrivateKey:
    _require_cryptography()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            _create_key(path, Ed25519PrivateKey.generate().private_bytes_raw().hex())
        text = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(
            f"`HERETIX_SIGNING_KEY` must name a file that can be read or made, got {str(path)!r} "
            f"({exc})"
        ) from exc
    try:
        return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(text))
    except ValueError as exc:
        raise ConfigError(
            f"`{path}` must hold a key of {2 * _KEY_BYTES} hex digits, got {len(text)} characters; "
            "restore it, or name another file with HERETIX_SIGNING_KEY"
        ) from exc


def _create_key(path: Path, text: str) -> None:
    """Write a key that nobody else may read; whoever comes second takes the first one's."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(f"{text}\n")
    try:
        # A link appears whole or not at all, and never takes another's place.
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        draft.unlink()


def _message(body: Mapping[str, Any]) -> bytes:
    return exact_json(body).encode()


def _require_cryptography() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError as exc:
        raise ConfigError(
            "`cryptography` signs and checks heads, and isn't installed; "
            "`uv sync --extra economy`, or `pip install '.[economy]'` in the clone"
        ) from exc
