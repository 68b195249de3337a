"""Files of claims go in with odd headers and duplicates, and nothing of them is lost on the way out."""

import csv
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heretix.claims_file import read_rows
from heretix.config import LANGUAGES, RunConfig
from heretix.core.errors import ConfigError
from heretix.measurement.record import RowRecord
from heretix.measurement.verify import read_artifacts, verify_artifact
from heretix.report.export import belief_table, format_of, write_export

ROWS = [
    {"id": "7", "claim": "Tea, a plant.", "topic": "botany", "model": "m1", "  odd name ": "x"},
    {"id": "8", "claim": 'He said "no".\nTwice.', "topic": "a\tb", "model": "", "  odd name ": "ü"},
    {"id": "", "claim": "Tea, a plant.", "topic": "again", "model": "m2", "  odd name ": "\u2028"},
]


def separated(delimiter):
    """The rows as a table of text."""
    sink = io.StringIO()
    writer = csv.DictWriter(sink, list(ROWS[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(ROWS)
    return sink.getvalue()


def parquet(path):
    """The rows as Parquet."""
    pq.write_table(pa.Table.from_pylist(ROWS), path)


WAYS_IN = {
    "c.csv": lambda path: path.write_text("\ufeff" + separated(","), encoding="utf-8"),
    "c.tsv": lambda path: path.write_text(separated("\t"), encoding="utf-8"),
    "c.json": lambda path: path.write_text(json.dumps(ROWS, indent=1)),
    "c.jsonl": lambda path: path.write_text("\n".join(map(json.dumps, ROWS)) + "\n"),
    "c.parquet": parquet,
}


@pytest.mark.parametrize("name", WAYS_IN)
def test_every_format_gives_the_same_rows(tmp_path, name):
    """Order, duplicates, ids and every other column are the same whatever the file."""
    WAYS_IN[name](tmp_path / name)
    claims = RunConfig(claims_file=str(tmp_path / name)).claims()
    assert [claim.text for claim in claims] == [row["claim"] for row in ROWS]
    assert [claim.claim_id for claim in claims] == ["7", "8", None]
    own = [{name: row[name] for name in row if name not in {"id", "claim"}} for row in ROWS]
    assert [dict(claim.columns) for claim in claims] == own


@pytest.mark.parametrize("name", ["c.csv", "c.tsv", "c.json", "c.jsonl"])
def test_standard_input_is_read_as_what_it_is(heretix, folder, name):
    """What is piped tells its format by itself; the rows come out as from the file."""
    WAYS_IN[name](folder / name)
    from_file = heretix(*f"run --claims-file {name} --mock -K 4 -R 1 -o a.jsonl".split())
    piped = heretix(
        *["run", "--claims-file", "-", "--mock", "-K", "4", "-R", "1", "-o", "b.jsonl"],
        stdin=(folder / name).read_bytes(),
    )
    assert from_file.code == piped.code == 0, piped.err
    a, b = (
        [artifact.row for artifact in read_artifacts(folder / f)] for f in ("a.jsonl", "b.jsonl")
    )
    assert a == b
    assert len(a) == len(ROWS)


def test_an_artifact_stands_for_a_row_and_samples_are_shared(heretix, folder):
    """Two rows of one claim are two artifacts with their own ids, of one measurement; both verify."""
    WAYS_IN["c.csv"](folder / "c.csv")
    result = heretix("run", "--claims-file", "c.csv", "--mock", "-K", 4, "-R", 1, "-o", "o.jsonl")
    assert result.code == 0
    artifacts = read_artifacts(folder / "o.jsonl")
    assert [artifact.row.number for artifact in artifacts] == [1, 2, 3]
    assert [artifact.runs[0].claim_id for artifact in artifacts] == ["7", "8", None]
    assert [artifact.row.columns["topic"] for artifact in artifacts] == ["botany", "a\tb", "again"]
    first, _, twin = (artifact.runs[0] for artifact in artifacts)
    assert first.execution_id == twin.execution_id
    assert first.samples == twin.samples
    assert all(check.ok for artifact in artifacts for check in verify_artifact(artifact))


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet"])
def test_a_table_keeps_the_columns_and_can_be_measured_again(heretix, folder, ending):
    """A column named like one of ours comes with `input_`, again and again; none is lost."""
    WAYS_IN["c.csv"](folder / "c.csv")
    measure = ("--mock", "-K", 4, "-R", 1, "-m", "gpt-5", "--claims-file")
    assert heretix("run", *measure, "c.csv", "-o", f"one.{ending}").code == 0
    assert heretix("run", *measure, f"one.{ending}", "-o", f"two.{ending}").code == 0
    one, two = (list(read_rows(str(folder / f"{name}.{ending}"))) for name in ("one", "two"))
    assert [row.claim for row in two] == [row["claim"] for row in ROWS]
    for row, first, second in zip(ROWS, one, two, strict=True):
        own, again = dict(first.columns), dict(second.columns)
        assert own["topic"] == again["topic"] == row["topic"]
        assert own["input_model"] == again["input_model"] == row["model"]
        assert own["model"] == again["input_input_model"] == again["model"]
        assert float(own["prob_true_rpl"]) == float(again["prob_true_rpl"])
        assert len(again) == len({**own, **again}) > len(own)


CELLS = st.text(st.characters(codec="utf-8", exclude_characters="\x00\r"), max_size=8)


@given(
    st.lists(CELLS, min_size=1, max_size=4, unique=True).filter(lambda h: "claim" not in h),
    st.lists(st.lists(CELLS, min_size=4, max_size=4), min_size=1, max_size=4),
    st.sampled_from([",", "\t"]),
)
@settings(max_examples=60)
def test_odd_headers_and_cells_come_through(tmp_path_factory, header, rows, delimiter):
    """Whatever a header is called and whatever a cell holds, each cell is there, in its place."""
    path = tmp_path_factory.mktemp("odd") / f"c.{'csv' if delimiter == ',' else 'tsv'}"
    cells = [row[: len(header)] for row in rows]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(["claim", *header])
        writer.writerows(["Tea.", *row] for row in cells)
    found = list(read_rows(str(path)))
    assert [row.claim for row in found] == ["Tea."] * len(rows)
    for row, given_cells in zip(found, cells, strict=True):
        given_row = dict(zip(header, given_cells, strict=True))
        assert row.claim_id == (given_row.pop("id", None) or None)
        assert dict(row.columns) == given_row


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("c.csv", "claim,a,a\nx,1,2\n", "line 1: the column `a` stands twice"),
        ("c.csv", "claim\nTea, a plant.\n", "line 2: has 2 cells, and the header has 1"),
        ("c.tsv", "text\nTea.\n", "line 2: needs a column `claim`, got `text`; `--column NAME`"),
        ("c.csv", 'claim\n"Tea is\n', "line 2: a quote begins and doesn't end"),
        ("c.tsv", 'claim\tid\n"Tea" is wet.\t1\n', "line 2: a cell that begins with a quote goes"),
        ("c.csv", "claim;id\nTea, a plant.;1\n", "line 1: the columns 'claim;id' are parted by"),
        ("c.csv", "id\tclaim\n1\tTea.\n", "line 1: the columns 'id\\tclaim' are parted by"),
        ("c.csv", "", "has no header"),
        ("c.json", '{"claim": "x"}', "must hold a list"),
        ("c.json", '["a",\n3]', "item 2: needs an object"),
        ("c.jsonl", '{"claim": 3}', "line 1: `claim` must be text, got 3"),
        ("c.jsonl", '{"claim": "a", "claim": "b"}', "line 1: the key `claim` stands twice"),
        ("c.json", '[{"claim": "a", "x": {"y": 1, "y": 2}}]', "the key `y` stands twice"),
        ("c.jsonl", '{"claim": "a", "id": [1]}', "line 1: `id` must be text or a number, got [1]"),
        ("c.jsonl", '{"claim": "a", "id": true}', "`id` must be text or a number, got True"),
        ("c.jsonl", '{"claim": "a", "id": "\\ud800"}', "'id' holds half a character (U+D800)"),
        ("c.jsonl", '{"claim": "a", "\\ud800": 1}', "half a character (U+D800); remove it"),
        (
            "c.jsonl",
            '{"claim": "a", "x": ' + "[" * 50 + "]" * 50 + "}",
            "'x' holds lists or objects",
        ),
        ("c.parquet", "no", "isn't Parquet"),
        ("c.xlsx", "x", "must end in one of .csv"),
    ],
)
def test_what_would_lose_something_is_refused_with_its_line(tmp_path, name, content, said):
    """A cell beyond the header and a column that stands twice have no place to go."""
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=r".+") as caught:
        list(read_rows(str(tmp_path / name)))
    assert said in str(caught.value)


