"""Budgets: what several processes may spend together, and never a cent more.

Escrow: before calls are made, the most that they can cost is held; then what they did cost is
spent, and the rest is free again. `spent + held <= cap` holds in every transaction, so it doesn't
matter who dies when. A holder that vanished may have been billed for its calls in flight: what it
held then counts as spent, *presumed*, until it comes back and says otherwise. Amounts are
millionths of a dollar; time is the database's.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import delete, func, or_, select, update

from heretix.store.db import conflict_insert, database_now
from heretix.store.samples import is_gone
from heretix.store.schema import budgets, holds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Connection, Row

STORE_BUDGET: Final = "store"
"""The budget of everything that is measured with one store."""
BATCH_OWNER: Final = "batch:"
"""Holders whose names begin so are batches: what they hold comes free in a day, not in a moment."""
HOLD_S: Final = 60.0
"""Length of a hold that isn't extended. Holders extend theirs well before that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Budget: what may be spent, what was, and what is set aside for calls under way."""

    budget_id: str
    cap_micros: int
    spent_micros: int
    presumed_micros: int
    """Part of what was spent: calls whose cost nobody told, at the most that they can cost."""
    held_micros: int


@dataclass(frozen=True, slots=True)
class Draw:
    """Answer to asking a budget for money."""

    granted_micros: int
    short: Budget | None = None
    """The budget that hasn't enough for one more call."""
    held_elsewhere_micros: int = 0
    """Of that budget, what others hold and may give back soon: batches don't."""


def cap_budget(connection: Connection, budget_id: str, cap_micros: int) -> None:
    """Set how much may be spent in all; what was spent so far counts."""
    new = conflict_insert(connection.dialect.name, budgets).values(
        budget_id=budget_id, cap_micros=cap_micros, spent_micros=0, presumed_micros=0, held_micros=0
    )
    connection.execute(
        new.on_conflict_do_update(
            index_elements=[budgets.c.budget_id], set_={"cap_micros": cap_micros}
        )
    )


def select_budget(connection: Connection, budget_id: str) -> Budget | None:
    """Read a budget; None where none was set."""
    found = _select_budgets(connection, [budget_id])
    return found[0] if found else None


def delete_budget(connection: Connection, budget_id: str) -> None:
    """Forget a budget: nothing is limited by it any more, and what was spent is no longer known."""
    connection.execute(delete(holds).where(holds.c.budget_id == budget_id))
    connection.execute(delete(budgets).where(budgets.c.budget_id == budget_id))


def draw(
    connection: Connection,
    owner: str,
    budget_ids: Sequence[str],
    *,
    paid: int = 0,
    presumed: int = 0,
    back: int = 0,
    least: int = 0,
    most: int = 0,
    lease_s: float = HOLD_S,
    stroke: str | None = None,
) -> Draw:
    """Settle what the owner's calls cost, give back, and hold as much again as all budgets have.

    `paid` comes out of what the owner holds, `presumed` is the part of it that is assumed, `back`
    isn't needed any more. Of every budget the same is then held: `most`, or what is left if that
    is at least `least`, or nothing. One `stroke` settles once, however often it is made: whoever
    lost the connection can't know whether it was.
    """
    found = _select_budgets(connection, budget_ids, lock=True)
    mine = _select_holds(connection, owner, budget_ids)
    made = [hold for hold in mine.values() if stroke is not None and hold.stroke == stroke]
    if made and made[0].granted_micros:
        return Draw(made[0].granted_micros)
    if made:
        paid = presumed = back = 0
    states = [_settle(one, mine.get(one.budget_id), paid, presumed, back) for one in found]
    free = min(
        (one.cap_micros - one.spent_micros - one.held_micros for one, _ in states), default=0
    )
    granted = min(free, max(least, most)) if free >= least else 0
    for one, held in states:
        values = {"held_micros": one.held_micros + granted}
        values |= {"spent_micros": one.spent_micros, "presumed_micros": one.presumed_micros}
        connection.execute(
            update(budgets).where(budgets.c.budget_id == one.budget_id).values(values)
        )
        last = {"stroke": stroke, "granted_micros": granted}
        _hold(connection, one.budget_id, owner, held + granted, lease_s, last)
    if granted >= least or not states:
        return Draw(granted)
    _lapse(connection, budget_ids)
    short, held = min(states, key=lambda s: s[0].cap_micros - s[0].spent_micros - s[0].held_micros)
    now = select_budget(connection, short.budget_id) or short
    others = now.held_micros - held - _sum_batches(connection, now.budget_id)
    return Draw(0, short=now, held_elsewhere_micros=max(0, others))


def settle_hold(
    connection: Connection, owner: str, *, paid: int, presumed: int, stroke: str, lease_s: float
) -> None:
    """Settle what some calls of the owner cost, of every budget of which it holds something."""
    names = connection.scalars(select(holds.c.budget_id).where(holds.c.owner == owner)).all()
    if names:
        draw(
            *(connection, owner, names),
            paid=paid,
            presumed=presumed,
            stroke=stroke,
            lease_s=lease_s,
        )


