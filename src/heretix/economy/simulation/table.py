"""The table of one episode: the public moves, what everyone can see, and nothing else.

Every move goes through the economy's own rules and its own ledger. A move that is refused by
either changes nothing, and its maker is told so.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from heretix.core.lenses import HEL
from heretix.economy.episode.challenges import (
    commit,
    evidence_commitment,
    judge_challenge,
    reveal,
    seed_commitment,
)
from heretix.economy.episode.disputes import dispute_bond, raise_dispute, rule_on_dispute
from heretix.economy.episode.moves import (
    begin_challenge,
    close_episode,
    conclude_unmeasured,
    freeze,
    measure,
    open_episode,
    stake,
)
from heretix.economy.episode.settlement import decide
from heretix.economy.episode.state import (
    HOUR_MS,
    Episode,
    Fate,
    Ground,
    Moved,
    Terms,
    draft_episode,
    kept_positions,
)
from heretix.economy.exploration import failure_rate, min_stake
from heretix.economy.ledger import (
    PLAY,
    AccountKind,
    Applied,
    Code,
    Draft,
    Escrow,
    Group,
    Ledger,
    client_group,
    escrow_account,
    house_account,
    user_account,
)
from heretix.economy.simulation.world import LENS, POOL

if TYPE_CHECKING:
    from collections.abc import Iterable

    from heretix.economy.episode.settlement import Measurement, Outcome
    from heretix.economy.episode.state import Challenge, Denied, Parameters
    from heretix.economy.judging.gate import Direction
    from heretix.economy.market import Market, Position, Side
    from heretix.economy.simulation.world import Bundle, Claim, World

COMPUTE_COST: Final = 20
"""What measuring one challenge costs, in minor units: the least that a stake can be."""
PROBE_COST: Final = 5
"""What asking one model at home costs, with and without a bundle."""
SEED_STAKE: Final = 10_000
HOUSE_FUNDS: Final = 10**12
EPISODE_MS: Final = 30 * 24 * HOUR_MS
CHALLENGE_FROM_MS, CLOSE_FROM_MS, CLOSE_UNTIL_MS, FREEZE_MS = (
    hour * HOUR_MS for hour in (1, 48, 60, 72)
)


class Moment(Enum):
    """When agents act, and how many hours after the opening."""

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

    challenge: int
    direction: Direction
    bundle: Bundle


class Books:
    """One ledger for the whole simulation, and the record of attempts that stakes depend on."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.attempts: dict[str, list[bool]] = {}
        self._issued: dict[str, int] = {}
        for kind in AccountKind:
            if kind not in {AccountKind.USER, AccountKind.ESCROW}:
                self.ledger.add_account(house_account(kind, PLAY.code))
        for kind in (AccountKind.HOUSE, AccountKind.EPC_FUND):
            self._issue(house_account(kind, PLAY.code).id, HOUSE_FUNDS)

    def enrol(self, name: str, purse: int) -> str:
        """A new account with money of its own, and no record."""
        account = user_account(name, PLAY.code)
        self.ledger.add_account(account)
        self.attempts[account.id] = []
        self._issue(account.id, purse)
        return account.id

    def gained(self, accounts: Iterable[str]) -> int:
        """What some accounts have beyond what they were given."""
        return sum(self.ledger.balance(name) - self._issued[name] for name in accounts)

    def spend(self, account: str, amount: int, key: str) -> bool:
        """Pay for something outside the economy."""
        issuance = house_account(AccountKind.ISSUANCE, PLAY.code).id
        return self._post(client_group(account, key), account, issuance, amount, Code.BURN)

    def _issue(self, account: str, amount: int) -> None:
        issuance = house_account(AccountKind.ISSUANCE, PLAY.code).id
        self._issued[account] = amount
        assert self._post(f"issue:{account}", issuance, account, amount, Code.ISSUE)

    def _post(self, group: str, debit: str, credit: str, amount: int, code: Code) -> bool:
        draft = Draft(
            id=f"{group}/0",
            debit=debit,
            credit=credit,
            amount=amount,
            currency=PLAY.code,
            code=code,
        )
        return isinstance(self.ledger.post(Group(id=group, drafts=(draft,))), Applied)


