"""Addresses read the way a browser would, and the publisher whose work a page is.

Sources are told apart by their hosts, so a host must not be open to tricks: user names that look
like hosts, backslashes, escapes, wide letters and dots, a port, another spelling of the same name.
A publisher is the registrable domain, with three corrections: platforms that carry many publishers
are split, a public suffix that publishes itself (`www.gov.uk`) is a publisher, and a publisher's
other domains are folded into one.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from heretix.core.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tldextract import TLDExtract

MAX_URL_CHARS: Final = 8_192
MAX_HOST_CHARS: Final = 253

_SCHEME: Final = re.compile(r"([a-z][a-z0-9+.-]*):", re.IGNORECASE)
_PORT_AHEAD: Final = re.compile(r":\d{1,5}(?:[/?#]|$)")
_HOST: Final = re.compile(r"[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*")
# A copy in this archive is the work of the site it was taken from, not of the archive.
_ARCHIVED: Final = re.compile(r"/web/\d{4,14}(?:[a-z]{2}_)?/(?=https?:/)", re.IGNORECASE)
_ARCHIVE_HOST: Final = "web.archive.org"


@dataclass(frozen=True, slots=True)
class Address:
    """Host and path, in one spelling."""

    host: str
    """Lower case, punycode, without port, user name and last dot; an IPv6 address in brackets."""
    path: str  # Unescaped, without query and `..`; starts with a slash


def read_address(url: str | None) -> Address | None:
    """The host and path of `url`; None where it has no host that can be made out."""
    text = (url or "").strip()
    if not text or len(text) > MAX_URL_CHARS:
        return None
    # Browsers read a backslash as a slash: `https://evil.example\@reuters.com` is evil.example.
    with_host = _with_slashes(text.replace("\\", "/"))
    if with_host is None:
        return None
    try:
        parts = urlsplit(with_host)
        host = read_host(parts.hostname or "")
    except ValueError:
        return None
    if host is None:
        return None
    archived = _ARCHIVED.match(parts.path) if host == _ARCHIVE_HOST else None
    original = read_address(parts.path[archived.end() :]) if archived else None
    if original is not None:
        return original
    kept: list[str] = []
    for segment in unquote(parts.path).split("/"):
        if segment == "..":
            del kept[-1:]
        elif segment not in {"", "."}:
            kept.append(segment)
    return Address(host, "/" + "/".join(kept))


def is_address(url: str) -> bool:
    """Tell an address from a word or a number that passes for one."""
    address = read_address(url)
    if address is None:
        return False
    _, dot, last = address.host.rpartition(".")
    if last.isdigit():
        # As in a browser: what ends in a number is an IPv4 address, or no host at all.
        try:
            ipaddress.IPv4Address(address.host)
        except ValueError:
            return False
    # With a scheme, a name without a dot is a host of somebody's own network.
    return address.host.startswith("[") or bool(dot) or "//" in url


def read_host(name: str) -> str | None:
    """`name` in the one spelling that hosts are compared in; None if it can't be a host."""
    host = unquote(name).strip().lower()
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if ":" in host:
        try:
            return f"[{ipaddress.IPv6Address(host.partition('%')[0]).compressed}]"
        except ValueError:
            return None
    host = re.sub("[\u3002\uff0e\uff61]", ".", host).removesuffix(".")
    if not host.isascii():
        import idna

        try:
            host = idna.encode(host, uts46=True).decode("ascii").lower()
        except (idna.IDNAError, UnicodeError):
            return None
    return host if len(host) <= MAX_HOST_CHARS and _HOST.fullmatch(host) else None


def host_of(url: str | None) -> str:
    """The host of `url`; empty where there is none."""
    address = read_address(url)
    return address.host if address else ""


def read_domains(names: Iterable[str]) -> tuple[str, ...]:
    """Domain names in the one spelling that hosts are compared in."""
    found: dict[str, None] = {}
    for name in names:
        host = read_host(name.strip().removeprefix("*.").strip("."))
        if host is None:
            raise ConfigError(f"`{name}` must be a domain like example.org")
        found[host] = None
    return tuple(found)


