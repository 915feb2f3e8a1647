"""Explores the product of all local machines with FIFO queues between every two roles, and finds what can go wrong.

Every interleaving of sending, taking, dropping a stale message and switching sides is followed, with queues of bounded
length, and with as few instances of one mix undecided at a time as such queues would allow.  Tags of mixes that
everybody agrees on are forgotten and later ones counted from there, so that loops give finitely many configurations.
Local states and messages are numbered when first met; a configuration is a row of these numbers, and every step is
looked up in tables that are filled as the compiled search asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.protocols.sessions.machines import Machine, State
from wavetank.protocols.sessions.reachability import Steps
from wavetank.protocols.sessions.search import (
    DONE,
    DROPS,
    FULL,
    NO_LOCAL,
    NO_REACTION,
    NO_SENDS,
    NO_VERDICT,
    SENDS,
    SWITCHES,
    TAKES,
    WAITS,
    Found,
    Tables,
    fill_slots,
    place,
    search,
)
from wavetank.protocols.sessions.sequence_chart import ChartRow, draw_chart
from wavetank.protocols.sessions.tags import (
    NO_TAG,
    Tag,
    agree,
    begun,
    joined,
    passes,
    relation,
    sides_of,
    switched,
    turns_of,
    voids,
    without,
)

Trouble = Literal["deadlock", "orphan message", "reception error", "no agreement"]
TROUBLES: tuple[Trouble, ...] = ("deadlock", "orphan message", "reception error", "no agreement")
MOST_CONFIGURATIONS = 200_000_000
# Local states and messages have 16 bits in a configuration.
MOST_NUMBERS = 32_000

_LOOK_EVERY = 50_000


class Step(NamedTuple):
    """One step of a run.

    Parameters
    ----------
    role : str
    does : str
        ``sends``, ``takes``, ``drops`` or ``switches``.
    partner : str
        The other end of the queue.
    label : str
        Of the message; for a switch, of the message that made the role switch.
    tag : Tag
        Of the message.
    mix : str
        For a switch, the mix whose right side the role goes on along.
    """

    role: str
    does: str
    partner: str
    label: str
    tag: Tag
    mix: str = ""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something that can go wrong, with the shortest run to it.

    Parameters
    ----------
    trouble : str
        One of :data:`TROUBLES`.
    says : str
    run : tuple of Step
    chart : str
        The run as a message sequence chart.
    """

    trouble: Trouble
    says: str
    run: tuple[Step, ...]
    chart: str


@dataclass(frozen=True, kw_only=True)
class Exploration:
    """What a search found.

    Parameters
    ----------
    configurations, steps : int
        Distinct configurations reached, and steps between them.
    findings : tuple of Finding
        At most one for each kind of trouble.
    complete : bool
        Whether every configuration within the queue bound was reached.
    stopped : str
        Why it was not; empty when it was.
    blocked_by_bound : bool
        Whether some run ended only because every sender met a full queue.
    """

    configurations: int
    steps: int
    findings: tuple[Finding, ...]
    complete: bool
    stopped: str = ""
    blocked_by_bound: bool = False


def explore(
    machines: Mapping[str, Machine],
    *,
    queue_bound: int = 2,
    drop_stale: bool = True,
    most_configurations: int = 2_000_000,
    out_of_budget: Callable[[int], str] | None = None,
) -> Exploration:
    """Explore the product of the machines of one protocol.

    Parameters
    ----------
    machines : mapping
        Role to machine.
    queue_bound : int
        Messages that may be under way from one role to another.  A role begins a further instance of a mix only while
        no more than this many of it are undecided; otherwise one that has been interrupted and does not know it yet
        could go on for ever.
    drop_stale : bool
        The stale-message rule; False shows what it is there for.
    most_configurations : int
    out_of_budget : callable, optional
        Asked now and then with the number of configurations; a text ends the search.
    """
    return _Product(machines, queue_bound, drop_stale).explore(most_configurations, out_of_budget)


