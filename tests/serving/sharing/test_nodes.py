"""One node."""

import numpy as np
import pytest

from wavetank.serving.sharing.nodes import RULES, Jobs, advance


def run(jobs, needs=(), whole=1.0, rule="closed-form", end_s=10.0, begin_s=0.0):
    """Serve jobs of arrival, deadline, GPU work and CPU work; return ends, seconds of radio functions, jobs left."""
    arrivals = np.array([[a, i, d, g, c, 1.0] for i, (a, d, g, c) in enumerate(jobs)]).T.reshape(6, -1)
    here = Jobs()
    here.room(len(jobs))
    finish, met = np.full(len(jobs), np.nan), np.zeros(len(needs))
    left = advance(here.columns, 0, begin_s, end_s, arrivals.copy(), np.array([needs, needs], float).reshape(2, -1),
                   np.array([whole, whole]), RULES.index(rule), finish, met)  # fmt: skip
    return finish, met, left


@pytest.mark.parametrize("rule", RULES)
def test_one_job_takes_its_work(rule):
    finish, _, left = run([(1.0, 9.0, 2.0, 0.5)], rule=rule)
    assert finish[0] == pytest.approx(3.0, abs=1e-6) and left == 0


def test_the_longer_part_decides_when_a_job_ends():
    assert run([(0.0, 9.0, 0.5, 2.0)])[0][0] == pytest.approx(2.0, abs=1e-6)


def test_two_equal_jobs_share():
    for rule in ("closed-form", "equal", "proportional"):
        assert run([(0.0, 9.0, 1.0, 0.0)] * 2, rule=rule)[0] == pytest.approx([2, 2], abs=0.03)
    assert run([(0.0, 9.0, 1.0, 0.0), (0.0, 8.0, 1.0, 0.0)], rule="earliest-deadline")[0] == pytest.approx([2, 1])


def test_a_late_job_is_given_up_and_leaves_its_share():
    finish, _, left = run([(0.0, 1.0, 5.0, 0.0), (0.0, 9.0, 4.0, 0.0)], rule="equal")
    # Half for a second, then all.
    assert np.isnan(finish[0]) and finish[1] == pytest.approx(4.5, abs=1e-6) and left == 0


def test_a_job_that_cannot_end_in_time_takes_nothing_in_the_closed_form():
    finish, _, _ = run([(0.0, 1.0, 5.0, 0.0), (0.0, 9.0, 4.0, 0.0)])
    assert np.isnan(finish[0]) and finish[1] == pytest.approx(4.0, abs=1e-6)


def test_jobs_that_are_not_done_stay():
    finish, _, left = run([(0.0, 99.0, 50.0, 0.0)])
    assert np.isnan(finish[0]) and left == 1


def test_radio_functions_are_first_but_where_all_get_the_same():
    jobs = [(0.0, 99.0, 50.0, 0.0)] * 3
    for rule, expected in (("closed-form", 10.0), ("earliest-deadline", 10.0), ("equal", 0.0), ("proportional", 0.0)):
        _, met, _ = run(jobs, needs=(0.6,), rule=rule)
        assert met[0] == pytest.approx(expected), rule


def test_radio_functions_that_do_not_fit_leave_room_for_those_that_do():
    _, met, _ = run([], needs=(0.7, 0.5, 0.3))
    assert met == pytest.approx([10.0, 0.0, 10.0])


def test_work_is_conserved():
    rng = np.random.default_rng(2)
    drawn = zip(rng.uniform(0, 5, 40).tolist(), rng.uniform(0, 0.2, 40).tolist(), strict=True)
    jobs = sorted((arrival, arrival + 50, work, 0.0) for arrival, work in drawn)
    for rule in RULES:
        finish, _, left = run(jobs, rule=rule, end_s=100.0)
        assert left == 0 and not np.isnan(finish).any()
        # The node is never idle while there is work: the last end is the same under every rule.
        busy = 0.0
        for arrival, _, work, _ in jobs:
            busy = max(busy, arrival) + work
        assert finish.max() == pytest.approx(busy, abs=1e-6), rule
