"""A room for connections that have not said who they are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wavetank.live.strangers import Strangers, address_of


def test_who_opens_many_pushes_out_its_own() -> None:
    room: Strangers[str] = Strangers(4)
    assert room.enter("honest", "10.0.0.2") is None
    outs = [room.enter(f"flood {number}", "10.0.0.1") for number in range(10)]
    assert outs == [None, None, None, *(f"flood {number}" for number in range(7))]
    room.leave("honest")
    assert len(room) == 3


def test_of_one_address_the_oldest_has_to_go() -> None:
    room: Strangers[int] = Strangers(2)
    assert [room.enter(number, "") for number in range(4)] == [None, None, 0, 1]
    room.leave(7)
    assert len(room) == 2


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=200))
def test_the_room_is_never_fuller_than_it_may_be_and_forgets_nobody(steps: list[tuple[int, bool]]) -> None:
    room: Strangers[int] = Strangers(5)
    inside: set[int] = set()
    for number, (address, leaves) in enumerate(steps):
        if leaves and inside:
            gone = min(inside)
            room.leave(gone)
            inside.discard(gone)
        inside.add(number)
        out = room.enter(number, str(address))
        if out is not None:
            inside.remove(out)
        assert len(room) == len(inside) <= 5


def test_the_address_of_a_connection() -> None:
    assert address_of(("10.0.0.1", 5)) == "10.0.0.1"
    assert address_of("") == address_of(None) == ""
