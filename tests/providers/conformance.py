"""The conformance suite of HTTP providers: what every adapter makes of real answers and faults.

Inherit from `ProviderConformance`, describe the provider, and pytest runs the rest. Authors of
plug-ins copy this file and `tests/faultserver.py` beside their tests:

    class TestAcme(ProviderConformance):
        name, key_variable, base_path = "acme", "ACME_API_KEY", "/other"
        requests = (Request(model="small", system="", user="So?", max_output_tokens=64),)

        def open(self, target):
            return AcmeProvider(target)

        def answer(self, text, ending="stop"):
            return document({"output": text, "usage": {"in": 50, "out": 9}})
"""

import logging
import socket
from contextlib import aclosing

import aiohttp
import pytest

from faultserver import (
    ANSWER,
    FaultServer,
    cut_off,
    document,
    empty,
    gibberish,
    not_json,
    raw,
    redirect,
    reset,
    silence,
    status,
)
from faultserver import answer as standard_answer
from heretix.core.errors import (
    CallTimeoutError,
    ConnectionFailedError,
    ProviderError,
    RateLimitedError,
    RejectedError,
    ServerError,
)
from heretix.providers.http import Target
from heretix.sample import Finish

KEY = "sk-a-secret-that-must-not-be-seen"


def chain(exc):
    """An exception and all that it was raised from."""
    while exc is not None:
        yield exc
        exc = exc.__cause__ or exc.__context__


