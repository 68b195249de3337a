"""What all tests share: a clean environment, and stores on both databases."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

import chromium
from pgserver import NOT_STARTED, Server, ServerNotStartedError, running_server

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

BOTH = ("sqlite", pytest.param("postgresql", marks=pytest.mark.postgres))
# An example that takes long, or a machine that does, says nothing of what is tested; and what is
# found today is found tomorrow, unless other examples are asked for by `--hypothesis-seed`.
for _name, _same in (("heretix", True), ("heretix-fresh", False)):
    settings.register_profile(
        _name,
        deadline=None,
        derandomize=_same,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile("heretix")
# Hypothesis also tries the constants of whatever modules are loaded by then. Which those are hangs on
# the tests that the same process ran before; so the examples would differ from run to run.
providers._get_local_constants = providers.Constants

if sys.dont_write_bytecode:
    # Without bytecode each of the many processes would compile all it imports, each time. They share
    # what stands in the virtual environment instead, and goes with it; beside no source is any.
    _COMPILED = str(Path(sys.prefix, "bytecode"))
    sys.dont_write_bytecode, sys.pycache_prefix = False, _COMPILED
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = _COMPILED

_OURS = ("HERETIX_", "PG")
_PROVIDERS = ("_API_KEY", "_AUTH_TOKEN", "_BASE_URL")


def pytest_configure(config: pytest.Config) -> None:
    """Draw examples from a seed where one is given; it would be ignored otherwise."""
    if config.getoption("hypothesis_seed") is not None:
        settings.load_profile("heretix-fresh")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Keep the garbage collector from what is made meanwhile: nearly all of it stays to the end.

    What the tests make later is looked through in full less often.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(700, 10, 100)
        gc.enable()


def pytest_xdist_auto_num_workers() -> int:
    """Run more tests at once than there are cores: for a third of their time they wait."""
    return (os.cpu_count() or 1) * 3 // 2


@pytest.fixture(scope="session")
def spool_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where answers for a server are kept on their way."""
    return tmp_path_factory.mktemp("spool")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, spool_folder: Path) -> None:
    """Keep the developer's settings and keys out: no test may read them, let alone spend them."""
    for name in list(os.environ):
        if name.startswith(_OURS) or name.endswith(_PROVIDERS):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HERETIX_SPOOL", str(spool_folder))


class _LeftError(BaseException):
    """The exit code of a command that ends this process, as far as it knows."""


@pytest.fixture
def entry_point(monkeypatch: pytest.MonkeyPatch) -> Callable[..., SimpleNamespace]:
    """Run a command in this process by its entry point, with streams of its own."""
    from heretix.cli import main

    def leave(code: int) -> None:
        raise _LeftError(code)

    def run(*args: object, stdin: bytes = b"", encoding: str = "utf-8") -> SimpleNamespace:
        out, err = io.BytesIO(), io.BytesIO()
        with monkeypatch.context() as patch, io.TextIOWrapper(out, encoding) as stdout:
            patch.setattr(sys, "argv", ["heretix", *map(str, args)])
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding))
            patch.setattr(sys, "stdout", stdout)
            patch.setattr(sys, "stderr", io.TextIOWrapper(err, encoding, "backslashreplace"))
            patch.setattr(os, "_exit", leave)
            with pytest.raises(_LeftError) as left:
                main()
            # As at the end of a process: what was left unwritten is lost.
            said = [text.getvalue().decode() for text in (out, err)]
        return SimpleNamespace(code=left.value.args[0], out=said[0], err=said[1])

    return run


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    """One PostgreSQL for the whole session."""
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(running_server())
        except ServerNotStartedError as exc:
            pytest.skip(str(exc))
        yield server


@pytest.fixture(scope="session")
def postgres_template(postgres_server: Server) -> Iterator[str]:
    """The name of a database that holds an empty store, for others to be copied from."""
    from heretix.store import Store

    with postgres_server.database() as url:
        Store.open(url).close()
        yield urlsplit(url).path.removeprefix("/")


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that holds an empty store, for others to be copied from."""
    from heretix.store import Store

    path = tmp_path_factory.mktemp("template") / "heretix.sqlite"
    Store.open(str(path)).close()
    return path


@pytest.fixture(scope="session")
def demo_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that holds the demonstration world, made once for all workers of a session."""
    fcntl = pytest.importorskip("fcntl", reason="workers share a file by a lock that isn't here")
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    path = shared / "demo.sqlite"
    with (shared / "demo.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            # A thread of its own: it runs event loops, and so may whoever asks for it.
            with ThreadPoolExecutor(1) as pool:
                pool.submit(_make_demo, path, shared).result()
    return path


def _make_demo(path: Path, folder: Path) -> None:
    from heretix.core.settings import Settings
    from heretix.store import Store
    from heretix.web.demo import fill

    making = path.with_suffix(".making")
    settings = Settings(env={"HERETIX_CORPORA_DIR": str(folder / "demo-corpora")})
    with Store.open(str(making)) as store:
        fill(store, settings, embedded=False)
    making.rename(path)


@pytest.fixture
def postgres_url(
    postgres_server: Server, postgres_template: str, spool_folder: Path
) -> Iterator[str]:
    """A PostgreSQL database with an empty store."""
    with postgres_server.reused(postgres_template) as url:
        yield url
        # The next test has this database, without the runs that such answers belong to.
        for path in spool_folder.iterdir():
            path.unlink()


@pytest.fixture
def empty_postgres_url(postgres_server: Server) -> Iterator[str]:
    """A PostgreSQL database with nothing in it."""
    with postgres_server.database() as url:
        yield url


@pytest.fixture(params=BOTH)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store: the test runs once on each database.

    The store is a copy of one that was made before: that is several times quicker.
    """
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgres_url"))
    path = shutil.copy(request.getfixturevalue("sqlite_template"), tmp_path / "heretix.sqlite")
    return f"sqlite:///{path}"


@pytest.fixture(params=BOTH)
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a store can be made, on each database: there is nothing yet."""
    if request.param == "postgresql":
        return str(request.getfixturevalue("empty_postgres_url"))
    return f"sqlite:///{tmp_path}/heretix.sqlite"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave to CI what says that it is the same on either database, where that is PostgreSQL."""
    for item in items:
        if item.get_closest_marker("either") and item.get_closest_marker("postgres"):
            item.add_marker(pytest.mark.soak)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep the tests of a file together: they share servers, browsers and models."""
    from xdist.scheduler import LoadFileScheduling

    return LoadFileScheduling(config, log)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A skipped database or browser must not look like a tested one."""
    skipped = terminalreporter.stats.get("skipped", [])
    for mark, said in (
        (NOT_STARTED, "NOT TESTED on PostgreSQL"),
        (chromium.NOT_STARTED, "NOT TESTED in a browser"),
    ):
        reasons = [report.longrepr[-1] for report in skipped if mark in str(report.longrepr)]
        if reasons:
            terminalreporter.write_line(
                f"{said}: {len(reasons)} tests were skipped; {reasons[0]}", red=True
            )
