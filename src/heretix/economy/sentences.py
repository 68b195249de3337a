"""Sentences of the economy: one catalogue of what reasons say, formatted for each surface.

Rules return codes and parameters; nothing here is parsed again. A field of a sentence names the
format of its parameter: `{stake:amount}`, `{due_ms:moment}`, `{rate_ppm:ppm}`.
"""

from __future__ import annotations

import string
from typing import TYPE_CHECKING, Any, Final

from heretix.core.clock import utc_text_of_ms
from heretix.core.errors import RefusedError
from heretix.economy.ledger import CURRENCIES, PPM, format_amount
from heretix.economy.market import MICRO

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from heretix.economy.episode.state import Denied, Episode
    from heretix.economy.ledger import Reason

PAYMENTS: Final[Mapping[str, str]] = {
    "issued": "issued {amount:money}",
    "market_seeded": "the house seeds the market at {heretic_ppm:ppm} for heretic",
    "budget_escrowed": "the most that durable updates can earn in this episode",
    "bet": "bet {number}: {stake:amount} on {side} for {shares:shares}",
    "bet_late": "bet {number} came after the close at {close_ms:moment}: given back whole",
    "bet_void": "bet {number}: {stake:amount} on {side}; void ({void:words}): the stake comes back "
    "whole",
    "bet_held": "bet {number}: {stake:amount} on {side}; held, no side won: the stake comes back "
    "whole",
    "bet_lost": "bet {number}: {stake:amount} on {side}; lost at a rate of {rate_ppm:ppm}: "
    "{stake:amount} − {paid:amount} = {receives:amount}",
    "bet_won": "bet {number}: {stake:amount} on {side}; won at a rate of {rate_ppm:ppm}: "
    "{stake:amount} + gain {gain:amount} (its share of {transfer:amount}) − fee {fee:amount} = "
    "{receives:amount}",
    "challenge": "challenge {number}: {stake:amount}, of which {least:amount} is lost if it fails",
    "challenge_late": "challenge {number} came after the close at {close_ms:moment}: given back "
    "whole",
    "challenge_passed": "challenge {number} passed: its stake is the bond of step {step}",
    "challenge_failed": "challenge {number} failed: the part of operations of {forfeit:amount}",
    "challenge_fund": "challenge {number} failed: the fund has the rest of {forfeit:amount}",
    "challenge_rest": "challenge {number} failed: what was staked beyond the least of "
    "{stake:amount} comes back",
    "challenge_short": "challenge {number} passed, and its stake comes back whole",
    "dispute": "dispute {round}: {ground:words}",
    "dispute_upheld": "dispute {round} was upheld: the bond comes back whole",
    "dispute_won": "dispute {round} was upheld: it is paid the bond that dispute {lost} lost",
    "dispute_lost": "dispute {round} changed nothing: the bond pays for the panel",
    "fee_platform": "the platform's share of {fees:amount} in fees",
    "fee_fund": "the share of durable updates of {fees:amount} in fees",
    "gains_dust": "what rounding the gains down left over",
    "bond_void": "step {number}; void: the bond comes back whole",
    "bond_returned": "step {number}: bond {bond:amount}, of which {lost:amount} is lost",
    "step_away": "step {number} moved away from the durable belief",
    "step_towards": "step {number} moved towards the durable belief by {amount:amount}",
    "budget_void": "void: the budget comes back whole",
    "budget_left": "what the budget has left",
}
"""Reason why money moved."""
REWARDS: Final[Mapping[str, str]] = {
    "reward_step": "step {number} by {account:holder}: evidence {evidence}",
    "reward_path": "credited belief: from {from_ppm:belief} to {to_ppm:belief}",
    "reward_bond": "bond: {bond:amount} posted, {needed:amount} needed for this move",
    "reward_durable": "durable belief: q = {q_ppm:belief}; scale B = {scale:amount}",
    "reward_before": "potential before: B·[q·ln c + (1-q)·ln(1-c)] at c = {c_ppm:belief} is "
    "{potential:amount}",
    "reward_after": "potential after: at c = {c_ppm:belief} it is {potential:amount}",
    "reward_amount": "reward: {after:amount} − ({before:amount}) = {amount:amount}",
    "reward_credited": "reputation: {credited:amount} of it counts; a gain counts only as far as "
    "it brought the path nearer to q than it ever was",
    "reward_gained": "receives: bond {bond:amount} + {change:amount} = {receives:amount}",
    "reward_lost": "receives: bond {bond:amount} − {change:amount} = {receives:amount}",
}
"""A reward line by line."""
SUMMARY: Final[Mapping[str, str]] = {
    "summary_start": "The belief was c₀ = {c0_ppm:belief} when the episode opened.",
    "summary_step": "Step {number}, by {account:holder}: accepted evidence moved the credited "
    "belief from {from_ppm:belief} to {to_ppm:belief}.",
    "summary_no_step": "No evidence was accepted, so the credited belief stayed there.",
    "summary_void": "Void ({void:words}): everything came back whole.",
    "summary_first": "q₁ = {q_ppm:belief} at the freeze: c₀ shifted, in log-odds, by the median of "
    "what {judges} judges moved with the evidence; P(up) = {p_up_ppm:ppm}.",
    "summary_second": "q₂ = {q_ppm:belief} after the durability window, from {judges} judges in "
    "the same way; P(up) = {p_up_ppm:ppm}.",
    "summary_durable": "The durable belief is q = {q_ppm:belief}, the one of q₁ and q₂ that is "
    "nearer to c₀: what fades isn't paid.",
    "summary_undone": "The durable belief is q = c₀ = {q_ppm:belief}, because q₁ and q₂ lie on "
    "different sides of it: nothing lasted.",
    "summary_up": "Heretic was right: P(up) was at least {bound_ppm:ppm} both times.",
    "summary_down": "Orthodox was right: P(up) was at most {bound_ppm:ppm} both times.",
    "summary_held": "Held, neither side was right: P(up) would have had to be at least "
    "{least_ppm:ppm} both times, or at most {most_ppm:ppm}; every stake came back whole.",
    "summary_one_sided": "Nobody but the house had bet on one side: the market alone is void, and "
    "every stake came back whole.",
    "summary_rate": "The rate is τ = {most_ppm:ppm}·min(1, D/ln 2) = {tau_ppm:ppm}, where "
    "D = KL({nearest_ppm:belief}‖{c0_ppm:belief}) = {nats} nats, at the end of the judges' "
    "intervals that is nearest to c₀.",
    "summary_market": "Losing bets gave up {given_up:amount}, τ of each; winners gained "
    "{gained:amount} of it by how early and boldly they bought, and {dust:amount} is what rounding "
    "left over.",
    "summary_fees": "Winners paid {fees:amount} of their gains as fees: {platform:amount} to the "
    "platform, {fund:amount} to the fund of rewards.",
    "summary_budget": "Of {budget:amount} set aside for evidence, steps towards q were paid "
    "{paid:amount}, steps away from it paid {lost:amount} in, and {left:amount} went back.",
    "summary_account": "{account:holder} came to {total:change}: {bets:change} by bets, "
    "{evidence:change} by evidence, {disputes:change} by disputes.",
}
"""An episode in short."""
DENIALS: Final[Mapping[str, str]] = {
    "wrong_state": "the episode must be {wanted}, it is {state}",
    "terms_changed": "the terms aren't those that were hashed at open",
    "challenges_begin": "challenges begin at {at_ms:moment}, it is {now_ms:moment}",
    "challenges_ended": "challenges ended at {at_ms:moment}, it is {now_ms:moment}",
    "stakes_ended": "stakes were taken until {at_ms:moment}, it is {now_ms:moment}",
    "reveals_begin": "evidence is shown when no bet is taken any more, after {at_ms:moment}, it is "
    "{now_ms:moment}",
    "claim_taken": "`{episode}` asks about the same claim and hasn't ended: one is open at a time",
    "terms_stale": "evidence on this claim was paid for since the draft: draft it again",
    "reveals_ended": "reveals were taken until {at_ms:moment}, it is {now_ms:moment}",
    "freeze_due": "the freeze is at {at_ms:moment}, it is {now_ms:moment}",
    "second_due": "the second measurement is due at {at_ms:moment}, it is {now_ms:moment}",
    "disputes_ended": "the result could be disputed until {at_ms:moment}, it is {now_ms:moment}",
    "disputes_open": "the result can be disputed until {at_ms:moment}, it is {now_ms:moment}",
    "wrong_seed": "the seed isn't the one that was committed to at open",
    "bet_not_positive": "amount_not_positive: a stake must be above 0, got {amount:money}",
    "pool_too_large": "pool_too_large: a market holds at most {most:money}, not {amount:money} "
    "more",
    "too_few_shares": "too_few_shares: {amount:money} buys {shares} micro-shares now, not "
    "{min_shares}; quote again",
    "stake_too_small": "the stake must be at least {least:money}, got {got:money}",
    "bond_too_small": "the bond must be at least {least:money}, got {got:money}",
    "commitment_taken": "this account made this commitment before",
    "unknown_challenge": "there is no challenge {number}",
    "not_hidden": "challenge {number} is {fate}",
    "wrong_reveal": "this isn't what was committed to",
    "not_earliest": "challenge {number} isn't the earliest that is left to judge",
    "unjudged_challenges": "every challenge must be judged first",
    "first_not_measured": "measure first at first",
    "wrong_judges": "the judges are {judges}",
    "worth_measuring": "evidence or bets on both sides wait for the judges: measure",
    "no_rounds_left": "a result can be disputed {rounds} times",
    "dispute_pending": "a dispute is being ruled on",
    "dispute_unruled": "the dispute must be ruled on first",
    "no_dispute": "there is no dispute left to rule on",
}
"""Reason why a move of an episode was refused."""
FAILURES: Final[Mapping[str, str]] = {
    "never_revealed": "it was never revealed",
    "same_evidence": "an earlier challenge brought the same evidence",
    "not_measured": "its evidence could not be measured",
    "never_handed_in": "its evidence was never handed in",
    "nothing_new": "it shows nothing new",
    "model_unreachable": "a model of the lens could not be reached",
    "low_compliance": "compliance must be at least {least_ppm:ppm}, got {got_ppm:ppm}",
    "no_estimate": "{detail}",
    "bond_short": "as a bond it had to be {needed:amount}, it was {bond:amount}",
    "too_few_slots": "K must be at least {least}, got {got}",
    "interval_too_wide": "the interval must be at most {most_ppm:ppm} wide, got {got_ppm:ppm}",
    "direction_uncertain": "P({direction}) must be at least {least_ppm:ppm}, got {got_ppm:ppm}",
    "placebo": "P({direction}) must be at least {least_ppm:ppm} against irrelevant text of the "
    "same length, too, got {got_ppm:ppm}",
}
"""Reason why a challenge earned nothing."""
OBJECTIONS: Final[Mapping[str, str]] = {
    "other_claim": "it was made for another claim: {claim!r}",
    "no_document": "it holds no document",
    "too_many_documents": "it may hold at most {most} documents, got {got}",
    "document_too_long": "the {part} of a document may have at most {most} characters, got {got}",
    "instruction": "it looks like an instruction: {kinds}",
    "shown_before": "it was shown before",
}
"""Reason why a bundle can't be brought, or a document of it isn't shown."""
VERDICTS: Final[Mapping[str, str]] = {
    "empty_group": "group {group!r} holds no transfer",
    "duplicate_id": "id {id!r} stands twice",
    "id_conflict": "id {id!r} or its group was used before with another body",
    "group_conflict": "group {group!r} was used before with other transfers",
    "already_applied": "group {group!r} was applied before",
    "amount_not_positive": "an amount must be above 0, got {amount}",
    "amount_too_large": "an amount must be at most {most}, got {amount}",
    "same_account": "{account!r} can't pay itself",
    "unknown_account": "no account {account!r}",
    "currency_mismatch": "{currency} can't move from an account in {debit} to one in {credit}",
    "not_transferable": "{currency} can only be issued and burnt",
    "unknown_episode": "no episode {episode!r}",
    "wrong_episode": "{account!r} belongs to {owner!r}, not to {episode!r}",
    "closed_episode": "episode {episode!r} has ended",
    "insufficient_funds": "{account!r} has {had:money} left and would need {wanted:money}",
    "balance_too_large": "a balance must stay within {most} either way",
    "escrow_not_empty": "{account!r} would be left with {left:money}",
}
"""Reason why the ledger refused a group."""
SENTENCES: Final = {
    **PAYMENTS,
    **REWARDS,
    **SUMMARY,
    **DENIALS,
    **FAILURES,
    **OBJECTIONS,
    **VERDICTS,
}


