"""A small exchange for tests: an episode, its positions and a ledger in memory.

`Play` posts what the rules return and keeps what they say, as the real exchange does.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from decimal import Decimal

from hypothesis import settings
from invariants import breaches

from heretix.economy.episode.challenges import (
    BroughtEvidence,
    GateReading,
    commit,
    evidence_commitment,
    judge_challenge,
    reveal,
    seed_commitment,
)
from heretix.economy.episode.moves import (
    begin_challenge,
    close_episode,
    conclude_unmeasured,
    freeze,
    measure,
    open_episode,
    raise_dispute,
    rule_on_dispute,
    stake,
)
from heretix.economy.episode.settlement import JudgeReading, Measurement
from heretix.economy.episode.state import (
    Denial,
    Denied,
    Direction,
    Ground,
    Moved,
    Parameters,
    Terms,
    draft_episode,
)
from heretix.economy.ledger import (
    AccountKind,
    Applied,
    Code,
    Draft,
    Escrow,
    Group,
    Ledger,
    check_stakes,
    escrow_account,
    house_account,
    user_account,
)
from heretix.economy.market import Position, Side, buy, market_of, seed_market

H, O = Side.HERETIC, Side.ORTHODOX  # noqa: E741
SEED = bytes(range(32))
PURSE = 10_000_000


def gate_reading(p_up_ppm, *, over=None, slots=16, ci_width_ppm=100_000):
    """A reading that says of no text and of irrelevant text the same, unless told otherwise."""
    return GateReading(
        p_up_ppm=p_up_ppm,
        p_over_placebo_ppm=p_up_ppm if over is None else over,
        slots=slots,
        ci_width_ppm=ci_width_ppm,
    )


GATE_PASSED, GATE_PASSED_DOWN, GATE_FAILED = map(gate_reading, (990_000, 10_000, 600_000))


PROFILE = os.environ.get("HERETIX_HYPOTHESIS", "quick")
MACHINE_TIMEOUT_S = 7_200 if PROFILE == "long" else 1_800


def economy_settings(**changes):
    """The Hypothesis profile that `HERETIX_HYPOTHESIS` names, with changes.

    It draws the same examples every time, unless `--hypothesis-seed` asks for others.
    """
    same = settings.default.derandomize
    return settings(settings.get_profile(f"economy-{PROFILE}"), derandomize=same, **changes)


def sha(text: str) -> str:
    """A SHA-256 to stand for something that was hashed."""
    return hashlib.sha256(text.encode()).hexdigest()


def make_terms(**changes) -> Terms:
    """Terms that tests change one thing of."""
    terms = Terms(
        claim="tin whiskers short circuits",
        currency="PLAY",
        lens="mel",
        bank="rpl_v1",
        bank_sha256=sha("bank"),
        models=("gpt-5",),
        judge_pool=tuple(f"judge-{n:02d}" for n in range(12)),
        K=16,
        R=2,
        T=16,
        B=5000,
        c0_ppm=500_000,
        seed_stake=10_000,
        seed_heretic_ppm=500_000,
        seed_commitment=seed_commitment(SEED),
        challenge_from_ms=1_000,
        close_from_ms=8_000,
        close_until_ms=10_000,
        freeze_at_ms=11_000,
        parameters=Parameters(),
    )
    return replace(terms, **changes)


def make_measurement(judges, *, shift="0.8", p_up_ppm=990_000, margin="0.3", **changes):
    """A measurement in which every judge moved by the same amount, from places of their own."""
    move = Decimal(shift)
    readings = tuple(
        JudgeReading(
            model=model,
            provider_model_ids=(f"{model}@1",),
            before=Decimal(n) / 10,
            after=Decimal(n) / 10 + move,
            attempted=32,
            compliant=32,
            from_cache=0,
        )
        for n, model in enumerate(judges)
    )
    whole = Measurement(
        readings=readings,
        p_up_ppm=p_up_ppm,
        shift_lo=move - Decimal(margin),
        shift_hi=move + Decimal(margin),
    )
    return replace(whole, **changes)


def build_market(bets, *, stake_=10_000, heretic_ppm=500_000):
    """Positions after the seed and these (account, side, amount) bets."""
    seeded = seed_market("house", stake=stake_, heretic_ppm=heretic_ppm)
    market, positions = market_of(seeded), list(seeded)
    for account, side, amount in bets:
        bought = buy(market, side, amount, min_shares=0)
        market = bought.after
        positions.append(
            Position(
                number=len(positions),
                account=account,
                side=side,
                stake=amount,
                shares=bought.shares,
            )
        )
    return positions


class Play:
    """One episode played out against a ledger. Refusals are returned, not raised."""

    def __init__(
        self,
        terms: Terms | None = None,
        *,
        users=("ann", "bob", "cat", "dan"),
        strict: bool = True,
    ) -> None:
        self.strict = strict
        self.terms = make_terms() if terms is None else terms
        self.currency = self.terms.currency
        self.ledger = Ledger()
        self.episode = draft_episode("ep-1", self.terms)
        self.positions: list[Position] = []
        self.nonces: dict[int, tuple[str, bytes, str, Direction]] = {}
        self.to_reveal: list[int] = []
        self._keys = 0
        for kind in AccountKind:
            if kind not in {AccountKind.USER, AccountKind.ESCROW}:
                self.ledger.add_account(house_account(kind, self.currency))
        for pot in Escrow:
            self.ledger.add_account(escrow_account("ep-1", pot, self.currency))
        self.ledger.open_episode("ep-1")
        for name in users:
            self.add_user(name)
        self._fund(self.house(AccountKind.HOUSE), 100 * PURSE)
        self._fund(self.house(AccountKind.EPC_FUND), 100 * PURSE)

    def add_user(self, name: str) -> str:
        account = user_account(name, self.currency)
        self.ledger.add_account(account)
        self._fund(account.id, PURSE)
        return account.id

    def user(self, name: str) -> str:
        return user_account(name, self.currency).id

    def house(self, kind: AccountKind) -> str:
        return house_account(kind, self.currency).id

    def pot(self, pot: Escrow) -> int:
        return self.ledger.balance(escrow_account("ep-1", pot, self.currency).id)

    def profit(self, *names: str) -> int:
        """What some users have gained or lost since they were given their purses."""
        return sum(self.ledger.balance(self.user(name)) - PURSE for name in names)

    def take(self, result: Moved | Denied) -> Moved | Denied:
        """Post what a move asks for; only then does the episode change."""
        if isinstance(result, Denied):
            return result
        if result.group is not None:
            posted = self.ledger.post(result.group)
            assert isinstance(posted, Applied), posted
        self.episode = result.episode
        self.positions.extend(result.positions)
        if self.strict:
            self.check()
        return result

    def check(self) -> None:
        """Everything that must hold of the ledger, and of the stakes in it."""
        state = self.ledger.state
        found = breaches(
            accounts=state.accounts,
            balances=state.balances,
            episodes=state.episodes,
            transfers=self.ledger.transfers,
        )
        assert not found, found
        if self.episode.state not in {"settled", "void"}:
            kept = [
                p.stake
                for p in self.positions
                if self.episode.close_ms is None or p.at_ms <= self.episode.close_ms
            ]
            assert not list(check_stakes("stake", self.pot(Escrow.STAKE), sum(kept)))

    def open(self, at_ms: int = 0):
        return self.take(open_episode(self.episode, at_ms=at_ms))

    def begin(self, at_ms: int = 1_000):
        return self.take(begin_challenge(self.episode, at_ms=at_ms))

    def start(self):
        """Open, and let challenges begin."""
        self.open()
        return self.begin()

    def bet(self, name: str, side: Side, amount: int, *, at_ms: int = 2_000, min_shares: int = 0):
        return self.take(
            stake(
                self.episode,
                key=self._key(),
                account=self.user(name),
                side=side,
                amount=amount,
                min_shares=min_shares,
                at_ms=at_ms,
            )
        )

    def commit(
        self,
        name: str,
        bundle: str,
        *,
        direction: Direction = Direction.UP,
        amount: int = 1_000,
        at_ms: int = 3_000,
        min_stake: int | None = None,
    ):
        account, nonce = self.user(name), hashlib.sha256(f"{name}/{bundle}".encode()).digest()
        number = len(self.episode.challenges)
        result = self.take(
            commit(
                self.episode,
                key=self._key(),
                account=account,
                commitment=evidence_commitment(nonce, sha(bundle), direction, account),
                amount=amount,
                least=min(1_000, amount) if min_stake is None else min_stake,
                at_ms=at_ms,
            )
        )
        if isinstance(result, Moved):
            self.nonces[number] = (account, nonce, sha(bundle), direction)
        return result

    def reveal(self, number: int, *, at_ms: int = 10_500):
        account, nonce, bundle, direction = self.nonces[number]
        return self.take(
            reveal(
                self.episode,
                number=number,
                account=account,
                nonce=nonce,
                bundle_sha256=bundle,
                direction=direction,
                at_ms=at_ms,
            )
        )

    def challenge(self, name: str, bundle: str, **options):
        """Commit now, and reveal before the freeze, when bets are closed."""
        self.to_reveal.append(len(self.episode.challenges))
        return self.commit(name, bundle, **options)

    def freeze(self, seed: bytes = SEED, at_ms: int = 11_000):
        while self.to_reveal:
            self.reveal(self.to_reveal.pop(0))
        return self.take(freeze(self.episode, seed=seed, positions=self.positions, at_ms=at_ms))

    def judge(
        self,
        number: int,
        gate: GateReading | None = GATE_PASSED,
        belief_ppm: int = 600_000,
        *,
        at_ms: int = 0,
    ):
        evidence = None if gate is None else BroughtEvidence(gate=gate, belief_ppm=belief_ppm)
        return self.take(
            judge_challenge(
                self.episode,
                number=number,
                evidence=evidence,
                at_ms=at_ms,
            )
        )

    def measure(self, *, at_ms: int | None = None, **changes):
        due = self.episode.clock_ms + self.terms.parameters.durability_ms
        return self.take(
            measure(
                self.episode,
                measurement=make_measurement(self.episode.judges, **changes),
                at_ms=due if at_ms is None else at_ms,
            )
        )

    def conclude(self, *, at_ms: int = 0):
        return self.take(conclude_unmeasured(self.episode, positions=self.positions, at_ms=at_ms))

    def dispute(self, name: str, *, bond: int = 10_000, at_ms: int | None = None):
        return self.take(
            raise_dispute(
                self.episode,
                key=self._key(),
                account=self.user(name),
                ground=Ground.RECOMPUTATION_MISMATCH,
                bond=bond,
                at_ms=self.episode.clock_ms if at_ms is None else at_ms,
            )
        )

    def rule(self, *, ground_confirmed: bool = False, at_ms: int = 0, **changes):
        again = make_measurement(self.episode.judges, **changes)
        return self.take(
            rule_on_dispute(
                self.episode,
                ground_confirmed=ground_confirmed,
                measurements=(again, again),
                positions=self.positions,
                at_ms=at_ms,
            )
        )

    def close(self, *, at_ms: int | None = None):
        due = self.episode.clock_ms + self.terms.parameters.dispute_window_ms
        return self.take(
            close_episode(
                self.episode, positions=self.positions, at_ms=due if at_ms is None else at_ms
            )
        )

    def finish(self, **changes):
        """Both measurements alike, and the settlement."""
        self.measure(**changes)
        self.measure(**changes)
        return self.close()

    def _key(self) -> str:
        self._keys += 1
        return f"key-{self._keys}"

    def _fund(self, account: str, amount: int) -> None:
        issuance = self.house(AccountKind.ISSUANCE)
        draft = Draft(
            id=f"issue:{account}",
            debit=issuance,
            credit=account,
            amount=amount,
            currency=self.currency,
            code=Code.ISSUE,
        )
        posted = self.ledger.post(Group(id=draft.id, drafts=(draft,)))
        assert isinstance(posted, Applied)


def started(*bets, **terms) -> Play:
    """A play in which challenges have begun and these (name, side, amount) bets were taken."""
    play = Play(make_terms(**terms))
    play.start()
    for name, side, amount in bets:
        play.bet(name, side, amount)
    return play


def denial(result: Moved | Denied) -> Denial:
    """Why a move was refused, which it must have been."""
    assert isinstance(result, Denied), result
    return result.denial
