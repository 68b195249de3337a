"""The economy: the chain of transfers, accounts, episodes and what belongs to them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

GENESIS = "0" * 64


def upgrade() -> None:
    """Add what the exchange needs."""
    create_chain()
    create_accounts()
    create_transfers()
    create_episodes()
    create_positions()
    create_statements()
    create_episode_measurements()
    create_exploration_grants()
    create_reputation_events()


def create_chain() -> None:
    """One row, there from the start: writers take it first, so it must exist to be taken."""
    table = op.create_table(
        "chain",
        sa.Column("id", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("last_seq", sa.BigInteger, nullable=False),
        sa.Column("last_hash", sa.String, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_chain"),
        sa.CheckConstraint("id = 1", name=op.f("ck_chain_one_row")),
    )
    op.bulk_insert(table, [{"id": 1, "last_seq": 0, "last_hash": GENESIS}])


def create_accounts() -> None:
    """Who can hold money, and what they hold."""
    op.create_table(
        "accounts",
        sa.Column("id", sa.String, nullable=False),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("currency", sa.String, nullable=False),
        sa.Column("episode", sa.String),
        sa.Column("person", sa.String),
        sa.Column("balance", sa.BigInteger, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_accounts"),
    )
    op.create_index("ix_accounts_episode", "accounts", ["episode"])
    op.create_index("ix_accounts_person", "accounts", ["person"])


def create_transfers() -> None:
    """One row a transfer, in the order of the chain."""
    op.create_table(
        "transfers",
        sa.Column(
            "seq",
            sa.BigInteger().with_variant(sa.Integer, "sqlite"),
            autoincrement=False,
            nullable=False,
        ),
        sa.Column("id", sa.String, nullable=False),
        sa.Column("body_hash", sa.String, nullable=False),
        sa.Column("debit", sa.String, nullable=False),
        sa.Column("credit", sa.String, nullable=False),
        sa.Column("amount", sa.BigInteger, nullable=False),
        sa.Column("currency", sa.String, nullable=False),
        sa.Column("code", sa.String, nullable=False),
        sa.Column("episode", sa.String),
        sa.Column("group_id", sa.String, nullable=False),
        sa.Column("prev_hash", sa.String, nullable=False),
        sa.Column("hash", sa.String, nullable=False),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_transfers"),
        sa.ForeignKeyConstraint(["debit"], ["accounts.id"], name="fk_transfers_debit"),
        sa.ForeignKeyConstraint(["credit"], ["accounts.id"], name="fk_transfers_credit"),
        sa.CheckConstraint("amount > 0", name=op.f("ck_transfers_amount")),
    )
    op.create_index("ix_transfers_id", "transfers", ["id"], unique=True)
    op.create_index("ix_transfers_group_id", "transfers", ["group_id"])
    for column in ("debit", "credit", "episode"):
        op.create_index(f"ix_transfers_{column}_seq", "transfers", [column, "seq"])


def create_episodes() -> None:
    """One row an episode."""
    op.create_table(
        "episodes",
        sa.Column("episode_id", sa.String, nullable=False),
        sa.Column("claim", sa.Text, nullable=False),
        sa.Column("currency", sa.String, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("is_open", sa.Boolean, nullable=False),
        sa.Column("terms_hash", sa.String),
        sa.Column("market_money", sa.BigInteger),
        sa.Column("market_heretic", sa.BigInteger),
        sa.Column("market_orthodox", sa.BigInteger),
        sa.Column("position_count", sa.Integer, nullable=False),
        sa.Column("clock_ms", sa.BigInteger, nullable=False),
        sa.Column("close_ms", sa.BigInteger),
        sa.Column("record_json", sa.Text, nullable=False),
        sa.Column("record_sha256", sa.String, nullable=False),
        sa.Column("secret", sa.String, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("updated_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("episode_id", name="pk_episodes"),
    )
    op.create_index("ix_episodes_created_ms", "episodes", ["created_ms"])
    op.create_index("ix_episodes_state_created_ms", "episodes", ["state", "created_ms"])


def create_positions() -> None:
    """One row a bet."""
    op.create_table(
        "positions",
        sa.Column("episode_id", sa.String, nullable=False),
        sa.Column("number", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("account", sa.String, nullable=False),
        sa.Column("side", sa.String, nullable=False),
        sa.Column("stake", sa.BigInteger, nullable=False),
        sa.Column("shares", sa.BigInteger, nullable=False),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("house", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("episode_id", "number", name="pk_positions"),
        sa.ForeignKeyConstraint(
            ["episode_id"], ["episodes.episode_id"], name="fk_positions_episode_id"
        ),
        sa.ForeignKeyConstraint(["account"], ["accounts.id"], name="fk_positions_account"),
        sa.CheckConstraint("side IN ('heretic', 'orthodox')", name=op.f("ck_positions_side")),
    )
    op.create_index("ix_positions_account", "positions", ["account"])


def create_statements() -> None:
    """One row a group of transfers."""
    op.create_table(
        "statements",
        sa.Column("group_id", sa.String, nullable=False),
        sa.Column("episode_id", sa.String),
        sa.Column("move", sa.String, nullable=False),
        sa.Column("request_hash", sa.String, nullable=False),
        sa.Column("subject", sa.Integer),
        sa.Column("lines_json", sa.Text, nullable=False),
        sa.Column("first_seq", sa.BigInteger, nullable=False),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("group_id", name="pk_statements"),
    )
    op.create_index("ix_statements_episode_id_first_seq", "statements", ["episode_id", "first_seq"])


def create_episode_measurements() -> None:
    """One row a measurement that an episode was told."""
    op.create_table(
        "episode_measurements",
        sa.Column("episode_id", sa.String, nullable=False),
        sa.Column("stage", sa.String, nullable=False),
        sa.Column("measurement_json", sa.Text, nullable=False),
        sa.Column("executions_json", sa.Text, nullable=False),
        sa.Column("bundle_id", sa.String),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("episode_id", "stage", name="pk_episode_measurements"),
        sa.ForeignKeyConstraint(
            ["episode_id"], ["episodes.episode_id"], name="fk_episode_measurements_episode_id"
        ),
    )


def create_exploration_grants() -> None:
    """One row a claim that earned credits."""
    op.create_table(
        "exploration_grants",
        sa.Column("claim_id", sa.String, nullable=False),
        sa.Column("claim", sa.Text, nullable=False),
        sa.Column("person", sa.String, nullable=False),
        sa.Column("amount", sa.BigInteger, nullable=False),
        sa.Column("found", sa.BigInteger, nullable=False),
        sa.Column("day", sa.Integer, nullable=False),
        sa.Column("week", sa.Integer, nullable=False),
        sa.Column("evidence_json", sa.Text, nullable=False),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("claim_id", name="pk_exploration_grants"),
    )
    op.create_index("ix_exploration_grants_person_week", "exploration_grants", ["person", "week"])


def create_reputation_events() -> None:
    """One row an attempt or a settled reward."""
    op.create_table(
        "reputation_events",
        sa.Column("episode_id", sa.String, nullable=False),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("number", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("account", sa.String, nullable=False),
        sa.Column("passed", sa.Boolean),
        sa.Column("amount", sa.BigInteger),
        sa.Column("scale", sa.BigInteger),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("episode_id", "kind", "number", name="pk_reputation_events"),
        sa.ForeignKeyConstraint(
            ["episode_id"], ["episodes.episode_id"], name="fk_reputation_events_episode_id"
        ),
        sa.CheckConstraint("kind IN ('attempt', 'reward')", name=op.f("ck_reputation_events_kind")),
    )
    op.create_index("ix_reputation_events_account_at_ms", "reputation_events", ["account", "at_ms"])
