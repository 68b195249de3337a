"""The tables of the economy: the chain of transfers, accounts, episodes and what belongs to them.

Money is 64-bit integers of minor units. Moments are milliseconds since 1970, as the rules
count them.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    String,
    Table,
)

from heretix.store.schema import AnyText, metadata

__all__ = [
    "accounts",
    "chain",
    "episode_measurements",
    "episodes",
    "exploration_grants",
    "positions",
    "reputation_events",
    "statements",
    "transfers",
]

# SQLite keeps a table in the order of its key only if that is called INTEGER; it holds 64 bits.
_SEQ: Final = BigInteger().with_variant(Integer, "sqlite")

chain: Final = Table(
    "chain",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("last_seq", BigInteger, nullable=False),
    Column("last_hash", String, nullable=False),
    CheckConstraint("id = 1", name="one_row"),
)
"""The end of the chain, in one row that the migration wrote. Every writer takes it first."""

accounts: Final = Table(
    "accounts",
    metadata,
    Column("id", String, primary_key=True),
    Column("kind", String, nullable=False),
    Column("currency", String, nullable=False),
    Column("episode", String),
    Column("person", String),
    Column("balance", BigInteger, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Index(None, "episode"),
    Index(None, "person"),
)
"""Who can hold money, and what they hold. `person` is the name behind a user's account."""

transfers: Final = Table(
    "transfers",
    metadata,
    Column("seq", _SEQ, primary_key=True, autoincrement=False),
    Column("id", String, nullable=False),
    Column("body_hash", String, nullable=False),
    Column("debit", ForeignKey(accounts.c.id), nullable=False),
    Column("credit", ForeignKey(accounts.c.id), nullable=False),
    Column("amount", BigInteger, nullable=False),
    Column("currency", String, nullable=False),
    Column("code", String, nullable=False),
    Column("episode", String),
    Column("group_id", String, nullable=False),
    Column("prev_hash", String, nullable=False),
    Column("hash", String, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    CheckConstraint("amount > 0", name="amount"),
    Index(None, "id", unique=True),
    Index(None, "group_id"),
    Index(None, "debit", "seq"),
    Index(None, "credit", "seq"),
    Index(None, "episode", "seq"),
)
"""The chain. A row is written once and never changes."""

episodes: Final = Table(
    "episodes",
    metadata,
    Column("episode_id", String, primary_key=True),
    Column("claim", AnyText, nullable=False),
    Column("currency", String, nullable=False),
    Column("state", String, nullable=False),
    Column("is_open", Boolean, nullable=False),
    Column("terms_hash", String),
    # What a bet changes stands in columns; `record_json` is everything else, so that a bet
    # neither reads nor writes it. The hash lets a reader keep what it has decoded.
    Column("market_money", BigInteger),
    Column("market_heretic", BigInteger),
    Column("market_orthodox", BigInteger),
    Column("position_count", Integer, nullable=False),
    Column("clock_ms", BigInteger, nullable=False),
    Column("close_ms", BigInteger),
    Column("record_json", AnyText, nullable=False),
    Column("record_sha256", String, nullable=False),
    # The seed that the close and the judges are drawn from, in hex. Nothing shows it before the
    # freeze; then it is part of `record_json`.
    Column("secret", String, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("updated_ms", BigInteger, nullable=False),
    Index(None, "created_ms"),
    Index(None, "state", "created_ms"),
)
"""One row an episode, as its last move left it. `is_open`: its pots may still hold money."""

positions: Final = Table(
    "positions",
    metadata,
    Column("episode_id", ForeignKey(episodes.c.episode_id), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("account", ForeignKey(accounts.c.id), nullable=False),
    Column("side", String, nullable=False),
    Column("stake", BigInteger, nullable=False),
    Column("shares", BigInteger, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("house", Boolean, nullable=False),
    Index(None, "account"),
    CheckConstraint("side IN ('heretic', 'orthodox')", name="side"),
)
"""One row a bet. `shares` are micro-shares, which a market's limit keeps within 64 bits."""

statements: Final = Table(
    "statements",
    metadata,
    Column("group_id", String, primary_key=True),
    Column("episode_id", String),
    Column("move", String, nullable=False),
    # What was asked for under the key, and which bet, challenge or dispute came of it: enough
    # to answer a retry with the first result, or to refuse a key used for something else.
    Column("request_hash", String, nullable=False),
    Column("subject", Integer),
    Column("lines_json", AnyText, nullable=False),
    Column("first_seq", BigInteger, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Index(None, "episode_id", "first_seq"),
)
"""One row a group of transfers: the move that asked for it, and a sentence for each transfer."""

episode_measurements: Final = Table(
    "episode_measurements",
    metadata,
    Column("episode_id", ForeignKey(episodes.c.episode_id), primary_key=True),
    Column("stage", String, primary_key=True),
    Column("measurement_json", AnyText, nullable=False),
    Column("executions_json", AnyText, nullable=False),
    Column("bundle_id", String),
    Column("at_ms", BigInteger, nullable=False),
)
"""What an episode was told by a measurement, and the executions that it came from.

`stage` is `c0`, `gate:N` for challenge N, `first`, `second`, or `round:N` for dispute N."""

exploration_grants: Final = Table(
    "exploration_grants",
    metadata,
    Column("claim_id", String, primary_key=True),
    Column("claim", AnyText, nullable=False),
    Column("person", String, nullable=False),
    Column("amount", BigInteger, nullable=False),
    Column("found", BigInteger, nullable=False),
    Column("day", Integer, nullable=False),
    Column("week", Integer, nullable=False),
    Column("evidence_json", AnyText, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Index(None, "person", "week"),
)
"""Credits by claim: a claim is credited once. Days and weeks are counted from 1970."""

reputation_events: Final = Table(
    "reputation_events",
    metadata,
    Column("episode_id", ForeignKey(episodes.c.episode_id), primary_key=True),
    Column("kind", String, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("account", String, nullable=False),
    Column("passed", Boolean),
    Column("amount", BigInteger),
    Column("scale", BigInteger),
    Column("at_ms", BigInteger, nullable=False),
    Index(None, "account", "at_ms"),
    CheckConstraint("kind IN ('attempt', 'reward')", name="kind"),
)
"""What a person's standing follows from: attempts, passed or not, and settled rewards."""
