"""A real HTTP server on loopback that speaks the batch protocols of OpenAI and Anthropic.

It takes batches, checks them as the providers do, and keeps them until the test ends them:

    with BatchServer() as server:
        ... submit to server.url("openai") ...
        server.end(lambda entry: answered('{"prob_true": 0.2}'))
        ... collect ...

Any operation can be made to fail, before or after it was carried out:

    server.script("create", status(500), carried_out(reset()))
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import threading
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.parser import BytesParser
from email.policy import HTTP
from typing import Any, Literal

from aiohttp import web

from faultserver import _ANSWERS, ANSWER, Call

Protocol = Literal["openai", "anthropic"]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_BASE_PATHS: Mapping[Protocol, str] = {"openai": "/v1", "anthropic": ""}
_BODY = web.RequestKey("body", object)
_CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")


@dataclass(frozen=True)
class Entry:
    """One request of a batch."""

    custom_id: str
    body: Mapping[str, Any]
    number: int
    """Counts the entries of a batch from 0."""


@dataclass(frozen=True)
class Result:
    """What becomes of an entry."""

    kind: Literal["answered", "errored", "expired", "canceled", "raw", "nothing"]
    text: str = ""


def answered(text: str = ANSWER) -> Result:
    """An answer with this text."""
    return Result("answered", text)


def errored(message: str = "as the test ordered") -> Result:
    """A request that was rejected."""
    return Result("errored", message)


def expired() -> Result:
    """A request that wasn't reached in a day."""
    return Result("expired")


def canceled() -> Result:
    """A request that wasn't reached before the batch was cancelled."""
    return Result("canceled")


def raw(line: str) -> Result:
    """Exactly this line in the results."""
    return Result("raw", line)


def nothing() -> Result:
    """No line at all."""
    return Result("nothing")


@dataclass
class Kept:
    """A batch that was taken."""

    protocol: Protocol
    id: str
    entries: list[Entry]
    created_at: datetime
    metadata: Mapping[str, str] | None = None
    input_file_id: str | None = None
    status: str = "in_progress"
    results: list[tuple[Entry, Result]] = field(default_factory=list)
    problem: str | None = None
    archived: bool = False

    @property
    def ended(self) -> bool:
        return self.status in {"completed", "failed", "expired", "cancelled", "ended"}

    def count(self, *kinds: str) -> int:
        return sum(result.kind in kinds for _, result in self.results)


@dataclass(frozen=True)
class Seen:
    """One request as it came in; header names are in lower case."""

    operation: str
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any
    """Parsed JSON; for an upload, its fields and the file's name and text."""


