"""The economy's pages, put together: episodes, moves, ledger and people."""

from fastapi import APIRouter

from heretix.web.pages import episodes, exchange, moves
from heretix.web.templating import FILTERS, environment, reason

router = APIRouter(include_in_schema=False)
# The order counts: `/episodes/new` must be tried before `/episodes/{episode_id}`.
for _part in (moves.operations, moves.bets, moves.challenges, episodes.router, exchange.router):
    router.include_router(_part)

environment().filters |= {**FILTERS, "reason": reason}
