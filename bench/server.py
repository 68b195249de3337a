"""A server that speaks OpenAI's protocols on loopback, with limits and faults to order.

    python bench/server.py --port 0 --latency-ms 200 --rpm 3000 --error-share 0.1

Prints its port, serves `/v1/chat/completions`, `/v1/responses`, `/v1/models` and `/stats` until
it is stopped (SIGINT, SIGTERM), and prints its statistics as JSON. It shares the machine with
what is measured, so it does as little as it can for each request: no framework, no tasks.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import math
import random
import signal
import socket
import struct
import sys
import time
from collections import Counter
from dataclasses import dataclass, field, fields
from http import HTTPStatus
from typing import Any, Final, Self

__all__ = ["Behaviour", "Bucket", "Server", "Statistics", "duration", "prob_true_of"]

_CHARS_PER_TOKEN: Final = 4
_ANSWER_TOKENS: Final = 9
_BACKLOG: Final = 4096
_READ_SIZE: Final = 64 * 1024
_MAX_REQUEST: Final = 16 * 1024 * 1024
_MALFORMED: Final = (
    "The claim is probably true.",
    '{"prob_true": 1.7}',
    '{"prob_true": "0.7"}',
    '{"probability": 0.7}',
    'Sure! {"prob_true": 0.7}',
    '{"prob_true": 0.',
)
"""Answers that a provider sends with status 200 and that nobody can use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """Behaviour of the server. Shares are parts of the requests that pass the limits."""

    latency_ms: float = 0.0
    jitter_ms: float = 0.0
    """Latency varies evenly by this much to both sides, so its mean stays."""
    rpm: float | None = None
    tpm: float | None = None
    window_s: float = 1.0
    """A limit per minute is enforced over this long, as OpenAI does: 3,000 a minute are 50 in a
    second. 60 lets a whole minute's worth through at once."""
    max_concurrent: int | None = None
    error_share: float = 0.0
    malformed_share: float = 0.0
    reset_share: float = 0.0
    empty_share: float = 0.0
    slow_share: float = 0.0
    slow_ms: float = 5000.0
    """What a slow answer takes on top."""
    seed: int = 0
    """Of the dice: the same requests in the same order meet the same faults."""

    def __post_init__(self) -> None:
        """Refuse what can't be meant."""
        if min(self.shares().values()) < 0:
            raise ValueError(f"shares must be at least 0 and at most 1 in sum: {self.shares()}")
        for name in ("rpm", "tpm", "max_concurrent", "window_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"`{name}` must be positive or left out, got {value}")
        if self.latency_ms < self.jitter_ms or min(self.jitter_ms, self.slow_ms) < 0:
            raise ValueError("times must be at least 0, and `jitter_ms` at most `latency_ms`")

    def shares(self) -> dict[str, float]:
        """The share of every outcome; what no fault takes is answered."""
        faults = {
            "error": self.error_share,
            "malformed": self.malformed_share,
            "reset": self.reset_share,
            "empty": self.empty_share,
            "slow": self.slow_share,
        }
        return {**faults, "answered": 1.0 - sum(faults.values())}


@dataclass(slots=True)
class Statistics:
    """Counts of the server. Times are those of `time.monotonic`, which all processes share."""

    requests: int = 0
    """Requests to a model, whatever became of them."""
    outcomes: Counter[str] = field(default_factory=Counter)
    """answered, malformed, slow, empty, error, reset, limited, crowded, refused, abandoned."""
    in_flight: int = 0
    max_in_flight: int = 0
    connections: int = 0
    tokens_in: int = 0
    """Of the requests that are answered, which is what a provider bills: whoever went away pays."""
    tokens_out: int = 0
    first_at_s: float | None = None
    """When the first request had arrived."""
    last_at_s: float | None = None
    """When the last reply was sent."""
    late_s: float = 0.0
    """By how much replies were sent later than ordered, in sum: the machine was busy elsewhere."""
    cpu_from_s: float = field(default_factory=time.process_time)

    def as_dict(self) -> dict[str, Any]:
        """All of it, as JSON has it."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        cpu_s = time.process_time() - values.pop("cpu_from_s")
        return {**values, "outcomes": dict(sorted(self.outcomes.items())), "cpu_s": cpu_s}


class Bucket:
    """A limit per minute: drops fill it evenly, up to a window's worth, and requests take them."""

    def __init__(self, per_minute: float, window_s: float, now: float) -> None:
        self.per_minute = per_minute
        self._per_s = per_minute / 60.0
        self._capacity = max(1.0, self._per_s * window_s)
        self._level = self._capacity
        self._at = now

    def wait_s(self, amount: float, now: float) -> float:
        """Seconds until `amount` is there; 0 when it is."""
        self._level = min(self._capacity, self._level + (now - self._at) * self._per_s)
        self._at = now
        # What is larger than the bucket goes through when that is full, or it never would.
        missing = min(amount, self._capacity) - self._level
        # A billionth of a drop is rounding; told to wait that long, a caller would come too early.
        return missing / self._per_s if missing > 1e-9 else 0.0

    def take(self, amount: float) -> None:
        """Take what `wait_s` found."""
        self._level -= amount

    def headers(self, unit: str) -> str:
        """Headers by which OpenAI tells of a limit: how much, what is left, when full."""
        full_in_s = (self._capacity - self._level) / self._per_s
        return (
            f"x-ratelimit-limit-{unit}: {self.per_minute:.0f}\r\n"
            f"x-ratelimit-remaining-{unit}: {max(0, int(self._level))}\r\n"
            f"x-ratelimit-reset-{unit}: {duration(full_in_s)}\r\n"
        )


@dataclass(frozen=True, slots=True)
class _Verdict:
    """Outcome of a request, and its delay."""

    outcome: str
    delay_s: float = 0.0
    retry_after_s: float | None = None
    text: str | None = None
    """The answer's text, where it isn't the usual one."""


class Server:
    """The server, in the running event loop; an async context manager."""

    def __init__(self, behaviour: Behaviour | None = None) -> None:
        self.behaviour = behaviour or Behaviour()
        self.statistics = Statistics()
        self.port = 0
        self.scratch = bytearray(_READ_SIZE)
        """What all connections read into; each takes its data out before the next one reads."""
        self.connections: set[_Connection] = set()
        self._random = random.Random(self.behaviour.seed)
        self._shares = self.behaviour.shares()
        self._buckets: dict[str, Bucket] = {}
        self._listener: asyncio.Server | None = None

    @property
    def base_url(self) -> str:
        """Address that a client is configured with."""
        return f"http://127.0.0.1:{self.port}/v1"

    async def start(self, port: int = 0) -> None:
        """Listen on loopback; port 0 takes any that is free."""
        for unit, limit in (("requests", self.behaviour.rpm), ("tokens", self.behaviour.tpm)):
            if limit is not None:
                self._buckets[unit] = Bucket(limit, self.behaviour.window_s, time.monotonic())
        self._listener = await asyncio.get_running_loop().create_server(
            lambda: _Connection(self), "127.0.0.1", port, backlog=_BACKLOG
        )
        self.port = self._listener.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Hang up on everybody."""
        if self._listener is not None:
            self._listener.close()
        for connection in list(self.connections):
            connection.hang_up()
        # Transports close at the loop's next turn; without it, a test's loop would end before.
        await asyncio.sleep(0)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def begin(self, tokens: int, now: float) -> _Verdict:
        """Decide what becomes of a request to a model: by the limits, then by chance."""
        statistics = self.statistics
        if statistics.first_at_s is None:
            statistics.first_at_s = now
        statistics.requests += 1
        statistics.in_flight += 1
        statistics.max_in_flight = max(statistics.max_in_flight, statistics.in_flight)
        return self._check_limit(tokens, now) or self._by_chance()

    def end(self, outcome: str, due_at: float) -> None:
        """A request was replied to, or its client went away."""
        now = time.monotonic()
        self.statistics.outcomes[outcome] += 1
        self.statistics.in_flight -= 1
        self.statistics.last_at_s = now
        self.statistics.late_s += max(0.0, now - due_at)

    def limit_headers(self) -> str:
        """The limits, as each reply tells them."""
        return "".join(bucket.headers(unit) for unit, bucket in self._buckets.items())

    def _check_limit(self, tokens: int, now: float) -> _Verdict | None:
        most = self.behaviour.max_concurrent
        if most is not None and self.statistics.in_flight > most:
            return _Verdict("crowded")
        if not self._buckets:
            return None
        amounts = {"requests": 1.0, "tokens": float(tokens)}
        wait_s = max(bucket.wait_s(amounts[unit], now) for unit, bucket in self._buckets.items())
        if wait_s:
            return _Verdict("limited", retry_after_s=wait_s)
        for unit, bucket in self._buckets.items():
            bucket.take(amounts[unit])
        return None

    def _by_chance(self) -> _Verdict:
        behaviour = self.behaviour
        delay_ms = behaviour.latency_ms
        if behaviour.jitter_ms:
            delay_ms += self._random.uniform(-behaviour.jitter_ms, behaviour.jitter_ms)
        if self._shares["answered"] == 1.0:
            return _Verdict("answered", delay_ms / 1000)
        (outcome,) = self._random.choices(list(self._shares), list(self._shares.values()))
        text = self._random.choice(_MALFORMED) if outcome == "malformed" else None
        delay_ms += behaviour.slow_ms if outcome == "slow" else 0.0
        return _Verdict(outcome, delay_ms / 1000, text=text)


class _Connection(asyncio.BufferedProtocol):
    """One client. Requests of a connection are answered one after the other.

    Data is read into a buffer of the server's: a plain protocol is handed a new block of 256 KiB
    for each read, which alone costs more than reading a request and writing its reply.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._timer: asyncio.TimerHandle | None = None
        """Of the reply that is owed; no request is read while there is one."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._server.connections.add(self)
        self._server.statistics.connections += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._server.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
            self._server.end("abandoned", self._timer.when())
            self._timer = None

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._server.scratch

    def buffer_updated(self, nbytes: int) -> None:
        self._buffer += bytes(memoryview(self._server.scratch)[:nbytes])
        self._next_request()

    def hang_up(self, *, reset: bool = False) -> None:
        """Close at once; `reset` as a machine does that has crashed."""
        if self._transport is None:
            return
        if reset:
            sock: socket.socket = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    def _next_request(self) -> None:
        """Take one whole request off the buffer, if there is one and none is being answered."""
        buffer = self._buffer
        end = buffer.find(b"\r\n\r\n")
        if end < 0 or self._timer is not None or self._transport is None:
            return
        head = buffer[:end]
        length = _content_length(head)
        if length is None or length > _MAX_REQUEST:
            # Where the next request begins is unknown, so this was the last one.
            message = "a body needs a Content-Length of at most 16 MiB"
            self._reply(411, _error(message, "invalid_request"), "Connection: close\r\n")
            self._transport.close()
            return
        stop = end + 4 + length
        if len(buffer) < stop:
            return
        self._buffer = buffer[stop:]
        method, _, rest = head.partition(b" ")
        self._dispatch(method, rest.partition(b" ")[0], buffer[end + 4 : stop])

    def _dispatch(self, method: bytes, path: bytes, body: bytes) -> None:
        if method == b"POST" and path in _PROTOCOLS:
            self._ask(path, body)
        elif method == b"GET" and path == b"/stats":
            self._reply(200, json.dumps(self._server.statistics.as_dict()).encode())
        elif method == b"GET" and path == b"/v1/models":
            model = {"id": "sim", "object": "model", "created": 0, "owned_by": "bench"}
            self._reply(200, json.dumps({"object": "list", "data": [model]}).encode())
        else:
            self._reply(404, _error("there is nothing here", "not_found"))

    def _ask(self, path: bytes, body: bytes) -> None:
        server, now = self._server, time.monotonic()
        prompt_of, answer_of = _PROTOCOLS[path]
        try:
            request = json.loads(body)
            prompt, model = prompt_of(request), str(request["model"])
        except (ValueError, TypeError, KeyError, AttributeError) as exc:
            server.statistics.requests += 1
            server.statistics.outcomes["refused"] += 1
            self._reply(400, _error(f"not a request of this API: {exc!r}", "invalid_request"))
            return
        tokens = math.ceil(len(prompt) / _CHARS_PER_TOKEN)
        verdict = server.begin(tokens, now)
        if verdict.outcome in {"limited", "crowded"}:
            server.end(verdict.outcome, math.inf)
            self._turn_away(verdict)
            return
        text = verdict.text
        if text is None:
            text = f'{{"prob_true": {prob_true_of(prompt, request.get("seed"))}}}'
        reply = answer_of(text, model, server.statistics.requests, tokens)
        if verdict.outcome not in {"error", "reset"}:
            server.statistics.tokens_in += tokens
            server.statistics.tokens_out += _ANSWER_TOKENS
        # An event loop's time is `time.monotonic`, and latency counts from the arrival.
        self._timer = asyncio.get_running_loop().call_at(
            now + verdict.delay_s, self._answer, verdict.outcome, reply
        )

    def _answer(self, outcome: str, reply: bytes) -> None:
        assert self._timer is not None, "a timer calls this"
        due_at, self._timer = self._timer.when(), None
        if outcome == "reset":
            self.hang_up(reset=True)
        elif outcome == "error":
            self._reply(500, _error("the server had an error, as ordered", "server_error"))
        else:
            self._reply(200, b"" if outcome == "empty" else reply)
        self._server.end(outcome, due_at)

    def _turn_away(self, verdict: _Verdict) -> None:
        if verdict.retry_after_s is None:
            # When a place will be free can't be known, so nothing is said of it.
            self._reply(429, _error("too many requests at once", "concurrency_exceeded"))
            return
        wait_ms = math.ceil(verdict.retry_after_s * 1000)
        headers = f"Retry-After: {math.ceil(wait_ms / 1000)}\r\nRetry-After-Ms: {wait_ms}\r\n"
        self._reply(429, _error("too many requests", "rate_limit_exceeded"), headers)

    def _reply(self, status: int, body: bytes, headers: str = "") -> None:
        assert self._transport is not None, "a closed connection has neither requests nor a timer"
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: application/json\r\n"
            f"{self._server.limit_headers()}{headers}Content-Length: {len(body)}\r\n\r\n"
        )
        self._transport.write(head.encode("latin-1") + body)
        if self._buffer:
            asyncio.get_running_loop().call_soon(self._next_request)


def prob_true_of(prompt: str, seed: object = None) -> float:
    """The answer to a prompt, always the same; a seed in the request makes it another sample."""
    text = prompt if seed is None else f"{prompt}|{seed}"
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4).digest()
    return round(0.02 + 0.96 * int.from_bytes(digest, "big") / 0xFFFFFFFF, 4)


def duration(seconds: float) -> str:
    """A time as OpenAI's headers write it: `6m0s`, `1.5s`, `20ms`."""
    ms = math.ceil(round(seconds * 1000, 6))
    if ms < 1000:
        return f"{ms}ms"
    minutes, rest_ms = divmod(ms, 60_000)
    hours, minutes = divmod(minutes, 60)
    prefix = (f"{hours}h" if hours else "") + (f"{minutes}m" if hours or minutes else "")
    return f"{prefix}{rest_ms / 1000:g}s"


def _chat_prompt(request: Any) -> str:
    return "\n\n".join([str(message["content"]) for message in request["messages"]])


def _responses_prompt(request: Any) -> str:
    given = request["input"]
    if not isinstance(given, str):
        given = "\n\n".join([str(message["content"]) for message in given])
    return f"{request.get('instructions') or ''}\n\n{given}"


def _chat_answer(text: str, model: str, number: int, tokens: int) -> bytes:
    # Put together by hand: `json.dumps` of the whole would be much of the server's work.
    return (
        f'{{"id":"chatcmpl-{number}","object":"chat.completion","created":0,'
        f'"model":{json.dumps(model)},"system_fingerprint":"fp_bench","choices":[{{"index":0,'
        f'"message":{{"role":"assistant","content":{json.dumps(text)},"refusal":null}},'
        f'"finish_reason":"stop"}}],"usage":{{"prompt_tokens":{tokens},'
        f'"completion_tokens":{_ANSWER_TOKENS},"total_tokens":{tokens + _ANSWER_TOKENS}}}}}'
    ).encode()


def _responses_answer(text: str, model: str, number: int, tokens: int) -> bytes:
    return (
        f'{{"id":"resp_{number}","object":"response","created_at":0,"model":{json.dumps(model)},'
        f'"status":"completed","error":null,"incomplete_details":null,"output":[{{"type":"message",'
        f'"id":"msg_{number}","role":"assistant","status":"completed","content":[{{'
        f'"type":"output_text","text":{json.dumps(text)},"annotations":[]}}]}}],'
        f'"usage":{{"input_tokens":{tokens},"output_tokens":{_ANSWER_TOKENS},'
        f'"total_tokens":{tokens + _ANSWER_TOKENS}}}}}'
    ).encode()


_PROTOCOLS: Final = {
    b"/v1/chat/completions": (_chat_prompt, _chat_answer),
    b"/v1/responses": (_responses_prompt, _responses_answer),
}


def _content_length(head: bytes) -> int | None:
    """The length of a request's body; None where it isn't told."""
    lowered = head.lower()
    if b"\r\ntransfer-encoding:" in lowered:
        return None
    _, found, rest = lowered.partition(b"\r\ncontent-length:")
    digits = rest.partition(b"\r\n")[0].strip() if found else b"0"
    return int(digits) if digits.isdigit() else None


def _error(message: str, code: str) -> bytes:
    error = {"message": message, "type": code, "code": code, "param": None}
    return json.dumps({"error": error}).encode()


async def serve(server: Server, port: int, *, until_eof: bool) -> None:
    """Print the port, serve until told to stop, print what was seen."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    if until_eof:
        # Whoever started it holds the other end; when they are gone, it must not live on.
        loop.add_reader(sys.stdin.fileno(), stopped.set)
    await server.start(port)
    with contextlib.suppress(BrokenPipeError):
        print(server.port, flush=True)
        await stopped.wait()
        print(json.dumps(server.statistics.as_dict()), flush=True)
    await server.stop()


def main() -> None:
    """Run from the command line: every field of `Behaviour` is an option."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--port", type=int, default=0, help="0 takes any that is free")
    parser.add_argument("--until-eof", action="store_true", help="stop when stdin is closed")
    for item in fields(Behaviour):
        kind = int if item.name in {"max_concurrent", "seed"} else float
        flag = "--" + item.name.replace("_", "-")
        parser.add_argument(flag, type=kind, default=item.default, metavar="N")
    options = vars(parser.parse_args())
    port, until_eof = options.pop("port"), options.pop("until_eof")
    try:
        behaviour = Behaviour(**options)
    except ValueError as exc:
        parser.error(str(exc))
    asyncio.run(serve(Server(behaviour), port, until_eof=until_eof))


if __name__ == "__main__":
    main()
