"""Pages of a moment's work take turns in the event loop; longer ones go to a thread."""

import asyncio
import shutil
import threading

import pytest
from apiserver import measured
from website import FAULTY, MODEL, WEATHER, run_of, serving, state_over

from heretix.store import Store
from heretix.store.runs import select_executions, select_runs
from heretix.web.pages import runs
from heretix.web.state import RenderLock


async def test_turns_go_by_who_came_first():
    """One at a time, in the order of asking."""
    lock = RenderLock()
    done = []

    async def take(number):
        async with lock:
            done.append(number)

    await asyncio.gather(*(take(number) for number in range(20)))
    assert done == list(range(20))


async def test_others_get_on_between_two_turns():
    """A line of pages doesn't keep the loop from everything else until it is served."""
    lock = RenderLock()
    seen = []

    async def take(number):
        async with lock:
            seen.append(number)

    async def bystander():
        for _ in range(5):
            seen.append("other")
            await asyncio.sleep(0)

    await asyncio.gather(*(take(number) for number in range(5)), bystander())
    assert seen.index(4) - seen.index("other") > 4
    assert "other" in seen[seen.index(0) : seen.index(4)]


async def test_whoever_leaves_the_line_holds_nobody_up():
    """A reader that went away while waiting takes no turn."""
    lock = RenderLock()
    done = []

    async def take(number):
        async with lock:
            done.append(number)

    async with lock:
        tasks = [asyncio.create_task(take(number)) for number in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert done == [0, 2]


@pytest.mark.parametrize(
    ("claim", "model", "lens"),
    [
        (WEATHER, MODEL, "RPL"),
        (WEATHER, MODEL, "HEL"),
        ("Sharks don't get cancer.", FAULTY, "RPL"),
    ],
)
@pytest.mark.parametrize("by", ["run_id", "execution_id"])
def test_a_page_is_the_same_wherever_it_is_made(
    tmp_path, measured_template, monkeypatch, claim, model, lens, by
):
    """A record that is too long for the loop is shown by a thread, word for word alike."""
    path = shutil.copy(measured_template, tmp_path / "heretix.sqlite")
    with Store.open(str(path)) as store, serving(state_over(store, tmp_path)) as site:
        address = f"/runs/{getattr(run_of(site, claim=claim, model=model, lens=lens), by)}"
        site.get(address)
        in_passing = site.get(address)
        monkeypatch.setattr(runs, "_light", lambda *_: None)
        in_a_thread = site.get(address)
    assert in_passing.status_code == 200
    assert in_passing.text == in_a_thread.text


def test_what_takes_longer_is_made_in_a_thread(tmp_path, measured_template, monkeypatch):
    """Long records and what lies between lenses keep no other page waiting; short ones may."""
    makers = {}

    def noting(name, make):
        def made(*args, **options):
            makers.setdefault(name, threading.current_thread().name)
            return make(*args, **options)

        monkeypatch.setattr(runs, name, made)

    path = shutil.copy(measured_template, tmp_path / "heretix.sqlite")
    with Store.open(str(path)) as store, serving(state_over(store, tmp_path)) as site:
        noting("_between", runs._between)
        noting("_light", runs._light)
        noting("_body", runs._body)
        site.get(f"/runs/{run_of(site, lens='HEL').run_id}")
        loop = makers.pop("_light")
        assert makers["_between"] != loop
        makers.clear()
        site.get(f"/runs/{run_of(site, model='mock:gpt-5').run_id}")
        assert makers["_body"] == loop
        makers.clear()
        monkeypatch.setattr(runs, "_MOMENT", 1)
        sharks = run_of(site, claim="Sharks don't get cancer.", model=FAULTY)
        assert site.get(f"/runs/{sharks.run_id}").status_code == 200
        assert makers["_body"] != loop


def test_a_run_of_many_executions_keeps_nobody_waiting(tmp_path, sqlite_template, monkeypatch):
    """The loop reads the newest few; a thread finds out which of them all finished last."""
    read = []
    path = shutil.copy(sqlite_template, tmp_path / "heretix.sqlite")
    with Store.open(str(path)) as store, serving(state_over(store, tmp_path)) as site:
        for _ in range(4):
            measured(store, "Tea is made of leaves.")
        (run,) = store.read(select_runs)
        every = store.read(select_executions, run.run_id)
        assert store.read(select_executions, run.run_id, limit=3) == every[:3]
        pages = [site.get(f"/runs/{run.run_id}").text]

        def noting(*args, **options):
            read.append(len(found := select_executions(*args, **options)))
            return found

        monkeypatch.setattr(runs, "select_executions", noting)
        monkeypatch.setattr(runs, "_EXECUTIONS", 3)
        in_passing = runs._light
        made = []
        monkeypatch.setattr(runs, "_light", lambda *a: made.append(in_passing(*a)) or made[-1])
        pages += [site.get(f"/runs/{run.run_id}").text]
        assert made == [None]
        site.get(f"/runs/{run.execution_id}").raise_for_status()
        assert made[-1] is not None
    assert set(read) == {3}
    assert all(f"/runs/{run.execution_id}/samples" in page for page in pages)
