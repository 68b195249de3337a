"""Configurations and claims: what is taken, what is refused, and how that is said."""

import pytest

from heretix.config import MAX_CLAIM_CHARS, RunConfig, check_claim, load_config
from heretix.core.errors import ClaimError, ConfigError


def write(tmp_path, text, name="run.yaml"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_defaults_are_those_of_the_method():
    """An empty configuration is the documented default plan."""
    config = RunConfig()
    assert (config.K, config.R, config.effective_B) == (8, 2, 5000)
    assert (config.center, config.trim, config.max_output_tokens) == ("trimmed", 0.2, 1024)


def test_the_legacy_preset_is_a_named_plan_that_keys_override():
    """K=7, R=3, B=2000, unless a key beside the preset says otherwise."""
    legacy = RunConfig.parse({"preset": "legacy"})
    assert (legacy.K, legacy.R, legacy.effective_B) == (7, 3, 2000)
    assert RunConfig.parse({"preset": "legacy", "K": 9}).K == 9


def test_simple_aggregation_has_its_own_default_of_replicas():
    """B is 2000 for the legacy comparison unless given."""
    assert RunConfig.parse({"agg": "simple"}).effective_B == 2000
    assert RunConfig.parse({"agg": "simple", "B": 700}).effective_B == 700


def test_an_unknown_key_is_named_with_its_nearest(tmp_path):
    """A slip of the pen isn't silently ignored."""
    path = write(tmp_path, "claim: x\nmax_output_token: 5\n")
    with pytest.raises(
        ConfigError, match=r"`max_output_token` \(did you mean `max_output_tokens`\?\)"
    ):
        load_config(path)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("K: 0", "`K`"),
        ('K: "8"', "`K`"),
        ("K: 2.5", "`K`"),
        ("B: 10", "`B`"),
        ("seed: -1", "`seed`"),
        ("trim: 0.5", "`trim`"),
        ("agg: median", "`agg`"),
        ("preset: modern", "`preset`"),
        ("temperature: 3", "`temperature`"),
        ("template_include: []", "`template_include`"),
        ("base_url: ftp://x", "`base_url`"),
        ("model: a\nmodels: [b]", "`model` and `models`"),
        ("claims_file: a.txt", "`claim` and `claims_file`"),
        ("- a", "line"),
        ("K: [", "line"),
    ],
)
def test_a_bad_value_is_refused_by_name(tmp_path, line, said):
    """Every refusal names the key."""
    with pytest.raises(ConfigError, match=said):
        load_config(write(tmp_path, f"claim: x\n{line}\n"))


def test_every_mistake_in_a_file_has_its_line(tmp_path):
    """Also the ones inside `evidence`, whose nearest key is one of its own."""
    path = write(tmp_path, "claim: x\nK: abc\nevidence:\n  as_of: soon\n  corpuss: d\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    first, second, third = str(caught.value).splitlines()
    assert first.startswith(f"`{path}` line 2: `K` ")
    assert second.startswith(f"`{path}` line 4: `evidence.as_of` ")
    assert third == (f"`{path}` line 5: unknown key `evidence.corpuss` (did you mean `corpus`?)")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("claim: x\nK: 3\nK: 4\n", "line 3: `K` stands here and on line 2; keep one"),
        ("claim: x\nevidence:\n  as_of: 2026-02-30\n", "line 3: '2026-02-30' can't be read"),
    ],
)
def test_a_file_is_not_guessed_at(tmp_path, text, said):
    """A key that stands twice and a day that no month has are refused, with the line."""
    with pytest.raises(ConfigError, match=said):
        load_config(write(tmp_path, text))


@pytest.mark.parametrize("content", ["", "just text", "[1, 2]"])
def test_a_file_without_keys_is_refused(tmp_path, content):
    """YAML that isn't a mapping is no configuration."""
    with pytest.raises(ConfigError, match="key: value"):
        load_config(write(tmp_path, content))


def test_a_missing_or_unreadable_file_is_refused(tmp_path):
    """The path and the reason are told."""
    with pytest.raises(ConfigError, match="No such file"):
        load_config(tmp_path / "none.yaml")
    (tmp_path / "bad.yaml").write_bytes(b"claim: \xff\xfe")
    with pytest.raises(ConfigError, match="UTF-8"):
        load_config(tmp_path / "bad.yaml")


def test_the_command_line_wins_and_swaps_claim_for_claims_file(tmp_path):
    """An option given on the command line replaces its counterpart in the file."""
    config = load_config(write(tmp_path, "claims_file: c.txt\nmodels: [gpt-5]\nK: 4\n"))
    changed = config.override(claim="x", model="mock:a", K=None)
    assert (changed.claim, changed.claims_file) == ("x", None)
    assert (changed.model, changed.models, changed.K) == ("mock:a", None, 4)


def test_claims_are_read_beside_the_configuration_in_three_formats(tmp_path):
    """JSONL, CSV and text give the same claims, a row each, in order; ids come along."""
    write(tmp_path, '{"claim": "A | b", "id": 7}\n\n"C"\n{"claim": "C"}\n', "c.jsonl")
    write(tmp_path, '\ufeffid,claim\n7,"A | b"\n,C\n', "c.csv")
    write(tmp_path, "A | b\n\n  C  \n", "c.txt")
    for name in ("c.jsonl", "c.csv", "c.txt"):
        claims = load_config(write(tmp_path, f"claims_file: {name}\n")).claims()
        expected = ["A | b", "C", "C"] if name == "c.jsonl" else ["A | b", "C"]
        assert [claim.text for claim in claims] == expected
        assert claims[0].claim_id in {"7", None}


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("c.jsonl", '{"claim": "a"}\n{broken\n', "line 2"),
        ("c.jsonl", '{"text": "a"}\n', "line 1"),
        ("c.csv", "text\na\n", "column `claim`"),
        ("c.txt", "\n \n", "holds no claim"),
        ("c.xlsx", "a", "must end in"),
        ("c.txt", "fine\nbad\x00one\n", "line 2"),
    ],
)
def test_a_bad_claims_file_is_refused_with_its_line(tmp_path, name, content, said):
    """The whole file is read before anything is paid for."""
    write(tmp_path, content, name)
    with pytest.raises((ClaimError, ConfigError), match=said):
        load_config(write(tmp_path, f"claims_file: {name}\n")).claims()


def test_claims_are_data_but_not_anything():
    """Quotes, braces, newlines, pipes and emoji stay; emptiness and control characters don't."""
    odd = 'He said "{CLAIM}" | {0}\nnext line 🙂'
    assert check_claim(f"  {odd}\n") == odd
    assert len(check_claim("x" * MAX_CLAIM_CHARS)) == MAX_CLAIM_CHARS
    for bad, said in [
        ("", "empty"),
        (" \n\t", "empty"),
        ("x" * (MAX_CLAIM_CHARS + 1), "10,000"),
        ("a\x00b", "U\\+0000"),
        ("a\ud800b", "U\\+D800"),
    ]:
        with pytest.raises(ClaimError, match=said):
            check_claim(bad)


def test_no_claim_at_all_says_how_to_give_one():
    """The remedy stands in the message."""
    with pytest.raises(ClaimError, match="claims_file"):
        RunConfig().claims()


@pytest.mark.parametrize(
    ("lenses", "said"), [("MEL", "must be a list, got 'MEL'"), ([], "must hold at least one")]
)
def test_lenses_that_are_no_list_are_told_so_in_the_words_of_the_file(lenses, said):
    with pytest.raises(ConfigError, match=f"`lenses` {said}") as refusal:
        RunConfig.parse({"lenses": lenses})
    assert "uple" not in str(refusal.value)
