"""`heretix simulate`: who gains, as a table, as JSON and as a picture."""

import json

import pytest

from heretix.economy.simulation.play import Setup, simulate
from heretix.economy.simulation.table import Table


def test_a_simulation_prints_who_gains_and_the_ledger_it_ends_with(heretix):
    """The same seed ends with the same hash, which the library gives, too."""
    result = heretix("simulate", "--episodes", 20, "--seed", 3)
    assert result.code == 0
    for word in ("strategy", "99% interval", "honest", "noise", "whipsaw", "20 episodes", "seed 3"):
        assert word in result.out
    assert simulate(20, Setup(seed=3)).ledger_hash in result.out
    assert heretix("simulate", "-n", 20, "--seed", 3).out == result.out


def test_json_is_for_programs(heretix, folder):
    """Printed and written alike: every strategy with its mean, interval, total and sources."""
    result = heretix("simulate", "-n", 15, "--agents", "honest=2,noise=3,wash=1", "--json")
    report = json.loads(result.out)
    assert (report["episodes"], report["seed"]) == (15, 1)
    assert report["agents"] == {"honest": 2, "noise": 3, "wash": 1}
    assert [line["strategy"] for line in report["standings"]] == ["honest", "noise", "wash"]
    for line in report["standings"]:
        assert line["lo99"] <= line["mean"] <= line["hi99"]
        assert line["total"] == sum(line["sources"].values())
    assert sum(report["outcomes"].values()) == 15
    assert len(report["ledger_hash"]) == 64
    heretix("simulate", "-n", 15, "--agents", "honest=2,noise=3,wash=1", "--out", "r.json")
    assert json.loads((folder / "r.json").read_text()) == report


def test_attacks_can_sit_together(heretix):
    """All of them at every table when asked for."""
    report = json.loads(heretix("simulate", "-n", 2, "--attacks-at-once", 14, "--json").out)
    assert {line["episodes"] for line in report["standings"]} == {2}


@pytest.mark.parametrize("ending", ["svg", "html"])
def test_wealth_by_strategy_is_drawn(heretix, folder, ending):
    """A line for each strategy."""
    result = heretix("simulate", "-n", 5, "--plot", f"wealth.{ending}")
    assert result.code == 0
    assert "whipsaw" in (folder / f"wealth.{ending}").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--agents", "saint=1"), "must name strategies, got 'saint'"),
        (("--agents", "honest"), "must be like honest=4"),
        (("--agents", "honest=0"), "must seat somebody"),
        (("--plot", "wealth.gif"), "must end in one of"),
        (("--episodes", "0"), "Invalid value for '--episodes'"),
        (("--out", "."), "must be a file, got the directory"),
        (("--search", "--out", "."), "must be a file, got the directory"),
        (("--search", "--agents", "honest=1"), "leave out `--agents` and `--plot`"),
    ],
)
def test_mistakes_are_named_before_anything_is_played(heretix, options, message):
    """And end with 2."""
    result = heretix("simulate", *options)
    assert result.code == 2
    assert message in result.err


def test_ctrl_c_reports_what_was_finished(heretix, monkeypatch):
    """The episodes so far are the result."""
    close, played = Table.close, []

    def interrupted(table):
        if len(played) == 7:
            raise KeyboardInterrupt
        played.append(table)
        close(table)

    monkeypatch.setattr(Table, "close", interrupted)
    result = heretix("simulate", "-n", 50, "--json")
    assert result.code == 0
    assert "stopped after 7 of 50 episodes" in result.err
    report = json.loads(result.out)
    monkeypatch.undo()
    assert report["episodes"] == 7
    assert report["ledger_hash"] == simulate(7).ledger_hash
