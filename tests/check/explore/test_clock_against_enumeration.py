"""The explorer's clock against a plain enumeration of timed runs, written without any of its code.

Random protocols are tables: what a node in some state does when a message, a timer or a request comes.  The enumeration
walks over tuples with its own idea of time (what is left of timers, how old messages are) and counts what it meets.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from wavetank.check.explore import Clock, Environment, explore
from wavetank.sim.node import Message, Node, Snapshot
from wavetank.sim.simulation import Request

BAD = 3

# Protocols with more timed states (or with infinitely many, when letters breed letters) are drawn again.
MOST = 1500


class Letter(Message, frozen=True):
    """One of a few."""

    kind: int


# A reaction: next state, messages as (receiver, kind), timers as (name, length; 0 cancels).
Reaction = tuple[int, tuple[tuple[int, int], ...], tuple[tuple[str, int], ...]]


@dataclass(frozen=True)
class Rules:
    """What nodes do, by (state, event) with the time modulo 2 where the clock is read."""

    reads_clock: bool
    start: tuple[Reaction, ...]
    table: tuple[tuple[tuple[int, int, str, int], Reaction], ...]

    def reaction(self, node: int, state: int, event: str, now: int) -> Reaction:
        return dict(self.table).get((node, state, event, now % 2 if self.reads_clock else 0), (state, (), ()))


class Random(Node):
    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.state = 0

    def _do(self, reaction: Reaction) -> None:
        self.state, sends, timers = reaction
        for to, kind in sends:
            self.context.send(to, Letter(kind))
        for name, length in timers:
            if length:
                self.context.set_timer(name, length)
            else:
                self.context.cancel_timer(name)

    def _on(self, event: str) -> None:
        now = int(self.context.now) if self.rules.reads_clock else 0
        self._do(self.rules.reaction(self.context.id, self.state, event, now))

    def start(self) -> None:
        self._do(self.rules.start[self.context.id])

    def receive(self, sender: int, message: Any) -> None:
        self._on(f"letter {message.kind}")

    def timer(self, name: str) -> None:
        self._on(f"timer {name}")

    def request(self, number: int, command: Any) -> None:
        self._on("request")


@dataclass(frozen=True)
class Drawn:
    rules: Rules
    messages: ClassVar[tuple[type[Message], ...]] = (Letter,)

    def node(self, index: int, size: int) -> Node:
        return Random(self.rules)

    def max_faults(self, size: int) -> int:
        return 0

    def violation(self, snapshot: Snapshot) -> str:
        return "bad" if any(node.state == BAD for node in snapshot.nodes) else ""  # type: ignore[attr-defined]


def drawn_rules(draw: random.Random, size: int) -> Rules:
    def reaction() -> Reaction:
        state = draw.choice([0, 1, 2, 2, BAD if draw.random() < 0.15 else 1])
        others = range(size)
        sends = tuple((to, draw.randrange(2)) for to in others if draw.random() < 0.25)
        timers = tuple((name, draw.choice([0, 1, 2, 3])) for name in ("a", "b") if draw.random() < 0.3)
        return state, sends, timers

    def without_self(node: int, found: Reaction) -> Reaction:
        return found[0], tuple(each for each in found[1] if each[0] != node), found[2]

    start = tuple(
        (0, without_self(node, reaction())[1], (("a", draw.choice([1, 2, 3])), ("b", draw.choice([2, 3]))))
        for node in range(size)
    )
    events = ["letter 0", "letter 1", "timer a", "timer b", "request"]
    reads_clock = draw.random() < 0.4
    table = []
    for node in range(size):
        for state in range(3):
            for event in events:
                for parity in range(2 if reads_clock else 1):
                    if draw.random() < 0.55:
                        # Most reactions to letters are silent, so that runs end.
                        found = without_self(node, reaction())
                        if event.startswith("letter") and draw.random() < 0.7:
                            found = (found[0], (), found[2])
                        table.append(((node, state, event, parity), found))
    return Rules(reads_clock, start, tuple(table))


class Enumeration:
    """All timed states, breadth first.

    A state is (node states, timers, letters, requests left, losses left, now): timers are sorted (node, name, least
    rounds left, most rounds left), letters sorted (sender, receiver, kind, age), requests (node, rounds left).
    """

    def __init__(
        self, rules: Rules, size: int, clock: Clock, requests: tuple[tuple[int, int], ...], drops: int
    ) -> None:
        self.rules, self.size, self.clock = rules, size, clock
        nodes = [0] * size
        timers: dict[tuple[int, str], tuple[int, int]] = {}
        letters: list[tuple[int, int, int, int]] = []
        for node in range(size):
            self._apply(node, rules.start[node], nodes, timers, letters)
        first = self._state(nodes, timers, letters, sorted(requests), drops, 0)
        self.edges = 0
        self.beyond = False
        self.bad_after = -1
        self.ends = 0
        depth = {first: 0}
        todo = deque([first])
        while todo:
            state = todo.popleft()
            if BAD in state[0] and self.bad_after < 0:
                self.bad_after = depth[state]
            following = self.following(state)
            self.edges += len(following)
            self.ends += not any(must for must, _ in following) and not self.stopped
            for _, after in following:
                if after not in depth:
                    depth[after] = depth[state] + 1
                    todo.append(after)
            if len(depth) > MOST:
                break
        self.states = len(depth)

    def _apply(self, node: int, reaction: Reaction, nodes: Any, timers: Any, letters: Any) -> None:
        nodes[node] = reaction[0]
        for to, kind in reaction[1]:
            letters.append((node, to, kind, 0))
        for name, length in reaction[2]:
            timers.pop((node, name), None)
            if length:
                slack = [at for at in range(1, 20) if abs(at - length) <= self.clock.drift * length + 1e-9]
                timers[node, name] = (min(slack), max(slack))

    def _state(self, nodes: Any, timers: Any, letters: Any, requests: Any, drops: int, now: int) -> Any:
        most = self.clock.most_delay
        kept = [(s, t, k, min(age, self.clock.least_delay) if most == "unlimited" else age) for s, t, k, age in letters]
        return (
            tuple(nodes),
            tuple(sorted((*key, *left) for key, left in timers.items())),
            tuple(sorted(kept)),
            tuple(requests),
            drops,
            now if self.rules.reads_clock else 0,
        )

    def following(self, state: Any) -> list[tuple[bool, Any]]:
        nodes, timers, letters, requests, drops, now = state
        found: list[tuple[bool, Any]] = []

        def react(node: int, event: str, left: Any, letters: Any, requests: Any) -> None:
            after, clocks, box = list(nodes), dict(left), list(letters)
            self._apply(node, self.rules.reaction(node, nodes[node], event, now), after, clocks, box)
            found.append((True, self._state(after, clocks, box, requests, drops, now)))

        left = {(node, name): (least, most) for node, name, least, most in timers}
        for letter in sorted({*letters}):
            rest = list(letters)
            rest.remove(letter)
            if letter[3] >= self.clock.least_delay:
                react(letter[1], f"letter {letter[2]}", left, rest, requests)
                if drops:
                    found.append((False, self._state(nodes, left, rest, requests, drops - 1, now)))
        for key, (least, _) in left.items():
            if least == 0:
                react(
                    key[0], f"timer {key[1]}", {each: at for each, at in left.items() if each != key}, letters, requests
                )
        for node in range(self.size):
            own = [at for at, each in enumerate(requests) if each[0] == node]
            if own and requests[own[0]][1] == 0:
                react(node, "request", left, letters, [*requests[: own[0]], *requests[own[0] + 1 :]])
        self.stopped = False
        late = self.clock.most_delay
        due = any(most == 0 for _, most in left.values()) or any(age == late for *_, age in letters)
        if self.clock.requests == "on-time":
            due = due or any(at == 0 for _, at in requests)
        if due or not (found or letters or left or requests):
            return found
        if self.rules.reads_clock and now >= self.clock.horizon:
            self.beyond = self.stopped = True
            return found
        less = {key: (max(least - 1, 0), most - 1) for key, (least, most) in left.items()}
        older = [(s, t, k, age + 1) for s, t, k, age in letters]
        passed = self._state(nodes, less, older, [(node, max(at - 1, 0)) for node, at in requests], drops, now + 1)
        if passed != state:
            found.append((True, passed))
        return found


@pytest.mark.parametrize("part", range(4))
def test_states_steps_and_outcomes_are_those_of_a_plain_enumeration(part: int) -> None:
    draw = random.Random(f"clock {part}")
    seen = {"violated": 0, "holds": 0, "undecided": 0}
    for _ in range(80):
        size = draw.choice([1, 2, 2, 3])
        rules = drawn_rules(draw, size)
        least = draw.choice([0, 1, 1, 2])
        clock = Clock(
            least_delay=least,
            most_delay=draw.choice([least, least + 1, "unlimited"]),
            drift=draw.choice([0.0, 0.0, 0.5]) if not rules.reads_clock else 0.0,
            requests=draw.choice(["any-time", "on-time"]),
            horizon=draw.choice([4, 9]),
        )
        asked = tuple(sorted((draw.randrange(size), draw.randrange(4)) for _ in range(draw.choice([0, 1, 2]))))
        drops = draw.choice([0, 0, 1])
        plain = Enumeration(_without_bad(rules), size, clock, asked, drops)
        if plain.states > MOST:
            continue
        requests = [Request(at=at, node=node, command="go") for node, at in asked]
        keywords: Any = {
            "requests": requests, "clock": clock, "environment": Environment(drops=drops),
            "order": draw.choice(["breadth-first", "depth-first"]), "exact": draw.random() < 0.3,
        }  # fmt: skip
        whole = explore(Drawn(_without_bad(rules)), size, **keywords)
        assert (whole.states, whole.transitions, whole.terminal_states) == (plain.states, plain.edges, plain.ends)
        assert whole.outcome == ("undecided" if plain.beyond else "holds")
        wrong = Enumeration(rules, size, clock, asked, drops)
        if wrong.states > MOST:
            continue
        found = explore(Drawn(rules), size, **{**keywords, "order": "breadth-first"})
        if wrong.bad_after >= 0:
            assert found.outcome == "violated"
            assert found.counterexample is not None
            assert len(found.counterexample.actions) == wrong.bad_after
        else:
            assert found.outcome == ("undecided" if wrong.beyond else "holds")
        seen[found.outcome] += 1
    # The draw covers all of them.
    assert min(seen.values()) >= 3, seen


def _without_bad(rules: Rules) -> Rules:
    """Return rules that go to state 2 where others go to the bad one, so that whole spaces are compared."""

    def mended(reaction: Reaction) -> Reaction:
        return (2 if reaction[0] == BAD else reaction[0], *reaction[1:])

    return Rules(
        rules.reads_clock,
        tuple(mended(each) for each in rules.start),
        tuple((key, mended(each)) for key, each in rules.table),
    )
