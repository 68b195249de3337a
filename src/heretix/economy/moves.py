"""Moves of an episode, each defined once: name, role, fields and call.

The commands, the API's operations and the forms of pages are made from `MOVES`. A surface has one
handler for each kind of field, and none for a move; a new move is a rule, an entry here, a test.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from heretix.core.errors import RecordError, UsageError
from heretix.economy.episode.challenges import SECRET_BYTES, evidence_commitment
from heretix.economy.episode.moves import dispute_bond
from heretix.economy.episode.secret_file import find_commitment
from heretix.economy.episode.state import Direction, Ground, State
from heretix.economy.ledger import MAX_AMOUNT, user_account
from heretix.economy.market import MAX_POOL, Side
from heretix.economy.rewards import BELIEF_MAX, BELIEF_MIN, farthest
from heretix.economy.sentences import sentence
from heretix.store.bundles import save_bundle

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from enum import StrEnum

    from heretix.core.clock import Clock
    from heretix.core.settings import Settings
    from heretix.economy.episode.secret_file import Secret
    from heretix.economy.episode.state import Challenge, Dispute, Episode
    from heretix.economy.exchange import Exchange
    from heretix.economy.judging.workflow import EpisodeWorkflow, JudgedChallenge
    from heretix.economy.market import Position
    from heretix.evidence.bundle import Bundle
    from heretix.measurement.runner import Observer
    from heretix.store import Store

Kind = Literal["amount", "bond", "choice", "confirm", "flag", "json", "text", "whole", "yes_no"]
"""`amount` is whole minor units that a program worked out; `bond` is money that a person types into
a form, the least by default. `confirm` is a tick that only a form asks for."""

_SHA256: Final = r"^[0-9a-f]{64}$"
_NONCE: Final = rf"^[0-9a-f]{{{2 * SECRET_BYTES}}}$"


@dataclass(frozen=True, slots=True)
class Field:
    """One value that a move takes."""

    name: str
    kind: Kind
    help: str = ""
    _: KW_ONLY
    choices: type[StrEnum] | None = None
    least: int = 0
    most: int = MAX_AMOUNT
    pattern: str | None = None
    required: bool = True
    typed: str = ""
    """Its name in forms and options, where that is shorter."""
    least_of: Callable[[Episode], int] | None = None
    """The least that the rules ask for, which is taken if nothing else is said."""

    @property
    def label(self) -> str:
        return self.typed or self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """A person or operator who makes moves, under an idempotency key where the move takes one."""

    store: Store
    exchange: Exchange
    clock: Clock
    settings: Settings
    person: str = ""
    key: str = ""
    observer: Observer | None = None

    @property
    def workflow(self) -> EpisodeWorkflow:
        """The workflow that measures an episode's next step."""
        from heretix.economy.judging.panel import Panel
        from heretix.economy.judging.workflow import EpisodeWorkflow

        panel = Panel(self.store, self.settings, observer=self.observer)
        return EpisodeWorkflow(self.exchange, panel, settings=self.settings)

    def begin_if_due(self, episode_id: str) -> Episode:
        """Load an episode, after letting evidence be committed if its time has come: nobody has
        to announce it."""
        found = self.exchange.episode(episode_id)
        if found.state is State.OPEN and found.terms.challenge_from_ms <= self.clock.now_ms():
            return self.exchange.begin_challenge(episode_id)
        return found

    def judging_cost(self, episode: Episode) -> int:
        """Price the judging of one challenge, in minor units; 0 where no price is known."""
        from heretix.economy.judging.panel import Panel

        return Panel(self.store, self.settings).compute_cost(episode.terms) or 0

    def least_challenge(self, episode: Episode) -> int:
        """Return what a challenge must stake now: less for who has a good record."""
        cost = self.judging_cost(episode)
        return self.exchange.min_stake(episode.id, self.person, compute_cost=cost)

    def join(self, episode_id: str) -> Episode:
        """Load an episode; who has no account in its currency yet gets one."""
        found = self.exchange.episode(episode_id)
        self.exchange.join(self.person, found.terms.currency)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Models that a measured move asks, and how often each: without and with the evidence, and with
    irrelevant text at the gate."""

    claim: str
    models: tuple[str, ...]
    stage: str | None = None
    """`first` or `second` measurement of the judges, `round:N` of a dispute."""
    times: int = 2


Made: TypeAlias = "Episode | Challenge | Dispute | Position"


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One move: made at once by `make`, or measured by `measure` after `plan` has allowed it."""

    name: str
    """Its command, the address of its form, and its entry in the audit log."""
    role: Literal["explorer", "operator"]
    help: str
    brief: str = ""
    """The same in a line of a list of commands."""
    operation: str
    """Its name in the API."""
    path: str = ""
    """Its address in the API, below the episode, where that isn't its name."""
    schema: str = ""
    """The name of its fields in the API's document."""
    schema_help: str = ""
    fields: tuple[Field, ...] = ()
    keyed: bool = False
    """It takes an idempotency key; the others do nothing the second time."""
    returns: Literal["challenge", "dispute", "episode", "position"] = "episode"
    anchor: str = ""
    """The place on the episode's page where its result is shown."""
    make: Callable[[Actor, str, Mapping[str, Any]], Made] | None = None
    plan: Callable[[Actor, str], Step] | None = None
    measure: Callable[[Actor, str, Mapping[str, Any]], Coroutine[Any, Any, Any]] | None = None

    def run(self, actor: Actor, episode_id: str, given: Mapping[str, Any]) -> Made:
        """Make the move at once."""
        assert self.make is not None, "a move that measures is no move of a moment"
        return self.make(actor, episode_id, given)


