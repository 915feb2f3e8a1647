"""Changes of the plan while requests run."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.serving.tiers.conftest import mixed_requests, requests_at

from wavetank.errors import BadValueError
from wavetank.serving.tiers import fleet
from wavetank.serving.tiers.fleet import placed, serve
from wavetank.serving.tiers.interface import DECODE, PREFILL, Group, Rules
from wavetank.serving.tiers.rivals import FixedPlan
from wavetank.serving.tiers.steps import BATCH, DONE, GROUPS, PROMPT, WAITING

PLANS = (
    (Group(0, 1), Group(0, 1), Group(1, 1), Group(1, 1)),
    (Group(0, 2), Group(1, 2)),
    (Group(0, 4),),
    (Group(0, 1, PREFILL), Group(0, 1, DECODE), Group(1, 2)),
    (Group(1, 1, PREFILL), Group(1, 1, DECODE), Group(0, 1), Group(0, 1)),
    (Group(0, 2, PREFILL), Group(1, 2, DECODE)),
)
RULES = Rules()


@dataclass(frozen=True)
class Turning:
    """Goes through plans, one a window."""

    plans: tuple
    rules: Rules = RULES

    def begin(self, problem):
        return self.plans[0], None

    def decide(self, view, state):
        return self.plans[view.window % len(self.plans)]


@given(order=st.lists(st.sampled_from(PLANS), min_size=2, max_size=6), seed=st.integers(0, 3), checked=st.booleans())
@settings(max_examples=25, deadline=None)
def test_no_request_is_lost_or_duplicated_by_any_change(hardware, problem, order, seed, checked):
    requests = mixed_requests((14.0, 14.0), 8.0, seed)
    policy = Turning(tuple(order), Rules(checked=checked, spills=checked))
    served = serve(requests, policy, problem, hardware, drain_s=3600.0)
    assert served.misplaced == 0
    assert np.isfinite(served.finish_s).all() and (served.made == requests.output_tokens).all()
    assert (served.first_s > requests.arrival_s).all() and (served.finish_s >= served.first_s).all()


@given(order=st.lists(st.sampled_from(PLANS), min_size=2, max_size=6), seed=st.integers(0, 3), often=st.booleans())
@settings(max_examples=15, deadline=None)
def test_room_promises_and_backlog_are_those_of_what_is_there_in_every_window(hardware, problem, order, seed, often):
    found = []
    advance = fleet.advance

    def checked(state, until_s):
        for moment in range(2):
            for g in range(state.counts[GROUPS]):
                found.append(figures_of(state, g) == figures_by_hand(state, g))
                found.append(0 <= state.held[g] <= state.room[g])
            if not moment:
                advance(state, until_s)

    requests = mixed_requests((40.0, 20.0), 4.0, seed)
    fleet.advance = checked
    try:
        serve(requests, Turning(tuple(order)), problem._replace(window_s=0.2 if often else 1.0), hardware)
    finally:
        fleet.advance = advance
    assert found and all(found)


def figures_of(state, g):
    return (
        state.held[g], state.running[g], state.context[g], state.promises[g], state.backlog[g], state.tight[g].tolist(),
    )  # fmt: skip


def figures_by_hand(state, g):
    batch = state.batch[g, : state.sizes[g, BATCH]]
    held = int((state.prompt[batch] + state.output[batch]).sum())
    working = state.prompt_now[g]
    if working >= 0:
        held += state.prompt[working] + (state.output[working] if state.role[g] != PREFILL else 0)
    made = state.output[batch] - (state.ends[batch] - state.steps[g])
    open_ = (state.promised == 1) & (state.state != DONE)
    at = np.where(state.decoder < 0, state.place, state.decoder)
    prompts = open_ & ((state.state == WAITING) | (state.state == PROMPT)) & (state.place == g)
    on_time = state.first_s[batch] <= state.arrival_s[batch] + state.ttft_s[state.tier[batch]]
    tight = np.bincount(state.tier[batch][on_time], minlength=state.tpot_s.size)
    return (
        held, batch.size, int((state.prompt[batch] + made).sum()), int((open_ & (at == g)).sum()),
        int(state.todo[prompts].sum()), tight.tolist(),
    )  # fmt: skip


def test_a_change_of_degree_pauses_and_moves_what_the_formula_says(hardware, problem):
    requests = requests_at((0.5, 1, 1000, 800), (9.5, 1, 10, 2))
    policy = Turning(((Group(1, 1), Group(0, 1)), *[(Group(1, 2),)] * 20))
    served = serve(requests, policy, problem, hardware)
    stayed = serve(requests, FixedPlan(plan=(Group(1, 1), Group(0, 1)), rules=Rules()), problem, hardware)
    assert served.paused_gpu_s == pytest.approx(2 * problem.switch_s, rel=0.01)
    step = hardware.step_time(1)
    # The first window ends with so many tokens made; half of the cache goes to the second GPU.
    made, now = 1, stayed.first_s[0]
    while now < 1.0:
        now += step.seconds(1, 1000 + made)
        made += 1
    assert served.moved_bytes == (1000 + made) * 163_840 * 0.5
    assert served.finish_s[0] < stayed.finish_s[0]


def test_a_request_that_moves_to_a_group_at_work_has_its_first_token_before_its_second(hardware, problem):
    # The first keeps the group of degree 2 busy, the second is in a long step of another group when that is given up.
    requests = requests_at((0.9, 1, 16_000, 1), (0.98, 1, 8000, 5), (3.0, 1, 10, 1))
    before, after = (Group(1, 1), Group(1, 2)), (Group(0, 1), Group(1, 2))
    stayed = serve(requests, FixedPlan(plan=before, rules=RULES), problem, hardware)
    served = serve(requests, Turning((before, *[after] * 20)), problem, hardware)
    assert served.first_s[1] == stayed.first_s[1] > 1.3
    came = served.first_s[1] + served.moved_bytes / (4.5e11 * 0.8 * 2)
    assert served.moved_bytes == 8001 * 163_840
    assert came < served.finish_s[1] < stayed.finish_s[1]
    # The group that goes on does not wait for it.
    assert served.finish_s[0] == stayed.finish_s[0] and served.paused_gpu_s == 0.0


def test_a_prompt_in_work_goes_on_where_its_group_stays_and_begins_anew_where_it_does_not(hardware, problem):
    requests = requests_at((0.9, 1, 30_000, 2), (9.0, 1, 10, 1))
    stayed = serve(requests, FixedPlan(plan=(Group(1, 1),), rules=RULES), problem, hardware)
    served = serve(requests, Turning(((Group(1, 1),), *[(Group(0, 1),)] * 20)), problem, hardware)
    assert served.first_s[0] == stayed.first_s[0]
    # One chunk was processed; on the two GPUs of another degree all of it is.
    anew = serve(requests, Turning(((Group(1, 1),), *[(Group(1, 2),)] * 20)), problem, hardware)
    chunk = hardware.step_time(1).seconds(0, 0, 8192, 8192 * 8193 // 2)
    parts, done, took = 30_000, 0, 0.0
    while done < parts:
        part = min(8192, parts - done)
        took += hardware.step_time(2).seconds(0, 0, part, part * done + part * (part + 1) // 2)
        done += part
    assert anew.first_s[0] == pytest.approx(0.9 + chunk + problem.switch_s + took, abs=1e-9)


def test_a_change_of_tier_alone_needs_no_pause(hardware, problem):
    requests = requests_at((0.5, 1, 1000, 50), (3.5, 1, 10, 2))
    served = serve(requests, Turning(((Group(1, 2), Group(0, 2)), (Group(0, 2), Group(0, 2)))), problem, hardware)
    assert len(served.plans) > 2 and served.paused_gpu_s < 0.01


def test_placement_keeps_what_it_can_and_places_every_group_on_gpus_of_its_own():
    before = [(Group(0, 1), 0), (Group(1, 1), 1), (Group(0, 2), 2), (Group(1, 4), 4)]
    found = placed((Group(0, 1), Group(1, 1), Group(0, 2), Group(0, 4)), before, 8)
    assert found == [(Group(0, 1), 0), (Group(1, 1), 1), (Group(0, 2), 2), (Group(0, 4), 4)]
    assert (Group(1, 4), 4) in placed((Group(1, 4), Group(1, 2), Group(0, 2)), before, 8)


@given(
    plans=st.lists(
        st.lists(st.builds(Group, st.integers(0, 2), st.sampled_from([1, 2, 4, 8])), min_size=1, max_size=8).filter(
            lambda groups: sum(group.tp for group in groups) <= 8
        ),
        min_size=1, max_size=4,
    )
)  # fmt: skip
@settings(max_examples=200, deadline=None)
def test_groups_are_aligned_and_never_overlap(plans):
    before = []
    for plan in plans:
        found = placed(tuple(plan), before, 8)
        assert sorted(group for group, _ in found) == sorted(plan)
        used = [gpu for group, first in found for gpu in range(first, first + group.tp)]
        assert len(used) == len(set(used)) and max(used) < 8
        assert all(first % group.tp == 0 for group, first in found)
        before = found


def test_a_request_longer_than_the_smallest_cache_is_refused(hardware, problem):
    with pytest.raises(BadValueError, match="KV cache"):
        serve(requests_at((0.0, 0, 400_000, 2)), FixedPlan(plan=(Group(0, 4),), rules=Rules()), problem, hardware)


def test_equal_requests_give_equal_figures(hardware, problem):
    policy = Turning(PLANS[:4])
    one, same = (serve(mixed_requests(), policy, problem, hardware) for _ in range(2))
    assert np.array_equal(one.finish_s, same.finish_s, equal_nan=True) and one.moved_bytes == same.moved_bytes
    assert one.good_per_s(0, 20) <= len(one.requests.tier) / 20
    assert 0 <= min(one.shares(0, 20)) <= max(one.shares(0, 20)) <= 1
