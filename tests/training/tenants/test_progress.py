"""No group gets too old, whatever order groups end in, and there is always something to do."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wavetank.training.tenants.progress import Progress


@given(
    updates=st.integers(1, 6),
    groups=st.integers(1, 4),
    s_max=st.integers(0, 4),
    order=st.randoms(use_true_random=False),
)
def test_groups_are_trained_on_once_and_young_enough(updates, groups, s_max, order):
    progress, seen, running = Progress(updates, groups, s_max), [], []
    running += progress.ask()
    while not progress.done:
        while not progress.ready:
            # Without an update, some group that was asked for must be missing.
            assert running
            progress.whole.add(running.pop(order.randrange(len(running))))
        taken = progress.take()
        assert len(taken) == groups
        assert all(0 <= age <= s_max for _, age in taken)
        seen += [group for group, _ in taken]
        progress.version += 1
        running += progress.ask()
    assert sorted(seen) == list(range(updates * groups))
    assert progress.ask() == []


def test_on_policy_the_next_groups_come_after_the_update():
    progress = Progress(3, 2, 0)
    assert progress.ask() == [0, 1]
    assert progress.ask() == []
    progress.whole.add(1)
    assert not progress.ready
    progress.whole.add(0)
    assert progress.ready
    assert progress.take() == [(0, 0), (1, 0)]
    progress.version += 1
    assert progress.ask() == [2, 3]


def test_a_group_that_would_be_too_old_holds_the_update_up():
    progress = Progress(4, 1, 1)
    assert progress.ask() == [0, 1]
    progress.whole.add(1)
    assert progress.ready
    assert progress.take() == [(1, 0)]
    progress.version += 1
    assert progress.ask() == [2]
    progress.whole.add(2)
    assert not progress.ready
    progress.whole.add(0)
    assert progress.take() == [(0, 1)]


def test_a_task_goes_on_from_its_version():
    progress = Progress(4, 3, 1, version=2)
    assert progress.ask() == [6, 7, 8, 9, 10, 11]
    assert not progress.done
    assert Progress(4, 3, 1, version=4).done


@given(
    groups=st.integers(1, 3),
    s_max=st.integers(0, 3),
    versions=st.lists(st.integers(2, 5), max_size=12).map(sorted),
    draws=st.randoms(use_true_random=False),
)
def test_an_update_is_ready_when_all_that_it_leaves_can_still_be_taken_in_time(groups, s_max, versions, draws):
    progress = Progress(100, groups, s_max, version=5)
    progress.open = dict(enumerate(versions))
    progress.whole = {group for group in progress.open if draws.random() < 0.7}
    taken = sorted(progress.whole)[:groups]
    left = [version for group, version in progress.open.items() if group not in taken]
    # Played out: the next updates take the oldest, a few at a time.
    in_time = all(6 + place // groups - version <= s_max for place, version in enumerate(left))
    assert progress.ready == (len(taken) == groups and in_time)
