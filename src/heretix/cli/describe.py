"""`heretix describe`: the plan, and what it will take, without any call."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from heretix.cli import options as opt
from heretix.cli.output import print_json

if TYPE_CHECKING:
    from heretix.measurement.measurement import Estimate, Measurement
    from heretix.plan import Plan
    from heretix.settings import Settings

__all__ = ["describe"]

_PLANS_SHOWN = 4


def describe(
    claim: opt.ClaimArgument = None,
    config: opt.ConfigOption = None,
    mock: opt.MockOption = False,
    model: opt.ModelOption = None,
    K: opt.KOption = None,
    R: opt.ROption = None,
    T: opt.TOption = None,
    B: opt.BOption = None,
    seed: opt.SeedOption = None,
    agg: opt.AggOption = None,
    preset: opt.PresetOption = None,
    claims_file: opt.ClaimsFileOption = None,
    prompts_file: opt.PromptsFileOption = None,
    base_url: opt.BaseUrlOption = None,
    max_output_tokens: opt.MaxTokensOption = None,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Print the plan: templates, slots, seeds, calls to make, tokens and cost. Calls nothing."""
    from heretix.measurement.description import plan_content
    from heretix.measurement.measurement import prepare
    from heretix.settings import Settings

    request = opt.read_config(
        config,
        claim,
        models=model,
        K=K,
        R=R,
        T=T,
        B=B,
        seed=seed,
        agg=agg,
        preset=preset,
        claims_file=claims_file,
        prompts_file=prompts_file,
        base_url=base_url,
        max_output_tokens=max_output_tokens,
    )
    settings = Settings.from_env()
    settings = replace(settings, db=db or settings.db)
    measurement = prepare(request, settings, mock=mock, calls=False)
    opt.warn_of_shortfall(measurement)
    estimate = _estimate(measurement, settings)
    plans = _first_plans(measurement)
    if as_json:
        content = {"plans": [plan_content(plan) for plan in plans], "estimate": asdict(estimate)}
        print_json(content)
        return
    from heretix.report.terminal import estimate_view, plan_view

    console = opt.console()
    for plan in plans:
        console.print(plan_view(plan))
        console.print()
    if estimate.runs > len(plans):
        console.print(f"… and {estimate.runs - len(plans):,} more plans like these", style="dim")
    console.print(estimate_view(measurement, estimate))


def _estimate(measurement: Measurement, settings: Settings) -> Estimate:
    """With the cache's help where there is one; describing creates no store."""
    from heretix.errors import RecordError
    from heretix.store import Store

    try:
        store = Store.open(settings.db, create=False)
    except RecordError:
        return measurement.estimate(None)
    with store:
        return measurement.estimate(store)


def _first_plans(measurement: Measurement) -> list[Plan]:
    plans = []
    for model in measurement.models:
        for plan in measurement.plans(model):
            plans.append(plan)
            break
    return plans[:_PLANS_SHOWN]
