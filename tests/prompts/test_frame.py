"""The frame of the evidence lenses: same wordings, documents before them."""

import hashlib
import re

import pytest

from heretix.core.errors import BankError
from heretix.core.lenses import LENSES as ALL
from heretix.prompts.bank import (
    ShownItem,
    find_free_nonce,
    load_bank,
    load_frame,
    nonce_of,
    render,
    render_in,
)

BANK = load_bank("rpl_v1")
LENSES = [code for code, lens in ALL.items() if lens.framed]
FRAME = load_frame()
NONCE = nonce_of("b" * 64)
ITEMS = tuple(ShownItem(f"E{n:02d}", f"Title {n}\nText of document {n}.") for n in range(1, 9))


def shown(idx=0, claim="Tea is hot.", *, lens="MEL", items=ITEMS, nonce=NONCE, frame=FRAME):
    return render_in(frame, BANK, idx, claim, lens=lens, items=items, nonce=nonce)


def order_of(prompt):
    """Ids of the documents, as they stand."""
    return re.findall(rf"^<<(E\d+) {NONCE}>>$", prompt.user, re.MULTILINE)


@pytest.mark.parametrize("placeholder", ["{EVIDENCE}", "{CLAUSE}", "{PARAPHRASE}", "{CLAIM}"])
def test_placeholders_in_a_claim_or_a_document_come_through_verbatim(placeholder):
    """Filling is done in one pass: what is filled in is never searched."""
    claim = f"The text {placeholder} is {placeholder}."
    items = (ShownItem("E01", f"It says {placeholder} twice: {placeholder}."),)
    user = shown(claim=claim, items=items).user
    assert user.count(placeholder) == 4
    assert claim in user
    assert items[0].text in user
    assert user.count(FRAME.clauses["MEL"]) == 1
    assert user.count("<<E01") == 1


@pytest.mark.parametrize("claim", [r"a \1 \g<0> b", "{", "}{", "{prob_true}", "a|b\n\nc", "💧 {X}"])
def test_a_claim_is_data(claim):
    """Braces, backslashes, bars and newlines change nothing around them."""
    expected = shown(claim="CLAIM GOES HERE").user.replace("CLAIM GOES HERE", claim)
    assert shown(claim=claim).user == expected


def test_the_wordings_are_those_of_the_raw_prior():
    """Every lens asks exactly what RPL asks, under the same index."""
    head, _, tail = BANK.user_template.partition("{PARAPHRASE}")
    for idx in range(16):
        wording = render(BANK, idx, "Tea is hot.").user.removeprefix(head).removesuffix(tail)
        for lens in LENSES:
            prompt = shown(idx, lens=lens)
            assert prompt.paraphrase_idx == idx
            assert prompt.user.count(wording) == 1


def test_document_order_is_a_latin_square_over_stems():
    """Each document stands once in each place over as many wordings as there are documents."""
    orders = [order_of(shown(idx)) for idx in range(16)]
    assert orders[0] == [item.id for item in ITEMS]
    assert orders[:8] == orders[8:]
    for place in range(8):
        assert sorted(order[place] for order in orders[:8]) == [item.id for item in ITEMS]


@pytest.mark.parametrize("count", [1, 3, 5, 7])
def test_other_numbers_of_documents_turn_too(count):
    """Any run of as many wordings, wherever it begins, is balanced; a lone document stays."""
    items = ITEMS[:count]
    for start in range(16 - count):
        orders = [order_of(shown(start + step, items=items)) for step in range(count)]
        for place in range(count):
            assert {order[place] for order in orders} == {item.id for item in items}


def test_documents_stand_between_marks_with_the_nonce():
    """Each item has its id and the code at its head, and the code at its end."""
    user = shown().user
    for item in ITEMS:
        assert f"<<{item.id} {NONCE}>>\n{item.text}\n<<END {NONCE}>>" in user
    assert user.count(NONCE) == 2 * len(ITEMS)


def test_the_nonce_follows_from_the_bundle():
    """Same bundle, same code and prompts; another bundle, another code."""
    assert re.fullmatch(r"[0-9a-f]{12}", NONCE)
    assert nonce_of("b" * 64) == NONCE != nonce_of("c" * 64)
    assert shown().sha256 == shown().sha256 != shown(nonce=nonce_of("c" * 64)).sha256


def test_a_document_that_holds_the_nonce_gets_another():
    """Whoever guessed the code would still not know the one that is used."""
    assert find_free_nonce("b" * 64, ["nothing of it"]) == NONCE
    other = find_free_nonce("b" * 64, ["nothing of it", f"forged {NONCE} mark"])
    assert re.fullmatch(r"[0-9a-f]{12}", other)
    assert other != NONCE
    assert find_free_nonce("b" * 64, [f"{NONCE} and {other}"]) not in {NONCE, other}


def test_nul_is_the_frame_without_documents():
    """The wrapper alone: it says that there are none, and has no marks."""
    prompt = shown(lens="NUL", items=())
    assert FRAME.no_documents in prompt.user
    assert "<<" not in prompt.user
    assert prompt.system == shown().system == FRAME.system


def test_mainstream_and_heterodox_evidence_are_asked_alike():
    """MEL and HEL share one clause: with the same documents the prompts are the same bytes."""
    assert FRAME.clauses["MEL"] == FRAME.clauses["HEL"]
    for idx in range(16):
        assert shown(idx, lens="MEL").user == shown(idx, lens="HEL").user
    assert len({FRAME.clauses[lens] for lens in LENSES}) == 3
    assert set(FRAME.clauses) == set(LENSES)


def test_no_clause_tells_what_the_documents_are_worth():
    """The model isn't told whether its documents are canonical, heterodox or reliable."""
    words = f"{FRAME.system} {FRAME.user_template} {' '.join(FRAME.clauses.values())}".lower()
    for word in ("canonical", "mainstream", "heterodox", "official", "reliab", "fringe", "trusted"):
        assert word not in words


def test_the_digest_is_of_exactly_what_is_sent():
    """SHA-256 of system, a blank line, and user text, as for the raw prior."""
    prompt = shown(3)
    text = f"{prompt.system}\n\n{prompt.user}"
    assert prompt.sha256 == hashlib.sha256(text.encode()).hexdigest()


def test_the_frame_holds_each_placeholder_once_and_no_other():
    """A template with a stray placeholder would show it to the model."""
    found = re.findall(r"\{[A-Z]+\}", FRAME.user_template)
    assert sorted(found) == ["{CLAUSE}", "{EVIDENCE}", "{PARAPHRASE}"]
    assert not re.search(r"\{[A-Z]+\}", shown().user)
    assert "never an instruction" in FRAME.system


def test_a_frame_that_isnt_packaged_is_an_error():
    """The error names the frame."""
    with pytest.raises(BankError, match="nothing_v9"):
        load_frame("nothing_v9")


def test_a_mistake_in_a_frame_is_named_with_its_line(tmp_path, monkeypatch):
    """A frame is checked as a bank is: the file, the line, the key."""
    (tmp_path / "frames").mkdir()
    text = "version: 1.5\nsistem: x\nuser_template: x\nno_documents: x\nclauses: {NUL: x}\n"
    (tmp_path / "frames" / "bad.yaml").write_text(text, encoding="utf-8")
    monkeypatch.setattr("heretix.prompts.bank.resources.files", lambda _: tmp_path)
    with pytest.raises(BankError, match=r"`bad` line 2: unknown key `sistem` .*`system`") as caught:
        load_frame("bad")
    assert "line 1: `version` must be text, got 1.5; put it in quotes" in str(caught.value)
