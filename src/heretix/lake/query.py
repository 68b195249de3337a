"""SQL over a lake: views in DuckDB, which itself can reach no file and no network.

Arrow reads the files that the manifest names and hands over columns. The user's SQL runs in a
database in memory whose access to the outside is switched off, for good, before it is started.
"""

from __future__ import annotations

import contextlib
import tempfile
from typing import TYPE_CHECKING, Any, Final

from heretix.belief.logodds import CLAMP
from heretix.core.errors import ConfigError
from heretix.lake.files import load
from heretix.lake.tables import schema_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from heretix.lake.files import Lake, Manifest

MACROS: Final = (
    # A moment without a zone: what deals with zones in DuckDB is an extension, to be fetched.
    "utc(moment) AS epoch_ms(epoch_ms(moment))",
    f"clamped(prob) AS least(greatest(prob, {CLAMP}), {1 - CLAMP})",
    # `greatest` passes over what is missing.
    "log_odds(prob) AS CASE WHEN prob >= 0 THEN ln(clamped(prob) / (1 - clamped(prob))) END",
)
VIEWS: Final = {
    "samples": """
        SELECT lower(hex(s.cache_key)) AS cache_key, s.run_id, s.model, s.bank, s.date,
               s.paraphrase_idx, s.replicate_idx, s.prob_true,
               log_odds(s.prob_true) AS logit,
               s.error IS NULL AND s.noncompliance IS NULL AS compliant,
               s.noncompliance, s.raw_answer, s.error, s.provider_model_id, s.response_id,
               s.fingerprint, s.tokens_in, s.tokens_out, s.temperature, s.attempts, s.latency_ms,
               utc(s.created_at) AS created_at
        FROM lake_samples AS s""",
    "runs": """
        SELECT execution_id, run_id, claim, claim_id, model, provider, bank, date, lens, variant,
               bundle_id, K, R, T, B, prob_true, ci_lo, ci_hi, ci_hi - ci_lo AS ci_width,
               stability_score, K * R AS attempted, compliant, called, tokens_in, tokens_out,
               cost_usd, status, utc(started_at) AS started_at,
               utc(finished_at) AS finished_at, heretix_version,
               lower(hex(sha256)) AS sha256
        FROM lake_runs""",
    "claims": """
        SELECT claim, min(claim_id) AS claim_id, count(*) AS executions,
               count(DISTINCT model) AS models,
               avg(prob_true) FILTER (lens = 'RPL' AND variant IS NULL) AS mean_prob_true,
               sum(cost_usd) AS cost_usd, min(started_at) AS first_at, max(finished_at) AS last_at
        FROM runs GROUP BY claim""",
    "models": """
        SELECT model, min(provider) AS provider, count(*) AS executions,
               count(DISTINCT claim) AS claims, sum(called)::BIGINT AS called,
               sum(compliant) / sum(attempted) AS compliance,
               sum(tokens_in)::BIGINT AS tokens_in, sum(tokens_out)::BIGINT AS tokens_out,
               sum(cost_usd) AS cost_usd,
               min(started_at) AS first_at, max(finished_at) AS last_at
        FROM runs GROUP BY model""",
}
"""Tables that a query can name. `samples` has each answer once, `runs` one row an execution."""
_ONLY_SELECT: Final = "`query` must be one SELECT over the views " + ", ".join(VIEWS)


def query(lake: Lake, sql: str) -> Any:
    """Ask a SELECT; returns an Arrow table."""
    with _database(lake, lake.require_manifest()) as connection:
        return _ask(connection, sql)


def _ask(connection: Any, sql: str) -> Any:
    duckdb = load("duckdb")
    try:
        statements = connection.extract_statements(sql)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            kinds = ", ".join(one.type.name for one in statements) or "nothing"
            raise ConfigError(f"{_ONLY_SELECT}, got {kinds}")
        return connection.sql(statements[0].query).to_arrow_table()
    except duckdb.Error as exc:
        raise ConfigError(f"{_ONLY_SELECT}, got one that DuckDB refuses: {exc}") from exc


@contextlib.contextmanager
def _database(lake: Lake, manifest: Manifest) -> Iterator[Any]:
    """A database in memory with the views, and no way out of it."""
    duckdb = load("duckdb")
    with tempfile.TemporaryDirectory(prefix="heretix-query-") as folder:
        # Large joins and sorts may spill; nothing else touches the disk.
        settings = {"temp_directory": folder}
        with duckdb.connect(":memory:", config=settings) as connection:
            for table in ("samples", "runs"):
                connection.register(f"lake_{table}", _dataset(lake, manifest, table))
            for macro in MACROS:
                connection.execute(f"CREATE MACRO {macro}")
            for name, view in VIEWS.items():
                connection.execute(f"CREATE VIEW {name} AS {view}")
            for setting in (
                "enable_external_access = false",
                "python_enable_replacements = false",
                "autoinstall_known_extensions = false",
                "autoload_known_extensions = false",
                "lock_configuration = true",
            ):
                connection.execute(f"SET {setting}")
            yield connection


def _dataset(lake: Lake, manifest: Manifest, table: str) -> Any:
    """A table's files as one dataset; model, bank and date come from their paths."""
    arrow, dataset = load("pyarrow"), load("pyarrow.dataset")
    schema = schema_of(table)
    named = dict(zip(schema.names, schema.types, strict=True))
    of_path = {"model": arrow.string(), "bank": arrow.string(), "date": arrow.date32()}
    whole = arrow.schema([*named.items(), *((k, v) for k, v in of_path.items() if k not in named)])
    files = manifest.of(table)
    if not files:
        return whole.empty_table()
    form = dataset.ParquetFileFormat()
    fragments = [
        form.make_fragment(
            lake.path(file.path),
            filesystem=lake.filesystem,
            partition_expression=_expression(dataset, file.part, named),
        )
        for file in files
    ]
    return dataset.FileSystemDataset(fragments, whole, form, lake.filesystem)


def _expression(dataset: Any, part: Any, named: dict[str, Any]) -> Any:
    from datetime import date

    values = {"model": part.model, "bank": part.bank, "date": date.fromisoformat(part.date)}
    expression = dataset.scalar(True)
    for name, value in values.items():
        if name not in named:
            expression = expression & (dataset.field(name) == dataset.scalar(value))
    return expression
