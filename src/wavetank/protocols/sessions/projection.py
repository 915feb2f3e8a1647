"""Projection: the local machine of one role, by following the global type and merging what looks alike to the role.

A state of the machine is a set of places in the global type at which the protocol may be, as far as the role knows.
Such a set is merged into one head: an end, messages received from one role, or the same messages sent.  Messages from
different roles can be distinguished only between the two sides of one mix, by their tags.

Source: full merge as in A. Scalas, N. Yoshida, "Less is More: Multiparty Session Types Revisited", POPL 2019, extended
to mixes after "Mixed Choice in Asynchronous Multiparty Session Types", arXiv 2602.23927, 2026.

Differs from the source:

1. Works on graphs and sets of places instead of syntax trees, so that loops need no unfolding and equal continuations
   are merged once; what is accepted beyond full merge is a role that waits while others loop.
2. A loop is merged with what is no loop only when asked to (or with nested protocols), as nuScr does.
3. The paper's own rules for mixes are not public in detail: a mix merges like a choice, except that messages inside its
   two sides may come from different roles.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import reduce

from wavetank.protocols.sessions.global_types import (
    Branching,
    Communication,
    End,
    GlobalType,
    Head,
    Jump,
    MixNode,
    Node,
    Scope,
)
from wavetank.protocols.sessions.machines import Machine, State, Transition
from wavetank.protocols.sessions.syntax import Expression, IllFormedError, Payload, Place
from wavetank.protocols.sessions.wellformed import check_well_formed

MOST_STATES = 20_000


@dataclass(frozen=True, slots=True)
class _Event:
    """A message the role may send or receive next, with all that decides whether it can be merged with others."""

    sends: bool
    partner: str
    label: str
    payload: tuple[str, ...]
    after: frozenset[int]
    place: Place
    scopes: frozenset[Scope]
    settles: tuple[int, str] | None
    irreversible: bool
    nodes: frozenset[int]
    # Loops that only this branch enters, and values that were sent where this role did not see it.
    loops: frozenset[int] = frozenset()
    unseen: frozenset[str] = frozenset()

    @property
    def key(self) -> tuple[bool, str, str]:
        return (self.sends, self.partner, self.label)


@dataclass(slots=True)
class _Head:
    """What a set of places begins with: events, an end, or nothing known yet (a loop without this role)."""

    events: dict[tuple[bool, str, str], _Event] = field(default_factory=dict)
    ends: Place | None = None
    # A mix at which this role races; such a head merges with nothing but itself.
    mix: int = 0
    # Places that are still being walked through, to which a loop without this role leads back.
    turns: frozenset[int] = frozenset()

    @property
    def sends(self) -> bool:
        return any(event.sends for event in self.events.values())


def project(protocol: GlobalType, role: str, *, reach: bool = True) -> Machine:
    """Return the machine of one role of a well-formed protocol.

    Parameters
    ----------
    protocol : GlobalType
        Has passed :func:`~wavetank.protocols.sessions.wellformed.check_well_formed`.
    role : str
    reach : bool
        Whether rule (a) holds; without it an end may be merged with a message to receive.

    Raises
    ------
    IllFormedError
        When two branches that look alike to the role ask different things of it.
    """
    try:
        return _Projection(protocol, role, reach).machine()
    except RecursionError as error:
        raise IllFormedError(
            "The choices go too deep to project.", rule="size", where=protocol.where(protocol.place)
        ) from error


def project_all(protocol: GlobalType, *, reach: bool = True) -> dict[str, Machine]:
    """Check a global type and return the machines of all its roles.

    Parameters
    ----------
    protocol : GlobalType
        Its mixes' optimists are filled in by the check.
    reach : bool
        Whether rule (a) of a mix is checked: every role that takes part in one side is informed of the other, too.

    Returns
    -------
    dict of str to Machine
        By role, in the order of the protocol's roles.

    Raises
    ------
    IllFormedError
        When the protocol breaks a rule, or a role cannot be projected.
    """
    check_well_formed(protocol, reach=reach)
    return {role: project(protocol, role, reach=reach) for role in protocol.roles}


def payload_text(payload: Payload) -> str:
    """Return a payload as it is written in a protocol file."""
    text = f"{payload.name}: {payload.type}" if payload.name else payload.type
    return f"{text}{{{expression_text(payload.refinement)}}}" if payload.refinement is not None else text


def expression_text(expression: Expression) -> str:
    """Return an expression as it is written in a protocol file, with brackets around every inner operation."""
    match expression.kind:
        case "int" | "name":
            return str(expression.value)
        case "bool":
            return str(expression.value).lower()
        case "string":
            return f'"{expression.value}"'
        case "not":
            return f"not {expression_text(expression.parts[0])}"
        case "neg":
            return f"-{expression_text(expression.parts[0])}"
        case "len":
            return f"len({expression_text(expression.parts[0])})"
    sides = [
        expression_text(part) if len(part.parts) < 2 else f"({expression_text(part)})" for part in expression.parts
    ]
    return f" {expression.kind} ".join(sides)


class _Projection:
    def __init__(self, protocol: GlobalType, role: str, reach: bool) -> None:
        self.protocol, self.role, self.reach = protocol, role, reach
        self.heads: dict[int, _Head | None] = {}
        self.reached: dict[frozenset[int], set[int]] = {}

    def machine(self) -> Machine:
        protocol = self.protocol
        numbers: dict[frozenset[int], int] = {}
        waiting: list[frozenset[int]] = []
        states: list[State] = []

        def number_of(places: frozenset[int]) -> int:
            if places not in numbers:
                if len(numbers) >= MOST_STATES:
                    raise IllFormedError(
                        f"The machine of {self.role!r} is too large.",
                        rule="size",
                        allowed=f"{MOST_STATES} states",
                        where=protocol.where(protocol.place),
                    )
                numbers[places] = len(numbers)
                waiting.append(places)
            return numbers[places]

        number_of(frozenset({protocol.start}))
        aborts = {}
        for number, mix in sorted(protocol.mixes.items()):
            # The arbiter decides, so nobody ever interrupts it.
            if self.role != mix.arbiter:
                aborts[number] = number_of(frozenset({mix.right}))
        while waiting:
            places = waiting.pop(0)
            head = self.head_of(places)
            transitions = tuple(
                Transition(
                    sends=event.sends,
                    partner=event.partner,
                    label=event.label,
                    payload=event.payload,
                    target=number_of(event.after),
                    settles=event.settles,
                    irreversible=event.irreversible,
                    through=() if event.sends else self.through(places, event),
                )
                for event in head.events.values()
            )
            states.append(State(transitions=transitions, ends=not transitions or head.ends is not None))
        names = {number: mix.name for number, mix in protocol.mixes.items()}
        return _smallest(
            Machine(protocol=protocol.name, role=self.role, states=tuple(states), aborts=aborts, mixes=names)
        )

    # Heads

    def head_of(self, places: frozenset[int]) -> _Head:
        self.heads = {}
        heads = [self.walk(place, False, frozenset(), frozenset()) for place in sorted(places)]
        return reduce(lambda one, other: self.merge(one, other, self.protocol.place), heads)

    def walk(self, number: int, bystander: bool, loops: frozenset[int], unseen: frozenset[str]) -> _Head:
        """Return the head of one place; silent nodes are walked through."""
        # A long run of messages between others is followed in a loop, everything else by recursion.
        passed: list[int] = []
        while number not in self.heads:
            node = self.protocol.nodes[number]
            others = isinstance(node, Communication) and self.role not in (node.sender, node.receiver)
            if not others and not isinstance(node, Head | Jump):
                break
            self.heads[number] = None
            passed.append(number)
            if isinstance(node, Communication):
                if self.protocol.refined:
                    unseen |= {payload.name for payload in node.payload if payload.name}
            elif bystander and isinstance(node, Head):
                loops |= {number}
            (number,) = self.protocol.successors(number)
        if number in self.heads:
            found = self.heads[number] or _Head(turns=frozenset({number}))
        else:
            self.heads[number] = None
            passed.append(number)
            found = self.own(number, bystander, loops, unseen)
        turns = found.turns.difference(passed)
        # A loop that this role has no part in and that nobody leaves is an end for it.
        ends = found.ends if found.events or found.mix or turns else found.ends or self.protocol.place
        found = _Head(found.events, ends, found.mix, turns)
        for each in passed:
            self.heads[each] = found
        return found

    def own(self, number: int, bystander: bool, loops: frozenset[int], unseen: frozenset[str]) -> _Head:
        node = self.protocol.nodes[number]
        if isinstance(node, End):
            return _Head(ends=self.protocol.place)
        if isinstance(node, Communication):
            event = self.event(number, loops, unseen, None)
            return _Head({event.key: event})
        if isinstance(node, MixNode):
            return self.mix(node, bystander, loops, unseen)
        if not isinstance(node, Branching):
            raise IllFormedError("The global type holds a node that projection does not know.", rule="defect")
        return self.branching(node, bystander, loops, unseen)

    def event(
        self, number: int, loops: frozenset[int], unseen: frozenset[str], settles: tuple[int, str] | None
    ) -> _Event:
        node = self.protocol.nodes[number]
        if not isinstance(node, Communication):
            raise IllFormedError("Only a message can be sent or received.", rule="defect")
        sends = node.sender == self.role
        return _Event(
            sends,
            node.receiver if sends else node.sender,
            node.label,
            tuple(payload_text(each) for each in node.payload),
            frozenset({node.after}),
            node.place,
            frozenset({node.scope}),
            settles if sends else None,
            node.irreversible,
            frozenset({number}),
            loops,
            unseen,
        )

    def mix(self, node: MixNode, bystander: bool, loops: frozenset[int], unseen: frozenset[str]) -> _Head:
        if self.role in (node.optimist, node.arbiter):
            found = _Head(mix=node.number)
            for start, side in ((node.left, "left"), (node.right, "right")):
                for number in self.protocol.first_numbers(start):
                    event = self.event(number, loops, unseen, (node.number, side))
                    found.events[event.key] = event
            return found
        left = self.walk(node.left, bystander, loops, unseen)
        return self.merge(left, self.walk(node.right, bystander, loops, unseen), node.place, whole=True)

    def branching(self, node: Branching, bystander: bool, loops: frozenset[int], unseen: frozenset[str]) -> _Head:
        if node.role == self.role:
            found = _Head()
            for branch in node.branches:
                found.events.update(self.walk(branch, bystander, loops, unseen).events)
            return found
        addressed = all(
            isinstance(first, Communication) and first.receiver == self.role
            for branch in node.branches
            for first in self.protocol.firsts(branch)
        )
        found = _Head()
        for position, branch in enumerate(node.branches):
            head = self.walk(branch, bystander or not addressed, loops, unseen)
            found = head if not position else self.merge(found, head, node.place)
        return found

    def through(self, places: frozenset[int], event: _Event) -> tuple[tuple[int, str], ...]:
        """Return the sides of mixes on which alone an event stands, as seen from where the role may be now."""
        found = []
        for number in sorted(self.silently(places)):
            node = self.protocol.nodes[number]
            if isinstance(node, MixNode):
                sides = [
                    side
                    for start, side in ((node.left, "left"), (node.right, "right"))
                    if event.nodes & self.silently(frozenset({start}))
                ]
                if len(sides) == 1:
                    found.append((node.number, sides[0]))
        return tuple(found)

    def silently(self, places: frozenset[int]) -> set[int]:
        """Return the nodes that can be reached without this role doing anything, its next messages included."""
        if places not in self.reached:

            def acts(node: Node) -> bool:
                return isinstance(node, Communication) and self.role in (node.sender, node.receiver)

            self.reached[places] = set(self.protocol.walk(*places, stops=acts))
        return self.reached[places]

    # Merging

    def merge(self, one: _Head, other: _Head, place: Place, *, whole: bool = False) -> _Head:
        """Merge two heads that look alike to the role before something arrives.

        ``whole`` says that they are the two sides of one mix, where loops need not match.
        """
        if one is other:
            return one
        for head, against in ((one, other), (other, one)):
            if head.turns and not head.events and head.ends is None:
                if against.sends:
                    raise self.unmergeable(
                        place, against, "it cannot know whether the others have left their loop when it should send"
                    )
                return _Head(against.events, against.ends, against.mix, head.turns | against.turns)
        if one.mix or other.mix:
            if one.mix == other.mix:
                return one
            raise self.unmergeable(place, one if one.mix else other, "it would race in one branch only")
        ends = one.ends or other.ends
        if (one.ends is None) != (other.ends is None):
            events = other if one.ends is not None else one
            mixed_already = one.events and other.events
            if events.sends or (self.reach and not mixed_already):
                raise self.unmergeable(place, events, "in one branch it is done, in the other it is not")
        if one.events and other.events:
            if one.sends != other.sends:
                raise self.unmergeable(
                    place, one if one.sends else other, "in one branch it sends, in the other it waits"
                )
            if one.sends and set(one.events) != set(other.events):
                odd = next(iter(set(one.events) ^ set(other.events)))
                holder = one if odd in one.events else other
                raise self.unmergeable(place, holder, "it must send the same in every branch it does not know of", odd)
        found = dict(one.events)
        for key, event in other.events.items():
            for twin in one.events.values():
                self.check_together(twin, event, place, whole)
            if key in found:
                found[key] = self.joined(found[key], event, place)
            else:
                found[key] = event
        return _Head(found, ends, turns=one.turns | other.turns)

    def check_together(self, one: _Event, other: _Event, place: Place, whole: bool) -> None:
        if one.partner != other.partner and not one.sends and not _on_opposite_sides(one, other):
            raise self.refuse(
                f"{self.role!r} cannot distinguish the branches: it waits for {one.label!r} from {one.partner!r} in "
                f"one, for {other.label!r} from {other.partner!r} (line {other.place.line}) in the other.",
                place,
            )
        if not whole and not self.protocol.unfolds and one.loops != other.loops:
            raise self.refuse(
                f"{self.role!r} takes part in a loop in one branch only: {one.label!r} in line {one.place.line} and "
                f"{other.label!r} in line {other.place.line} are not merged.",
                place,
                hint="--set unfold=true merges them by unfolding the loop once",
            )

    def joined(self, one: _Event, other: _Event, place: Place) -> _Event:
        # Without refinements the name of a value means nothing beyond its message.
        kinds = [
            event.payload if self.protocol.refined else tuple(text.rpartition(": ")[2] for text in event.payload)
            for event in (one, other)
        ]
        if kinds[0] != kinds[1]:
            raise self.refuse(
                f"{one.label!r} carries ({', '.join(one.payload)}) in one branch and ({', '.join(other.payload)}) in "
                f"the other (lines {one.place.line} and {other.place.line}), which {self.role!r} cannot distinguish.",
                place,
            )
        if one.unseen != other.unseen:
            raise self.refuse(
                f"{self.role!r} meets {one.label!r} in two branches in which different values were sent elsewhere "
                f"({', '.join(sorted(one.unseen)) or 'none'}; {', '.join(sorted(other.unseen)) or 'none'}), which it "
                "cannot distinguish.",
                place,
            )
        return replace(
            one,
            after=one.after | other.after,
            scopes=one.scopes | other.scopes,
            irreversible=one.irreversible or other.irreversible,
            nodes=one.nodes | other.nodes,
            loops=one.loops & other.loops,
        )

    def unmergeable(
        self, place: Place, head: _Head, why: str, key: tuple[bool, str, str] | None = None
    ) -> IllFormedError:
        event = head.events[key] if key else next(iter(head.events.values()))
        sends = f"sends {event.label!r} to" if event.sends else f"receives {event.label!r} from"
        return self.refuse(
            f"{self.role!r} cannot distinguish the branches: {why}; it {sends} {event.partner!r} in line "
            f"{event.place.line}.",
            place,
        )

    def refuse(self, problem: str, place: Place, hint: str = "") -> IllFormedError:
        return IllFormedError(
            problem,
            rule="projection",
            where=self.protocol.where(place),
            hint=hint or f"inform {self.role} of the choice: a message under a different label in each branch",
        )


def _on_opposite_sides(one: _Event, other: _Event) -> bool:
    """Return whether wherever the two stand, they stand on opposite sides of some mix."""
    return all(_opposed(scope, against) for scope in one.scopes for against in other.scopes)


def _opposed(one: Scope, other: Scope) -> bool:
    sides = dict(one)
    return any(mix in sides and sides[mix] != side for mix, side in other)


def _smallest(machine: Machine) -> Machine:
    """Return the machine with equivalent states made one, numbered in the order they are met."""
    states = machine.states
    classes = [0] * len(states)
    count = 0
    while True:
        signatures: dict[object, int] = {}
        refined = []
        for number, state in enumerate(states):
            steps = frozenset(
                (each.sends, each.partner, each.label, each.payload, each.settles, each.through, classes[each.target])
                for each in state.transitions
            )
            refined.append(signatures.setdefault((classes[number], steps, state.ends), len(signatures)))
        classes = refined
        if len(signatures) == count:
            break
        count = len(signatures)
    number_of = {classes[0]: 0}
    order = [0]
    targets = [each.target for state in states for each in state.transitions]
    for number in (*_walk_order(machine), *targets):
        if classes[number] not in number_of:
            number_of[classes[number]] = len(number_of)
            order.append(number)
    renumbered = {number: number_of[classes[number]] for number in range(len(states)) if classes[number] in number_of}
    smallest = tuple(
        replace(
            states[number],
            transitions=tuple(replace(each, target=renumbered[each.target]) for each in states[number].transitions),
        )
        for number in order
    )
    aborts = {mix: renumbered[target] for mix, target in machine.aborts.items()}
    return replace(machine, states=smallest, aborts=aborts)


def _walk_order(machine: Machine) -> list[int]:
    seen, found = set(), []
    waiting = [*reversed(list(machine.aborts.values())), 0]
    while waiting:
        number = waiting.pop()
        if number in seen:
            continue
        seen.add(number)
        found.append(number)
        waiting += [each.target for each in reversed(machine.states[number].transitions)]
    return found