class BatchServer:
    """The server; a context manager."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.batches: list[Kept] = []
        self.live_calls = 0
        self.page = 100
        """Batches that a page of the list holds at most."""
        self._files: dict[str, tuple[str, str]] = {}
        self._scripts: dict[str, deque[Any]] = defaultdict(deque)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._ready = threading.Event()
        self._port = 0
        self.closing = asyncio.Event()
        self.random = random.Random(5)

    def __enter__(self) -> BatchServer:
        self._thread.start()
        assert self._ready.wait(timeout=120), "the batch server didn't start"
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self.closing.set)
        self._thread.join(timeout=120)
        assert not self._thread.is_alive(), "the batch server didn't stop"

    def url(self, protocol: Protocol) -> str:
        """The base URL for a provider's adapter."""
        return f"http://127.0.0.1:{self._port}{_BASE_PATHS[protocol]}"

    def script(self, operation: str, *outcomes: Any) -> None:
        """What the next calls of an operation get, one each, instead of the real thing.

        Operations: upload, create, list, get, cancel, content, results.
        """
        self._scripts[operation].extend(outcomes)

    def forget(self) -> None:
        """Be as new, for the next test."""
        self.seen.clear()
        self.batches.clear()
        self._files.clear()
        self._scripts.clear()
        self.live_calls = 0
        self.page = 100

    def calls(self, operation: str) -> list[Seen]:
        """The calls of one operation."""
        return [seen for seen in self.seen if seen.operation == operation]

    def end(
        self,
        result_of: Callable[[Entry], Result] = lambda entry: answered(),
        *,
        status: str | None = None,
        problem: str | None = None,
    ) -> None:
        """End all batches that are under way. Results come in another order than requests."""
        for batch in self.batches:
            if batch.ended:
                continue
            final = status or ("cancelled" if batch.status == "cancelling" else "completed")
            batch.status = "ended" if batch.protocol == "anthropic" else final
            batch.problem = problem
            if problem is None:
                batch.results = [(entry, result_of(entry)) for entry in batch.entries]
                self.random.shuffle(batch.results)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        app = web.Application(client_max_size=2**28)
        openai, claude = "/v1/batches", "/v1/messages/batches"
        routes: list[tuple[str, str, str, Handler]] = [
            ("POST", "/v1/files", "upload", self._upload),
            ("GET", "/v1/files/{id}/content", "content", self._content),
            ("POST", openai, "create", self._create_openai),
            ("GET", openai, "list", self._list_openai),
            ("GET", openai + "/{id}", "get", self._get),
            ("POST", openai + "/{id}/cancel", "cancel", self._cancel),
            ("POST", claude, "create", self._create_anthropic),
            ("GET", claude, "list", self._list_anthropic),
            ("GET", claude + "/{id}", "get", self._get),
            ("GET", claude + "/{id}/results", "results", self._results),
            ("POST", claude + "/{id}/cancel", "cancel", self._cancel),
            ("POST", "/v1/responses", "live", self._live),
            ("POST", "/v1/messages", "live", self._live),
        ]
        for method, path, operation, handler in routes:
            app.router.add_route(method, path, self._recorded(operation, handler))
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self._port = runner.addresses[0][1]
        self._ready.set()
        await self.closing.wait()
        await runner.cleanup()

    def _recorded(self, operation: str, handler: Handler) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            body = await self._body(request)
            request[_BODY] = body
            headers = {name.lower(): value for name, value in request.headers.items()}
            self.seen.append(
                Seen(operation, request.method, request.path, dict(request.query), headers, body)
            )
            if self._scripts[operation]:
                outcome = self._scripts[operation].popleft()
                if isinstance(outcome, _CarriedOut):
                    await handler(request)
                    outcome = outcome.outcome
                return await outcome(self, request, None)
            return await handler(request)

        return handle

    async def _body(self, request: web.Request) -> Any:
        payload = await request.read()
        if request.content_type.startswith("multipart/"):
            return _form(request.headers["Content-Type"], payload)
        return json.loads(payload) if payload else None

    async def _upload(self, request: web.Request) -> web.Response:
        body = request[_BODY]
        name, text = body["file"]
        if body.get("purpose") != "batch" or not name.endswith(".jsonl"):
            return _refusal(400, "the purpose must be batch, and the file JSONL")
        identity = f"file-{len(self._files)}"
        self._files[identity] = (name, text)
        size = len(text.encode())
        return web.json_response(
            {
                "id": identity,
                "object": "file",
                "bytes": size,
                "created_at": int(datetime.now(UTC).timestamp()),
                "filename": name,
                "purpose": "batch",
                "status": "processed",
            }
        )

    async def _create_openai(self, request: web.Request) -> web.Response:
        body = request[_BODY]
        if body["completion_window"] != "24h" or body["endpoint"] != "/v1/responses":
            return _refusal(400, "no such window or endpoint")
        _, text = self._files[body["input_file_id"]]
        lines = [json.loads(line) for line in text.splitlines()]
        batch = self._keep(
            "openai",
            [(line["custom_id"], line["body"]) for line in lines],
            metadata=body.get("metadata"),
            input_file_id=body["input_file_id"],
        )
        ways = {(line["method"], line["url"]) for line in lines}
        models = {line["body"]["model"] for line in lines}
        ids = {line["custom_id"] for line in lines}
        if ways != {("POST", "/v1/responses")} or len(models) != 1 or len(ids) != len(lines):
            batch.status, batch.problem = "failed", "a line isn't what it must be"
        return web.json_response(_openai_batch(batch))

    async def _create_anthropic(self, request: web.Request) -> web.Response:
        entries = [(item["custom_id"], item["params"]) for item in request[_BODY]["requests"]]
        ids = [custom_id for custom_id, _ in entries]
        if len(set(ids)) != len(ids) or not all(map(_CUSTOM_ID.fullmatch, ids)):
            return _refusal(400, "a custom_id isn't what it must be")
        return web.json_response(_anthropic_batch(self._keep("anthropic", entries)))

    def _keep(
        self, protocol: Protocol, entries: list[tuple[str, Mapping[str, Any]]], **more: Any
    ) -> Kept:
        kept = [Entry(custom_id, body, n) for n, (custom_id, body) in enumerate(entries)]
        prefix = "batch" if protocol == "openai" else "msgbatch"
        identity = f"{prefix}_{len(self.batches)}"
        batch = Kept(protocol, identity, kept, datetime.now(UTC), **more)
        self.batches.append(batch)
        return batch

    async def _list_openai(self, request: web.Request) -> web.Response:
        page, more = self._page("openai", request, "after")
        return web.json_response(
            {"object": "list", "data": [_openai_batch(b) for b in page], "has_more": more}
        )

    async def _list_anthropic(self, request: web.Request) -> web.Response:
        page, more = self._page("anthropic", request, "after_id")
        return web.json_response(
            {
                "data": [_anthropic_batch(b) for b in page],
                "has_more": more,
                "first_id": page[0].id if page else None,
                "last_id": page[-1].id if page else None,
            }
        )

    def _page(
        self, protocol: Protocol, request: web.Request, cursor: str
    ) -> tuple[list[Kept], bool]:
        batches = [b for b in reversed(self.batches) if b.protocol == protocol]
        after = request.query.get(cursor)
        start = 1 + next(n for n, b in enumerate(batches) if b.id == after) if after else 0
        limit = min(self.page, int(request.query.get("limit", 20)))
        return batches[start : start + limit], len(batches) > start + limit

    async def _get(self, request: web.Request) -> web.Response:
        batch = self._find(request)
        if batch is None:
            return _refusal(404, "no such batch")
        shape = _openai_batch if batch.protocol == "openai" else _anthropic_batch
        return web.json_response(shape(batch))

    async def _cancel(self, request: web.Request) -> web.Response:
        batch = self._find(request)
        if batch is None:
            return _refusal(404, "no such batch")
        if batch.ended:
            return _refusal(409 if batch.protocol == "openai" else 400, "it has ended already")
        batch.status = "cancelling" if batch.protocol == "openai" else "canceling"
        return await self._get(request)

    async def _content(self, request: web.Request) -> web.Response:
        kind, _, identity = request.match_info["id"].partition("-")
        batch = next((b for b in self.batches if b.id == identity), None)
        if batch is None or batch.archived:
            return _refusal(404, "no such file")
        lines = [
            _openai_line(entry, result)
            for entry, result in batch.results
            if (result.kind in {"answered", "raw"}) == (kind == "output")
            and result.kind != "nothing"
        ]
        return web.Response(text="".join(line + "\n" for line in lines))

    async def _results(self, request: web.Request) -> web.Response:
        batch = self._find(request)
        if batch is None or not batch.ended or batch.archived:
            return _refusal(404, "no such results")
        lines = [_anthropic_line(e, r) for e, r in batch.results if r.kind != "nothing"]
        return web.Response(text="".join(line + "\n" for line in lines))

    async def _live(self, request: web.Request) -> web.Response:
        self.live_calls += 1
        protocol: Protocol = "openai" if request.path == "/v1/responses" else "anthropic"
        return web.json_response(_answer(protocol, request[_BODY], self.live_calls, ANSWER))

    def _find(self, request: web.Request) -> Kept | None:
        return next((b for b in self.batches if b.id == request.match_info["id"]), None)


