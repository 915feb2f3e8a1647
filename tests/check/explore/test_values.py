from __future__ import annotations

import enum
from abc import ABC
from collections import Counter, defaultdict, deque
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.check.explore.values import Opaque, canonical, copied, has_slots, renamed
from wavetank.errors import BadValueError
from wavetank.sim.node import Message, Node
from wavetank.sim.rng import Draws

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=2) | st.sampled_from([0.0, 1.0, 2.5]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.integers(0, 5) | st.text(max_size=1), inner, max_size=3)
        | st.frozensets(st.integers(0, 5), max_size=3)
    ),
    max_leaves=8,
)


class Vote(Message, frozen=True):
    """For whom."""

    of: int
    weight: int = 1


class Colour(enum.Enum):
    RED = 1


@dataclass
class Pair:
    left: Any
    right: Any


class Keeper(Node):
    def __init__(self) -> None:
        self.votes = {1: [2, 3], 0: [1]}
        self.leader = 2
        self.term = 2
        self.heard = [10, 11, 12]


@given(PLAIN)
def test_a_copy_has_the_same_form_and_is_equal(value: Any) -> None:
    assert copied(value) == value
    assert canonical(copied(value)) == canonical(value)


@given(PLAIN, PLAIN)
def test_equal_forms_mean_equal_values(one: Any, other: Any) -> None:
    if canonical(one) == canonical(other):
        assert one == other


def test_the_order_of_dicts_and_sets_does_not_count_and_types_do() -> None:
    assert canonical({1: "a", 2: "b"}) == canonical({2: "b", 1: "a"})
    assert canonical({3, 1, 2}) == canonical({2, 3, 1})
    different = [1, 1.0, True, "1", b"1", None, (1,), [1], {1}, {1: 1}, deque([1]), Colour.RED, Vote(1), Pair(1, 1)]
    forms = [canonical(value) for value in different]
    assert len({*forms}) == len(different)
    assert canonical([1, 2]) != canonical([2, 1])


def test_a_changed_copy_leaves_the_original_alone_and_keeps_what_is_one_object() -> None:
    shared = [1]
    original = Pair(shared, {"x": shared, "d": defaultdict(list, {1: [2]}), "c": Counter("ab")})
    copy = copied(original)
    copy.left.append(2)
    copy.right["d"][1].append(3)
    assert copy.right["x"] is copy.left
    assert copy.right["d"][9] == []
    assert original.left == [1]
    assert original.right["d"] == {1: [2]}


def test_draws_and_cycles_of_objects_are_values() -> None:
    draws = Draws(7, 3)
    other = copied(draws)
    other.bits()
    assert draws.count == 3
    assert canonical(draws) != canonical(other)
    ring = Pair(1, None)
    ring.right = ring
    twin = copied(ring)
    assert twin.right is twin
    assert canonical(twin) == canonical(ring)


def test_what_belongs_to_the_explorer_is_no_part_of_a_state() -> None:
    class Outside(Opaque):
        pass

    one, other = Keeper(), Keeper()
    one.context = Outside()  # type: ignore[assignment]
    assert canonical(one) == canonical(other)
    assert copied(one).context is one.context


def test_what_cannot_be_compared_is_refused_with_its_place() -> None:
    node = Keeper()
    node.votes = {1: iter([1])}  # type: ignore[dict-item]
    with pytest.raises(BadValueError) as caught:
        canonical(node, "node 0")
    assert caught.value.where == "node 0.votes[1]"


def test_ids_are_renamed_where_they_are_declared_and_nowhere_else() -> None:
    ids = {Keeper: {"votes": "keys", "leader": "ids", "heard": "index"}, Vote: {"of": "ids"}}
    names = {0: 1, 1: 2, 2: 0}
    order = (2, 0, 1)
    node = renamed(Keeper(), ids, names.__getitem__, order)
    assert node.votes == {2: [2, 3], 1: [1]}
    assert (node.leader, node.term) == (0, 2)
    assert node.heard == [12, 10, 11]
    assert renamed([Vote(1), {Vote(2, 2)}], ids, names.__getitem__, order) == [Vote(2), {Vote(0, 2)}]
    nested = {Pair: {"left": "ids"}}
    assert renamed(Pair((0, {1: -1}, {2}), 1), nested, names.__getitem__, order) == Pair((1, {2: -1}, {0}), 1)


def test_abstract_and_generic_bases_keep_nothing_in_slots() -> None:
    class Abstract(Keeper, ABC, Generic[TypeVar("T")]):  # type: ignore[misc]
        pass

    @dataclass(slots=True)
    class Slotted:
        value: int

    assert not has_slots(Abstract)
    assert has_slots(Slotted)
    original = Abstract()
    copy = copied(original)
    copy.votes[1].append(4)
    assert (original.votes, copy.votes) == ({1: [2, 3], 0: [1]}, {1: [2, 3, 4], 0: [1]})
