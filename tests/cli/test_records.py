"""`heretix show`, `verify`, `runs`, `diff`, `models` and the help."""

import json
import re
from pathlib import Path

import pytest

import heretix as heretix_package
from heretix.measurement.verify import read_artifacts


def measure(heretix, claim="x", *args):
    out = "made.json"
    assert heretix("run", claim, "-m", "mock:m", "--out", out, *args).code == 0
    return read_artifacts(out)[0].runs[0]


def test_show_takes_ids_parts_of_ids_and_files(heretix):
    """The same run by every name it has."""
    run = measure(heretix)
    for ref in (
        run.run_id,
        run.execution_id,
        run.run_id[12:18],
        run.execution_id[:12],
        "made.json",
    ):
        result = heretix("show", ref)
        assert result.code == 0
        assert run.run_id in result.out
        assert "between templates" in result.out


def test_verify_finds_a_changed_file_and_ends_with_1(heretix, folder):
    """What changed is named."""
    run = measure(heretix)
    text = (folder / "made.json").read_text()
    recorded = str(run.aggregates.prob_true_rpl)
    (folder / "bad.json").write_text(text.replace(recorded, "0.5", 1))
    result = heretix("verify", "bad.json")
    assert result.code == 1
    assert "aggregates.prob_true_rpl" in result.out
    found = json.loads(heretix("verify", "bad.json", "--json").out)
    assert found[0]["ok"] is False
    assert heretix("verify", run.run_id).code == 0


def test_verify_needs_no_database(heretix, folder):
    """The file alone is enough."""
    measure(heretix)
    (folder / "runs" / "heretix.sqlite").unlink()
    assert heretix("verify", "made.json").code == 0
    assert heretix("show", "made.json").code == 0


def test_runs_lists_searches_and_counts(heretix):
    """Newest first; a search narrows; nothing found is said."""
    for claim in ("Tea is green.", "Coffee is black.", "Milk is white."):
        measure(heretix, claim)
    assert "Milk" in heretix("runs").out.splitlines()[1]
    listed = json.loads(heretix("runs", "coffee", "--json").out)
    assert [run["claim"] for run in listed] == ["Coffee is black."]
    assert len(json.loads(heretix("runs", "--limit", 2, "--json").out)) == 2
    assert "no runs" in heretix("runs", "nothing like it").out


LONG = "Honey that is kept dry and in the dark is said to stay good for more than three thousand years."


def test_runs_leave_room_for_the_claim_on_a_narrow_screen(heretix, monkeypatch):
    """80 columns hold the number, its interval and what they are about; the id shown names it."""
    monkeypatch.setenv("COLUMNS", "80")
    measure(heretix, LONG)
    lines = heretix("runs").out.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert "Honey that is kept dry and in the dark" in lines[1]
    assert "–" in lines[1]
    assert "all by mock:m" in lines[2]
    assert LONG in " ".join(heretix("show", lines[1].split()[0]).out.split())
    assert heretix("run", LONG, "-m", "mock:other").code == 0
    latest, first = heretix("runs").out.splitlines()[1:]
    assert "mock:other" in latest
    assert "mock:m" in first
    assert "Honey that is kept dry and" in first


def test_what_is_piped_is_whole(heretix, monkeypatch):
    """Where there is no screen, nothing is cut to its width."""
    monkeypatch.delenv("COLUMNS")
    measure(heretix, LONG)
    (line,) = (line for line in heretix("runs").out.splitlines() if "Honey" in line)
    assert LONG in line


def test_diff_is_paired_when_the_banks_agree(heretix):
    """Same bank: paired by template, and a run doesn't differ from itself."""
    a = measure(heretix, "x", "-T", 16, "-K", 16)
    b = measure(heretix, "y", "-T", 16, "-K", 16)
    result = heretix("diff", a.execution_id, b.execution_id, "--json")
    found = json.loads(result.out)
    assert found["paired"] is True
    assert found["difference"]["n_pairs"] == 16
    itself = json.loads(heretix("diff", a.run_id, a.run_id, "--json").out)["difference"]
    assert itself["diff_prob"] == 0.0
    assert itself["diff_prob_lo"] <= 0 <= itself["diff_prob_hi"]
    shown = heretix("diff", a.run_id, b.run_id).out
    assert "paired over 16 templates" in shown
    told = heretix_package.compare(*map(heretix_package.Belief, (a, b))).sentence
    assert " ".join(shown.split()).startswith(told)
    assert "excludes 0" not in shown
    t = found["paired_template_t"]["diff_prob"]
    assert f"{t['value']:+.3f}   95% CI {t['lo']:+.3f} … {t['hi']:+.3f}" in shown
    assert (t["lo"] <= 0 <= t["hi"]) == (t["p_value"] >= 0.05)
    assert found["paired_template_t_trimmed"]["n_pairs"] == 16
    assert "can't be relied on" not in shown


