"""Whole tables for other tools, sent as they are read."""

from typing import Annotated, Literal

from fastapi import Path
from starlette.requests import Request
from starlette.responses import StreamingResponse

from heretix.report.export import FORMATS, Format, export
from heretix.web.api.problem import refusals
from heretix.web.api.resource import Text, desk_of, resource

__all__ = ["router"]

router = resource("export")


@router.get(
    "/export/{table}.{ending}",
    response_class=StreamingResponse,
    responses={
        200: {"content": {media: {} for media in FORMATS.values()}},
        **refusals(501),
    },
)
def export_table(
    request: Request,
    table: Literal["runs", "samples", "transfers"],
    ending: Annotated[Format, Path(description="JSON Lines, or Parquet.")],
    only: Text = None,
) -> StreamingResponse:
    """A table, one row each. `only` chooses: runs by text, samples by run, transfers by episode."""
    store = desk_of(request).store
    if table == "samples" and only is not None:
        only = store.started(only).run_id
    return StreamingResponse(
        export(store, table, ending, chosen=only),
        media_type=FORMATS[ending],
        headers={
            "content-disposition": f'attachment; filename="{table}.{ending}"',
            "cache-control": "no-store",
        },
    )