def _commit(actor: Actor, episode_id: str, given: Mapping[str, Any]) -> Challenge:
    cost = actor.judging_cost(actor.begin_if_due(episode_id))
    actor.join(episode_id)
    return actor.exchange.commit(
        episode_id, actor.person, **given, key=actor.key, compute_cost=cost
    )


def _reveal(actor: Actor, episode_id: str, given: Mapping[str, Any]) -> Challenge:
    from heretix.evidence.bundle import dump_bundle

    episode, sha256 = actor.exchange.episode(episode_id), given["bundle_sha256"]
    nonce = bytes.fromhex(given["nonce"])
    if given["bundle"] is not None:
        bundle = _read_evidence(given["bundle"], sha256, episode.terms.claim)
        account = user_account(actor.person, episode.terms.currency).id
        commitment = evidence_commitment(nonce, sha256, given["direction"], account)
        # The bundle first: a revealed challenge must find its evidence when it is judged. But
        # only what was committed to, and nothing while it could be copied or bet on; the exchange
        # refuses the rest.
        known = commitment in {challenge.commitment for challenge in episode.challenges}
        if known and actor.clock.now_ms() > episode.terms.close_until_ms:
            text = dump_bundle(bundle)
            actor.store.write(save_bundle, bundle.bundle_id, bundle.claim, bundle.lens, text)
    return actor.exchange.reveal(
        episode_id,
        given["challenge"],
        actor.person,
        nonce=nonce,
        bundle_sha256=sha256,
        direction=given["direction"],
    )


def _read_evidence(given: Mapping[str, Any], sha256: str, claim: str) -> Bundle:
    from heretix.economy.judging.panel import find_objection
    from heretix.evidence.bundle import read_bundle

    try:
        bundle = read_bundle(dict(given))
    except RecordError as exc:
        raise UsageError(str(exc)) from exc
    if bundle.bundle_id != sha256:
        raise UsageError(f"`bundle` is {bundle.bundle_id}, not the {sha256} that is revealed")
    if (refused := find_objection(bundle, claim)) is not None:
        raise UsageError(f"`bundle` can't be brought as evidence: {sentence(refused)}")
    return bundle


