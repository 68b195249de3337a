"""Moves as the web makes them: fields from JSON or a form, then the call or a job that measures."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

from fastapi import Path
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic import Field as ModelField

from heretix.core.canonical import encode, sha256_hex
from heretix.core.errors import ConfigError, RecordError, RefusedError
from heretix.economy.ledger import Status, parse_amount
from heretix.jobs import EpisodeRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from heretix.economy.episode.state import Episode
    from heretix.economy.judging.workflow import Proposal
    from heretix.economy.moves import Field, Made, Move
    from heretix.jobs import Job
    from heretix.web.auth import Visit
    from heretix.web.state import AppState

_T = TypeVar("_T")
EpisodeId = Annotated[str, Path(pattern=r"^[0-9A-Za-z][0-9A-Za-z_-]*$", max_length=100)]
# Types by the kind of a field; a choice has its own, and all others are text.
_KINDS: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("amount", "bond", "whole"), int),
    "flag": bool,
    "yes_no": bool | None,
    "json": dict[str, Any] | None,
}
_YES_NO: Final = {"": None, "yes": "true", "no": "false"}


def find_episode(app: AppState, episode_id: str) -> Episode:
    """Load an episode that is there."""
    return read_episode(app.exchange.episode, episode_id)


def read_episode(read: Callable[[str], _T], episode_id: str) -> _T:
    """Read of an episode; one that isn't there can't be found: another thing than refused."""
    try:
        return read(episode_id)
    except RefusedError as exc:
        if exc.status != Status.UNKNOWN_EPISODE.value:
            raise
        raise RecordError(str(exc)) from exc


def make_move(
    app: AppState, visit: Visit, move: Move, episode_id: str, given: Mapping[str, Any], key: str
) -> Made:
    """Make a move at once, and write into the audit log who made it, and from where."""
    find_episode(app, episode_id)
    made = move.run(app.actor(visit.name, key), episode_id, given)
    app.people.audit.write(
        f"episode.{move.name}", by=visit.person, subject=episode_id, address=visit.address
    )
    return made


def submit_move(
    app: AppState, visit: Visit, move: Move, episode_id: str, given: Mapping[str, Any], key: str
) -> Job:
    """Submit a move that measures as a job; what the rules refuse is refused before."""
    assert visit.person is not None, "moves have a role"
    assert move.plan is not None, "a move that is made at once is no job"
    job_key = _job_key(move.name, episode_id, key)
    # First: by now it may have done what it was begun for, and the rules would refuse it.
    if (known := app.jobs.find_by_key(visit.person, job_key)) is not None:
        return known
    find_episode(app, episode_id)
    step = move.plan(app.actor(visit.name), episode_id)
    request = EpisodeRequest(
        move=move.name,  # type: ignore[arg-type]
        claim=step.claim,
        models=step.models,
        episode=episode_id,
        stage=step.stage,
        final=given["final"],
        confirmed=given.get("ground_confirmed"),
    )
    return app.jobs.submit(visit.person, request, key=job_key, address=visit.address)


def submit_draft(app: AppState, visit: Visit, proposal: Proposal, *, opens: bool, key: str) -> Job:
    """Submit the measurement of c₀; then the episode is written down and, if it `opens`, opened."""
    assert visit.person is not None, "moves have a role"
    app.actor(visit.name).workflow.check(proposal)
    request = EpisodeRequest(
        move="draft",
        claim=proposal.claim,
        models=proposal.models,
        proposal=encode(proposal),
        opens=opens,
    )
    return app.jobs.submit(visit.person, request, key=_job_key("draft", key), address=visit.address)


def _job_key(*parts: str) -> str:
    """Make a key among those of all jobs of a person: another move is another job."""
    return sha256_hex(" ".join(parts).encode())


@cache
def body_model(move: Move) -> type[BaseModel]:
    """Make the model of a move's fields, as the API takes and documents them."""
    given = [field for field in move.fields if field.kind != "confirm"]
    columns: dict[str, Any] = {field.name: _column(field) for field in given}
    config = ConfigDict(extra="forbid", frozen=True)
    return create_model(move.schema, __config__=config, __doc__=move.schema_help, **columns)


def _column(field: Field) -> tuple[Any, Any]:
    kind = field.choices if field.kind == "choice" else _KINDS.get(field.kind, str)
    options: dict[str, Any] = {"description": field.help or None}
    if kind is int:
        options |= {"ge": field.least, "le": field.most, "strict": True}
    elif kind is str:
        options["pattern"] = field.pattern
    if not field.required:
        options["default"] = False if field.kind == "flag" else None
    return kind, ModelField(**options)


def read_form(move: Move, data: Mapping[str, Any], currency: str) -> dict[str, Any]:
    """Read a move's fields from a form; what is wrong is told as it is of JSON."""
    texts: dict[str, str] = {}
    for field in move.fields:
        value = data.get(field.label)
        text = value if isinstance(value, str) else None
        match field.kind:
            case "confirm":
                if not text:
                    raise ConfigError(f"`{field.label}` must be ticked: {field.help}")
                continue
            case "bond" if text is not None:
                text = str(parse_amount(text[:30], currency, name=field.label, most=field.most))
            case "flag":
                text = "true" if text else None
            case "yes_no":
                text = _YES_NO.get(text or "", text)
            case _:
                pass
        if text is not None:
            texts[field.name] = text
    try:
        given = body_model(move).model_validate_strings(texts)
    except ValidationError as exc:
        found = exc.errors(include_url=False)
        raise RequestValidationError([{**e, "loc": ("body", *e["loc"])} for e in found]) from exc
    return given.model_dump()
