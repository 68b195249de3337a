"""An execution that was stopped, made ready to go on."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from heretix.config import Claim, RunConfig
from heretix.errors import RecordError
from heretix.measurement.measurement import Measurement
from heretix.prompts.bank import Bank
from heretix.providers.registry import open_provider, resolve_model

if TYPE_CHECKING:
    from heretix.settings import Settings
    from heretix.store import Store

__all__ = ["resumed"]


def resumed(store: Store, ref: str, settings: Settings) -> Measurement:
    """The measurement that an execution was part of, for its claim and model alone.

    The plan is the same, so what is stored is taken from the cache, and exactly the missing calls
    are made.
    """
    asked: dict[str, Any] = json.loads(store.started(ref).config_json)
    source = asked["seed_source"]
    if source == "environment":
        settings = replace(settings, rpl_seed=asked["bootstrap_seed"])
    options = asked["options"]
    config = RunConfig.parse(
        {
            **{name: asked[name] for name in ("K", "R", "T", "B", "agg", "center", "trim")},
            "seed": asked["bootstrap_seed"] if source == "config" else None,
            "max_output_tokens": asked["max_output_tokens"],
            "template_include": asked["template_include"],
            "template_exclude": asked["template_exclude"],
            **options,
        },
        source=f"execution {ref}",
    )
    model = resolve_model(asked["model"], settings)
    measurement = Measurement(
        config=config,
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
    return Bank.of(
        version=version,
        system=row["system"],
        user_template=row["user_template"],
        paraphrases=json.loads(row["paraphrases_json"]),
        source=row["source"],
    )