def _open(actor: Actor, episode_id: str, _: Mapping[str, Any]) -> Episode:
    actor.exchange.ensure_house()
    actor.exchange.open(episode_id)
    return actor.begin_if_due(episode_id)


def _plan_judge(actor: Actor, episode_id: str) -> Step:
    episode = actor.workflow.require_frozen(episode_id)
    times = 3 * sum(not challenge.is_judged for challenge in episode.challenges)
    return Step(claim=episode.terms.claim, models=episode.terms.models, times=times)


async def _judge(actor: Actor, episode_id: str, given: Mapping[str, Any]) -> list[JudgedChallenge]:
    workflow, heard = actor.workflow, []
    while (result := await workflow.judge_next(episode_id, final=given["final"])) is not None:
        heard.append(result)
    return heard


def _plan_measure(actor: Actor, episode_id: str) -> Step:
    stage = actor.workflow.next_stage(episode_id)
    episode = actor.exchange.episode(episode_id)
    models = episode.judges if stage else ()
    return Step(claim=episode.terms.claim, models=models, stage=stage)


def _plan_rule(actor: Actor, episode_id: str) -> Step:
    episode = actor.workflow.require_disputed(episode_id)
    stage = f"round:{episode.disputes[-1].round}"
    return Step(claim=episode.terms.claim, models=episode.judges, stage=stage, times=4)


def reveal_fields(secret: Secret, episode: Episode, person: str) -> dict[str, Any]:
    """Make the fields of a reveal from the file that was kept since the commitment."""
    return {
        "challenge": find_commitment(secret, episode, person),
        "nonce": secret.nonce.hex(),
        "bundle_sha256": secret.bundle.bundle_id,
        "direction": secret.direction,
        "bundle": secret.bundle.to_json(),
    }


def reach_ppm(episode: Episode, stake: int, direction: Direction) -> int:
    """Return how far the credited belief can move on a stake."""
    end = BELIEF_MIN if direction is Direction.DOWN else BELIEF_MAX
    return farthest(episode.terms.parameters.reward_scale, episode.belief_ppm, end, stake)


_MONEY: Final = "Whole minor units."
_FINAL: Final = Field(
    "final", "flag", "Models that can't be reached count as missing, for good.", required=False
)

