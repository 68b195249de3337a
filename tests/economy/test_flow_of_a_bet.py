"""A bet stays easy to follow."""

from exchanging import Table

from flow import flow
from heretix.core.clock import SystemClock
from heretix.store import Store

DAY_MS = 86_400_000


def test_a_bet_is_followed_in_one_sitting(tmp_path):
    """A bet goes from the command to the store through few files."""
    begin_ms = SystemClock().now_ms() + DAY_MS
    times = ("challenge_from_ms", "close_from_ms", "close_until_ms", "freeze_at_ms")
    terms = {name: begin_ms + n * DAY_MS for n, name in enumerate(times)}
    with Store.open(str(tmp_path / "runs" / "heretix.sqlite"), create=True) as store:
        table = Table(store, **terms)
        table.exchange.open(table.id)
    ended, files = flow(tmp_path, "market", "buy", "latest", "heretic", "10", "--as", "ann")
    assert ended == 0
    assert {"cli/economy.py", "economy/exchange.py", "economy/market.py"} <= set(files)
    assert len(files) <= 18, files
