"""One call to a provider, with every way it can fail mapped once to `heretix.core.errors`.

Adapters build bodies and read answers; this module only moves them. It doesn't retry: the runner
does. It doesn't follow redirects: a key must not travel. No key reaches a message or a `repr`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import math
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self
from urllib.parse import urlsplit

# Loaded with the adapter and not by the first call: that is made while leases are held, and on a
# machine with too much to do this takes longer than they last.
import aiohttp

from heretix.core import errors
from heretix.core.errors import ConfigError, ProviderError, ServerError
from heretix.providers.base import RateLimits

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from heretix.providers.base import Opening

DEFAULT_TIMEOUT_S: Final = 120.0
MAX_CONCURRENCY: Final = 512
"""Each call under way holds a socket, and many systems allow a process 1024 open files."""

_KEEPALIVE_S: Final = 60.0
_LATE_S: Final = 5.0
"""Most time that a process which stood still past the end of a call has to read its answer."""
_DETAIL_LIMIT: Final = 300
_RETRYABLE_BELOW_500: Final = frozenset({408, 409, 425, 429})
_REQUEST_LIMITS: Final = ("X-RateLimit-Limit-Requests", "Anthropic-RateLimit-Requests-Limit")
_TOKEN_LIMITS: Final = ("X-RateLimit-Limit-Tokens", "Anthropic-RateLimit-Tokens-Limit")
_SPENT_CODES: Final = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
"""Sent with a 429, but waiting doesn't refill an account."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Address and key of calls; what could only fail or leak later is refused."""

    provider: str
    base_url: str
    key: str | None = field(default=None, repr=False)
    key_variable: str | None = None
    timeout_s: float = DEFAULT_TIMEOUT_S

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.base_url)
            usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
        except ValueError:
            usable = False
        if not usable:
            raise ConfigError(
                "`base_url` must look like https://host/v1 or http://host:port/v1, "
                f"got {self.base_url!r}"
            )
        if parts.username is not None or parts.query or parts.fragment:
            # Not shown: what stands there is often a secret.
            raise ConfigError(
                "`base_url` must hold no user, password, query or fragment; "
                "put the key into the provider's variable instead"
            )
        if self.key is not None and not (self.key.isascii() and self.key.isprintable()):
            raise ConfigError(
                f"`{self.key_variable or 'key'}` must be plain printable characters to go into a "
                "header, but holds a line break or another character that can't; copy it again"
            )
        if not self.timeout_s > 0:
            raise ConfigError(
                f"`timeout_s` must be a positive number of seconds, got {self.timeout_s!r}"
            )


@dataclass(frozen=True, slots=True)
class HttpReply:
    """A successful answer. Headers are looked up in any case; they tell rate limits."""

    status: int
    headers: Mapping[str, str]
    body: Mapping[str, Any]


