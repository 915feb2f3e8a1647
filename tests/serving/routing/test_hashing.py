"""Hashing routers: who has a key, who takes over, and how much more than the mean anybody gets."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.serving.routing.hashing import BoundedHash, SessionAffinity
from wavetank.serving.routing.interface import Arrival, idle_workers

BY_SESSION = BoundedHash(key="session")


def of(session=-1, blocks=(), time_s=0.0):
    return Arrival(time_s, 100.0, np.nan, session=session, blocks=np.array(blocks, np.int64))


def choose(router, view, arrival, state=None):
    state = router.initial_state(view.running.size) if state is None else state
    return int(router.choose(view, arrival, state, router.parameters()))


@pytest.mark.parametrize("router", [SessionAffinity(), BY_SESSION], ids=["affinity", "bounded"])
class TestSessions:
    def test_a_session_stays_and_sessions_spread_evenly(self, router):
        view = idle_workers(8)
        homes = [choose(router, view, of(session)) for session in range(4000)]
        assert homes == [choose(router, view, of(session)) for session in range(4000)]
        # Four standard deviations of a count of 4,000 draws with probability 1/8 are 84.
        assert all(abs(count - 500) < 84 for count in Counter(homes).values())

    def test_only_the_sessions_of_a_worker_that_leaves_move_and_they_spread(self, router):
        view = idle_workers(8)
        gone = idle_workers(8, takes=[1, 1, 1, 0, 1, 1, 1, 1])
        moved = Counter()
        for session in range(2000):
            before, after = choose(router, view, of(session)), choose(router, gone, of(session))
            assert after != 3
            assert (before == after) == (before != 3)
            if before == 3:
                moved[after] += 1
        assert len(moved) == 7

    def test_a_session_follows_the_workers_name_and_not_its_place(self, router):
        view = idle_workers(4, identity=[10, 11, 12, 13])
        turned = idle_workers(4, identity=[13, 12, 11, 10])
        for session in range(100):
            assert choose(router, view, of(session)) == 3 - choose(router, turned, of(session))


class TestSessionAffinity:
    def test_the_load_changes_nothing(self):
        home = choose(SessionAffinity(), idle_workers(3), of(7))
        busy = np.where(np.arange(3) == home, 1000, 0)
        assert choose(SessionAffinity(), idle_workers(3, running=busy, waiting=busy), of(7)) == home

    def test_without_a_session_the_fewest_requests_of_late_decide(self):
        router = SessionAffinity()
        view, state = idle_workers(3), router.initial_state(3)
        assert [choose(router, view, of(), state) for _ in range(6)] == [0, 1, 2, 0, 1, 2]
        home = choose(router, view, of(7), state)
        others = [worker for worker in range(3) if worker != home]
        assert [choose(router, view, of(), state) for _ in range(2)] == others

    def test_requests_of_long_ago_count_less(self):
        router = SessionAffinity(window_s=10.0)
        view, state = idle_workers(2), router.initial_state(2)
        only_first = idle_workers(2, takes=[1, 0])
        for _ in range(5):
            assert choose(router, only_first, of(), state) == 0
        assert choose(router, idle_workers(2, takes=[0, 1]), of(time_s=100.0), state) == 1
        # Five requests of ten windows ago are less than one of now.
        assert choose(router, view, of(time_s=100.0), state) == 0


class TestBoundedHash:
    def test_beyond_the_bound_a_key_goes_to_its_next_choice_every_time(self):
        view = idle_workers(4)
        first = choose(BY_SESSION, view, of(5))
        # Five requests with the new one: the mean is 1.25, the bound 1.5625, rounded up 2.
        loads = np.zeros(4, np.int64)
        loads[first] = 4
        spilled = choose(BY_SESSION, idle_workers(4, running=loads), of(5))
        assert spilled != first
        assert spilled == choose(BY_SESSION, idle_workers(4, takes=np.arange(4) != first), of(5))

    @pytest.mark.parametrize(("load", "stays"), [(1, True), (2, False)])
    def test_the_bound_is_a_whole_number_of_requests_with_the_new_one(self, load, stays):
        # Load and new request are 1.25 * (4 + 1) / 4 = 1.56 at most, so 2: one is there, or two.
        home = choose(BY_SESSION, idle_workers(4), of(5))
        loads = np.zeros(4, np.int64)
        loads[home] = load
        loads[next(w for w in range(4) if w != home)] += 4 - load
        assert (choose(BY_SESSION, idle_workers(4, running=loads), of(5)) == home) is stays

    @pytest.mark.parametrize("field", ["running", "waiting", "sent_requests"])
    def test_all_requests_in_flight_are_load(self, field):
        home = choose(BY_SESSION, idle_workers(4), of(5))
        loads = np.where(np.arange(4) == home, 9, 0)
        assert choose(BY_SESSION, idle_workers(4, **{field: loads}), of(5)) != home

    def test_where_asked_a_full_worker_spills_to_the_shortest_queue(self):
        router = BoundedHash(key="session", spill="least")
        home = choose(router, idle_workers(4), of(5))
        for idle in set(range(4)) - {home}:
            loads = np.full(4, 3)
            loads[home], loads[idle] = 9, 1
            assert choose(router, idle_workers(4, running=loads), of(5)) == idle

    def test_the_beginning_of_a_prompt_is_a_key(self):
        view = idle_workers(16)
        homes = {choose(BoundedHash(), view, of(session=i, blocks=(7, 100 + i))) for i in range(50)}
        assert len(homes) == 1
        assert len({choose(BoundedHash(prefix_blocks=2), view, of(blocks=(7, 100 + i))) for i in range(50)}) > 5
        # A shorter prompt counts whole.
        assert choose(BoundedHash(prefix_blocks=2), view, of(blocks=(7,))) == homes.pop()

    def test_without_a_key_the_shortest_queue_decides(self):
        view = idle_workers(3, running=[2, 0, 1])
        assert choose(BoundedHash(), view, of(session=4)) == 1
        assert choose(BY_SESSION, view, of(blocks=(1, 2))) == 1

    @given(
        loads=st.lists(st.integers(0, 50), min_size=1, max_size=9),
        factor=st.sampled_from([1.0, 1.25, 1.5, 3.0]),
        session=st.integers(0, 1000),
        spill=st.sampled_from(["next", "least"]),
    )
    def test_nobody_is_brought_beyond_the_bound(self, loads, factor, session, spill):
        router = BoundedHash(key="session", load_factor=factor, spill=spill)
        chosen = choose(router, idle_workers(len(loads), running=loads), of(session))
        assert loads[chosen] + 1 <= np.ceil(factor * (sum(loads) + 1) / len(loads))

    def test_where_nobody_takes_requests_the_answer_is_a_worker(self):
        for router in (BoundedHash(), BY_SESSION, SessionAffinity()):
            assert choose(router, idle_workers(3, takes=0), of(3, (1,))) == 0

    def test_a_factor_below_one_is_refused(self):
        with pytest.raises(BadValueError):
            from wavetank.settings import check_ranges

            check_ranges(BoundedHash(load_factor=0.9))
