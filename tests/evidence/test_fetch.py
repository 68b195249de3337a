"""Fetching pages: politely, within limits, and never from inside the walls."""

import asyncio
import gzip
import zlib
from datetime import date

import pytest
from aiohttp import web
from localsite import Names, Site

from heretix.core.errors import (
    CallTimeoutError,
    ConnectionFailedError,
    RateLimitedError,
    RejectedError,
    ServerError,
    UnreadableError,
)
from heretix.evidence.document import Document
from heretix.evidence.sources.extract import Failure, Limits
from heretix.evidence.sources.fetch import Fetcher, FetchOptions, is_public
from heretix.evidence.sources.intake import read_documents

SENTENCES = "Some words make a sentence that is kept. " * 10
ARTICLE = (
    "<html><head><title>A page</title>"
    '<meta property="article:published_time" content="2021-03-04T10:00:00Z"></head>'
    f"<body><article><p>{SENTENCES}</p></article></body></html>"
)
PACKINGS = [("gzip", gzip.compress), ("deflate", zlib.compress)]
MB = 1024 * 1024


@pytest.fixture
def site():
    with Site() as running:
        yield running


def open_fetcher(**options) -> Fetcher:
    """A fetcher that may call this machine, without waiting between calls."""
    return Fetcher(FetchOptions(allow_private=True, host_delay_s=0.0, **options))


async def fetched(url: str, **options):
    async with open_fetcher(**options) as fetcher:
        return await fetcher.fetch(url)


async def test_a_page_is_fetched(site):
    """Its bytes, its type and its address come back, without the fragment."""
    site.page("/a", ARTICLE)
    page = await fetched(site.url("/a?x=1#part"))
    assert page.data == ARTICLE.encode()
    assert page.media_type == "text/html; charset=utf-8"
    assert page.url == site.url("/a?x=1")


async def test_a_page_becomes_a_document(site):
    """Fetched, read, dated, and known by where it was found in the end."""
    site.page("/final", ARTICLE)
    site.redirect("/start", "/final")
    async with open_fetcher() as fetcher:
        document = await fetcher.document(site.url("/start"))
    assert document.url == site.url("/final")
    assert (document.title, document.published) == ("A page", date(2021, 3, 4))
    assert document.published_method == "metadata"
    assert document.text.startswith("Some words")


async def test_nothing_personal_is_sent(site):
    """A plain name for the program, and no cookie that a page has set."""
    site.page("/a", ARTICLE, headers={"Set-Cookie": "id=1; Path=/"})
    options = FetchOptions(allow_private=True, host_delay_s=0.0)
    async with Fetcher(options, resolver=Names(a_example=["127.0.0.1"])) as fetcher:
        await fetcher.fetch(site.url("/a", "a.example"))
        await fetcher.fetch(site.url("/a", "a.example"))
    assert all("cookie" not in call.headers for call in site.calls)
    assert all(call.headers["user-agent"].startswith("heretix/") for call in site.calls)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.8.8.8", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254",
        "0.0.0.0", "100.64.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", "192.0.2.1",
        "::1", "::", "fe80::1", "fe80::1%eth0", "fd00::1", "ff02::1", "2001:db8::1",
        "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1", "64:ff9b::127.0.0.1",
        "64:ff9b::10.0.0.1", "2002:7f00:1::", "not an address", "",
    ],
)  # fmt: skip
def test_addresses_inside_are_not_public(address):
    """Whatever it is wrapped in, an address of this machine or its networks is told."""
    assert not is_public(address)


@pytest.mark.parametrize(
    "address",
    ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8"],
)
def test_addresses_outside_are_public(address):
    """Ordinary addresses pass, and so do the wrappings of ordinary ones."""
    assert is_public(address)


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "localhost", "127.1", "2130706433", "0x7f000001",
     "127.0.0.1.", "0"],
)  # fmt: skip
async def test_this_machine_is_not_called(site, host):
    """By no spelling of its address does a request arrive."""
    site.page("/a", ARTICLE)
    async with Fetcher() as fetcher:
        with pytest.raises((RejectedError, ConnectionFailedError)):
            await fetcher.fetch(site.url("/a", host))
    assert site.calls == []