class _Numbers:
    """Gives things numbers in the order they are met, from ``first`` on."""

    def __init__(self, first: int = 0) -> None:
        self.first = first
        self.things: list[Any] = [None] * first
        self.number_of: dict[Any, int] = {}

    def __call__(self, thing: Any) -> int:
        number = self.number_of.get(thing)
        if number is None:
            number = self.number_of[thing] = len(self.things)
            self.things.append(thing)
        return number

    def __len__(self) -> int:
        return len(self.things)


class _Product:
    def __init__(self, machines: Mapping[str, Machine], queue_bound: int, drop_stale: bool) -> None:
        self.machines = list(machines.values())
        self.roles = list(machines)
        self.bound, self.drop_stale = queue_bound, drop_stale
        number = {role: position for position, role in enumerate(self.roles)}
        self.pairs = sorted(
            {
                (number[machine.role], number[each.partner])
                for machine in self.machines
                for _, each in machine.transitions()
                if each.sends
            }
        )
        self.pair_of = {pair: position for position, pair in enumerate(self.pairs)}
        self.tagged = any(machine.mixes for machine in self.machines)
        self.passers = self._passers()
        self.tags = _Numbers()
        # Message 0 stands for an empty place in a queue.
        self.messages = _Numbers(first=1)
        self.locals = _Numbers()
        self.entries = _Numbers()
        # Local states that the bound on undecided turns of a mix keeps from beginning another one.
        self.held_back: set[int] = set()
        self.tags(NO_TAG)

    def _passers(self) -> dict[int, int]:
        """Return, for each mix, the roles that pass every turn of it, as bits: racers, and who waits for both sides."""
        found: dict[int, int] = {}
        for position, machine in enumerate(self.machines):
            waits_for: set[tuple[int, str]] = set()
            for _, transition in machine.transitions():
                waits_for.update(transition.through)
                if transition.settles is not None:
                    mix = transition.settles[0]
                    found[mix] = found.get(mix, 0) | 1 << position
            for mix in machine.mixes:
                if {(mix, "left"), (mix, "right")} <= waits_for:
                    found[mix] = found.get(mix, 0) | 1 << position
        return found

    # What the tables hold

    def local(self, role: int, state: int, tag: Tag) -> int:
        return self.locals((role, state, self.tags(tag)))

    def message(self, pair: int, label: str, tag: Tag) -> int:
        return self.messages((pair, label, self.tags(tag)))

    def tag_of_local(self, local: int) -> Tag:
        tag: Tag = self.tags.things[self.locals.things[local][2]]
        return tag

    def tag_of_message(self, message: int) -> Tag:
        tag: Tag = self.tags.things[self.messages.things[message][2]]
        return tag

    def label_of(self, message: int) -> str:
        return str(self.messages.things[message][1])

    def state_of(self, local: int) -> State:
        role, state, _ = self.locals.things[local]
        return self.machines[role].states[state]

    def sends(self, local: int) -> list[tuple[int, int, int]]:
        """Return what a role can send in a local state, as (pair, message, local state after that)."""
        role, _, _ = self.locals.things[local]
        tag = self.tag_of_local(local)
        found = []
        for each in self.state_of(local).transitions:
            if each.sends:
                after = tag
                if each.settles is not None:
                    if turns_of(tag, each.settles[0]) > self.bound:
                        self.held_back.add(local)
                        continue
                    after = begun(tag, *each.settles)
                pair = self.pair_of[role, self.roles.index(each.partner)]
                found.append((pair, self.message(pair, each.label, after), self.local(role, each.target, after)))
        return found

    def reaction(self, local: int, message: int) -> tuple[int, int]:
        """Return what a role does with the head of a queue, and its local state after that."""
        role, _, _ = self.locals.things[local]
        mine, theirs = self.tag_of_local(local), self.tag_of_message(message)
        sender, label = self.roles[self.pairs[self.messages.things[message][0]][0]], self.label_of(message)
        how, mix, turn = relation(mine, theirs)
        if how == "stale" and self.drop_stale:
            return DROPS, local
        if how == "overrides":
            return SWITCHES, self.local(role, self.machines[role].aborts[mix], switched(mine, mix, turn))
        for each in self.state_of(local).transitions:
            if not each.sends and (each.partner, each.label) == (sender, label) and passes(mine, theirs, each.through):
                return TAKES, self.local(role, each.target, joined(mine, theirs))
        return WAITS, local

    # The search

    def explore(self, most: int, out_of_budget: Callable[[int], str] | None) -> Exploration:
        most = min(most, MOST_CONFIGURATIONS)
        tables = _GrowingTables(self)
        found = _room(None, len(self.roles) + len(self.pairs) * self.bound, 1 << 12)
        first = np.zeros(found.rows.shape[1], np.int16)
        first[: len(self.roles)] = [self.local(role, 0, NO_TAG) for role in range(len(self.roles))]
        place(found, first, -1)
        stopped = ""
        while True:
            expanded = int(found.counts[2])
            if out_of_budget is not None:
                stopped = out_of_budget(int(found.counts[0]))
            if found.counts[0] > most:
                stopped = f"{most:,} configurations"
            if stopped or expanded == found.counts[0]:
                break
            code = FULL
            while code != DONE and not stopped:
                code, one, other = search(
                    found, tables.arrays(), len(self.roles), self.bound, self.tagged, expanded + _LOOK_EVERY
                )
                if code == FULL:
                    found = _room(found, found.rows.shape[1], 2 * len(found.rows))
                elif code != DONE:
                    try:
                        tables.fill(code, int(one), int(other))
                    except OverflowError as error:
                        stopped = str(error)
        return self._judged(_Graph(found), stopped)

    def _judged(self, graph: _Graph, stopped: str) -> Exploration:
        ended = np.flatnonzero(np.diff(graph.starts[: graph.expanded + 1]) == 0)
        blocked = [int(number) for number in ended if self.blocked(graph.rows[number])]
        findings: dict[Trouble, tuple[int, str]] = {}
        for kind, number, says in self.troubles(graph, blocked):
            if kind not in findings or number < findings[kind][0]:
                findings[kind] = (number, says)
        shown = tuple(self.finding(kind, *findings[kind], graph) for kind in TROUBLES if kind in findings)
        return Exploration(
            configurations=graph.count,
            steps=graph.targets.size,
            findings=shown,
            complete=not stopped,
            stopped=stopped,
            blocked_by_bound=bool(blocked),
        )

    def blocked(self, row: NDArray[np.int16]) -> bool:
        """Return whether a configuration without a step has one that only the bounds forbid."""
        return any(self.sends(int(local)) or int(local) in self.held_back for local in row[: len(self.roles)])

    def troubles(self, graph: _Graph, blocked: Sequence[int]) -> Iterator[tuple[Trouble, int, str]]:
        """Yield what is wrong: roles that never act again, messages that never leave, sides that never agree.

        Where the search was cut or a bound blocks, everything counts as possible.
        """
        roles = len(self.roles)
        sources = np.repeat(np.arange(graph.expanded), np.diff(graph.starts[: graph.expanded + 1]))
        steps = Steps(graph.starts, graph.targets, graph.count)
        beyond = np.arange(graph.count) >= graph.expanded
        beyond[blocked] = True
        ends = np.array([self.state_of(local).ends for local in range(len(self.locals))])
        ways = np.array(self.pairs or np.empty((0, 2)), np.int64).reshape(-1, 2)
        actors = np.where(graph.whats == SENDS, ways[graph.pairs, 0], ways[graph.pairs, 1])
        for role in range(roles):
            good = beyond | ends[graph.rows[:, role]]
            good[sources[actors == role]] = True
            number = _first_false(steps.can_reach(good))
            if number >= 0:
                yield "deadlock", number, f"{self.roles[role]} waits for ever{self.for_what(graph.rows[number, role])}"
        leaves = (graph.whats == TAKES) | (graph.whats == DROPS)
        for pair in range(len(self.pairs)):
            heads = graph.rows[:, roles + pair * self.bound]
            good = beyond | (heads == 0)
            good[sources[leaves & (graph.pairs == pair)]] = True
            number = _first_false(steps.can_reach(good))
            if number >= 0:
                yield self.left_over(graph.rows[number], pair, number)
        if self.tagged:
            number = _first_false(steps.can_reach(beyond | self.agreement(graph.rows[:, :roles])))
            if number >= 0:
                yield "no agreement", number, self.show_sides(graph.rows[number])

    def for_what(self, local: int) -> str:
        wanted = [str(each) for each in self.state_of(local).transitions if not each.sends]
        return f" for {_listed(wanted)}" if wanted else ""

    def left_over(self, row: NDArray[np.int16], pair: int, number: int) -> tuple[Trouble, int, str]:
        sender, receiver = self.pairs[pair]
        label = self.label_of(row[len(self.roles) + pair * self.bound])
        wanted = [
            each.label
            for each in self.state_of(row[receiver]).transitions
            if not each.sends and each.partner == self.roles[sender]
        ]
        one, other = self.roles[sender], self.roles[receiver]
        if wanted:
            return "reception error", number, f"{other} gets {label!r} from {one} where it waits for {_listed(wanted)}"
        return "orphan message", number, f"{label!r} from {one} to {other} is never taken"

    def agreement(self, locals_of_roles: NDArray[np.int16]) -> NDArray[np.bool_]:
        """Return where no two roles stand on different sides of a mix."""
        tag_numbers = np.array([tag for _, _, tag in self.locals.things])
        # Which two tags agree is looked up; most configurations share a few tags.
        used = sorted(set(tag_numbers.tolist()))
        rank = np.zeros(max(used) + 1, np.int64)
        rank[used] = np.arange(len(used))
        held = [self.tags.things[number] for number in used]
        alike = np.array([[agree(one, other) for other in held] for one in held])
        ranks = rank[tag_numbers[locals_of_roles]]
        found = np.ones(len(ranks), bool)
        for one in range(len(self.roles)):
            for other in range(one):
                found &= alike[ranks[:, one], ranks[:, other]]
        return found

    def show_sides(self, row: NDArray[np.int16]) -> str:
        sides: dict[tuple[int, int], dict[bool, list[str]]] = {}
        for role, name in enumerate(self.roles):
            for mix, turn, right in sides_of(self.tag_of_local(row[role])):
                sides.setdefault((mix, turn), {}).setdefault(right, []).append(name)
        (mix, _), found = next((key, found) for key, found in sides.items() if len(found) == 2)
        name = self.machines[0].mixes.get(mix, str(mix))
        return f"{_listed(found[False])} on the left side of {name}, {_listed(found[True])} on the right, for good"

    # Runs

    def finding(self, trouble: Trouble, number: int, says: str, graph: _Graph) -> Finding:
        path = [number]
        while graph.parents[path[-1]] >= 0:
            path.append(int(graph.parents[path[-1]]))
        path.reverse()
        run = tuple(self.step_between(one, other, graph) for one, other in pairwise(path))
        return Finding(trouble=trouble, says=says, run=run, chart=draw_chart(self.roles, [_row(step) for step in run]))

    def step_between(self, one: int, other: int, graph: _Graph) -> Step:
        steps = slice(graph.starts[one], graph.starts[one + 1])
        at = int(np.flatnonzero(graph.targets[steps] == other)[0]) + steps.start
        what, pair = int(graph.whats[at]), int(graph.pairs[at])
        sender, receiver = (self.roles[role] for role in self.pairs[pair])
        queue = slice(len(self.roles) + pair * self.bound, len(self.roles) + (pair + 1) * self.bound)
        if what == SENDS:
            # Forgetting may have changed the tag of what was sent, never its label.
            sent = self.label_of([message for message in graph.rows[other, queue] if message][-1])
            local = int(graph.rows[one, self.pairs[pair][0]])
            message = next(each for way, each, _ in self.sends(local) if way == pair and self.label_of(each) == sent)
            return Step(sender, "sends", receiver, sent, self.tag_of_message(message))
        message = int(graph.rows[one, queue][0])
        tag = self.tag_of_message(message)
        mix = ""
        if what == SWITCHES:
            mine = self.tag_of_local(int(graph.rows[one, self.pairs[pair][1]]))
            mix = self.machines[self.pairs[pair][1]].mixes[relation(mine, tag).mix]
        does = {TAKES: "takes", DROPS: "drops", SWITCHES: "switches"}[what]
        return Step(receiver, does, sender, self.label_of(message), tag, mix)


