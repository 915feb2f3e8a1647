"""The simulation: equal to one by hand, and what must hold of memory, versions, turns and users."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.training.rollouts.by_hand import ByHand, compiled_figures, figures
from tests.training.rollouts.small import KV, PS, TABLE, batches, load, nobody, rates, spot

from wavetank.errors import BadValueError
from wavetank.platforms.step_time import roofline_ps
from wavetank.training.rollouts.core import (
    FAR,
    GUEST_PS,
    GUEST_TOKENS,
    HALVED,
    LONGEST_GUEST_PS,
    OWN_TOKENS,
    RECOMPUTED,
    REROUTED,
    SERVING_PS,
)
from wavetank.training.rollouts.interface import GOVERNORS, Arrangement
from wavetank.training.rollouts.simulate import Batches, simulate
from wavetank.workloads.trajectories import Trajectories


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1000), governor=st.sampled_from(sorted(GOVERNORS)),
    router=st.sampled_from(["affinity", "affinity-least", "least-loaded"]), staleness=st.integers(0, 2),
    own=st.integers(1, 2), pool=st.sampled_from([3000, 6000, 20_000]), per_s=st.sampled_from([0.2, 2.0, 8.0]),
    tpot_s=st.sampled_from([0.02, 0.05, 0.15]), lives=st.lists(st.floats(0.1, 3.0), max_size=4),
)  # fmt: skip
@example(1, "slack", "affinity-least", 1, 2, 3000, 8.0, 0.02, [])
def test_equals_the_simulation_by_hand(seed, governor, router, staleness, own, pool, per_s, tpot_s, lives):
    given_rates = rates(shared_pool_bytes=pool * KV, own_pool_bytes=pool * KV, tpot_s=tpot_s, stall_s=0.3)
    users, work = load(seed, per_s=per_s, last_s=8.0), batches(seed, turns=3, n=8)
    times = np.cumsum(lives[: len(lives) // 2 * 2]).tolist()
    there = spot(list(zip(times[::2], times[1::2], strict=True)))
    arrangement = Arrangement(governor=governor, router=router, staleness=staleness, margin=0.1, spot_gpus=1)
    found = simulate(arrangement, given_rates, users, batches=work, own=own, spot=there)
    expected = figures(ByHand(arrangement, given_rates, users, work, own, there).run())
    got = compiled_figures(found)
    if governor == "none":
        users_seen = ("first_ps", "last_ps", "gap_ps")
        expected = {name: value for name, value in expected.items() if name not in users_seen}
    for name, value in expected.items():
        assert got[name] == value, name


@pytest.mark.parametrize("governor", ["slack", "priority", "interleave"])
def test_every_turn_runs_once_in_order_on_the_version_that_learns_from_it(governor):
    work = batches(3, steps=3)
    found = simulate(Arrangement(governor=governor), rates(), load(1), batches=work, own=1)
    batch = np.searchsorted(work.ends, np.arange(36), side="right")
    assert (found.learnt_version == batch).all()
    assert (found.began_version == batch).all()
    assert (found.begin_ps >= 0).all()
    assert (found.end_ps > found.begin_ps).all()
    delay = np.rint(work.trajectories.delay_s * PS)
    for i in range(36):
        turns = range(work.trajectories.first_turn[i], work.trajectories.first_turn[i + 1])
        for turn in list(turns)[1:]:
            assert found.begin_ps[turn] >= found.end_ps[turn - 1] + delay[turn - 1]
        first, last = turns[0], turns[-1]
        begins = 0 if batch[i] == 0 else found.learnt_ps[batch[i] - 1]
        assert begins <= found.begin_ps[first] and found.end_ps[last] + delay[last] <= found.rollouts_ps[batch[i]]
    assert found.counters[GUEST_TOKENS] + found.counters[OWN_TOKENS] == work.trajectories.turn_tokens.sum()
    assert found.counters[GUEST_TOKENS] > 0


@pytest.mark.parametrize("staleness", [1, 2])
def test_no_trajectory_is_staler_than_declared(staleness):
    work = batches(3, steps=5)
    found = simulate(Arrangement(staleness=staleness), rates(), nobody(), batches=work, own=1)
    stale = found.learnt_version - found.began_version
    assert stale.min() >= 0
    assert stale.max() == staleness
    alone = simulate(Arrangement(), rates(), nobody(), batches=work, own=1)
    assert found.learnt_ps[-1] < alone.learnt_ps[-1]


def test_one_turn_takes_what_its_steps_take():
    work = Batches(
        Trajectories(first_turn=[0, 1], prompt_tokens=[3000], turn_tokens=[3], delay_s=[0.25]), np.array([1])
    )
    found = simulate(Arrangement(), rates(), nobody(), batches=work, own=1)
    # Two chunks of the prompt, the second of which writes the first token; then two steps of one.
    takes = roofline_ps(0, 0, 2048, 2048 * 2049 // 2, TABLE)
    takes += roofline_ps(0, 0, 952, 952 * 2048 + 952 * 953 // 2, TABLE)
    takes += roofline_ps(1, 3001, 0, 0, TABLE) + roofline_ps(1, 3002, 0, 0, TABLE)
    assert found.end_ps.tolist() == [takes]
    assert found.rollouts_ps.tolist() == [takes + PS // 4]
    assert found.learnt_ps.tolist() == [takes + PS // 4 + round(6 * 8e9 * 3003 / 3e15 * PS)]


def test_a_request_alone_is_served_as_its_steps_take():
    users = load(per_s=0.0, last_s=1.0)._replace(
        first=np.array([0, 1, 1]), arrival_ps=np.array([PS]), prompt_tokens=np.array([100]), output_tokens=np.array([2])
    )
    found = simulate(Arrangement(), rates(), users)
    first = PS + roofline_ps(0, 0, 100, 5050, TABLE)
    assert found.first_ps.tolist() == [first]
    assert found.last_ps.tolist() == [first + roofline_ps(1, 101, 0, 0, TABLE)]
    assert found.gap_ps.tolist() == [roofline_ps(1, 101, 0, 0, TABLE)]
    assert found.counters[SERVING_PS] == found.last_ps[0] - PS


def test_without_idle_serving_gpus_it_is_the_dedicated_pool_and_with_any_number_the_longest_trajectory():
    work = batches(5, n=60, tokens=40)
    fixed = simulate(Arrangement(), rates(), nobody(), batches=work, own=1)
    # Every instance has a request at any time, from the first moment to the last.
    busy = nobody(2)._replace(
        first=np.array([0, 1, 2]), arrival_ps=np.zeros(2, dtype=np.int64), prompt_tokens=np.array([10, 10]),
        output_tokens=np.array([15_000, 15_000]),
    )  # fmt: skip
    crowded = simulate(Arrangement(governor="priority"), rates(), busy, batches=work, own=1)
    assert crowded.counters[GUEST_TOKENS] == 0
    assert crowded.learnt_ps.tolist() == fixed.learnt_ps.tolist()
    free = simulate(Arrangement(governor="free", format="coo"), rates(), nobody(60), batches=work, own=1)
    slow = roofline_ps(4, 4 * 3000, 0, 0, TABLE) / PS
    least = work.trajectories.least_s(roofline_ps(1, 0, 0, 0, TABLE) / PS)
    most = work.trajectories.least_s(slow) + work.trajectories.turns * 0.05
    for k in range(2):
        rows = slice(60 * k, 60 * k + 60)
        begins = 0 if k == 0 else free.learnt_ps[k - 1] / PS
        spent = free.rollouts_ps[k] / PS - begins
        # New weights come to dedicated instances in 0.3 s, to others in 2.
        assert least[rows].max() < spent < most[rows].max() + 2.0 * (k > 0)
    assert free.rollouts_ps[0] < 0.6 * fixed.rollouts_ps[0]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 500), pool=st.sampled_from([3000, 5000, 9000]), per_s=st.sampled_from([1.0, 6.0]))
def test_keys_and_values_of_both_models_never_exceed_the_pool(seed, pool, per_s):
    given_rates = rates(shared_pool_bytes=pool * KV)
    work, users = batches(seed, n=30, tokens=60), load(seed, per_s=per_s, last_s=20.0)
    for governor in ("slack", "interleave"):
        found = simulate(Arrangement(governor=governor), given_rates, users, batches=work, own=1)
        assert found.most_pool_bytes.max() <= pool * KV
        assert (found.learnt_ps < FAR).all()


def test_serving_that_needs_memory_takes_it_from_rollouts_at_once():
    # One request that leaves room for next to nothing comes while rollouts hold all that they may.
    users = nobody(1)._replace(
        first=np.array([0, 1]), arrival_ps=np.array([PS // 2]), prompt_tokens=np.array([5500]),
        output_tokens=np.array([100]),
    )  # fmt: skip
    given_rates = rates(shared_pool_bytes=6000 * KV, guest_cap=8)
    work = batches(1, n=30, prompt=400, tokens=200, turns=2)
    alone = simulate(Arrangement(), given_rates, users)
    found = simulate(Arrangement(governor="slack"), given_rates, users, batches=work, own=1)
    assert found.counters[HALVED] == 1
    assert found.counters[REROUTED] > 0
    assert found.most_pool_bytes.max() <= 6000 * KV
    late = found.first_ps[0] - alone.first_ps[0]
    # It waits for no memory: it is late by what was let in before it had no slack any more.
    assert 0 <= late <= 0.5 * PS - (alone.first_ps[0] - PS // 2) + found.counters[LONGEST_GUEST_PS]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 500), per_s=st.sampled_from([0.5, 3.0]))
def test_with_exact_predictions_no_token_is_late_by_more_than_a_step_of_rollouts(seed, per_s):
    given_rates = rates(wrong=0.0, tpot_s=0.08, serving_chunk=512)
    users = load(seed, per_s=per_s, last_s=30.0, prompt=200)
    work = batches(seed, n=40, tokens=60)
    alone = simulate(Arrangement(), given_rates, users)
    found = simulate(Arrangement(governor="slack"), given_rates, users, batches=work, own=1)
    seen = found.last_ps < FAR
    assert found.counters[GUEST_PS] > 0
    longest = found.counters[LONGEST_GUEST_PS]
    # What the governor could not foresee is a request that came during the step that it let in.
    whole = roofline_ps(64, 64 * 1000, 512, 512 * 513 // 2, TABLE)
    assert (found.gap_ps[seen] <= np.maximum(0.08 * PS, alone.gap_ps[seen]) + longest + whole).all()
    late = found.first_ps[seen] - users.arrival_ps[seen] - np.maximum(
        0.5 * PS, alone.first_ps[seen] - users.arrival_ps[seen])  # fmt: skip
    assert (late <= longest + whole).all()


def test_affinity_reads_fewer_prefixes_again_and_without_prefixes_all_are_alike():
    given_rates = rates(own_pool_bytes=200_000 * KV, own_cap=64)
    work = batches(2, n=40, turns=6, prompt=3000)
    read = {}
    for router in ("affinity-least", "least-loaded", "random"):
        found = simulate(Arrangement(router=router, more_gpus=3), given_rates, nobody(), batches=work, own=1)
        read[router] = found.counters[RECOMPUTED]
    assert read["affinity-least"] == 0 < read["least-loaded"]
    assert read["random"] > 0
    single = batches(2, n=40, turns=1)
    for router in read:
        found = simulate(Arrangement(router=router, more_gpus=3), given_rates, nobody(), batches=single, own=1)
        assert found.counters[RECOMPUTED] == 0


def test_priority_never_starts_a_step_of_rollouts_beside_a_request():
    users = load(4, per_s=3.0, last_s=20.0)
    alone = simulate(Arrangement(), rates(), users)
    found = simulate(Arrangement(governor="priority"), rates(), users, batches=batches(4, n=30), own=1)
    seen = found.last_ps < FAR
    # A request waits for a step that had begun, at most; after that it is served as alone.
    late = found.first_ps[seen] - alone.first_ps[seen]
    assert found.counters[GUEST_PS] > 0
    assert late.max() > 0
    assert np.median(late) <= found.counters[LONGEST_GUEST_PS]
    assert (found.gap_ps[seen] <= alone.gap_ps[seen].max() * 1.5).all()


def test_spot_instances_help_while_they_are_there_and_turns_survive_their_end():
    work = batches(6, n=60, tokens=200)

    def run(*lives):
        arrangement = Arrangement(spot_gpus=1, format="coo")
        return simulate(arrangement, rates(), nobody(), batches=work, own=1, spot=spot(list(lives)))

    fixed = simulate(Arrangement(), rates(), nobody(), batches=work, own=1)
    always, gone, short = run((0.0, 1000.0)), run((0.0, 5.0)), run((0.0, 1.9), (3.0, 4.9))
    assert run().learnt_ps.tolist() == fixed.learnt_ps.tolist()
    # Weights need 1.96 s to a spot instance, which is gone before that.
    assert short.learnt_ps.tolist() == fixed.learnt_ps.tolist()
    assert always.learnt_ps[-1] < gone.learnt_ps[-1] < fixed.learnt_ps[-1]
    assert gone.counters[REROUTED] > always.counters[REROUTED] == 0
    assert (gone.end_ps > 0).all()


def test_equal_seeds_route_alike_and_others_do_not():
    work, users = batches(7, n=30), load(7)
    runs = [
        simulate(Arrangement(governor="slack", router="random"), rates(), users, batches=work, own=1, seed=seed)
        for seed in (1, 1, 2)
    ]
    assert runs[0].end_ps.tolist() == runs[1].end_ps.tolist() != runs[2].end_ps.tolist()


def test_what_cannot_be_run_is_refused():
    work = batches()
    with pytest.raises(BadValueError, match="own"):
        simulate(Arrangement(), rates(), nobody(), batches=work)
    with pytest.raises(BadValueError, match="spot"):
        simulate(Arrangement(spot_gpus=1), rates(), nobody(), batches=work, own=1)
    with pytest.raises(BadValueError, match="turn fits"):
        simulate(Arrangement(), rates(own_pool_bytes=100 * KV), nobody(), batches=work, own=1)
    with pytest.raises(BadValueError, match="request fits"):
        simulate(Arrangement(governor="slack"), rates(shared_pool_bytes=100 * KV), load(), batches=work, own=1)
    with pytest.raises(BadValueError, match="batches"):
        simulate(Arrangement(), rates(), nobody(), batches=Batches(work.trajectories, np.array([5])), own=1)
    assert math.isfinite(float(simulate(Arrangement(), rates(), load()).last_ps.max()))
