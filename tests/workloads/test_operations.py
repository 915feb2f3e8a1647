"""Step graphs: what they hold, and what they refuse by name."""

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.workloads.operations import MOST_PS, UNPRICED, Operation, StepGraph


def arrays(**changes):
    plain = {
        "rank": np.array([0, 0, 1]), "stream": np.array([0, 0, 0]), "kind": np.array([0, 0, 0]),
        "duration_ps": np.array([1, 2, 3]), "dep_start": np.array([0, 0, 0, 1]), "dep": np.array([1]),
    }  # fmt: skip
    return plain | changes


def test_a_graph_of_arrays_holds_them_in_one_type_and_read_only():
    graph = StepGraph(**arrays())
    assert len(graph) == 3
    assert graph.rank.dtype == np.int32
    assert graph.peer.tolist() == [-1, -1, -1]
    assert graph.after(2) == (1,)
    with pytest.raises(ValueError, match="read-only"):
        graph.duration_ps[0] = 5


def test_what_is_written_down_one_by_one_equals_the_arrays():
    one = StepGraph.of([
        Operation(rank=0, duration_ps=1), Operation(rank=0, duration_ps=2),
        Operation(rank=1, duration_ps=3, after=(1,)),
    ])  # fmt: skip
    other = StepGraph(**arrays())
    for name in ("rank", "stream", "kind", "duration_ps", "dep_start", "dep", "group", "link"):
        assert np.array_equal(getattr(one, name), getattr(other, name))


def test_no_operations_are_a_graph():
    assert StepGraph.of([]).times().makespan_ps == 0


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"stream": np.array([0, 0])}, "The array stream of a step graph has another size"),
        ({"duration_ps": np.array([1, -2, 3])}, "duration_ps .* means nothing, at operation 1"),
        ({"duration_ps": np.array([1, 2, MOST_PS + 1])}, "duration_ps .* at operation 2"),
        ({"duration_ps": np.array([1.0, 2.0, 3.0])}, "duration_ps .* holds whole numbers"),
        ({"flops": np.array([0.0, np.nan, 0.0])}, "flops .* at operation 1"),
        ({"rank": np.array([0, 2**31, 0])}, "rank .* at operation 1"),
        ({"dep": np.array([3])}, r"operation 2 \(compute; rank 1, stream 0\) depends on an operation that is not"),
        ({"dep": np.array([-1])}, "operation 2 .* depends on an operation that is not in the graph"),
        ({"dep_start": np.array([0, 1, 0, 1])}, "dep_start of a step graph does not divide dep"),
        ({"kind": np.array([0, 5, 0])}, "kind .* means nothing, at operation 1"),
        ({"link": np.array([0, -1, -1])}, "operation 0 .* takes a link and moves nothing"),
        ({"peer": np.array([-1, 1, -1])}, "operation 1 .* is no message and has a peer"),
        ({"kind": np.array([0, 3, 0])}, "operation 1 .* comes from no rank"),
        ({"collective": np.array([-1, 10, -1])}, "collective .* means nothing, at operation 1"),
        ({"kind": np.array([0, 1, 0]), "group": np.array([-1, 0, -1])}, "operation 1 .* does not say which collective"),
        ({"kind": np.array([0, 1, 0]), "collective": np.array([-1, 0, -1])}, "operation 1 .* or the other way round"),
        ({"names": ("one",)}, "Names are those of all operations"),
    ],
)  # fmt: skip
def test_arrays_that_mean_nothing_are_refused_by_name(changes, says):
    with pytest.raises(BadValueError, match=says):
        StepGraph(**arrays(**changes))


def test_dependencies_in_a_cycle_are_refused_with_the_cycle():
    with pytest.raises(BadValueError, match="wait for each other in a cycle, operation 0 'a'") as refused:
        StepGraph.of([
            Operation(rank=0, after=(1,), name="a"), Operation(rank=1, after=(2,), name="b"),
            Operation(rank=2, after=(0,), name="c"), Operation(rank=3, name="d"),
        ])  # fmt: skip
    assert refused.value.given == "0 -> 1 -> 2 -> 0"


def test_an_operation_that_depends_on_itself_or_on_a_later_one_of_its_stream_is_a_cycle():
    with pytest.raises(BadValueError, match="cycle, operation 0"):
        StepGraph.of([Operation(rank=0, after=(0,))])
    with pytest.raises(BadValueError, match="cycle, operation 0"):
        StepGraph.of([Operation(rank=0, after=(1,)), Operation(rank=0)])


