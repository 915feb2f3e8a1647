import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.protocols.sessions.examples import NAMES, example
from wavetank.protocols.sessions.machines import Machine, State, Transition
from wavetank.protocols.sessions.mixed_choice import MixedChoice
from wavetank.protocols.sessions.product import explore
from wavetank.protocols.sessions.runtime import RoleSession
from wavetank.protocols.sessions.syntax import IllFormedError
from wavetank.protocols.sessions.tags import agree


def machines_of(body, *, reach_rule=True):
    return MixedChoice(reach_rule=reach_rule).machines(f"protocol P(role p, role q, role s) {{ {body} }}")


LEFT_ONLY = "mix m { data from p to q; note from p to s; } or interrupt by q { stop from q to p; }"
# Every turn copies to s; turns settle left or right for ever.
COPIES = """rec X { mix m { data from p to q; copy from p to s; continue X; }
            or interrupt by q { stop from q to p; stopped from q to s; fin from p to s; continue X; } }"""
NESTED = """mix outer {
  a from p to q;
  mix inner { b from q to p; c from p to q; } or interrupt by p { d from p to q; e from q to p; }
} or interrupt by q { x from q to p; y from p to q; } after from q to p;"""
TWO_IN_A_LOOP = """rec X {
  mix m { data from p to q; } or interrupt by q { stop from q to p; }
  mix n { ask from q to p; yes from p to q; continue X; } or interrupt by p { quit from p to q; }
}"""


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bound", [1, 2, 3])
def test_the_examples_can_always_go_on(name, bound):
    found = MixedChoice(queue_bound=bound).explore(MixedChoice().machines(example(name)))
    assert (found.findings, found.complete, found.blocked_by_bound) == ((), True, False)


@pytest.mark.parametrize("body", [COPIES, NESTED, TWO_IN_A_LOOP])
def test_mixes_in_loops_and_in_each_other_can_always_go_on(body):
    found = explore(machines_of(body))
    assert (found.findings, found.complete, found.blocked_by_bound) == ((), True, False)


def test_the_race_has_seven_configurations():
    # start; data sent; data taken; stop sent; stop taken; both sent; both sent and p switched.  Dropping and taking
    # the stop then leads to the configuration in which the stop alone was sent and taken.
    found = explore(MixedChoice().machines(example("race")))
    assert (found.configurations, found.steps) == (7, 9)


def test_a_plain_message_has_three_configurations_and_a_pipeline_has_its_queue():
    assert explore(machines_of("a from p to q;")).configurations == 3
    # Two messages: (sent, taken) with taken <= sent <= 2.
    assert explore(machines_of("a from p to q; b from p to q;"), queue_bound=2).configurations == 6
    assert explore(machines_of("a from p to q; b from p to q;"), queue_bound=1).configurations == 5


@pytest.mark.parametrize("name", NAMES)
def test_without_the_stale_rule_there_is_a_trace(name):
    found = explore(MixedChoice().machines(example(name)), drop_stale=False)
    assert {each.trouble for each in found.findings} & {"orphan message", "reception error"}
    assert all(each.run and each.chart for each in found.findings)


def test_the_trace_of_the_race_without_the_stale_rule_is_the_crossing():
    (finding,) = explore(MixedChoice().machines(example("race")), drop_stale=False).findings
    assert finding.says == "'data' from p to q is never taken"
    assert [(step.role, step.does, step.label) for step in finding.run] == [
        ("p", "sends", "data"),
        ("q", "sends", "stop"),
    ]
    assert finding.chart == ("         p         q\n  1      |--data-->|\n  2      |<-stop---|")


def test_without_rule_a_there_is_a_trace_to_roles_that_never_agree():
    (finding,) = explore(machines_of(LEFT_ONLY, reach_rule=False)).findings
    assert finding.trouble == "no agreement"
    assert finding.says == "p and s on the left side of m, q on the right, for good"
    assert [step.label for step in finding.run] == ["data", "note", "note", "stop"]