def test_what_no_number_can_hold_stays_as_it_is_written(tmp_path):
    """Digits beyond a number, empty cells and long ones are neither lost nor made up."""
    digits = "9" * 5_000
    (tmp_path / "c.jsonl").write_text(f'{{"claim": "a", "x": 1e400, "y": {digits}, "z": null}}\n')
    (row,) = read_rows(str(tmp_path / "c.jsonl"))
    assert dict(row.columns) == {"x": "1e400", "y": digits, "z": None}
    (tmp_path / "c.csv").write_text("\n\nclaim,x\na," + "x" * 200_000 + "\n")
    (row,) = read_rows(str(tmp_path / "c.csv"))
    assert dict(row.columns) == {"x": "x" * 200_000}
    table = pa.table({"claim": pa.array([b"a"]), "x": pa.array([b"\xff"])})
    pq.write_table(table, tmp_path / "c.parquet")
    (row,) = read_rows(str(tmp_path / "c.parquet"))
    assert (row.claim, dict(row.columns)) == ("a", {"x": "ff"})


@pytest.mark.parametrize("ending", ["csv", "parquet", "jsonl"])
def test_an_empty_cell_stays_one_beside_numbers(heretix, folder, ending):
    """It changes no type, and a column that is empty in every row is a column all the same."""
    rows = [{"claim": "Tea.", "n": 1, "none": None}, {"claim": "Rum.", "n": None, "none": None}]
    (folder / "c.jsonl").write_text("\n".join(map(json.dumps, rows)))
    args = ("--claims-file", "c.jsonl", "--mock", "-K", 4, "-R", 1, "-o", f"o.{ending}")
    assert heretix("run", *args).code == 0
    if ending == "jsonl":
        found = [artifact.row.columns for artifact in read_artifacts(folder / "o.jsonl")]
        assert found == [{"n": 1, "none": None}, {"n": None, "none": None}]
        return
    one, two = (dict(row.columns) for row in read_rows(str(folder / f"o.{ending}")))
    empty = "" if ending == "csv" else None
    assert [one["n"], two["n"]] == (["1", ""] if ending == "csv" else [1, None])
    assert [one["none"], two["none"]] == [empty, empty]