def is_within(host: str, domain: str) -> bool:
    """`host` is `domain` or stands under it: `notexample.org` isn't within `example.org`."""
    return host == domain or host.endswith(f".{domain}")


def _with_slashes(text: str) -> str | None:
    """`text` as something `urlsplit` finds a host in; None for `mailto:` and its kin."""
    if text.startswith("//"):
        return text
    scheme = _SCHEME.match(text)
    if scheme is None or _PORT_AHEAD.match(text, scheme.end() - 1):
        return f"//{text}"
    rest = text[scheme.end() :]
    if scheme[1].lower() in {"http", "https"}:
        # Browsers need no slashes here, and take any number of them.
        return f"{scheme[0]}//{rest.lstrip('/')}"
    return text if rest.startswith("//") else None


NO_PUBLISHER: Final = "(no publisher)"
"""The key of whatever has no readable host. All such pages count as one publisher: nothing says
that they come from different hands."""


@dataclass(frozen=True, slots=True)
class _Carrier:
    """Places of names on a platform that carries many publishers. `@name` always counts."""

    subdomain: bool = False  # `name.platform`
    own: str | None = None
    """First segments that are pages of the platform's own, where names are `platform/name`."""
    under: str = ""  # `platform/marker/name`, for these markers


_BLOGS: Final = (
    "substack.com wordpress.com blogspot.com typepad.com livejournal.com dreamwidth.org ghost.io "
    "beehiiv.com weebly.com squarespace.com neocities.org hashnode.dev bearblog.dev micro.blog "
    "home.blog over-blog.com jimdofree.com gitbook.io fandom.com"
)
_CARRIERS: Final[dict[str, _Carrier]] = {
    **dict.fromkeys(_BLOGS.split(), _Carrier(subdomain=True)),
    "medium.com": _Carrier(subdomain=True, own="m me p tag topic topics search about s"),
    "tumblr.com": _Carrier(subdomain=True, own="dashboard tagged search explore about"),
    "x.com": _Carrier(own="home i search hashtag intent explore settings share login about tos"),
    "facebook.com": _Carrier(
        own="watch events share photo photo.php story.php permalink.php profile.php help login",
        under="groups pages",
    ),
    "instagram.com": _Carrier(own="p reel reels stories explore accounts tv"),
    "github.com": _Carrier(own="topics search features about explore marketplace sponsors login"),
    "gitlab.com": _Carrier(own="explore help users"),
    "patreon.com": _Carrier(own="posts search explore login"),
    "t.me": _Carrier(own="joinchat share", under="s"),
    "youtube.com": _Carrier(under="channel c user"),
    "reddit.com": _Carrier(under="r user u"),
    "linkedin.com": _Carrier(under="in company school"),
    "rumble.com": _Carrier(under="c user"),
    "bitchute.com": _Carrier(under="channel"),
    "bsky.app": _Carrier(under="profile"),
    "quora.com": _Carrier(under="profile"),
    "sites.google.com": _Carrier(under="view site"),
    "tiktok.com": _Carrier(),
    "threads.com": _Carrier(),
    "odysee.com": _Carrier(),
    # The part of a DOI before the slash tells who registered it apart, where nobody is known.
    "doi.org": _Carrier(own=""),
}

