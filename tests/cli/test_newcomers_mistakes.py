"""What a newcomer types wrong, or runs in a place that we didn't think of, and what is said then."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import stamina.instrumentation

from heretix.cli.output import fit_json

SMALL = ("--mock", "-K", 4, "-R", 1, "-B", 100)


@pytest.mark.parametrize("command", ["run", "lens", "describe", "episode open"])
def test_a_claim_without_quotes_is_told_of_them(heretix, command):
    """The shell made several words of it."""
    result = heretix(*command.split(), "Coffee", "beans", "are", "seeds")
    assert result.code == 2
    said = " ".join(result.err.split())
    assert "(beans are seeds)" in said
    assert f'in quotes: heretix {command} "A claim."' in said


def test_an_option_of_one_letter_in_the_other_case_is_guessed(heretix):
    """`-k` is `-K`; an option that isn't near any is only refused."""
    said = heretix("run", "Coffee beans are seeds.", "-k", 4)
    assert (said.code, "did you mean -K?" in said.err) == (2, True)
    assert "did you mean" not in heretix("run", "Coffee beans are seeds.", "-q").err


@pytest.mark.parametrize(
    ("model", "meant"),
    [
        ("gtp-5", "gpt-5"),
        ("claud-sonnet-5-5", "claude-sonnet-5-5"),
        ("smollm2-135m", "local:smollm2-135m"),
        ("opnai:gpt-5", "openai:gpt-5"),
    ],
)
def test_a_mistyped_model_is_guessed(heretix, model, meant):
    """The nearest name that is known is named."""
    result = heretix("run", "C", "-m", model)
    assert result.code == 2
    assert f"did you mean `{meant}`?" in result.err


def test_nothing_is_guessed_from_nothing(heretix):
    """A name like no other gets the list of providers only."""
    result = heretix("run", "C", "-m", "zzzzzzzz")
    assert result.code == 2
    assert "did you mean" not in result.err


def test_all_missing_keys_are_named_at_once(heretix):
    """Whoever sets one isn't stopped again for the next."""
    result = heretix("run", "C", "-m", "gpt-5", "-m", "claude-sonnet-5-5", "-m", "gpt-5.1")
    assert result.code == 2
    assert "set OPENAI_API_KEY, ANTHROPIC_API_KEY;" in result.err
    alone = heretix("run", "C", "-m", "gpt-5", "-m", "mock:m")
    assert "`gpt-5` needs a key: set OPENAI_API_KEY" in alone.err


def test_an_address_without_its_scheme_is_told_of_it(heretix):
    """No pattern is shown to anybody."""
    result = heretix("run", "C", "-m", "ollama:m", "--base-url", "localhost:11434")
    assert result.code == 2
    assert "`base_url` must begin with http:// or https://" in result.err
    assert "pattern" not in result.err


@pytest.mark.parametrize("kept", [0.2, 0.5, 0.95])
@pytest.mark.parametrize("indent", [2, None])
def test_a_file_that_was_cut_off_says_so(heretix, kept, indent):
    """Half a download or a full disk isn't a mistake in line 1."""
    assert heretix("run", "C", *SMALL, "-o", "a.json").code == 0
    artifact = json.loads(Path("a.json").read_text())
    text = json.dumps(artifact, indent=indent)
    Path("cut.json").write_text(text[: int(len(text) * kept)])
    result = heretix("show", "cut.json")
    assert result.code == 2
    assert re.search(
        r"`cut\.json` ends too early( in line \d+)?, at character [\d,]+: ", result.err
    )


@pytest.mark.parametrize("text", ["hello", '{"a": oops}', '{"a": 1}}\n', '{\n"a": b,\n"c": 1\n}'])
def test_what_is_no_json_at_all_is_not_called_short(heretix, text):
    """More of it would not help."""
    Path("wrong.json").write_text(text)
    result = heretix("show", "wrong.json")
    assert result.code == 2
    assert "`wrong.json` isn't JSON" in result.err


@pytest.mark.parametrize(
    ("text", "said"),
    [("[" * 200_000, "is nested deeper than any record"), ('{"a": NaN}', "NaN isn't JSON")],
)
def test_what_no_record_holds_is_refused_with_its_file(heretix, text, said):
    """Brackets without end are a mistake of the file, and no traceback."""
    Path("odd.json").write_text(text)
    result = heretix("verify", "odd.json")
    assert result.code == 2
    assert "`odd.json`" in result.err
    assert said in result.err


