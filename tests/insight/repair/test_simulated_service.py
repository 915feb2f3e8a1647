"""The simulated service: Gaussian toys with known answers, mixing, what is planted, wrong edges."""

import math

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.insight.repair.interface import FAULTS, LEVELS, NAMES
from wavetank.insight.repair.networks import ordered
from wavetank.insight.repair.simulated_service import SERVICE, Service, episodes, graph, kept, mixed


def phi(x):
    return 0.5 * (1 + math.erf(x / math.sqrt(2)))


@pytest.mark.parametrize(("distance", "accuracy", "acts"), [(1, 0.691, 0.121), (2, 0.841, 0.584), (3, 0.933, 0.841)])
def test_two_gaussian_faults_give_bayes_accuracy_and_coverage(distance, accuracy, acts):
    toy = Service(np.array([[distance / 2], [-distance / 2]]), np.zeros((1, 1)), np.ones(1))
    cases = episodes(3, "toy", 60_000, mixing=0.0, service=toy, windows=1, severity=(1.0, 1.0), healthy=0.0,
                     double=0.0, unknown=0.0)  # fmt: skip
    reading, first = cases.readings[:, 0, 0], cases.present[:, 0]
    chance = 1 / (1 + np.exp(-distance * reading))
    assert np.mean((chance > 0.5) == first) == pytest.approx(phi(distance / 2), abs=0.01)
    assert phi(distance / 2) == pytest.approx(accuracy, abs=1e-3)
    sure = np.maximum(chance, 1 - chance) >= 0.85
    limit = math.log(0.85 / 0.15)
    wanted = phi(distance / 2 - limit / distance) + phi(-distance / 2 - limit / distance)
    assert wanted == pytest.approx(acts, abs=1e-3)
    assert sure.mean() == pytest.approx(wanted, abs=0.01)


def test_a_healthy_service_reads_standard_deviations():
    healthy = episodes(1, "healthy", 5000, mixing=0.3, healthy=1.0, double=0.0, unknown=0.0)
    flat = healthy.readings.reshape(-1, 9)
    np.testing.assert_allclose(flat.mean(axis=0), 0, atol=0.03)
    np.testing.assert_allclose(flat.std(axis=0), 1, atol=0.03)
    assert not healthy.present.any()
    assert not healthy.unknown.any()


def test_shares_of_what_is_planted_are_as_asked():
    cases = episodes(2, "shares", 20_000, mixing=0.0)
    faults = cases.present.sum(axis=1)
    assert np.mean(faults == 2) == pytest.approx(0.1, abs=0.01)
    assert np.mean(cases.unknown) == pytest.approx(0.1, abs=0.01)
    assert np.mean((faults == 0) & ~cases.unknown) == pytest.approx(0.1, abs=0.01)
    assert not cases.present[cases.unknown].any()


def test_fully_mixed_faults_cannot_be_told_apart_by_means():
    patterns = mixed(SERVICE.patterns, 1.0)
    assert np.ptp(patterns, axis=0).max() < 1e-12
    cases = episodes(4, "mixed", 30_000, mixing=1.0, severity=(2.0, 2.0), healthy=0.0, double=0.0, unknown=0.0)
    means = np.stack([cases.readings[cases.present[:, fault]].mean(axis=(0, 1)) for fault in range(3)])
    assert np.ptp(means, axis=0).max() < 0.05
    assert means[0, 0] == pytest.approx(2 * SERVICE.patterns[:, 0].mean(), abs=0.03)


def test_the_objective_is_kept_up_to_the_limit_in_the_bad_direction_alone():
    limit = SERVICE.limit
    symptoms = np.array([[limit, -limit, limit], [limit + 0.01, 0, 0], [-9, 9, -9], [0, -limit - 0.01, 0]])
    assert kept(SERVICE, symptoms).tolist() == [True, False, True, False]


def test_equal_seeds_and_purposes_give_equal_cases():
    one, same, other = (episodes(seed, name, 50, mixing=0.2) for seed, name in ((1, "a"), (1, "a"), (1, "b")))
    np.testing.assert_array_equal(one.readings, same.readings)
    assert not np.array_equal(one.readings, other.readings)


def test_after_a_repair_its_fault_is_gone_and_everything_else_stays():
    before = episodes(5, "a", 4000, mixing=0.0, severity=(3.0, 3.0))
    none = np.full(4000, -1)
    same = episodes(5, "a", 4000, mixing=0.0, severity=(3.0, 3.0), repaired=none)
    np.testing.assert_array_equal(same.present, before.present)
    np.testing.assert_array_equal(same.unknown, before.unknown)
    assert not np.isclose(same.readings, before.readings).any(axis=(1, 2)).any()
    # What is planted is the same: means of cases agree, in noise of both.
    both = before.readings.mean(axis=1) - same.readings.mean(axis=1)
    assert np.abs(both).max() < 6 * np.sqrt(2 / 5)
    first = np.where(before.present[:, 0], 0, -1)
    after = episodes(5, "a", 4000, mixing=0.0, severity=(3.0, 3.0), repaired=first)
    assert not after.present[:, 0].any() and (after.present[:, 1:] == before.present[:, 1:]).all()
    alone = before.present[:, 0] & (before.present.sum(axis=1) == 1)
    np.testing.assert_allclose(after.readings[alone].mean(axis=(0, 1)), 0, atol=0.15)
    assert before.readings[alone, :, 0].mean() == pytest.approx(3 * SERVICE.patterns[0, 0], abs=0.15)


def test_wrong_edges_are_as_many_as_asked_and_leave_a_graph():
    def edges(parents):
        return {(start, node) for node, of in enumerate(parents) for start in of}

    right = edges(graph())
    for wrong in range(9):
        drawn = graph(wrong, seed=5)
        assert len(drawn) == len(NAMES) == len(LEVELS)
        ordered(drawn)
        assert len(right - edges(drawn)) == len(edges(drawn) - right) == wrong
        assert not any(drawn[: len(FAULTS)])


def test_impossible_services_are_refused():
    for bad in ({"cases": 0}, {"healthy": 0.9, "double": 0.2}, {"unknown": -0.1}, {"windows": 0}):
        with pytest.raises(BadValueError, match="shares"):
            episodes(0, "bad", **{"cases": 5, "mixing": 0.0, **bad})
    for mixing in (-0.1, 1.1, math.nan):
        with pytest.raises(BadValueError, match="between 0 and 1"):
            mixed(SERVICE.patterns, mixing)
    with pytest.raises(BadValueError, match="fewer edges"):
        graph(1000)
