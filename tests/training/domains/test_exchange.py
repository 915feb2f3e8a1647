"""Parts that move among processes arrive whole, and a second group of processes stands beside the domain."""

import pytest

pytest.importorskip("torch", reason="needs the library torch")

from tests.training.domains import cases

from wavetank.live.ranks import run_ranks


@pytest.mark.parametrize("processes", [2, 3])
def test_every_uneven_cut_comes_back_from_another_axis(processes):
    for wrong, count, sizes in run_ranks(cases.turns, processes, arguments={"seed": 3}, timeout_s=300.0):
        assert wrong == 0
        assert count == {2: 6, 3: 21}[processes]
        assert sizes == list(range(1, processes + 1))


def test_two_samples_on_two_processes_each_train_like_one_process():
    for losses, wanted, weights in run_ranks(cases.two_dimensional, 4, arguments={"steps": 10}, timeout_s=300.0):
        assert len(losses) == 10
        assert losses == pytest.approx(wanted, rel=1e-12)
        assert weights < 1e-12
        assert losses[-1] < losses[0]


def test_gradients_of_a_weight_and_its_bias_are_one_message_and_so_are_keys_and_values():
    processes = 3
    for convolution, norm, attention in run_ranks(cases.messages, processes, timeout_s=300.0):
        assert convolution == {"adds": 1, "sends": 2}
        assert norm == {"adds": 1, "sends": 0}
        # Keys and values are passed on twice, backward with their gradients, which come home.
        assert attention == {"adds": 0, "sends": (processes - 1) + processes}
