"""Tests of QUANTAS's chains and their parasites."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

from wavetank.errors import BadValueError
from wavetank.protocols.quantas.chains import NewBlock, Parasites, QuantasChain
from wavetank.protocols.quantas.rounds import QuantasRounds
from wavetank.sim.events import simulate
from wavetank.sim.faults import Omission
from wavetank.sim.simulation import Run

NAMES = ("minedBlocks", "dagLongestChainLength", "dagCommonRootParasites", "dagTotalForkPoints")


def chain(rule: str, power: int) -> QuantasChain:
    return QuantasChain(rule=rule, submit_rate=10, rates=(power,), scaler=4 if rule == "longest" else 2)


def run(algorithm: QuantasChain, lead: int, seed: int, members: tuple[int, ...] = (0,), rounds: int = 400) -> Run:
    faults = (Parasites(members=members, lead=lead),) if members else ()
    return QuantasRounds().simulate(algorithm, rounds=rounds, size=10, seed=seed, faults=faults)


@pytest.mark.parametrize(
    ("rule", "power", "lead", "there"),
    [
        ("longest", 0, 1, (105.6, 93.8, 0.0, 11.3)),
        ("longest", 3, 3, (111.6, 81.1, 20.8, 17.1)),
        ("longest", 6, 2, (130.4, 101.6, 59.2, 21.3)),
        ("heaviest", 3, 3, (228.9, 150.8, 36.3, 47.1)),
        ("heaviest", 6, 2, (252.8, 171.1, 114.4, 57.4)),
    ],
)
def test_blocks_forks_and_parasites_are_as_many_as_in_quantas(
    rule: str, power: int, lead: int, there: tuple[float, ...]
) -> None:
    # Means of 10 tests there; standard errors of a mean are up to 5 blocks.
    tests = [chain(rule, power).series(run(chain(rule, power), lead, seed), 400) for seed in range(10)]
    found = [statistics.fmean(test[name][0] for test in tests) for name in NAMES]
    for ours, theirs in zip(found, there, strict=True):
        assert ours == pytest.approx(theirs, abs=max(4.0, 0.12 * theirs))


@pytest.mark.parametrize("rule", ["longest", "heaviest"])
def test_the_parasites_share_rises_with_their_power_and_is_more_than_fair_above_one_half(rule: str) -> None:
    shares = []
    for count in (2, 4, 6, 8):
        members = tuple(range(count))
        algorithm = QuantasChain(rule=rule, submit_rate=5, scaler=4)
        runs = [run(algorithm, 3, seed, members, 1500) for seed in range(3)]
        shares.append(statistics.fmean(algorithm.parasite_share(each) for each in runs))
    assert shares == sorted(shares)
    assert shares[2] > 0.6
    assert shares[3] > 0.8


def test_without_parasites_there_are_none() -> None:
    algorithm = chain("longest", 1)
    assert algorithm.parasite_share(run(algorithm, 1, 0, ())) == 0
    assert algorithm.parasite_share(run(algorithm, 1, 0, (), 1)) == 0


def test_a_secret_chain_stays_with_the_friends_until_it_leads() -> None:
    found = run(chain("longest", 9), 1000, 0, (0, 1))
    miners: list[Any] = [getattr(node, "inner", node) for node in found.nodes]
    secret = {name for name, block in miners[0].ledger.blocks.items() if block.parasite}
    assert len(secret) > 20
    assert not secret & set(miners[2].ledger.blocks)
    assert secret & set(miners[1].ledger.blocks)


def test_a_parasite_publishes_in_order_of_height() -> None:
    found = QuantasRounds().simulate(
        chain("longest", 9), rounds=300, size=10, faults=(Parasites(members=(0,), lead=4),), log=True
    )
    heard = [each.what for each in found.log if each.node == 5 and isinstance(each.what, NewBlock) and each.sender == 0]
    heights = [block.height for block in heard]
    assert len(heights) > 8
    assert heights == sorted(heights)
    assert all(block.parasite for block in heard)


def test_a_miners_odds_are_its_rate_over_that_of_the_others() -> None:
    assert QuantasChain(rates=(9,), scaler=5).odds(0, 11) == 9 / 50
    assert QuantasChain(rates=(9,), scaler=5).odds(3, 11) == 1 / 90
    assert QuantasChain(rates=(9, 0, -1)).odds(0, 3) == 1.0
    assert QuantasChain(rates=(0,)).odds(0, 3) == 0.0


def test_an_inactive_chain_does_nothing() -> None:
    quiet = QuantasChain(active=False)
    found = QuantasRounds().simulate(quiet, rounds=10_000, size=300)
    assert (found.sent, quiet.series(found, 10_000)) == (0, {})


def test_parasites_compose_with_other_faults_and_run_as_events() -> None:
    faults = (Parasites(members=(0, 1), lead=2), Omission(members=(1,), sending=0.5))
    for life in ("rounds", "events"):
        found = simulate(chain("heaviest", 6), size=10, until=300, life=life, faults=faults)
        assert chain("heaviest", 6).parasite_share(found) > 0.1


def test_parameters_are_checked() -> None:
    with pytest.raises(BadValueError):
        QuantasChain(rule="fastest")
    with pytest.raises(BadValueError):
        QuantasChain(scaler=0)
    with pytest.raises(BadValueError):
        Parasites(members=(0,), lead=0)
    assert QuantasChain().max_faults(12) == 5
