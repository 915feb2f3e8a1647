"""Replays against the alpha-beta formula, limits, and a longest path that shares no code."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.insight.replay.test_checks import program

from wavetank.errors import BadTraceError, BadValueError, DataUnavailableError
from wavetank.insight.replay import critical_path, read_et, simulate
from wavetank.platforms.fabric import Fabric, Level
from wavetank.workloads import datasets
from wavetank.workloads.chakra_writing import made_node, made_trace
from wavetank.workloads.operations import COLLECTIVES

MIB = 1 << 20


def fabric(alpha_s=5e-7, bytes_per_s=50e9, ranks=8, **more):
    return Fabric(levels=(Level(name="ring", size=ranks, alpha_s=alpha_s, bytes_per_s=bytes_per_s, **more),))


@pytest.mark.parametrize("ranks", [4, 8])
@pytest.mark.parametrize(
    ("name", "rounds"), [("all_reduce", 2), ("all_gather", 1), ("reduce_scatter", 1), ("all_to_all", 1)]
)
def test_recorded_micro_benchmarks_take_the_alpha_beta_formula(ranks, name, rounds):
    traces = recorded(f"micro/{name}/{ranks}npus_1MB")
    expected_s = rounds * (ranks - 1) * (5e-7 + MIB / ranks / 50e9)
    assert simulate(traces, fabric(ranks=ranks)).makespan_ps / 1e12 == pytest.approx(expected_s, rel=1e-6)


def test_the_recorded_ring_of_sends_is_the_native_all_reduce_and_its_sums():
    native = simulate(recorded("micro/all_reduce/8npus_1MB"), fabric()).makespan_ps
    path = critical_path(simulate(recorded("custom_ring_allreduce_8npus_1MB"), fabric()))
    assert path.by_kind_ps()["send"] == native
    assert path.by_kind_ps()["compute"] == 7 * 7_000_000
    assert path.taken_ps == path.timeline.makespan_ps


def recorded(name):
    try:
        return read_et(datasets.find("chakra-et") / name)
    except DataUnavailableError as error:
        pytest.skip(str(error))


CALLS = st.lists(
    st.tuples(st.sampled_from(["all-reduce", "all-gather"]), st.sampled_from([0, 4 * MIB, 12 * MIB]), st.just("0")),
    min_size=1, max_size=5,
)  # fmt: skip


@settings(max_examples=30)
@given(calls=CALLS, slow=st.floats(1e8, 1e10), factor=st.floats(1.0, 100.0))
def test_more_bandwidth_never_takes_longer(calls, slow, factor):
    traces = [program(calls)] * 4
    one, other = (simulate(traces, fabric(bytes_per_s=each, ranks=4)) for each in (slow, slow * factor))
    assert other.makespan_ps <= one.makespan_ps


@settings(max_examples=30)
@given(calls=CALLS)
def test_without_a_price_of_moving_the_makespan_is_the_computation_of_the_chain(calls):
    # Each computation of these programs follows the collective before it: all of them are on the way.
    timeline = simulate([program(calls)] * 4, fabric(alpha_s=0.0, bytes_per_s=1e18, ranks=4))
    assert timeline.makespan_ps == pytest.approx(len(calls) * 5_000_000, abs=100)


def graph_traces(seeds):
    """Traces of random dependencies on several streams, two ranks, with collectives of both in between."""
    ranks = []
    for offset in (0, 3):
        nodes = []
        for n, (took, back, stream, collective) in enumerate(seeds):
            after = [max(n - 1 - back, 0)] if n else []
            if collective:
                nodes.append(made_node(n, "sum", "collective", after=after, duration_ns=took * 100 + 1,
                                       attributes={"comm_type": 0, "comm_size": 8, "pg_name": "0"}))  # fmt: skip
            else:
                nodes.append(made_node(n, f"k{took}", "compute", after=after, duration_ns=took * 100 + offset * n,
                                       attributes={"stream": stream}))  # fmt: skip
        ranks.append(made_trace(nodes))
    return ranks


SEEDS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3), st.integers(0, 2), st.booleans()), min_size=1,
                 max_size=14)  # fmt: skip


def longest(traces):
    """Ends by relaxation until nothing changes: streams, dependencies, and collectives of both ranks."""
    nodes = [(rank, node) for rank, trace in enumerate(traces) for node in trace.nodes]
    key = lambda rank, node: (rank, "all" if node.type == 7 else node.attributes["stream"])  # noqa: E731
    call = {}
    for rank, node in nodes:
        if node.type == 7:
            call[rank, node.id] = sum(r == rank and o.type == 7 and o.id < node.id for r, o in nodes)
    took = {(rank, node.id): node.attributes.get("duration_nanos", node.duration_us * 1000) for rank, node in nodes}
    for a, b in [(a, b) for a in call for b in call if call[a] == call[b]]:
        took[a] = took[b] = min(took[a], took[b])
    end = {(rank, node.id): 0 for rank, node in nodes}
    while True:
        fresh = {}
        for rank, node in nodes:
            those = [(rank, node)] if node.type != 7 else [
                (r, o) for r, o in nodes if o.type == 7 and call[r, o.id] == call[rank, node.id]
            ]  # fmt: skip
            start = 0
            for r, each in those:
                before = [end[r, d] for d in each.ctrl_deps]
                before += [end[r, o.id] for q, o in nodes if q == r and key(q, o) == key(r, each) and o.id < each.id]
                start = max([start, *before])
            fresh[rank, node.id] = start + took[rank, node.id]
        if fresh == end:
            return {at: value * 1000 for at, value in end.items()}
        end = fresh


@settings(max_examples=60, deadline=None)
@given(seeds=SEEDS)
def test_ends_and_critical_path_are_those_of_a_relaxation_that_shares_no_code(seeds):
    traces = graph_traces(seeds)
    expected = longest(traces)
    if not max(expected.values()):
        with pytest.raises(BadTraceError, match="takes any time"):
            simulate(traces)
        return
    timeline = simulate(traces)
    ends = {
        (int(timeline.graph.rank[i]), node.id): int(timeline.times.end_ps[i]) for i, node in enumerate(timeline.nodes)
    }
    assert ends == expected
    path = critical_path(timeline)
    assert path.taken_ps == timeline.makespan_ps
    assert path.waited_ps == 0
    starts, stops = timeline.times.start_ps[path.operations], timeline.times.end_ps[path.operations]
    assert starts[0] == 0
    assert (starts[1:] == stops[:-1]).all()
    assert sum(path.by_kind_ps().values()) == sum(path.by_name_ps().values()) == timeline.makespan_ps


def test_one_stream_takes_the_sum_of_its_durations():
    times = [3_000, 500, 70_001]
    trace = made_trace([made_node(n, "n", "compute", duration_ns=took) for n, took in enumerate(times)])
    assert simulate([trace]).makespan_ps == sum(times) * 1000


def test_of_recorded_collectives_the_member_that_waited_least_says_what_it_takes():
    def rank(work, took):
        return made_trace([
            made_node(0, "mm", "compute", duration_ns=work),
            made_node(1, "sum", "collective", after=[0], duration_ns=took,
                      attributes={"comm_type": 0, "comm_size": 8, "pg_name": "0"}),
        ])  # fmt: skip

    # Rank 0 came 6 us early, and its collective says 6 us more.
    timeline = simulate([rank(1_000, 8_000), rank(7_000, 2_000)])
    assert timeline.makespan_ps == 9_000_000
    assert timeline.waiting_ps.tolist() == [6_000_000, 0]
    assert timeline.last_counts.tolist() == [0, 1]


def test_a_fabric_can_take_the_place_of_what_was_recorded():
    call = {"comm_type": COLLECTIVES.index("all-reduce"), "comm_size": MIB}
    trace = made_trace([made_node(0, "sum", "collective", duration_ns=10**9, attributes=call)])
    traces = [trace] * 4
    assert simulate(traces, fabric(ranks=4)).makespan_ps == 10**12
    expected_s = 6 * (5e-7 + MIB / 4 / 50e9)
    priced = simulate(traces, fabric(ranks=4), communication="fabric")
    assert priced.makespan_ps / 1e12 == pytest.approx(expected_s, rel=1e-6)


def test_a_wait_for_a_shared_link_is_no_work_on_the_path():
    def sender(rank):
        return made_trace(
            [made_node(0, "send", "send", attributes={"comm_size": 1000, "comm_dst": 2, "comm_tag": rank})]
        )

    receiver = made_trace([
        made_node(n, "receive", "receive", attributes={"comm_size": 1000, "comm_src": n, "comm_tag": n}) for n in (0, 1)
    ])  # fmt: skip
    # Both senders share the link out of their node of two.
    levels = (Level(name="node", size=2, alpha_s=0.0, bytes_per_s=1e12),
              Level(name="net", size=2, alpha_s=0.0, bytes_per_s=1e9, shared=True))  # fmt: skip
    path = critical_path(simulate([sender(0), sender(1), receiver], Fabric(levels=levels)))
    assert path.timeline.makespan_ps == 2_000_000
    assert path.taken_ps + path.waited_ps == 2_000_000
    assert path.operations.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: simulate([]), "no traces"),
        (lambda: simulate([program([("all-reduce", 8, "0")])] * 2), "no duration"),
        (lambda: simulate([program([("all-reduce", 8, "0")])] * 2, communication="fabric"), "what a fabric says"),
        (lambda: simulate([program([("all-reduce", 8, "0")])] * 2, fabric(), communication="guessed"), "recorded"),
        (lambda: simulate([made_trace([made_node(0, "n", "metadata")])]), "takes any time"),
        (lambda: simulate([made_trace([])]), "takes any time"),
    ],
)
def test_what_cannot_be_simulated_is_refused_and_never_takes_no_time(call, says):
    with pytest.raises((BadTraceError, BadValueError), match=says):
        call()
