"""Real processes that send and apply deltas of pieces."""

import numpy as np
import pytest

from wavetank.errors import GaveUpError
from wavetank.training.rollouts import exchange
from wavetank.training.rollouts.exchange import exchanged
from wavetank.training.rollouts.shards import Cut, Weight, cut_up, plan

WEIGHTS = [
    Weight(name="embedding", shape=(101, 30), layer=0, axis=0), Weight(name="norm", shape=(64,), layer=1, axis=-1),
    Weight(name="up", shape=(60, 500), layer=1, axis=1), Weight(name="down", shape=(500, 60), layer=2, axis=0),
]  # fmt: skip
SOURCE, TARGET = Cut(tensor=1, stages=2, layers=3), Cut(tensor=2, layers=3)


def model(share):
    draws = np.random.default_rng(0)
    before = {each.name: draws.integers(0, 2**16, each.shape, dtype=np.uint16) for each in WEIGHTS}
    after = {name: array + (draws.random(array.shape) < share).astype(np.uint16) for name, array in before.items()}
    return before, after


def test_processes_make_the_shards_of_the_new_weights_in_a_twentieth_of_their_bytes():
    before, after = model(0.01)
    shards, sent = exchanged(WEIGHTS, SOURCE, TARGET, before, after)
    wanted = cut_up(after, WEIGHTS, TARGET)
    assert shards.keys() == wanted.keys()
    assert all((shards[key] == wanted[key]).all() for key in wanted)
    assert sent.keys() == {0, 1}
    assert 0 < sum(sent.values()) < 2 * sum(each.elements for each in plan(WEIGHTS, SOURCE, TARGET)) / 20


def test_a_server_that_never_answers_ends_in_an_error_and_leaves_no_process(monkeypatch):
    monkeypatch.setattr(exchange, "PATIENCE_S", 0.01)
    before, after = model(0.01)
    with pytest.raises(GaveUpError, match="did not answer"):
        exchanged(WEIGHTS, SOURCE, TARGET, before, after)
    assert not [each for each in exchange.multiprocessing.active_children() if each.name.startswith("Spawn")]
