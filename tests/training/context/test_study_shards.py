"""The study: every case, equal devices without a gain, and clusters that are none."""

import pytest

from wavetank.errors import BadValueError
from wavetank.training.context.hexiseq import EqualShares, HexiSeq
from wavetank.training.context.study_shards import SequenceShards

SMALL = {"ranks": (32,), "tokens": (131_072, 524_288)}


def figures(system, study):
    return {(name, *at.values()): value for name, value, at in study.measure(system, 0).rows}


def test_equal_devices_have_no_gain_and_unequal_ones_have():
    for cluster, low, high in (("uniform", 1 - 1e-9, 1 + 1e-9), ("two-kinds", 1.2, 2.2)):
        study = SequenceShards(**SMALL, cluster=cluster)
        ratio = figures(HexiSeq(), study)["tokens_per_s",] / figures(EqualShares(), study)["tokens_per_s",]
        assert low <= ratio <= high


def test_the_mean_is_that_of_all_cases():
    found = figures(EqualShares(), SequenceShards(**SMALL))
    cases = [found["tokens_per_s_by_tokens", each] for each in SMALL["tokens"]]
    assert found["tokens_per_s",] == pytest.approx((cases[0] * cases[1]) ** 0.5)
    assert found["tokens_per_s_by_ranks", 32] == pytest.approx(found["tokens_per_s",])


def test_kinds_have_equal_numbers_and_the_network_can_be_given():
    problem = SequenceShards(cluster="four-kinds", network_bytes_per_s=3e9).problem(64, 131_072)
    speeds = problem.cluster.flops_per_s
    assert [len(set(speeds[place : place + 16])) for place in (0, 16, 32, 48)] == [1] * 4
    assert set(problem.cluster.network_bytes_per_s) == {3e9}
    assert problem.layer.parameters * problem.layer.layers == pytest.approx(12.6e9, rel=0.01)


@pytest.mark.parametrize("ranks", [(48,), (), (32, 40)])
def test_numbers_of_ranks_that_kinds_do_not_divide_are_refused(ranks):
    with pytest.raises(BadValueError, match="whole nodes"):
        SequenceShards(ranks=ranks).check()
