"""The economy's pages, put together: episodes, bets, evidence, proceedings, ledger and people."""

from fastapi import APIRouter

from heretix.web.moneytext import FILTERS
from heretix.web.pages import bets, challenges, episodes, exchange, proceedings
from heretix.web.reason import reason
from heretix.web.templating import environment

__all__ = ["router"]

router = APIRouter(include_in_schema=False)
# The order counts: `/episodes/new` must be tried before `/episodes/{episode_id}`.
for _part in (proceedings, bets, challenges, episodes, exchange):
    router.include_router(_part.router)

environment().filters |= {**FILTERS, "reason": reason}
