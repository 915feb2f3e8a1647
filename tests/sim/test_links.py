"""Shared links in whole picoseconds, against a link that moves tick by tick; buckets; slack."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.sim.links import CopyView, LinkRate, SharedLink, TokenBucket


def ticked(transfers: list[tuple[int, int, int]]) -> list[int]:
    """Return the ends of transfers (start, work, weight) on a link that moves one picosecond at a time."""
    left = [Fraction(work) for _, work, _ in transfers]
    ends = [-1] * len(transfers)
    now = 0
    while min(ends) < 0:
        there = [i for i, (start, _, _) in enumerate(transfers) if start <= now and ends[i] < 0]
        for i in [i for i in there if left[i] <= 0]:
            ends[i] = now
            there.remove(i)
        weights = sum(transfers[i][2] for i in there)
        for i in there:
            left[i] -= Fraction(transfers[i][2], weights)
        now += 1
    return ends


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 40), st.integers(1, 3)), min_size=1, max_size=4))
def test_transfers_end_when_those_of_a_link_end_that_moves_tick_by_tick(transfers: list[tuple[int, int, int]]) -> None:
    link, ends = SharedLink(), [-1] * len(transfers)
    starts = sorted({start for start, _, _ in transfers})
    while starts or link.next_end_ps() is not None:
        end = link.next_end_ps()
        now = min(each for each in (end, starts[0] if starts else None) if each is not None)
        for name in link.advance(now):
            ends[int(str(name))] = now
        if starts and now == starts[0]:
            starts.pop(0)
            for i, (start, work, weight) in enumerate(transfers):
                if start == now:
                    link.start(now, i, work, weight=weight)
    assert ends == ticked(transfers)


def test_two_transfers_of_equal_weight_take_twice_as_long_while_both_are_there() -> None:
    link = SharedLink()
    link.start(0, "a", 100)
    link.start(0, "b", 30)
    assert link.next_end_ps() == 60
    assert "b" in link
    assert link.advance(60) == ["b"]
    assert "b" not in link
    assert link.next_end_ps() == 130
    assert link.advance(130) == ["a"]
    assert link.next_end_ps() is None


def test_a_transfer_of_alpha_and_bytes_takes_the_formula() -> None:
    rate = LinkRate(bytes_per_s=3, alpha_ps=5)
    assert rate.work_ps(1) == 5 + 333_333_333_334
    assert rate.work_ps(0) == 0
    assert rate.chunked_ps(7, 3) == 2 * (5 + 10**12) + 5 + 333_333_333_334
    for n_bytes, chunk_bytes in ((-5, 3), (5, 0), (5.5, 3)):
        with pytest.raises(BadValueError, match="no figure of a link"):
            rate.chunked_ps(n_bytes, chunk_bytes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("bytes_per_s", "alpha_ps"), [(0, 0), (-1, 0), (1.5, 0), (float("nan"), 0), (True, 0), (1, -1), (10**18 + 1, 0)]
)
def test_a_link_has_a_rate(bytes_per_s: int, alpha_ps: int) -> None:
    with pytest.raises(BadValueError, match="no figure of a link"):
        LinkRate(bytes_per_s=bytes_per_s, alpha_ps=alpha_ps)


def test_time_goes_from_end_to_end_and_names_are_used_once() -> None:
    link = SharedLink()
    link.start(5, "a", 10)
    for to_ps in (4, 16):
        with pytest.raises(BadValueError, match="end to end"):
            link.advance(to_ps)
    with pytest.raises(BadValueError, match="under way"):
        link.start(6, "a", 1)
    with pytest.raises(BadValueError, match="Too much"):
        link.start(6, "b", 1, weight=12)
    with pytest.raises(BadValueError):
        link.start(6, "b", 1, weight=0)
    with pytest.raises(BadValueError):
        link.start(6, "b", -1)


def test_slack_is_what_a_copy_may_stand_still() -> None:
    assert CopyView(pending=1, left_ps=30, due_ps=50).slack_ps == 20
    assert CopyView(pending=1, left_ps=30, due_ps=0).slack_ps == -30


def test_a_bucket_passes_bytes_at_its_rate_and_keeps_no_idle_time() -> None:
    bucket = TokenBucket(bytes_per_s=1_000_000_000)
    assert [bucket.take(1000, 50), bucket.take(1000, 100)] == [1050, 1150]
    # Ready when the last ones had passed, whatever the clock says now.
    assert bucket.take(1150, 100) == 1250
    assert bucket.take(5000, 200) == 5200
    assert bucket.take(0, 0) == 5200
    assert TokenBucket(bytes_per_s=3).take(0, 1) == 333_333_334
    with pytest.raises(BadValueError):
        TokenBucket(bytes_per_s=0)
