"""Networks that are really served."""

import itertools
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from wavetank.errors import BadValueError, WavetankError
from wavetank.serving.edge import live
from wavetank.serving.edge.edge_serving import EdgeServing
from wavetank.serving.edge.interface import Decision
from wavetank.serving.edge.live import PAGE, profile_networks, send_when_due, serve_edge
from wavetank.serving.edge.networks import EXITS, ExitNetwork
from wavetank.serving.edge.rivals import Deferred, OneQueue

RNG = np.random.default_rng(0)
IMAGES = RNG.uniform(0, 1, (50, 64)).astype(np.float32)


def made(blocks, width=64):
    """Return a network that was never trained: for times, and for answers that can be computed again."""

    def layer(rows, columns):
        return RNG.normal(0, 0.1, (rows + 1, columns)).astype(np.float32)

    return ExitNetwork(
        stem=layer(64, width), stages=tuple(tuple(layer(width, width) for _ in range(blocks)) for _ in range(EXITS)),
        heads=tuple(layer(width, 10) for _ in range(EXITS)),
    )  # fmt: skip


NETWORKS = (made(1), made(2))
LABELS = NETWORKS[0].labels(IMAGES, EXITS - 1)
MEAN, HIGH = profile_networks(NETWORKS, IMAGES, LABELS, max_batch=4, rounds=20)


def arrivals(count=60, span_s=0.3):
    return [np.sort(RNG.uniform(0, span_s, count)) for _ in NETWORKS]


def test_the_profile_has_the_time_of_every_model_exit_and_batch(monkeypatch):
    """A clock that batches advance: by a planted time, and by twice as much in one call of four."""
    now, calls = [0.0], [0]

    def answered(network, images, labels, requests, exit_):
        calls[0] += 1
        planted = (network is NETWORKS[1]) + 0.1 * (exit_ + 1) + 0.01 * len(requests)
        now[0] += planted * (2 if calls[0] % 4 == 0 else 1)

    monkeypatch.setattr(live, "_answered", answered)
    monkeypatch.setattr(live, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    mean, high = profile_networks(NETWORKS, IMAGES, LABELS, max_batch=4, rounds=400)
    assert (len(mean.models), mean.exits, mean.max_batch) == (2, EXITS, 4)
    for model, exit_, batch in itertools.product(range(2), range(EXITS), range(1, 5)):
        planted = model + 0.1 * (exit_ + 1) + 0.01 * batch
        assert mean.seconds(model, exit_, batch) == pytest.approx(1.25 * planted, rel=0.08)
        assert high.seconds(model, exit_, batch) == pytest.approx(2 * planted)
    assert mean.accuracy[0][3] == 1.0 > mean.accuracy[1][3]


@pytest.mark.parametrize("scheduler", [EdgeServing(), OneQueue(), OneQueue(order="turns", exit="first"),
                                       OneQueue(order="oldest", exit="deepest"), Deferred()])  # fmt: skip
def test_every_request_ends_once_and_gets_its_own_answer(scheduler):
    run = serve_edge(NETWORKS, IMAGES, LABELS, arrivals(), HIGH, scheduler, 10.0)
    assert run.model.size == 120 and not np.isnan(run.arrival_s).any()
    assert (run.exit >= 0).all() and (run.finish_s > run.arrival_s).all()
    for i in range(run.model.size):
        shown = (i * PAGE + np.arange(PAGE)) % len(IMAGES)
        said = NETWORKS[run.model[i]].labels(IMAGES[shown], int(run.exit[i]))
        assert run.right[i] == pytest.approx((said == LABELS[shown]).mean())


def test_requests_of_a_model_are_served_in_their_order():
    run = serve_edge(NETWORKS, IMAGES, LABELS, arrivals(), HIGH, EdgeServing(), 10.0)
    for model in (0, 1):
        assert (np.diff(run.finish_s[run.model == model]) >= 0).all()


class Clock:
    """Moves while somebody waits: by too little at first, and then by a millisecond too much."""

    def __init__(self, now_s, stops_at_s=float("inf")):
        self.now_s, self.stops_at_s, self.short = now_s, stops_at_s, False

    def __call__(self):
        return self.now_s

    def wait(self, seconds):
        self.short = not self.short and seconds > 0
        self.now_s += 0.5 * seconds if self.short else seconds + 0.001
        return self.now_s >= self.stops_at_s


def test_requests_are_sent_when_they_are_due_and_never_before():
    """A wait that ends early is waited again; those that came due meanwhile are sent at once, in their order."""
    clock, sent = Clock(100.0), []
    due = [0.0, 0.5, 0.5004, 2.0, 2.0]
    send_when_due(due, lambda number, at_s: sent.append((number, at_s)), clock.wait, 100.0, clock)
    assert [number for number, _ in sent] == list(range(5))
    late_s = np.array([at_s for _, at_s in sent]) - due
    assert late_s.min() >= 0 and late_s.max() <= 0.0021, "no later than a millisecond for each of two waits"


def test_nothing_is_sent_after_the_end_of_a_run():
    clock, sent = Clock(0.0, stops_at_s=1.0), []
    send_when_due([0.2, 0.9, 1.5, 1.6], lambda number, at_s: sent.append(number), clock.wait, 0.0, clock)
    assert sent == [0, 1]


def test_a_run_keeps_when_requests_were_sent_and_none_came_before_it_was_due():
    due = arrivals(40, 0.4)
    run = serve_edge(NETWORKS, IMAGES, LABELS, due, HIGH, EdgeServing(), 10.0)
    assert (np.sort(run.arrival_s) - np.sort(np.concatenate(due))).min() > -1e-9
    for model in (0, 1):
        assert (np.diff(run.arrival_s[run.model == model]) >= 0).all()


def test_what_is_late_is_dropped_by_who_drops():
    run = serve_edge(NETWORKS, IMAGES, LABELS, arrivals(), HIGH, Deferred(), 1e-9)
    assert (run.exit == -1).all() and np.isnan(run.finish_s).all()
    assert run.figures(MEAN, 1e-9, 0)["violation_ratio"] == 1.0


def test_a_batch_that_does_not_exist_ends_the_run_and_the_client():
    class Wrong:
        drops_late = False

        def choose(self, queues, profile, turn):
            return Decision(0, 99, 0)

    before = threading.active_count()
    with pytest.raises(WavetankError, match="does not exist"):
        serve_edge(NETWORKS, IMAGES, LABELS, arrivals(span_s=30.0), HIGH, Wrong(), 1.0)
    until = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < until:
        time.sleep(0.01)
    assert threading.active_count() == before


def test_arrivals_for_other_networks_are_refused():
    with pytest.raises(BadValueError):
        serve_edge(NETWORKS, IMAGES, LABELS, arrivals()[:1], HIGH, EdgeServing(), 1.0)
    never = [np.array([float("nan")]), np.array([])]
    for times, slo_s in ((never, 1.0), (arrivals(), float("nan"))):
        with pytest.raises(BadValueError):
            serve_edge(NETWORKS, IMAGES, LABELS, times, HIGH, EdgeServing(), slo_s)