def close_holds(
    connection: Connection, owner: str, *, paid: int = 0, presumed: int = 0, lost: bool = False
) -> None:
    """Settle what the owner's last calls cost, and let go of everything that it holds.

    `lost` is all of it: nobody will tell what they cost.
    """
    held = connection.execute(select(holds).where(holds.c.owner == owner)).mappings().all()
    for row in sorted(held, key=lambda row: str(row["budget_id"])):
        if lost:
            paid = presumed = row["held_micros"]
        back = max(0, row["held_micros"] - paid)
        draw(connection, owner, [row["budget_id"]], paid=paid, presumed=presumed, back=back)
    connection.execute(delete(holds).where(holds.c.owner == owner))


def extend_holds(connection: Connection, owner: str, *, lease_s: float = HOLD_S) -> None:
    """Tell that the owner is alive."""
    until = database_now() + lease_s
    live = holds.c.owner == owner, holds.c.lapsed.is_(False)
    connection.execute(update(holds).where(*live).values(expires_at=until))


def _select_budgets(
    connection: Connection, budget_ids: Sequence[str], *, lock: bool = False
) -> list[Budget]:
    # In one order everywhere: no two processes wait for each other in a circle.
    wanted = select(*(budgets.c[field.name] for field in fields(Budget)))
    wanted = wanted.where(budgets.c.budget_id.in_(budget_ids)).order_by(budgets.c.budget_id)
    if lock:
        wanted = wanted.with_for_update()
    return [Budget(**row) for row in connection.execute(wanted).mappings()]


def _select_holds(
    connection: Connection, owner: str, budget_ids: Sequence[str]
) -> dict[str, Row[Any]]:
    wanted = select(holds).where(holds.c.owner == owner, holds.c.budget_id.in_(budget_ids))
    return {row.budget_id: row for row in connection.execute(wanted)}


def _settle(
    budget: Budget, hold: Row[Any] | None, paid: int, presumed: int, back: int
) -> tuple[Budget, int]:
    """The budget after a holder has settled, and what that one still holds."""
    held, lapsed = (0, False) if hold is None else (hold.held_micros, hold.lapsed)
    spent, guessed, all_held = budget.spent_micros, budget.presumed_micros, budget.held_micros
    if lapsed:
        # Its holder is alive after all, and knows what it paid.
        spent, guessed, all_held = spent - held, guessed - held, all_held + held
    # A provider that took more than it can have is believed; no cap could have kept that.
    less = min(held, paid + back)
    return (
        Budget(
            budget_id=budget.budget_id,
            cap_micros=budget.cap_micros,
            spent_micros=spent + paid,
            presumed_micros=guessed + presumed,
            held_micros=all_held - less,
        ),
        held - less,
    )


def _hold(
    connection: Connection,
    budget_id: str,
    owner: str,
    held: int,
    lease_s: float,
    last: Mapping[str, Any],
) -> None:
    new = conflict_insert(connection.dialect.name, holds).values(
        budget_id=budget_id,
        owner=owner,
        held_micros=held,
        lapsed=False,
        expires_at=database_now() + lease_s,
        **last,
    )
    changing = ("held_micros", "lapsed", "expires_at", *last)
    connection.execute(
        new.on_conflict_do_update(
            index_elements=[holds.c.budget_id, holds.c.owner],
            set_={name: new.excluded[name] for name in changing},
        )
    )


def _sum_batches(connection: Connection, budget_id: str) -> int:
    live = holds.c.budget_id == budget_id, holds.c.lapsed.is_(False)
    total = select(func.sum(holds.c.held_micros)).where(*live)
    return int(connection.scalar(total.where(holds.c.owner.startswith(BATCH_OWNER))) or 0)


def _lapse(connection: Connection, budget_ids: Sequence[str]) -> None:
    """Count what vanished holders held as spent: they may have been billed for it."""
    live = holds.c.lapsed.is_(False), holds.c.budget_id.in_(budget_ids)
    owners = connection.execute(select(holds.c.owner).where(*live).distinct()).scalars()
    gone = [owner for owner in owners if is_gone(owner)]
    dead = or_(holds.c.expires_at < database_now(), holds.c.owner.in_(gone))
    rows = connection.execute(select(holds).where(*live, dead)).mappings().all()
    for row in rows:
        amount, budget_id = row["held_micros"], row["budget_id"]
        connection.execute(
            update(holds)
            .where(holds.c.budget_id == budget_id, holds.c.owner == row["owner"])
            .values(lapsed=True)
        )
        connection.execute(
            update(budgets)
            .where(budgets.c.budget_id == budget_id)
            .values(
                held_micros=budgets.c.held_micros - amount,
                spent_micros=budgets.c.spent_micros + amount,
                presumed_micros=budgets.c.presumed_micros + amount,
            )
        )
