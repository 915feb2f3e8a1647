"""The model of a prefill: by hand, its bounds, and counts that are none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.platforms.catalog import model
from wavetank.serving.reuse.energy import MODEL_ROW, Prefill, default_prefill, grouped_row, model_layers, other_prefills
from wavetank.serving.reuse.interface import Served

PLAIN = Prefill(
    flops_per_s=1e12, bytes_per_s=1e12, overhead_s=0.25, idle_w=100.0, joules_per_flop=1e-12, joules_per_byte=1e-11
)  # fmt: skip


def test_a_prompt_costs_its_operations_its_bytes_and_its_time() -> None:
    about = model("DeepSeek-V2-Lite")
    got = PLAIN.cost(1_000, Served(600, 100, 300, 500))
    pairs = sum(range(600, 1_000)) + 200
    flops = 2 * about.active_parameters * 400 + about.prefill_flops_per_pair * pairs
    # All experts are touched by so many tokens: all weights are read; each moved row's rotary key is read and written.
    size = 2 * (about.parameters + 27 * (1_000 * 576 + 2 * 500 * 64))
    assert got.seconds == pytest.approx(0.25 + max(flops, size) / 1e12)
    assert got.joules == pytest.approx(100 * got.seconds + flops * 1e-12 + size * 1e-11)


def test_few_tokens_touch_few_experts_and_none_touch_none() -> None:
    about = model("DeepSeek-V2-Lite")
    free = replace(PLAIN, joules_per_flop=0.0)
    reads = [free.cost(9_000, Served(9_000 - new, 0, new)) for new in (0, 1, 4_000)]
    bytes_ = [(each.joules - 100 * each.seconds) for each in reads]
    assert bytes_[0] < bytes_[1] < bytes_[2]
    rows = 2 * 27 * 9_000 * 576 * 1e-11
    assert bytes_[1] - rows == pytest.approx(2 * about.active_parameters * 1e-11, rel=1e-6)


def test_more_reuse_never_costs_more_and_whole_keys_do() -> None:
    gpu = default_prefill()
    joules = [gpu.cost(8_000, Served(each, 0, 8_000 - each)).joules for each in range(0, 8_000, 500)]
    assert np.all(np.diff(joules) < 0)
    got = Served(6_000, 0, 2_000, 6_000)
    assert gpu.cost(8_000, got, row=grouped_row(8)).joules > gpu.cost(8_000, got).joules
    assert gpu.cost(8_000, got, partly=100.0).joules > gpu.cost(8_000, got).joules
    assert grouped_row(8).numbers / MODEL_ROW.numbers == pytest.approx(3.56, abs=0.01)
    assert model_layers() == 27


def test_the_figure_of_the_catalogs_lies_between_those_of_other_constants() -> None:
    got = Served(7_000, 0, 1_000, 3_000)
    share = [gpu.cost(8_000, got).joules / gpu.cost(8_000, Served(0, 0, 8_000)).joules for gpu in other_prefills()]
    plain = default_prefill()
    mine = plain.cost(8_000, got).joules / plain.cost(8_000, Served(0, 0, 8_000)).joules
    assert len(share) == 16
    assert min(share) < mine < max(share)


@pytest.mark.parametrize("wrong", [Served(1, 0, 1), Served(-1, 0, 4), Served(1, 1, 1, 2), Served(3, 0, 0, -1)])
def test_counts_that_are_not_of_the_prompt_are_refused(wrong: Served) -> None:
    with pytest.raises(BadValueError, match="not those of a prompt"):
        PLAIN.cost(3, wrong)
