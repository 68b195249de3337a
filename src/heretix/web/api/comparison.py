"""Two runs against each other."""

from dataclasses import asdict
from typing import Annotated, cast

from fastapi import Query
from pydantic import BaseModel
from starlette.requests import Request

from heretix.belief.paired import PairedDifference, UnpairedDifference
from heretix.measurement.compare import Comparison, compare
from heretix.web.api.resource import desk_of, resource

__all__ = ["router"]

router = resource("compare")

RefQuery = Annotated[str, Query(pattern=r"^[0-9A-Za-z][0-9A-Za-z_-]*$", max_length=100)]


class ComparisonView(BaseModel):
    """The difference between two beliefs, B minus A, with its interval."""

    a: str
    b: str
    paired: bool
    difference: PairedDifference | UnpairedDifference


@router.get("/compare")
def compare_runs(request: Request, a: RefQuery, b: RefQuery) -> ComparisonView:
    """The difference of two runs; paired by wording where they used the same bank."""
    desk = desk_of(request)
    one, other = (desk.store.find(ref).execution_id for ref in (a, b))
    found = desk.shelf.kept.get(
        ("api compare", one, other),
        lambda: compare(desk.shelf.record(one), desk.shelf.record(other)),
    )
    return ComparisonView.model_validate(asdict(cast("Comparison", found)))