class Surface(string.Formatter):
    """Formats of the terminal, the library and the API. Pages have their own."""

    def __init__(self, currency: str = "PLAY") -> None:
        self.currency = currency

    def money(self, minor: int) -> str:
        """Write an amount with its currency."""
        return format_amount(minor, CURRENCIES[self.currency])

    def amount(self, minor: int) -> str:
        """Write an amount where the currency stands beside it."""
        return self.money(minor).rpartition(" ")[0]

    def change(self, minor: int) -> str:
        """Write an amount as what was gained or lost."""
        return f"{'+' if minor > 0 else ''}{self.amount(minor)}"

    def moment(self, at_ms: int) -> str:
        """Write a moment in UTC, to the second."""
        return utc_text_of_ms(at_ms)

    def ppm(self, value: int) -> str:
        """Write parts per million as percent, every digit."""
        return f"{value * 100 / PPM:.4f}".rstrip("0").rstrip(".") + "%"

    def belief(self, ppm: int) -> str:
        """Write a belief as percent with four decimals."""
        return f"{ppm // 10_000}.{ppm % 10_000:04d}%"

    def shares(self, micro: int) -> str:
        """Write shares: as many as units of the currency that they pay."""
        return f"{micro / MICRO / 10 ** CURRENCIES[self.currency].exponent:,.4f} shares"

    def holder(self, account: str) -> str:
        """Write whose account it is."""
        return account

    def words(self, code: str) -> str:
        """Write a code as words."""
        return code.replace("_", " ")

    def format_field(self, value: Any, format_spec: str) -> str:
        """Write a parameter in the format that its field names."""
        write = getattr(self, format_spec) if format_spec else str
        return str(write(value))

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return a parameter; the currency is the surface's unless the reason names its own."""
        return kwargs.get(str(key), self.currency if key == "currency" else None)


def sentence(reason: Reason, surface: Surface | None = None) -> str:
    """Say a reason in the words of a surface: the terminal's unless another is given."""
    parameters = reason.parameters
    surface = surface or Surface(str(parameters.get("currency", "PLAY")))
    said = surface.vformat(SENTENCES[reason.code], (), parameters)
    return said if reason.because is None else f"{said}: {sentence(reason.because, surface)}"


def refuse_move(episode: Episode, denied: Denied) -> RefusedError:
    """Return the error that tells of a refused move of an episode."""
    status, said = denied.denial.value, sentence(denied.reason, Surface(episode.terms.currency))
    return RefusedError(
        f"`{episode.id}` refused the move ({status}): {said}", status=status, reason=denied.reason
    )