class _Graph:
    """What a search found, cut to what it holds."""

    def __init__(self, found: Found) -> None:
        count, steps, expanded = (int(each) for each in found.counts)
        self.count, self.expanded = count, expanded
        self.rows, self.parents = found.rows[:count], found.parents[:count]
        self.starts = found.starts[: expanded + 1]
        self.targets, self.whats, self.pairs = found.targets[:steps], found.whats[:steps], found.pairs[:steps]


def _room(old: Found | None, width: int, rows: int) -> Found:
    """Return arrays for ``rows`` configurations, with what the old ones hold."""
    steps = 4 * rows
    if old is not None and old.counts[1] > len(old.targets) // 2:
        steps = max(steps, 2 * len(old.targets))
    found = Found(
        rows=np.zeros((rows, width), np.int16),
        parents=np.empty(rows, np.int32),
        starts=np.zeros(rows + 1, np.int64),
        targets=np.empty(steps, np.int32),
        whats=np.empty(steps, np.int8),
        pairs=np.empty(steps, np.int16),
        slots=np.full(2 * rows, -1, np.int32),
        counts=np.zeros(3, np.int64),
    )
    if old is not None:
        count, used, expanded = old.counts
        found.rows[:count] = old.rows[:count]
        found.parents[:count] = old.parents[:count]
        found.starts[: expanded + 1] = old.starts[: expanded + 1]
        for new, before in ((found.targets, old.targets), (found.whats, old.whats), (found.pairs, old.pairs)):
            new[:used] = before[:used]
        found.counts[:] = old.counts
        fill_slots(found.rows, count, found.slots)
    return found