@pytest.mark.parametrize("found", [["127.0.0.1"], ["8.8.8.8", "127.0.0.1"], ["::1", "8.8.8.8"]])
async def test_a_name_with_any_address_inside_is_refused(site, found):
    """All addresses of a name are looked at, not only the first."""
    async with Fetcher(resolver=Names(a_example=found)) as fetcher:
        with pytest.raises(RejectedError, match=r"`a\.example` must be on the public internet"):
            await fetcher.fetch(site.url("/a", "a.example"))
    assert site.calls == []


async def test_a_name_cannot_change_its_meaning_in_between(site):
    """One look-up serves the check and the connection; the next connection has its own."""
    names = Names(a_example=["127.0.0.1"])
    options = FetchOptions(private_hosts=frozenset({"a.example"}), host_delay_s=0.0)
    site.page("/a", ARTICLE, headers={"Connection": "close"})
    async with Fetcher(options, resolver=names) as fetcher:
        await fetcher.fetch(site.url("/a", "a.example"))
        assert names.asked == ["a.example"]
        await fetcher.fetch(site.url("/a", "a.example"))
    assert names.asked == ["a.example", "a.example"]


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "other.example", "localhost"])
async def test_a_redirect_to_loopback_is_refused(site, host):
    """The first hop may be allowed by name; where it leads is checked anew."""
    names = Names(start_example=["127.0.0.1"], other_example=["127.0.0.1"], localhost=["127.0.0.1"])
    options = FetchOptions(private_hosts=frozenset({"start.example"}), host_delay_s=0.0)
    site.page("/secret", ARTICLE)
    site.redirect("/a", site.url("/secret", host))
    async with Fetcher(options, resolver=names) as fetcher:
        with pytest.raises(RejectedError, match="must be on the public internet"):
            await fetcher.fetch(site.url("/a", "start.example"))
    assert [call.path for call in site.calls] == ["/a"]


async def test_redirects_are_followed_so_far_and_no_further(site):
    """Five hops are fine, six are not."""
    for n in range(6):
        site.redirect(f"/{n}", f"/{n + 1}", status=(301, 302, 303, 307, 308, 302)[n])
    site.page("/6", ARTICLE)
    assert (await fetched(site.url("/1"))).url == site.url("/6")
    with pytest.raises(RejectedError, match="within 5 redirects"):
        await fetched(site.url("/0"))


async def test_a_circle_of_redirects_ends(site):
    """A page that leads to itself is given up."""
    site.redirect("/a", "/a")
    with pytest.raises(RejectedError, match="within 5 redirects"):
        await fetched(site.url("/a"))
    assert len(site.calls) == 6


@pytest.mark.parametrize(
    "location",
    ["file:///etc/passwd", "ftp://a.example/", "javascript:alert(1)", "", "http://user:pw@a.example/",
     "http://[broken", "data:text/html,x"],
)  # fmt: skip
async def test_redirects_elsewhere_are_refused(site, location):
    """Only plain web addresses are followed."""
    site.redirect("/a", location)
    with pytest.raises(RejectedError):
        await fetched(site.url("/a"))
    assert len(site.calls) == 1


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "ftp://a.example/", "a.example/page", "", "http://", "gopher://x",
     "https://user:pw@a.example/", "http://a.example/" + "x" * 5000],
)  # fmt: skip
async def test_only_web_addresses_are_fetched(url):
    """Anything else is refused before a name is looked up."""
    names = Names()
    async with Fetcher(resolver=names) as fetcher:
        with pytest.raises(RejectedError):
            await fetcher.fetch(url)
    assert names.asked == []


async def test_a_page_of_50_mb_is_refused_by_its_label(site):
    """A length that is too large is enough; nothing of the body is read."""
    length = {"Content-Type": "text/html", "Content-Length": str(50 * MB)}
    site.endless("/big", 50 * MB, length)
    with pytest.raises(RejectedError, match=f"at most {10 * MB} bytes"):
        await fetched(site.url("/big"))
    assert site.sent_bytes < 10 * MB


async def test_a_page_of_50_mb_without_a_label_is_not_read_to_its_end(site):
    """Reading stops at the limit, and the connection with it."""
    site.endless("/big", 50 * MB, {"Content-Type": "text/html"})
    with pytest.raises(RejectedError, match=f"at most {10 * MB} bytes"):
        await fetched(site.url("/big"))
    assert site.sent_bytes < 25 * MB


