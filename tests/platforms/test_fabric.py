"""Fabrics: what messages and collectives take, by hand, and spelled out as sends on the executor."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.platforms.fabric import ALGORITHMS, Fabric, Level, Round
from wavetank.platforms.links import Link
from wavetank.workloads.operations import UNPRICED, Operation, StepGraph

# A byte takes 1 ps; a message 100 ps before it.
FLAT = Fabric(levels=(Level(name="node", size=16, alpha_s=1e-10, bytes_per_s=1e12),))
NODES = Fabric(
    levels=(
        Level(name="node", size=4, alpha_s=1e-10, bytes_per_s=1e12),
        Level(name="rack", size=4, alpha_s=1e-9, bytes_per_s=1e11),
    )
)
SHARED = Fabric(levels=(NODES.levels[0], Level(name="rack", size=4, alpha_s=1e-9, bytes_per_s=1e11, shared=True)))


def test_ranks_meet_at_the_lowest_level_that_holds_both():
    three = Fabric(levels=(*NODES.levels, Level(name="system", size=2, alpha_s=0, bytes_per_s=1e9)))
    assert three.ranks == 32
    assert [three.level_between(5, each).name for each in (4, 7, 8, 15, 16)] == [
        "node", "node", "rack", "rack", "system",
    ]  # fmt: skip


def test_a_message_takes_alpha_and_its_bytes_at_the_level_where_both_meet():
    assert NODES.message_ps(0, 3, 50) == 100 + 50
    assert NODES.message_ps(0, 4, 50) == 1000 + 500


def test_a_unit_of_ranks_shares_its_link_into_a_shared_level():
    assert [SHARED.link_of(a, b) for a, b in ((0, 1), (0, 4), (3, 15), (4, 0), (15, 0))] == [-1, 16, 16, 17, 19]
    crossing = Round(np.array([0, 1, 4]), np.array([4, 5, 8]), 50)
    assert NODES.round_ps(crossing) == 1000 + 500
    # Two leave the first unit, one the second.
    assert SHARED.round_ps(crossing) == 1000 + 2 * 500


@pytest.mark.parametrize(
    ("collective", "algorithm", "expected"),
    [
        ("all-reduce", "ring", 14 * (100 + 10)),
        ("all-gather", "ring", 7 * (100 + 10)),
        ("reduce-scatter", "ring", 7 * (100 + 10)),
        ("all-to-all", "ring", 7 * (100 + 10)),
        ("broadcast", "tree", 3 * (100 + 80)),
        ("reduce", "tree", 3 * (100 + 80)),
        ("all-reduce", "tree", 6 * (100 + 80)),
        ("all-reduce", "doubling", 3 * (100 + 80)),
        ("all-gather", "doubling", 3 * 100 + 10 + 20 + 40),
        ("reduce-scatter", "halving-doubling", 3 * 100 + 40 + 20 + 10),
        ("all-reduce", "halving-doubling", 2 * (3 * 100 + 40 + 20 + 10)),
    ],
)
def test_the_formulas_of_a_flat_fabric(collective, algorithm, expected):
    assert FLAT.collective_ps(collective, range(8), 80, algorithm) == expected


def test_a_hierarchical_all_reduce_sends_a_quarter_over_the_higher_level():
    # In the nodes: 3 rounds of 40 bytes up, 3 down; between them 2 * 3 rounds of 10 bytes.
    assert NODES.collective_ps("all-reduce", range(16), 160, "hierarchical") == 6 * (100 + 40) + 6 * (1000 + 100)
    # Four ranks of a node share the link that one alone has above.
    assert SHARED.collective_ps("all-reduce", range(16), 160, "hierarchical") == 6 * (100 + 40) + 6 * (1000 + 400)
    assert NODES.collective_ps("all-gather", range(16), 160, "hierarchical") == 3 * (100 + 40) + 3 * (1000 + 100)
    assert NODES.collective_ps("all-reduce", range(4, 8), 160, "hierarchical") == NODES.collective_ps(
        "all-reduce", range(4, 8), 160
    )


def test_the_ring_agrees_with_the_link_between_tensor_parallel_devices():
    link = Link(bytes_per_s=1e12, latency_s=1e-10, per_hop=True)
    for devices, n_bytes in ((2, 1000), (8, 8000), (16, 16_000)):
        ps = FLAT.collective_ps("all-reduce", range(devices), n_bytes)
        assert ps == pytest.approx(link.all_reduce_s(devices, n_bytes) * 1e12, rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 12), st.integers(0, 10_000), st.sampled_from(ALGORITHMS["ring"]))
def test_a_ring_spelled_out_as_sends_ends_with_the_formula_on_an_unshared_fabric(p, n_bytes, collective):
    spelled = FLAT.spelled_out(FLAT.rounds(collective, range(p), n_bytes)).times().makespan_ps
    assert spelled == FLAT.collective_ps(collective, range(p), n_bytes)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([(c, a) for a, able in ALGORITHMS.items() for c in able if a != "hierarchical"]), st.integers(0, 3),
    st.integers(0, 10_000),
)  # fmt: skip
def test_spelled_out_on_levels_no_collective_ends_after_its_formula(of, log_p, n_bytes):
    collective, algorithm = of
    ranks = range(2**log_p)
    spelled = NODES.spelled_out(NODES.rounds(collective, ranks, n_bytes, algorithm=algorithm)).times().makespan_ps
    # Rounds of the formula wait for each other, those of the executor for the messages that they need.
    assert spelled <= NODES.collective_ps(collective, ranks, n_bytes, algorithm)
    assert (spelled > 0) == (log_p > 0)


def test_sends_that_share_a_link_wait_for_each_other():
    crossing = Round(np.arange(4), np.arange(4, 8), 50)
    assert NODES.spelled_out(iter([crossing])).times().makespan_ps == 1500
    assert SHARED.spelled_out(iter([crossing])).times().makespan_ps == 4 * 1500


@pytest.mark.parametrize("algorithm", ["tree", "doubling"])
def test_every_member_gets_what_the_others_had(algorithm):
    known = {rank: {rank} for rank in range(8)}
    for one in FLAT.rounds("all-reduce", range(8), 8, algorithm=algorithm):
        before = {rank: set(each) for rank, each in known.items()}
        for sender, receiver in zip(one.senders.tolist(), one.receivers.tolist(), strict=True):
            known[receiver] |= before[sender]
    assert all(each == set(range(8)) for each in known.values())


def test_a_graph_is_priced_by_its_sizes():
    graph = StepGraph.of(
        [
            Operation(rank=0, flops=3e3, duration_ps=UNPRICED),
            Operation(rank=0, duration_ps=7),
            Operation(rank=0, kind="send", peer=4, n_bytes=50, duration_ps=UNPRICED),
            Operation(rank=4, kind="receive", peer=0, n_bytes=50, duration_ps=UNPRICED),
            *(
                Operation(rank=rank, kind="collective", collective="all-reduce", group=0, n_bytes=80,
                          duration_ps=UNPRICED)
                for rank in (0, 1)
            ),
        ],
        groups=((0, 1),),
    )  # fmt: skip
    priced = SHARED.priced(graph, flops_per_s=1e12)
    assert priced.duration_ps.tolist() == [3000, 7, 1500, 0, 280, 280]
    assert priced.link.tolist() == [-1, -1, 16, -1, -1, -1]
    assert priced.times().end_ps.tolist() == [3000, 3007, 4507, 4507, 4787, 4787]
    assert graph.duration_ps[0] == UNPRICED


@pytest.mark.parametrize("operation", [{"kind": "host"}, {"kind": "send"}])
def test_what_has_neither_duration_nor_size_is_refused(operation):
    graph = StepGraph.of([Operation(rank=0, duration_ps=UNPRICED, **operation)])
    with pytest.raises(BadValueError, match=r"operation 0 .* has no price"):
        FLAT.priced(graph, flops_per_s=1e12)
    with pytest.raises(BadValueError, match="computes at some rate"):
        FLAT.priced(graph, flops_per_s=float("nan"))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: FLAT.collective_ps("all-reduce", range(6), 8, "doubling"), "power of two"),
        (lambda: FLAT.collective_ps("broadcast", range(4), 8, "ring"), "no such collective by this algorithm"),
        (lambda: FLAT.collective_ps("all-reduce", range(4), 8, "star"), "no such collective by this algorithm"),
        (lambda: FLAT.collective_ps("all-reduce", (0, 0), 8), "members, each once"),
        (lambda: FLAT.collective_ps("all-reduce", (), 8), "members, each once"),
        (lambda: FLAT.collective_ps("all-reduce", (0, 1), -1), "What is sent has a size"),
        (lambda: FLAT.collective_ps("all-reduce", (0, 16), 8), "no such rank"),
        (lambda: NODES.collective_ps("all-reduce", range(2, 6), 8, "hierarchical"), "whole units"),
        (lambda: NODES.collective_ps("all-reduce", range(8), 8, "hierarchical"), "whole units"),
        (lambda: FLAT.link_of(-1, 0), "no such rank"),
        (lambda: Fabric(levels=()), "A fabric has levels"),
        (lambda: Level(name="node", size=0, alpha_s=0, bytes_per_s=1), "connects some units"),
        (lambda: Level(name="node", size=2, alpha_s=-1, bytes_per_s=1), "no figure of the level"),
        (lambda: Level(name="node", size=2, alpha_s=0, bytes_per_s=float("nan")), "no figure of the level"),
    ],
)
def test_what_no_fabric_has_is_refused(call, says):
    with pytest.raises(BadValueError, match=says):
        call()


def test_a_collective_of_one_takes_no_time():
    assert FLAT.collective_ps("all-reduce", [3], 1000) == 0


SLOW = Fabric(levels=(Level(name="slow", size=2, alpha_s=0.0, bytes_per_s=1.0),))


@pytest.mark.parametrize(
    "operations",
    [
        [Operation(rank=0, flops=1e300, duration_ps=UNPRICED)],
        [Operation(rank=0, kind="send", peer=1, n_bytes=2**61, duration_ps=UNPRICED)],
        [Operation(rank=r, kind="collective", collective="all-reduce", group=0, n_bytes=2**61, duration_ps=UNPRICED)
         for r in (0, 1)],
    ],
)  # fmt: skip
def test_a_price_that_has_no_place_in_a_graph_is_refused(operations):
    with pytest.raises(BadValueError, match=r"operation 0 .* takes longer than a step graph can"):
        SLOW.priced(StepGraph.of(operations, groups=((0, 1),)), flops_per_s=1.0)


@pytest.mark.parametrize("n_bytes", [-5, 1.5, float("nan"), True, 2**63])
def test_a_size_that_means_nothing_is_refused(n_bytes):
    for call in (
        lambda: FLAT.message_ps(0, 1, n_bytes),
        lambda: FLAT.collective_ps("all-reduce", (0, 1), n_bytes),
        lambda: FLAT.collective_ps("all-reduce", (0,), n_bytes),
    ):
        with pytest.raises(BadValueError, match="What is sent has a size"):
            call()


def test_ranks_are_whole_and_have_numbers():
    with pytest.raises(BadValueError, match="members, each once"):
        FLAT.collective_ps("all-reduce", [0.2, 1.7], 8)
    wide = Level(name="wide", size=10**7, alpha_s=0.0, bytes_per_s=1.0)
    assert Fabric(levels=(wide,)).ranks == 10**7
    # Three would be more than 64 bits hold.
    for levels in (2, 3):
        with pytest.raises(BadValueError, match="no more ranks than have a number"):
            Fabric(levels=(wide,) * levels)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 10**6), st.integers(0, 10**6))
def test_more_bytes_never_take_less_and_levels_never_hurt_where_each_rank_has_its_link(size, units, some, more):
    fabric = Fabric(levels=(
        Level(name="node", size=size, alpha_s=1e-10, bytes_per_s=1e12),
        Level(name="rack", size=units, alpha_s=1e-9, bytes_per_s=1e11),
    ))  # fmt: skip
    for algorithm in ("ring", "tree", "hierarchical"):
        few, many = (fabric.collective_ps("all-reduce", range(size * units), n, algorithm) for n in (some, some + more))
        assert few <= many
    ring, level_by_level = (
        fabric.collective_ps("all-reduce", range(size * units), some, algorithm)
        for algorithm in ("ring", "hierarchical")
    )
    # A message has a byte more at most where parts are no whole bytes, in each of its rounds.
    assert level_by_level <= ring + 2 * size * 1 + 2 * units * 10


def test_neighbours_share_one_of_several_links_and_a_message_takes_one():
    levels = (
        Level(name="node", size=4, alpha_s=0.0, bytes_per_s=1e9),
        Level(name="system", size=2, alpha_s=0.0, bytes_per_s=8.0, shared=True, links=2),
    )
    fabric = Fabric(levels=levels)
    # One message has a link of 4 bytes/s, two neighbours share it, and two that are apart do not.
    assert fabric.message_ps(0, 4, 8) == 2 * 10**12
    for senders, seconds in (((0, 1), 4), ((0, 2), 2), ((0, 1, 2, 3), 4), ((1, 5), 2)):
        one = Round(np.array(senders), (np.array(senders) + 4) % 8, 8)
        assert fabric.round_ps(one) == seconds * 10**12
    assert [fabric.link_of(rank, (rank + 4) % 8) for rank in range(8)] == [8, 8, 9, 9, 10, 10, 11, 11]
    # Every rank of the lower level has a number of its own there.
    assert fabric.link_of(0, 1) == -1


@pytest.mark.parametrize("words", [{"links": 0}, {"links": True}, {"links": 2, "shared": False}])
def test_links_that_are_no_parts_are_refused(words):
    with pytest.raises(BadValueError, match="level"):
        Level(**({"name": "node", "size": 4, "alpha_s": 0.0, "bytes_per_s": 1.0, "shared": True} | words))
