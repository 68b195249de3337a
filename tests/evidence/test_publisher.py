"""Whose work a page is."""

from __future__ import annotations

import pytest
from documents import publisher_key
from hypothesis import given
from hypothesis import strategies as st

from heretix.evidence.policy.publisher import (
    NO_PUBLISHER,
    Address,
    carries_many,
    is_address,
    is_public_suffix,
    read_address,
    read_host,
)


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("https://www.reuters.com/world/article", "reuters.com"),
        ("https://notreuters.com/", "notreuters.com"),
        ("https://reuters.com.evil.example/", "evil.example"),
        ("https://a.b.evil.example/", "evil.example"),
        ("https://news.example.co.uk/x", "example.co.uk"),
    ],
)
def test_the_key_is_the_registrable_domain(url, key):
    """Subdomains count for their domain, and a look-alike is somebody else."""
    assert publisher_key(url) == key


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("https://www.gov.uk/guidance/x", "gov.uk"),
        ("https://gov.uk", "gov.uk"),
        ("https://assets.publishing.service.gov.uk/media/x.pdf", "gov.uk"),
        ("https://www.ons.gov.uk/economy", "ons.gov.uk"),
        ("https://www.nhs.uk/conditions", "nhs.uk"),
        ("https://www.guysandstthomas.nhs.uk/", "guysandstthomas.nhs.uk"),
        ("https://www.gov.br/saude", "gov.br"),
        ("https://www.gov.scot/publications", "gov.scot"),
        ("https://www.cdc.gov/flu", "cdc.gov"),
    ],
)
def test_a_suffix_that_publishes_itself_is_a_publisher(url, key):
    """The public suffix list makes gov.uk a suffix; it is a publisher all the same."""
    assert publisher_key(url) == key


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("https://alice.substack.com/p/x", "alice.substack.com"),
        ("https://bob.substack.com/p/x", "bob.substack.com"),
        ("https://open.substack.com/pub/Alice/p/x", "alice.substack.com"),
        ("https://substack.com/@bob/note/1", "substack.com/@bob"),
        ("https://www.substack.com/", "substack.com"),
        ("https://medium.com/@Bob/x-123", "medium.com/@bob"),
        ("https://medium.com/some-publication/x-123", "medium.com/some-publication"),
        ("https://medium.com/p/123", "medium.com"),
        ("https://bob.medium.com/x", "bob.medium.com"),
        ("https://alice.github.io/site", "alice.github.io"),
        ("https://github.io", "github.io"),
        ("https://github.com/Owner/repository", "github.com/owner"),
        ("https://raw.githubusercontent.com/owner/r/main/x", "github.com/owner"),
        ("https://someone.wordpress.com/2020", "someone.wordpress.com"),
        ("https://someone.files.wordpress.com/x.pdf", "someone.wordpress.com"),
        ("https://blog.blogspot.com/2010", "blog.blogspot.com"),
        ("https://blog.blogspot.co.uk/2010", "blog.blogspot.com"),
        ("https://www.blogspot.com/", "blogspot.com"),
        ("https://twitter.com/Bob/status/1", "x.com/bob"),
        ("https://x.com/i/events/1", "x.com"),
        ("https://www.youtube.com/@Someone/videos", "youtube.com/@someone"),
        ("https://www.youtube.com/channel/UCaB1", "youtube.com/channel/UCaB1"),
        ("https://youtu.be/abc", "youtube.com"),
        ("https://old.reddit.com/r/Science/comments/1", "reddit.com/r/science"),
        ("https://t.me/s/Channel/5", "t.me/channel"),
        ("https://t.me/channel/5", "t.me/channel"),
        ("https://dx.doi.org/10.1038/s41586-020", "nature.com"),
        ("https://doi.org/10.99999/x", "doi.org/10.99999"),
        ("https://sites.google.com/view/somebody/home", "sites.google.com/view/somebody"),
    ],
)
def test_platforms_are_split_into_their_publishers(url, key):
    """Two newsletters on one platform are two publishers."""
    assert publisher_key(url) == key


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("https://reuters.com@evil.example/", "evil.example"),
        ("https://reuters.com%2F@evil.example/", "evil.example"),
        ("https://evil.example\\@reuters.com/", "evil.example"),
        ("https://evil.example%2F.reuters.com/", NO_PUBLISHER),
        ("https://user:reuters.com@[2001:DB8::0:1]:80/", "[2001:db8::1]"),
        ("HTTPS://WWW.Reuters.COM.:443/a", "reuters.com"),
        ("https://reuters%2Ecom/", "reuters.com"),
        ("https://\uff52\uff45\uff55\uff54\uff45\uff52\uff53.com/", "reuters.com"),
        ("https://reuters\u3002com/", "reuters.com"),
        ("https://r\u0435uters.com/", "xn--ruters-3of.com"),
        ("https://b\u00fccher.de/", "xn--bcher-kva.de"),
        ("https://xn--BCHER-kva.de/", "xn--bcher-kva.de"),
        ("https:reuters.com/x", "reuters.com"),
        ("reuters.com:443/x", "reuters.com"),
        ("//reuters.com/x", "reuters.com"),
        ("http://127.0.0.1:8080/x", "127.0.0.1"),
        ("http://localhost:8000/", "localhost"),
        ("https://com/", "com"),
    ],
)
def test_spellings_and_tricks(url, key):
    """The host is the one that a browser would go to, in one spelling."""
    assert publisher_key(url) == key


