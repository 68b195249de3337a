"""The tables, written down once for SQLite and PostgreSQL.

A new table is added here and in a new migration; a test holds the two equal on both databases.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from sqlalchemy import (
    Boolean,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
)

if TYPE_CHECKING:
    from sqlalchemy import Dialect

__all__ = [
    "HEAD",
    "AnyText",
    "Unsigned64",
    "batch_samples",
    "batches",
    "bundles",
    "execution_samples",
    "executions",
    "leases",
    "metadata",
    "prompts",
    "results",
    "runs",
    "samples",
]

HEAD: Final = "0006"
"""The newest migration. Known without importing Alembic, which costs a third of a second."""

_ESCAPE: Final = "\x1a"
_UNSTORABLE: Final = re.compile("[\x00\x1a\ud800-\udfff]")
_ESCAPED: Final = re.compile("\x1a([0-9a-f]{4})")


class AnyText(TypeDecorator[str]):
    """Text of any origin: whatever a model wrote can be stored and comes back as it was.

    PostgreSQL refuses NUL, and no database takes half a surrogate pair, though both can come out
    of a provider's JSON. Such a character is kept as U+001A (the control character that means
    "substitute") and four hex digits; everything else is stored as it is.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Escape what a database can't hold."""
        if value is None or _UNSTORABLE.search(value) is None:
            return value
        return _UNSTORABLE.sub(lambda found: f"{_ESCAPE}{ord(found[0]):04x}", value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        """Give the text back as it was."""
        if value is None or _ESCAPE not in value:
            return value
        return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), value)


class Unsigned64(TypeDecorator[int]):
    """An integer from 0 to 2^64-1, kept as decimal digits.

    BIGINT ends at 2^63-1, and SQLite turns a larger NUMERIC into a rounded float. Digits are exact
    in both databases and read the same in a shell as in the artifact.
    """

    impl = String(20)
    cache_ok = True

    def process_bind_param(self, value: int | str | None, dialect: Dialect) -> str | None:
        """Write the digits, of an integer or of a string of them."""
        if value is None:
            return None
        number = int(value)
        if not 0 <= number < 2**64:
            raise ValueError(f"a seed must be a whole number from 0 to 2^64-1, got {value}")
        return str(number)

    def process_result_value(self, value: str | None, dialect: Dialect) -> int | None:
        """Read the digits."""
        return None if value is None else int(value)


metadata: Final = MetaData(
    naming_convention={
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    }
)

runs: Final = Table(
    "runs",
    metadata,
    Column("run_id", String, primary_key=True),
    Column("claim", AnyText, nullable=False),
    Column("model", String, nullable=False),
    Column("provider", String, nullable=False),
    Column("prompt_version", String, nullable=False),
    Column("lens", String, nullable=False, server_default="RPL"),
    Column("bundle_id", String),
    Column("variant", String),
    Column("K", Integer, nullable=False),
    Column("R", Integer, nullable=False),
    Column("T", Integer, nullable=False),
    Column("B", Integer, nullable=False),
    Column("seed", Unsigned64),
    Column("bootstrap_seed", Unsigned64),
    Column("prob_true_rpl", Double),
    Column("ci_lo", Double),
    Column("ci_hi", Double),
    Column("ci_width", Double),
    Column("stability_score", Double),
    Column("stability_band", String),
    Column("is_stable", Boolean),
    Column("template_iqr_logit", Double),
    Column("imbalance_ratio", Double),
    Column("rpl_compliance_rate", Double),
    Column("cache_hit_rate", Double),
    Column("counts_by_template_json", AnyText),
    Column("sampler_json", AnyText),
    Column("config_json", AnyText, nullable=False),
    # The execution that the row speaks of. Not a foreign key: `executions` already points here.
    Column("execution_id", String, nullable=False),
    Column("created_at", String, nullable=False),
    Column("updated_at", String, nullable=False),
    Column("claim_sha256", String, nullable=False, server_default=""),
    Index(None, "updated_at"),
    Index(None, "claim_sha256", "updated_at"),
)
"""One row a recipe: the latest summary. It exists from the first start on, without numbers."""

