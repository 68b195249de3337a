"""What a plan will ask, as JSON: for people and programs that look before they measure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heretix.plan import Plan

__all__ = ["plan_content"]


def plan_content(plan: Plan) -> dict[str, Any]:
    """A plan as JSON."""
    return {
        "run_id": plan.run_id,
        "claim": plan.claim,
        "model": plan.model.identity,
        "provider": plan.model.provider,
        "demonstration": plan.model.is_demonstration,
        "prompt_version": plan.bank.version,
        "sampling": {"K": plan.K, "R": plan.R, "T": plan.T, "N": plan.N},
        "sampler": {
            "T_bank": plan.bank.T_bank,
            "rotation_offset": plan.rotation_offset,
            "tpl_indices": list(plan.tpl_indices),
            "seq": list(plan.seq),
        },
        "planned_counts": {str(index): count for index, count in plan.counts.items()},
        "imbalance_ratio": plan.imbalance_ratio,
        "aggregation": {
            "agg": plan.agg,
            "center": plan.center,
            "trim": plan.trim,
            "B": plan.B,
            "bootstrap_seed": plan.bootstrap_seed,
            "seed_source": plan.seed_source,
        },
        "max_output_tokens": plan.max_output_tokens,
        "options": plan.options.as_dict(),
        "templates": [
            {"paraphrase_idx": index, "prompt_sha256": prompt.sha256, "user": prompt.user}
            for index, prompt in plan.prompts.items()
        ],
    }
