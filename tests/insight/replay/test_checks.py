"""Planted faults are named with rank and node, and sound traces have none."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.workloads.test_chakra import RECEIVER, SENDER

from wavetank.errors import BadTraceError
from wavetank.insight.replay import read_et, simulate, validate
from wavetank.insight.replay.checks import LABELS, cycle_of
from wavetank.platforms.fabric import Fabric, Level
from wavetank.workloads.chakra import read_trace_file, trace_of
from wavetank.workloads.chakra_writing import made_node, made_trace
from wavetank.workloads.operations import COLLECTIVES
from wavetank.workloads.protobuf import encoded

FABRIC = Fabric(levels=(Level(name="ring", size=16, alpha_s=1e-6, bytes_per_s=1e9),))
PLAN = [("all-reduce", 100, "0"), ("all-gather", 40, "0"), ("all-reduce", 100, "0"), ("reduce-scatter", 8, "0")]


def program(calls):
    """The trace of a rank that computes and calls collectives in turn: (collective, bytes, group)."""
    nodes = []
    for name, size, group in calls:
        n = len(nodes)
        nodes.append(made_node(n, "mm", "compute", after=[n - 1] if n else [], duration_ns=5000))
        nodes.append(
            made_node(n + 1, name, "collective", after=[n],
                      attributes={"comm_type": COLLECTIVES.index(name), "comm_size": size, "pg_name": group})
        )  # fmt: skip
    return made_trace(nodes)


def test_sound_traces_have_no_problem():
    assert validate([program(PLAN)] * 4) == ()
    assert validate([trace_of(SENDER), trace_of(RECEIVER)]) == ()


def test_duplicates_are_all_named(tmp_path):
    nodes = [made_node(n, "mm", "compute", duration_ns=9000) for n in (1, 2, 2, 3, 3, 3)]
    head = program(PLAN[:1]).between[0]
    (tmp_path / "t.0.et").write_bytes(head + b"".join(encoded(len(each)) + each for each in nodes))
    with pytest.raises(BadTraceError, match="one identity"):
        read_trace_file(tmp_path / "t.0.et")
    found = validate(read_et(tmp_path, unique=False))
    assert [(each.label, each.node) for each in found] == [("duplicate-node", 2), ("duplicate-node", 3)]
    assert "3 nodes of rank 0" in found[1].says


def test_dangling_dependencies_are_named_with_both_ends():
    trace = made_trace(
        [made_node(0, "a", "compute", duration_ns=1), made_node(1, "b", "compute", after=[0, 77], data=[5])]
    )
    found = validate([trace])
    assert [(each.label, each.node) for each in found] == [("dangling-dependency", 1)] * 2
    assert "node 77" in found[0].says
    assert "node 5" in found[1].says


def test_a_cycle_is_named_and_not_what_waits_behind_it():
    deps = {0: [], 1: [0, 3], 2: [1], 3: [2], 4: [3]}
    trace = made_trace([made_node(n, "n", "compute", after=after, duration_ns=1) for n, after in deps.items()])
    (found,) = validate([trace])
    assert found.label == "cycle"
    assert sorted(cycle_of(trace)) == [1, 2, 3]
    assert "4" not in found.says


@pytest.mark.parametrize(
    ("calls", "call", "how"),
    [
        ([*PLAN[:1], *PLAN[2:]], 1, "leaves a call out"),
        ([*PLAN[:1], ("broadcast", 4, "0"), *PLAN[1:]], 1, "has a call too many"),
        ([*PLAN[:2], ("all-reduce", 99, "0"), PLAN[3]], 2, "calls another size"),
        ([*PLAN[:2], ("broadcast", 100, "0"), PLAN[3]], 2, "calls another collective"),
        ([PLAN[1], PLAN[0], *PLAN[2:]], 0, "has two calls in another order"),
        (PLAN[:3], 3, "has no further calls"),
        ([*PLAN, PLAN[0]], 4, "has a call too many"),
        ([*PLAN, *PLAN[:2]], 4, "goes on after the others"),
    ],
)
@pytest.mark.parametrize("culprit", [0, 2, 3])
def test_the_rank_that_differs_is_named_with_the_first_call(calls, call, how, culprit):
    traces = [program(PLAN)] * 4
    traces[culprit] = program(calls)
    (found,) = validate(traces)
    assert (found.label, found.ranks, found.call, found.group) == ("mismatched-collective", (culprit,), call, "0")
    assert f"Rank {culprit} {how}" in found.says
    with pytest.raises(BadTraceError, match=f"Rank {culprit}"):
        simulate(traces, FABRIC)


def test_two_ranks_that_disagree_are_both_named():
    (found,) = validate([program(PLAN), program(PLAN[1:])])
    assert found.ranks == (0, 1)
    assert "all-reduce of 100 bytes" in found.says
    assert "all-gather of 40 bytes" in found.says


def test_a_rank_without_the_collective_of_all_is_the_culprit():
    named = [made_trace([made_node(0, "all", "collective", attributes={"comm_type": 0, "comm_size": 8})])] * 3
    (found,) = validate([*named, made_trace([made_node(0, "mm", "compute", duration_ns=5)])])
    assert (found.label, found.ranks, found.node) == ("mismatched-collective", (3,), -1)


def test_a_message_without_its_other_side_is_named():
    alone = made_trace([made_node(0, "mm", "compute", duration_ns=5000)])
    (found,) = validate([trace_of(SENDER), alone])
    assert (found.label, found.ranks) == ("unmatched-message", (1,))
    assert "1 sends and 0 receives from rank 0 to rank 1" in found.says


def test_groups_that_cross_are_a_deadlock():
    first, second = ("all-reduce", 8, "a"), ("all-reduce", 8, "b")
    (found,) = validate([program([first, second]), program([second, first])])
    assert found.label == "deadlock"
    assert "never start" in found.says


def test_a_node_that_means_nothing_is_named():
    (found,) = validate([made_trace([made_node(0, "x", "collective", attributes={"comm_type": 99, "comm_size": 1})])])
    assert found.label == "bad-node"
    assert "x" in found.says
    assert found.label in LABELS


@settings(max_examples=60)
@given(
    calls=st.lists(st.sampled_from([("all-reduce", 4), ("all-gather", 4), ("all-reduce", 8)]), min_size=2, max_size=6),
    ranks=st.integers(3, 5), culprit=st.integers(0, 4), at=st.integers(0, 5),
)  # fmt: skip
def test_a_dropped_call_always_names_its_rank(calls, ranks, culprit, at):
    whole = [(name, size, "0") for name, size in calls]
    culprit, at = culprit % ranks, at % len(calls)
    traces = [program(whole)] * ranks
    traces[culprit] = program(whole[:at] + whole[at + 1 :])
    (found,) = validate(traces)
    assert found.ranks == (culprit,)
