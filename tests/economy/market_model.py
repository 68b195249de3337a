"""A market worked out another way: exact fractions, long decimals, nothing kept but the bets."""

from __future__ import annotations

from decimal import ROUND_FLOOR, Decimal, localcontext
from fractions import Fraction

from heretix.economy.market import MICRO, Side

H, O = Side.HERETIC, Side.ORTHODOX  # noqa: E741


def root_floor(value: int) -> int:
    """Integer square root by long decimals."""
    with localcontext() as context:
        context.prec = 120
        return int(Decimal(value).sqrt().to_integral_value(rounding=ROUND_FLOOR))


class Pool:
    """The model: a list of (who, side, stake, shares); all else is worked out when asked."""

    def __init__(self, stake, heretic_ppm):
        whole = Fraction(MICRO * stake) ** 2
        heretic = root_floor(int(whole * heretic_ppm / 10**6))
        orthodox = root_floor(int(whole) - heretic * heretic)
        on_heretic = stake * heretic_ppm // 10**6
        self.bets = [("house", H, on_heretic, heretic), ("house", O, stake - on_heretic, orthodox)]

    def total(self, column, side=None):
        return sum(bet[column] for bet in self.bets if side in (None, bet[1]))

    def worth(self, side, stake):
        other = self.total(3, O if side is H else H)
        reach = MICRO * (self.total(2) + stake)
        # (a-b)(a+b) instead of a²-b².
        return root_floor((reach - other) * (reach + other)) - self.total(3, side)

    def receives(self, winner, tau):
        """Gains by the final price: T·(s/p - m)/(losing money) for each winner."""
        losing = self.total(2) - self.total(2, winner)
        given = -int(-tau * losing // 1)
        price = Fraction(self.total(3, winner), MICRO * self.total(2))
        paid = []
        for who, side, stake, shares in self.bets:
            if side is not winner:
                paid.append(stake + int(-tau * stake // 1))
                continue
            value = Fraction(shares, MICRO) / price
            gain = int(given * (value - stake) / losing // 1)
            fee = 0 if who == "house" else -int(-gain // 5)
            paid.append(stake + gain - fee)
        return paid