STAKE: Final = Move(
    name="stake",
    role="explorer",
    help="Bet on a side, as oneself. Who has no account yet gets one with a starting purse.",
    operation="stake",
    path="stakes",
    schema="StakeGiven",
    schema_help="A bet.",
    fields=(
        Field("side", "choice", choices=Side),
        Field("amount", "amount", _MONEY, least=1, most=MAX_POOL),
        Field("min_shares", "whole", "Refused if it would buy fewer micro-shares."),
    ),
    keyed=True,
    returns="position",
    anchor="?took={0.number}#your-bets",
    make=lambda actor, id_, given: actor.exchange.stake(
        actor.join(id_).id, actor.person, **given, key=actor.key
    ),
)
COMMIT: Final = Move(
    name="commit",
    role="explorer",
    help="Commit to evidence and its direction without showing either.",
    operation="challenge",
    path="challenges",
    schema="ChallengeGiven",
    schema_help="A commitment to evidence, which isn't shown yet.",
    fields=(
        Field(
            "commitment",
            "text",
            'sha256(nonce ‖ bundle hash ‖ direction ‖ ":" ‖ account id).',
            pattern=_SHA256,
        ),
        Field("amount", "amount", _MONEY, least=1, most=MAX_POOL),
        Field(
            "saved",
            "confirm",
            "without the reveal file the stake is lost; go back and save it first",
        ),
    ),
    keyed=True,
    returns="challenge",
    anchor="#challenge-{0.number}",
    make=_commit,
)
REVEAL: Final = Move(
    name="reveal",
    role="explorer",
    help="Show what a commitment of one's own hid, once no bet is taken any more.",
    operation="reveal",
    path="reveals",
    schema="RevealGiven",
    schema_help="What a commitment hid.",
    fields=(
        Field("challenge", "whole", most=1_000_000),
        Field("nonce", "text", "In hex.", pattern=_NONCE),
        Field("bundle_sha256", "text", pattern=_SHA256),
        Field("direction", "choice", choices=Direction),
        Field("bundle", "json", "The bundle itself, unless the server has it.", required=False),
    ),
    returns="challenge",
    anchor="#challenge-{0.number}",
    make=_reveal,
)
DISPUTE: Final = Move(
    name="dispute",
    role="explorer",
    help="Put a bond against the result, and have more judges drawn.",
    brief="Put a bond against the result: a larger panel measures.",
    operation="dispute",
    path="disputes",
    schema="DisputeGiven",
    schema_help="A bond against a result.",
    fields=(
        Field("ground", "choice", choices=Ground),
        Field("bond", "bond", _MONEY, least=1, most=MAX_POOL, least_of=dispute_bond),
    ),
    keyed=True,
    returns="dispute",
    anchor="#disputes",
    make=lambda actor, id_, given: actor.exchange.dispute(
        actor.join(id_).id, actor.person, **given, key=actor.key
    ),
)
OPEN: Final = Move(
    name="open",
    role="operator",
    help="Fix the terms of a draft; the house's seed and the budget for rewards are set aside.",
    operation="open_episode",
    make=_open,
)
BEGIN: Final = Move(
    name="begin",
    role="operator",
    help="From now on evidence can be committed, once its time has come.",
    operation="begin_challenges",
    make=lambda actor, id_, _: actor.exchange.begin_challenge(id_),
)
FREEZE: Final = Move(
    name="freeze",
    role="operator",
    help="Reveal the secret, draw the close and the judges, give late stakes back.",
    brief="Reveal the seed; draw the close and the judges.",
    operation="freeze_episode",
    make=lambda actor, id_, _: actor.exchange.freeze(actor.begin_if_due(id_).id),
)
JUDGE: Final = Move(
    name="judge",
    role="operator",
    help="Have every challenge that is left measured, in their order.",
    brief="Measure the lens with and without each challenge's evidence.",
    operation="judge_challenges",
    schema="Finality",
    schema_help="Whether failed calls count.",
    fields=(_FINAL,),
    keyed=True,
    plan=_plan_judge,
    measure=_judge,
)
MEASURE: Final = Move(
    name="measure",
    role="operator",
    help="Have the judges measured: at the freeze, and again when the durability window is over.",
    brief="Have the judges measured: now, and a window later.",
    operation="measure_episode",
    schema="Finality",
    schema_help="Whether failed calls count.",
    fields=(_FINAL,),
    keyed=True,
    plan=_plan_measure,
    measure=lambda actor, id_, given: actor.workflow.measure(id_, **given),
)
RULE: Final = Move(
    name="rule",
    role="operator",
    help="Have the larger panel measure, and rule on the dispute.",
    brief="Have the larger panel measure, and rule on the dispute.",
    operation="rule_on_dispute",
    schema="Ruling",
    schema_help="How a dispute is to be ruled on.",
    fields=(
        _FINAL,
        Field(
            "ground_confirmed",
            "yes_no",
            "Null: a recomputation is made, and says.",
            required=False,
            typed="confirmed",
        ),
    ),
    keyed=True,
    plan=_plan_rule,
    measure=lambda actor, id_, given: actor.workflow.rule(id_, **given),
)
SETTLE: Final = Move(
    name="settle",
    role="operator",
    help="Pay everybody what is due, or give everything back where the episode is void.",
    brief="Pay everybody, once the result can't be disputed any more.",
    operation="settle_episode",
    make=lambda actor, id_, _: actor.exchange.close(id_),
)

MOVES: Final = (
    STAKE, COMMIT, REVEAL, DISPUTE, OPEN, BEGIN, FREEZE, JUDGE, MEASURE, RULE, SETTLE
)  # fmt: skip