def test_the_last_line_of_many_may_be_cut_off(heretix):
    """The line is named."""
    assert heretix("run", "C", *SMALL, "-o", "a.json").code == 0
    line = json.dumps(json.loads(Path("a.json").read_text()))
    Path("many.jsonl").write_text(f"{line}\n{line[:500]}")
    assert "`many.jsonl` line 2 ends too early" in heretix("show", "many.jsonl").err


def test_a_terminal_of_few_characters_is_served(entry_point, folder):
    """What it can't show becomes a question mark."""
    ran = entry_point("run", "Café is a drink.", *SMALL, encoding="ascii")
    assert ran.code == 0, ran.err
    assert "Caf? is a drink." in ran.out


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"a\0b"], ids=["empty", "bytes", "nul"])
@pytest.mark.parametrize(
    ("command", "remedy"),
    [
        ("show", "what `heretix run --out` wrote"),
        ("verify", "what `heretix run --out` wrote"),
        ("evidence verify", "a bundle that `heretix evidence build --out` wrote"),
        ("episode verify", "what `heretix episode export --out` wrote"),
        ("episode reveal", "what `heretix episode challenge` wrote"),
    ],
)
def test_a_file_of_another_kind_is_told_what_was_meant(heretix, command, remedy, content):
    """What the parser has to say is no remedy."""
    assert heretix("ledger", "join", "ann").code == 0
    Path("wrong.json").write_bytes(content)
    result = heretix(*command.split(), "wrong.json")
    assert result.code == 2
    assert f"give {remedy}" in result.err
    assert "codec" not in result.err


@pytest.mark.parametrize(
    ("command", "content", "remedy"),
    [
        ("describe --mock -c", b"", "such as `claim: ...`, got nothing"),
        ("describe --mock -c", b"\xff\xfe", "save it as UTF-8"),
        ("describe --mock --claims-file", b"\xff\xfe", "save it as UTF-8"),
        ("describe --mock C --prompts-file", b"\xff\xfe", "save it as UTF-8"),
        ("policy check", b"\xff\xfe", "save it as UTF-8"),
    ],
)
def test_a_file_to_be_read_says_how_it_should_be(heretix, command, content, remedy):
    """The same for what people write themselves."""
    Path("wrong.txt").write_bytes(content)
    result = heretix(*command.split(), "wrong.txt")
    assert result.code == 2
    assert remedy in result.err


def test_a_job_that_is_none_is_told_where_jobs_are(heretix):
    """An id is easily mistyped."""
    assert heretix("ledger", "join", "ann").code == 0
    assert (
        "`nope` names no job of yours; `heretix jobs list`" in heretix("jobs", "show", "nope").err
    )


def test_a_claim_arrives_whole_where_the_locale_is_ascii(shell, folder):
    """Python hands its letters on as escaped bytes; they are UTF-8."""
    claim = "Tee ist schön. 茶是植物。"
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    line = f"heretix run '{claim}' --mock -K 4 -R 1 --out o.json"
    done = shell(line, **ascii_only)
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "o.json").read_text("utf-8"))["runs"][0]["claim"] == claim


def test_programs_lose_no_letter_on_such_a_terminal(entry_point, folder):
    """JSON is escaped where it can't be shown: `?` would be taken for what the claim says."""
    claim = "Café 🧪 is a drink."
    ran = entry_point("run", claim, *SMALL, "--json", encoding="ascii")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["runs"][0]["claim"] == claim
    assert ran.out.isascii()
    for command in ("runs --json", "export runs"):
        read = entry_point(*command.split(), encoding="ascii").out
        (found,) = json.loads(read if command.endswith("json") else f"[{read}]")
        assert found["claim"] == claim
    assert claim in entry_point("runs", "--json").out


