"""Single steps against the step times, and the order in which requests are served."""

import numpy as np
import pytest
from tests.serving.tiers.conftest import TIERS, mixed_requests, requests_at

from wavetank.serving.tiers.fleet import serve
from wavetank.serving.tiers.interface import ANY_TIER, DECODE, PREFILL, Group, Rules
from wavetank.serving.tiers.profile import SAFE
from wavetank.serving.tiers.rivals import FixedPlan
from wavetank.serving.tiers.steps import GUEST_SHARE


def fixed(*groups, **rules):
    return FixedPlan(plan=tuple(groups), rules=Rules(**rules))


def test_a_request_alone_takes_one_step_for_its_prompt_and_one_for_each_further_token(hardware, problem):
    served = serve(requests_at((1.0, 1, 500, 4)), fixed(Group(1, 2)), problem, hardware)
    step = hardware.step_time(2)
    first = 1.0 + step.seconds(0, 0, 500, 500 * 501 // 2)
    assert served.first_s[0] == pytest.approx(first, abs=1e-11)
    assert served.finish_s[0] == pytest.approx(first + sum(step.seconds(1, 501 + k) for k in range(3)), abs=1e-11)


def test_a_group_of_one_tier_serves_as_a_schedule_by_hand(hardware, problem):
    # In order of arrival: each step decodes what runs and fills up with prompts, one after another.
    requests = mixed_requests((0.0, 12.0), 6.0, 3)
    served = serve(requests, fixed(Group(1, 2), checked=False), problem, hardware, drain_s=600.0)
    step, bound, n = hardware.step_time(2), SAFE * TIERS[1].tpot_s, len(requests.tier)
    prompt, output = requests.prompt_tokens, requests.output_tokens
    todo, made, first, last = prompt.copy(), np.zeros(n, int), np.zeros(n), np.zeros(n)
    running, now, upcoming = [], 0.0, 0
    while upcoming < n or running:
        if not running:
            now = max(now, requests.arrival_s[upcoming])
        context = int(sum(prompt[r] + made[r] for r in running))
        before = int(prompt[upcoming] - todo[upcoming]) if upcoming < n else 0
        chunk = 8192
        while running and step.seconds(len(running), context, chunk, chunk * before + chunk * (chunk + 1) // 2) > bound:
            chunk -= 1
        tokens = pairs = 0
        begun = []
        while upcoming < n and requests.arrival_s[upcoming] <= now and tokens < chunk:
            part, before = int(min(chunk - tokens, todo[upcoming])), int(prompt[upcoming] - todo[upcoming])
            tokens, pairs = tokens + part, pairs + part * before + part * (part + 1) // 2
            todo[upcoming] -= part
            if todo[upcoming]:
                break
            begun.append(upcoming)
            upcoming += 1
        now += step.seconds(len(running), context, tokens, pairs)
        first[begun] = now
        for r in [*running, *begun]:
            made[r] += 1
            last[r] = now
        running = [r for r in [*running, *begun] if made[r] < output[r]]
    assert np.abs(served.first_s - first).max() < 1e-9 and np.abs(served.finish_s - last).max() < 1e-9


def test_an_answer_goes_on_at_a_decoding_group_after_its_cache_has_come(hardware, problem):
    served = serve(requests_at((1.0, 1, 500, 3)), fixed(Group(1, 1, PREFILL), Group(1, 2, DECODE)), problem, hardware)
    first = 1.0 + hardware.step_time(1).seconds(0, 0, 500, 500 * 501 // 2)
    came = first + 500 * 163_840 / (4.5e11 * 0.8)
    assert served.first_s[0] == pytest.approx(first, abs=1e-11)
    decoded = sum(hardware.step_time(2).seconds(1, 501 + k) for k in range(2))
    assert served.finish_s[0] == pytest.approx(came + decoded, abs=1e-11)


def test_steps_beside_running_requests_keep_their_objective(hardware, problem):
    rows = [(0.0, 0, 100, 200), *((0.5 + 0.01 * k, 0, 3000, 5) for k in range(10))]
    served = serve(requests_at(*rows), fixed(Group(0, 2)), problem, hardware)
    spent = (served.finish_s[0] - served.first_s[0]) / 199
    assert 0.5 * TIERS[0].tpot_s < spent <= SAFE * TIERS[0].tpot_s + 1e-9


def test_late_requests_are_served_last(hardware, problem):
    # Long prompts make each other late; the one that arrives last is still in time and overtakes one that is not.
    rows = [*((0.0, 0, 9000, 2) for _ in range(4)), (0.9, 0, 50, 2)]
    served = serve(requests_at(*rows), fixed(Group(0, 1)), problem, hardware)
    assert np.argsort(served.first_s).tolist() == [0, 1, 2, 4, 3]
    assert not served.good()[3]


def test_the_earliest_deadline_goes_first_where_asked(hardware, problem):
    rows = [(0.0, 1, 8192, 2), *((0.001, 1, 3000, 2) for _ in range(5)), (0.002, 0, 100, 2)]
    requests = requests_at(*rows)
    by_arrival, by_deadline = (
        serve(requests, fixed(Group(ANY_TIER, 1), checked=False, by_deadline=deadline), problem, hardware)
        for deadline in (False, True)
    )
    assert by_deadline.first_s[6] < by_arrival.first_s[6]


def test_requests_of_a_tier_without_groups_go_where_steps_are_short_enough(hardware, problem):
    served = serve(requests_at((0.0, 1, 500, 20)), fixed(Group(0, 4)), problem, hardware)
    assert served.good().all()
    assert 0 < GUEST_SHARE < 1


def test_all_requests_are_served_once_with_their_tokens_whatever_the_groups(hardware, problem):
    requests = mixed_requests()
    for plan in (
        (Group(0, 2), Group(1, 2)), (Group(0, 1, PREFILL), Group(0, 1, DECODE), Group(1, 2)), (Group(ANY_TIER, 4),),
    ):  # fmt: skip
        served = serve(requests, fixed(*plan), problem, hardware, drain_s=600.0)
        assert served.misplaced == 0
        assert np.isfinite(served.finish_s).all() and (served.made == requests.output_tokens).all()
        assert (served.first_s > requests.arrival_s).all() and (served.finish_s >= served.first_s).all()
