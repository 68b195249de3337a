"""Documents that tests share."""

from __future__ import annotations

import random
from collections.abc import Mapping
from datetime import date

from heretix.core.canonical import sha256_text
from heretix.evidence.document import Document
from heretix.evidence.policy.publisher import publisher_of, read_address

STUDY = (
    "Background: raised blood pressure is common (Smith et al., 2019). Methods: we recruited 1,204 "
    "adults aged 40 to 75 at six hospitals in three countries between 3 May 2018 and 12 June 2019. "
    "The trial was preregistered (NCT01234567). Participants were randomised to the drug or to "
    "placebo; the protocol is in the supplementary material. Results: systolic pressure fell by 8.2 "
    "mmHg (95% CI 6.1 to 10.3, p < 0.001) in the treatment arm (n = 602) compared with 1.1 mmHg in "
    "the control group. The finding is consistent with previous trials and a meta-analysis [12]. "
    "Limitations include a short follow-up and possible confounding. Data and analysis code are "
    "available at https://osf.io/abc12, doi:10.1000/xyz123. Funding: grant number 123. The authors "
    "declare no competing interests. The paper was peer reviewed."
)
NEWS = (
    "Prices rose by 2.1% in May, the statistics office said on 12 June 2024. According to the office, "
    'food prices fell 0.3%. "This is good news," the minister said. Critics said that wages rose more '
    "slowly. The bank declined to comment. However, economists told reporters that it may not last."
)
RANT = (
    "They don't want you to know this! Everyone knows that the so-called experts are lying to you. "
    "Wake up, people! This one weird trick cures everything and doctors hate it. Share it before it "
    "is taken down!!! The truth is out there and it is time that we all stand together."
)


def document(
    text: str,
    *,
    doc_id: str = "d1",
    url: str | None = "https://a.example/x",
    title: str = "A title",
    author: str | None = None,
    published: date | None = date(2024, 1, 1),
    meta: Mapping[str, str] | None = None,
) -> Document:
    """A document with everything filled in that a test doesn't care about."""
    return Document(
        doc_id=doc_id,
        url=url,
        title=title,
        text=text,
        author=author,
        published=published,
        published_method=None if published is None else "metadata",
        published_confidence=None if published is None else 0.9,
        retrieved_at="2026-11-15T12:00:00Z",
        raw_sha256=sha256_text(f"raw {text}"),
        text_sha256=sha256_text(text),
        meta=meta or {},
    )


def prose(seed: int, sentences: int = 12) -> str:
    """Sentences of made-up words, each different, held together by English ones."""
    rng = random.Random(seed)

    def word() -> str:
        made = "".join(rng.choice("bdfklmnprst") + rng.choice("aeiou") for _ in range(3))
        return f"{rng.choice(('the', 'of', 'in', 'was'))} {made}"

    lines = (" ".join(word() for _ in range(rng.randint(4, 7))) for _ in range(sentences))
    return " ".join(f"{line.capitalize()}." for line in lines)


def publisher_key(url: str) -> str:
    """The publisher of the page at `url`."""
    return publisher_of(read_address(url))
