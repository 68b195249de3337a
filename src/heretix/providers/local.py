"""The embedded model: a GGUF file answered in this process, with no key and no network.

The same request gives the same answer to the last bit, whichever copy of the model serves it and
whatever that copy served before. `_Engine` says what this takes.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import re
import secrets
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from heretix.core.errors import ModelError, RejectedError, ServerError
from heretix.prompts.bank import QUOTE_CHARS
from heretix.providers import catalog, gguf
from heretix.providers.base import ANSWER_SCHEMA, Opening, Reply, Request
from heretix.readouts import (
    SAMPLED,
    TRUTH_TOKEN,
    Logprob,
    dump_logprobs,
    read_top,
    walk_numbers,
)
from heretix.sample import Finish

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from heretix.core.settings import Settings
    from heretix.providers.base import Provider
    from heretix.providers.catalog import ModelId, Options
    from heretix.providers.gguf import LocalModel

DEFAULT_TEMPERATURE: Final = 1.0
"""The model's own distribution, nothing sharpened or cut off: replicates show its real spread."""

CONTEXT_TOKENS: Final = 8192
"""Room for a claim of 10,000 characters: to the small model 2,400 tokens of English, 4,100 of
German, 7,600 of Russian. A copy of it takes 190 MB for this."""

_BATCH_TOKENS: Final = 64
"""Prompts are read in steps of this size; between two steps a call can be given up."""
_BOUNDS: Final[dict[str, dict[str, Any]]] = {
    # Zero and one are answers like others: a model may be certain, and the estimator clamps.
    "prob_true": {"minimum": 0, "maximum": 1, "multipleOf": 0.001},
    # `E03`: not the whole mark that the item stands behind.
    "id": {"maxLength": 3},
}
_A_WORD: Final = 30
"""Letters beyond a quote's limit: near the end of its room a model bends words to fit, and what it
was about to quote rightly would count as made up. Only what stands before the limit is checked."""
_MAX_ITEMS: Final = 2
_ONE_LINE_JSON: Final = {
    "whitespace_flexible": False,
    "key_separator": ": ",
    "item_separator": ", ",
}
_CONTROL_MARK: Final = re.compile(r"<\|[^\s|<>]+\|>")
_FINISHES: Final = {"stop": Finish.STOP, "length": Finish.TRUNCATED}


class _Prompt(NamedTuple):
    """Prompt tokens, read before an answer is written."""

    system: str
    user: str

    @property
    def head(self) -> list[dict[str, str]]:
        """Messages that the prompts of a run have in common."""
        return [{"role": "system", "content": self.system}] if self.system else []

    @property
    def messages(self) -> list[dict[str, str]]:
        return [*self.head, {"role": "user", "content": self.user}]

    def add_answer(self, begun: str) -> list[dict[str, str]]:
        """Messages with the beginning of an answer, if there is one."""
        return [*self.messages, *([{"role": "assistant", "content": begun}] if begun else [])]


@dataclass(frozen=True, slots=True)
class _Outcome:
    text: str
    finish: Finish
    tokens_in: int
    tokens_in_held: int
    """Number of them that it didn't have to read again."""
    tokens_out: int
    logprobs: Sequence[Logprob] = ()
    """Of the last token's alternatives, where they were asked for."""


