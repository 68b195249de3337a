"""Parts of a measurement: cut, measured by the same service, counted once, whatever dies."""

import asyncio
import contextlib
import pickle
import sqlite3
import sys
import types
from collections import deque

import pytest

import heretix.cluster
from faultserver import FaultServer, answer
from heretix.config import Claim, RunConfig
from heretix.core.errors import (
    BudgetReachedError,
    ClusterError,
    ConfigError,
    RejectedError,
    StoppedError,
)
from heretix.core.settings import Settings
from heretix.measurement import parts, service
from heretix.measurement.health import State
from heretix.measurement.runner import Counts, NullObserver, Tally
from heretix.measurement.service import Results, prepare
from heretix.providers import mock
from heretix.store import Store
from heretix.store.runs import count_runs

SMALL = {"K": 2, "R": 2, "T": 2, "B": 100}
WRITTEN = 9
"""Tokens that the server says it wrote, each time."""
SECRET = "sk-not-to-be-seen"


def asked(db, *, claims=3, models=("mock:a",), env=None, **more):
    """A measurement that wants a cluster."""
    config = RunConfig.parse({**SMALL, "on": "ray", "models": models, **more})
    texts = [f"Claim {number}." for number in range(claims)]
    return prepare(config, Settings(db=db, env=env or {}), claims=texts)


class Cluster:
    """What stands in for a cluster: parts are measured here, one after the other."""

    def __init__(self, nodes=2, dies_at=(), stop_after=None):
        node = types.SimpleNamespace(node_id="a", cpus=1.0, gpus=0.0, name="a")
        self.nodes = [node] * nodes
        self.dies_at = set(dies_at)
        self.stop_after = stop_after
        self.seen = []

    def place(self, target, some, homes):
        assert target == "heretix.measurement.parts:measure_part"
        self.waiting = deque()
        self._parts = (*some, *homes) if self.stop_after is None else some
        self.width, self._it, self._number = len(self.nodes), iter(self._parts), 0
        self.stopped = False
        return self

    def step(self, timeout_s):
        part = None if self.stopped else next(self._it, None)
        if part is None:
            return None
        self._number += 1
        # Through a pickle, as to another machine.
        part = pickle.loads(pickle.dumps(part))
        told = {}
        if self._number in self.dies_at:
            counts = Counts(done=2, calls=2, tokens_in=10, tokens_out=4, in_flight=1)
            told[self._number, "first"] = part.model, counts
        self.seen.append(part)
        result = asyncio.run(parts.measure_part(part, lambda news: False))
        ended = types.SimpleNamespace(
            number=self._number, attempt="last", result=result, error=None
        )
        return types.SimpleNamespace(ended=[ended], told=told)

    def stop(self):
        self.stopped = True

    def close(self):
        pass


@pytest.fixture
def cluster(monkeypatch):
    """Puts a stand-in where the engine is imported."""

    def use(**how):
        made = Cluster(**how)
        engine = types.ModuleType("heretix.cluster.engine")
        engine.connected = lambda on: contextlib.nullcontext(made)
        monkeypatch.setitem(sys.modules, "heretix.cluster.engine", engine)
        # Where a test before has imported the real one, the package holds it, too.
        monkeypatch.setattr(heretix.cluster, "engine", engine, raising=False)
        return made

    return use


def measured(measurement, store, observer=None):
    """Measure, and give back the records by claim and model."""
    results = Results(observer, keep_records=True)
    asyncio.run(service.measure(measurement, store, results))
    return results


def test_every_claim_is_in_one_part_of_each_model(tmp_path, cluster, monkeypatch):
    """Nothing is left out and nothing is measured twice, however parts are cut."""
    monkeypatch.setattr(parts, "_CLAIMS", range(4, 6))
    made = cluster(nodes=1)
    measurement = asked(str(tmp_path / "h.sqlite"), claims=11, models=("mock:a", "mock:b"))
    with Store.open(measurement.settings.db) as store:
        results = measured(measurement, store)
    cut = [(part.model.name, claim.text) for part in made.seen for claim in part.measurement.claims]
    assert sorted(cut) == sorted((m, f"Claim {n}.") for m in "ab" for n in range(11))
    assert {len(part.measurement.claims) for part in made.seen} == {4, 3}
    assert len(results.executions) == 22


