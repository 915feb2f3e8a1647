"""Rankings of services on small graphs of calls whose answers are known."""

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.insight.repair.causes import (
    BlanketCauses,
    CommonestCause,
    DeepestDeparture,
    LargestDeparture,
    RandomCause,
    ShopCase,
)
from wavetank.insight.repair.networks import posterior

# A site calls search and pay, search calls a table.
CALLS = ((1, 2), (3,), (), ())
SERVICES = ("site", "search", "pay", "table")


def case(departure, cause="search", group="g", number=0):
    return ShopCase(SERVICES, CALLS, np.array(departure), cause, group, number)


def test_a_departure_that_a_callee_explains_is_less_suspicious():
    found = BlanketCauses().suspicion(case([50.0, 20.0, 0.0, 0.0]), [], 0)
    assert found.argmax() == 1
    # Site: 1 - 0.95 0.1 0.5 with its fault, 1 - 0.95 0.5 without; search: 1 - 0.95 0.1 and 0.05.
    for place, (own, none) in ((0, (0.9525, 0.525)), (1, (0.905, 0.05))):
        odds = 0.02 * own / (0.98 * none)
        assert found[place] == pytest.approx(odds / (1 + odds), abs=1e-8)


def test_the_blanket_is_the_whole_graph_where_every_service_reports():
    causes, of = BlanketCauses(), case([50.0, 20.0, 0.0, 7.0])
    network = causes.network(of)
    evidence = {4 + node: int(of.departure[node] > 3) for node in range(4)}
    found = causes.suspicion(of, [], 0)
    for node in range(4):
        table, _ = posterior(network, (node,), evidence)
        assert found[node] == pytest.approx(table[1], abs=1e-8)


def test_a_service_that_reports_nothing_keeps_its_prior():
    found = BlanketCauses().suspicion(case([np.nan, 1.0, 1.0, 1.0]), [], 0)
    assert found[0] == pytest.approx(0.02, abs=1e-8)
    assert np.isfinite(BlanketCauses().suspicion(case([np.nan] * 4), [], 0)).all()


def test_the_deepest_departure_comes_before_larger_ones():
    found = DeepestDeparture().suspicion(case([50.0, 20.0, 0.0, 1.0]), [], 0)
    assert np.argsort(-found).tolist()[:2] == [1, 0]
    assert LargestDeparture().suspicion(case([50.0, 20.0, np.nan, 1.0]), [], 0).tolist() == [50.0, 20.0, -1.0, 1.0]


def test_the_commonest_cause_looks_at_others_alone():
    others = [case([0.0] * 4, cause=each) for each in ("pay", "pay", "table")]
    assert CommonestCause().suspicion(case([9.0] * 4), others, 0).tolist() == [0.0, 0.0, 2.0, 1.0]


def test_chance_draws_anew_for_each_incident_and_seed_and_repeats():
    def draw(number, seed):
        return RandomCause().suspicion(case([0.0] * 4, number=number), [], seed).tolist()

    assert draw(0, 1) == draw(0, 1)
    assert draw(0, 1) != draw(1, 1)
    assert draw(0, 1) != draw(0, 2)


def test_graphs_that_no_table_holds_are_refused():
    many = 20
    wide = ShopCase(tuple(f"s{each}" for each in range(many)), (tuple(range(1, many)), *((),) * (many - 1)),
                    np.zeros(many), "s1", "g", 0)  # fmt: skip
    with pytest.raises(BadValueError, match="too many"):
        BlanketCauses().suspicion(wide, [], 0)
    circle = ShopCase(("a", "b"), ((1,), (0,)), np.zeros(2), "a", "g", 0)
    with pytest.raises(BadValueError, match="no cycle"):
        BlanketCauses().suspicion(circle, [], 0)
    with pytest.raises(BadValueError):
        BlanketCauses(prior=0.0)
