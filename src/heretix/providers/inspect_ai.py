"""Models that inspect_ai knows, asked through its model API: `inspect:openai/gpt-5`.

Inside an eval the model that is evaluated answers, with the settings that it was opened with.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from heretix.core.errors import MissingPartError, ModelError, ServerError
from heretix.providers.base import ANSWER_SCHEMA, Opening, Reply, Request
from heretix.sample import Finish

if TYPE_CHECKING:
    from inspect_ai.model import ChatMessage, GenerateConfig, Model, ModelOutput

evaluated: Final[ContextVar[Model | None]] = ContextVar("evaluated", default=None)
"""The model of the eval that asks; it stands in for one of its name."""
_FINISHES: Final = {
    "max_tokens": Finish.TRUNCATED,
    "model_length": Finish.TRUNCATED,
    "content_filter": Finish.REFUSED,
}


def open_model(opening: Opening) -> InspectProvider:
    """Make a model ready that inspect_ai names, or the one that is being evaluated."""
    try:
        from inspect_ai.model import get_model
    except ImportError as exc:
        raise MissingPartError(
            "`inspect:` models need inspect_ai, which isn't installed: `uv sync --extra inspect`, "
            "or `pip install '.[inspect]'` in the clone"
        ) from exc
    model = evaluated.get()
    if model is None:
        try:
            model = get_model(opening.model.name)
        except Exception as exc:
            raise ModelError(f"`{opening.model}` can't be opened by inspect_ai: {exc}") from exc
    return InspectProvider(model)


class InspectProvider:
    """One call per request. Retries, caching and pacing are the runner's."""

    def __init__(self, model: Model) -> None:
        self._model = model

    @property
    def max_concurrency(self) -> int:
        """The calls that inspect_ai lets through to this model at a time."""
        return self._model.api.max_connections()

    async def ask(self, request: Request) -> Reply:
        """Answer one request, or raise a `ProviderError`."""
        from inspect_ai.model import ChatMessageSystem, ChatMessageUser

        messages: list[ChatMessage] = [
            ChatMessageSystem(content=request.system),
            ChatMessageUser(content=request.user),
        ]
        try:
            output = await self._model.generate(messages, config=_config_of(request))
        except Exception as exc:
            raise ServerError(f"`{self._model}` failed: {type(exc).__name__}: {exc}") from exc
        if output.error is not None:
            raise ServerError(f"`{self._model}` failed: {output.error}")
        return _reply_of(output)

    async def aclose(self) -> None:
        """Leave the model to inspect_ai, which opened it."""


def _config_of(request: Request) -> GenerateConfig:
    from inspect_ai.model import GenerateConfig, ResponseSchema
    from inspect_ai.util import JSONSchema

    schema: Any = dict(request.answer_schema or ANSWER_SCHEMA)
    return GenerateConfig(
        max_tokens=request.max_output_tokens,
        temperature=request.temperature,
        # Nothing is retried or cached there: each call is counted and kept here.
        max_retries=0,
        cache=False,
        response_schema=ResponseSchema(
            name="belief", json_schema=JSONSchema.model_validate(schema), strict=True
        ),
    )


def _reply_of(output: ModelOutput) -> Reply:
    usage = output.usage
    return Reply(
        text=output.completion,
        finish=_FINISHES.get(output.stop_reason, Finish.STOP),
        provider_model_id=output.model or None,
        response_id=output.response_id,
        tokens_in=usage.input_tokens if usage else None,
        tokens_out=usage.output_tokens if usage else None,
    )
