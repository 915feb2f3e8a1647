"""ROSE: what it arranges, and that its slack keeps users where taking turns does not."""

import pytest
from tests.training.rollouts.small import PS, batches, load, nobody, rates

from wavetank.errors import BadValueError
from wavetank.settings import check_parameters
from wavetank.training.rollouts.core import GUEST_TOKENS
from wavetank.training.rollouts.interface import Arrangement, View
from wavetank.training.rollouts.rose import Rose
from wavetank.training.rollouts.simulate import simulate

VIEW = View(dedicated_gpus=1, matched_gpus=3, serving_gpus=2)


def test_it_needs_no_gpus_of_its_own():
    found = Rose().arrange(VIEW)
    assert (found.more_gpus, found.spot_gpus, found.staleness) == (0, 0, 0)
    assert (found.governor, found.router, found.format) == ("slack", "affinity", "coo")
    assert Rose(governor="priority", router="random", margin=0.3, format="gap").arrange(VIEW) == Arrangement(
        governor="priority", router="random", margin=0.3, format="gap"
    )


def test_where_one_step_of_rollouts_is_too_long_for_the_service_level_it_waits_and_taking_turns_does_not():
    # A step of serving takes 6 ms, one of rollouts as much: nothing fits between tokens within 11 ms.
    tight, users, work = rates(tpot_s=0.011, wrong=0.0), load(2, last_s=30.0, per_s=0.5), batches(2, n=200, tokens=150)
    alone = simulate(Arrangement(), tight, users)
    mean = {}
    for governor in ("slack", "interleave"):
        arrangement = Rose(governor=governor, margin=0.0).arrange(VIEW)
        found = simulate(arrangement, tight, users, batches=work, own=1)
        more = users.output_tokens > 30
        seen = more & (found.last_ps < found.rollouts_ps[0])
        mean[governor] = (found.last_ps - found.first_ps)[seen] / (users.output_tokens[seen] - 1) / PS
        assert found.counters[GUEST_TOKENS] > 0
    within = (alone.last_ps - alone.first_ps)[seen] / (users.output_tokens[seen] - 1) / PS < 0.0109
    assert within.sum() > 3
    assert (mean["slack"][within] <= 0.0115).all()
    assert (mean["interleave"][within] > 0.0115).any()


def test_more_is_written_beside_serving_than_while_nobody_is_served():
    users, work = load(5, per_s=3.0, last_s=60.0, output=200), batches(5, n=100, tokens=40)
    spent = {}
    for governor in ("slack", "priority"):
        found = simulate(Rose(governor=governor).arrange(VIEW), rates(), users, batches=work, own=1)
        spent[governor] = found.learnt_ps[-1]
    fixed = simulate(Arrangement(), rates(), nobody(), batches=work, own=1).learnt_ps[-1]
    assert spent["slack"] < spent["priority"] <= 1.05 * fixed


@pytest.mark.parametrize("change", [{"governor": "never"}, {"router": "best"}, {"margin": 1.0}, {"format": "xor-zlib"}])
def test_parameters_that_are_none_are_refused(change):
    with pytest.raises(BadValueError):
        check_parameters(Rose, change, where="rose", what="parameter")