class LocalProvider:
    """Answers requests with one or more copies of a model, each on a thread of its own."""

    def __init__(self, name: str, *, settings: Settings, servers: int = 2) -> None:
        """Find and check the file of `name`, a known model or a path; it is loaded when asked."""
        try:
            # An extra, and slow to import: only who measures with it pays for it.
            xllamacpp = importlib.import_module("xllamacpp")
        except ImportError as exc:
            raise ModelError(
                f"`local:{name}` needs the embedded engine, which isn't installed: "
                "`uv sync --extra local`, or `pip install '.[local]'` in the clone"
            ) from exc
        model = gguf.resolve(name, settings)
        self._name = model.name
        self._fingerprint = f"{model.sha256[:12]}/xllamacpp-{xllamacpp.__version__}"
        self._to_grammar = xllamacpp.json_schema_to_grammar
        self._engines = [_Engine(model, xllamacpp) for _ in range(servers)]
        self._queue = _Queue(self._engines)
        self.max_concurrency = 2 * servers
        """Twice the copies: a copy that is done finds a repeat of the prompt that it holds."""

    @classmethod
    def open(cls, opening: Opening) -> Self:
        return cls(opening.model.file or opening.model.name, settings=opening.settings)

    async def ask(self, request: Request) -> Reply:
        """Answer one request; temperature defaults to `DEFAULT_TEMPERATURE`."""
        # The engine would read the mark as a turn of the conversation, not as text: the claim
        # would no longer be what is measured.
        if found := _CONTROL_MARK.search(f"{request.user}\n{request.system}"):
            raise RejectedError(
                f"`local:{self._name}` can't take a text with the control mark {found[0]!r}; "
                "write the claim without it"
            )
        prompt = _Prompt(request.system, request.user)
        if request.readout != SAMPLED:
            return await self._read_out(request, prompt)
        temperature = DEFAULT_TEMPERATURE if request.temperature is None else request.temperature
        schema = _bound_schema(request.answer_schema or ANSWER_SCHEMA)
        options = {
            "grammar": self._to_grammar(json.dumps({**schema, "x-guidance": _ONE_LINE_JSON})),
            "max_tokens": request.max_output_tokens,
            "seed": request.seed,
            "temperature": temperature,
        }
        async with self._queue.engine_for(prompt) as engine:
            outcome = await engine.answer(prompt, options)
        return self._reply(outcome, outcome.text, outcome.finish, temperature=temperature)

    async def _read_out(self, request: Request, prompt: _Prompt) -> Reply:
        """Tell the log-probabilities of the answer; the copy holds the prompt meanwhile."""
        outcomes: list[_Outcome] = []
        async with self._queue.engine_for(prompt) as engine:

            async def next_tokens(begun: str) -> Sequence[Logprob]:
                outcomes.append(await engine.answer(prompt, _NEXT_TOKEN, begun))
                return outcomes[-1].logprobs

            if request.readout == TRUTH_TOKEN:
                logprobs = await next_tokens("")
            else:
                logprobs = await walk_numbers(next_tokens)
        text = dump_logprobs(request.readout, logprobs)
        last = replace(outcomes[0], tokens_out=len(outcomes))
        return self._reply(last, text, Finish.STOP, temperature=None)

    def _reply(
        self, outcome: _Outcome, text: str, finish: Finish, *, temperature: float | None
    ) -> Reply:
        return Reply(
            text=text,
            finish=finish,
            provider_model_id=self._name,
            fingerprint=self._fingerprint,
            tokens_in=outcome.tokens_in,
            tokens_out=outcome.tokens_out,
            temperature=temperature,
        )

    async def aclose(self) -> None:
        """Give up what is under way, then let go of the copies, their memory and threads."""
        await asyncio.gather(*(engine.aclose() for engine in self._engines))


def _bound_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """`schema` with bounds: probabilities are ones, and lists and texts end.

    A small model that may go on for ever does, and each word costs it dearly. The shared schema
    leaves the bounds of `prob_true` out because other providers reject them.
    """
    brief = dict(schema)
    match schema.get("type"):
        case "array":
            brief = {"maxItems": _MAX_ITEMS, **brief, "items": _bound_schema(schema["items"])}
        case "string":
            brief = {"maxLength": QUOTE_CHARS + _A_WORD, **brief}
        case "object":
            properties = schema.get("properties", {})
            brief["properties"] = {
                name: {**_bound_schema(value), **_BOUNDS.get(name, {})}
                for name, value in properties.items()
            }
    return brief


