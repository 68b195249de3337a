"""Panels: beliefs over time, what moved and since when."""

from typing import Annotated

from fastapi import APIRouter, Path
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from heretix.accounts import Role
from heretix.store.panels import list_panels, select_panel
from heretix.web.auth import require
from heretix.web.state import App
from heretix.web.templating import page

router = APIRouter(include_in_schema=False, dependencies=[require(Role.READER)])


@router.get("/panels")
def panels(request: Request, app: App) -> Response:
    """List the panels of the store."""
    return page(request, "panels.html", panels=app.store.read(list_panels))


@router.get("/panels/{name}")
def panel(
    request: Request, app: App, name: Annotated[str, Path(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
) -> Response:
    """Show what moved in a panel, and every belief over its waves."""
    # Imported where it is used: what it takes to read a panel would hold up the first page.
    from heretix.report.panel import panel_body
    from heretix.report.share import share_panel
    from heretix.studies.panel import read_panel

    with app.store.snapshot():
        if app.store.read(select_panel, name) is None:
            raise HTTPException(404, f"`{name}` isn't a panel of this store")
        report = read_panel(app.store, name)
    return page(
        request, "panel.html", report=report, shared=share_panel(report), body=panel_body(report)
    )
