"""A client that a public generator makes of the API's description: it type-checks, and it works."""

import json
import subprocess
import sys
from itertools import islice

import pytest
from apiserver import CLAIMS, served

pytestmark = [pytest.mark.interop, pytest.mark.study]
pytest.importorskip("openapi_python_client", reason="the group `interop` isn't installed")


@pytest.fixture(scope="module")
def api(tmp_path_factory, sqlite_template):
    """A server with accounts and some measurements."""
    with served(tmp_path_factory.mktemp("api"), sqlite_template, accounts=True) as site:
        yield site


@pytest.fixture(scope="module")
def generated(api, tmp_path_factory):
    """The folder of a client that was made of the description that the server serves."""
    folder = tmp_path_factory.mktemp("generated")
    (folder / "openapi.json").write_text(json.dumps(api.get("/openapi.json", "root").json()))
    (folder / "config.yml").write_text("post_hooks: []\n")
    command = ["generate", "--path", "openapi.json", "--config", "config.yml", "--meta", "none"]
    made = subprocess.run(
        [sys.executable, "-m", "openapi_python_client", *command, "--output-path", "theirs"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    assert "arning" not in made.stdout + made.stderr, "something of the description was left out"
    return folder


def test_a_generated_client_type_checks(generated):
    """Every call and model of it does. What no description decides is the generator's own file."""
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "", "--cache-dir", "cache", "theirs"],
        cwd=generated,
        capture_output=True,
        text=True,
        check=False,
    )
    wrong = [line for line in checked.stdout.splitlines() if ": error:" in line]
    assert [line for line in wrong if not line.startswith("theirs/client.py:")] == []
    assert "source files" in checked.stdout, checked.stdout + checked.stderr


def test_a_generated_client_measures_and_reads(api, generated):
    """It leaves a job, follows it to its end, reads its runs, and hears what was refused."""
    code = f"""
from theirs import AuthenticatedClient
from theirs.api.jobs import create_job, get_job, list_job_runs
from theirs.api.people import get_me
from theirs.api.runs import get_run, list_runs
from theirs.models import MeasureRequest, Problem

with AuthenticatedClient(base_url={api.url!r}, token=input(), follow_redirects=False) as client:
    print(get_me.sync(client=client).name)
    request = MeasureRequest.from_dict({{"claims": ["Tea."], "models": ["mock:a"], "K": 4, "R": 1}})
    job = create_job.sync(client=client, body=request, idempotency_key="mine")
    print(job.state.value)
    input()
    print(get_job.sync(job.id, client=client).state.value)
    (run,) = list_job_runs.sync(job.id, client=client).items
    detail = get_run.sync(run.execution_id, client=client)
    print(detail.run.claim)
    print(sorted(found.claim for found in list_runs.sync(client=client, limit=50).items))
    lost = get_job.sync_detailed("job-none", client=client)
    print(int(lost.status_code), isinstance(lost.parsed, Problem), bool(lost.parsed.detail))
"""
    command = [sys.executable, "-u", "-c", code]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=generated, text=True, **pipes) as client:
        client.stdin.write(f"{api.tokens['root']}\n")
        client.stdin.flush()
        begun = [line.strip() for line in islice(client.stdout, 2)]
        api.work()
        said, problems = client.communicate("\n", timeout=240)
    assert begun == ["root", "queued"], problems
    state, claim, claims, refused = said.splitlines()
    assert (state, claim) == ("done", "Tea."), problems
    assert claims == str(sorted([*CLAIMS, "Tea."]))
    assert refused == "404 True True"