def test_parts_give_the_same_bits_as_one_process(tmp_path, cluster, monkeypatch):
    """The same samples give the same records' numbers, to the last bit."""
    monkeypatch.setattr(parts, "_CLAIMS", range(2, 3))
    cluster(nodes=1)
    measurement = asked(str(tmp_path / "parts.sqlite"), claims=5)
    alone = prepare(
        measurement.config.override(on=None).model_copy(update={"on": None}),
        Settings(db=str(tmp_path / "alone.sqlite")),
        claims=[claim.text for claim in measurement.claims],
    )
    found = []
    for one in (measurement, alone):
        with Store.open(one.settings.db) as store:
            records = measured(one, store).records
        found.append(
            {
                name: (r.aggregates, sorted(s.raw_answer for s in r.samples))
                for name, r in records.items()
            }
        )
    assert found[0] == found[1]


def test_no_key_leaves_the_machine(tmp_path, cluster):
    """A part holds settings and claims, and nothing of the environment."""
    made = cluster(nodes=1)
    env = {"OPENAI_API_KEY": SECRET, "HERETIX_BUDGET_USD": "5"}
    measurement = asked(str(tmp_path / "h.sqlite"), env=env)
    with Store.open(measurement.settings.db) as store:
        measured(measurement, store)
    assert made.seen
    assert all(SECRET.encode() not in pickle.dumps(part) for part in made.seen)
    assert all("store" in part.caps for part in made.seen)


def test_calls_of_an_attempt_that_died_stay_in_the_account(tmp_path, cluster):
    """What a killed node had called for was paid; what it had done is done again."""
    cluster(nodes=1, dies_at={1})
    measurement = asked(str(tmp_path / "h.sqlite"), claims=3)
    tally = Tally(measurement.attempts, lambda _: None, float("inf"))
    with Store.open(measurement.settings.db) as store:
        results = Results(tally)
        runner = tally.runner = measurement.runner(store, observer=results)
        asyncio.run(service.measure(measurement, store, results, runner=runner))
    assert (tally.done, tally.total, tally.failed) == (12, 12, 0)
    assert runner.spending.totals["calls"] == 12 + 2
    assert runner.status.in_flight == 0
    assert tally.doing == "measuring on 1 node"


def test_a_file_is_no_store_for_several_nodes(tmp_path, cluster):
    """SQLite on one node, PostgreSQL on more: it is said before anything is called."""
    cluster(nodes=2)
    measurement = asked(str(tmp_path / "h.sqlite"))
    with Store.open(measurement.settings.db) as store:
        with pytest.raises(ConfigError, match=r"2 nodes; give a PostgreSQL"):
            measured(measurement, store)
        assert store.read(count_runs) == 0


def test_a_model_whose_key_is_wrong_ends_and_others_go_on(tmp_path, cluster, monkeypatch):
    """One part is refused: no further part of that model is begun, those of others are."""
    monkeypatch.setattr(parts, "_CLAIMS", range(1, 2))
    made = cluster(nodes=1, stop_after=0)
    real = mock.MockProvider.ask

    async def ask(self, request):
        if request.model == "bad":
            raise RejectedError("no such key", status=401)
        return await real(self, request)

    monkeypatch.setattr(mock.MockProvider, "ask", ask)
    measurement = asked(str(tmp_path / "h.sqlite"), claims=3, models=("mock:bad", "mock:good"))
    with Store.open(measurement.settings.db) as store:
        results = Results()
        with pytest.raises(RejectedError, match="no such key"):
            asyncio.run(service.measure(measurement, store, results))
    assert [part.model.name for part in made.seen] == ["bad", "good", "good", "good"]
    assert len(results.executions) == 3