class ProviderConformance:
    """Describe a provider in a subclass; a test that can't hold for it is overridden there."""

    name: str
    """The provider's, as messages name it."""
    key_variable: str
    base_path = ""
    """Of the provider's address, under the server that is started here; `/other` takes any path."""
    requests = ()
    """What the official SDK is made to send too; the first is sent in all other tests."""
    compared_headers = ("authorization", "content-type")
    endings = ("truncated", "refused")
    """How answers of this protocol can end, besides as they should."""
    numbers_answers = True
    """Each answer has an id, which ends in 0 for the first one here."""

    def open(self, target):
        """The adapter."""
        raise NotImplementedError

    def answer(self, text=ANSWER, ending="stop"):
        """A well-formed answer of 50 tokens in and 9 out, as the server sends it."""
        return standard_answer(text, ending)

    async def ask_sdk(self, base_url, request):
        """Send `request` by the official SDK; the text of its answer."""
        pytest.skip("no official SDK to compare with")

    def spelled(self, body):
        """The SDK's body in the spelling that is documented."""
        return body

    @pytest.fixture(scope="class")
    @classmethod
    def running(cls):
        """One server for all tests of a provider."""
        with FaultServer() as server:
            yield server

    @pytest.fixture
    def server(self, running):
        """The server, which remembers nothing."""
        running.forget()
        running.always(self.answer())
        return running

    async def ask(self, origin, request=None, *, timeout_s=120.0):
        """Ask once, over a connection of its own."""
        target = Target(
            provider=self.name,
            base_url=f"{origin}{self.base_path}",
            key=KEY,
            key_variable=self.key_variable,
            timeout_s=timeout_s,
        )
        async with aclosing(self.open(target)) as provider:
            assert provider.max_concurrency >= 1
            return await provider.ask(request or self.requests[0])

    async def failure_of(self, server, outcome, **options):
        """The error that a call ends with when this comes back."""
        server.script(outcome)
        with pytest.raises(ProviderError) as caught:
            await self.ask(server.origin, **options)
        return caught.value

    # What is sent

    async def test_the_sdk_sends_the_same(self, server):
        """Path, body and headers are those of the official SDK, field for field."""
        for request in self.requests:
            server.forget()
            server.always(self.answer())
            reply = await self.ask(server.origin, request)
            text = await self.ask_sdk(f"{server.origin}{self.base_path}", request)
            ours, oracle = server.calls
            assert (ours.path, ours.body) == (oracle.path, self.spelled(oracle.body))
            for header in self.compared_headers:
                assert ours.headers.get(header) == oracle.headers.get(header)
            assert reply.text == text
            sent = request.temperature if "temperature" in str(ours.body) else None
            assert reply.temperature == sent

    # What is made of an answer

    async def test_an_answer_arrives_whole(self, server):
        """The text, who answered, and what it cost."""
        reply = await self.ask(server.origin)
        assert (reply.text, reply.finish) == (ANSWER, Finish.STOP)
        assert (reply.tokens_in, reply.tokens_out) == (50, 9)
        assert reply.provider_model_id.startswith(self.requests[0].model)
        assert not self.numbers_answers or reply.response_id.endswith("0")
        assert reply.temperature is None

    @pytest.mark.parametrize(
        "text", ["", " \n", "```json\n{}\n```", "I'd say 70%.", '{"prob_true":']
    )
    async def test_text_is_left_as_it_came(self, server, text):
        """Whatever the model wrote is passed on untouched: compliance is judged elsewhere."""
        server.script(self.answer(text))
        reply = await self.ask(server.origin)
        assert (reply.text, reply.finish) == (text, Finish.STOP)

    @pytest.mark.parametrize(
        ("ending", "text", "finish"),
        [("truncated", '{"prob_', Finish.TRUNCATED), ("refused", "I won't.", Finish.REFUSED)],
    )
    async def test_another_ending_says_so(self, server, ending, text, finish):
        """Running out of tokens and a refusal are answers, not errors; their words are kept."""
        if ending not in self.endings:
            pytest.skip("the protocol doesn't tell")
        server.script(self.answer(text, ending))
        reply = await self.ask(server.origin)
        assert (reply.text, reply.finish) == (text, finish)

    # What is made of a fault

    @pytest.mark.parametrize(
        ("code", "error"),
        [
            *((code, RejectedError) for code in (400, 401, 402, 403, 404, 413, 422)),
            *((code, ServerError) for code in (408, 409, 425, 500, 503, 529)),
            (429, RateLimitedError),
        ],
    )
    async def test_each_status_has_its_error(self, server, code, error):
        """A status decides whether the call is worth another try; the provider's words are kept."""
        failure = await self.failure_of(server, status(code, "the provider's own words"))
        assert type(failure) is error
        assert failure.status == code
        assert "the provider's own words" in str(failure)
        assert f"`{self.name}`" in str(failure)

    @pytest.mark.parametrize("code", [401, 403])
    async def test_a_refused_key_names_its_variable(self, server, code):
        """The message says which variable to look at."""
        failure = await self.failure_of(server, status(code, "no"))
        assert f"check {self.key_variable}" in str(failure)

    @pytest.mark.parametrize(
        "outcome",
        [
            empty(),
            not_json(),
            raw(b"\xff\xfe\x00"),
            document([1]),
            document(7),
            raw(b"[" * 200_000),
        ],
        ids=["empty", "page", "bytes", "list", "number", "deep"],
    )
    async def test_a_broken_gateway_is_worth_another_try(self, server, outcome):
        """Status 200 with a body that isn't a JSON object is the server's failure."""
        failure = await self.failure_of(server, outcome)
        assert type(failure) is ServerError
        assert failure.status == 200

    async def test_an_answer_of_another_protocol_is_worth_another_try(self, server):
        """JSON without what the protocol promises is an error, never an empty answer."""
        failure = await self.failure_of(server, document({"id": "1", "object": "surprise"}))
        assert type(failure) is ServerError
        assert "`base_url`" in str(failure)

    @pytest.mark.parametrize("outcome", [reset(), cut_off()], ids=["reset", "cut_off"])
    async def test_a_broken_connection_is_worth_another_try(self, server, outcome):
        """A connection that breaks before or within the answer is no answer."""
        failure = await self.failure_of(server, outcome)
        assert type(failure) is ConnectionFailedError
        assert isinstance(failure.__cause__, aiohttp.ClientError)

    @pytest.mark.timeout(60)
    async def test_silence_ends_at_the_timeout(self, server):
        """A server that never answers is left after `timeout_s`."""
        failure = await self.failure_of(server, silence(), timeout_s=0.05)
        assert type(failure) is CallTimeoutError
        assert "0.05 s" in str(failure)

    async def test_no_server_is_a_failed_connection(self):
        """Nobody listening is worth another try: servers restart."""
        # Bound and not listening: nobody else is given the port meanwhile.
        with socket.socket() as kept:
            kept.bind(("127.0.0.1", 0))
            with pytest.raises(ConnectionFailedError, match="`base_url`"):
                await self.ask(f"http://127.0.0.1:{kept.getsockname()[1]}")

    @pytest.mark.parametrize(
        ("headers", "wait_s"),
        [
            ({"Retry-After": "7"}, 7.0),
            (
                # A date is counted by the server's own clock.
                {
                    "Date": "Sun, 15 Nov 2026 20:00:00 GMT",
                    "Retry-After": "Sun, 15 Nov 2026 20:01:30 GMT",
                },
                90.0,
            ),
        ],
        ids=["seconds", "date"],
    )
    async def test_a_wait_is_kept(self, server, headers, wait_s):
        """`Retry-After` reaches the runner."""
        failure = await self.failure_of(server, status(429, headers=headers))
        assert failure.retry_after_s == wait_s

    # Secrets

    @pytest.mark.parametrize(
        "outcome",
        [
            status(400, f"bad key {KEY}"),
            status(401, "x" * 280 + KEY),
            status(503, f"bad key {KEY}"),
            raw(f"<p>{KEY}".encode()),
            raw(f"<p>{KEY}".encode(), 502),
            document({"detail": KEY}, 400),
            redirect(f"http://h/?key={KEY}"),
            document({"error": {"message": KEY}, "status": "failed"}),
            gibberish(),
            cut_off(),
            reset(),
        ],
    )
    async def test_the_key_is_never_shown(self, server, outcome, caplog):
        """Nothing printable of a failure holds the key, even if the server repeats it."""
        caplog.set_level(logging.DEBUG)
        failure = await self.failure_of(server, outcome)
        assert KEY in str(server.calls[0].headers), "the key was sent, or the test shows nothing"
        for link in chain(failure):
            assert KEY[:12] not in f"{link} {link!r} {link.args} {vars(link)}"
        assert KEY not in caplog.text