class _GrowingTables:
    """The tables of the search: filled on demand, and made larger when numbers run past their ends."""

    def __init__(self, product: _Product) -> None:
        self.product = product
        self.known_locals = self.known_messages = self.known_tags = self.known_entries = 0
        pairs = np.array(product.pairs or np.empty((0, 2)), np.int16).reshape(-1, 2)
        most_sends = max(
            (sum(each.sends for each in state.transitions) for machine in product.machines for state in machine.states),
            default=0,
        )
        self.tables = Tables(
            what=np.zeros((64, 64), np.int8),
            after=np.zeros((64, 64), np.int16),
            send_count=np.full(64, -1, np.int16),
            send_pair=np.zeros((64, max(1, most_sends)), np.int16),
            send_message=np.zeros((64, max(1, most_sends)), np.int16),
            send_after=np.zeros((64, max(1, most_sends)), np.int16),
            local_tag=np.zeros(64, np.int32),
            message_tag=np.zeros(64, np.int32),
            entry_count=np.zeros(64, np.int32),
            entries=np.zeros((64, 8), np.int32),
            voids=np.zeros((64, 64), np.int8),
            passers=np.zeros(0, np.uint64),
            renamed_local=np.full((1, 64), -1, np.int16),
            renamed_message=np.full((1, 64), -1, np.int16),
            pair_from=np.ascontiguousarray(pairs[:, 0]),
            pair_to=np.ascontiguousarray(pairs[:, 1]),
        )

    def arrays(self) -> Tables:
        """Return tables that have a place for everything that has a number."""
        product = self.product
        if max(len(product.locals), len(product.messages)) > MOST_NUMBERS:
            raise OverflowError(f"{MOST_NUMBERS:,} local states or messages")
        tags = product.tags.things
        for tag in tags[self.known_tags :]:
            for mix, turn, _ in sides_of(tag):
                product.entries((mix, turn))
        longest = max((sum(1 for _ in sides_of(tag)) for tag in tags[self.known_tags :]), default=0)
        sizes = {
            "L": len(product.locals), "M": len(product.messages), "T": len(tags),
            "K": longest, "E": max(1, len(product.entries)),
        }  # fmt: skip
        grown = {}
        for name, (dimensions, empty) in _SHAPES.items():
            old = getattr(self.tables, name)
            wanted = [
                length if sizes.get(dimension, 0) <= length else max(2 * length, sizes[dimension])
                for length, dimension in zip(old.shape, dimensions, strict=True)
            ]
            if wanted != list(old.shape):
                new = np.full(wanted, empty, old.dtype)
                new[tuple(slice(length) for length in old.shape)] = old
                grown[name] = new
        self.tables = self.tables._replace(**grown)
        tables = self.tables
        for number in range(self.known_tags, len(tags)):
            for position, (mix, turn, right) in enumerate(sides_of(tags[number])):
                tables.entries[number, position] = 2 * product.entries((mix, turn)) + right
                tables.entry_count[number] = position + 1
        for number in range(self.known_locals, len(product.locals)):
            tables.local_tag[number] = product.locals.things[number][2]
        for number in range(max(1, self.known_messages), len(product.messages)):
            tables.message_tag[number] = product.messages.things[number][2]
        if len(product.entries) != self.known_entries:
            passers = [product.passers.get(mix, 0) for mix, _ in product.entries.things]
            self.tables = tables = tables._replace(passers=np.array(passers, np.uint64))
        self.known_tags, self.known_locals = len(tags), len(product.locals)
        self.known_messages, self.known_entries = len(product.messages), len(product.entries)
        return tables

    def fill(self, code: int, one: int, other: int) -> None:
        """Enter what the search said was missing."""
        product, tables = self.product, self.tables
        if code == NO_REACTION:
            tables.what[one, other], tables.after[one, other] = product.reaction(one, other)
        elif code == NO_SENDS:
            found = product.sends(one)
            for position, (pair, message, after) in enumerate(found):
                tables.send_pair[one, position] = pair
                tables.send_message[one, position] = message
                tables.send_after[one, position] = after
            tables.send_count[one] = len(found)
        elif code == NO_VERDICT:
            stale = product.drop_stale and voids(product.tags.things[one], product.tags.things[other])
            tables.voids[one, other] = 2 if stale else 1
        else:
            mix, turn = product.entries.things[one]
            if code == NO_LOCAL:
                role, state, _ = product.locals.things[other]
                tag = without(product.tag_of_local(other), mix, turn)
                tables.renamed_local[one, other] = product.local(role, state, tag)
            else:
                pair, label, _ = product.messages.things[other]
                tag = without(product.tag_of_message(other), mix, turn)
                tables.renamed_message[one, other] = product.message(pair, label, tag)


# What each dimension of a table counts (see Tables), and what stands where nothing is known.
_SHAPES = {
    "what": ("LM", 0), "after": ("LM", 0), "send_count": ("L", -1), "send_pair": ("LS", 0), "send_message": ("LS", 0),
    "send_after": ("LS", 0), "local_tag": ("L", 0), "message_tag": ("M", 0), "entry_count": ("T", 0),
    "entries": ("TK", 0), "voids": ("TT", 0), "renamed_local": ("EL", -1), "renamed_message": ("EM", -1),
}  # fmt: skip


def _first_false(good: NDArray[np.bool_]) -> int:
    return -1 if good.all() else int(np.argmin(good))


def _row(step: Step) -> ChartRow:
    if step.does == "sends":
        return ChartRow(step.role, step.partner, step.label)
    if step.does == "switches":
        return ChartRow(step.role, "", f"switches to the right of {step.mix}")
    return ChartRow(step.role, "", f"{step.does} {step.label}")


def _listed(words: Sequence[str]) -> str:
    return " and ".join(words) if len(words) < 3 else f"{', '.join(words[:-1])} and {words[-1]}"
