"""The executor of step graphs: its rules, the compiled loop against the plain Python one, and what stands still."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import WavetankError
from wavetank.sim.step_reference import reference_times
from wavetank.sim.steps import COLLECTIVE, RECEIVE, SEND, DeadlockError, numbered_links
from wavetank.workloads.operations import Operation, StepGraph


def summed(rank, duration_ps=1, **more):
    return Operation(
        rank=rank, kind="collective", group=0, duration_ps=duration_ps, **{"collective": "all-reduce", **more}
    )


def ends(operations, groups=()):
    return StepGraph.of(operations, groups=groups).times().end_ps.tolist()


def test_operations_of_a_stream_follow_each_other_and_streams_do_not_wait():
    assert ends([Operation(rank=0, duration_ps=5), Operation(rank=0, duration_ps=3), Operation(rank=0, stream=1,
                 duration_ps=4)]) == [5, 8, 4]  # fmt: skip


def test_an_operation_starts_after_the_last_that_it_depends_on():
    times = StepGraph.of([
        Operation(rank=0, duration_ps=5), Operation(rank=1, duration_ps=7), Operation(rank=2, duration_ps=1,
        after=(0, 1)),
    ]).times()  # fmt: skip
    assert times.start_ps.tolist() == [0, 0, 7]
    assert times.makespan_ps == 8


def test_a_collective_starts_with_the_last_member_and_ends_for_all_after_the_longest():
    graph = StepGraph.of(
        [Operation(rank=1, duration_ps=10), summed(0, 2), summed(1, 3), Operation(rank=0, duration_ps=1)],
        groups=((0, 1),),
    )
    times = graph.times()
    assert times.start_ps.tolist() == [0, 10, 10, 13]
    assert times.end_ps.tolist() == [10, 13, 13, 14]


def test_a_layout_is_run_again_with_other_durations():
    def graph(*took):
        first = [Operation(rank=rank, duration_ps=took[rank]) for rank in (1, 0)]
        return StepGraph.of([*first, summed(0, took[2]), summed(1, took[3])], groups=((0, 1),))

    prepared = graph(5, 7, 2, 3).prepared()
    before = prepared.times()
    again = prepared.times(np.array([1, 9, 6, 4]))
    other = graph(9, 1, 6, 4).times()
    assert again.end_ps.tolist() == other.end_ps.tolist() != before.end_ps.tolist()
    assert again.start_ps.tolist() == other.start_ps.tolist()
    assert prepared.times().end_ps.tolist() == before.end_ps.tolist()


def test_collectives_of_a_group_never_overlap_even_on_different_streams():
    both = [summed(rank, 4, stream=stream) for stream in (0, 1) for rank in (0, 1)]
    assert ends(both, ((0, 1),)) == [4, 4, 8, 8]


def test_a_receive_waits_for_its_send_and_a_send_for_nobody():
    send = Operation(rank=0, kind="send", peer=1, tag=7, duration_ps=6)
    receive = Operation(rank=1, kind="receive", peer=0, tag=7, duration_ps=2)
    assert ends([send, Operation(rank=0), receive]) == [6, 6, 8]
    assert ends([send, Operation(rank=1, duration_ps=20), receive]) == [6, 20, 22]


def test_messages_of_one_tag_keep_their_order():
    sends = [Operation(rank=0, kind="send", peer=1, duration_ps=d) for d in (5, 1)]
    receives = [Operation(rank=1, kind="receive", peer=0, stream=s) for s in (0, 1)]
    assert ends([*sends, *receives]) == [5, 6, 5, 6]


def test_a_shared_link_serves_requests_in_the_order_of_time():
    late = [Operation(rank=0, duration_ps=3), Operation(rank=0, kind="send", link=0, duration_ps=10)]
    early = [Operation(rank=1, duration_ps=2), Operation(rank=1, kind="send", link=0, duration_ps=10)]
    assert ends([*late, *early]) == [3, 22, 2, 12]


def test_of_requests_at_one_time_the_lowest_number_goes_first():
    sends = [Operation(rank=rank, kind="send", link=0, duration_ps=10) for rank in (2, 1, 0)]
    assert ends(sends) == [10, 20, 30]


def test_links_do_not_wait_for_each_other():
    sends = [Operation(rank=rank, kind="send", link=rank, duration_ps=10) for rank in (0, 1)]
    assert ends(sends) == [10, 10]


def test_a_collective_takes_its_link_once():
    members = [summed(rank, 5, link=0) for rank in (0, 1)]
    send = Operation(rank=2, kind="send", link=0, duration_ps=7)
    assert ends([*members, send], ((0, 1),)) == [5, 5, 12]


@st.composite
def graphs(draw):
    """Graphs that may run or stand still: several streams, groups, messages and links, and orders that may clash."""
    ranks = draw(st.integers(1, 4))
    groups = draw(st.lists(st.sets(st.integers(0, ranks - 1), min_size=1).map(sorted), max_size=3))
    with_links = draw(st.booleans())
    operations = []
    for i in range(draw(st.integers(0, 25))):
        rank, link = draw(st.integers(0, ranks - 1)), draw(st.integers(-1, 1)) if with_links else -1
        common = {
            "stream": draw(st.integers(0, 2)), "duration_ps": draw(st.integers(0, 6)),
            "after": tuple(draw(st.lists(st.integers(0, i - 1), max_size=2))) if i else (),
        }  # fmt: skip
        kind = draw(st.sampled_from(["compute", "pair", "group", "plain send"]))
        if kind == "group" and groups:
            number = draw(st.integers(0, len(groups) - 1))
            n_bytes = draw(st.sampled_from([8, 8, 8, 9]))
            # Mostly by all members, one after the other.
            for member in groups[number]:
                if draw(st.integers(0, 15)):
                    operations.append(
                        Operation(rank=member, kind="collective", collective="all-reduce", group=number,
                                  n_bytes=n_bytes, link=link, **(common | {"duration_ps": draw(st.integers(0, 6))}))
                    )  # fmt: skip
        elif kind == "pair":
            peer = draw(st.integers(0, ranks - 1))
            pair = [
                Operation(rank=rank, kind="send", peer=peer, link=link, **common),
                Operation(rank=peer, kind="receive", peer=rank, stream=draw(st.integers(0, 2)), duration_ps=1),
            ]
            operations += [each for each in pair if draw(st.integers(0, 15))]
        elif kind == "plain send":
            operations.append(Operation(rank=rank, kind="send", link=link, **common))
        else:
            operations.append(Operation(rank=rank, **common))
    order = draw(st.permutations(range(len(operations)))) if draw(st.integers(0, 4)) == 0 else range(len(operations))
    moved = [operations[i] for i in order]
    return StepGraph.of(
        [Operation(**(vars(each) | {"after": tuple(d for d in each.after if d < i)})) for i, each in enumerate(moved)],
        groups=groups,
    )


@settings(max_examples=300, deadline=None)
@given(graphs())
def test_the_compiled_loop_equals_the_reference_in_every_picosecond(graph):
    try:
        expected = reference_times(graph.steps)
    except DeadlockError as stopped:
        with pytest.raises(DeadlockError) as found:
            graph.times()
        # The same number of operations stands still.
        assert found.value.problem.split()[0] == stopped.problem.split()[0]
        return
    times = graph.times()
    assert np.array_equal(times.end_ps, expected.end_ps)
    assert np.array_equal(times.start_ps, expected.start_ps)


@settings(max_examples=100, deadline=None)
@given(graphs(), st.integers(2, 9))
def test_times_scale_with_durations(graph, factor):
    try:
        times = graph.times()
    except DeadlockError:
        return
    slower = StepGraph(**(vars_of(graph) | {"duration_ps": graph.duration_ps * factor})).times()
    assert np.array_equal(slower.end_ps, times.end_ps * factor)


def vars_of(graph):
    return {name: getattr(graph, name) for name in type(graph).__dataclass_fields__}


def test_a_prepared_graph_runs_again_from_the_beginning():
    prepared = StepGraph.of([summed(0), summed(1)], groups=((0, 1),)).prepared()
    assert prepared.times().end_ps.tolist() == prepared.times().end_ps.tolist() == [1, 1]
    assert not prepared.shares_links


@pytest.mark.parametrize(
    ("operations", "says"),
    [
        ([summed(0, name="sum")], r"operation 0 'sum' \(all-reduce .* waits for rank 1, which calls no such"),
        ([summed(0, n_bytes=4), summed(1, n_bytes=8)], r"of 4 bytes .* meets operation 1 \(all-reduce of 8 bytes"),
        ([summed(0), summed(1, collective="all-gather")], r"all-reduce .* meets operation 1 \(all-gather"),
        (
            [Operation(rank=1, kind="receive", peer=0, tag=3, n_bytes=4)],
            r"receive from rank 0, tag 3; .* waits for a send of 4 bytes",
        ),
        ([Operation(rank=1, kind="send", peer=0, tag=3, n_bytes=4)], r"send to rank 0.* waits for a receive of 4"),
        (
            [Operation(rank=0, kind="send", peer=1, n_bytes=4), Operation(rank=1, kind="receive", peer=0, n_bytes=5)],
            r"send to rank 1.* waits for a receive of 4 bytes",
        ),
    ],
)
def test_what_has_no_partner_is_named(operations, says):
    operations = [*operations, Operation(rank=0), Operation(rank=1)]
    with pytest.raises(DeadlockError, match=says):
        StepGraph.of(operations, groups=((0, 1),)).times()


def test_collectives_that_ranks_call_in_different_orders_stand_still_with_both_named():
    crossed = [
        Operation(rank=rank, kind="collective", collective="barrier", group=group)
        for rank, order in ((0, (0, 1)), (1, (1, 0)))
        for group in order
    ]
    with pytest.raises(DeadlockError) as stopped:
        StepGraph.of(crossed, groups=((0, 1), (0, 1))).times()
    assert stopped.value.problem.startswith("4 of 4 operations never start: operation 0 (barrier")
    assert "operation 2 (barrier of 0 bytes in group 1; rank 1, stream 0) waits for operation 1" in stopped.value.given
    assert stopped.value.where == "2 of 2 streams stand still"
    assert isinstance(stopped.value, WavetankError)


def test_the_cause_is_named_before_what_waits_for_it():
    # Ranks 1 and 2 wait for rank 0, whose receive has no send.
    operations = [
        Operation(rank=0, kind="receive", peer=2), *(summed(rank) for rank in range(3)), Operation(rank=1, stream=1,
        after=(2,)),
    ]  # fmt: skip
    with pytest.raises(DeadlockError, match=r"never start: operation 0 \(receive from rank 2"):
        StepGraph.of(operations, groups=((0, 1, 2),)).times()


def test_of_ranks_that_cross_only_these_are_named_and_not_who_waits_for_them():
    def barrier(rank, group):
        return Operation(rank=rank, kind="collective", collective="barrier", group=group)

    # Ranks 2 and 3 call two groups in different orders; ranks 0 and 1 have come, and wait for rank 2.
    crossed = [barrier(0, 0), barrier(1, 0), barrier(2, 1), barrier(2, 2), barrier(2, 0), barrier(3, 2), barrier(3, 1)]
    with pytest.raises(DeadlockError, match=r"7 of 7 .* start: operation 2 .* waits for operation 6") as stopped:
        StepGraph.of(crossed, groups=((0, 1, 2), (2, 3), (2, 3))).times()
    assert stopped.value.given.count("waits for") == 2
    assert "operation 5 (barrier of 0 bytes in group 2; rank 3, stream 0) waits for operation 3" in stopped.value.given


def test_a_member_waits_for_those_that_have_not_come():
    # Rank 2 receives only after the collective what rank 0 sends after it.
    operations = [
        summed(0), Operation(rank=0, kind="send", peer=2), summed(1), Operation(rank=2, kind="receive", peer=0),
        summed(2),
    ]  # fmt: skip
    with pytest.raises(DeadlockError) as stopped:
        StepGraph.of(operations, groups=((0, 1, 2),)).times()
    assert "operation 0 (all-reduce of 0 bytes in group 0; rank 0, stream 0) waits for operation 4" in (
        stopped.value.given
    )
    assert "waits for operation 2" not in stopped.value.given


def test_links_can_have_any_numbers():
    sends = [Operation(rank=rank, kind="send", link=link, duration_ps=10) for rank, link in ((0, 2**31 - 1), (1, 5))]
    graph = StepGraph.of([*sends, Operation(rank=2, kind="send", link=2**31 - 1, duration_ps=1), Operation(rank=2)])
    link, links = numbered_links(graph.steps)
    assert (link.tolist(), links) == ([1, 0, 1, -1], 2)
    assert graph.times().end_ps.tolist() == [10, 10, 11, 11]


def worked_out(graph):
    """The ends by a third way, with partners counted off here: all that can go on does, until nothing moves."""
    n, end, free = len(graph), {}, {}
    of = [tuple(int(getattr(graph, name)[i]) for name in ("kind", "rank", "peer", "tag", "group")) for i in range(n)]

    def alike(mine, other):
        """The operation of one description that comes in the place of another one's."""
        place = [j for j in range(n) if of[j] == of[mine]].index(mine)
        found = [j for j in range(n) if of[j] == other]
        return found[place] if place < len(found) else None

    def together(i):
        """All that start at once, or None for what never can."""
        kind, rank, peer, tag, group = of[i]
        if kind == COLLECTIVE:
            # Those of other tags or peers are no collectives: all of a group on a rank have one description.
            those = [alike(i, (kind, each, peer, tag, group)) for each in graph.groups[group]]
            said = {(graph.collective[j], graph.n_bytes[j], graph.link[j]) for j in those if j is not None}
            return those if None not in those and len(said) == 1 else None
        if kind == RECEIVE or (kind == SEND and peer >= 0):
            partner = alike(i, (SEND + RECEIVE - kind, peer, rank, tag, group))
            return [i] if partner is not None and graph.n_bytes[partner] == graph.n_bytes[i] else None
        return [i]

    def before(i):
        kind, rank, peer, tag, group = of[i]
        yield from graph.after(i)
        yield from (j for j in range(i) if (of[j][1], graph.stream[j]) == (rank, graph.stream[i]))
        if kind == COLLECTIVE:
            yield from (j for j in range(i) if of[j] == of[i])
        elif kind == RECEIVE:
            yield alike(i, (SEND, peer, rank, tag, group))

    parts = [together(i) for i in range(n)]
    waits = [[j for each in those for j in before(each)] if those else [] for those in parts]
    while True:
        can = [i for i in range(n) if i not in end and parts[i] and all(j in end for j in waits[i])]
        ready = {i: max((end[j] for j in waits[i]), default=0) for i in can}
        now = [i for i in can if graph.link[i] < 0]
        if not now and can:
            now = [min(can, key=lambda i: (ready[i], min(parts[i])))]
            ready[now[0]] = max(ready[now[0]], free.get(graph.link[now[0]], 0))
        if not now:
            return [end.get(i, -1) for i in range(n)]
        for i in now:
            finish = ready[i] + max(int(graph.duration_ps[j]) for j in parts[i])
            end.update(dict.fromkeys(parts[i], finish))
            if graph.link[i] >= 0:
                free[graph.link[i]] = finish


@settings(max_examples=150, deadline=None)
@given(graphs())
def test_partners_and_times_are_those_of_a_third_way_that_shares_nothing(graph):
    expected = worked_out(graph)
    if -1 in expected:
        with pytest.raises(DeadlockError, match=rf"^{expected.count(-1)} of {len(graph)} operations never start"):
            graph.times()
    else:
        assert graph.times().end_ps.tolist() == expected
