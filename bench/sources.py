"""The list of publishers: its slips, its order and its pin; and how much of other lists it knows.

    python bench/sources.py [--write] [--facts FILE.csv …] [LIST …]

Without anything it checks `publishers.csv`: every row has a kind that the policy maps, a country
and a language by their codes (ISO 3166, ISO 639), a domain that is no public suffix, and
stands once, in order. `--write` puts rows in order and pins the file anew in `default.yaml`. A LIST
holds one address or domain a line; the share that the packaged policy classifies is told, and what
it doesn't know. `--facts` names a table with columns `domain` and `language` or `country` from
elsewhere (a registry package, an open data set): how often the list agrees with it is told, and
where it doesn't, so that a row can be looked up. Nothing is ever copied from such a table.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import re
import sys
from collections import Counter
from importlib import resources
from pathlib import Path

from heretix.evidence.policy.file import load_policy
from heretix.evidence.policy.policy import read_pattern
from heretix.evidence.policy.publisher import is_address, is_public_suffix

POLICIES = Path(str(resources.files("heretix.evidence") / "policies"))
COLUMNS = ["domain", "kind", "country", "language", "name", "owner", "note"]
CODES = {"country": re.compile(r"[A-Z]{2}|"), "language": re.compile(r"[a-z]{2}|")}


def read_publishers(path: Path = POLICIES / "publishers.csv") -> list[dict[str, str]]:
    """The rows of the list."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def find_slips(rows: list[dict[str, str]]) -> list[str]:
    """Find what is wrong with the rows, each slip with its domain."""
    policy = (POLICIES / "default.yaml").read_text(encoding="utf-8")
    mapped = set(re.findall(r"^ {8}([a-z -]+): (?:[a-z]+)$", policy, re.MULTILINE))
    slips, seen = [], ""
    for row in rows:
        domain = row["domain"]
        pattern = read_pattern(domain)
        if pattern is None or f"{pattern[0]}{pattern[1]}" != domain:
            slips.append(f"{domain}: isn't in the spelling that hosts are compared in")
        elif is_public_suffix(pattern[0]):
            slips.append(f"{domain}: is a public suffix; it belongs to a suffix rule")
        if domain <= seen:
            slips.append(f"{domain}: stands twice, or out of order behind {seen}")
        if row["kind"] not in mapped:
            slips.append(f"{domain}: the policy gives {row['kind']!r} no class")
        slips += [
            f"{domain}: {column} {row[column]!r} isn't a code"
            for column, code in CODES.items()
            if not code.fullmatch(row[column])
        ]
        slips += [f"{domain}: {name!r} has odd spaces" for name in row.values() if is_odd(name)]
        seen = domain
    return slips


def is_odd(text: str) -> bool:
    """Text with spaces where none belong, or a line end."""
    return text != " ".join(text.split())


def write(rows: list[dict[str, str]]) -> str:
    """Put the rows in order, write them, and pin the file in the policy; its hash."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(sorted(rows, key=lambda row: row["domain"]))
    data = out.getvalue().encode()
    (POLICIES / "publishers.csv").write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    policy = POLICIES / "default.yaml"
    text = policy.read_text(encoding="utf-8")
    policy.write_text(re.sub(r"sha256: [0-9a-f]{64}", f"sha256: {digest}", text), encoding="utf-8")
    return digest


def report_coverage(path: Path) -> str:
    """Report how much of a list the packaged policy classifies."""
    policy = load_policy()
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    given = [line for line in lines if line and is_address(line)]
    found = [(line, policy.classify(line)) for line in given]
    classes = Counter(str(one.cls) for _, one in found)
    unlisted = [line for line, one in found if one.rule_id is None]
    known = 1 - classes["unknown"] / max(len(found), 1)
    return (
        f"{path.name}: {len(found)} domains, {known:.1%} classified {dict(classes.most_common())}, "
        f"{len(unlisted)} not listed: {' '.join(unlisted[:40])}"
    )


def report_agreement(path: Path, rows: list[dict[str, str]]) -> str:
    """Report how often the list and another table of facts say the same of the same domain."""
    own = {row["domain"]: row for row in rows}
    parts = []
    with path.open(encoding="utf-8", newline="") as file:
        others = [row for row in csv.DictReader(file) if row["domain"] in own]
    for column in CODES:
        pairs = [
            (row["domain"], own[row["domain"]][column], row[column])
            for row in others
            if row.get(column) and own[row["domain"]][column]
        ]
        differ = [f"{domain} {ours}/{theirs}" for domain, ours, theirs in pairs if ours != theirs]
        if pairs:
            share = 1 - len(differ) / len(pairs)
            parts.append(f"{column} {share:.1%} of {len(pairs)}; differ: {', '.join(differ[:40])}")
    return f"{path.name}: {'; '.join(parts) or 'no domain in common'}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--facts", type=Path, action="append", default=[])
    parser.add_argument("lists", type=Path, nargs="*", metavar="LIST")
    given = parser.parse_args()
    rows = read_publishers()
    if given.write:
        print(f"pinned {write(rows)}")
        rows = read_publishers()
    slips = find_slips(rows)
    print(f"{len(rows):,} publishers; {dict(Counter(row['kind'] for row in rows).most_common())}")
    for line in (*slips, *map(report_coverage, given.lists)):
        print(line)
    for path in given.facts:
        print(report_agreement(path, rows))
    return 1 if slips else 0


if __name__ == "__main__":
    sys.exit(main())
