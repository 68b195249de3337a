"""Charts of every kind for tests, and ways to look into them."""

import asyncio
from dataclasses import replace

import pytest

from heretix.api import _Call
from heretix.economy.episode.challenges import seed_commitment
from heretix.economy.episode.settlement import Outcome
from heretix.economy.episode.state import Parameters, Terms, draft_episode
from heretix.economy.ledger import PLAY
from heretix.economy.market import Position, Side, buy, market_of, seed_market
from heretix.economy.rewards import take_step
from heretix.measurement.record import Artifact, RunRecord
from heretix.measurement.runner import Retry
from heretix.report import charts

HOUR_MS = 3_600_000
MARKUP = "<script>alert(1)</script> & \"quotes\" are </title> 'fine' ]]> --> <svg onload=x>."


def measured(folder, claim, model, **options) -> RunRecord:
    """One run in a store of its own; failed calls are repeated without a pause."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Retry, "wait_s", lambda *_: 0.0)
        beliefs = asyncio.run(
            _Call((claim,), (model,), str(folder / "heretix.sqlite"), None, options).run()
        )
    return beliefs[0].record


def positions(bets=((Side.HERETIC, 3_000), (Side.ORTHODOX, 1_000), (Side.HERETIC, 500))):
    """The seed of a market and some bets, an hour apart."""
    seeded = seed_market("house", stake=10_000, heretic_ppm=300_000, at_ms=HOUR_MS)
    market, found = market_of(seeded), list(seeded)
    for number, (side, amount) in enumerate(bets, 2):
        bought = buy(market, side, amount, min_shares=0)
        market = bought.after
        found.append(
            Position(
                number=number,
                account=f"user:{number}",
                side=side,
                stake=amount,
                shares=bought.shares,
                at_ms=number * HOUR_MS,
            )
        )
    return found


def episode():
    """An episode with three accepted steps; the last bond is too short for its step."""
    terms = Terms(
        claim="tin whiskers short circuits",
        currency="PLAY",
        lens="mel",
        bank="rpl_v1",
        bank_sha256="0" * 64,
        models=("gpt-5",),
        judge_pool=tuple(f"judge-{n:02d}" for n in range(12)),
        K=16,
        R=2,
        T=16,
        B=5000,
        c0_ppm=300_000,
        seed_stake=10_000,
        seed_heretic_ppm=500_000,
        seed_commitment=seed_commitment(bytes(range(32))),
        challenge_from_ms=1_000,
        close_from_ms=8_000,
        close_until_ms=10_000,
        freeze_at_ms=11_000,
        parameters=Parameters(),
    )
    steps, at = [], terms.c0_ppm
    for number, goal in enumerate((450_000, 380_000, 900_000)):
        step = take_step(
            number=number,
            account=f"user:{number}",
            evidence="a" * 64,
            scale=100_000,
            c_from_ppm=at,
            c_to_ppm=goal,
            bond=10**9,
        )
        steps.append(step)
        at = step.c_to_ppm
    return replace(draft_episode("ep-1", terms), steps=tuple(steps))


OUTCOME = Outcome(
    winner=Side.HERETIC, tau_ppm=100_000, q_ppm=610_000, nearest_ppm=500_000, void=None
)
WEALTH = [
    charts.WealthPoint(strategy=name, at=at, wealth=1_000 + at * gain, lo=900, hi=1_200)
    for name, gain in (("honest", 12), ("noise", -5))
    for at in range(5)
]
JUDGED = [
    charts.JudgedClaim(prob_true=prob, is_true=is_true)
    for prob, is_true in (
        *((0.05, False), (0.08, False), (0.31, True), (0.33, False), (0.37, False)),
        *((0.92, True), (1.0, True), (None, True)),
    )
]
NAMES = (
    *("forest", "faulty_forest", "bootstrap", "vector", "influence", "controls", "comparison"),
    *("drift", "market", "path", "wealth", "reliability", "lost_forest", "lost_bootstrap"),
)


def again(run, number, **changes):
    """The same recipe in another execution."""
    day = f"2026-0{number}-01T10:00:00.000Z"
    changes = {"execution_id": f"exec-{number}", "started_at": day, **changes}
    return run.model_copy(update=changes)


def every_chart(theme, *, clean_run, faulty_run, lost_run, vector_artifact):
    """A chart of each kind, by name."""
    return {
        "forest": charts.template_forest(clean_run, theme=theme),
        "faulty_forest": charts.template_forest(faulty_run, theme=theme),
        "lost_forest": charts.template_forest(lost_run, theme=theme),
        "bootstrap": charts.bootstrap_distribution(clean_run, theme=theme),
        "lost_bootstrap": charts.bootstrap_distribution(lost_run, theme=theme),
        "vector": charts.belief_vector(vector_artifact, theme=theme),
        "influence": charts.document_influence(vector_artifact, theme=theme),
        "controls": charts.evidence_controls(vector_artifact, theme=theme),
        "comparison": charts.model_comparison([clean_run, faulty_run, lost_run], theme=theme),
        "drift": charts.drift([again(clean_run, 1), again(clean_run, 2)], theme=theme),
        "market": charts.market_history(positions(), currency=PLAY, theme=theme),
        "path": charts.credited_path(episode(), OUTCOME, theme=theme),
        "wealth": charts.wealth_by_strategy(WEALTH, unit="PLAY", theme=theme),
        "reliability": charts.reliability_diagram(JUDGED, theme=theme),
    }


def layers(chart):
    """All layers of all panels."""
    for panel in chart.get("vconcat", [chart]):
        yield from panel.get("layer", [panel])


def rows(chart, mark, *fields):
    """The data of the layers with this mark that encode all these fields."""
    return [
        row
        for part in layers(chart)
        if part["mark"]["type"] == mark
        for row in part["data"]["values"]
        if all(field in row for field in fields)
    ]


def texts(chart):
    """Everything that text marks say."""
    said = []
    for part in layers(chart):
        if part["mark"]["type"] == "text":
            field = part["encoding"]["text"]["field"]
            for row in part["data"]["values"]:
                said += row[field] if isinstance(row[field], list) else [str(row[field])]
    return said


def leaves(value, key=None):
    """(key, leaf) of a JSON tree."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield from leaves(part, name)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from leaves(part, key)
    else:
        yield key, value


def loose(runs):
    """Runs as they come out of a store: without what lies between them."""
    return Artifact.of(list(runs))
