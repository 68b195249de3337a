"""Dependencies that endpoints declare: the app's state, a person by their role, ids."""

from typing import Annotated

from fastapi import Depends, Path
from starlette.requests import Request

from heretix.accounts import Person, Role
from heretix.web.auth import require
from heretix.web.state import AppState, app_state


async def _app_state(request: Request) -> AppState:
    # A coroutine: the framework would run a plain function in a thread.
    return app_state(request)


App = Annotated[AppState, Depends(_app_state)]
Reader = Annotated[Person, require(Role.READER)]
Explorer = Annotated[Person, require(Role.EXPLORER)]
Operator = Annotated[Person, require(Role.OPERATOR)]
EpisodeId = Annotated[str, Path(pattern=r"^[0-9A-Za-z][0-9A-Za-z_-]*$", max_length=100)]
