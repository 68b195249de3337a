"""Registries of named parts, built in or brought by other packages through entry points.

A package adds a part by an entry point in one of the groups `heretix.providers`, `heretix.search`,
`heretix.metrics`, `heretix.banks` and `heretix.commands`. Entry points are read when a name isn't
built in, and a part is imported when it is used: what isn't used costs nothing, and a package that
can't be loaded harms only who asks for it. `HERETIX_PLUGINS=0` leaves all of them out.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar

from heretix.core.errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Kind = Literal["providers", "search", "metrics", "banks", "commands"]
KINDS: Final[tuple[Kind, ...]] = ("providers", "search", "metrics", "banks", "commands")
SWITCH: Final = "HERETIX_PLUGINS"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, order=True)
class Plugin:
    """One part that an installed package offers."""

    kind: Kind
    name: str
    package: str
    version: str
    target: str
    """Import path, `module:attribute`."""

    def __str__(self) -> str:
        return f"{self.package} {self.version}"


@dataclass(frozen=True, slots=True)
class Registry(Generic[T]):
    """Parts of one kind by name. A name that is built in can't be taken by a plug-in."""

    kind: Kind
    builtin: Mapping[str, object]
    """The part itself, or its `module:attribute`."""
    check: Callable[[Any], T]
    """Returns a loaded object as a part, or raises TypeError that says what it must be."""

    def names(self) -> tuple[str, ...]:
        """Every name that can be asked for, built-in ones first."""
        return (*self.builtin, *self.plugins())

    def plugins(self) -> dict[str, Plugin]:
        """The plug-ins that can be asked for, by name; of two with one name, the first package."""
        found: dict[str, Plugin] = {}
        for plugin in find_plugins():
            if plugin.kind == self.kind and plugin.name not in self.builtin:
                found.setdefault(plugin.name, plugin)
        return found

    def offers(self, name: str) -> bool:
        """Tell whether `name` can be asked for; entry points are read only if it isn't built in."""
        return name in self.builtin or name in self.plugins()

    def plugin(self, name: str) -> Plugin | None:
        """The plug-in that offers `name`; None where it is built in or nobody offers it."""
        return None if name in self.builtin else self.plugins().get(name)

    def load(self, name: str) -> T:
        """Import the part. KeyError: nobody offers it. PluginError: its package is broken."""
        if name in self.builtin:
            part = self.builtin[name]
            return self.check(import_target(part) if isinstance(part, str) else part)
        return self.load_plugin(self.plugins()[name])

    def load_plugin(self, plugin: Plugin) -> T:
        """Import one plug-in, whatever goes wrong in it being told as a PluginError."""
        if plugin.name in self.builtin:
            raise _refuse(plugin, "the name is built in; it needs another")
        if self.plugins().get(plugin.name, plugin) != plugin:
            raise _refuse(plugin, f"{self.plugins()[plugin.name]} offers this name as well")
        try:
            return self.check(import_target(plugin.target))
        except (Exception, SystemExit) as exc:
            # Foreign code: it may raise anything, and must take nothing with it.
            raise _refuse(plugin, f"{type(exc).__name__}: {exc}") from exc


def is_switched_off() -> bool:
    """Tell whether the environment leaves all plug-ins out."""
    return os.environ.get(SWITCH, "").strip() == "0"


def find_plugins() -> tuple[Plugin, ...]:
    """Find every plug-in on the path, sorted; none of them is imported."""
    return () if is_switched_off() else _scan(tuple(sys.path))


@cache
def _scan(_path: tuple[str, ...]) -> tuple[Plugin, ...]:
    from importlib.metadata import distributions

    found: dict[tuple[str, str, str], Plugin] = {}
    for distribution in distributions():
        text = distribution.read_text("entry_points.txt")
        # Most packages have none of ours, and parsing all of them takes longer than the rest.
        if text is None or "[heretix." not in text:
            continue
        package = distribution.metadata["Name"]
        for point in distribution.entry_points:
            for kind in KINDS:
                if point.group == f"heretix.{kind}":
                    plugin = Plugin(kind, point.name, package, distribution.version, point.value)
                    # The first on the path is the one that would be imported.
                    found.setdefault((kind, point.name, package), plugin)
    return tuple(sorted(found.values()))


def import_target(target: str) -> Any:
    """Import what `module:attribute` names."""
    module, _, attribute = target.partition(":")
    found: Any = import_module(module)
    for name in filter(None, attribute.split(".")):
        found = getattr(found, name)
    return found


def _refuse(plugin: Plugin, reason: str) -> PluginError:
    return PluginError(
        f"`{plugin.name}` of {plugin} can't be used as one of heretix.{plugin.kind}: {reason}; "
        f"upgrade or uninstall the package, or set {SWITCH}=0",
        reason=reason,
    )


_REQUIRED: Final = re.compile(r"([\w.-]+).*\bextra == ['\"]([\w-]+)['\"]")


def find_extras() -> dict[str, bool]:
    """Look which extras of this package are installed: whether all that each requires is here."""
    from importlib.metadata import PackageNotFoundError, distribution

    extras: dict[str, bool] = {}
    try:
        ours = distribution("heretix")
    except PackageNotFoundError:
        # Run from its sources, nobody wrote down what it requires.
        return extras
    for name in ours.metadata.get_all("Provides-Extra", ()):
        extras[name] = True
    for line in ours.requires or ():
        if (found := _REQUIRED.match(line)) is None or "sys_platform" in line:
            continue
        try:
            distribution(found[1])
        except PackageNotFoundError:
            extras[found[2]] = False
    return dict(sorted(extras.items()))
