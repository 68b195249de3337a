"""From what the store keeps of an execution back to its plan, after a restart.

Planning is a pure function, so what was asked for and the bank's text are enough; that the result
is the same plan is checked, not hoped for.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from heretix.config import RunConfig
from heretix.errors import RecordError
from heretix.measurement.execution import plan_json
from heretix.plan import Plan, make_plan
from heretix.prompts.bank import Bank
from heretix.providers.catalog import parse_model

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["bank_of", "config_of", "replan"]


def bank_of(row: Mapping[str, Any]) -> Bank:
    """The bank that a row of `prompts` holds."""
    return Bank.of(
        version=row["prompt_version"],
        system=row["system"],
        user_template=row["user_template"],
        paraphrases=json.loads(row["paraphrases_json"]),
        source=row["source"],
    )


def config_of(asked: Mapping[str, Any]) -> RunConfig:
    """The configuration behind what `plan_json` kept."""
    names = ("K", "R", "T", "B", "agg", "center", "trim", "max_output_tokens")
    return RunConfig.parse(
        {
            **{name: asked[name] for name in (*names, "template_include", "template_exclude")},
            **asked["options"],
            "seed": asked["bootstrap_seed"] if asked["seed_source"] == "config" else None,
        },
        source="execution",
    )


def replan(config_json: str, bank: Bank) -> Plan:
    """The plan whose `plan_json` this is. Another Heretix may plan otherwise: that is refused."""
    asked = json.loads(config_json)
    seed, source = asked["bootstrap_seed"], asked["seed_source"]
    plan = make_plan(
        asked["claim"],
        parse_model(asked["model"]),
        bank,
        config_of(asked),
        claim_id=asked.get("claim_id"),
        env_seed=seed if source == "environment" else None,
    )
    if plan_json(plan) != config_json:
        raise RecordError(
            f"the plan of {asked['claim']!r} for {asked['model']} can't be made again: this "
            "Heretix plans differently than the one that submitted it; use that version"
        )
    return plan
