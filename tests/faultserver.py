"""A real HTTP server on loopback that speaks four providers' protocols and fails on command.

It runs in a thread of its own, so that a test may be a coroutine or start its own event loop.
Calls are recorded as they arrive. Each takes the next scripted outcome, and the standing one when
the script has run out:

    with FaultServer() as server:
        server.script(status(503), reset(), answer('{"prob_true": 0.9}'))
        server.always(answer('{"prob_true": 0.2}'))
        ... call server.url("openai") ...
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
import struct
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from aiohttp import web

ANSWER = '{"prob_true": 0.7}'

Protocol = Literal["openai", "openai-compatible", "anthropic", "gemini", "other"]
Ending = Literal["stop", "truncated", "refused"]

BASE_PATHS: Mapping[Protocol, str] = {
    "openai": "/v1",
    "openai-compatible": "/v1",
    "anthropic": "",
    "gemini": "/v1beta",
}


@dataclass(frozen=True)
class Call:
    """One request as it came in; header names are in lower case."""

    protocol: Protocol
    path: str
    headers: Mapping[str, str]
    body: Any
    number: int
    """Counts calls from 0."""
    peer: tuple[str, int]
    """The caller's address; calls over one connection have the same."""

    @property
    def model(self) -> str:
        """The model that was asked for."""
        if self.protocol == "gemini":
            return self.path.rpartition("/")[2].partition(":")[0]
        return self.body["model"]


Outcome = Callable[["FaultServer", web.Request, Call], Awaitable[web.StreamResponse]]


def answer(text: str = ANSWER, ending: Ending = "stop") -> Outcome:
    """A well-formed answer of the protocol that was called, with this text and ending."""

    async def respond(server: FaultServer, request: web.Request, call: Call) -> web.Response:
        return web.json_response(_ANSWERS[call.protocol](text, ending, call), headers=_LIMITS)

    return respond


def answers(text_of: Callable[[Call], str]) -> Outcome:
    """Well-formed answers whose text depends on the call."""

    async def respond(server: FaultServer, request: web.Request, call: Call) -> web.StreamResponse:
        return await answer(text_of(call))(server, request, call)

    return respond


def by_prompt() -> Outcome:
    """Well-formed answers that depend on what is asked, and on nothing else."""

    def text_of(call: Call) -> str:
        digest = hashlib.sha256(json.dumps(call.body, sort_keys=True).encode()).digest()
        return json.dumps({"prob_true": round(0.05 + 0.9 * digest[0] / 255, 4)})

    return answers(text_of)


def status(
    code: int, message: str = "as the test ordered", headers: Mapping[str, str] | None = None
) -> Outcome:
    """An error in the form of the protocol that was called."""

    async def respond(server: FaultServer, request: web.Request, call: Call) -> web.Response:
        error = {"message": message, "type": "ordered", "code": code}
        return web.json_response({"error": error}, status=code, headers=headers)

    return respond


def raw(
    payload: bytes,
    code: int = 200,
    content_type: str = "application/json",
    headers: Mapping[str, str] | None = None,
) -> Outcome:
    """Exactly these bytes as the body."""

    async def respond(server: FaultServer, request: web.Request, call: Call) -> web.Response:
        return web.Response(body=payload, status=code, content_type=content_type, headers=headers)

    return respond


def document(value: Any, code: int = 200, headers: Mapping[str, str] | None = None) -> Outcome:
    """Exactly this JSON as the body."""
    return raw(json.dumps(value).encode(), code, headers=headers)


def empty() -> Outcome:
    """Status 200 and nothing else."""
    return raw(b"")


def not_json() -> Outcome:
    """Status 200 and the page of some gateway."""
    return raw(b"<html><body>Bad gateway</body></html>", content_type="text/html")


def redirect(location: str) -> Outcome:
    """A redirect."""
    return raw(b"", 307, headers={"Location": location})


def reset() -> Outcome:
    """The connection is reset before a byte of the answer."""

    async def respond(server: FaultServer, request: web.Request, call: Call) -> web.Response:
        assert request.transport is not None
        # Lingering for no time at all makes the kernel send RST instead of FIN.
        request.transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
        request.transport.abort()
        return web.Response()

    return respond


