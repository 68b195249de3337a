"""YAML with lines: every mistake is pointed at, whichever file it is in."""

import pytest
import yaml

from heretix.core.yaml_lines import YamlFault, load


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("a: 1\nb: [", 3, "isn't YAML: "),
        ("a: 1\nb: c\x07", 2, r"control character \(U\+0007\); remove it"),
        ("a: 1\n---\nb: 2", 2, "isn't YAML: but found another document"),
        ("a: *b", 1, "isn't YAML: found undefined alias"),
        ("a: 1\nb: " + "[" * 101 + "]" * 101, 2, "nested more than 100 deep"),
        ("a: 1\nb: " + "[" * 200_000 + "]" * 200_000, 2, "nested more than 100 deep"),
    ],
)
def test_what_is_no_yaml_is_told_with_its_line(text, line, said):
    """Broken, two in one, or so deep that the parser in C would end the process."""
    with pytest.raises(YamlFault, match=said) as caught:
        load(text)
    assert caught.value.line == line
    assert caught.value.at("mine.yaml").startswith(f"`mine.yaml` line {line}: ")


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("a: 1\nb:\n  c: 1\n  c: 2", 4, "`c` stands here and on line 3; keep one"),
        ("- {a: 1,\n   a: 2}", 2, "`a` stands here and on line 1"),
        ("a: 1\nb: 2026-02-30", 2, r"'2026-02-30' can't be read \(day is out of range"),
        ("a: !!bool perhaps", 1, "'perhaps' can't be read"),
        ("a: !!timestamp soon", 1, "'soon' can't be read"),
        ("a: 1\n? [b]\n: 2", 2, "a key must be plain text, got a list or a mapping"),
        ("a: 1\nb: !!python/name:os.system x", 2, "isn't YAML: could not determine a constructor"),
    ],
)
def test_values_that_cannot_be_read_are_told_with_their_line(text, line, said):
    """A key that stands twice, a day that no month has, a tag that isn't plain data."""
    with pytest.raises(YamlFault, match=said) as caught:
        load(text)
    assert caught.value.line == line


def test_values_are_those_of_any_yaml_reader():
    """Anchors, merges, dates and numbers included."""
    text = "base: &b {x: 1, y: [2026-01-02, yes]}\nmine:\n  <<: *b\n  x: 0x10\n"
    assert load(text).values == yaml.safe_load(text)
    assert load("# nothing\n").values is None


def test_a_node_that_holds_itself_is_read_once():
    """An anchor may lead back to where it stands."""
    values = load("a: &a\n  b: *a\n").values
    assert values["a"]["b"] is values["a"]


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ((), 1),
        (("a",), 1),
        (("b", "c"), 3),
        (("b", "c", 1), 5),
        (("b", "c", 9), 3),
        (("b", "absent"), 2),
        (("absent",), 1),
        (("e", "x"), 9),
        (("e", "y"), 6),
    ],
)
def test_a_value_is_found_by_its_path(path, line):
    """The innermost part that is there counts; a key's own line goes before a merged one."""
    text = "a: 1\nb:\n  c:\n    - 1\n    - 2\nd: &d {x: 1, y: 2}\ne:\n  <<: *d\n  x: 3\n"
    assert load(text).line_of(path) == line
    assert load("").line_of(path) == 1
