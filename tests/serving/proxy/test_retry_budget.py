"""The retry budget: a share of the requests of a sliding window, and a few more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wavetank.serving.proxy.retry_budget import RetryBudget


def test_a_quiet_router_may_retry_up_to_the_floor() -> None:
    budget = RetryBudget(0.2, 3, 10.0)
    assert [budget.retry(0.1 * i) for i in range(5)] == [True, True, True, False, False]
    # Behind the window they are forgotten.
    assert not budget.retry(9.9)
    assert budget.retry(10.5)


def test_requests_allow_retries_in_proportion() -> None:
    budget = RetryBudget(0.2, 0, 10.0)
    for i in range(50):
        budget.request(i * 0.01)
    assert sum(budget.retry(1.0) for _ in range(50)) == 10
    assert not budget.retry(30.0)


@given(
    events=st.lists(st.tuples(st.floats(0.0, 3.0), st.booleans()), max_size=300),
    share=st.floats(0.0, 2.0),
    floor=st.integers(0, 5),
)
def test_in_no_window_are_there_more_than_allowed(events: list[tuple[float, bool]], share: float, floor: int) -> None:
    budget = RetryBudget(share, floor, 10.0)
    now, requests, retries = 0.0, [], []
    for pause_s, is_request in events:
        now += pause_s
        if is_request:
            budget.request(now)
            requests.append(now)
        elif budget.retry(now):
            retries.append(now)
            # Time is counted in tenths of the window.
            assert sum(at > now - 9.0 for at in retries) <= floor + share * sum(at > now - 10.0 for at in requests)
