"""What a system may arrange, and what everything takes."""

import numpy as np
import pytest
from tests.training.rollouts.small import rates

from wavetank.errors import BadValueError, UnknownNameError
from wavetank.training.rollouts.interface import Arrangement


def test_weights_take_the_link_what_their_form_has_bytes_and_deltas_are_coded():
    found = rates(weight_elements=32_800_000_000, changed_share=0.05, link_bytes_per_s=2.5e9, coding_s=1.0)
    # 65.6 GB at 20 Gb/s; index and value 9.84 GB, bits 7.38 GB.
    assert found.sync_s("dense") == pytest.approx(26.24)
    assert found.sync_s("coo") == pytest.approx(3.936 + 1)
    assert found.sync_s("bitmap") == pytest.approx(2.952 + 1)
    assert found.sync_s("coo") > found.sync_s("bitmap") > found.sync_s("gap")
    assert found.inner_sync_s == pytest.approx(65.6e9 / 5e10)


def test_learning_takes_six_operations_for_each_weight_and_token():
    assert rates(weight_elements=10**9, train_flops_per_s=3e12).train_s(100) == pytest.approx(0.2)


@pytest.mark.parametrize(
    "change",
    [
        {"more_gpus": -1}, {"spot_gpus": True}, {"staleness": 1.5}, {"more_gpus": 10**9}, {"margin": 1.0},
        {"margin": float("nan")}, {"margin": -0.1}, {"taken_gpus": -1}, {"taken_gpus": 1, "spot_gpus": 1},
    ],
)  # fmt: skip
def test_arrangements_that_are_none_are_refused(change):
    with pytest.raises(BadValueError):
        Arrangement(**change)


@pytest.mark.parametrize("change", [{"governor": "slak"}, {"router": "afinity"}, {"format": "xor-zlib"}])
def test_words_that_are_not_known_are_refused(change):
    with pytest.raises(UnknownNameError):
        Arrangement(**change)


@pytest.mark.parametrize(
    "change",
    [
        {"ttft_s": 0.0}, {"tpot_s": -1.0}, {"link_bytes_per_s": float("inf")}, {"changed_share": 1.5},
        {"headroom": 1.1}, {"wrong": float("nan")}, {"own_cap": 0}, {"stall_s": -1.0},
        {"serving_table": np.full(13, np.nan)}, {"rollout_table": np.zeros(13, dtype=np.int64)},
    ],
)  # fmt: skip
def test_figures_that_no_cluster_has_are_refused(change):
    with pytest.raises(BadValueError):
        rates(**change)
