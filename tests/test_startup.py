"""What starts quickly imports little: one process goes from the lightest door to the heaviest."""

import json
import subprocess
import sys

import pytest

DOORS = {
    # Start-up time is import time: none of these is needed to print help.
    "the help": """
import typer.main
from heretix.cli.app import app
typer.main.get_command(app).main(["--help"], standalone_mode=False)
heavy = "numpy sqlalchemy aiohttp pydantic alembic yaml rich stamina xllamacpp"
assert loaded(*heavy.split()) == []
assert loaded("heretix.cli") == ["heretix.cli", "heretix.cli.app"]
""",
    # Neither the network nor an adapter.
    "the registry of providers": """
import heretix.providers.catalog
assert loaded("aiohttp", "xllamacpp", "numpy") == []
known = ["heretix.providers", "heretix.providers.base", "heretix.providers.catalog"]
assert loaded("heretix.providers") == known
""",
    # A call is made while its lease runs: what takes long is done before.
    "the first call of an opened provider": """
import asyncio
from heretix.core.settings import Settings
from heretix.providers.base import Request
from heretix.providers.catalog import Options, open_provider, parse_model
options = Options(base_url="http://127.0.0.1:1/v1")
provider = open_provider(parse_model("openai-compatible:m"), Settings(), options=options)
before = set(sys.modules)
asked = Request(model="m", system="", user="", max_output_tokens=1)
async def ask():
    try:
        await provider.ask(asked)
    except Exception:
        pass
    await provider.aclose()
asyncio.run(ask())
more = set(sys.modules) - before
assert "aiohttp" not in more
assert len(more) < 10, more
""",
    # The slow import is for migrations only.
    "a store, new and then not": """
from heretix.store import Store
for _ in range(2):
    Store.open("heretix.sqlite").close()
    assert loaded("alembic") == []
""",
    # They are heavy, and most programs need none.
    "the library": """
import heretix
heretix.measure
assert loaded("pandas", "polars", "pyarrow", "duckdb") == []
""",
    # A script and a terminal get no bar; nothing of IPython is loaded for one.
    "the bar of a script": """
import heretix.api
assert heretix.api._make_bar(None) is None
assert loaded("IPython") == []
""",
    # pyarrow isn't imported where nothing was archived.
    "a look-up without a lake": """
import heretix
from heretix.store import Store
from heretix.store.samples import select_answers
heretix.measure("Tea.", model="mock:a", K=4, R=1, B=100, store="heretix.sqlite")
with Store.open("heretix.sqlite") as store:
    assert store.read(select_answers, ["ab" * 32]) == {}
assert loaded("pyarrow", "heretix.lake") == []
""",
    # A run that nobody observes knows neither OpenTelemetry nor what speaks to it.
    "a run": """
import os
from heretix.cli import main
sys.argv[1:] = ["run", "Coffee beans are seeds.", "-m", "mock:gpt-5", "-K", "4", "-R", "1"]
class Left(BaseException):
    pass
def leave(code):
    raise Left(code)
os._exit = leave
try:
    main()
except Left as left:
    assert left.args == (0,)
assert loaded("opentelemetry", "heretix.observability") == []
""",
    # The client can be used where the web extra isn't installed.
    "the client": """
server = ("fastapi", "starlette", "uvicorn", "argon2", "jinja2")
assert loaded(*server) == []
sys.modules |= dict.fromkeys(server)
from heretix.client import Client
assert loaded("heretix.web") == []
""",
}
PROGRAM = """
import json, sys, traceback

def loaded(*names):
    return sorted(n for n in sys.modules if any(f"{n}.".startswith(f"{m}.") for m in names))

wrong = {}
for door, code in json.loads(sys.argv[1]).items():
    wrong[door] = ""
    try:
        exec(code, {"sys": sys, "loaded": loaded})
    except BaseException:
        wrong[door] = traceback.format_exc()
print()
print(json.dumps(wrong))
"""


@pytest.fixture(scope="module")
def wrong(tmp_path_factory):
    """What was wrong at each door, in a process that went through all of them in turn."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(DOORS)],
        cwd=tmp_path_factory.mktemp("doors"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("door", DOORS)
def test_what_is_not_needed_is_not_imported(wrong, door):
    """Nothing before it has imported it, either."""
    assert wrong[door] == ""
