"""The table of one episode: the public moves, what everyone can see, and nothing else.

Every move goes through the economy's own rules and its own ledger. A move that is refused by
either changes nothing, and its maker is told so.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from typing import TYPE_CHECKING, Final, ParamSpec

from heretix.core.lenses import HEL
from heretix.economy import ledger
from heretix.economy.episode import challenges, moves, state
from heretix.economy.exploration import failure_rate, min_stake
from heretix.economy.simulation.world import LENS, POOL

if TYPE_CHECKING:
    from collections.abc import Iterable

    from heretix.economy.episode.settlement import Measurement, Outcome
    from heretix.economy.market import Market, Position, Side
    from heretix.economy.simulation.world import Bundle, Claim, World

COMPUTE_COST: Final = 20
"""Cost of measuring one challenge, in minor units: the least that a stake can be."""
PROBE_COST: Final = 5
"""Cost of asking one model at home, with and without a bundle."""
SEED_STAKE: Final = 10_000
HOUSE_FUNDS: Final = 10**12
_MINT: Final = ledger.house_account(ledger.AccountKind.ISSUANCE, ledger.PLAY.code).id
EPISODE_MS: Final = 30 * 24 * state.HOUR_MS
CHALLENGE_FROM_MS, CLOSE_FROM_MS, CLOSE_UNTIL_MS, FREEZE_MS = (
    hour * state.HOUR_MS for hour in (1, 48, 60, 72)
)


_P = ParamSpec("_P")


class Moment(Enum):
    """Moments at which agents act, in hours after the opening."""

    OPEN = 0
    EARLY = 2
    MIDDLE = 24
    LATE = 44
    CLOSING = 48
    """The window in which the close is drawn: whoever acts names a place in it."""
    REVEAL = 66
    """Too late for stakes; the last moment to show evidence."""
    RESULT = 72
    """The measurements are in, and can be disputed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """Evidence that was revealed: everyone can read it from then on."""

    direction: state.Direction
    bundle: Bundle


class Books:
    """One ledger for the whole simulation, and the record of attempts that stakes depend on."""

    def __init__(self) -> None:
        self.ledger = ledger.Ledger()
        self.attempts: dict[str, list[bool]] = {}
        self._issued: dict[str, int] = {}
        for account in ledger.house_accounts(ledger.PLAY.code):
            self.ledger.add_account(account)
        for kind in (ledger.AccountKind.HOUSE, ledger.AccountKind.EPC_FUND):
            self._issue(ledger.house_account(kind, ledger.PLAY.code).id, HOUSE_FUNDS)

    def enrol(self, name: str, purse: int) -> str:
        """A new account with money of its own, and no record."""
        account = ledger.user_account(name, ledger.PLAY.code)
        self.ledger.add_account(account)
        self.attempts[account.id] = []
        self._issue(account.id, purse)
        return account.id

    def sum_gains(self, accounts: Iterable[str]) -> int:
        """Gains of some accounts beyond what they were given."""
        return sum(self.ledger.balance(name) - self._issued[name] for name in accounts)

    def spend(self, account: str, amount: int, key: str) -> bool:
        """Pay for something outside the economy."""
        group = ledger.client_group(account, key)
        return self._post(group, account, _MINT, amount, ledger.Code.BURN)

    def _issue(self, account: str, amount: int) -> None:
        self._issued[account] = amount
        assert self._post(f"issue:{account}", _MINT, account, amount, ledger.Code.ISSUE)

    def _post(self, group: str, debit: str, credit: str, amount: int, code: ledger.Code) -> bool:
        asked = ledger.plain_group(group, [(debit, credit, amount)], ledger.PLAY.code, code)
        return isinstance(self.ledger.post(asked), ledger.Applied)