@pytest.mark.parametrize(("encoding", "pack"), PACKINGS)
async def test_compressed_pages_are_read(site, encoding, pack):
    """The usual encodings are offered and undone."""
    site.page("/a", pack(ARTICLE.encode()), headers={"Content-Encoding": encoding})
    assert (await fetched(site.url("/a"))).data == ARTICLE.encode()
    assert site.calls[0].headers["accept-encoding"] == "gzip, deflate"


async def test_a_gzip_bomb_is_refused(site):
    """Fifty kilobytes that stand for fifty megabytes are not unpacked."""
    bomb = gzip.compress(b"<p>" * (50 * MB // 3))
    assert len(bomb) < MB
    site.page("/bomb", bomb, headers={"Content-Encoding": "gzip"})
    with pytest.raises(UnreadableError, match=f"unpacks to more than {20 * MB} bytes"):
        await fetched(site.url("/bomb"))


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "nonsense"])
async def test_other_encodings_are_refused(site, encoding):
    """What wasn't offered isn't undone."""
    site.page("/a", b"\x00\x01", headers={"Content-Encoding": encoding})
    with pytest.raises(UnreadableError, match="plain, gzip or deflate"):
        await fetched(site.url("/a"))


@pytest.mark.parametrize("kind", ["image/png", "application/json", "video/mp4", "application/zip"])
async def test_other_types_are_refused(site, kind):
    """Only what can be read is fetched."""
    site.page("/a", b"x", headers={"Content-Type": kind})
    with pytest.raises(RejectedError, match=f"got '{kind}'"):
        await fetched(site.url("/a"))


@pytest.mark.parametrize(
    ("status", "kind"),
    [(404, RejectedError), (403, RejectedError), (204, RejectedError), (500, ServerError),
     (502, ServerError), (429, RateLimitedError), (503, RateLimitedError)],
)  # fmt: skip
async def test_statuses_are_mapped(site, status, kind):
    """Each has the error that tells whether another try may help."""
    site.page("/a", "" if status == 204 else "x", status=status, headers={"Retry-After": "7"})
    with pytest.raises(kind) as caught:
        await fetched(site.url("/a"))
    assert caught.value.status == status
    assert getattr(caught.value, "retry_after_s", 7) == 7


async def test_a_silent_server_is_given_up(site):
    """No answer within the time is an error that says so."""
    site.silence("/a")
    with pytest.raises(CallTimeoutError, match=r"within 0\.05 s"):
        await fetched(site.url("/a"), timeout_s=0.05)


async def test_the_time_is_for_all_hops_together(site):
    """Redirects don't start the clock anew: two hops that would each be in time are too late."""

    async def answer(site: Site, request: web.Request) -> web.Response:
        await asyncio.sleep(0.15)
        return web.Response(status=302, headers={"Location": "/b"})

    site.handle("/a", answer)
    site.handle("/b", answer)
    with pytest.raises(CallTimeoutError):
        await fetched(site.url("/a"), timeout_s=0.2)


async def test_a_closed_port_and_a_missing_name_are_told():
    """Nobody there is not the user's mistake, and may pass."""
    async with open_fetcher() as fetcher:
        with pytest.raises(ConnectionFailedError, match="couldn't be reached"):
            await fetcher.fetch("http://127.0.0.1:9/")
    async with Fetcher(resolver=Names()) as fetcher:
        with pytest.raises(ConnectionFailedError, match="couldn't be reached"):
            await fetcher.fetch("http://nowhere.example/")


async def test_one_host_is_asked_one_thing_at_a_time(site):
    """Requests to a host wait for each other; other hosts aren't held up."""
    under_way: dict[str, int] = {"one.example": 0, "two.example": 0}
    most: dict[str, int] = {}
    both = asyncio.Event()

    async def answer(site: Site, request: web.Request) -> web.Response:
        host = request.host.partition(":")[0]
        under_way[host] += 1
        most[host] = max(most.get(host, 0), under_way[host])
        if all(under_way.values()):
            both.set()
        # Every answer waits until both hosts have been seen at work at once.
        await both.wait()
        under_way[host] -= 1
        return web.Response(text=ARTICLE, content_type="text/html")

    names = Names(one_example=["127.0.0.1"], two_example=["127.0.0.1"])
    options = FetchOptions(allow_private=True, host_delay_s=0.0)
    paths = [f"/{n}" for n in range(4)]
    for path in paths:
        site.handle(path, answer)
    async with Fetcher(options, resolver=names) as fetcher:
        pages = [site.url(path, host) for host in under_way for path in paths]
        await asyncio.gather(*map(fetcher.fetch, pages))
    assert most == {"one.example": 1, "two.example": 1}
    assert len(site.calls) == 8


