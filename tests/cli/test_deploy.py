"""The files that run Heretix elsewhere name only what is there, and their commands work."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

REPOSITORY = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((REPOSITORY / "deploy" / "compose.yaml").read_text())
DOCKERFILE = (REPOSITORY / "deploy" / "Dockerfile").read_text().replace("\\\n", " ")
ACTION = yaml.safe_load((REPOSITORY / "action.yml").read_text())
HOOKS = yaml.safe_load((REPOSITORY / ".pre-commit-hooks.yaml").read_text())


def accepts(args):
    """Whether the command line knows a command and its options."""
    from heretix.cli.app import app

    return CliRunner().invoke(app, [*args, "--help"]).exit_code == 0


def test_the_image_copies_what_is_there_and_installs_extras_that_exist():
    """Every COPY has its source in the context, and every extra is declared."""
    copied = re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE)
    sources = [name for line in copied for name in line.split()[:-1]]
    ignored = (REPOSITORY / ".dockerignore").read_text().splitlines()
    for name in sources:
        assert (REPOSITORY / name).exists(), name
        assert f"!{name}" in ignored, name
    extras = re.search(r'"\.\[([\w,]+)\]"', DOCKERFILE)[1].split(",")
    declared = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert set(extras) <= declared["optional-dependencies"].keys()
    assert "USER heretix" in DOCKERFILE
    command = yaml.safe_load(re.search(r"^CMD (.+)$", DOCKERFILE, re.MULTILINE)[1])
    assert accepts(command)


def test_services_run_commands_that_exist_and_wait_for_the_database():
    """Server and worker share an image; nothing but loopback is published."""
    services = COMPOSE["services"]
    assert services.keys() == {"server", "worker", "database"}
    for name in ("server", "worker"):
        assert accepts(services[name]["command"])
        assert services[name]["depends_on"] == {"database": {"condition": "service_healthy"}}
        assert services[name]["environment"]["HERETIX_DB"].startswith("postgresql://")
    published = [port for service in services.values() for port in service.get("ports", ())]
    assert all(port.startswith("127.0.0.1:") for port in published)
    used = {line.split(":")[0] for one in services.values() for line in one.get("volumes", ())}
    assert used == COMPOSE["volumes"].keys()
    example = (REPOSITORY / "deploy" / "example.env").read_text()
    assert re.findall(r"\$\{(\w+)", str(COMPOSE))
    for name in re.findall(r"\$\{(\w+)", str(COMPOSE)):
        assert f"\n{name}=" in f"\n{example}"


@pytest.mark.parametrize(("at_least", "code"), [(0.0, 0), (1.0, 1)])
def test_the_action_ends_as_the_check_does(shell, folder, at_least, code):
    """Its last step, run as written, passes and fails with the expectations, and writes JUnit."""
    inputs = {name: str(one["default"]) for name, one in ACTION["inputs"].items()}
    inputs |= {"mock": "true"}
    step = ACTION["runs"]["steps"][-1]
    env = {
        name: re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda found: inputs[found[1]], value)
        for name, value in step["env"].items()
    }
    (folder / "beliefs.yaml").write_text(
        f"models: [gpt-5]\nchecks:\n  - claim: Tea.\n    at_least: {at_least}\n"
    )
    result = shell(f"set -eo pipefail\n{step['run']}", **env)
    assert result.returncode == code, result.stderr
    assert "<testsuite" in (folder / "heretix-junit.xml").read_text()


def test_hooks_refuse_what_was_changed_and_what_does_not_read(heretix, shell, folder):
    """pre-commit hands over several files at once; one bad one is enough."""
    made = heretix("run", "Tea.", "--mock", "-K", 4, "-R", 1, "-o", "a.heretix.json")
    assert made.code == 0, made.err
    text = (folder / "a.heretix.json").read_text()
    (folder / "b.heretix.json").write_text(text.replace('"claim": "Tea."', '"claim": "Rum."'))
    (folder / "a.heretix.yaml").write_text("claim: Tea.\n")
    (folder / "b.heretix.yaml").write_text("k: 4\n")
    for hook in HOOKS:
        suffix = "json" if "verify" in hook["id"] else "yaml"
        good, bad = f"a.heretix.{suffix}", f"b.heretix.{suffix}"
        assert re.search(hook["files"], good)
        assert shell(f"{hook['entry']} {good} {good}").returncode == 0
        assert shell(f"{hook['entry']} {good} {bad}").returncode != 0
