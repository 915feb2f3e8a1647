"""Training of the controller: the environment, its reward, and that seeds decide everything."""

import numpy as np
import pytest

from wavetank.serving.memory.che import best_share
from wavetank.serving.memory.costs import Node
from wavetank.serving.memory.training import WINDOWS, MemorySplit, relative_cost
from wavetank.study.learning import Training, train


def test_an_episode_has_its_length_and_equal_seeds_give_equal_episodes():
    def play(seed):
        environment, rewards = MemorySplit(), []
        environment.reset(seed)
        while True:
            _, reward, ended = environment.step(np.array([0.3]))
            rewards.append(reward)
            if ended:
                return rewards

    one = play(4)
    assert one == play(4) != play(5)
    assert abs(len(one) - WINDOWS) <= 8
    assert np.all(np.isfinite(one)) and max(one) < 0.0


def test_the_best_share_has_the_highest_reward_and_moves_copies_and_misses_cost():
    environment = MemorySplit()
    environment.reset(0)
    view = environment._node.serve()._replace(refill_share=0.0, p99_s=0.0)
    first = environment._node.traffic.segments[0]
    best, _ = best_share(Node(), first.row_exponent, first.user_exponent, first.history)
    rewards = [environment.reward(view._replace(share=share), 0.0) for share in (0.02, best, 0.98)]
    assert rewards[1] >= max(rewards) - 0.1 and rewards[1] > min(rewards) + 0.5
    for worse in (view._replace(refill_share=0.5), view._replace(p99_s=0.1)):
        assert environment.reward(worse, 0.0) < environment.reward(view, 0.0)
    assert environment.reward(view, 0.02) < environment.reward(view, 0.0)


def test_relative_costs_are_zero_at_the_best_share():
    costs = relative_cost(1.2, 0.9, 8192.0)
    assert min(costs) == 0.0 and costs[15] == pytest.approx(0.23, abs=0.02)


@pytest.mark.slow
def test_training_is_reproducible():
    pytest.importorskip("stable_baselines3", reason="stable-baselines3 is not installed")
    one, again = (train(MemorySplit, Training(steps=2048)) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(one.weights, again.weights, strict=True))
