"""Models of Acme: an HTTP API of its own."""

from heretix.providers.base import ANSWER_SCHEMA, Endpoint, Reply, Request
from heretix.providers.http import HttpProvider, as_count, as_object, as_text, misshapen


class AcmeProvider(HttpProvider):
    """One call per request. Retries, caching and pacing are the runner's."""

    async def ask(self, request: Request) -> Reply:
        """Answer one request, or raise a `ProviderError`."""
        answer = await self.client.post(
            "/complete",
            {
                "model": request.model,
                "system": request.system,
                "prompt": request.user,
                "max_tokens": request.max_output_tokens,
                "schema": dict(request.answer_schema or ANSWER_SCHEMA),
            },
        )
        text = as_text(answer.body.get("output"))
        if text is None:
            raise misshapen(self.client.target, "an `output`")
        usage = as_object(answer.body.get("usage"))
        return Reply(
            text=text,
            provider_model_id=as_text(answer.body.get("model")),
            tokens_in=as_count(usage.get("in")),
            tokens_out=as_count(usage.get("out")),
        )


ENDPOINT = Endpoint(
    open=lambda opening: AcmeProvider(opening.target),
    base_url="https://api.acme.example/v1",
    key_variable="ACME_API_KEY",
    needs_key=True,
    no_effort=("",),
)
