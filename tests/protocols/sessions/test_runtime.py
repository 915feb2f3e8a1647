import pytest

from wavetank.errors import BadValueError
from wavetank.protocols.sessions.examples import example
from wavetank.protocols.sessions.mixed_choice import MixedChoice
from wavetank.protocols.sessions.runtime import MOST_WAITING, RoleSession


def race():
    machines = MixedChoice().machines(example("race"))
    return RoleSession(machines["p"]), RoleSession(machines["q"])


def test_data_that_arrives_first_wins():
    p, q = race()
    data, _ = p.send("q", "data", (7,))
    (taken,) = q.deliver(data)
    assert (taken.what, taken.label, taken.payload) == ("taken", "data", (7,))
    assert p.ended
    assert q.ended


def test_a_stop_that_crosses_the_data_wins_and_the_data_is_dropped():
    p, q = race()
    data, _ = p.send("q", "data")
    stop, _ = q.send("p", "stop")
    assert [each.what for each in q.deliver(data)] == ["dropped"]
    assert [each.what for each in p.deliver(stop)] == ["switched", "taken"]
    assert (q.dropped, p.waiting, q.waiting) == (1, [], [])
    assert p.tag == q.tag


def test_without_the_stale_rule_the_data_stays():
    machines = MixedChoice().machines(example("race"))
    p, q = RoleSession(machines["p"]), RoleSession(machines["q"], drop_stale=False)
    data, _ = p.send("q", "data")
    q.send("p", "stop")
    assert q.deliver(data) == []
    assert len(q.waiting) == 1


def test_what_the_protocol_does_not_allow_now_is_refused():
    p, q = race()
    with pytest.raises(BadValueError) as caught:
        p.send("q", "date")
    assert (caught.value.allowed, caught.value.nearest) == (("data to q",), "data to q")
    assert caught.value.where == "protocol Race, state 0"
    q.deliver(p.send("q", "data")[0])
    with pytest.raises(BadValueError) as caught:
        p.send("q", "data")
    assert caught.value.allowed == "nothing: it has ended"
    assert not p.can_send("q", "data")


def test_messages_of_one_sender_are_taken_in_order():
    text = "protocol P(role p, role q, role s) { a from s to q; b from p to q; c from p to q; }"
    machines = MixedChoice().machines(text)
    p, q, s = (RoleSession(machines[role]) for role in "pqs")
    b, _ = p.send("q", "b")
    c, _ = p.send("q", "c")
    assert q.deliver(b) == []
    assert q.deliver(c) == []
    assert [each.label for each in q.deliver(s.send("q", "a")[0])] == ["a", "b", "c"]


def test_a_message_from_a_later_turn_waits_for_its_own():
    text = """protocol P(role p, role q, role s) {
      rec X { mix m { data from p to q; copy from p to s; continue X; }
              or interrupt by q { stop from q to p; stopped from q to s; } } }"""
    machines = MixedChoice().machines(text)
    p, q, s = (RoleSession(machines[role]) for role in "pqs")
    q.deliver(p.send("q", "data")[0])
    copy, _ = p.send("s", "copy")
    q.send("p", "stop")
    stopped, _ = q.send("s", "stopped")
    # It arrives first, but s has not passed the first turn, which went left.
    assert s.deliver(stopped) == []
    assert [each.label for each in s.deliver(copy)] == ["copy", "stopped"]


def test_tags_of_a_long_stream_stay_short():
    machines = MixedChoice().machines(example("stream"))
    writer, reader = RoleSession(machines["writer"]), RoleSession(machines["reader"])
    for number in range(5000):
        reader.deliver(writer.send("reader", "item", (number,))[0])
    envelope, _ = reader.send("writer", "stop", ("enough",))
    assert len(envelope.tag) == 2
    assert [each.what for each in writer.deliver(envelope)] == ["taken"]


def test_a_sender_that_does_not_keep_to_the_protocol_cannot_fill_the_memory():
    p, q = race()
    data, _ = p.send("q", "data")
    junk = data._replace(label="junk", tag=())
    q.waiting = [junk] * MOST_WAITING
    with pytest.raises(BadValueError, match="holds more messages"):
        q.deliver(junk)


def test_a_message_that_waits_is_dropped_when_another_shows_that_it_is_stale():
    text = """protocol P(role p, role q, role s) {
      rec X { m2 from q to s; mix { m3 from q to p; m4 from p to s; continue X; }
              or interrupt by p { m5 from p to q; m7 from q to s; m8 from p to s; continue X; } } }"""
    machines = MixedChoice().machines(text)
    p, q, s = (RoleSession(machines[role]) for role in "pqs")
    s.deliver(q.send("s", "m2")[0])
    late, _ = q.send("p", "m3")
    # q goes on along the left side and begins the next turn; then it hears of the interrupt.
    ahead, _ = q.send("s", "m2")
    interrupt, _ = p.send("q", "m5")
    assert [each.what for each in q.deliver(interrupt)] == ["switched", "taken"]
    assert s.deliver(ahead) == []
    news, _ = q.send("s", "m7")
    # What informs s stands behind what it makes stale.
    assert [(each.what, each.label) for each in s.deliver(news)] == [("dropped", "m2"), ("taken", "m7")]
    assert [each.what for each in p.deliver(late)] == ["dropped"]