samples: Final = Table(
    "samples",
    metadata,
    Column("cache_key", String, primary_key=True),
    Column("run_id", ForeignKey(runs.c.run_id), nullable=False),
    Column("prompt_sha256", String, nullable=False),
    Column("paraphrase_idx", Integer, nullable=False),
    Column("replicate_idx", Integer, nullable=False),
    Column("prob_true", Double),
    Column("logit", Double),
    Column("json_valid", Boolean, nullable=False),
    Column("noncompliance", String),
    Column("raw_answer", AnyText),
    Column("error", AnyText),
    Column("provider_model_id", AnyText),
    Column("response_id", AnyText),
    Column("fingerprint", AnyText),
    Column("tokens_in", Integer),
    Column("tokens_out", Integer),
    Column("temperature", Double),
    Column("attempts", Integer, nullable=False, server_default="1"),
    Column("latency_ms", Integer, nullable=False),
    Column("created_at", String, nullable=False),
    Index(None, "run_id"),
)
"""One row a `cache_key`: the fields of `heretix.sample.Sample`, under their names."""

executions: Final = Table(
    "executions",
    metadata,
    Column("execution_id", String, primary_key=True),
    Column("run_id", ForeignKey(runs.c.run_id), nullable=False),
    Column("claim", AnyText, nullable=False),
    Column("model", String, nullable=False),
    Column("config_json", AnyText, nullable=False),
    Column("created_at", String, nullable=False),
    Index(None, "run_id", "created_at"),
)
"""One row an invocation, written when it starts and never updated."""

results: Final = Table(
    "results",
    metadata,
    Column("execution_id", ForeignKey(executions.c.execution_id), primary_key=True),
    Column("status", String, nullable=False),
    Column("finished_at", String, nullable=False),
    Column("record_json", AnyText, nullable=False),
    CheckConstraint("status IN ('ok', 'no_estimate', 'interrupted')", name="status"),
)
"""How an execution ended, written once. An execution without one is running, or was killed."""

execution_samples: Final = Table(
    "execution_samples",
    metadata,
    Column("execution_id", ForeignKey(executions.c.execution_id), primary_key=True),
    Column("cache_key", ForeignKey(samples.c.cache_key), primary_key=True),
    Column("from_cache", Boolean, nullable=False),
    # Nothing but its key and one bit: the key alone is the table.
    sqlite_with_rowid=False,
)
"""Which samples an execution used, and which of them it didn't have to ask for."""

prompts: Final = Table(
    "prompts",
    metadata,
    Column("prompt_version", String, primary_key=True),
    Column("bank_sha256", String, nullable=False),
    Column("source", AnyText, nullable=False),
    Column("system", AnyText, nullable=False),
    Column("user_template", AnyText, nullable=False),
    Column("paraphrases_json", AnyText, nullable=False),
    Column("created_at", String, nullable=False),
)
"""The text behind each prompt version, so that one version never means two texts."""

bundles: Final = Table(
    "bundles",
    metadata,
    Column("bundle_id", String, primary_key=True),
    Column("claim", AnyText, nullable=False),
    Column("lens", String, nullable=False),
    Column("bundle_json", AnyText, nullable=False),
    Column("created_at", String, nullable=False),
)
"""What evidence lenses showed, content-addressed: a row never changes."""

leases: Final = Table(
    "leases",
    metadata,
    Column("cache_key", String, primary_key=True),
    Column("owner", String, nullable=False),
    Column("expires_at", Double, nullable=False),
    Index(None, "owner"),
)
"""Samples that somebody is about to pay for. `expires_at` counts seconds since 1970."""


batches: Final = Table(
    "batches",
    metadata,
    Column("batch_id", String, primary_key=True),
    Column("provider", String, nullable=False),
    Column("model", String, nullable=False),
    Column("base_url", AnyText),
    Column("provider_batch_id", String),
    Column("state", String, nullable=False),
    Column("requests", Integer, nullable=False),
    Column("submitted_at", String, nullable=False),
    Column("updated_at", String, nullable=False),
    Column("expires_at", String),
    Column("note", AnyText),
    UniqueConstraint("provider", "provider_batch_id"),
    CheckConstraint("state IN ('submitting', 'submitted', 'collected', 'abandoned')", name="state"),
    Index(None, "state"),
)
"""One row a batch at a provider, written before it is submitted. `base_url` is null at home."""

batch_samples: Final = Table(
    "batch_samples",
    metadata,
    Column("execution_id", ForeignKey(executions.c.execution_id), primary_key=True),
    Column("cache_key", String, primary_key=True),
    Column("batch_id", ForeignKey(batches.c.batch_id)),
    Column("owned", Boolean, nullable=False),
    Column("collected_at", String),
    Column("error", AnyText),
    Index(None, "batch_id"),
    sqlite_with_rowid=False,
)
"""The samples that executions wait for, and the batch that brings each: their own (`owned`),
one that was submitted before, or none when a live run was asking for it already. A failed request
keeps its `error` here, since an older answer may stand in `samples`."""
