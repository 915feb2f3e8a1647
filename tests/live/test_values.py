"""Plain values as bytes and back."""

from __future__ import annotations

import dataclasses

import pytest
import socket_protocols
from hypothesis import given
from hypothesis import strategies as st
from socket_protocols import Ball, DurableCounter, Parcel, PingPong

from wavetank.errors import BadFileError, BadValueError
from wavetank.live.values import ValueCodec, codec_of, codec_of_module, state_of, with_state
from wavetank.sim.faults import Crash
from wavetank.sim.network import Links, Network, Partition

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.builds(Ball, hops=st.integers(), load=st.none() | st.text())
)
KEYS = st.integers() | st.text() | st.tuples(st.integers(), st.text()) | st.frozensets(st.integers())
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=4)
        | st.sets(KEYS, max_size=4)
        | st.frozensets(KEYS, max_size=4)
    ),
    max_leaves=12,
)
CODEC = codec_of(PingPong())


def same(one: object, other: object) -> bool:
    """Whether two values are equal and of equal types throughout."""
    if type(one) is not type(other) or one != other:
        return False
    if isinstance(one, list | tuple):
        return all(map(same, one, other))
    if isinstance(one, dict):
        return all(same(one[key], other[key]) for key in one)
    return True


@given(VALUES)
def test_a_value_comes_back_equal_and_of_the_same_types(value: object) -> None:
    assert same(CODEC.decode(CODEC.encode(value)), value)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_a_clear_error(data: bytes) -> None:
    try:
        CODEC.decode(data)
    except BadFileError as error:
        assert "no value" in error.problem


def test_equal_sets_are_equal_bytes() -> None:
    assert CODEC.encode({3, 1, 2}) == CODEC.encode({2, 3, 1})


@pytest.mark.parametrize("value", [print, object(), open, range(3), (1, [lambda: 0])])
def test_what_is_not_plain_is_refused(value: object) -> None:
    with pytest.raises(BadValueError, match="Only plain values"):
        CODEC.encode(value)


def test_a_class_that_was_not_named_is_neither_written_nor_made() -> None:
    with pytest.raises(BadValueError, match="Only plain values"):
        ValueCodec().encode(Ball(1))
    with pytest.raises(BadFileError, match="no value"):
        ValueCodec().decode(CODEC.encode(Ball(1)))


def test_nesting_without_end_is_refused() -> None:
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(BadValueError, match="nested too deeply"):
        CODEC.encode(endless)
    with pytest.raises(BadFileError):
        CODEC.decode(b"\x91" * 100_000)


def test_the_codec_of_an_algorithm_knows_its_module_networks_and_faults() -> None:
    links = Links(delay="uniform", most_delay=3.0, drop=0.1, partitions=(Partition(start=1, stop=2, groups=((0,),)),))
    plan = (PingPong(hops=3), Network.complete(4, drop=0.5), links, Crash(members=(1,), at=3), Parcel(()))
    assert codec_of_module("socket_protocols").decode(CODEC.encode(plan)) == plan
    assert socket_protocols.Talkers in CODEC._classes.values()


def test_the_state_of_a_node_goes_over_to_a_new_one() -> None:
    node = PingPong().node(0, 2)
    node.seen.append(7)
    node.context = object()
    state = state_of(node)
    assert state == {"index": 0, "balls": 1, "hops": 9, "seen": [7]}
    assert with_state(PingPong(balls=5).node(1, 2), state).seen == [7]
    assert state_of(DurableCounter().node(0, 1)) == {}


def test_a_frozen_dataclass_comes_back_frozen() -> None:
    back = CODEC.decode(CODEC.encode(PingPong(balls=4)))
    with pytest.raises(dataclasses.FrozenInstanceError):
        back.balls = 5


def test_a_class_of_executed_text_brings_its_messages_alone() -> None:
    codec = codec_of_module("no.such.module", (Ball,))
    ball = Ball(3)
    assert codec.decode(codec.encode((ball, 4))) == (ball, 4)


def test_what_a_class_demands_of_its_parameters_holds_for_what_comes_over_a_wire() -> None:
    codec = codec_of(PingPong())
    fine = Network.complete(4, drop=0.5)
    assert codec.decode(codec.encode(fine)) == fine
    broken = object.__new__(type(fine.links))
    for name in fine.links.__dataclass_fields__:
        object.__setattr__(broken, name, -1.0 if name == "drop" else getattr(fine.links, name))
    with pytest.raises(BadFileError, match="Links"):
        codec.decode(codec.encode(broken))
