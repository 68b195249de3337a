"""Commands run in a folder of their own."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from faultserver import FaultServer, by_prompt

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder with the example configuration, as after a clone."""
    (tmp_path / "runs").mkdir()
    example = REPOSITORY / "runs" / "rpl_example.yaml"
    (tmp_path / "runs" / "rpl_example.yaml").write_text(example.read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path


@pytest.fixture
def heretix(folder):
    """Run a command in this process; a Heretix error ends it as `main` would."""
    from heretix.cli.app import app
    from heretix.core.errors import HeretixError

    def run(*args, stdin=None):
        result = CliRunner().invoke(app, [str(arg) for arg in args], input=stdin)
        code, err = result.exit_code, result.stderr
        if isinstance(result.exception, HeretixError):
            code, err = result.exception.exit_code, f"{err}error: {result.exception}"
        elif result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return SimpleNamespace(code=code, out=result.stdout, err=err)

    return run


@pytest.fixture
def provider(monkeypatch):
    """Who answers `openai-compatible:m`, to commands of this process and of others."""
    with FaultServer() as server:
        server.always(by_prompt())
        monkeypatch.setenv("HERETIX_BASE_URL", server.url("openai-compatible"))
        yield server


@pytest.fixture
def shell(folder):
    """Run a shell line in a process of its own, with `heretix` on the path."""

    def run(line, **env):
        scripts = str(Path(sys.executable).parent)
        environment = {**os.environ, "PATH": f"{scripts}:{os.environ['PATH']}", **env}
        return subprocess.run(
            ["bash", "-c", line],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    return run
