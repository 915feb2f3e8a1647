"""The made-up job has what it is said to have, and all its names are known."""

from wavetank.insight.replay import validate
from wavetank.insight.replay.generator import communication
from wavetank.insight.replay.planted import planted_job


def test_the_job_is_sound_and_has_three_kinds():
    traces, names = planted_job(0, calls=200, ranks=4)
    assert validate(traces) == ()
    calls = communication(traces)
    assert {kind for of in calls for kind, _ in of} == {("all-reduce", 2), ("reduce-scatter", 4), ("send", 1)}
    assert all(len(of) == 200 for of in calls)
    written = {node.name for trace in traces for node in trace.nodes}
    written |= {node.attributes["pg_name"] for trace in traces for node in trace.nodes if "pg_name" in node.attributes}
    assert written == names


def test_seeds_decide_everything():
    one, again, other = (planted_job(seed, calls=20, ranks=2)[0] for seed in (1, 1, 2))
    assert [trace.content() for trace in one] == [trace.content() for trace in again]
    assert one[0].content() != other[0].content()