_DOI_PREFIXES: Final = (
    "aacrjournals.org=1158 aappublications.org=1542 aclanthology.org=18653 acm.org=1145 "
    "acpjournals.org=7326 acs.org=1021 ada.org=14219 aeaweb.org=1257 agu.org=1029 "
    "ahajournals.org=1161 aiaa.org=2514 aip.org=1063 ajph.org=2105 ametsoc.org=1175 ams.org=1090 "
    "annualreviews.org=1146 aom.org=5465 apa.org=1037 aps.org=1103 arxiv.org=48550 asce.org=1061 "
    "ascopubs.org=1200 ashpublications.org=1182 asm.org=1128 asme.org=1115 atsjournals.org=1164 "
    "authorea.com=22541 benjamins.com=1075 biologists.com=1242 biomedcentral.com=1186 "
    "bioscientifica.com=1530 bmj.com=1136 brill.com=1163 cairn.info=3917 cambridge.org=1017 "
    "cdnsciencepub.com=1139 chemrxiv.org=26434 chestnet.org=1378 cmaj.ca=1503 copernicus.org=5194 "
    "cshlp.org=1261 cureus.com=7759 dataverse.org=7910 degruyter.com=1515 "
    "diabetesjournals.org=2337 direct.mit.edu=1162 dovepress.com=2147 dryad.org=5061 "
    "dukeupress.edu=1215 eartharxiv.org=31223 econometricsociety.org=3982 "
    "edpsciences.org=1051,2516 elifesciences.org=7554 embopress.org=15252 emerald.com=1108 "
    "endocrine.org=1210 ersjournals.com=1183 eurosurveillance.org=2807 f1000research.com=12688 "
    "figshare.com=6084 frontiersin.org=3389 geoscienceworld.org=1130 haematologica.org=3324 "
    "healthaffairs.org=1377 hindawi.com=1155 icevirtuallibrary.com=1680 ieee.org=1109 "
    "imf.org=5089 inderscience.com=1504 informs.org=1287 intechopen.com=5772 iop.org=1088 "
    "iospress.com=3233 iucr.org=1107 jamanetwork.com=1001 jbc.org=1074 jbjs.org=2106 jci.org=1172 "
    "jimmunol.org=4049 jmir.org=2196 jneurosci.org=1523 jospt.org=2519 journals.uchicago.edu=1086 "
    "jstor.org=2307 karger.com=1159 liebertpub.com=1089 lww.com=1097 lyellcollection.org=1144 "
    "mapress.com=11646 mdpi.com=3390 medknow.com=4103 microbiologyresearch.org=1099 "
    "mja.com.au=5694 muse.jhu.edu=1353 nature.com=1038 nber.org=3386 nejm.org=1056 "
    "neurology.org=1212 nutrition.org=3945 oecd.org=1787 openedition.org=4000 optica.org=1364 "
    "osf.io=31219,31235 oup.com=1093,1641 palgrave.com=1057 peerj.com=7717 pensoft.net=3897 "
    "physiology.org=1152 plos.org=1371 pnas.org=1073 portlandpress.com=1042 preprints.org=20944 "
    "projecteuclid.org=1214 psyarxiv.com=31234 psychiatryonline.org=1176 publish.csiro.au=1071 "
    "qeios.com=32388 researchsquare.com=21203 routledge.com=4324 royalsocietypublishing.org=1098 "
    "rsc.org=1039 rupress.org=1083,1084 sagepub.com=1068,1177,1193,2190 scielo.br=1590 "
    "science.org=1126 sciencedirect.com=1006,1016,1053,1054 siam.org=1137 spie.org=1117 "
    "springer.com=1007 ssrn.com=2139 tandfonline.com=1080 techrxiv.org=36227 thieme.com=1055 "
    "ucpress.edu=1525 wiley.com=1002,1111,3322 worldbank.org=1596 worldscientific.com=1142 "
    "zenodo.org=5281 "
)
# Holders of DOI prefixes by their domains; `nature.com=1038` stands for 10.1038.
_DOI_HOLDERS: Final = {
    f"10.{prefix}": domain
    for domain, _, prefixes in (holder.partition("=") for holder in _DOI_PREFIXES.split())
    for prefix in prefixes.split(",")
}

# Hosts that hold nobody's name although they stand in front of a platform's.
_PLAIN_LABELS: Final = frozenset({"www", "m", "mobile", "files", "media", "amp"})

_ALIASES: Final = {
    "bbc.co.uk": "bbc.com",
    "twitter.com": "x.com",
    "youtu.be": "youtube.com",
    "threads.net": "threads.com",
    "raw.githubusercontent.com": "github.com",
    # Suffixes of the public suffix list under which one publisher puts its own pages.
    "service.gov.uk": "gov.uk",
    "api.gov.uk": "gov.uk",
    "campaign.gov.uk": "gov.uk",
    "blog.gov.uk": "gov.uk",
    "service.gov.scot": "gov.scot",
}


