"""The first schema: runs, samples, executions with their results, and prompt banks."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create everything."""
    create_runs()
    create_samples()
    create_executions()
    create_results()
    create_execution_samples()
    create_prompts()


def create_runs() -> None:
    """One row a recipe: the latest summary."""
    op.create_table(
        "runs",
        sa.Column("run_id", sa.String, nullable=False),
        sa.Column("claim", sa.Text, nullable=False),
        sa.Column("model", sa.String, nullable=False),
        sa.Column("provider", sa.String, nullable=False),
        sa.Column("prompt_version", sa.String, nullable=False),
        sa.Column("K", sa.Integer, nullable=False),
        sa.Column("R", sa.Integer, nullable=False),
        sa.Column("T", sa.Integer, nullable=False),
        sa.Column("B", sa.Integer, nullable=False),
        sa.Column("seed", sa.String(20)),
        sa.Column("bootstrap_seed", sa.String(20)),
        sa.Column("prob_true_rpl", sa.Double),
        sa.Column("ci_lo", sa.Double),
        sa.Column("ci_hi", sa.Double),
        sa.Column("ci_width", sa.Double),
        sa.Column("stability_score", sa.Double),
        sa.Column("stability_band", sa.String),
        sa.Column("is_stable", sa.Boolean),
        sa.Column("template_iqr_logit", sa.Double),
        sa.Column("imbalance_ratio", sa.Double),
        sa.Column("rpl_compliance_rate", sa.Double),
        sa.Column("cache_hit_rate", sa.Double),
        sa.Column("counts_by_template_json", sa.Text),
        sa.Column("sampler_json", sa.Text),
        sa.Column("config_json", sa.Text, nullable=False),
        sa.Column("execution_id", sa.String, nullable=False),
        sa.Column("created_at", sa.String, nullable=False),
        sa.Column("updated_at", sa.String, nullable=False),
        sa.PrimaryKeyConstraint("run_id", name="pk_runs"),
    )
    op.create_index("ix_runs_updated_at", "runs", ["updated_at"])


def create_samples() -> None:
    """One row a `cache_key`."""
    op.create_table(
        "samples",
        sa.Column("cache_key", sa.String, nullable=False),
        sa.Column("run_id", sa.String, nullable=False),
        sa.Column("prompt_sha256", sa.String, nullable=False),
        sa.Column("paraphrase_idx", sa.Integer, nullable=False),
        sa.Column("replicate_idx", sa.Integer, nullable=False),
        sa.Column("prob_true", sa.Double),
        sa.Column("logit", sa.Double),
        sa.Column("json_valid", sa.Boolean, nullable=False),
        sa.Column("noncompliance", sa.String),
        sa.Column("raw_answer", sa.Text),
        sa.Column("error", sa.Text),
        sa.Column("provider_model_id", sa.Text),
        sa.Column("response_id", sa.Text),
        sa.Column("fingerprint", sa.Text),
        sa.Column("tokens_in", sa.Integer),
        sa.Column("tokens_out", sa.Integer),
        sa.Column("temperature", sa.Double),
        sa.Column("latency_ms", sa.Integer, nullable=False),
        sa.Column("created_at", sa.String, nullable=False),
        sa.PrimaryKeyConstraint("cache_key", name="pk_samples"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name="fk_samples_run_id"),
    )
    op.create_index("ix_samples_run_id", "samples", ["run_id"])


def create_executions() -> None:
    """One row an invocation."""
    op.create_table(
        "executions",
        sa.Column("execution_id", sa.String, nullable=False),
        sa.Column("run_id", sa.String, nullable=False),
        sa.Column("claim", sa.Text, nullable=False),
        sa.Column("model", sa.String, nullable=False),
        sa.Column("config_json", sa.Text, nullable=False),
        sa.Column("created_at", sa.String, nullable=False),
        sa.PrimaryKeyConstraint("execution_id", name="pk_executions"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name="fk_executions_run_id"),
    )
    op.create_index("ix_executions_run_id_created_at", "executions", ["run_id", "created_at"])


def create_results() -> None:
    """How an execution ended."""
    op.create_table(
        "results",
        sa.Column("execution_id", sa.String, nullable=False),
        sa.Column("status", sa.String, nullable=False),
        sa.Column("finished_at", sa.String, nullable=False),
        sa.Column("record_json", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("execution_id", name="pk_results"),
        sa.ForeignKeyConstraint(
            ["execution_id"], ["executions.execution_id"], name="fk_results_execution_id"
        ),
        sa.CheckConstraint(
            "status IN ('ok', 'no_estimate', 'interrupted')", name=op.f("ck_results_status")
        ),
    )


def create_execution_samples() -> None:
    """Which samples an execution used."""
    op.create_table(
        "execution_samples",
        sa.Column("execution_id", sa.String, nullable=False),
        sa.Column("cache_key", sa.String, nullable=False),
        sa.Column("from_cache", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("execution_id", "cache_key", name="pk_execution_samples"),
        sa.ForeignKeyConstraint(
            ["execution_id"], ["executions.execution_id"], name="fk_execution_samples_execution_id"
        ),
        sa.ForeignKeyConstraint(
            ["cache_key"], ["samples.cache_key"], name="fk_execution_samples_cache_key"
        ),
        sqlite_with_rowid=False,
    )


def create_prompts() -> None:
    """The text behind each prompt version."""
    op.create_table(
        "prompts",
        sa.Column("prompt_version", sa.String, nullable=False),
        sa.Column("bank_sha256", sa.String, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("system", sa.Text, nullable=False),
        sa.Column("user_template", sa.Text, nullable=False),
        sa.Column("paraphrases_json", sa.Text, nullable=False),
        sa.Column("created_at", sa.String, nullable=False),
        sa.PrimaryKeyConstraint("prompt_version", name="pk_prompts"),
    )
