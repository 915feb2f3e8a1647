"""The learning loop: a task with a known answer, equal seeds, weights that survive a file, damaged files."""

import numpy as np
import pytest

from wavetank.errors import BadFileError, BadValueError
from wavetank.study.learning import Network, Training, load_network, train

NETWORK = Network((np.array([[1.0, -1.0], [0.5, 2.0]]), np.array([[0.5], [0.25]])), (np.zeros(2), np.array([0.1])))


class Matching:
    """The reward is highest where the action equals the observation."""

    observations, actions = 1, 1

    def reset(self, seed):
        self.draws, self.left = np.random.default_rng(seed), 20
        self.shown = self.draws.uniform(-0.8, 0.8, 1)
        return self.shown

    def step(self, action):
        reward = -float((action[0] - self.shown[0]) ** 2)
        self.shown, self.left = self.draws.uniform(-0.8, 0.8, 1), self.left - 1
        return self.shown, reward, self.left == 0


def test_a_network_is_tanh_layers_and_a_linear_one_clipped():
    seen = np.array([0.3, -0.2])
    hidden = np.tanh([0.3 - 0.1, -0.3 - 0.4])
    assert NETWORK(seen)[0] == pytest.approx(0.5 * hidden[0] + 0.25 * hidden[1] + 0.1)
    assert Network((np.array([[9.0]]),), (np.zeros(1),))(np.array([1.0]))[0] == 1.0
    with pytest.raises(BadValueError):
        Network((np.ones((2, 3)), np.ones((2, 1))), (np.ones(3), np.ones(1)))
    with pytest.raises(BadValueError):
        Network((np.array([[np.nan]]),), (np.zeros(1),))


def test_weights_survive_a_file_and_damage_is_named(tmp_path):
    path = tmp_path / "weights.npz"
    NETWORK.save(path)
    found = load_network(path, observations=2, actions=1)
    assert found(np.array([0.3, -0.2])) == pytest.approx(NETWORK(np.array([0.3, -0.2])), abs=1e-6)
    for wanted in ({"observations": 3, "actions": 1}, {"observations": 2, "actions": 2}):
        with pytest.raises(BadFileError, match="another task"):
            load_network(path, **wanted)
    whole = path.read_bytes()
    pickled = tmp_path / "pickled.npz"
    np.savez(pickled, format=np.array(1), weights_0=np.array([[object()]], dtype=object), bias_0=np.zeros(1))
    for content in (whole[:200], b"", b"no archive", pickled.read_bytes()):
        path.write_bytes(content)
        with pytest.raises(BadFileError):
            load_network(path, observations=2, actions=1)
    with pytest.raises(BadFileError):
        load_network(tmp_path / "absent.npz", observations=2, actions=1)


def test_a_task_with_a_known_answer_is_learned_and_equal_seeds_learn_equally():
    pytest.importorskip("stable_baselines3", reason="stable-baselines3 is not installed")
    training = Training(steps=6000, rollout=512, hidden=16, learning_rate=3e-3, gamma=0.0, seed=1)
    seen: list[int] = []
    learned = train(Matching, training, report=lambda steps, reward: seen.append(steps))
    errors = [learned(np.array([x]))[0] - x for x in np.linspace(-0.7, 0.7, 15)]
    assert np.sqrt(np.mean(np.square(errors))) < 0.2
    assert seen[0] == 512 and len(seen) == 12
    short = Training(steps=512, rollout=256, hidden=8, seed=3)
    one, again = train(Matching, short), train(Matching, short)
    assert all(np.array_equal(a, b) for a, b in zip(one.weights, again.weights, strict=True))