@dataclass(frozen=True)
class _CarriedOut:
    outcome: Any


def carried_out(outcome: Any) -> _CarriedOut:
    """The operation is carried out, but the caller gets this outcome instead of the answer."""
    return _CarriedOut(outcome)


def _form(content_type: str, payload: bytes) -> dict[str, Any]:
    """The fields of an upload; a file is its name and text."""
    # Not aiohttp's own reader: it warns of itself, now and then, and warnings are errors here.
    head = f"Content-Type: {content_type}\r\n\r\n".encode()
    form: dict[str, Any] = {}
    for part in BytesParser(policy=HTTP).parsebytes(head + payload).iter_parts():
        name = part.get_param("name", header="content-disposition")
        text = part.get_payload(decode=True).decode()
        filename = part.get_filename()
        form[str(name)] = text if filename is None else (filename, text)
    return form


def _refusal(status: int, message: str) -> web.Response:
    error = {"type": "invalid_request_error", "message": message}
    return web.json_response({"type": "error", "error": error}, status=status)


def _answer(protocol: Protocol, body: Any, number: int, text: str) -> dict[str, Any]:
    return _ANSWERS[protocol](text, "stop", Call(protocol, "", {}, body, number, ("", 0)))


def _seconds(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp())


def _openai_batch(batch: Kept) -> dict[str, Any]:
    ended_at = _seconds(batch.created_at + timedelta(hours=1))
    has_output = batch.ended and batch.count("answered", "raw")
    has_errors = batch.ended and batch.count("errored", "expired", "canceled")
    errors = {"object": "list", "data": [{"code": "bad", "message": batch.problem, "line": 1}]}
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": "/v1/responses",
        "errors": errors if batch.problem else None,
        "input_file_id": batch.input_file_id,
        "completion_window": "24h",
        "status": batch.status,
        "output_file_id": f"output-{batch.id}" if has_output else None,
        "error_file_id": f"error-{batch.id}" if has_errors else None,
        "created_at": _seconds(batch.created_at),
        "expires_at": _seconds(batch.created_at + timedelta(days=1)),
        "completed_at": ended_at if batch.status == "completed" else None,
        "expired_at": ended_at if batch.status == "expired" else None,
        "cancelled_at": ended_at if batch.status == "cancelled" else None,
        "failed_at": ended_at if batch.status == "failed" else None,
        "request_counts": {
            "total": len(batch.entries),
            "completed": batch.count("answered", "raw"),
            "failed": batch.count("errored", "expired", "canceled"),
        },
        "metadata": batch.metadata,
    }


