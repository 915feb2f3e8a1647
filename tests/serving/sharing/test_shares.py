"""The closed form."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from wavetank.errors import BadValueError
from wavetank.serving.sharing.shares import shares

ONES = (1.0, 1.0, 1.0)


def cost(work, time_s, weight, found):
    work, time_s, weight = (np.asarray(each) for each in (work, time_s, weight))
    return float((weight * work / (found * time_s)).sum())


@pytest.mark.parametrize(
    ("whole", "expected", "least"),
    [
        (1.2, (0.4584, 0.2292, 0.5125), 2.2847),
        (1.05, (0.40, 0.15, 0.50), 2.6667),
        (1.0, (0.4, 0.1, 0.5), 3.0),
    ],
)
def test_known_shares_with_none_two_and_all_at_their_floors(whole, expected, least):
    found = shares((4, 1, 1), (10, 10, 2), ONES, whole)
    assert found == pytest.approx(expected, abs=1e-4)
    assert cost((4, 1, 1), (10, 10, 2), ONES, found) == pytest.approx(least, abs=1e-4)


def test_floors_that_are_all_there_is_leave_nobody_out_however_they_are_added_up():
    work, time_s = np.array([1, 1, 1, 2, 2, 2, 1, 4.0]), np.array([1, 1, 1, 3, 6, 1.5, 1, 0.125])
    floors = work / time_s
    found = shares(work, time_s, np.ones(8), float(floors.sum()))
    assert found == pytest.approx(floors, rel=1e-9)


def test_four_times_the_work_gets_twice_the_share():
    assert shares((4, 1), (10, 10), (1, 1), 3.0) == pytest.approx([2, 1])


def test_equal_jobs_get_equal_shares():
    assert shares([2.0] * 7, [5.0] * 7, [1.0] * 7, 3.5) == pytest.approx([0.5] * 7)


def test_what_does_not_fit_is_left_out_by_floor_per_weight():
    found = shares((4, 1, 1), (10, 10, 2), ONES, 0.9)
    assert found[2] == 0 and found.sum() == pytest.approx(0.9)
    assert found[0] >= 0.4 and found[1] >= 0.1
    found = shares((4, 1, 1), (10, 10, 2), (1, 1, 10), 0.9)
    assert found[2] >= 0.5 and found[0] == 0 and found[1] >= 0.1
    assert shares((4,), (1,), (1,), 1.0).tolist() == [0.0]


def test_nothing_to_do_and_nothing_to_give():
    assert shares((0, 1), (1, 1), (1, 1), 2.0) == pytest.approx([0, 2])
    assert shares((0, 0), (1, 1), (1, 1), 2.0).tolist() == [0, 0]
    assert shares((1, 1), (1, 1), (1, 1), 0.0).tolist() == [0, 0]
    assert shares([], [], [], 1.0).size == 0


jobs = st.lists(st.tuples(st.floats(0.01, 10), st.floats(0.1, 10), st.floats(0.1, 5)), min_size=1, max_size=12).map(
    lambda rows: tuple(np.array(column) for column in zip(*rows, strict=True))
)


@settings(max_examples=80, deadline=None)
@given(jobs, st.floats(1.0, 3.0))
def test_floors_hold_all_is_given_and_no_other_shares_are_better(given_jobs, slack):
    work, time_s, weight = given_jobs
    floors = work / time_s
    whole = float(floors.sum()) * slack
    found = shares(work, time_s, weight, whole)
    assert found.sum() == pytest.approx(whole)
    assert (found >= floors * (1 - 1e-9)).all()
    # Moving a little from any job that may give to any other one is no better: the problem is convex.
    here = cost(work, time_s, weight, found)
    for giver in range(work.size):
        step = min(1e-4 * whole, 0.5 * (found[giver] - floors[giver]))
        for taker in range(work.size):
            if step > 1e-9 and giver != taker:
                moved = found.copy()
                moved[giver] -= step
                moved[taker] += step
                assert cost(work, time_s, weight, moved) >= here * (1 - 1e-9)


def test_a_general_solver_finds_the_same():
    rng = np.random.default_rng(5)
    for _ in range(25):
        n = int(rng.integers(2, 8))
        work, time_s, weight = rng.uniform(0.1, 3, n), rng.uniform(0.5, 5, n), rng.uniform(0.5, 2, n)
        floors = work / time_s
        whole = floors.sum() * rng.uniform(1.02, 2)
        found = shares(work, time_s, weight, whole)
        start = floors + (whole - floors.sum()) / n
        theirs = minimize(
            lambda x, w=work, t=time_s, v=weight: cost(w, t, v, x), start, bounds=[(f, None) for f in floors],
            constraints={"type": "eq", "fun": lambda x, total=whole: x.sum() - total}, method="SLSQP",
            options={"ftol": 1e-14, "maxiter": 500},
        )  # fmt: skip
        # SLSQP ends within its own tolerance: ours must not be worse, and near in every share.
        assert cost(work, time_s, weight, found) <= theirs.fun * (1 + 1e-9)
        assert found == pytest.approx(theirs.x, abs=2e-4)


@pytest.mark.parametrize(
    "wrong",
    [((1, 1), (1,), (1, 1), 1.0), ((-1,), (1,), (1,), 1.0), ((1,), (0,), (1,), 1.0), ((1,), (1,), (0,), 1.0),
     ((1,), (1,), (1,), -1.0), ((np.nan,), (1,), (1,), 1.0), ((1,), (1,), (1,), np.inf)],
)  # fmt: skip
def test_numbers_without_sense_are_refused(wrong):
    with pytest.raises(BadValueError):
        shares(*wrong)
