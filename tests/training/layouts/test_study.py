"""The study holds every sharder to the same rules, and refuses what leaves parameters out."""

from dataclasses import dataclass

import numpy as np
import pytest

from wavetank.errors import BadValueError, UnknownNameError
from wavetank.training.layouts.interface import Footprint
from wavetank.training.layouts.rivals import Fsdp1, Fsdp2
from wavetank.training.layouts.study import FsdpLayout, held_against_all, small_bucket
from wavetank.training.layouts.vescale import VescaleFsdp

SMALL = FsdpLayout(models=("GPT-OSS-120B",), ranks=16, sweep_ranks=(32,), sweep_rows=(1,))


def figures(system):
    return {(metric, *at.values()): value for metric, value, at in SMALL.measure(system, 0).rows}


def test_figures_are_those_of_the_layout():
    found = figures(VescaleFsdp())
    assert found["blocks_cut", "GPT-OSS-120B"] == 0
    assert found["padding", "GPT-OSS-120B"] == found["padding_by_ranks", "GPT-OSS-120B", 16] < 0.01
    assert found["share_shortest",] == 1.0
    assert found["gather_scatter_by_rows_s", "GPT-OSS-120B", 16] == found["gather_scatter_s", "GPT-OSS-120B"]
    cut = figures(Fsdp1())
    assert cut["blocks_cut", "GPT-OSS-120B"] > 0
    assert ("share_shortest",) not in cut
    assert figures(Fsdp2())["gather_scatter_s", "GPT-OSS-120B"] > found["gather_scatter_s", "GPT-OSS-120B"]
    assert FsdpLayout.notes(SMALL)[0].startswith("A gigabyte is gathered from 16 ranks")


@dataclass(frozen=True, kw_only=True)
class Forgets:
    def shard(self, tensors, ranks):
        return Footprint(1, sum(each.size for each in tensors), 0, copies=False)


def test_what_leaves_parameters_out_is_refused():
    with pytest.raises(BadValueError, match="leaves parameters out"):
        SMALL.measure(Forgets(), 0)


def test_settings_that_make_no_machine_are_refused():
    for wrong in ({"ranks": 12}, {"models": ()}, {"network_bytes_per_s": 0.5}, {"sweep_ranks": (9,)}):
        with pytest.raises(BadValueError):
            FsdpLayout(**wrong).check()
    with pytest.raises(UnknownNameError):
        FsdpLayout(models=("GPT-5",)).check()


def test_small_buckets_are_drawn_and_a_worse_planner_is_seen():
    draws = np.random.default_rng(0)
    assert all(1 <= len(small_bucket(draws)[0]) <= 4 for _ in range(20))

    class Long(VescaleFsdp):
        def shard(self, tensors, ranks):
            found = super().shard(tensors, ranks)
            return found._replace(slice_elements=2 * found.slice_elements)

    equal, longer = held_against_all(Long(), 0)
    assert equal == 0.0
    assert longer >= 1.0
