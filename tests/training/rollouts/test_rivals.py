"""The rivals: whose GPUs they ask for."""

import pytest

from wavetank.training.rollouts.interface import Arrangement, View
from wavetank.training.rollouts.rivals import FixedPool, PackedUsers, SpotGpus

VIEW = View(dedicated_gpus=1, matched_gpus=3, serving_gpus=4)


def test_a_fixed_pool_has_what_everybody_has_or_as_much_more_as_rose_takes():
    assert FixedPool().arrange(VIEW) == Arrangement()
    assert FixedPool(matched=True).arrange(VIEW) == Arrangement(more_gpus=3)
    assert FixedPool(staleness=2, router="random").arrange(VIEW) == Arrangement(staleness=2, router="random")


def test_spot_gpus_are_as_many_and_get_deltas():
    assert SpotGpus().arrange(VIEW) == Arrangement(spot_gpus=3, format="coo")
    assert SpotGpus(format="dense").arrange(VIEW).format == "dense"


@pytest.mark.parametrize(
    ("load", "taken"), [(0.03, 3), (0.0, 3), (0.15, 2), (0.1501, 1), (0.19, 1), (0.3, 0), (1.4, 0)]
)
def test_packed_users_leave_the_gpus_that_their_mean_rate_does_not_need(load, taken):
    assert PackedUsers().arrange(VIEW._replace(load=load)) == Arrangement(taken_gpus=taken, format="coo")