class Table:
    """One episode: what agents can see of it and do in it."""

    def __init__(self, books: Books, world: World, claim: Claim, parameters: Parameters) -> None:
        self.books, self.world, self.claim = books, world, claim
        self.now_ms = claim.number * EPISODE_MS
        self.shown: list[Shown] = []
        self.positions: list[Position] = []
        self._secret = sha256(f"{world.seed}/secret/{claim.number}".encode()).digest()
        self._hidden: dict[int, tuple[bytes, Bundle]] = {}
        self._accepted: list[Bundle] = []
        self._bought: dict[str, float] = {}
        self._keys = 0
        self.episode: Episode = draft_episode(f"ep-{claim.number}", self._terms(parameters))
        for pot in Escrow:
            books.ledger.add_account(escrow_account(self.episode.id, pot, PLAY.code))
        books.ledger.open_episode(self.episode.id)
        self._must(open_episode(self.episode, at_ms=self.now_ms))

    # What everyone can see.

    @property
    def market(self) -> Market:
        """The market as it stands."""
        assert self.episode.market is not None
        return self.episode.market

    @property
    def challenges(self) -> tuple[Challenge, ...]:
        """Commitments: who, which way, for how much."""
        return self.episode.challenges

    @property
    def scale(self) -> int:
        """B, the reward for a nat."""
        return self.episode.terms.parameters.reward_scale

    @property
    def outcome(self) -> Outcome:
        """How the episode ends by the measurements that stand now."""
        return decide(
            self.episode.terms.c0_ppm,
            self.episode.measurements,
            positions=kept_positions(self.episode, self.positions),
            parameters=self.episode.terms.parameters,
        )

    @property
    def dispute_bond(self) -> int:
        """What a dispute costs if it changes nothing."""
        return dispute_bond(self.market.money, self.episode.terms.parameters)

    def least_stake(self, account: str) -> int:
        """What a challenge must stake, by its maker's record."""
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
        key = self._key()
        paid = self.books.spend(account, PROBE_COST, key)
        assert paid, "every purse covers its probes"
        return self.world.probe(bundle, model, account, key)

    def ask_leaning(self, account: str, model: str) -> float:
        """Measure at home how a model's belief differs from the lens's, without evidence."""
        paid = self.books.spend(account, PROBE_COST, self._key())
        assert paid, "every purse covers its probes"
        return self.world.leaning(model, self.claim)

    def bet(self, account: str, side: Side, amount: int) -> bool:
        """Stake on a side."""
        return self._take(
            stake(
                self.episode,
                key=self._key(),
                account=account,
                side=side,
                amount=amount,
                min_shares=0,
                at_ms=self._tick(),
            )
        )

    def commit(self, account: str, bundle: Bundle, direction: Direction, amount: int) -> int | None:
        """Commit to a bundle; the number of the challenge, or None when it was refused."""
        number, key = len(self.challenges), self._key()
        nonce = sha256(f"{account}/{key}".encode()).digest()
        move = commit(
            self.episode,
            key=key,
            account=account,
            direction=direction,
            commitment=evidence_commitment(nonce, bundle.sha256, account),
            stake=amount,
            min_stake=self.least_stake(account),
            at_ms=self._tick(),
        )
        if not self._take(move):
            return None
        self._hidden[number] = (nonce, bundle)
        return number

    def reveal(self, account: str, number: int) -> bool:
        """Show what one's own commitment hid."""
        nonce, bundle = self._hidden[number]
        move = reveal(
            self.episode,
            number,
            account=account,
            nonce=nonce,
            bundle_sha256=bundle.sha256,
            at_ms=self._tick(),
        )
        if not self._take(move):
            return False
        direction = self.challenges[number].direction
        self.shown.append(Shown(challenge=number, direction=direction, bundle=bundle))
        return True

    def dispute(self, account: str) -> bool:
        """Ask for a larger panel, which rules at once."""
        raised = raise_dispute(
            self.episode,
            key=self._key(),
            account=account,
            ground=Ground.RECOMPUTATION_MISMATCH,
            bond=self.dispute_bond,
            at_ms=self._tick(),
        )
        if not self._take(raised):
            return False
        stage = f"dispute-{len(self.episode.disputes)}"
        again = (
            self._measurement(f"{stage}-first", later=False),
            self._measurement(f"{stage}-second", later=True),
        )
        self._must(
            rule_on_dispute(
                self.episode,
                ground_confirmed=False,
                measurements=again,
                positions=self.positions,
                at_ms=self._tick(),
            )
        )
        return True

    def buy_judge(self, model: str, shift: float) -> None:
        """Have a model answer as its owner likes, should it be drawn."""
        self._bought[model] = shift

    # What the operator does.

    def set_time(self, moment: Moment, share: float = 0.0) -> None:
        """Go on to a moment; in the closing window, to a share of the way through it."""
        window = CLOSE_UNTIL_MS - CLOSE_FROM_MS if moment is Moment.CLOSING else 0
        begun = self.claim.number * EPISODE_MS + moment.value * HOUR_MS
        self.now_ms = max(self.now_ms, begun + int(share * window))

    def begin(self) -> None:
        """Let challenges begin."""
        self._must(begin_challenge(self.episode, at_ms=self.now_ms))

    def freeze(self) -> None:
        """Draw the close, and judge every challenge in order."""
        move = freeze(self.episode, seed=self._secret, positions=self.positions, at_ms=self.now_ms)
        self._must(move)
        for challenge in self.challenges:
            if challenge.fate is not Fate.LATE:
                self._judge(challenge)

    def measure(self) -> None:
        """Both measurements; none when there is nothing to measure for."""
        if self._take(
            conclude_unmeasured(self.episode, positions=self.positions, at_ms=self.now_ms)
        ):
            return
        self._measure("first", later=False)
        self.now_ms += self.episode.terms.parameters.durability_ms
        self._measure("second", later=True)

    def close(self) -> None:
        """Settle, or void."""
        self.now_ms += self.episode.terms.parameters.dispute_window_ms
        self._must(close_episode(self.episode, positions=self.positions, at_ms=self.now_ms))

    def _judge(self, challenge: Challenge) -> None:
        evidence = None
        if challenge.fate is Fate.REVEALED:
            bundle = self._hidden[challenge.number][1]
            evidence = self.world.gate(self.claim, self._accepted, bundle, challenge.number)
        self._must(
            judge_challenge(
                self.episode,
                challenge.number,
                evidence=evidence,
                positions=self.positions,
                at_ms=self.now_ms,
            )
        )
        passed = self.challenges[challenge.number].fate is Fate.ACCEPTED
        self.books.attempts[challenge.account].append(passed)
        if passed:
            self._accepted.append(self._hidden[challenge.number][1])

    def _measure(self, stage: str, *, later: bool) -> None:
        found = self._measurement(stage, later=later)
        self._must(measure(self.episode, found, positions=self.positions, at_ms=self.now_ms))

    def _measurement(self, stage: str, *, later: bool) -> Measurement:
        return self.world.measure(
            self.claim,
            self.episode.judges,
            self._accepted,
            stage=stage,
            later=later,
            bought=self._bought,
        )

    def _terms(self, parameters: Parameters) -> Terms:
        at = self.now_ms
        return Terms(
            claim=f"claim {self.claim.number}",
            currency=PLAY.code,
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
            seed_commitment=seed_commitment(self._secret),
            challenge_from_ms=at + CHALLENGE_FROM_MS,
            close_from_ms=at + CLOSE_FROM_MS,
            close_until_ms=at + CLOSE_UNTIL_MS,
            freeze_at_ms=at + FREEZE_MS,
            parameters=parameters,
        )

    def _take(self, result: Moved | Denied) -> bool:
        """Post what a move asks for; only when the ledger takes it does the episode change."""
        if not isinstance(result, Moved):
            return False
        if result.group is not None:
            posted = self.books.ledger.post(result.group)
            if not isinstance(posted, Applied):
                return False
        self.episode = result.episode
        self.positions.extend(result.positions)
        return True

    def _must(self, result: Moved | Denied) -> None:
        taken = self._take(result)
        assert taken, result

    def _tick(self) -> int:
        self.now_ms += 1
        return self.now_ms

    def _key(self) -> str:
        self._keys += 1
        return f"{self.claim.number}-{self._keys}"
