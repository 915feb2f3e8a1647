"""Rules of one queue, and batches that wait."""

import pytest
from tests.serving.edge.conftest import profile_of

from wavetank.serving.edge.interface import Queues
from wavetank.serving.edge.rivals import Deferred, OneQueue

PROFILE = profile_of((0.01, 0.02), (0.01, 0.02), (0.01, 0.02))
QUEUES = Queues(1.0, 0.05, ([0.99], [0.98, 0.99, 0.995], [0.96, 0.99]))


@pytest.mark.parametrize(
    ("order", "turn", "model"), [("longest", 0, 1), ("oldest", 0, 2), ("turns", 0, 0), ("turns", 4, 1)]
)
def test_each_order_takes_its_queue(order, turn, model):
    assert OneQueue(order=order).choose(QUEUES, PROFILE, turn).model == model


@pytest.mark.parametrize(("exit_", "expected"), [("first", 0), ("final", 1), ("deepest", 0)])
def test_exits(exit_, expected):
    assert OneQueue(order="oldest", exit=exit_).choose(QUEUES, PROFILE, 0).exit == expected


def test_a_batch_waits_while_one_more_request_could_still_be_served_in_time():
    waits = Deferred().choose(Queues(1.0, 0.05, ([1.0], [], [])), PROFILE, 0)
    assert waits.batch == 0 and waits.until_s == pytest.approx(1.03)
    goes = Deferred().choose(Queues(1.03, 0.05, ([1.0], [], [])), PROFILE, 0)
    assert (goes.model, goes.batch, goes.exit) == (0, 1, 1)
    full = Deferred().choose(Queues(1.0, 0.05, ([1.0] * 6, [], [])), PROFILE, 0)
    assert full.batch == 4