@pytest.mark.parametrize(
    "url",
    ["", "   ", "mailto:a@reuters.com", "file:///etc/hosts", "javascript:x", "https://",
     "https://[::1/", "https://a..b/", "https://exa mple.com/", "data:text/plain,x",
     "https://" + "a" * 300 + ".com", "https://reuters.com/" + "x" * 9_000],
)  # fmt: skip
def test_no_host_is_said_so(url):
    """What has no readable host has no publisher, and that is a key of its own."""
    assert read_address(url) is None
    assert publisher_key(url) == NO_PUBLISHER


def test_an_archived_copy_belongs_to_the_archived_site():
    """An archive's address is read through to what it holds; its own pages are its own."""
    copy = "https://web.archive.org/web/20200101000000id_/https://www.reuters.com/a?b=1"
    assert publisher_key(copy) == "reuters.com"
    assert read_address(copy) == Address("www.reuters.com", "/a")
    assert publisher_key("https://web.archive.org/about/") == "archive.org"
    assert publisher_key("https://evil.example/web/2020/https://reuters.com/") == "evil.example"


def test_paths_are_normal():
    """Escapes, dots and doubled slashes are taken out, and a query is no part of a path."""
    address = read_address("https://a.example//x/./y/../%7Ebob/?q=/z#/w")
    assert address == Address("a.example", "/x/~bob")
    assert read_address("https://a.example/../..") == Address("a.example", "/")


def test_platforms_and_registries_are_told_apart():
    """A policy must be able to warn about both."""
    assert [carries_many(host) for host in ("github.io", "medium.com")] == [True, True]
    assert [carries_many(host) for host in ("gov.uk", "reuters.com", "service.gov.uk")] == [
        False
    ] * 3
    assert [is_public_suffix(host) for host in ("gov.uk", "gov", "com")] == [True] * 3
    assert [is_public_suffix(host) for host in ("reuters.com", "github.io", "a.test")] == [
        False
    ] * 3


@given(st.text())
def test_any_text_has_a_key(text):
    """Nothing crashes, no key is empty, and reading a host twice changes nothing."""
    assert publisher_key(text)
    assert publisher_key(f"https://{text}/")
    host = read_host(text)
    assert host is None or read_host(host) == host


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("nature.com", True),
        ("nature.com:443/x", True),
        ("https://www.nature.com/articles/x", True),
        ("//nature.com", True),
        ("münchen.de", True),
        ("127.0.0.1/x", True),
        ("[::1]", True),
        ("http://intranet/page", True),
        ("https://doi.org/10.1038/x", True),
        ("nature", False),
        ("gov", False),
        ("10.1038/x", False),
        ("doi:10.1038/x", False),
        ("1.2.3", False),
        ("12", False),
        ("http://256.1.1.1/", False),
        ("two words", False),
        ("", False),
    ],
)
def test_a_word_or_a_number_is_no_address(written, meant):
    """Either can be read as a host; nobody who writes it means one."""
    assert is_address(written) is meant