async def test_many_pages_come_with_their_failures(site):
    """One bad page stops nothing; repeated addresses are asked for once."""
    site.page("/a", ARTICLE)
    site.page("/empty", "<html></html>")
    site.page("/png", b"x", headers={"Content-Type": "image/png"})
    wanted = [site.url(p) for p in ("/a", "/empty", "/png", "/missing", "/a")] + ["file:///x"]
    wanted.insert(0, "")
    async with open_fetcher() as fetcher:
        found = [item async for item in fetcher.documents(wanted)]
    assert [item.url for item in found if isinstance(item, Document)] == [site.url("/a")]
    failed = {item.source: item.reason for item in found if isinstance(item, Failure)}
    assert set(failed) == {"", *wanted[2:5], "file:///x"}
    assert "answered 404" in failed[site.url("/missing")]


async def test_leaving_early_leaves_nothing_behind(site):
    """Requests under way are ended when nobody wants them any more."""
    site.page("/a", ARTICLE)
    site.silence("/b")
    async with open_fetcher() as fetcher:
        pages = fetcher.documents([site.url("/a"), site.url("/b")])
        assert isinstance(await anext(pages), Document)
        await pages.aclose()
    assert len(asyncio.all_tasks()) == 1


def test_a_file_of_addresses_is_fetched(site, tmp_path):
    """A list of addresses is told from a text, and its pages become documents."""
    site.page("/a", ARTICLE)
    site.page("/b", ARTICLE.replace("Some words", "Other words"))
    listed = tmp_path / "pages.txt"
    listed.write_text(f"# pages\n{site.url('/a')}\n\n{site.url('/missing')}\n")
    (tmp_path / "prose.txt").write_text(f"See {site.url('/a')} for more.")
    options = FetchOptions(allow_private=True, host_delay_s=0.0)
    found = list(read_documents([tmp_path, site.url("/b")], fetch=options))
    documents = [item for item in found if isinstance(item, Document)]
    assert documents[0].text.startswith("See ")
    assert {item.url for item in documents[1:]} == {site.url("/a"), site.url("/b")}
    assert [item.source for item in found if isinstance(item, Failure)] == [site.url("/missing")]


def test_addresses_inside_are_refused_by_default(site, tmp_path):
    """A list can't make this machine call itself unless that is allowed."""
    (found,) = read_documents([site.url("/a")])
    assert isinstance(found, Failure)
    assert "public internet" in found.reason
    assert site.calls == []


def test_limits_reach_the_reader(site):
    """What the user allows for files holds for pages too."""
    site.page("/a", ARTICLE)
    options = FetchOptions(allow_private=True, host_delay_s=0.0, limits=Limits(max_text_chars=40))
    (found,) = read_documents([site.url("/a")], fetch=options)
    assert len(found.text) <= 40
    assert found.meta["truncated"] == "true"


@pytest.mark.parametrize(
    "address",
    [
        "192.0.0.192", "192.0.0.9", "192.88.99.1", "198.18.0.1", "100.64.0.1", "240.0.0.1",
        "fec0::1", "3fff::1", "5f00::1", "2001:db8::1", "2001::1", "100::1", "::1", "::7f00:1",
        "64:ff9b::7f00:1", "64:ff9b:1::808:808", "::ffff:10.0.0.1", "::ffff:0:10.0.0.1",
        "2002:7f00:1::", "2002:c0a8:1::1", "2607:f8b0::5efe:10.0.0.1", "fe80::1%eth0", "nonsense",
    ],
)  # fmt: skip
def test_reserved_addresses_are_known_by_our_own_list(address):
    """Special ranges aren't public, whatever this Python says, nor what they carry inside."""
    assert not is_public(address)


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "2606:4700::1111", "64:ff9b::808:808", "2002:808:808::", "1.1.1.1"]
)
def test_public_addresses_pass(address):
    """Ordinary addresses are public, and those that carry one."""
    assert is_public(address)
