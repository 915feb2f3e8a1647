"""The least recent latency times requests: what is measured, how it fades, and which of two is taken."""

from collections import Counter

import numpy as np
import pytest

from wavetank.platforms import FittedStepTime
from wavetank.serving.routing.baselines import FewestRequests, RandomWorker
from wavetank.serving.routing.interface import Arrival
from wavetank.serving.routing.least_latency import LeastLatency
from wavetank.serving.simulator.cluster import Cluster, WorkerKind
from wavetank.serving.simulator.reference import simulate_slowly
from wavetank.serving.simulator.simulate import simulate
from wavetank.workloads import generate_requests

AVERAGE = 0


@pytest.fixture
def serve(workers):
    """Send arrivals; return the choice and the averages of all workers."""

    def make(n, router=None):
        router = router or LeastLatency(looks="all")
        state, parameters = router.initial_state(n), router.parameters()

        def send(time_s, **view):
            chosen = int(router.choose(workers(n, **view), Arrival(time_s, 100.0, np.nan), state, parameters))
            return chosen, state[2:].reshape(n, -1)[:, AVERAGE].copy()

        return send

    return make


def test_without_a_measurement_the_fewest_requests_decide(serve):
    send = serve(3)
    assert send(0.0, running=[3, 1, 2])[0] == 1
    assert send(0.0, running=[3, 1, 1], sent_requests=[0, 1, 0])[0] == 2
    assert send(0.0, running=[3, 2, 1], waiting=[0, 0, 4])[0] == 1


def test_latency_is_the_time_of_those_who_were_there_over_those_who_left(serve):
    """Eight requests for two seconds, of which four left from the first and one from the second: 3 s and 15 s."""
    send = serve(2)
    send(0.0, running=[8, 8], takes=[0, 0])
    _, average = send(2.0, running=[4, 7], takes=[0, 0])
    # The mean of eight and four, and of eight and seven, over two seconds.
    assert average == pytest.approx([12.0 / 4, 15.0 / 1])


def test_what_was_sent_meanwhile_has_not_left(serve):
    send = serve(2)
    send(0.0, running=[8, 8], takes=[1, 0])
    send(0.5, running=[8, 8], sent_requests=[1, 0], takes=[1, 0], age_s=0.5)
    # Two came, so that eight left of ten are two that left.
    _, average = send(2.0, running=[8, 8], takes=[0, 0])
    assert average == pytest.approx([16.0 / 2, 1.0])


def test_until_the_next_look_nothing_is_measured_and_who_leaves_later_counts_from_the_last_one_on(serve):
    send = serve(1)
    send(0.0, running=[2])
    assert send(1.0, running=[2], sent_requests=[1], age_s=1.0)[1] == [1.0]
    assert send(2.0, running=[4])[1] == [1.0], "nobody has left yet"
    assert send(4.0, running=[3], takes=[0])[1] == pytest.approx([(2 * 3.0 + 2 * 3.5) / 2])


def test_a_peak_is_taken_at_once_and_fades_over_the_time_of_decay(serve):
    send = serve(1, LeastLatency(looks="all", decay_s=10.0, first_s=2.0))
    send(0.0, running=[10], takes=[0])
    assert send(10.0, running=[9], takes=[0])[1] == pytest.approx([95.0])
    # Nine in the middle of ten and eight for ten seconds, of which all left: 5 s.
    kept = np.exp(-1.0)
    assert send(20.0, running=[0], takes=[0])[1] == pytest.approx([kept * 95.0 + (1 - kept) * 5.0])


def test_cost_is_latency_times_requests(serve):
    for first, expected in ((1, 1), (2, 1), (3, 0)):
        send = serve(2)
        send(0.0, running=[4, 4], takes=[0, 0])
        # Four left within (4 + 6) / 4 = 2.5 s, two within (4 + 9) / 2 = 6.5 s.
        send(1.0, running=[4, 4], takes=[0, 0])
        send(4.0, running=[0, 2], takes=[0, 0])
        chosen, average = send(4.0, running=[8 - first, first - 1], age_s=1e-3)
        assert average == pytest.approx([2.5, 6.5])
        assert (first, chosen) == (first, expected)