def _anthropic_batch(batch: Kept) -> dict[str, Any]:
    def text(moment: datetime) -> str:
        return moment.isoformat().replace("+00:00", "Z")

    gone = batch.created_at + timedelta(days=29)
    results = f"https://elsewhere.invalid/v1/messages/batches/{batch.id}/results"
    return {
        "id": batch.id,
        "type": "message_batch",
        "processing_status": batch.status,
        "request_counts": {
            "processing": 0 if batch.ended else len(batch.entries),
            "succeeded": batch.count("answered", "raw"),
            "errored": batch.count("errored"),
            "canceled": batch.count("canceled"),
            "expired": batch.count("expired", "nothing"),
        },
        "created_at": text(batch.created_at),
        "expires_at": text(batch.created_at + timedelta(days=1)),
        "ended_at": text(batch.created_at + timedelta(hours=1)) if batch.ended else None,
        "cancel_initiated_at": None,
        "archived_at": text(gone) if batch.archived else None,
        "results_url": results if batch.ended and not batch.archived else None,
    }


def _openai_line(entry: Entry, result: Result) -> str:
    if result.kind == "raw":
        return result.text
    response: dict[str, Any] | None = None
    error = None
    if result.kind == "answered":
        body = _answer("openai", entry.body, entry.number, result.text)
        response = {"status_code": 200, "request_id": f"req_{entry.number}", "body": body}
    elif result.kind == "errored":
        body = {"error": {"message": result.text, "type": "invalid_request_error", "code": None}}
        response = {"status_code": 400, "request_id": f"req_{entry.number}", "body": body}
    elif result.kind == "expired":
        error = {"code": "batch_expired", "message": "The window of the batch closed before."}
    else:
        error = {"code": "batch_cancelled", "message": "The batch was cancelled before."}
    line = {"id": f"batch_req_{entry.number}", "custom_id": entry.custom_id}
    return json.dumps({**line, "response": response, "error": error})


def _anthropic_line(entry: Entry, result: Result) -> str:
    if result.kind == "raw":
        return result.text
    outcome: dict[str, Any] = {"type": result.kind}
    if result.kind == "answered":
        message = _answer("anthropic", entry.body, entry.number, result.text)
        outcome = {"type": "succeeded", "message": message}
    elif result.kind == "errored":
        error = {"type": "invalid_request_error", "message": result.text}
        outcome["error"] = {"type": "error", "error": error, "request_id": "req_1"}
    return json.dumps({"custom_id": entry.custom_id, "result": outcome})