class _Queue:
    """Gives each call a copy of the model, by preference one that already holds its prompt."""

    def __init__(self, engines: list[_Engine]) -> None:
        self._idle = list(engines)
        self._waiting: list[_Turn] = []
        self._given: dict[_Engine, _Prompt] = {}

    @contextlib.asynccontextmanager
    async def engine_for(self, prompt: _Prompt) -> AsyncIterator[_Engine]:
        loop = asyncio.get_running_loop()
        turn = _Turn(prompt, loop.create_future())
        self._waiting.append(turn)
        # Not at once: calls that start together are seen together.
        loop.call_soon(self._hand_out)
        try:
            engine = await turn.engine
        except asyncio.CancelledError:
            if turn in self._waiting:
                self._waiting.remove(turn)
            elif not turn.engine.cancelled():
                self._take_back(turn.engine.result())
            raise
        try:
            yield engine
        finally:
            self._take_back(engine)

    def _take_back(self, engine: _Engine) -> None:
        self._idle.append(engine)
        self._hand_out()

    def _hand_out(self) -> None:
        while self._idle and self._waiting:
            # The first of the best: calls of equal worth keep their order.
            turn, engine = max(product(self._waiting, self._idle), key=self._rate_pair)
            self._waiting.remove(turn)
            if turn.engine.cancelled():
                continue
            self._idle.remove(engine)
            self._given[engine] = turn.prompt
            turn.engine.set_result(engine)

    def _rate_pair(self, pair: tuple[_Turn, _Engine]) -> int:
        prompt, engine = pair[0].prompt, pair[1]
        return 2 if self._given.get(engine) == prompt else prompt not in self._given.values()


@dataclass(eq=False, slots=True)
class _Turn:
    """A call that waits, and the copy that it will get."""

    prompt: _Prompt
    engine: asyncio.Future[_Engine]