def test_half_a_character_is_escaped_on_every_terminal():
    """A lone surrogate has no encoding at all; JSON can say it all the same."""
    assert fit_json('"a\udc80é"', "utf-8") == '"a\\udc80\\u00e9"'
    assert fit_json('"é🧪"', "utf-8") == '"é🧪"'
    assert fit_json('"é🧪"', "latin-1") == '"\\u00e9\\ud83e\\uddea"'


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_ends_with_one_line(shell, heretix):
    """The output is lost, which a script must learn."""
    assert heretix("run", "C", *SMALL).code == 0
    for command in ("runs", "runs --json", "--help"):
        ran = shell(f"heretix {command} > /dev/full")
        assert ran.returncode == 3
        assert ran.stderr == "error: standard output can't be written: No space left on device\n"


def test_a_reader_that_goes_away_is_no_failure(shell, heretix):
    """`| head -1` of a long output ends quietly and well."""
    assert heretix("run", "C", "--mock", "-B", 100, "-R", 64).code == 0
    ref = re.search(r"^[0-9a-f]{8}", heretix("runs").out, re.MULTILINE)[0]
    ran = shell(f"heretix show {ref} --json | head -1; exit ${{PIPESTATUS[0]}}")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "{\n", "")
    assert shell("heretix runs >&-").returncode == 0


def test_the_server_logs_no_retries(tmp_path, sqlite_template):
    """Every try is counted and stored; the terminal is for what matters."""
    from heretix.cli.serve import _warm
    from heretix.core.settings import Settings
    from heretix.store import Store
    from heretix.web.state import AppState

    path = tmp_path / "heretix.sqlite"
    path.write_bytes(sqlite_template.read_bytes())
    before = stamina.instrumentation.get_on_retry_hooks()
    try:
        stamina.instrumentation.set_on_retry_hooks(None)
        with Store.open(str(path)) as store:
            _warm(AppState.open(store, Settings()))
        assert stamina.instrumentation.get_on_retry_hooks() == ()
    finally:
        stamina.instrumentation.set_on_retry_hooks(before)


def test_pulling_a_model_tells_how_far_it_is_without_a_terminal(capsys):
    """A log shows that something happens."""
    from heretix.cli.doctor import watching_pull

    with watching_pull("some-model") as progress:
        progress(0, 1_117_000_000)
        progress(52_428_800, 1_117_000_000)
    told = capsys.readouterr().err.splitlines()
    assert told == ["pulling some-model: 0 of 1,117 MB", "pulling some-model: 52 of 1,117 MB"]


def test_a_password_is_needed(heretix):
    """Nothing on standard input isn't a password of no characters."""
    ran = heretix("users", "add", "Bob", stdin="")
    assert ran.code == 2
    assert "standard input is empty" in ran.err


def test_a_short_password_is_not_asked_for_twice(folder):
    """It is refused as soon as it is typed."""
    pytest.importorskip("pty", reason="no pseudo-terminals here")
    inner = [sys.executable, "-c", "from heretix.cli.app import main; main()", "users", "add", "Bo"]
    spawn = f"import os, pty; os._exit(os.waitstatus_to_exitcode(pty.spawn({inner!r})))"
    with subprocess.Popen(
        [sys.executable, "-c", spawn], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder
    ) as process:
        said = b""
        while not said.endswith(b"password: "):
            said += process.stdout.read(1)
        process.stdin.write(b"short\n")
        process.stdin.flush()
        rest = process.stdout.read().decode()
        assert process.wait(timeout=120) == 2
    assert "must have 10 to" in rest
    assert "epeat" not in rest


def test_episodes_say_what_may_be_done_now(heretix):
    """Bets and challenges come before the freeze; every hint begins alike; times say UTC."""
    opened = heretix("episode", "open", "Tea is a leaf.", "--practice", "-R", 1, "-B", 100)
    assert opened.code == 0, opened.err
    said = opened.out
    assert re.search(r"^measured in 1 execution *$", said, re.MULTILINE)
    steps = [said.index(f"heretix {move}") for move in ("market buy", "episode chal", "episode fr")]
    assert steps == sorted(steps)
    assert re.search(r"next: heretix market buy ep-\w+ heretic 10, until \S+ \S+ UTC", said)
    assert re.search(r"reveals until +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", said)
    bet = heretix("market", "buy", "latest", "heretic", "10")
    assert re.search(r"again with --key [0-9a-f]{32} it would be this same move", bet.out)
    assert "--key" not in heretix("market", "buy", "latest", "heretic", "10", "--key", "k").out