def test_diff_warns_under_8_shared_wordings(heretix):
    """Five wordings in common: the p-values stand there, and so does the warning."""
    a = measure(heretix, "x", "-T", 5, "-K", 5, "-R", 1)
    b = measure(heretix, "x", "-T", 5, "-K", 5, "-R", 2)
    assert a.sampler.tpl_indices == b.sampler.tpl_indices
    shown = heretix("diff", a.run_id, b.run_id).out
    assert "over 5 shared wordings" in shown
    assert "only 5 wordings shared: with fewer than 8" in shown


def test_diff_is_unpaired_when_the_banks_differ(heretix, folder):
    """Other wordings can't be paired, and that is said."""
    a = measure(heretix)
    rows = "".join(f"  - 'Form {i}. Is it so? {{CLAIM}}'\n" for i in range(16))
    (folder / "mine.yaml").write_text(
        f"version: mine_1\nsystem: s\nuser_template: '{{PARAPHRASE}}'\nparaphrases:\n{rows}"
    )
    b = measure(heretix, "x", "--prompts-file", "mine.yaml")
    result = heretix("diff", a.execution_id, b.execution_id)
    assert result.code == 0
    assert "unpaired" in result.out
    assert "no p-value: fewer than 2 wordings are shared" in result.out
    assert b.prompts.source == "mine.yaml"


def test_diff_needs_one_run_on_each_side(heretix):
    """An artifact with two runs is ambiguous; the message names both."""
    heretix("run", "x", "-m", "mock:a", "-m", "mock:b", "--out", "two.json")
    result = heretix("diff", "two.json", "two.json")
    assert result.code == 2
    assert "holds 2 runs" in result.err


@pytest.mark.parametrize("command", ["show", "diff"])
def test_a_record_that_was_changed_is_not_shown_without_a_word(heretix, command):
    """The numbers are shown as they stand, and that they can't be trusted beside them."""
    heretix("run", "x", "-m", "mock:a", "-B", "100", "--out", "a.json")
    refs = ("a.json",) if command == "show" else ("a.json", "a.json")
    assert "NOT verified" not in heretix(command, *refs).err
    artifact = json.loads(Path("a.json").read_text())
    artifact["runs"][0]["aggregates"]["prob_true_rpl"] = 0.95
    Path("a.json").write_text(json.dumps(artifact))
    result = heretix(command, *refs)
    assert result.code == 0
    assert "NOT verified: a.json was changed after it was written" in " ".join(result.err.split())


def test_models_are_listed_with_their_state(heretix):
    """The demonstration model is labelled as one."""
    result = heretix("models", "list")
    assert result.code == 0
    assert "smollm2-135m" in result.out
    assert "demonstration" in result.out
    names = [model["name"] for model in json.loads(heretix("models", "list", "--json").out)]
    assert names == ["smollm2-135m", "qwen2.5-coder-1.5b"]


def test_the_version_and_the_help_are_there(heretix):
    """`--version`, `-h` and every command's help."""
    from heretix import __version__

    first, *more = heretix("--version").out.splitlines()
    assert first == f"heretix {__version__}"
    assert any(re.search(r"^with .*\bweb\b", line) for line in more)
    for command in ("run", "describe", "show", "verify", "runs", "diff", "models"):
        assert command in heretix("--help").out
        assert heretix(command, "-h").code == 0


def test_the_package_is_the_command_line_too(shell):
    """For when the script isn't on the path."""
    from heretix import __version__

    assert shell("python -m heretix --version").stdout.startswith(f"heretix {__version__}\n")
    assert shell("python -m heretix show exec-0").returncode == 2


def test_the_table_of_commands_says_what_the_commands_say():
    """`--help` imports no command, so each line of it is checked against the command's own."""
    from typer.main import get_command

    from heretix.cli.app import _COMMANDS, app

    for name, (_, summary) in _COMMANDS.items():
        command = get_command(app).commands[name]
        assert command.name == name
        if command.help and "commands" in vars(command):
            assert command.help == summary