class _Engine:
    """One copy of the model on one thread, answering one call at a time.

    Floating-point sums depend on how a prompt is cut into batches, and the engine's cache of what
    it read last would make the cut depend on the past: answers to the same seed then differ. So
    a prompt is always read in the same three pieces: the system message, the rest, and once more
    the last token, from which the answer starts. Only pieces read that way are used again.
    """

    def __init__(self, model: LocalModel, xllamacpp: Any) -> None:
        self._model = model
        self._xllamacpp = xllamacpp
        self._server: Any = None
        self._held: _Prompt | None = None
        self._winds_back = True
        self._batch_tokens = _BATCH_TOKENS
        self._stop = threading.Event()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="heretix-local")

    async def answer(
        self, prompt: _Prompt, options: Mapping[str, Any], begun: str = ""
    ) -> _Outcome:
        """Answer on the engine's thread, or go on with an answer that was begun for the model.

        A cancelled call is given up at its next step.
        """
        stop = self._stop = threading.Event()
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(
                self._thread, self._answer, prompt, options, stop, begun
            )
        finally:
            stop.set()

    async def aclose(self) -> None:
        """Give up the call under way, unload the model and end the thread."""
        self._stop.set()
        with contextlib.suppress(RuntimeError):  # The thread has ended: closed before.
            await asyncio.get_running_loop().run_in_executor(self._thread, self._unload)
        self._thread.shutdown()

    def _answer(
        self, prompt: _Prompt, options: Mapping[str, Any], stop: threading.Event, begun: str
    ) -> _Outcome:
        if self._server is None:
            self._server = self._load()
        # Until this call has gone well, what the engine holds can't be known.
        held, self._held = self._held, None
        if self._winds_back:
            if held != prompt:
                shares_head = self._read_head(prompt, held, stop)
                self._send(prompt.messages, _READ_ONLY, stop, reuse=shares_head)
            outcome = self._send(prompt.add_answer(begun), options, stop, reuse=True)
            # What was begun may share tokens with what the engine wrote or read after the prompt.
            if outcome.tokens_in_held == outcome.tokens_in - 1 or begun:
                self._held = prompt
                return outcome
            # A kind of model that can't forget just its last token: read it whole, every time.
            self._winds_back = False
        return self._send(prompt.add_answer(begun), options, stop, reuse=False)

    def _read_head(self, prompt: _Prompt, held: _Prompt | None, stop: threading.Event) -> bool:
        """Bring the engine to the end of the system message; False where that can't be done."""
        if not prompt.head:
            return False
        try:
            if held is None or held.system != prompt.system:
                self._send(prompt.head, _READ_ONLY, stop, reuse=False)
            # Winding back may read the head's last token again; so a fresh head does too.
            self._send(prompt.head, _READ_ONLY, stop, reuse=True)
        except RejectedError:
            if stop.is_set():
                raise
            # Some chat templates refuse a conversation without a user.
            return False
        return True

    def _send(
        self,
        messages: list[dict[str, str]],
        options: Mapping[str, Any],
        stop: threading.Event,
        *,
        reuse: bool,
    ) -> _Outcome:
        body = {**_BODY, **options, "messages": messages, "cache_prompt": reuse}
        chunks: list[dict[str, Any]] = []

        def take(chunk: dict[str, Any]) -> bool:
            chunks.append(chunk)
            return stop.is_set()

        try:
            self._server.handle_chat_completions(body, take)
        except (RuntimeError, ValueError) as exc:
            raise RejectedError(f"`local:{self._model.name}` can't read the text: {exc}") from exc
        if stop.is_set():
            raise RejectedError(f"`local:{self._model.name}` gave up: the call was cancelled")
        return _read(chunks, self._model.name)

    def _load(self) -> Any:
        """Make a server that only this process can ask. Python stands still while it loads."""
        params = self._xllamacpp.CommonParams()
        params.model.path = str(self._model.path)
        params.model_alias = {self._model.name}
        params.n_ctx = CONTEXT_TOKENS
        params.fit_params = False
        params.n_batch = params.n_ubatch = self._batch_tokens
        # Several slots or threads would share batches, and so change sums.
        params.n_parallel = 1
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
        # A second cache, of gigabytes, and windows that can't be wound back.
        params.cache_ram_mib = 0
        params.cache_idle_slots = False
        params.swa_full = True
        params.enable_reasoning = 0
        params.reasoning_format = (
            self._xllamacpp.common_reasoning_format.COMMON_REASONING_FORMAT_NONE
        )
        params.verbosity = 0
        params.warmup = False
        params.offline = True
        # The engine always opens a port on the loopback address: nobody else may use it.
        params.api_keys = [secrets.token_hex(32)]
        params.n_threads_http = 1
        params.endpoint_slots = False
        params.ui = False
        try:
            return self._xllamacpp.Server(params)
        except RuntimeError as exc:
            raise RejectedError(
                f"`local:{self._model.name}` can't be loaded by xllamacpp "
                f"{self._xllamacpp.__version__}: the file is of a kind it doesn't know, or memory "
                "is short"
            ) from exc

    def _unload(self) -> None:
        self._server = self._held = None


_BODY: Final[Mapping[str, Any]] = {
    # Only temperature: cutting off the tail of the distribution would narrow the belief.
    "samplers": ["temperature"],
    # Chunks are where a call can be given up.
    "stream": True,
    "return_progress": True,
    "stream_options": {"include_usage": True},
}
_READ_ONLY: Final[Mapping[str, Any]] = {"max_tokens": 0, "temperature": 0}
_NEXT_TOKEN: Final[Mapping[str, Any]] = {
    "max_tokens": 1,
    "temperature": 0,
    "logprobs": True,
    # More than APIs give: the engine sets no bound, and digits are seldom among the first twenty
    # where a small model would rather write something else.
    "top_logprobs": 100,
}