def test_one_budget_for_all_parts(tmp_path, cluster, monkeypatch):
    """Parts draw from the run's budget: what the server was paid for stays within it."""
    monkeypatch.setattr(parts, "_CLAIMS", range(1, 2))
    prices = tmp_path / "prices.yaml"
    price = "{input: 0, output: 1000, as_of: 2026-11-01}"
    prices.write_text(f"openai-compatible:\n  models:\n    m: {price}\n")
    made = cluster(nodes=1)
    with FaultServer() as server:
        server.always(answer())
        how = {"models": ("openai-compatible:m",), "max_output_tokens": 100, "budget_usd": 1.0}
        how |= {"base_url": server.url("openai-compatible"), "concurrency": 2, "on": "ray"}
        settings = Settings(db=str(tmp_path / "h.sqlite"), prices_file=prices)
        config = RunConfig.parse({**SMALL, **how})
        measurement = prepare(config, settings, claims=[f"Claim {n}." for n in range(40)])
        with Store.open(settings.db) as store:
            results = Results()
            runner = measurement.runner(store, observer=results)
            with pytest.raises(BudgetReachedError):
                asyncio.run(service.measure(measurement, store, results, runner=runner))
        # An answer writes WRITTEN tokens at a thousandth of a dollar each.
        paid = len(server.calls) * WRITTEN / 1000
    assert len(made.seen) > 1
    assert runner.spending.spent_usd == pytest.approx(paid)
    assert paid > 0.8
    assert paid <= 1.0


def test_who_is_told_to_stop_stores_what_there_is(tmp_path, monkeypatch):
    """A part that is asked to end has its answers in the store, and says how many."""
    measurement = asked(str(tmp_path / "h.sqlite"), claims=40)
    handed = []

    class Once:
        def place(self, target, some, homes):
            handed.extend(some)
            raise ConfigError("that was all")

        nodes = (types.SimpleNamespace(cpus=1.0),)

    engine = types.ModuleType("heretix.cluster.engine")
    engine.connected = lambda on: contextlib.nullcontext(Once())
    monkeypatch.setitem(sys.modules, "heretix.cluster.engine", engine)
    monkeypatch.setattr(heretix.cluster, "engine", engine, raising=False)
    monkeypatch.setattr(parts, "_TELL_S", 0.01)
    with Store.open(measurement.settings.db) as store:
        with pytest.raises(ConfigError, match="that was all"):
            asyncio.run(service.measure(measurement, store, Results()))
        (part,) = handed
        told = []
        model, outcome = asyncio.run(
            parts.measure_part(part, lambda news: told.append(news) or len(told) > 1)
        )
    assert isinstance(outcome.error, StoppedError)
    assert model == part.model
    assert outcome.counts.in_flight == 0
    with contextlib.closing(sqlite3.connect(measurement.settings.db)) as connection:
        (stored,) = connection.execute("SELECT count(*) FROM samples").fetchone()
    assert stored == outcome.counts.done < measurement.attempts


def test_a_run_that_is_asked_to_stop_stops_its_parts(tmp_path, cluster, monkeypatch):
    """The first Ctrl-C starts no further part; what was measured is kept, and it says so."""
    monkeypatch.setattr(parts, "_CLAIMS", range(1, 2))
    made = cluster(nodes=1, stop_after=0)
    measurement = asked(str(tmp_path / "h.sqlite"), claims=6)
    with Store.open(measurement.settings.db) as store:
        results = Results()
        runner = measurement.runner(store, observer=results)
        heard = results.on_finished

        def finished(record):
            heard(record)
            runner.stop()

        results.on_finished = finished
        with pytest.raises(StoppedError):
            asyncio.run(service.measure(measurement, store, results, runner=runner))
    assert made.stopped
    assert len(results.executions) == len(made.seen) == 1


