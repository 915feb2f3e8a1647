"""The rivals: whose GPUs they ask for."""

from wavetank.training.rollouts.interface import Arrangement, View
from wavetank.training.rollouts.rivals import FixedPool, SpotGpus

VIEW = View(dedicated_gpus=1, matched_gpus=3, serving_gpus=4)


def test_a_fixed_pool_has_what_everybody_has_or_as_much_more_as_rose_takes():
    assert FixedPool().arrange(VIEW) == Arrangement()
    assert FixedPool(matched=True).arrange(VIEW) == Arrangement(more_gpus=3)
    assert FixedPool(staleness=2, router="random").arrange(VIEW) == Arrangement(staleness=2, router="random")


def test_spot_gpus_are_as_many_and_get_deltas():
    assert SpotGpus().arrange(VIEW) == Arrangement(spot_gpus=3, format="coo")
    assert SpotGpus(format="dense").arrange(VIEW).format == "dense"
