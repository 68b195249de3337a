"""The schema of the baseline in SQL, written by `python tests/store/schema_baseline.py`.

Write it anew as long as no version was released; then it stays, and stores made from it are what
migrations start from.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sqlalchemy import Connection
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from heretix.store.schema import CHAINS_START, metadata

FOLDER: Final = Path(__file__).parent / "baseline"
DIALECTS: Final = {"sqlite": sqlite.dialect, "postgresql": postgresql.dialect}


def schema_sql(dialect: str) -> str:
    """Every table and index of the schema, and the rows that a new store begins with."""
    compiler = DIALECTS[dialect]()
    made = [
        str(statement.compile(dialect=compiler)).strip()
        for table in metadata.sorted_tables
        for statement in (
            CreateTable(table),
            *(CreateIndex(index) for index in sorted(table.indexes, key=lambda one: one.name)),
        )
    ]
    made += [
        "INSERT INTO alembic_version VALUES ('0001')",
        *(
            f"INSERT INTO chains ({', '.join(row)}) VALUES {tuple(row.values())}"
            for row in CHAINS_START
        ),
    ]
    lines = "".join(f"{statement};\n" for statement in made).splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines)


def make_baseline(connection: Connection) -> None:
    """Make the tables as the baseline had them."""
    sql = (FOLDER / f"{connection.dialect.name}.sql").read_text(encoding="utf-8")
    for statement in sql.split(";\n"):
        if statement.strip():
            connection.exec_driver_sql(statement)


if __name__ == "__main__":
    for name in DIALECTS:
        (FOLDER / f"{name}.sql").write_text(schema_sql(name), encoding="utf-8")
