"""Networks that are trained on digits."""

import numpy as np
import pytest

from wavetank.serving.edge import networks as module
from wavetank.serving.edge.networks import EXITS, ExitNetwork, digits, networks, train

pytest.importorskip("torch")
pytest.importorskip("sklearn")


def test_exits_of_a_network_by_hand():
    one = np.vstack([np.eye(2), np.zeros(2)]).astype(np.float32)
    # The stem keeps both numbers where they are positive; every block doubles the sum with what is positive.
    network = ExitNetwork(stem=one, stages=((one,), (one, one)), heads=(one, one[:, ::-1].copy()))
    image = np.array([[3.0, 1.0], [-5.0, 2.0]], np.float32)
    assert network.labels(image, 0).tolist() == [0, 1]
    assert network.labels(image, 1).tolist() == [1, 0]


def test_trained_networks_read_digits_that_they_did_not_see():
    _, _, images, labels = digits()
    for network in networks():
        right = [float((network.labels(images, exit_) == labels).mean()) for exit_ in range(EXITS)]
        assert min(right) > 0.9 and right[-1] > 0.94
    # Half of the images turned upside down are no longer read: the labels belong to the images.
    assert (networks()[0].labels(images[:, ::-1].copy(), 3) == labels).mean() < 0.6


def test_requests_show_nothing_that_was_trained_on():
    seen, _, left, labels = digits()
    assert left.shape == (597, 64) and labels.shape == (597,)
    known = {each.tobytes() for each in seen}
    assert sum(each.tobytes() in known for each in left) == 0


def test_training_is_deterministic_and_learns():
    a, b = train(1, 0, epochs=1), train(1, 0, epochs=1)
    assert np.allclose(a.heads[0], b.heads[0], atol=1e-4)
    _, _, images, labels = digits()
    assert (a.labels(images, 3) == labels).mean() > 0.3


def test_kept_networks_are_those_that_were_trained_and_damage_is_made_good(tmp_path, monkeypatch):
    calls = []

    def quick(blocks, seed):
        calls.append(blocks)
        return train(blocks, seed, epochs=1)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(module, "train", quick)
    module.networks.cache_clear()
    try:
        first = module.networks()
        module.networks.cache_clear()
        again = module.networks()
        assert len(calls) == 3
        for a, b in zip(first, again, strict=True):
            assert np.array_equal(a.stem, b.stem) and np.array_equal(a.stages[3][0], b.stages[3][0])
            assert np.array_equal(a.heads[2], b.heads[2])
        (kept,) = (tmp_path / "wavetank").glob("*.npz")
        kept.write_bytes(kept.read_bytes()[:1000])
        module.networks.cache_clear()
        assert np.array_equal(module.networks()[0].stem, first[0].stem) and len(calls) == 6
    finally:
        module.networks.cache_clear()
