"""The repository itself: tidy, private, and true to its documents."""

import ast
import re
import subprocess
import tomllib
from functools import cache
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))


@cache
def parsed(path):
    """The module as a tree."""
    return ast.parse(path.read_text(encoding="utf-8"))


def tracked():
    """Files that git knows, or all of them where there is no checkout."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed if (ROOT / name).is_file()]


def test_functions_stay_small():
    """A function holds one idea: at most 70 lines."""
    for path in SOURCES:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = node.end_lineno - node.lineno + 1
                assert lines <= 70, f"{path}: {node.name} has {lines} lines"


def test_every_module_has_a_docstring():
    """What it is for stands at its top."""
    for path in SOURCES:
        assert ast.get_docstring(parsed(path)), path


def test_docstrings_begin_with_the_verb_or_the_thing():
    """None begins with a question word, or with somebody who does something."""
    question = re.compile(r"(?:What|Who|Whose|How|Whether|Why|Which|Where|Somebody|Nobody)\b")
    for path in SOURCES:
        for node in ast.walk(parsed(path)):
            match node:
                # That of an attribute stands below it, as an expression.
                case ast.Expr(value=ast.Constant(value=str(text))):
                    assert not question.match(text), f"{path}: {text.splitlines()[0]}"


def test_no_module_is_called_by_what_it_is_not():
    """A name says what is inside."""
    for path in SOURCES:
        assert path.stem not in {"utils", "util", "helpers", "misc", "common"}, path


def test_no_machine_path_registry_host_or_key_is_in_the_tree():
    """Nothing in the repository tells where it was made, or lets anyone pay with it."""
    leaks = re.compile(
        r"/(?:work|root|home/\w+)/|py"
        r"pi\.org|python"
        r"hosted|npm"
        r"js\.(?:com|org)"
        r"|\bsk-[A-Za-z0-9]{20}"
    )
    for path in tracked():
        if path.suffix in {".png", ".gguf", ".pdf"}:
            continue
        found = leaks.search(path.read_text(encoding="utf-8"))
        assert not found, f"{path}: {found.group()}"


def test_the_lock_file_is_not_tracked():
    """It names download addresses."""
    assert not any(path.name == "uv.lock" for path in tracked())


def test_the_example_configuration_is_valid():
    """`runs/rpl_example.yaml` is what the documents say."""
    from heretix.config import load_config

    config = load_config(ROOT / "runs" / "rpl_example.yaml")
    assert (config.model, config.K, config.R, config.T, config.seed) == ("gpt-5", 8, 2, 8, 42)


def test_links_between_documents_lead_somewhere():
    """Relative links in Markdown name files that exist."""
    for path in tracked():
        if path.suffix != ".md":
            continue
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", path.read_text(encoding="utf-8")):
            assert (path.parent / target).exists(), f"{path}: {target}"


def test_commands_in_the_readme_exist():
    """Every `heretix WORD` that the documents show is a command."""
    from heretix.cli.app import COMMANDS

    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for word in re.findall(r"(?:uv run |^|`)heretix ([a-z]+)", path.read_text(), re.MULTILINE):
            assert word in COMMANDS.builtin, f"{path}: heretix {word}"


def test_yaml_files_parse():
    """Packaged and example YAML is YAML."""
    for path in tracked():
        if path.suffix in {".yaml", ".yml"}:
            assert yaml.safe_load(path.read_text(encoding="utf-8")) is not None


def test_remedies_install_from_the_clone_what_is_there():
    """No message sends anybody to a registry that doesn't have us, or to an extra we lack."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = set(declared["project"]["optional-dependencies"])
    named = set()
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        assert "heretix[" not in text, path
        named |= set(re.findall(r"--extra (\w+)|\.\[(\w+)\]'", text))
    assert {name for pair in named for name in pair if name} <= extras
    assert named
