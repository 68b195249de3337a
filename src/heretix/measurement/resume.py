"""An execution that was stopped, made ready to go on."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from heretix.config import Claim
from heretix.errors import RecordError
from heretix.measurement.measurement import Measurement
from heretix.measurement.replan import bank_of, config_of
from heretix.providers.registry import open_provider, resolve_model

if TYPE_CHECKING:
    from heretix.prompts.bank import Bank
    from heretix.settings import Settings
    from heretix.store import Store

__all__ = ["resumed"]


def resumed(store: Store, ref: str, settings: Settings) -> Measurement:
    """The measurement that an execution was part of, for its claim and model alone.

    The plan is the same, so what is stored is taken from the cache, and exactly the missing calls
    are made.
    """
    started = store.started(ref)
    if not started.run_id.startswith("heretix-rpl-"):
        raise RecordError(
            f"`{started.execution_id}` was shown evidence, which isn't kept with what was asked; "
            "give the same `heretix lens` or `heretix run` command again: its samples are cached"
        )
    asked: dict[str, Any] = json.loads(started.config_json)
    if asked["seed_source"] == "environment":
        settings = replace(settings, rpl_seed=asked["bootstrap_seed"])
    model = resolve_model(asked["model"], settings)
    measurement = Measurement(
        config=config_of(asked),
        settings=settings,
        bank=_bank(store, asked["prompt_version"]),
        models=(model,),
        claims=(Claim(asked["claim"], asked.get("claim_id")),),
    )
    # Opening connects to nothing yet, but says what is wrong with a key.
    open_provider(model, settings, options=measurement.options)
    return measurement


def _bank(store: Store, version: str) -> Bank:
    """The bank as the store has it: the file it came from may be gone."""
    row = store.bank(version)
    if row is None:
        raise RecordError(f"`{store.name}` has no text of prompt bank {version}")
    return bank_of(row)