def test_a_slow_worker_is_tried_again_when_nothing_was_heard_of_it_for_long(serve):
    send = serve(2, LeastLatency(looks="all", decay_s=5.0))
    send(0.0, running=[10, 10], takes=[0, 0])
    send(10.0, running=[9, 0], takes=[0, 0])
    assert send(10.0, running=[0, 0], age_s=1e-3)[0] == 1
    for second in range(11, 60):
        # The fast one goes on answering within half a second.
        send(float(second), running=[0, second % 2], takes=[0, 1])
    assert send(60.0, running=[0, 0])[0] == 0


def test_two_different_workers_are_drawn_evenly_and_the_cheaper_one_is_taken(workers, chosen):
    drawn = Counter(chosen(LeastLatency(), workers(4, running=[0, 1, 2, 3]), times=6000))
    # Of six pairs three have the first, two the second, one the third; four standard deviations are 0.026.
    assert [drawn[worker] / 6000 for worker in range(4)] == pytest.approx([1 / 2, 1 / 3, 1 / 6, 0], abs=0.026)
    assert chosen(LeastLatency(), workers(100), 50) != chosen(LeastLatency(seed=1), workers(100), 50)


def test_the_unfit_are_neither_drawn_nor_forgotten(workers, chosen):
    view = workers(4, takes=[0, 1, 1, 0], running=[0, 5, 6, 0])
    assert set(chosen(LeastLatency(), view, times=50)) == {1}
    assert chosen(LeastLatency(), workers(2, takes=0), times=3) == [0, 0, 0]
    assert chosen(LeastLatency(), workers(1), times=3) == [0, 0, 0]


def test_what_is_measured_is_near_the_mean_latency_of_the_answers():
    """A cluster at rest under an even load: the average of the routers is that of all requests."""
    requests = generate_requests(rate_per_s=20.0, n_requests=1500, seed=3)
    cluster = Cluster(workers=2, refresh_s=0.5)
    taken = []

    class Watching(LeastLatency):
        def choose(self, view, arrival, state, parameters):
            taken.append(state[2:].reshape(2, -1)[:, AVERAGE].copy())
            return LeastLatency.choose(view, arrival, state, parameters)

    run = simulate(requests, cluster, Watching(decay_s=1e6, first_s=1e-6))
    assert np.isfinite(taken).all()
    mean_s = float((run.finish_s - run.arrival_s).mean())
    # Peaks stay for as long as they decay: the average is above the mean, and below the slowest answer.
    assert mean_s < taken[-1].min() and taken[-1].max() < 3 * float((run.finish_s - run.arrival_s).max())


def test_compiled_and_step_by_step_simulation_agree():
    requests = generate_requests(rate_per_s=30.0, n_requests=200, seed=1)
    cluster = Cluster(workers=3, refresh_s=0.05)
    ours, readable = simulate(requests, cluster, LeastLatency()), simulate_slowly(requests, cluster, LeastLatency())
    assert ours.worker.tolist() == readable["worker"].tolist()
    assert ours.worker.tolist() != simulate(requests, cluster, FewestRequests()).worker.tolist()


def test_a_worker_that_is_slower_gets_less():
    requests = generate_requests(rate_per_s=30.0, n_requests=2000, seed=1)
    slow, fast = (
        WorkerKind(workers=2, step_time=FittedStepTime(overhead_s=each, per_prefill_token_s=1e-5))
        for each in (0.06, 0.02)
    )
    shares = [
        np.isin(simulate(requests, Cluster(workers=4, kinds=(slow, fast)), router).worker, (0, 1)).mean()
        for router in (RandomWorker(), LeastLatency())
    ]
    assert shares[1] < 0.4 < shares[0]
