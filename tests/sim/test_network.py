from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.errors import BadFileError, BadValueError
from wavetank.sim.network import DELAYS, TOPOLOGIES, AllBut, Links, Network, Partition, Topology


@given(st.integers(1, 30), st.data())
def test_all_but_one_is_the_sequence_without_it(size: int, data: st.DataObject) -> None:
    out = data.draw(st.integers(0, size - 1))
    seen = AllBut(size, out)
    expected = [node for node in range(size) if node != out]
    assert list(seen) == expected
    assert len(seen) == len(expected)
    assert [seen[place] for place in range(len(seen))] == expected
    assert seen[-3:] == expected[-3:]
    assert [node for node in range(-2, size + 2) if node in seen] == expected
    with pytest.raises(IndexError):
        seen[size]


@pytest.mark.parametrize(
    ("kind", "size", "edges"),
    [
        *[("complete", 5, 20), ("star", 5, 8), ("chain", 5, 8), ("ring", 5, 10), ("directed-ring", 5, 5)],
        *[("grid", 6, 14), ("torus", 9, 36), ("torus", 4, 8), ("ring", 2, 2)],
    ],
)
def test_topologies_have_the_links_of_their_name(kind: str, size: int, edges: int) -> None:
    topology = Topology.named(kind, size)
    assert sum(len(topology.peers(node)) for node in range(size)) == edges
    for node in range(size):
        assert node not in topology.peers(node)
        for other in topology.sources(node):
            assert node in topology.peers(other)


def test_a_random_topology_follows_from_its_seed() -> None:
    one, two = (Topology.named("random", 40, probability=0.3, seed=seed) for seed in (1, 2))
    assert one == Topology.named("random", 40, probability=0.3, seed=1)
    assert one != two
    assert one.links is not None
    assert 0.2 < sum(map(len, one.links)) / (40 * 39) < 0.4
    assert all(node in one.peers(other) for node in range(40) for other in one.peers(node))
    directed = Topology.named("random", 40, probability=0.3, directed=True)
    assert not all(node in directed.peers(other) for node in range(40) for other in directed.peers(node))


@pytest.mark.parametrize("kind", TOPOLOGIES)
def test_a_single_node_has_no_peers(kind: str) -> None:
    assert list(Topology.named(kind, 1).peers(0)) == []


def test_an_edge_list_is_read_with_its_comments(tmp_path: Path) -> None:
    path = tmp_path / "edges.txt"
    path.write_text("# three nodes\n0 1\n1, 2  # last\n\n")
    assert Topology.from_file(path).links == ((1,), (2,), ())
    assert Topology.from_file(path, directed=False).links == ((1,), (0, 2), (1,))


@pytest.mark.parametrize(
    ("text", "line"), [("0 1\n1 1\n", 2), ("0 x\n", 1), ("0 1 2\n", 1), ("-1 2\n", 1), ("0 1\n0 99999999\n", 2)]
)
def test_a_line_that_is_no_link_is_named(tmp_path: Path, text: str, line: int) -> None:
    path = tmp_path / "edges.txt"
    path.write_text(text)
    with pytest.raises(BadFileError) as caught:
        Topology.from_file(path)
    assert str(caught.value.where).endswith(f"line {line}")


def test_files_without_links_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadFileError):
        Topology.from_file(tmp_path / "none")
    (tmp_path / "empty").write_text("# nothing\n")
    with pytest.raises(BadFileError):
        Topology.from_file(tmp_path / "empty")


@pytest.mark.parametrize(
    "make",
    [
        lambda: Topology.named("cube", 8),
        lambda: Topology.named("grid", 7, width=2),
        lambda: Topology.complete(0),
        lambda: Topology.from_edges([(0, 0)]),
        lambda: Topology.from_edges([(0, 5)], size=3),
        lambda: Links(delay="gamma"),
        lambda: Links(drop=1.5),
        lambda: Links(delay="uniform", least_delay=3.0, most_delay=1.0),
        lambda: Links(regions=(0, 1), between=((0.0,),)),
        lambda: Links(regions=(0, 0), between=((-1.0,),)),
        lambda: Network.complete(3, regions=(0, 0), between=((1.0,),)),
        lambda: Partition(start=3, stop=2, groups=()),
        lambda: Links(budget=0),
    ],
)
def test_what_makes_no_sense_is_refused(make: object) -> None:
    with pytest.raises(BadValueError):
        make()  # type: ignore[operator]


@pytest.mark.parametrize("kind", DELAYS)
@given(uniform=st.floats(0.0, 1.0, exclude_max=True))
def test_delays_stay_in_their_range_and_grow_with_the_draw(kind: str, uniform: float) -> None:
    links = Links(delay=kind, least_delay=1.0, most_delay=6.0, mean_delay=2.0)
    delay = links.sampled_delay(uniform)
    assert delay >= 1.0
    if kind in ("uniform", "uniform-real", "poisson"):
        assert delay <= 6.0
    assert delay <= links.sampled_delay(min(uniform + 1e-3, 0.9999999)) or uniform > 0.99


def test_uniform_delays_are_whole_numbers_equally_often() -> None:
    links = Links(delay="uniform", least_delay=1.0, most_delay=4.0)
    delays = [links.sampled_delay((place + 0.5) / 4000) for place in range(4000)]
    assert [delays.count(delay) for delay in (1.0, 2.0, 3.0, 4.0)] == [1000] * 4


def test_poisson_delays_have_their_mean() -> None:
    links = Links(delay="poisson", least_delay=0.0, most_delay=1e9, mean_delay=3.5)
    delays = [links.sampled_delay((place + 0.5) / 20000) for place in range(20000)]
    assert sum(delays) / len(delays) == pytest.approx(3.5, rel=0.01)


def test_a_partition_cuts_between_groups_while_it_lasts() -> None:
    links = Links(partitions=(Partition(start=5, stop=8, groups=((0, 1), (2,))),))
    assert [links.cut(0, 2, now) for now in (4, 5, 7.9, 8)] == [False, True, True, False]
    assert not links.cut(0, 1, 6)
    assert links.cut(0, 3, 6)


def test_regions_add_the_delay_between_them() -> None:
    links = Links(regions=(0, 0, 1), between=((0.0, 5.0), (7.0, 0.5)))
    assert [links.extra_delay(*pair) for pair in ((0, 1), (0, 2), (2, 0), (2, 2))] == [0.0, 5.0, 7.0, 0.5]


def test_only_links_that_change_nothing_are_plain() -> None:
    assert Links().plain
    assert Links(budget=3).plain
    assert Links(delay="uniform").plain
    for other in (Links(drop=0.1), Links(least_delay=2.0), Links(queue=4), Links(delay="exponential")):
        assert not other.plain
    assert Network.complete(4, drop=0.5).links.drop == 0.5