class Table:
    """One episode: what agents can see of it and do in it."""

    def __init__(
        self, books: Books, world: World, claim: Claim, parameters: state.Parameters
    ) -> None:
        self.books, self.world, self.claim = books, world, claim
        self.now_ms = claim.number * EPISODE_MS
        self.shown: list[Shown] = []
        self.positions: list[Position] = []
        self._secret = sha256(f"{world.seed}/secret/{claim.number}".encode()).digest()
        self._hidden: dict[int, tuple[bytes, Bundle, state.Direction]] = {}
        self.accepted: list[Bundle] = []
        """Evidence that passed its gate."""
        self._bought: dict[str, float] = {}
        self._keys = 0
        self.episode = state.draft_episode(f"ep-{claim.number}", self._terms(parameters))
        for pot in ledger.Escrow:
            books.ledger.add_account(ledger.escrow_account(self.episode.id, pot, ledger.PLAY.code))
        books.ledger.open_episode(self.episode.id)
        self._must(moves.open_episode)

    # What everyone can see.

    @property
    def market(self) -> Market:
        assert self.episode.market is not None
        return self.episode.market

    @property
    def challenges(self) -> tuple[state.Challenge, ...]:
        return self.episode.challenges

    @property
    def scale(self) -> int:
        """B, the reward for a nat."""
        return self.episode.terms.parameters.reward_scale

    @property
    def outcome(self) -> Outcome:
        """Outcome of the episode by the measurements that stand now."""
        return self.episode.decide(self.positions)

    @property
    def dispute_bond(self) -> int:
        return moves.dispute_bond(self.episode)

    def least_stake(self, account: str) -> int:
        """Least stake of a challenge, by its maker's record."""
        rules = self.episode.terms.parameters.stakes
        return min_stake(
            compute_cost=COMPUTE_COST,
            credits_held=0,
            failure_rate_ppm=failure_rate(self.books.attempts[account], rules),
            rules=rules,
        )

    # What anyone can do.

    def probe(self, account: str, bundle: Bundle, model: str = LENS) -> float:
        """Measure at home, for money, what a bundle does to a model."""
        key = self._pay_probe(account)
        return self.world.probe(bundle, model, account, key, shown=self.claim.paid)

    def ask_leaning(self, account: str, model: str) -> float:
        """Measure at home how a model's belief differs from the lens's, without evidence."""
        self._pay_probe(account)
        return self.world.leaning(model, self.claim)

    def bet(self, account: str, side: Side, amount: int) -> bool:
        """Stake on a side."""
        self.now_ms += 1
        return self._take(
            moves.stake, key=self._key(), account=account, side=side, amount=amount, min_shares=0
        )

    def commit(
        self, account: str, bundle: Bundle, direction: state.Direction, amount: int
    ) -> int | None:
        """Commit to a bundle; the number of the challenge, or None when it was refused."""
        number, key = len(self.challenges), self._key()
        nonce = sha256(f"{account}/{key}".encode()).digest()
        self.now_ms += 1
        taken = self._take(
            challenges.commit,
            key=key,
            account=account,
            commitment=challenges.evidence_commitment(nonce, bundle.sha256, direction, account),
            amount=amount,
            least=self.least_stake(account),
        )
        if not taken:
            return None
        self._hidden[number] = (nonce, bundle, direction)
        return number

    def reveal(self, account: str, number: int) -> bool:
        """Show what one's own commitment hid."""
        nonce, bundle, direction = self._hidden[number]
        self.now_ms += 1
        shown = self._take(
            challenges.reveal,
            number=number,
            account=account,
            nonce=nonce,
            bundle_sha256=bundle.sha256,
            direction=direction,
        )
        if not shown:
            return False
        self.shown.append(Shown(direction=direction, bundle=bundle))
        return True

    def dispute(self, account: str) -> bool:
        """Ask for a larger panel, which rules at once."""
        self.now_ms += 1
        ground, bond, key = state.Ground.RECOMPUTATION_MISMATCH, self.dispute_bond, self._key()
        rule = moves.raise_dispute
        if not self._take(rule, key=key, account=account, ground=ground, bond=bond):
            return False
        stage = f"dispute-{len(self.episode.disputes)}"
        again = (
            self._measurement(f"{stage}-first", later=False),
            self._measurement(f"{stage}-second", later=True),
        )
        self.now_ms += 1
        ruling, bets = moves.rule_on_dispute, self.positions
        self._must(ruling, ground_confirmed=False, measurements=again, positions=bets)
        return True

    def buy_judge(self, model: str, shift: float) -> None:
        """Buy a judge, which then answers as its owner likes, should it be drawn."""
        self._bought[model] = shift

    # What the operator does.

    def set_time(self, moment: Moment, share: float = 0.0) -> None:
        """Go on to a moment; in the closing window, to a share of the way through it."""
        window = CLOSE_UNTIL_MS - CLOSE_FROM_MS if moment is Moment.CLOSING else 0
        begun = self.claim.number * EPISODE_MS + moment.value * state.HOUR_MS
        self.now_ms = max(self.now_ms, begun + int(share * window))

    def begin(self) -> None:
        """Begin the time for challenges."""
        self._must(moves.begin_challenge)

    def freeze(self) -> None:
        """Draw the close, and judge every challenge in order."""
        self._must(moves.freeze, seed=self._secret, positions=self.positions)
        for challenge in self.challenges:
            if challenge.fate is not state.Fate.LATE:
                self._judge(challenge)

    def measure(self) -> None:
        """Both measurements; none when there is nothing to measure for."""
        if self._take(moves.conclude_unmeasured, positions=self.positions):
            return
        for stage, later in (("first", False), ("second", True)):
            self.now_ms += self.episode.terms.parameters.durability_ms if later else 0
            found = self._measurement(stage, later=later)
            self._must(moves.measure, measurement=found)

    def close(self) -> None:
        """Settle, or void."""
        self.now_ms += self.episode.terms.parameters.dispute_window_ms
        self._must(moves.close_episode, positions=self.positions)

    def _judge(self, challenge: state.Challenge) -> None:
        number, evidence = challenge.number, None
        if challenge.fate is state.Fate.REVEALED:
            bundle = self._hidden[number][1]
            # The very text that was paid for brings nothing: it stands on both sides.
            if bundle.sha256 not in {paid.sha256 for paid in self.claim.paid}:
                evidence = self.world.gate(self.claim, self.accepted, bundle, number)
        self._must(challenges.judge_challenge, number=number, evidence=evidence)
        passed = self.challenges[number].fate is state.Fate.ACCEPTED
        self.books.attempts[challenge.account].append(passed)
        if passed:
            self.accepted.append(self._hidden[number][1])

    def _measurement(self, stage: str, *, later: bool) -> Measurement:
        judges, bought = self.episode.judges, self._bought
        return self.world.measure(
            self.claim, judges, self.accepted, stage=stage, later=later, bought=bought
        )

    def _terms(self, parameters: state.Parameters) -> state.Terms:
        at = self.now_ms
        return state.Terms(
            claim=f"claim {self.claim.number}",
            currency=ledger.PLAY.code,
            lens=HEL,
            bank="rpl_v1",
            bank_sha256=sha256(b"rpl_v1").hexdigest(),
            models=(LENS,),
            judge_pool=POOL,
            K=16,
            R=2,
            T=16,
            B=5000,
            c0_ppm=self.claim.c0_ppm,
            seed_stake=SEED_STAKE,
            seed_heretic_ppm=500_000,
            seed_commitment=challenges.seed_commitment(self._secret),
            challenge_from_ms=at + CHALLENGE_FROM_MS,
            close_from_ms=at + CLOSE_FROM_MS,
            close_until_ms=at + CLOSE_UNTIL_MS,
            freeze_at_ms=at + FREEZE_MS,
            parameters=parameters,
        )

    def _take(self, rule: state.Rule[_P], *args: _P.args, **given: _P.kwargs) -> bool:
        """Post what a move asks for; only when the ledger takes it does the episode change."""
        result = rule(self.episode, self.now_ms, *args, **given)
        if isinstance(result, state.Denied):
            return False
        if result.group is not None:
            posted = self.books.ledger.post(result.group)
            if not isinstance(posted, ledger.Applied):
                return False
        self.episode = result.episode
        self.positions.extend(result.positions)
        return True

    def _must(self, rule: state.Rule[_P], *args: _P.args, **given: _P.kwargs) -> None:
        taken = self._take(rule, *args, **given)
        assert taken, rule

    def _pay_probe(self, account: str) -> str:
        """Pay for asking one model, under a key that no other payment has."""
        key = self._key()
        paid = self.books.spend(account, PROBE_COST, key)
        assert paid, "every purse covers its probes"
        return key

    def _key(self) -> str:
        self._keys += 1
        return f"{self.claim.number}-{self._keys}"
