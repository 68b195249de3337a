"""Lists of sources that users bring."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from heretix.core.errors import PolicyError
from heretix.evidence.policy.file import check_file, load_policy


def write_policy(folder: Path, file: str, content: str, spec: str, *, rule: str = "") -> Path:
    """A policy with one list rule over `content`, pinned to what it is."""
    data = content.encode()
    (folder / file).write_bytes(data)
    path = folder / "policy.yaml"
    path.write_text(
        "version: test_1\nrules:\n"
        f"  - id: imported\n    facts: a list\n{rule}"
        f"    list: {{file: {file}, sha256: {hashlib.sha256(data).hexdigest()}{spec}}}\n",
        encoding="utf-8",
    )
    return path


CLASSES = ", domain: site, class: rating, classes: {good: canonical, bad: flagged, mixed: null}"
ROWS = [("a.example", "good"), ("www.b.example/", "bad"), ("c.example", "mixed")]


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("l.csv", "site,rating\n" + "".join(f"{site},{rating}\n" for site, rating in ROWS)),
        ("l.csv", "\ufeffrating,x,site\r\n" + "".join(f'"{r}",1,"{s}"\r\n' for s, r in ROWS)),
        ("l.json", json.dumps([{"site": site, "rating": rating} for site, rating in ROWS])),
        ("l.json", json.dumps(dict(ROWS))),
        ("l.jsonl", "\n".join(json.dumps({"site": s, "rating": r}) for s, r in ROWS) + "\n\n"),
    ],
)
def test_a_column_gives_the_class(tmp_path, file, content):
    """Every format gives the same classes, and a value that means nothing leaves its row out."""
    policy = load_policy(write_policy(tmp_path, file, content, CLASSES))
    urls = ("https://x.a.example/", "https://b.example/x", "https://c.example/")
    assert [policy.classify(url).cls for url in urls] == ["canonical", "flagged", "unknown"]
    assert policy.classify(urls[0]).facts == ("a list",)


def test_plain_lines(tmp_path):
    """A list of lines takes one class for all, and lets comments and paths stand."""
    content = "# universities\na.example\n\nb.example/news/ufo*  # odd\n"
    path = write_policy(tmp_path, "l.txt", content, "", rule="    class: contested\n")
    policy = load_policy(path)
    urls = ("https://a.example", "https://b.example/news/ufos", "https://b.example/news")
    assert [policy.classify(url).cls for url in urls] == ["contested", "contested", "unknown"]


def test_a_changed_list_is_refused_with_both_hashes(tmp_path):
    """One more byte in the file, and the policy names the pinned hash and the one it got."""
    path = write_policy(tmp_path, "l.txt", "a.example\n", "", rule="    class: flagged\n")
    pinned = hashlib.sha256(b"a.example\n").hexdigest()
    (tmp_path / "l.txt").write_bytes(b"a.example\nb.example\n")
    got = hashlib.sha256(b"a.example\nb.example\n").hexdigest()
    with pytest.raises(PolicyError, match=rf"line 6: .*pinned {pinned}, got {got}"):
        load_policy(path)


@pytest.mark.parametrize(
    ("file", "content", "spec", "message"),
    [
        ("l.csv", "a,b\n1,2\n", ", domain: site", r"column 'site'.*columns: a, b"),
        ("l.csv", "site\n!!\n", ", domain: site", r"no row of 'l.csv' gives a host"),
        ("l.dat", "a.example\n", "", r"`format` must be said"),
        ("l.dat", "a.example\n", ", format: cvs", r"got 'cvs' \(did you mean `csv`\?\)"),
        ("l.json", "{", "", r"'l.json' line 1 isn't JSON"),
        ("l.json", "5", "", r"must hold a JSON list or object"),
        ("l.csv", "site,r\na.example,god\n", ", domain: site, class: r, classes: {good: canonical}",
         r"either `class` for the whole list"),
    ],
)  # fmt: skip
def test_lists_that_cannot_be_read(tmp_path, file, content, spec, message):
    """A list that doesn't hold what the policy says is refused with the reason."""
    path = write_policy(tmp_path, file, content, spec, rule="    class: flagged\n")
    with pytest.raises(PolicyError, match=message):
        load_policy(path)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (", class: r, classes: {good: canonical}",
         r"line 2: `classes` doesn't say what 'god' means \(did you mean `good`\?\)"),
        (", class: r", r"`class` and `classes` go together"),
        (", class: r, classes: {god: cannonical}", r"got 'cannonical' \(did you mean `canonical`"),
    ],
)  # fmt: skip
def test_classes_must_be_complete(tmp_path, spec, message):
    """A value without a meaning is never guessed at."""
    path = write_policy(tmp_path, "l.csv", "domain,r\na.example,god\n", spec)
    with pytest.raises(PolicyError, match=message):
        load_policy(path)


@pytest.mark.parametrize("value", [1, "1", 1.5, True])
def test_a_value_may_be_a_number(tmp_path, value):
    """JSON has numbers where CSV has their digits: both name the same class."""
    content = json.dumps([{"domain": "a.example", "r": value}])
    spec = ", class: r, classes: {'1': canonical, '1.5': canonical, 'True': canonical}"
    policy = load_policy(write_policy(tmp_path, "l.json", content, spec))
    assert policy.classify("https://a.example").cls == "canonical"


def test_rows_of_json_are_told_apart(tmp_path):
    """A line that isn't JSON, and a value that can't name a class, are named with their line."""
    spec = ", class: r, classes: {'1': canonical}"
    sound = json.dumps({"domain": "a.example", "r": 1})
    path = write_policy(tmp_path, "l.jsonl", f"{sound}\n\n{{", spec)
    with pytest.raises(PolicyError, match=r"'l.jsonl' line 3 isn't JSON: EOF"):
        load_policy(path)
    path = write_policy(tmp_path, "l.jsonl", sound + '\n{"domain": "b.example", "r": []}', spec)
    with pytest.raises(PolicyError, match=r"'l.jsonl' line 2: `class` must be .*, got \[\]"):
        load_policy(path)


def test_a_list_must_be_pinned(tmp_path):
    """Without a hash the message gives the one to pin; a damaged one is refused as it stands."""
    path = write_policy(tmp_path, "l.txt", "a.example\n", "", rule="    class: flagged\n")
    text = path.read_text(encoding="utf-8")
    digest = hashlib.sha256(b"a.example\n").hexdigest()
    path.write_text(text.replace(f", sha256: {digest}", ""), encoding="utf-8")
    with pytest.raises(PolicyError, match=rf"`sha256` is missing.*{digest}"):
        load_policy(path)
    path.write_text(text.replace(digest, digest[:-1]), encoding="utf-8")
    with pytest.raises(PolicyError, match="64 hexadecimal digits"):
        load_policy(path)
    (tmp_path / "l.txt").unlink()
    path.write_text(text, encoding="utf-8")
    with pytest.raises(PolicyError, match="can't be read"):
        load_policy(path)


def test_dirty_rows_and_contradictions_are_reported(tmp_path):
    """Rows without a host are left out; of two classes for one domain the first counts."""
    content = "site,rating\na.example,good\nnot a host,good\nA.example/,bad\n"
    path = write_policy(tmp_path, "l.csv", content, CLASSES)
    assert load_policy(path).classify("https://a.example").cls == "canonical"
    messages = [str(problem) for problem in check_file(path)[1]]
    assert len(messages) == 2
    assert "a.example is canonical on line 2 and flagged on line 4" in messages[0]
    assert "1 rows of its list are left out: line 3: 'not a host' names no host" in messages[1]
