"""Panels and their waves: what is measured again and again, when it was, and what came of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, insert, select, update

from heretix.core.clock import utc_now, utc_text
from heretix.store.db import conflict_insert
from heretix.store.schema import panels, wave_runs, waves

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelRow:
    """A panel: what its waves are measured with, as JSON."""

    panel: str
    fixed_json: str
    bundles_json: str
    created_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wave:
    """One wave; without `finished_at` it is under way, or was interrupted."""

    wave: int
    started_at: str
    finished_at: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WaveRun:
    """One record of a wave, summarised."""

    wave: int
    execution_id: str
    claim: str
    model: str
    lens: str
    prob_true: float | None
    ci_lo: float | None
    ci_hi: float | None
    cells_json: str
    beside_json: str
    served_json: str
    attempted: int
    answered: int
    finished_at: str


_RUN: Final = [wave_runs.c[field.name] for field in fields(WaveRun)]


def save_panel(connection: Connection, row: PanelRow) -> PanelRow:
    """Keep a panel before its first wave; the one that is there stays, and is returned."""
    insertion = conflict_insert(connection.dialect.name, panels)
    connection.execute(insertion.on_conflict_do_nothing(), asdict(row))
    found = select_panel(connection, row.panel)
    assert found is not None, "it was kept just now"
    return found


def select_panel(connection: Connection, panel: str) -> PanelRow | None:
    """Read a panel by name."""
    statement = select(panels).where(panels.c.panel == panel)
    found = connection.execute(statement).mappings().one_or_none()
    return None if found is None else PanelRow(**found)


def list_panels(connection: Connection) -> list[PanelRow]:
    """Read all panels, by name."""
    rows = connection.execute(select(panels).order_by(panels.c.panel)).mappings()
    return [PanelRow(**row) for row in rows]


def begin_wave(connection: Connection, panel: str) -> Wave:
    """Take up the wave that was interrupted, or begin the next.

    A wave begins after all answers of the one before, whatever the clock says: so none of them
    can be taken for one of its own.
    """
    found = select_waves(connection, panel)
    last = found[-1] if found else None
    if last is not None and last.finished_at is None:
        return last
    now = utc_now()
    if last is not None and last.finished_at is not None and now <= last.finished_at:
        ended = datetime.fromisoformat(last.finished_at)
        now = utc_text(ended + timedelta(milliseconds=1))
    begun = Wave(wave=last.wave + 1 if last else 0, started_at=now)
    insertion = conflict_insert(connection.dialect.name, waves)
    connection.execute(insertion.on_conflict_do_nothing(), {"panel": panel, **asdict(begun)})
    # Another process may have begun it a moment ago: then both work on the same one.
    return select_waves(connection, panel)[-1]


def finish_wave(connection: Connection, panel: str, wave: int, runs: Sequence[WaveRun]) -> None:
    """Write down what a wave brought; whoever finishes it first has done so for all."""
    statement = update(waves).where(
        waves.c.panel == panel, waves.c.wave == wave, waves.c.finished_at.is_(None)
    )
    if connection.execute(statement.values(finished_at=utc_now())).rowcount and runs:
        connection.execute(insert(wave_runs), [{"panel": panel, **asdict(run)} for run in runs])


def select_waves(connection: Connection, panel: str) -> list[Wave]:
    """Read the waves of a panel, in order."""
    columns = (waves.c.wave, waves.c.started_at, waves.c.finished_at)
    statement = select(*columns).where(waves.c.panel == panel).order_by(waves.c.wave)
    return [Wave(**row) for row in connection.execute(statement).mappings()]


def select_wave_runs(connection: Connection, panel: str) -> list[WaveRun]:
    """Read what every finished wave of a panel brought, wave by wave."""
    statement = select(*_RUN).where(wave_runs.c.panel == panel).order_by(wave_runs.c.wave)
    return [WaveRun(**row) for row in connection.execute(statement).mappings()]