def test_the_column_of_the_claim_can_be_named(heretix, folder):
    """`--column` is for files that call it otherwise, and wants a file."""
    (folder / "c.tsv").write_text("statement\tclaim\nTea is a plant.\tc1\n")
    args = ("--mock", "-K", 4, "-R", 1, "--column", "statement")
    assert heretix("run", "--claims-file", "c.tsv", *args, "-o", "o.jsonl").code == 0
    (artifact,) = read_artifacts(folder / "o.jsonl")
    assert artifact.runs[0].claim == "Tea is a plant."
    assert artifact.row.columns == {"claim": "c1"}
    refused = heretix("run", "Tea.", *args)
    assert refused.code == 2
    assert "`claims_file`, which isn't given" in refused.err


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        ("0,3,5-6", 0, ""),
        ("9-2", 2, "must list indices"),
        ("0-", 2, "must list indices"),
        ("٣", 2, "must list indices"),
        ("x", 2, "must list"),
        ("99", 2, "99"),
    ],
)
def test_wordings_are_picked_by_index(heretix, given, code, said):
    """`--template-include` takes indices and ranges."""
    result = heretix("describe", "Tea.", "--mock", "-K", 4, "--template-include", given, "--json")
    assert (result.code, said in result.err) == (code, True)
    if code == 0:
        assert json.loads(result.out)["plans"][0]["sampler"]["tpl_indices"] == [0, 3, 5, 6]


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """A folder with the same hundred thousand rows in every format, and the rows."""
    folder = tmp_path_factory.mktemp("many")
    odd = {0: "", 1: "a,b\tc", 2: 'he said "no"\nü'}
    rows = [
        {"id": str(i), "claim": f"Claim {i % 70_000}.", "n": str(i), ' odd "name"': odd[i % 3]}
        for i in range(100_000)
    ]
    pq.write_table(pa.Table.from_pylist(rows), folder / "c.parquet")
    (folder / "c.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for delimiter, name in ((",", "c.csv"), ("\t", "c.tsv")):
        with (folder / name).open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
            writer.writeheader()
            writer.writerows(rows)
    return folder, rows


def given_back(found, rows):
    """Whether rows that were read are those that were written, in their order."""
    names = set(rows[0]) - {"id", "claim"}
    return [
        {"id": row.claim_id, "claim": row.claim}
        | {name: value or "" for name, value in row.columns if name in names}
        for row in found
    ] == rows


@pytest.mark.soak
@pytest.mark.parametrize("name", ["c.csv", "c.tsv", "c.jsonl", "c.parquet"])
def test_a_hundred_thousand_rows_come_in_in_order(many, name, monkeypatch):
    """Nothing is lost and nothing moves, whatever the format, from a file or through a pipe."""
    folder, rows = many
    assert given_back(read_rows(str(folder / name)), rows)
    if name != "c.parquet":
        with (folder / name).open() as pipe:
            monkeypatch.setattr("sys.stdin", pipe)
            assert given_back(read_rows("-"), rows)


@pytest.mark.soak
@pytest.mark.parametrize("name", ["o.csv", "o.tsv", "o.jsonl", "o.parquet"])
def test_a_hundred_thousand_rows_go_out_in_order(many, heretix, folder, name):
    """A table of beliefs has every row once, with its id and its columns, in the order of the file."""
    (folder / "one.csv").write_text("claim\nTea.\n")
    assert (
        heretix(
            *["run", "--claims-file", "one.csv", "--mock", "-K", "4", "-R", "1", "-o", "one.jsonl"]
        ).code
        == 0
    )
    (one,) = read_artifacts(folder / "one.jsonl")
    claims = RunConfig(claims_file=str(many[0] / "c.jsonl")).claims()
    artifacts = (
        one.model_copy(
            update={"row": RowRecord(number=i, id=claim.claim_id, columns=dict(claim.columns))}
        )
        for i, claim in enumerate(claims, 1)
    )
    write_export(folder / name, belief_table(format_of(folder / name), artifacts, claims))
    # The belief is the same in all of them; so is the claim that it is of.
    rows = [row | {"claim": "Tea."} for row in many[1]]
    assert given_back(read_rows(str(folder / name)), rows)


@pytest.mark.parametrize("model", ["mock:gpt-5", "sim:even?prior=0.6"])
def test_a_file_in_five_languages_is_asked_in_five(heretix, folder, model):
    """With `--language auto` each row has the bank of its language; every record verifies."""
    claims = [
        "Tea is a plant.",
        "Tee ist eine Pflanze.",
        "El té es una planta.",
        "Le thé est une plante.",
        "茶是一种植物。",
        "Vaccines cause autism.",
    ]
    (folder / "c.txt").write_text("\n".join(claims), encoding="utf-8")
    asked = ("run", "--claims-file", "c.txt", "-m", model, "--language", "auto")
    result = heretix(*asked, "-K", 4, "-T", 4, "-R", 1, "-o", "o.jsonl")
    assert result.code == 0, result.err
    assert "asked in English, since their language isn't clear: 'Vaccines" in " ".join(
        result.err.split()
    )
    artifacts = read_artifacts(folder / "o.jsonl")
    versions = [artifact.runs[0].prompt_version.rsplit("_", 1)[0] for artifact in artifacts]
    assert versions == [*LANGUAGES.values(), "rpl_v1"]
    assert all(check.ok for artifact in artifacts for check in verify_artifact(artifact))
