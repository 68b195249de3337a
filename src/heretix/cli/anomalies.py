"""`heretix anomalies`: where evidence moves a model most."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from heretix.cli import options as opt
from heretix.cli.output import print_json

__all__ = ["anomalies"]


def anomalies(
    limit: Annotated[int, typer.Option("--limit", "-n", help="At most this many.", min=1)] = 20,
    everything: Annotated[
        bool, typer.Option("--all", help="Also those that don't pass, with why.")
    ] = False,
    db: opt.DbOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Rank stored claims by how far evidence moves the belief in them.

    Listed are claims with at least 3 documents from 2 effective sources, verified quotes and a
    stable raw prior; of those listed, at most 10% are expected to be there by chance.
    """
    from rich.table import Table
    from rich.text import Text

    from heretix.measurement.anomalies import find_anomalies
    from heretix.settings import Settings
    from heretix.store import Store

    location = db or Settings.from_env().db
    with Store.open(location, create=False, absent=opt.NOTHING_SHOWN) as store:
        found = find_anomalies(store)
    shown = [anomaly for anomaly in found if anomaly.listed or everything][:limit]
    if as_json:
        content = [
            {
                **asdict(anomaly),
                "shock_index": anomaly.shock_index and anomaly.shock_index.model_dump(),
                "amplification_gap": anomaly.amplification_gap
                and anomaly.amplification_gap.model_dump(),
            }
            for anomaly in shown
        ]
        print_json(content)
        return
    console = opt.console()
    if not found:
        console.print(
            'no claim was measured with evidence yet; `heretix lens "A claim."` does that'
        )
        return
    if not shown:
        console.print(
            f"no anomalies among {len(found)} claims with evidence lenses; "
            "`heretix lens` measures more, --all shows why these don't pass"
        )
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("Shock Index", "Amplification Gap", "model"):
        table.add_column(name, no_wrap=True)
    table.add_column("claim")
    for anomaly in shown:
        shock, gap = anomaly.shock_index, anomaly.amplification_gap
        claim = Text(" ".join(anomaly.claim.split()), no_wrap=True, overflow="ellipsis")
        if not anomaly.listed:
            why = ", ".join(anomaly.gates_failed) or "could be chance"
            claim = Text(f"({why}) ", style="yellow") + claim
        table.add_row(
            "—" if shock is None else f"{shock.value:.3f} [{shock.lo:.3f}, {shock.hi:.3f}]",
            "—" if gap is None else f"{gap.value:+.3f} [{gap.lo:+.3f}, {gap.hi:+.3f}]",
            Text(anomaly.model),
            claim,
        )
    console.print(table)
