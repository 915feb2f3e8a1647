from __future__ import annotations

import pytest

from wavetank.errors import BadValueError
from wavetank.ledger import catalog
from wavetank.protocols.digraphs.path_adversaries import PATH_ADVERSARIES
from wavetank.protocols.digraphs.study import ByzantineDigraphs, contraction
from wavetank.sim.simulation import Run

SMALL = ByzantineDigraphs(size=5, densities=(0.5, 0.9), graphs=25, tried=3)


def figures(name: str, study: ByzantineDigraphs = SMALL, seed: int = 0) -> dict[str, float]:
    found = study.measure(catalog.built_in().systems[name].build(), seed)
    return {metric: value for metric, value, at in found.rows if not at}


def test_signatures_enlarge_the_class_and_lies_shrink_it() -> None:
    shares = {name: figures(name)["solvable_share"] for name in catalog.built_in().plain_run(ByzantineDigraphs.name)}
    assert shares["crash-flooding"] > shares["signed-digraph-consensus"] > shares["unsigned-digraph-consensus"]
    assert shares["approximate-digraph-consensus"] == shares["unsigned-digraph-consensus"]


def test_no_run_breaks_where_the_condition_holds_and_every_attack_does_where_it_fails() -> None:
    found = figures("signed-digraph-consensus")
    assert found["runs"] > 0
    assert found["violations"] == 0
    assert found["broken_share"] == 1.0


@pytest.mark.parametrize("name", ["dolev-strong", "crash-flooding"])
def test_the_baselines_agree_on_their_own_networks(name: str) -> None:
    found = figures(name)
    assert found["violations"] == 0
    assert found["messages_per_decision"] > 0


def test_shares_grow_with_the_density() -> None:
    found = SMALL.measure(catalog.built_in().systems["crash-flooding"].build(), 0)
    by_density = [value for metric, value, at in found.rows if metric == "solvable_share_at_density"]
    assert by_density == sorted(by_density)


def test_equal_seeds_give_equal_figures() -> None:
    assert figures("signed-digraph-consensus", seed=4) == figures("signed-digraph-consensus", seed=4)


@pytest.mark.parametrize("name", ["unsigned-digraph-consensus", "approximate-digraph-consensus"])
def test_without_signatures_no_liar_breaks_it_where_three_reach_holds(name: str) -> None:
    found = figures(name)
    assert found["runs"] % len(PATH_ADVERSARIES) == 0
    assert found["runs"] > 0
    assert found["violations"] == 0
    assert found["messages_per_decision"] > 0


def test_the_range_shrinks_by_a_half_in_each_asynchronous_round() -> None:
    assert 0 < figures("approximate-digraph-consensus")["contraction"] <= 0.5
    assert "contraction" not in figures("unsigned-digraph-consensus")


def test_contraction_is_the_worst_round() -> None:
    run = Run(size=3, time=0.0, nodes=[], correct=frozenset({0, 1}))
    assert contraction(run) == 0.0
    values = [(0, 0.0), (1, 8.0), (2, -99.0), (0, 3.0), (1, 5.0), (0, 4.0), (1, 5.0)]
    run.recorded["value"] = [(0.0, node, value) for node, value in values]
    assert contraction(run) == 0.5


def test_as_many_faults_as_nodes_are_refused() -> None:
    with pytest.raises(BadValueError):
        ByzantineDigraphs(size=3, faults=3).check()
