"""Commands on a store that can't be written to: all that read work, all that write say so."""

import json
import re
import shutil
import signal
import subprocess
import sys

import httpx2
import pytest

from heretix.accounts import People, Role
from heretix.store import Store
from readonly import BOUND, obey_permissions, obeying_permissions, read_only

pytestmark = pytest.mark.skipif(not BOUND, reason="root goes by no permissions here")


def prepared():
    """In the new process: permissions count, and Ctrl-C works in a background job as well."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    obey_permissions()


@pytest.fixture
def disk(folder, demo_template):
    """A folder with the demonstration in it, which may only be read."""
    disk = folder / "disk"
    disk.mkdir()
    shutil.copy(demo_template, disk / "demo.sqlite")
    with read_only(disk):
        yield disk


@pytest.fixture
def command(disk, entry_point):
    """Run a command on it, obeying permissions."""

    def run(*args):
        with obeying_permissions():
            return entry_point(*args, "--db", disk / "demo.sqlite")

    return run


@pytest.mark.parametrize(
    "line",
    [
        ["runs"],
        ["export", "transfers"],
        ["ledger", "verify"],
        ["episode", "show", "latest"],
        *(
            pytest.param(line, marks=pytest.mark.soak)
            for line in (
                ["anomalies"],
                ["market", "list"],
                ["explore", "leaderboard"],
                ["jobs", "list"],
            )
        ),
    ],
    ids=" ".join,
)
def test_what_reads_works(command, line):
    """As if the store could be written to."""
    done = command(*line)
    assert (done.code, done.err) == (0, "")
    assert done.out


def test_a_record_is_shown_and_verified(command):
    """A record is found by its id and derived again."""
    run_id = json.loads(command("runs", "--json", "-n", "1").out)[0]["run_id"]
    assert command("show", run_id).code == 0
    assert "verified" in command("verify", run_id).out


@pytest.mark.parametrize(
    "line",
    [
        ["run", "A claim.", "--mock", "--out", "artifact.json"],
        ["ledger", "join", "zoe"],
        ["jobs", "submit", "A claim."],
        ["batch", "collect"],
        ["worker", "--once"],
    ],
    ids=" ".join,
)
def test_what_writes_says_that_it_cannot(command, folder, disk, line):
    """One message, exit code 2, and nothing left behind."""
    done = command(*line)
    assert done.code == 2
    assert done.out == ""
    assert re.fullmatch(r"error: `.*demo.sqlite` can't be written to; check who .*\n", done.err)
    assert [path.name for path in disk.iterdir()] == ["demo.sqlite"]
    assert not (folder / "artifact.json").exists()


def test_a_store_without_the_economy_has_no_balances(folder, entry_point, sqlite_template):
    """The operator's accounts are made on first use; whoever only looks finds none."""
    disk = folder / "disk"
    disk.mkdir()
    shutil.copy(sqlite_template, disk / "empty.sqlite")
    with read_only(disk), obeying_permissions():
        done = entry_point("ledger", "balances", "--json", "--db", disk / "empty.sqlite")
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out) == []


def test_it_is_served_to_be_looked_at(disk):
    """Pages are there, no worker tries to claim jobs, and the server says what it can't do."""
    main = [sys.executable, "-c", "from heretix.cli.app import main; main()"]
    line = [*main, "serve", "--port", "0", "--db", str(disk / "demo.sqlite")]
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True, preexec_fn=prepared) as server:
        address = re.search(r"http://\S+/", server.stderr.readline())[0]
        answer = httpx2.get(address, timeout=30, trust_env=False, verify=False)
        server.send_signal(signal.SIGINT)
        rest = server.stderr.read()
    assert answer.status_code == 200
    assert "It can't be written to" in rest
    assert rest.endswith("Stopped.\n")
    assert server.returncode == 0


def test_with_accounts_it_is_not_served(folder, entry_point, sqlite_template):
    """Nobody could sign in."""
    disk = folder / "disk"
    disk.mkdir()
    path = disk / "team.sqlite"
    shutil.copy(sqlite_template, path)
    with Store.open(str(path)) as store:
        People(store).add("root", role=Role.OPERATOR, password="correct horse battery")
    with read_only(disk), obeying_permissions():
        done = entry_point("serve", "--port", "0", "--db", path)
    assert done.code == 2
    assert "can't be written to" in done.err
