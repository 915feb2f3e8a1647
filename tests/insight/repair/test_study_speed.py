"""The study: random graphs, questions whose answers are known, what blankets leave out."""

import numpy as np
import pytest

from wavetank.insight.repair.inference import BlanketInference, FullGraphInference
from wavetank.insight.repair.networks import ordered
from wavetank.insight.repair.study_speed import SEEN, BlanketSpeed, asked, drawn_levels, service_graph

SMALL = BlanketSpeed(sizes=(10, 80), questions=16, rounds=2)


def rows(system):
    return {(metric, *sorted(at.items())): value for metric, value, at in SMALL.measure(system, 7).rows}


def test_a_blanket_is_exact_where_everything_is_seen_and_near_where_faults_are_hidden():
    found = rows(BlanketInference())
    assert found[("posterior_gap", ("seen", "everything"))] <= 1e-12
    assert 0 < found[("posterior_gap", ("seen", "telemetry"))] < 0.5
    assert found[("posterior_gap",)] == found[("posterior_gap", ("seen", "telemetry"))]
    assert rows(FullGraphInference())[("posterior_gap",)] == 0.0


def test_the_mean_time_is_that_of_telemetry_over_sizes():
    found = rows(BlanketInference())
    times = [found[("latency_s", ("nodes", nodes), ("seen", "telemetry"))] for nodes in (10, 80)]
    assert found[("latency_s",)] == pytest.approx(np.sqrt(times[0] * times[1]))
    assert found[("blanket_nodes", ("nodes", 80))] > 0


def test_a_fifth_of_a_graph_are_faults_without_causes():
    network, faults = service_graph(3, 50)
    assert len(faults) == 10
    assert all(not network.parents[each] for each in faults)
    assert ordered(network.parents)
    assert all(network.parents[node] for node in range(50) if node not in faults)


def test_questions_hide_the_fault_or_all_faults():
    for seen, hidden in zip(SEEN, (1, 8), strict=True):
        network, questions, answers = asked(3, 40, seen, 3)
        assert all(len(network.names) - len(each.evidence) == hidden for each in questions)
        assert all(each.node not in each.evidence for each in questions)
        assert all(answer.sum() == pytest.approx(1.0) for answer in answers)


def test_drawn_levels_follow_the_tables():
    network, _ = service_graph(3, 6)
    share = np.mean([drawn_levels(network, seed)[0] for seed in range(2000)])
    assert share == pytest.approx(network.tables[0][1], abs=0.03)


def test_without_pgmpy_the_peer_is_left_out():
    from wavetank.insight.repair.inference import PgmpyInference

    study = BlanketSpeed(outside="/no/such/python", sizes=(10,), questions=2)
    assert study.measure(PgmpyInference(), 1).rows == []
    assert "left out" in study.notes()[0]