def cut_off() -> Outcome:
    """The connection closes in the middle of the body."""
    return _write(b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"id": ')


def gibberish() -> Outcome:
    """Something that isn't HTTP."""
    return _write(b"220 mail.example.invalid ESMTP\r\n\r\n")


def silence() -> Outcome:
    """No answer for as long as the server lives."""

    async def respond(server: FaultServer, request: web.Request, call: Call) -> web.Response:
        await server.closing.wait()
        return web.Response(status=500)

    return respond


def together(count: int, then: Outcome) -> Outcome:
    """No answer to anybody until `count` calls are waiting at once."""
    waiting = 0
    complete = asyncio.Event()

    async def respond(server: FaultServer, request: web.Request, call: Call) -> web.StreamResponse:
        nonlocal waiting
        waiting += 1
        if waiting == count:
            complete.set()
        await complete.wait()
        return await then(server, request, call)

    return respond


class FaultServer:
    """The server; a context manager."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._script: deque[Outcome] = deque()
        self._standing = answer()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._ready = threading.Event()
        self._port = 0
        self.closing = asyncio.Event()

    def __enter__(self) -> FaultServer:
        self._thread.start()
        assert self._ready.wait(timeout=120), "the fault server didn't start"
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self.closing.set)
        self._thread.join(timeout=120)
        assert not self._thread.is_alive(), "the fault server didn't stop"

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        return f"http://127.0.0.1:{self._port}"

    def url(self, protocol: Protocol) -> str:
        """The base URL for a provider's adapter."""
        return self.origin + BASE_PATHS[protocol]

    def script(self, *outcomes: Outcome) -> None:
        """What the next calls get, one each."""
        self._script.extend(outcomes)

    def always(self, outcome: Outcome) -> None:
        """What calls get that the script leaves over."""
        self._standing = outcome

    def held(self, then: Outcome) -> tuple[Outcome, Callable[[], None]]:
        """No answer to anybody until the test says so: the outcome, and how to say so."""
        free = asyncio.Event()

        async def respond(
            server: FaultServer, request: web.Request, call: Call
        ) -> web.StreamResponse:
            await free.wait()
            return await then(server, request, call)

        return respond, lambda: self._loop.call_soon_threadsafe(free.set) and None

    def forget(self) -> None:
        """Be as new, for the next test."""
        self.calls.clear()
        self._script.clear()
        self._standing = answer()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        app = web.Application()
        app.router.add_post("/v1/responses", self._handler("openai"))
        app.router.add_post("/v1/chat/completions", self._handler("openai-compatible"))
        app.router.add_post("/v1/messages", self._handler("anthropic"))
        app.router.add_get("/v1/models", self._handler("openai"))
        # The stable version and the beta have one form.
        for version in ("v1", "v1beta"):
            path = f"/{version}/{{model:.+}}:generateContent"
            app.router.add_post(path, self._handler("gemini"))
        app.router.add_post("/other/{path:.+}", self._handler("other"))
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self._port = runner.addresses[0][1]
        self._ready.set()
        await self.closing.wait()
        await runner.cleanup()

    def _handler(self, protocol: Protocol) -> Callable[[web.Request], Awaitable[Any]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            headers = {name.lower(): value for name, value in request.headers.items()}
            body = await request.json() if request.can_read_body else None
            assert request.transport is not None
            peer = request.transport.get_extra_info("peername")
            call = Call(protocol, request.path, headers, body, len(self.calls), peer)
            self.calls.append(call)
            outcome = self._script.popleft() if self._script else self._standing
            return await outcome(self, request, call)

        return handle


_LIMITS = {"x-ratelimit-remaining-requests": "41", "x-ratelimit-reset-requests": "1s"}


def _write(payload: bytes) -> Outcome:
    async def respond(server: FaultServer, request: web.Request, call: Call) -> web.Response:
        assert isinstance(request.transport, asyncio.Transport)
        request.transport.write(payload)
        request.transport.close()
        return web.Response()

    return respond


def _openai(text: str, ending: Ending, call: Call) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    if ending == "refused":
        part = {"type": "refusal", "refusal": text}
    complete = "incomplete" if ending == "truncated" else "completed"
    message = {
        "type": "message",
        "id": f"msg_{call.number}",
        "role": "assistant",
        "status": complete,
        "content": [part],
    }
    return {
        "id": f"resp_{call.number}",
        "object": "response",
        "created_at": 0,
        "model": f"{call.model}-2026-08-07",
        "status": complete,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if ending == "truncated" else None,
        "output": [{"type": "reasoning", "id": f"rs_{call.number}", "summary": []}, message],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": 50,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": 9,
            "output_tokens_details": {"reasoning_tokens": 2},
            "total_tokens": 59,
        },
    }


def _chat(text: str, ending: Ending, call: Call) -> dict[str, Any]:
    refused = ending == "refused"
    message = {
        "role": "assistant",
        "content": None if refused else text,
        "refusal": text if refused else None,
    }
    finish = "length" if ending == "truncated" else "stop"
    return {
        "id": f"chatcmpl-{call.number}",
        "object": "chat.completion",
        "created": 0,
        "model": f"{call.model}-served",
        "system_fingerprint": "fp_1",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": {"prompt_tokens": 50, "completion_tokens": 9, "total_tokens": 59},
    }


def _anthropic(text: str, ending: Ending, call: Call) -> dict[str, Any]:
    reasons = {"stop": "end_turn", "truncated": "max_tokens", "refused": "refusal"}
    return {
        "id": f"msg_{call.number}",
        "type": "message",
        "role": "assistant",
        "model": f"{call.model}-20261001",
        "content": [{"type": "text", "text": text}],
        "stop_reason": reasons[ending],
        "stop_sequence": None,
        "usage": {
            "input_tokens": 40,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 10,
            "output_tokens": 9,
        },
    }


def _gemini(text: str, ending: Ending, call: Call) -> dict[str, Any]:
    reasons = {"stop": "STOP", "truncated": "MAX_TOKENS", "refused": "SAFETY"}
    parts = [{"text": "Let me think.", "thought": True}, {"text": text}]
    return {
        "candidates": [
            {
                "index": 0,
                "content": {"role": "model", "parts": parts},
                "finishReason": reasons[ending],
            }
        ],
        "usageMetadata": {
            "promptTokenCount": 50,
            "candidatesTokenCount": 7,
            "thoughtsTokenCount": 2,
            "totalTokenCount": 59,
        },
        "modelVersion": f"{call.model}-001",
        "responseId": f"gem-{call.number}",
    }


_ANSWERS: Mapping[Protocol, Callable[[str, Ending, Call], dict[str, Any]]] = {
    "openai": _openai,
    "openai-compatible": _chat,
    "anthropic": _anthropic,
    "gemini": _gemini,
}