@lru_cache(maxsize=65_536)
def publisher_of(address: Address | None) -> str:
    """The publisher of the page at `address`: `reuters.com`, `alice.substack.com`, `x.com/bob`."""
    if address is None:
        return NO_PUBLISHER
    address = find_doi_holder(address) or address
    aliases = (main for name, main in _ALIASES.items() if is_within(address.host, name))
    host = next(aliases, address.host)
    base = _carrier_base(host)
    if base is not None:
        return _name_carried(base, host, address.path)
    if host.startswith("["):
        return host
    name = _split(host)
    if not name.suffix:
        # No registry is known (`evil.example`, `localhost`): the list's own default is that the
        # last label is the suffix. The parts of an IPv4 address are no labels.
        return host if host.replace(".", "").isdigit() else ".".join(host.split(".")[-2:])
    if not name.domain or (name.domain == "www" and "." in name.suffix):
        return name.suffix
    return f"{name.domain}.{name.suffix}"


def find_doi_holder(address: Address) -> Address | None:
    """The site of whoever registered the DOI that `address` resolves; None where nobody is known.
    A prefix is a publisher's, and stays one's who has been bought."""
    if not is_within(address.host, "doi.org"):
        return None
    prefix, _, suffix = address.path.strip("/").partition("/")
    domain = _DOI_HOLDERS.get(prefix)
    if prefix == "10.1101":  # Of one laboratory: dates are preprints, letters are its journals
        domain = "biorxiv.org" if suffix[:1].isdigit() else "cshlp.org"
    return Address(domain, "/") if domain else None


def carries_many(host: str) -> bool:
    """`host` as a whole is a platform, whose pages have many publishers."""
    if _carrier_base(host) == host:
        return True
    name = _split(host)
    return name.private and not name.domain and host not in _ALIASES


def is_public_suffix(host: str) -> bool:
    """Registries sell names under `host`, as they do under `uk` and `gov.uk`."""
    name = _split(host)
    return bool(name.suffix) and not name.domain and not name.private


def _carrier_base(host: str) -> str | None:
    labels = host.split(".")
    for start in range(len(labels) - 1):
        name = ".".join(labels[start:])
        if name in _CARRIERS:
            return name
    # Blogger serves the same blogs under many countries' names.
    if "blogspot" in labels[-3:-1]:
        return "blogspot.com"
    return None


def _name_carried(base: str, host: str, path: str) -> str:
    carrier = _CARRIERS[base]
    segments = path.strip("/").split("/")
    first = segments[0].lower()
    second = segments[1] if len(segments) > 1 else ""
    # Links that Substack's application shares name the newsletter in the path.
    if host == "open.substack.com" and first == "pub" and second:
        return f"{second.lower()}.{base}"
    if carrier.subdomain:
        head = (
            host.rpartition(".blogspot.")[0] if base == "blogspot.com" else host.removesuffix(base)
        )
        names = [label for label in head.split(".") if label and label not in _PLAIN_LABELS]
        if names:
            return f"{names[-1]}.{base}"
    if first.startswith("@") and len(first) > 1:
        return f"{base}/{first}"
    if first in carrier.under.split():
        # YouTube's channel ids tell capitals apart; everybody's names don't.
        name = second if first == "channel" else second.lower()
        marker = "" if base == "t.me" else f"{first}/"
        return f"{base}/{marker}{name}" if name else base
    if carrier.own is not None and first and first not in carrier.own.split():
        return f"{base}/{first}"
    return base


class _Name(NamedTuple):
    """A host by the public suffix list; parts that it hasn't are empty."""

    suffix: str
    domain: str  # The one label in front of the suffix
    private: bool  # The suffix belongs to a platform and not to a registry


def _split(host: str) -> _Name:
    found = _extractor()(host)
    return _Name(found.suffix, found.domain if found.suffix else "", found.is_private)


@cache
def _extractor() -> TLDExtract:
    try:
        from tldextract import TLDExtract
    except ModuleNotFoundError as exc:
        raise UsageError(
            "`tldextract` isn't installed, and publishers can't be told apart without its list of "
            "public suffixes: `uv sync --extra evidence`, or `pip install '.[evidence]'` in the "
            "clone"
        ) from exc
    # Only the list inside the package: no network, no cache, the same answer everywhere.
    return TLDExtract(cache_dir=None, suffix_list_urls=(), include_psl_private_domains=True)
