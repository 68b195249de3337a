"""Budgets by escrow: whatever happens in whichever order, no more is spent than there is."""

import itertools
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heretix.store import Store
from heretix.store.budgets import (
    cap_budget,
    close_holds,
    delete_budget,
    draw,
    extend_holds,
    select_budget,
)

NUMBERS = itertools.count()


@pytest.fixture
def store(store_url):
    """A store on each database."""
    with Store.open(store_url) as store:
        yield store


def state(store, budget_id="b"):
    """What a budget says: spent, presumed, held."""
    found = store.read(select_budget, budget_id)
    return found.spent_micros, found.presumed_micros, found.held_micros


def test_what_is_held_is_settled_and_the_rest_is_free_again(store):
    """Ten for a call that costs four: six are free, and four are spent."""
    store.write(cap_budget, "b", 15)
    assert store.write(draw, "me", ["b"], least=10, most=10).granted_micros == 10
    short = store.write(draw, "you", ["b"], least=10, most=10)
    assert (short.granted_micros, short.held_elsewhere_micros) == (0, 10)
    assert store.write(draw, "me", ["b"], paid=4, back=6).granted_micros == 0
    assert state(store) == (4, 0, 0)
    assert store.write(draw, "you", ["b"], least=10, most=30).granted_micros == 11
    store.write(close_holds, "you", paid=11)
    last = store.write(draw, "me", ["b"], least=1, most=1)
    assert (last.granted_micros, last.short.spent_micros, last.held_elsewhere_micros) == (0, 15, 0)


def test_all_budgets_give_or_none_does(store):
    """The tightest one decides, and is named."""
    store.write(cap_budget, "run", 100)
    store.write(cap_budget, "store", 12)
    assert store.write(draw, "me", ["store", "run"], least=10, most=40).granted_micros == 12
    found = store.write(draw, "me", ["run", "store"], least=10, most=10)
    assert (found.granted_micros, found.short.budget_id) == (0, "store")
    assert state(store, "run") == (0, 0, 12)


def test_what_a_vanished_holder_held_counts_as_spent(store):
    """It may have been billed; when it comes back after all, what it says counts."""
    store.write(cap_budget, "b", 20)
    store.write(draw, "gone", ["b"], least=10, most=10, lease_s=-1)
    assert store.write(draw, "me", ["b"], least=20, most=20).held_elsewhere_micros == 0
    assert state(store) == (10, 10, 0)
    assert store.write(draw, "me", ["b"], least=10, most=10).granted_micros == 10
    store.write(close_holds, "gone", paid=3)
    assert state(store) == (3, 0, 10)


def test_an_extended_hold_does_not_lapse(store):
    """Its holder is alive, however long its calls take."""
    store.write(cap_budget, "b", 20)
    store.write(draw, "slow", ["b"], least=10, most=10, lease_s=-1)
    store.write(extend_holds, "slow")
    assert store.write(draw, "me", ["b"], least=20, most=20).held_elsewhere_micros == 10
    assert state(store) == (0, 0, 10)


def test_a_stroke_that_is_made_again_counts_once(store):
    """Whoever lost the connection can't know; what was granted is told again, and paid once."""
    store.write(cap_budget, "b", 30)
    store.write(draw, "me", ["b"], least=10, most=10)
    stroke = {"paid": 4, "back": 6, "least": 20, "most": 20, "stroke": "one"}
    for _ in range(3):
        assert store.write(draw, "me", ["b"], **stroke).granted_micros == 20
        assert state(store) == (4, 0, 20)
    short = {"paid": 5, "back": 15, "least": 99, "most": 99, "stroke": "two"}
    for _ in range(3):
        assert store.write(draw, "me", ["b"], **short).granted_micros == 0
        assert state(store) == (9, 0, 0)


def test_a_cap_can_be_changed_and_a_budget_forgotten(store):
    """What was spent so far counts against the new cap."""
    store.write(cap_budget, "b", 10)
    store.write(draw, "me", ["b"], least=10, most=10)
    store.write(draw, "me", ["b"], paid=10)
    store.write(cap_budget, "b", 25)
    assert store.write(draw, "me", ["b"], least=1, most=99).granted_micros == 15
    store.write(delete_budget, "b")
    assert store.read(select_budget, "b") is None


@dataclass
class Holder:
    """A process, as the model sees it."""

    credit: int = 0
    paid: int = 0
    billed: int = 0
    alive: bool = True
    calls: list[int] = field(default_factory=list)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["draw", "draw", "answer", "answer", "cut", "kill", "close"]),
        st.integers(0, 2),
        st.integers(1, 40),
        st.booleans(),
    ),
    max_size=25,
)


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(cap=st.integers(1, 200), steps=STEPS)
def test_no_order_of_events_spends_more_than_the_cap(store, cap, steps):
    """Against a naive model: holders draw, call, are billed, die and come back."""
    budget_id = f"b{next(NUMBERS)}"
    holders = [Holder() for _ in range(3)]
    store.write(cap_budget, budget_id, cap)
    for what, number, amount, mortal in steps:
        holder, owner = holders[number], f"{budget_id}-{number}"
        lease_s = -1.0 if mortal else 60.0
        if not holder.alive:
            continue
        if what == "draw":
            spare = holder.credit - sum(holder.calls) - holder.paid
            found = store.write(
                draw,
                owner,
                [budget_id],
                paid=holder.paid,
                back=spare,
                least=amount,
                most=3 * amount,
                lease_s=lease_s,
            )
            assert found.granted_micros == 0 or amount <= found.granted_micros <= 3 * amount
            holder.credit += found.granted_micros - holder.paid - spare
            holder.paid = 0
            if found.granted_micros:
                holder.calls.append(amount)
        elif what in {"answer", "cut"} and holder.calls:
            bound = holder.calls.pop()
            cost = min(bound, amount)
            holder.billed += cost
            holder.paid += bound if what == "cut" else cost
        elif what == "kill":
            # Its calls are billed after its death, at the most that they can cost.
            holder.alive, holder.billed = False, holder.billed + sum(holder.calls)
        elif what == "close" and not holder.calls:
            store.write(close_holds, owner, paid=holder.paid)
            holder.credit = holder.paid = 0
        spent, presumed, held = state(store, budget_id)
        assert spent + held <= cap
        assert 0 <= presumed <= spent
        assert held >= 0
        assert sum(one.billed for one in holders) <= spent + held
