"""The rules are pure: no clock, no files, no chance, and no float near money."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import heretix.economy

HOUSE = Path(heretix.economy.__file__).parent
RULES = (
    "audit",
    "episode/challenges",
    "episode/moves",
    "episode/settlement",
    "episode/state",
    "exploration",
    "ledger",
    "market",
    "rewards",
)
ALLOWED = {
    "__future__",
    "collections",
    "dataclasses",
    "decimal",
    "enum",
    "fractions",
    "re",
    "functools",
    "hashlib",
    "itertools",
    "json",
    "math",
    "types",
    "typing",
    "unicodedata",
}


@pytest.mark.parametrize("name", RULES)
def test_a_rule_imports_nothing_that_could_change_its_answer(name):
    """Only arithmetic, records and hashing; of Heretix, only the economy and the errors."""
    for node in ast.walk(ast.parse((HOUSE / f"{name}.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module]
            if node.module in {"heretix.economy", "heretix.economy.episode"}:
                modules = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for module in modules:
            ours = module in {"heretix.core.canonical", "heretix.core.errors"} or (
                module.removeprefix("heretix.economy.").replace(".", "/") in RULES
            )
            assert ours or module.split(".")[0] in ALLOWED, module


@pytest.mark.parametrize("name", RULES)
def test_a_rule_has_no_float(name):
    """Neither a literal, nor the type, nor a division that makes one."""
    for node in ast.walk(ast.parse((HOUSE / f"{name}.py").read_text(encoding="utf-8"))):
        assert not (isinstance(node, ast.Constant) and isinstance(node.value, float))
        assert not (isinstance(node, ast.Name) and node.id == "float")
        assert not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)), node.lineno