def test_a_late_third_party_switches():
    found = MixedChoice().machines(example("third_party"))
    p, q, s = (RoleSession(found[role]) for role in ("p", "q", "s"))
    order, _ = p.send("q", "order")
    prepare, _ = p.send("s", "prepare")
    cancel, _ = q.send("p", "cancel")
    abandon, _ = q.send("s", "abandon")
    assert [each.what for each in s.deliver(prepare)] == ["taken"]
    assert [(each.what, each.label) for each in s.deliver(abandon)] == [("switched", "abandon"), ("taken", "abandon")]
    assert [each.what for each in q.deliver(order)] == ["dropped"]
    abandoned, _ = s.send("p", "abandoned")
    # The answer overtakes the cancel: it makes p switch, and is taken when its turn comes.
    assert [each.what for each in p.deliver(abandoned)] == ["switched"]
    assert [each.label for each in p.deliver(cancel)] == ["cancel", "abandoned"]
    assert all(session.ended and not session.waiting for session in (p, q, s))


def test_amqp_connections_closed_from_both_ends_at_once_reach_closed():
    found = MixedChoice().machines(example("amqp_client"))
    client, broker = RoleSession(found["client"]), RoleSession(found["broker"])
    for one, other, label in [
        (broker, client, "connection_start"),
        (client, broker, "connection_start_ok"),
        (broker, client, "connection_tune"),
        (client, broker, "connection_tune_ok"),
        (client, broker, "connection_open"),
        (broker, client, "connection_open_ok"),
        (client, broker, "channel_open"),
        (broker, client, "channel_open_ok"),
        (client, broker, "basic_publish"),
        (broker, client, "basic_ack"),
    ]:
        other.deliver(one.send(other.role, label)[0])
    mine, _ = client.send("broker", "connection_close")
    theirs, _ = broker.send("client", "connection_close")
    assert [each.what for each in broker.deliver(mine)] == ["dropped"]
    assert [each.what for each in client.deliver(theirs)] == ["switched", "taken"]
    broker.deliver(client.send("broker", "connection_close_ok")[0])
    assert client.ended
    assert broker.ended


def step(label, target, partner, *, sends):
    return Transition(sends=sends, partner=partner, label=label, payload=(), target=target)


END = State(transitions=(), ends=True)


def by_hand(p, q):
    return {role: Machine(protocol="P", role=role, states=(*states, END)) for role, states in (("p", p), ("q", q))}


def test_two_roles_that_wait_for_each_other_are_a_deadlock():
    waits = {
        role: [State(transitions=(step("m", 1, partner, sends=False),))] for role, partner in (("p", "q"), ("q", "p"))
    }
    machines = by_hand(waits["p"], waits["q"])
    (finding,) = explore(machines).findings
    assert (finding.trouble, finding.says, finding.run) == ("deadlock", "p waits for ever for q?m()", ())


def test_a_message_of_another_label_is_a_reception_error():
    machines = by_hand(
        [State(transitions=(step("a", 1, "q", sends=True),))], [State(transitions=(step("b", 1, "p", sends=False),))]
    )
    troubles = {each.trouble: each.says for each in explore(machines).findings}
    assert troubles["reception error"] == "q gets 'a' from p where it waits for b"


def test_a_message_to_a_role_that_has_ended_is_an_orphan():
    machines = by_hand([State(transitions=(step("a", 1, "q", sends=True),))], [])
    (finding,) = explore(machines).findings
    assert (finding.trouble, len(finding.run)) == ("orphan message", 1)


def test_one_role_may_starve_while_others_loop():
    talk = State(transitions=(step("a", 0, "q", sends=True),))
    hear = State(transitions=(step("a", 0, "p", sends=False),))
    wait = State(transitions=(step("never", 0, "p", sends=False),))
    machines = {
        role: Machine(protocol="P", role=role, states=(state,))
        for role, state in (("p", talk), ("q", hear), ("s", wait))
    }
    (finding,) = explore(machines).findings
    assert finding.says == "s waits for ever for p?never()"


def test_a_run_that_only_full_queues_end_is_no_deadlock():
    # Both send twice before they take anything: two places a queue are needed.
    def sides(partner):
        sends = [State(transitions=(step("m", number + 1, partner, sends=True),)) for number in range(2)]
        return [*sends, *(State(transitions=(step("m", number + 3, partner, sends=False),)) for number in range(2))]

    machines = by_hand(sides("q"), sides("p"))
    narrow, wide = explore(machines, queue_bound=1), explore(machines, queue_bound=2)
    assert (narrow.findings, narrow.blocked_by_bound) == ((), True)
    assert (wide.findings, wide.blocked_by_bound) == ((), False)


def test_a_budget_ends_a_search_without_a_verdict():
    machines = MixedChoice().machines(example("stream"))
    cut = explore(machines, queue_bound=3, most_configurations=5)
    assert (cut.complete, cut.stopped, cut.findings) == (False, "5 configurations", ())
    cut = explore(machines, out_of_budget=lambda count: "no time")
    assert cut.stopped == "no time"


