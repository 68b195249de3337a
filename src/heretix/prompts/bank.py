"""Prompt banks: wordings of "is this true?", read from YAML, checked, and filled in.

A bank is part of a measurement's identity, so a mistake in one is refused when it is loaded,
with the file and the line, and never found out later in the samples.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from heretix.core.canonical import sha256_json, sha256_text
from heretix.core.errors import BankError, PluginError
from heretix.core.plugins import Plugin, Registry
from heretix.core.yaml_lines import (
    YamlFault,
    compose,
    control_character,
    entries,
    hint,
    line_of,
    listed,
    text_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

MIN_WORDINGS: Final = 4
"""Fewer say too little about how much the wording matters. Ours have 16."""
MAX_WORDINGS: Final = 999
"""Stems are sorted by an index of three digits."""
MAX_PARAPHRASE_CHARS: Final = 400
"""Longest wording, the claim not counted: a small model must cope with it."""
MAX_FRAME_CHARS: Final = 4_000
"""Longest `system` and `user_template`."""

CLAIM: Final = "{CLAIM}"
PARAPHRASE: Final = "{PARAPHRASE}"

_KEYS: Final = ("version", "system", "user_template", "paraphrases")
# No '|': it separates the parts of an identity.
_VERSION: Final = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Bank:
    """A versioned set of wordings, as loaded."""

    version: str
    """The full version, e.g. `rpl_v1_2026-11-15`: what identities hold."""
    system: str
    user_template: str
    paraphrases: tuple[str, ...]
    source: str = field(compare=False)
    """Where it was read: a packaged bank's name, or a path. No part of what the bank is."""
    sha256: str
    """SHA-256 of everything in it, so that two texts under one version can be told apart."""
    plugin: Plugin | None = field(default=None, compare=False)
    """Who brings it; None for ours and for files."""

    @classmethod
    def of(
        cls,
        *,
        version: str,
        system: str,
        user_template: str,
        paraphrases: Sequence[str],
        source: str,
        plugin: Plugin | None = None,
    ) -> Bank:
        """A bank from its parts, which are trusted: a reader or a record vouches for them."""
        texts = tuple(paraphrases)
        digest = _bank_sha256(version, system, user_template, texts)
        return cls(
            version, system, user_template, texts, source=source, sha256=digest, plugin=plugin
        )

    @property
    def T_bank(self) -> int:
        """How many wordings there are to choose from."""
        return len(self.paraphrases)


@dataclass(frozen=True, slots=True)
class Prompt:
    """One wording with the claim filled in: exactly what is sent."""

    paraphrase_idx: int
    system: str
    user: str
    sha256: str
    """SHA-256 of system, a blank line, and user text."""


def render(bank: Bank, idx: int, claim: str) -> Prompt:
    """Fill `claim` into wording `idx`.

    The templates are cut at their placeholders and joined around the claim in one pass. The claim
    itself is never searched, so braces, or even a placeholder, inside it come through verbatim.
    """
    if not 0 <= idx < bank.T_bank:
        raise BankError(
            f"`paraphrase_idx` must be from 0 to {bank.T_bank - 1} in bank `{bank.version}`, "
            f"got {idx}"
        )
    head, _, tail = bank.user_template.partition(PARAPHRASE)
    before, _, after = bank.paraphrases[idx].partition(CLAIM)
    user = f"{head}{before}{claim}{after}{tail}"
    return Prompt(idx, bank.system, user, sha256_text(f"{bank.system}\n\n{user}"))


def _as_text(found: Any) -> str:
    """A registered bank as YAML: a text of several lines, or a file to read."""
    if isinstance(found, str) and "\n" in found:
        return found
    source = Path(found) if isinstance(found, str) else found
    if not hasattr(source, "read_text"):
        raise TypeError(f"a bank must be YAML text or the path of a file, got {found!r}")
    return str(source.read_text(encoding="utf-8-sig"))


_FOLDER: Final = resources.files(__package__) / "banks"
BANKS: Final = Registry(
    "banks",
    # A file is no `module:attribute`; the packaged names are those of the folder, sorted.
    {
        name.removesuffix(".yaml"): _FOLDER / name
        for name in sorted(entry.name for entry in _FOLDER.iterdir())
        if name.endswith(".yaml")
    },
    _as_text,
)
"""Banks by name: the packaged ones, and those of plug-ins."""


def load_bank(name: str) -> Bank:
    """The bank of this name (`rpl_v1`) or full version (`rpl_v1_2026-11-15`).

    Packaged ones are looked at first, then those of plug-ins.
    """
    if name in BANKS.builtin:
        return _registered(name)
    for names in (tuple(BANKS.builtin), tuple(BANKS.plugins())):
        if name in names:
            return _registered(name)
        for one in names:
            with contextlib.suppress(PluginError, BankError):
                if (bank := _registered(one)).version == name:
                    return bank
    known = [*BANKS.names(), *(_registered(packaged).version for packaged in BANKS.builtin)]
    raise BankError(
        f"`prompt_version` {name!r} names no packaged bank{hint(name, known)}; "
        f"packaged: {', '.join(BANKS.names())}. A bank of your own goes under `prompts_file`"
    )


