from __future__ import annotations

import pytest

from wavetank import catalog
from wavetank.errors import BadValueError
from wavetank.protocols.studies.byzantine_digraphs import ByzantineDigraphs

SMALL = ByzantineDigraphs(size=5, densities=(0.5, 0.9), graphs=25, tried=3)


def figures(name: str, study: ByzantineDigraphs = SMALL, seed: int = 0) -> dict[str, float]:
    found = study.measure(catalog.built_in().systems[name].build(), seed)
    return {metric: value for metric, value, at in found.rows if not at}


def test_signatures_enlarge_the_class_and_lies_shrink_it() -> None:
    shares = {name: figures(name)["solvable_share"] for name in ByzantineDigraphs.systems}
    assert shares["crash-flooding"] > shares["signed-digraph-consensus"] > shares["unsigned-condition"]


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


def test_a_condition_without_an_algorithm_is_only_counted() -> None:
    assert set(figures("unsigned-condition")) == {"solvable_share"}


def test_as_many_faults_as_nodes_are_refused() -> None:
    with pytest.raises(BadValueError):
        ByzantineDigraphs(size=3, faults=3).check()