@pytest.mark.parametrize("body", [COPIES, NESTED, TWO_IN_A_LOOP, None])
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_random_schedules_of_the_real_sessions_meet_nothing_the_search_excludes(body, seed):
    machines = machines_of(body) if body else MixedChoice().machines(example("third_party"))
    rng = np.random.default_rng(seed)
    sessions = {role: RoleSession(machine) for role, machine in machines.items()}
    network: dict[tuple[str, str], list] = {}
    for _ in range(60):
        steps = [("send", role, each) for role, session in sessions.items() for each in session.offers()]
        steps += [("deliver", pair, None) for pair, queue in network.items() if queue]
        if not steps:
            break
        kind, who, what = steps[int(rng.integers(len(steps)))]
        if kind == "send":
            envelope, _ = sessions[who].send(what.partner, what.label)
            network.setdefault((who, what.partner), []).append(envelope)
        else:
            sessions[who[1]].deliver(network[who].pop(0))
    # Let everything under way arrive and answer only what must be answered, until nothing moves.
    for _ in range(2000):
        if any(network.values()):
            pair = next(pair for pair, queue in network.items() if queue)
            sessions[pair[1]].deliver(network[pair].pop(0))
            continue
        if not (any(session.waiting for session in sessions.values()) or not _agreed(sessions)):
            break
        forced = [session for session in sessions.values() if session.here.kind == "send"]
        assert forced
        session = forced[0]
        each = session.offers()[0]
        envelope, _ = session.send(each.partner, each.label)
        network.setdefault((session.role, each.partner), []).append(envelope)
    assert _agreed(sessions)
    assert not any(session.waiting for session in sessions.values())


def _agreed(sessions):
    tags = [session.tag for session in sessions.values()]
    return all(agree(one, other) for one in tags for other in tags)


class RandomProtocol:
    """Text of a random protocol: messages, choices, loops and mixes, most of which break some rule."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.roles = "pqst"[: int(self.rng.choice([2, 3, 3, 4]))]
        self.labels = 0

    def text(self):
        roles = ", ".join(f"role {role}" for role in self.roles)
        return f"protocol P({roles}) {{ {self.block(int(self.rng.integers(1, 4)), [])} }}"

    def label(self):
        self.labels += 1
        return f"m{self.labels}"

    def pair(self):
        return self.rng.choice(list(self.roles), 2, replace=False)

    def message(self, one, other):
        return f"{self.label()} from {one} to {other};"

    def block(self, depth, loops):
        parts = []
        for _ in range(int(self.rng.integers(1, 4))):
            one, other = self.pair()
            kind = self.rng.random() if depth else 0.0
            if kind < 0.5:
                parts.append(self.message(one, other))
            elif kind < 0.7:
                sides = [f"{{ {self.message(one, other)} {self.block(depth - 1, loops)} }}" for _ in range(2)]
                parts.append(f"choice at {one} {' or '.join(sides)}")
            elif kind < 0.85:
                left = f"{self.message(one, other)} {self.block(depth - 1, loops)}"
                informs = [self.message(other, role) for role in self.roles if role not in (one, other)]
                informs = informs if self.rng.random() < 0.7 else []
                right = " ".join([self.message(other, one), *informs, self.block(depth - 1, loops)])
                parts.append(f"mix {{ {left} }} or interrupt by {other} {{ {right} }}")
            else:
                name = f"X{self.label()}"
                parts.append(f"rec {name} {{ {self.block(depth - 1, [*loops, name])} }}")
        if loops and self.rng.random() < 0.6:
            parts.append(f"continue {self.rng.choice(loops)};")
        return " ".join(parts)


@pytest.mark.parametrize("seeds", [range(150), pytest.param(range(150, 6000), marks=pytest.mark.slow)])
def test_whatever_the_rules_accept_can_always_go_on(seeds):
    accepted = with_mixes = 0
    for seed in seeds:
        text = RandomProtocol(seed).text()
        try:
            machines = MixedChoice().machines(text)
        except IllFormedError:
            continue
        accepted += 1
        with_mixes += any(machine.mixes for machine in machines.values())
        found = explore(machines, most_configurations=30_000)
        assert [(each.trouble, each.says) for each in found.findings] == [], text
    assert accepted > len(seeds) // 4
    assert with_mixes > len(seeds) // 20