class HttpClient:
    """Connections to one target, kept alive between calls. The caller bounds how many at once."""

    def __init__(self, target: Target, headers: Mapping[str, str]) -> None:
        self.target = target
        self._headers = {"User-Agent": "heretix", **headers}
        self._session: aiohttp.ClientSession | None = None

    async def post(self, path: str, body: Mapping[str, Any]) -> HttpReply:
        """Send `body` as JSON to `path` under the base URL, or raise a `ProviderError`."""
        return await self._send("POST", path, json=body)

    async def get(self, path: str, params: Mapping[str, str | int] | None = None) -> HttpReply:
        """Fetch a JSON object from `path` under the base URL, or raise a `ProviderError`."""
        return await self._send("GET", path, params=params)

    async def aclose(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _send(
        self, method: str, path: str, *, more_s: float = 0.0, **options: Any
    ) -> HttpReply:
        """`more_s` is time beyond that of a call."""
        url = self.target.base_url.rstrip("/") + path
        try:
            request = self._open().request(method, url, allow_redirects=False, **options)
            async with _within(self.target.timeout_s + more_s), request as response:
                status, headers, payload = response.status, response.headers, await response.read()
        except aiohttp.ClientResponseError as exc:
            # Its `repr` shows the headers that were sent, the key among them, so the error is
            # raised outside of this block: it then keeps neither a cause nor a context.
            failure = make_transport_error(self.target, exc)
        except (aiohttp.ClientError, OSError) as exc:
            raise make_transport_error(self.target, exc) from exc
        else:
            return read_response(self.target, status, headers, payload)
        raise failure

    def _open(self) -> aiohttp.ClientSession:
        # Opened by the first call, since a session belongs to the event loop that it runs in.
        if self._session is None:
            self._session = aiohttp.ClientSession(
                headers=self._headers,
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(),
            )
        return self._session


@contextlib.asynccontextmanager
async def _within(seconds: float) -> AsyncIterator[None]:
    """Bound what is awaited inside. A process that stood still meanwhile, by Ctrl-Z say, reads what
    arrived before it gives up: that is paid for."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as bound:
        end = loop.time() + seconds

        def give_up() -> None:
            now = loop.time()
            bound.reschedule(now + min(_LATE_S, now - end))

        handle = loop.call_at(end, give_up)
        try:
            yield
        finally:
            handle.cancel()


class HttpProvider:
    """Base of providers behind HTTP: a client of their own, and a free call to try it."""

    max_concurrency: int = MAX_CONCURRENCY
    models_path: ClassVar[str] = "/models"
    """Lists the models, which costs nothing."""

    def __init__(self, target: Target) -> None:
        self.client = HttpClient(target, self.headers(target.key))

    @classmethod
    def open(cls, opening: Opening) -> Self:
        """Make the adapter ready."""
        return cls(opening.target)

    @staticmethod
    def headers(key: str | None) -> dict[str, str]:
        """Headers of every call: the key as a bearer token, where a provider doesn't differ."""
        return {"Authorization": f"Bearer {key}"} if key else {}

    async def reach(self) -> HttpReply:
        """Ask for the list of models: does the key work, is the address right? Costs nothing."""
        return await self.client.get(self.models_path)

    async def aclose(self) -> None:
        """Close the connections."""
        await self.client.aclose()


def make_transport_error(target: Target, exc: Exception) -> ProviderError:
    """The error for a call that got no HTTP answer."""
    subject = f"`{target.provider}` at {target.base_url}"
    match exc:
        case TimeoutError():
            return errors.CallTimeoutError(
                f"{subject} gave no answer within {target.timeout_s:g} s; "
                "allow it more time, or make fewer calls at once"
            )
        case (
            aiohttp.InvalidURL()
            | aiohttp.NonHttpUrlClientError()
            | aiohttp.RedirectClientError()
            | aiohttp.TooManyRedirects()
        ):
            return errors.RejectedError(f"{subject} can't be called; correct `base_url`")
        case aiohttp.ClientResponseError():
            return ServerError(f"{subject} answered with something that isn't HTTP")
    reason = _shorten(target, str(exc)) or type(exc).__name__
    remedy = "check the network and `base_url`"
    kind = errors.ConnectionFailedError
    here = urlsplit(target.base_url).hostname in {"localhost", "127.0.0.1", "::1"}
    if here:
        remedy = "start the server there, or correct `base_url`"
    if isinstance(exc, aiohttp.ClientConnectorError):
        absent = here and exc.errno == errno.ECONNREFUSED
        kind = errors.ServerAbsentError if absent else errors.UnreachedError
    return kind(f"{subject} couldn't be reached, or hung up: {reason}; {remedy}")


def read_response(
    target: Target, status: int, headers: Mapping[str, str], payload: bytes
) -> HttpReply:
    """An HTTP answer as a reply, or the error that it stands for."""
    document = parse_json(payload)
    if not 200 <= status < 300:
        raise _make_status_error(target, status, headers, _error_object(document, payload))
    if not isinstance(document, dict):
        start = _shorten(target, payload.decode("utf-8", "replace"))
        got = f"one that starts with {start!r}" if start else "an empty one"
        raise ServerError(
            f"`{target.provider}` must answer with a JSON object in the body, got {got}; "
            "a gateway in between may be failing",
            status=status,
        )
    return HttpReply(status, headers, document)


def make_reported_error(
    target: Target, error: Mapping[str, Any], headers: Mapping[str, str]
) -> ProviderError:
    """The error inside of a successful answer; its `code` may be a status."""
    code = as_count(error.get("code"))
    if code is not None and 400 <= code < 600:
        return _make_status_error(target, code, headers, error)
    return ServerError(f"`{target.provider}` failed while answering: {_detail(target, error)}")


def misshapen(target: Target, missing: str) -> ServerError:
    """The error for an answer that is JSON, but not of the provider's form."""
    return ServerError(
        f"`{target.provider}` must answer with {missing}, got an object without; "
        "check that `base_url` speaks this provider's protocol"
    )


def read_wait_s(headers: Mapping[str, str], error: Mapping[str, Any]) -> float | None:
    """Seconds that the provider said to wait, wherever it said so; None if it didn't."""
    for name, seconds_each in (("Retry-After-Ms", 0.001), ("Retry-After", 1.0)):
        number = _read_non_negative(headers.get(name))
        if number is not None:
            return number * seconds_each
    if "Retry-After" in headers:
        moment = _moment(headers["Retry-After"])
        # Both ends by the server's clock where it tells it: ours may be minutes off.
        now = _moment(headers.get("Date")) or datetime.now(UTC)
        return None if moment is None else max(0.0, (moment - now).total_seconds())
    # Gemini sends no header: a `google.rpc.RetryInfo` in the body holds a duration like "4.5s".
    delays = (as_text(as_object(d).get("retryDelay")) for d in as_items(error.get("details")))
    return next((_read_non_negative(delay.removesuffix("s")) for delay in delays if delay), None)


def read_rate_limits(headers: Mapping[str, str]) -> RateLimits | None:
    """Requests and tokens a minute, as OpenAI and Anthropic tell them in headers."""

    def first(names: tuple[str, ...]) -> int | None:
        texts = (headers.get(name, "") for name in names)
        return next((int(t) for t in texts if t.isascii() and t.isdigit() and int(t)), None)

    rpm, tpm = first(_REQUEST_LIMITS), first(_TOKEN_LIMITS)
    return RateLimits(rpm=rpm, tpm=tpm) if rpm or tpm else None


def parse_json(payload: bytes) -> Any:
    """The value of a JSON text; None where it isn't JSON."""
    try:
        return json.loads(payload)
    except (ValueError, RecursionError):
        return None


def as_object(value: Any) -> Mapping[str, Any]:
    """`value` if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def as_items(value: Any) -> list[Any]:
    """`value` if it is a JSON array, else an empty one."""
    return value if isinstance(value, list) else []


def as_text(value: Any) -> str | None:
    """`value` if it is a string, else None.

    JSON can escape half of a surrogate pair, which no file, hash or database takes as text; it
    becomes U+FFFD. Everything else is left as it came.
    """
    if not isinstance(value, str):
        return None
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def as_count(value: Any) -> int | None:
    """`value` if it is a whole number from 0, else None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _make_status_error(
    target: Target, status: int, headers: Mapping[str, str], error: Mapping[str, Any]
) -> ProviderError:
    detail = _detail(target, error)
    message = f"`{target.provider}` answered {status}: {detail}"
    # OpenAI and Anthropic say it outright in a header of their own; their SDKs obey it too.
    verdict = headers.get("X-Should-Retry")
    retryable = status in _RETRYABLE_BELOW_500 or status >= 500
    if verdict in {"true", "false"}:
        retryable = verdict == "true"
    elif as_text(error.get("code")) in _SPENT_CODES:
        retryable = False
    if not retryable:
        remedy = _remedy(target, status, headers, detail)
        return errors.RejectedError(message + remedy, status=status)
    wait_s = read_wait_s(headers, error)
    if status == 429 or wait_s is not None:
        return errors.RateLimitedError(message, status=status, retry_after_s=wait_s)
    return ServerError(message, status=status)


def _remedy(target: Target, status: int, headers: Mapping[str, str], detail: str) -> str:
    if 300 <= status < 400:
        place = _shorten(target, headers.get("Location", "elsewhere"))
        return f"; it points to {place}, and redirects aren't followed: correct `base_url`"
    # Gemini answers a wrong key with 400, so the wording decides too.
    if status in {401, 403} or "api key" in detail.lower():
        return f"; check {target.key_variable}" if target.key_variable else "; it wants a key"
    return "; check the model's name and `base_url`" if status == 404 else ""


def _error_object(document: Any, payload: bytes) -> Mapping[str, Any]:
    """The error in a failed answer, in the form {"message": ..., "code": ..., "details": ...}."""
    if isinstance(document, list) and document:
        document = document[0]
    outer = as_object(document)
    inner = outer.get("error")
    for found in (inner, outer):
        if isinstance(found, dict) and found.get("message"):
            return found
    for words in (inner, outer.get("detail")):
        if isinstance(words, str):
            return {"message": words}
    return {"message": payload.decode("utf-8", "replace")}


def _detail(target: Target, error: Mapping[str, Any]) -> str:
    return _shorten(target, as_text(error.get("message")) or "no reason given")


def _shorten(target: Target, text: str) -> str:
    """`text` on one line, without the key, at a length that suits a message."""
    # The key goes first, lest its beginning survive the cut.
    if target.key:
        text = text.replace(target.key, "[key]")
    # A server's text is printed on terminals, where control characters are commands.
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if len(text) <= _DETAIL_LIMIT else text[: _DETAIL_LIMIT - 1] + "…"


def _read_non_negative(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _moment(date: str | None) -> datetime | None:
    from email.utils import parsedate_to_datetime

    try:
        moment = parsedate_to_datetime(date or "")
    except (ValueError, OverflowError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