def _read(chunks: list[dict[str, Any]], name: str) -> _Outcome:
    text, finish, usage = "", None, None
    steps: list[dict[str, Any]] = []
    for chunk in chunks:
        if "error" in chunk:
            error, status = chunk["error"], chunk["error"].get("code")
            reason = f"refused: {error.get('message')}"
            if error.get("type") == "exceed_context_size_error":
                reason = (
                    f"reads at most {error['n_ctx']} tokens, got {error['n_prompt_tokens']}; "
                    "shorten the claim or its evidence"
                )
            raise RejectedError(f"`local:{name}` {reason}", status=status)
        usage = chunk.get("usage") or usage
        for choice in chunk.get("choices", ()):
            text += choice["delta"].get("content") or ""
            finish = choice.get("finish_reason") or finish
            steps += (choice.get("logprobs") or {}).get("content") or ()
    if finish is None or usage is None:
        raise ServerError(f"`local:{name}` stopped in the middle of an answer")
    return _Outcome(
        text=text,
        finish=_FINISHES.get(finish, Finish.STOP),
        tokens_in=usage["prompt_tokens"],
        tokens_in_held=usage["prompt_tokens_details"]["cached_tokens"],
        tokens_out=usage["completion_tokens"],
        logprobs=read_top(steps[-1]["top_logprobs"]) if steps else (),
    )


# An embedded model is loaded once, however many measurements of a process ask it at a time.


class SharedModels:
    """Opens providers as `open_provider` does, an embedded model once for all who want it.

    It is loaded by the first call and let go of by the last user. Who else asks changes no answer:
    an embedded model's answer follows from the request alone. Of one event loop.
    """

    def __init__(self, opener: catalog.Opener = catalog.open_provider) -> None:
        self._opener = opener
        self._held: dict[str, _OpenModel] = {}
        self._closing: dict[str, asyncio.Task[None]] = {}

    def open(self, model: ModelId, settings: Settings, *, options: Options) -> Provider:
        """The provider of `model`; the caller closes it, and others go on with what they share."""
        opened = self._opener(model, settings, options=options)
        if model.provider != "local":
            return opened
        name = model.identity
        # A provider that was only opened holds nothing yet: one too many is just forgotten.
        held = self._held.setdefault(name, _OpenModel(opened, after=self._closing.get(name)))
        held.users += 1
        return _SharedProvider(self, name, held)

    async def give_back(self, name: str, held: _OpenModel) -> None:
        """Release one user; the last closes it."""
        held.users -= 1
        if held.users:
            return
        del self._held[name]
        closing = self._closing[name] = asyncio.create_task(self._close(name, held))
        # To its end: whoever opens the model next waits until this one's memory is free.
        await asyncio.shield(closing)

    async def _close(self, name: str, held: _OpenModel) -> None:
        try:
            await held.wait()
            await held.provider.aclose()
        finally:
            if self._closing.get(name) is asyncio.current_task():
                del self._closing[name]


@dataclass(eq=False, slots=True)
class _OpenModel:
    provider: Provider
    after: asyncio.Task[None] | None
    """Call that lets go of the one before it."""
    users: int = 0

    async def wait(self) -> None:
        """Wait until the memory of the one before is free."""
        if self.after is not None:
            await asyncio.wait([self.after])


class _SharedProvider:
    def __init__(self, models: SharedModels, name: str, held: _OpenModel) -> None:
        self._models = models
        self._name = name
        self._held = held
        self._closed = False
        # As if there were nobody else: calls of several users wait for each other.
        self.max_concurrency = held.provider.max_concurrency

    async def ask(self, request: Request) -> Reply:
        """Answer one request, once the model's memory is free."""
        await self._held.wait()
        return await self._held.provider.ask(request)

    async def aclose(self) -> None:
        """Release it. A second time is no harm."""
        if not self._closed:
            self._closed = True
            await self._models.give_back(self._name, self._held)