@pytest.mark.parametrize("on", ["spark", "ray:/head", "ray://", "head", "head:port"])
def test_an_address_that_is_none_is_refused(on):
    """What can't be a cluster is told at once, with what can."""
    with pytest.raises(ConfigError, match="`on` must be ray, ray://HOST:PORT or HOST:PORT"):
        RunConfig.parse({"on": on})


def test_nodes_are_judged_by_version_and_store():
    """Other versions are named, an unreachable store is, and a node that is well says so."""
    here = {"python": "3.11.7", "ray": "2.60.0", "heretix": "1"}
    judged = [
        parts._judge_node("node a", here, told, lost)
        for told, lost in (
            ((here, None, ["OPENAI_API_KEY"]), None),
            (({**here, "ray": "2.50.0"}, None, []), None),
            ((here, "it can't be reached", []), None),
            (None, "no answer in 60 s"),
        )
    ]
    assert [check.state for check in judged] == [State.OK, State.BAD, State.BAD, State.BAD]
    assert "OPENAI_API_KEY" in judged[0].found
    assert judged[1].remedy == "install the same ray on all nodes and here"
    assert "it can't be reached" in judged[2].found
    assert judged[3].found == "no answer in 60 s"


def test_another_version_on_a_node_is_refused(tmp_path, cluster, monkeypatch):
    """A node with another Heretix measures nothing: it could plan otherwise."""
    cluster(nodes=1)
    measurement = asked(str(tmp_path / "h.sqlite"))
    monkeypatch.setattr(parts, "VERSION", "0.0.0")
    with (
        Store.open(measurement.settings.db) as store,
        pytest.raises(ConfigError, match=r"on a node and .* where the run was started"),
    ):
        measured(measurement, store)


def test_progress_is_told_to_whoever_watches(tmp_path, cluster):
    """An observer hears of all nodes together, and of every record."""
    cluster(nodes=1)

    class Ear(NullObserver):
        def __init__(self):
            self.counts, self.records = [], 0

        def on_heard(self, counts):
            self.counts.append(counts)

        def on_finished(self, record):
            self.records += 1

    measurement, ear = asked(str(tmp_path / "h.sqlite"), claims=3), Ear()
    with Store.open(measurement.settings.db) as store:
        measured(measurement, store, ear)
    assert [one.doing for one in ear.counts][:1] == ["connecting to the cluster"]
    assert ear.counts[-1].done == 12
    assert ear.records == 3


def test_rows_and_other_machines_paths_stay_here(tmp_path, cluster):
    """A part has the claims that it measures, and no path of this machine but the store's file."""
    made = cluster(nodes=1)
    measurement = asked(str(tmp_path / "h.sqlite"), claims=2)
    with Store.open(measurement.settings.db) as store:
        measured(measurement, store)
    (part,) = made.seen
    assert part.measurement.rows == ()
    assert part.measurement.claims == (Claim("Claim 0."), Claim("Claim 1."))
    assert part.measurement.config.on is None
    assert part.measurement.config.budget_usd is None


def test_an_address_where_nobody_is_is_told_at_once():
    """Ray would try for minutes and then end the process."""
    from heretix.cluster import engine

    with (
        pytest.raises(ClusterError, match=r"`on` 127\.0\.0\.1:1: no cluster could be reached"),
        engine.connected("127.0.0.1:1"),
    ):
        pass


def test_a_start_that_takes_too_long_is_told_with_its_remedy(monkeypatch):
    """Ray raises no narrower class then; a mistake of our own stays one."""
    from heretix.cluster import engine

    for raised, seen in (
        (Exception("The current node timed out during startup.\nMore."), ClusterError),
        (KeyError("ours"), KeyError),
    ):

        def init(*_args, _raised=raised, **_more):
            raise _raised

        monkeypatch.setattr(engine.ray, "init", init)
        with pytest.raises(seen) as caught, engine.connected("ray"):
            pass
        if seen is ClusterError:
            assert "(Exception: The current node timed out during startup.)" in str(caught.value)
