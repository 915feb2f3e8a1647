"""The replayed caches: against Che, against plain ordered dictionaries, and never more than the memory."""

from collections import OrderedDict

import numpy as np
import pytest
from tests.serving.memory.conftest import trace

from wavetank.serving.memory.che import mean_service_s
from wavetank.serving.memory.costs import Node
from wavetank.serving.memory.interface import NodeReplay, run_policy
from wavetank.serving.memory.node import _uniform, held_bytes
from wavetank.serving.memory.rivals import FixedSplit


@pytest.mark.parametrize(("name", "share"), [("steady", 0.62), ("hot-rows", 0.1), ("short", 0.9)])
def test_mean_times_are_those_of_ches_approximation(name, share):
    from wavetank.serving.memory.traffic import KNOWN

    run = run_policy(trace(name, 20_480, spread=0.0), FixedSplit(share=share))
    assert run.service_s[40:].mean() == pytest.approx(mean_service_s(Node(), share, *KNOWN[name]), rel=0.02)


def test_every_latency_is_that_of_ordered_dictionaries():
    traffic, share = trace(requests=640, group=4096), 0.5
    node, caches = traffic.node, NodeReplay(traffic, share)
    group_bytes = node.row_bytes * traffic.group
    # From the state in which the replay begins, last used first.
    rows, users, at = OrderedDict(), OrderedDict(), len(traffic.order)
    before, end = caches.caches.row_before, at
    while before[end] != at:
        end = int(before[end])
        rows[end] = None
    before, at = caches.caches.user_before, node.users
    end = at
    while before[end] != at:
        end = int(before[end])
        users[end] = float(caches.caches.user_tokens[end])
    limit = (1 - share) * node.memory_bytes / node.kv_bytes_per_token
    room = int(share * node.memory_bytes / group_bytes)
    free, expected = 0.0, []
    for i in range(640):
        user, history = int(traffic.user[i]), float(traffic.history[i])
        resident = user in users
        users.pop(user, None)
        while sum(users.values()) + history > limit:
            users.popitem(last=False)
        users[user] = history
        tokens, context = (node.new_tokens, history) if resident else (history + node.new_tokens, history / 2)
        exact = tokens * node.rows_per_token / traffic.group
        count = int(exact) + (_uniform(traffic.key, i, 0) < exact - int(exact))
        missed = 0
        for number in range(1, count + 1):
            rank = int(np.searchsorted(traffic.cumulative[0], _uniform(traffic.key, i, number)))
            row = int(traffic.order[rank])
            if row in rows:
                rows.move_to_end(row)
                continue
            missed += 1
            while len(rows) >= room:
                rows.popitem(last=False)
            rows[row] = None
        service = missed * group_bytes / node.copy_bytes_per_s + node.compute_s(tokens, context)
        free = max(free, traffic.arrival_s[i]) + service
        expected.append(free - traffic.arrival_s[i])
    for _ in range(10):
        caches.serve()
    assert caches.latency_s[:640] == pytest.approx(expected, rel=1e-9)


def test_both_caches_never_hold_more_than_the_memory_while_the_boundary_moves():
    replay, wanted = NodeReplay(trace(), 0.5), [0.9, 0.1]
    for number in range(120):
        replay.serve()
        assert sum(held_bytes(replay.caches, replay.traffic)) <= replay.traffic.node.memory_bytes
        replay.move(wanted[number // 60])


@pytest.mark.parametrize(("share", "rows", "users"), [(0.0, True, False), (1.0, False, True)])
def test_at_the_ends_there_is_one_cache(share, rows, users):
    replay = NodeReplay(trace(requests=1280), share)
    views = [replay.serve() for _ in range(20)]
    held = held_bytes(replay.caches, replay.traffic)
    assert (held[0] == 0, held[1] == 0) == (rows, users)
    assert all((view.row_hits == 0) == rows and (view.user_hits == 0) == users for view in views)


def test_without_copying_nothing_is_copied_and_with_it_no_more_than_allowed():
    for refill in (False, True):
        replay = NodeReplay(trace("flat-users"), 0.3)
        total = 0.0
        for _ in range(60):
            replay.serve(refill)
            total += replay.sums[6]
            replay.move(0.98)
        passed = replay.traffic.arrival_s[60 * 64 - 1]
        assert (total > 0) == refill and total <= 0.1 * 6e9 * passed