def test_a_dependency_on_a_later_number_of_another_stream_is_no_cycle():
    graph = StepGraph.of([Operation(rank=0, after=(1,), duration_ps=1), Operation(rank=1, duration_ps=4)])
    assert graph.times().end_ps.tolist() == [5, 4]


@pytest.mark.parametrize(
    ("operation", "groups", "says"),
    [
        ({"group": 1}, ((0, 1),), "operation 0 .* is of a group that there is not"),
        ({"group": 0}, ((1, 2),), "operation 0 .* is of a group that its rank is not in"),
        ({"group": 0}, ((0, 0),), "Group 0 is no set of ranks"),
        ({"group": 0}, ((),), "Group 0 is no set of ranks"),
        ({"group": 0, "collective": "all-to-none"}, ((0,),), "Operation 0 is of no kind"),
    ],
)
def test_mismatched_groups_are_refused(operation, groups, says):
    with pytest.raises(BadValueError, match=says):
        StepGraph.of([Operation(**({"rank": 0, "kind": "collective", "collective": "barrier"} | operation))],
                     groups=groups)  # fmt: skip


def test_unpriced_operations_are_held_but_do_not_run():
    graph = StepGraph.of([Operation(rank=0, flops=1e9, duration_ps=UNPRICED, name="product")])
    with pytest.raises(BadValueError, match=r"operation 0 'product' .* has no duration"):
        graph.times()


def test_durations_that_cannot_be_added_up_are_refused():
    graph = StepGraph.of([Operation(rank=0, duration_ps=MOST_PS), Operation(rank=0, duration_ps=1)])
    with pytest.raises(BadValueError, match="too long to be added up"):
        graph.times()


def test_messages_and_collectives_are_described_by_what_they_do():
    graph = StepGraph.of([
        Operation(rank=0, kind="send", peer=1, tag=4, name="x"), Operation(rank=1, kind="receive", peer=0, tag=4),
        Operation(rank=0, kind="collective", collective="all-gather", group=0, n_bytes=64),
        Operation(rank=0, kind="host", stream=2),
    ], groups=((0,),))  # fmt: skip
    assert [graph.describe(i) for i in range(4)] == [
        "operation 0 'x' (send to rank 1, tag 4; rank 0, stream 0)",
        "operation 1 (receive from rank 0, tag 4; rank 1, stream 0)",
        "operation 2 (all-gather of 64 bytes in group 0; rank 0, stream 0)",
        "operation 3 (host; rank 0, stream 2)",
    ]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"duration_ps": 1.7}, "The duration_ps of operation 1 is no whole number"),
        ({"duration_ps": True}, "The duration_ps of operation 1"),
        ({"rank": 0.5}, "The rank of operation 1"),
        ({"rank": 2**31}, "The array rank of a step graph holds what means nothing, at operation 1"),
        ({"stream": "1"}, "The stream of operation 1"),
        ({"tag": 2**63}, "The tag of operation 1"),
        ({"flops": None}, "The flops of operation 1 is no number"),
        ({"after": (0.5,)}, "What operation 1 comes after is no whole number"),
        ({"kind": "host", "peer": 0}, "is no message and has a peer"),
        ({"collective": "barrier"}, "is no collective and says which it is"),
    ],
)
def test_numbers_that_would_be_cut_short_are_refused_by_operation(given, says):
    with pytest.raises(BadValueError, match=says):
        StepGraph.of([Operation(rank=0), Operation(**{"rank": 0} | given)])


@pytest.mark.parametrize("ranks", [(0.5, 1), "ab", (2**70,)])
def test_groups_of_no_ranks_are_refused(ranks):
    with pytest.raises(BadValueError, match="A rank of group 0 is no whole number"):
        StepGraph.of([Operation(rank=0)], groups=[ranks])


def test_a_tag_without_a_sign_that_has_no_place_is_refused():
    one = StepGraph.of([Operation(rank=0, kind="receive", peer=0)])
    given = {name: getattr(one, name) for name in StepGraph.__dataclass_fields__}
    with pytest.raises(BadValueError, match="tag of a step graph holds what means nothing"):
        StepGraph(**given | {"tag": np.array([2**64 - 1], np.uint64)})
