"""From coordinates to questions about orders."""

from __future__ import annotations

from wavetank.check.consistency.configurations import model
from wavetank.check.consistency.events import Event, Read
from wavetank.check.consistency.visibility import Clocks, ask, bits


def write(number, process, key="x"):
    return Event(number, process, float(number), number + 0.5, [], {key: 0})


def read(number, process, source, key="x"):
    chain = (source,) if source >= 0 else ()
    return Event(number, process, float(number), number + 0.5, [Read(key, chain, source)], {})


def test_a_set_of_events_lists_its_members():
    assert list(bits(0b101001)) == [0, 3, 5]


def test_session_guarantees_say_what_must_be_seen():
    # a writes x then y; b reads y, writes z; c reads z, then x.
    events = [
        write(0, "a"), write(1, "a", "y"), read(2, "b", 1, "y"), write(3, "b", "z"), read(4, "c", 3, "z"),
        read(5, "c", 0),
    ]  # fmt: skip
    seen = {name: ask(events, model(name), Clocks()).seen for name in ("weak-causal", "monotonic-writes", "weak")}
    assert list(bits(seen["weak"][4])) == [3]
    assert list(bits(seen["monotonic-writes"][2])) == [0, 1]
    assert list(bits(seen["weak-causal"][4])) == [0, 1, 3]


def test_what_must_be_seen_and_was_not_is_said_without_a_search():
    question = ask([write(0, "a"), read(1, "a", -1)], model("read-your-writes"), Clocks())
    assert question.wrong == 1
    assert "must have seen operation 0" in question.says


def test_timeliness_makes_old_writes_seen():
    events = [write(0, "a"), read(5, "b", -1)]
    assert ask(events, model("bounded-staleness"), Clocks(delta_s=1.0)).wrong == 1
    assert ask(events, model("bounded-staleness"), Clocks(delta_s=9.0)).wrong is None


def test_every_process_has_an_order_of_its_own_under_pram_and_all_share_one_under_sequential():
    events = [write(0, "a"), read(1, "b", 0), read(2, "c", -1)]
    assert len(ask(events, model("pram"), Clocks()).parts) == 3
    assert len(ask(events, model("sequential"), Clocks()).parts) == 1


def test_points_in_time_keep_the_edges_of_real_time_few():
    events = [write(number, str(number), f"k{number}") for number in range(200)]
    ((constraints, nodes),) = ask(events, model("linearizable"), Clocks()).parts
    assert len(constraints.edges) < 5 * len(events)
    assert nodes.count(-1) == len(events)


def test_reading_in_a_circle_is_allowed_by_no_model():
    one = Event(0, "a", 0.0, 9.0, [Read("y", (1,), 1)], {"x": 0})
    two = Event(1, "b", 0.0, 9.0, [Read("x", (0,), 0)], {"y": 0})
    question = ask([one, two], model("weak"), Clocks())
    assert question.wrong is not None
