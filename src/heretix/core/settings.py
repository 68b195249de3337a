"""The environment, read once per call and passed on as a value."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from heretix.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_DB = "runs/heretix.sqlite"
SEED_LIMIT = 2**64


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings from the environment. Tests build one; the command line reads one."""

    db: str = DEFAULT_DB
    lake: str | None = None
    """Archive of samples: a folder or s3://…"""
    on: str | None = None
    """Place to measure unless a configuration says: a cluster's address; None: this process."""
    rpl_seed: int | None = None
    no_cache: bool = False
    models_dir: Path | None = None
    prices_file: Path | None = None
    lease_s: float | None = None
    """Length of a lease on a sample unless it is extended; None: as the store has it."""
    explorer_providers: tuple[str, ...] | None = None
    """Providers that explorers may use in jobs; None: all."""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The whole environment, for provider keys; never printed."""

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Settings:
        """Read the variables that Heretix knows."""
        env = {**_dotenv(), **os.environ} if env is None else dict(env)
        models_dir = env.get("HERETIX_MODELS_DIR")
        prices_file = env.get("HERETIX_PRICES")
        return cls(
            db=env.get("HERETIX_DB") or DEFAULT_DB,
            lake=env.get("HERETIX_LAKE") or None,
            on=env.get("HERETIX_ON") or None,
            rpl_seed=_seed(env.get("HERETIX_RPL_SEED")),
            no_cache=_flag("HERETIX_RPL_NO_CACHE", env.get("HERETIX_RPL_NO_CACHE")),
            models_dir=Path(models_dir) if models_dir else None,
            prices_file=Path(prices_file) if prices_file else None,
            lease_s=_seconds("HERETIX_LEASE_S", env.get("HERETIX_LEASE_S")),
            explorer_providers=_names(env.get("HERETIX_EXPLORER_PROVIDERS")),
            env=env,
        )


def _dotenv() -> dict[str, str]:
    """Read `.env` of the current folder, where people keep keys; the environment wins over it."""
    path = Path(".env")
    if not path.is_file():
        return {}
    from dotenv import dotenv_values

    try:
        found = dotenv_values(path, interpolate=False, encoding="utf-8-sig")
    except OSError as exc:
        raise ConfigError(f"`.env` of this folder can't be read: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError("`.env` of this folder isn't UTF-8 text; save it as UTF-8") from exc
    return {name: value for name, value in found.items() if value is not None}


def _names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(text.replace(",", " ").split())


def _seed(text: str | None) -> int | None:
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or int(text) >= SEED_LIMIT:
        raise ConfigError(
            f"`HERETIX_RPL_SEED` must be a whole number from 0 to 2^64-1, got {text!r}"
        )
    return int(text)


def _flag(name: str, text: str | None) -> bool:
    value = (text or "").strip().lower()
    if value in {"", "0", "false", "no"}:
        return False
    if value in {"1", "true", "yes"}:
        return True
    raise ConfigError(f"`{name}` must be 1 or 0, got {text!r}")


def _seconds(name: str, text: str | None) -> float | None:
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 1.0 <= seconds <= 86_400.0:
        raise ConfigError(f"`{name}` must be a number of seconds from 1 to 86400, got {text!r}")
    return seconds
