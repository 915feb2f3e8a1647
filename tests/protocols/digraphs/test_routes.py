from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.protocols.digraphs.conditions import in_masks, reach
from wavetank.protocols.digraphs.routes import (
    Listening,
    Reaches,
    bits_of,
    check_links,
    check_peers,
    check_size,
    graph_of,
    links_of,
    members_of,
    onward,
    reaches,
    small_sets,
)
from wavetank.sim.network import Topology


@st.composite
def digraphs(draw: st.DrawFn, largest: int = 6) -> Topology:
    size = draw(st.integers(2, largest))
    edges = draw(st.sets(st.tuples(st.integers(0, size - 1), st.integers(0, size - 1)).filter(lambda e: e[0] != e[1])))
    return Topology.from_edges(edges, size=size)


@given(digraphs(), st.data())
def test_there_is_a_path_around_a_set_wherever_the_set_can_be_gone_around(graph: Topology, data: st.DataObject) -> None:
    to = data.draw(st.integers(0, graph.size - 1))
    avoiding = data.draw(st.integers(0, 2**graph.size - 1)) & ~(1 << to)
    known = Reaches(graph)
    found = known.paths(to, avoiding)
    assert bits_of(found) == known.reach(to, avoiding) == reach(in_masks(graph), to, avoiding)
    for origin, path in found.items():
        assert (path[0], path[-1]) == (origin, to)
        assert len(set(path)) == len(path)
        assert not bits_of(path) & avoiding
        assert all(after in graph.peers(before) for before, after in pairwise(path))


@given(digraphs())
def test_links_describe_the_whole_network(graph: Topology) -> None:
    again = graph_of(links_of(graph), graph.size, where="here")
    assert all(list(again.peers(node)) == list(graph.peers(node)) for node in range(graph.size))
    check_links(links_of(graph), where="here")


def test_a_complete_network_needs_no_words() -> None:
    assert links_of(Topology.complete(5)) == ()
    assert links_of(Topology.from_edges([], size=3)) == ("none",)
    assert links_of(Topology.named("chain", 3, directed=True)) == ("0>1", "1>0", "1>2", "2>1")


def test_the_same_network_is_worked_out_once() -> None:
    assert reaches(("0>1", "1>0"), 2) is reaches(("0>1", "1>0"), 2)


@pytest.mark.parametrize("word", ["0-1", "a>b", "0>1>2", "", "1>"])
def test_a_word_that_is_no_link_is_refused(word: str) -> None:
    with pytest.raises(BadValueError, match="two node numbers"):
        check_links((word,), where="here")
    with pytest.raises(BadValueError):
        graph_of((word,), 3, where="here")


def test_a_node_is_where_it_belongs() -> None:
    check_peers((), 1, (0, 2), 3)
    check_peers(("0>1",), 0, (1,), 2)
    with pytest.raises(BadValueError, match="not the one"):
        check_peers(("0>1",), 1, (0,), 2)


def test_networks_with_too_many_sets_are_refused() -> None:
    for size, faults in ((20, 2), (12, 3), (40, 1), (1, 20)):
        check_size(size, faults)
    for size, faults in ((20, 3), (50, 1), (10_000, 2)):
        with pytest.raises(BadValueError, match="too many to look for"):
            check_size(size, faults)


def test_a_link_to_nobody_is_refused() -> None:
    with pytest.raises(BadValueError):
        graph_of(("0>3",), 3, where="here")


@given(st.sets(st.integers(0, 9)), st.integers(0, 4))
def test_small_sets_are_all_of_them_once(nodes: set[int], most: int) -> None:
    found = small_sets(sorted(nodes), most)
    assert sorted(found) == sorted(bits_of(each) for count in range(most + 1) for each in combinations(nodes, count))
    assert [members_of(each) for each in found if not each] == [[]]


def test_a_value_goes_on_along_every_path() -> None:
    assert onward([(0, 1, 2), (0, 1, 3), (0, 2), (4,)]) == {(0,): (1, 2), (0, 1): (2, 3)}


@given(st.integers(0, 2), st.data())
@settings(max_examples=150)
def test_what_a_node_may_believe_is_what_no_f_nodes_cover(faults: int, data: st.DataObject) -> None:
    size = 5
    middle = st.lists(st.integers(0, size - 2), min_size=1, max_size=3, unique=True)
    paths = [(*path, size - 1) for path in data.draw(st.lists(middle, max_size=6))]
    listening = Listening.over(size - 1, paths, range(size), faults)
    values = [data.draw(st.integers(0, 4)) for _ in listening.paths]

    def covered(places: list[int]) -> bool:
        return any(
            all(set(listening.paths[place][:-1]) & set(cover) for place in places)
            for cover in combinations(range(size - 1), faults)
        )

    def heard(agrees: list[bool]) -> bool:
        return any(
            all(agree for path, agree in zip(listening.paths, agrees, strict=True) if not set(path[:-1]) & set(guess))
            for guess in combinations(range(size - 1), faults)
        )

    for number in range(5):
        more = [value >= number for value in values]
        less = [value <= number for value in values]
        assert listening.certified(more) == (not covered([place for place, yes in enumerate(more) if yes]))
        assert (listening.certified_most(values) >= number) == listening.certified(more)
        assert (listening.certified_least(values) <= number) == listening.certified(less)
        assert (listening.heard_most(values) >= number) == heard(more)
        assert (listening.heard_least(values) <= number) == heard(less)


def test_a_node_hears_itself_first() -> None:
    listening = Listening.over(2, [(0, 1, 2), (1, 2)], range(3), 1)
    assert listening.paths == ((2,), (1, 2), (0, 1, 2))
    # Around node 0: itself and node 1; around node 1: itself alone.
    assert listening.avoiding == ((0, 1), (0,))
