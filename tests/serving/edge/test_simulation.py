"""One device in simulation: known times, what counts as late, and schedulers that choose nonsense."""

from dataclasses import dataclass

import numpy as np
import pytest
from tests.serving.edge.conftest import profile_of

from wavetank.errors import BadValueError, WavetankError
from wavetank.serving.edge.edge_serving import EdgeServing
from wavetank.serving.edge.interface import Decision
from wavetank.serving.edge.rivals import Deferred, OneQueue
from wavetank.serving.edge.simulation import simulate_edge

ONE = profile_of((0.01, 0.02))


def poisson(rate, seconds, seed=0):
    draws = np.random.default_rng(seed)
    return np.sort(draws.uniform(0, seconds, draws.poisson(rate * seconds)))


def test_batches_follow_one_another_and_times_are_known():
    run = simulate_edge([np.array([0.0, 0.005, 0.006])], ONE, OneQueue(), 1.0)
    assert run.finish_s == pytest.approx([0.02, 0.04, 0.04])


def test_one_model_at_low_load_always_takes_the_last_exit_and_is_never_late():
    run = simulate_edge([np.arange(200) * 0.1], ONE, EdgeServing(), 0.05)
    figures = run.figures(ONE, 0.05, 0)
    assert figures["violation_ratio"] == 0.0 and figures["exit_depth"] == 2.0
    assert figures["accuracy"] == figures["in_time_accuracy"] == pytest.approx(0.6)
    assert figures["p95_s"] == pytest.approx(0.02)


def test_a_deadline_below_the_shortest_inference_gives_the_shallowest_exit_and_all_are_late():
    run = simulate_edge([poisson(50, 5)], ONE, EdgeServing(), 0.005)
    figures = run.figures(ONE, 0.005, 0)
    assert figures["violation_ratio"] == 1.0 and figures["exit_depth"] == 1.0 and figures["in_time_accuracy"] == 0.0


def test_without_exits_one_model_is_served_as_by_the_longest_queue():
    arrivals = [poisson(120, 10)]
    mine = simulate_edge(arrivals, ONE, EdgeServing(early_exits=False), 0.05)
    assert mine.finish_s.tolist() == simulate_edge(arrivals, ONE, OneQueue(), 0.05).finish_s.tolist()


def test_single_requests_at_fixed_times_wait_as_in_an_md1_queue():
    profile = profile_of((0.01,), batch=1)
    run = simulate_edge([poisson(70, 3000)], profile, OneQueue(), 1.0)
    # Pollaczek and Khinchine: rho s / (2 (1 - rho)) at rho = 0.7.
    assert (run.finish_s - run.arrival_s).mean() - 0.01 == pytest.approx(0.7 * 0.01 / 0.6, rel=0.03)


def test_late_requests_are_dropped_by_the_rule_that_says_so_and_count_as_late_and_wrong():
    arrivals = [np.zeros(40)]
    run = simulate_edge(arrivals, ONE, Deferred(), 0.05)
    figures = run.figures(ONE, 0.05, 0)
    assert figures["dropped_share"] == figures["violation_ratio"] == pytest.approx(32 / 40)
    assert figures["accuracy"] == pytest.approx(0.6 * 8 / 40)


@dataclass(frozen=True)
class Wrong:
    decision: Decision
    drops_late = False

    def choose(self, queues, profile, turn):
        return self.decision


@pytest.mark.parametrize(
    "decision", [Decision(0, 9, 0), Decision(3, 1, 0), Decision(0, 1, 7), Decision(0, 0, 0), Decision(0, 0, 0, -1.0)]
)
def test_a_scheduler_that_chooses_nonsense_is_named(decision):
    with pytest.raises(WavetankError, match="Wrong"):
        simulate_edge([np.array([0.0])], ONE, Wrong(decision), 0.05)


def test_no_arrivals_of_a_model_and_a_warm_up_of_everything_are_refused():
    with pytest.raises(BadValueError):
        simulate_edge([], ONE, OneQueue(), 0.05)
    with pytest.raises(BadValueError, match="warm-up"):
        simulate_edge([np.array([0.0])], ONE, OneQueue(), 0.05).figures(ONE, 0.05, 5)


NAN = float("nan")


@pytest.mark.parametrize("times", [[0.0, NAN], [0.0, float("inf")], [-1.0], [1.0, 0.5]], ids=str)
def test_arrivals_that_are_no_times_in_order_are_refused_instead_of_waited_for(times):
    with pytest.raises(BadValueError, match="Arrivals are times"):
        simulate_edge([np.array(times)], ONE, OneQueue(), 0.05)


@pytest.mark.parametrize("slo_s", [0.0, -1.0, NAN, float("inf")])
def test_deadlines_that_are_no_times_are_refused(slo_s):
    with pytest.raises(BadValueError, match="deadline"):
        simulate_edge([np.array([0.0])], ONE, EdgeServing(), slo_s)


@pytest.mark.parametrize(
    "wrong",
    [
        {"noise": np.array([])}, {"noise": np.array([1.0, -1.0])}, {"noise": np.array([NAN])}, {"decision_s": -1.0},
        {"decision_s": NAN}, {"actual": profile_of((0.01, 0.02), batch=2)}, {"actual": profile_of((0.01,))},
    ],
    ids=lambda wrong: next(iter(wrong)),
)  # fmt: skip
def test_noise_decisions_and_devices_that_make_no_sense_are_refused(wrong):
    with pytest.raises(BadValueError):
        simulate_edge([np.array([0.0])], ONE, OneQueue(), 0.05, **wrong)