def load_bank_file(path: str | Path) -> Bank:
    """Read a bank from a YAML file. It can't take a packaged bank's version for other text."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as exc:
        raise BankError(f"`prompts_file` {path} can't be read: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise BankError(f"`prompts_file` {path} isn't UTF-8 text; save it as UTF-8") from exc
    return _refuse_taken_version(_read_bank(text, str(path)))


def _registered(name: str) -> Bank:
    return _read_registered(name, BANKS.plugin(name))


@cache
def _read_registered(name: str, plugin: Plugin | None) -> Bank:
    bank = _read_bank(BANKS.load(name), name, plugin)
    return bank if plugin is None else _refuse_taken_version(bank)


def _refuse_taken_version(bank: Bank) -> Bank:
    for name in BANKS.builtin:
        packaged = _registered(name)
        if packaged.version == bank.version and packaged.sha256 != bank.sha256:
            raise BankError(
                f"`{bank.source}` and the packaged bank `{name}` both have the version "
                f"`{bank.version}`, but their text differs; give the file a version of its own"
            )
    return bank


def _read_bank(text: str, source: str, plugin: Plugin | None = None) -> Bank:
    """Check one file. A mistake is named with the file and the line."""
    try:
        found = _entries(compose(text))
        system = _frame("system", found["system"])
        _require_count(found["system"], "system", system, {CLAIM: 0, PARAPHRASE: 0})
        user_template = _frame("user_template", found["user_template"])
        _require_count(
            found["user_template"], "user_template", user_template, {PARAPHRASE: 1, CLAIM: 0}
        )
        return Bank.of(
            version=_version(found["version"]),
            system=system,
            user_template=user_template,
            paraphrases=_paraphrases(found["paraphrases"]),
            source=source,
            plugin=plugin,
        )
    except YamlFault as fault:
        raise BankError(fault.at(source)) from fault


def _entries(root: yaml.Node | None) -> dict[str, yaml.Node]:
    if not isinstance(root, yaml.MappingNode):
        raise YamlFault(root or 1, f"must hold the keys {listed(_KEYS)}, and holds none")
    found = entries(root, _KEYS)
    missing = [name for name in _KEYS if name not in found]
    if missing:
        raise YamlFault(root, f"{listed(missing)} missing; a bank has {listed(_KEYS)}")
    return found


def _version(node: yaml.Node) -> str:
    version = _string("version", node)
    if not _VERSION.fullmatch(version):
        raise YamlFault(
            node,
            "`version` must be letters, digits, '.', '_' and '-' only, "
            f"e.g. rpl_v1_2026-11-15, got {version!r}",
        )
    return version


def _frame(name: str, node: yaml.Node) -> str:
    text = _string(name, node)
    if len(text) > MAX_FRAME_CHARS:
        raise YamlFault(
            node, f"`{name}` must have at most {MAX_FRAME_CHARS:,} characters, got {len(text):,}"
        )
    return text


def _paraphrases(node: yaml.Node) -> tuple[str, ...]:
    if not isinstance(node, yaml.SequenceNode):
        raise YamlFault(node, f"`paraphrases` must be a list of {MIN_WORDINGS} texts or more")
    seen: dict[str, int] = {}
    texts: list[str] = []
    for index, item in enumerate(node.value):
        text = _paraphrase(f"paraphrases[{index}]", item)
        folded = " ".join(text.casefold().split())
        if folded in seen:
            raise YamlFault(
                item,
                f"`paraphrases[{index}]` is the same wording as the one on line "
                f"{seen[folded]}; each must differ",
            )
        seen[folded] = line_of(item)
        texts.append(text)
    if not MIN_WORDINGS <= len(texts) <= MAX_WORDINGS:
        raise YamlFault(
            node,
            f"`paraphrases` must hold from {MIN_WORDINGS} to {MAX_WORDINGS} texts, "
            f"got {len(texts)}",
        )
    return tuple(texts)


def _paraphrase(name: str, node: yaml.Node) -> str:
    text = _string(name, node)
    _require_count(node, name, text, {CLAIM: 1, PARAPHRASE: 0})
    wording = text.replace(CLAIM, "")
    if not wording.strip():
        raise YamlFault(node, f"`{name}` has no wording besides {CLAIM}")
    if len(wording) > MAX_PARAPHRASE_CHARS:
        raise YamlFault(
            node,
            f"`{name}` must have at most {MAX_PARAPHRASE_CHARS} characters besides {CLAIM}, "
            f"got {len(wording)}",
        )
    return text


def _string(name: str, node: yaml.Node) -> str:
    text = text_of(name, node)
    # An escape ("\x07") can still bring in what the file itself doesn't show.
    bad = control_character(text)
    if bad:
        raise YamlFault(node, f"`{name}` has a control character ({bad}); remove it")
    return text


def _require_count(node: yaml.Node, name: str, text: str, counts: dict[str, int]) -> None:
    for placeholder, wanted in counts.items():
        got = text.count(placeholder)
        if got != wanted:
            rule = "exactly once" if wanted else "nowhere"
            raise YamlFault(node, f"`{name}` must contain {placeholder} {rule}, got it {got} times")


def _bank_sha256(
    version: str, system: str, user_template: str, paraphrases: tuple[str, ...]
) -> str:
    content = {
        "version": version,
        "system": system,
        "user_template": user_template,
        "paraphrases": paraphrases,
    }
    return sha256_json(content)
