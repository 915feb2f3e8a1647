"""Population protocols as data: states, a transition table, where letters start and what states answer.

Two agents meet, the first is the initiator, the second the responder; a rule may ask how their ranks stand to each
other ("before", "next to each other"), which makes the agents ordered.  A protocol is a set of dense integer arrays,
so that every simulator and the exact checker read the same thing.

Sources: D. Angluin, J. Aspnes, Z. Diamadi, M. Fischer, R. Peralta, "Computation in networks of passively mobile
finite-state sensors", Distributed Computing 18(4), 2006; for ranks M. Blondin et al., "Population Protocols over
Ordered Agents", arXiv 2605.09937, 2026.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError, nearest_of

# How the initiator's rank i stands to the responder's rank j: i < j - 1, i = j - 1, i = j + 1, i > j + 1.
FAR_BEFORE, JUST_BEFORE, JUST_AFTER, FAR_AFTER = range(4)

GUARDS: Mapping[str, tuple[int, ...]] = {
    "": (FAR_BEFORE, JUST_BEFORE, JUST_AFTER, FAR_AFTER),
    "<": (FAR_BEFORE, JUST_BEFORE),
    ">": (JUST_AFTER, FAR_AFTER),
    "+1": (JUST_BEFORE,),
    "-1": (JUST_AFTER,),
}
"""Guard of a rule to the relations under which it fires; ``"<"``: the initiator stands before the responder."""

MAX_STATES = 1 << 13
"""Tables are dense: four relations of 8192 x 8192 pairs are a gigabyte."""


def relation_of(initiator_rank: int, responder_rank: int) -> int:
    """Return how two different ranks stand to each other: an index of :data:`GUARDS`' tuples."""
    apart = responder_rank - initiator_rank
    if apart > 0:
        return JUST_BEFORE if apart == 1 else FAR_BEFORE
    return JUST_AFTER if apart == -1 else FAR_AFTER


@dataclass(frozen=True)
class Rule:
    """One transition: ``(initiator, responder) -> (new_initiator, new_responder)`` when ``guard`` holds.

    Parameters
    ----------
    initiator, responder, new_initiator, new_responder : str
        States.
    guard : str
        A key of :data:`GUARDS`; empty for any two ranks.
    family : str
        What the rule is there for; :meth:`PopulationProtocol.without` leaves a family out.
    """

    initiator: str
    responder: str
    new_initiator: str
    new_responder: str
    guard: str = ""
    family: str = ""


@dataclass(frozen=True, eq=False)
class PopulationProtocol:
    """A deterministic population protocol.

    Build one with :meth:`from_rules` or :meth:`from_function`.

    Attributes
    ----------
    name : str
    states : tuple of str
        Labels; a state is its index.
    letters : tuple of str
        The input alphabet.
    initial : int32 array (letters,)
        State in which an agent with that letter starts.
    outputs : int8 array (states,)
        0 or 1.
    new_initiator, new_responder : int16 array (relations, states, states)
        What a meeting makes of initiator (axis 1) and responder (axis 2).  ``relations`` is 1 for a protocol that does
        not look at ranks, else 4 (:data:`FAR_BEFORE` ...).
    families : tuple of str
        What rules are there for.
    family : uint8 array (relations, states, states)
        Index into ``families``; 0 where nothing happens.
    """

    name: str
    states: tuple[str, ...]
    letters: tuple[str, ...]
    initial: NDArray[np.int32]
    outputs: NDArray[np.int8]
    new_initiator: NDArray[np.int16]
    new_responder: NDArray[np.int16]
    families: tuple[str, ...]
    family: NDArray[np.uint8]

    @classmethod
    def from_rules(
        cls,
        name: str,
        *,
        rules: Iterable[Rule],
        initial: Mapping[str, str],
        outputs: Mapping[str, int],
    ) -> PopulationProtocol:
        """Build a protocol from a list of rules; a pair without a rule stays as it is.

        Parameters
        ----------
        name : str
        rules : iterable of Rule
        initial : mapping
            Letter to state.
        outputs : mapping
            State to 0 or 1; its keys are the states.

        Raises
        ------
        BadValueError
            For an unknown state or guard, an output other than 0 and 1, or two rules for one meeting.
        """
        states = tuple(outputs)
        index = {state: number for number, state in enumerate(states)}
        listed = list(rules)
        families = ("", *dict.fromkeys(rule.family or "rule" for rule in listed))
        ordered = any(rule.guard for rule in listed)
        first, second, family = _empty_tables(name, 4 if ordered else 1, len(states))
        for number, rule in enumerate(listed, 1):
            where = f"protocol {name}, rule {number}"
            p, q, p_next, q_next = (
                _index_of(state, index, where)
                for state in (rule.initiator, rule.responder, rule.new_initiator, rule.new_responder)
            )
            if rule.guard not in GUARDS:
                raise BadValueError(
                    "There is no such guard.",
                    given=rule.guard,
                    allowed=[repr(guard) for guard in GUARDS],
                    nearest=nearest_of(rule.guard, [guard for guard in GUARDS if guard]),
                    where=where,
                )
            for relation in GUARDS[rule.guard] if ordered else (0,):
                if family[relation, p, q]:
                    raise BadValueError(
                        "Two rules apply to the same meeting.",
                        given=f"({rule.initiator}, {rule.responder}) under guard {rule.guard!r}",
                        where=where,
                        hint="Rules are deterministic: leave the choice to who meets whom.",
                    )
                first[relation, p, q], second[relation, p, q] = p_next, q_next
                family[relation, p, q] = families.index(rule.family or "rule")
        # A rule that changes nothing is no rule.
        family[(first == np.arange(len(states))[:, None]) & (second == np.arange(len(states)))] = 0
        starts = [_index_of(state, index, f"protocol {name}, initial") for state in initial.values()]
        return cls(
            name, states, tuple(initial), np.array(starts, np.int32), _checked_outputs(name, outputs), first, second,
            families, family,
        )  # fmt: skip

    @classmethod
    def from_function(
        cls,
        name: str,
        *,
        initial: Mapping[str, Hashable],
        output: Callable[[Any], int],
        meet: Callable[[Any, Any, int], tuple[Any, Any, str] | None],
        ordered: bool,
        neighbours: bool = True,
        label: Callable[[Any], str] = str,
    ) -> PopulationProtocol:
        """Build a protocol from structured states: the states are those that meetings can produce.

        Parameters
        ----------
        name : str
        initial : mapping
            Letter to structured state.
        output : callable
            State to 0 or 1.
        meet : callable
            ``meet(initiator, responder, relation)`` returns both new states and the rule's family, or None.
        ordered : bool
            Whether ``meet`` looks at the relation.
        neighbours : bool
            Whether ranks next to each other differ from others to it; where not, it is asked half as often.
        label : callable
            Structured state to its name.

        Raises
        ------
        BadValueError
            If more than :data:`MAX_STATES` states can be produced.
        """
        index: dict[Hashable, int] = {}
        found: list[Any] = []
        families = [""]
        # Relation, both states, both new states and family of one meeting after the other: millions of them.
        entries = array("h")

        def number_of(state: Hashable) -> int:
            if state not in index:
                if len(found) == MAX_STATES:
                    raise BadValueError(
                        "The protocol has too many states.",
                        given=f"more than {MAX_STATES}",
                        where=f"protocol {name}",
                    )
                index[state] = len(found)
                found.append(state)
            return index[state]

        starts = [number_of(state) for state in initial.values()]
        asked = ((FAR_BEFORE, FAR_AFTER) if not neighbours else range(4)) if ordered else (0,)
        done = 0
        while done < len(found):
            # Every pair is looked at once: when its later state turns up.
            for other in range(done + 1):
                for p, q in {(done, other), (other, done)}:
                    for relation in asked:
                        new = meet(found[p], found[q], relation)
                        if new is None or (new[0] == found[p] and new[1] == found[q]):
                            continue
                        if new[2] not in families:
                            families.append(new[2])
                        entries.extend((relation, p, q, number_of(new[0]), number_of(new[1]), families.index(new[2])))
            done += 1
        first, second, family = _empty_tables(name, 4 if ordered else 1, len(found))
        if entries:
            rows = np.frombuffer(entries, np.int16).reshape(-1, 6).T
            meetings = rows[0], rows[1], rows[2]
            first[meetings], second[meetings], family[meetings] = rows[3], rows[4], rows[5]
            if ordered and not neighbours:
                for table in (first, second, family):
                    table[JUST_BEFORE], table[JUST_AFTER] = table[FAR_BEFORE], table[FAR_AFTER]
        labels = tuple(label(state) for state in found)
        outputs = _checked_outputs(name, {labels[number]: output(state) for number, state in enumerate(found)})
        return cls(
            name, labels, tuple(initial), np.array(starts, np.int32), outputs, first, second, tuple(families), family
        )

    def __len__(self) -> int:
        """Return the number of states."""
        return len(self.states)

    @property
    def ordered(self) -> bool:
        """Return whether some rule looks at ranks."""
        return bool(
            self.new_initiator.shape[0] > 1
            and ((self.new_initiator != self.new_initiator[:1]) | (self.new_responder != self.new_responder[:1])).any()
        )

    @property
    def predicates(self) -> tuple[str, ...]:
        """Return the rank predicates N for which this is a protocol of PP[N]: some of ``"<"`` and ``"+1"``."""
        if not self.ordered:
            return ()
        needed = []
        for table in (self.new_initiator, self.new_responder):
            far = not np.array_equal(table[FAR_BEFORE], table[FAR_AFTER])
            before = not np.array_equal(table[FAR_BEFORE], table[JUST_BEFORE])
            after = not np.array_equal(table[FAR_AFTER], table[JUST_AFTER])
            needed += ["<"] * far + ["+1"] * (before or after)
        return tuple(predicate for predicate in ("<", "+1") if predicate in needed)

    @property
    def enabled(self) -> NDArray[np.bool_]:
        """Return whether a meeting changes something, bool array (relations, states, states)."""
        return self.family > 0

    def with_relations(self) -> PopulationProtocol:
        """Return the same protocol with tables for all four relations."""
        if self.new_initiator.shape[0] == 4:
            return self
        return replace(
            self,
            new_initiator=np.repeat(self.new_initiator, 4, axis=0),
            new_responder=np.repeat(self.new_responder, 4, axis=0),
            family=np.repeat(self.family, 4, axis=0),
        )

    def start(self, word: Sequence[str]) -> NDArray[np.int32]:
        """Return the agents' states for a word, int32 array (agents,), in order of rank.

        Raises
        ------
        BadValueError
            For the empty word or a letter that the protocol does not know.
        """
        if not len(word):
            raise BadValueError("A population needs at least one agent.", given="the empty word", where=self.name)
        index = {letter: number for number, letter in enumerate(self.letters)}
        for position, letter in enumerate(word, 1):
            if letter not in index:
                raise BadValueError(
                    "The protocol does not know this letter.",
                    given=letter,
                    allowed=self.letters,
                    where=f"protocol {self.name}, letter {position} of the word",
                )
        return self.initial[np.array([index[letter] for letter in word], np.intp)]

    def counts(self, word: Mapping[str, int] | Sequence[str]) -> NDArray[np.int64]:
        """Return how many agents start in each state, int64 array (states,)."""
        if not isinstance(word, Mapping):
            return np.bincount(self.start(word), minlength=len(self)).astype(np.int64)
        counts = np.zeros(len(self), np.int64)
        for letter, count in word.items():
            (state,) = self.start([letter])
            if count < 0:
                raise BadValueError("A count is negative.", given=count, where=f"protocol {self.name}, {letter}")
            counts[state] += count
        if not counts.sum():
            raise BadValueError("A population needs at least one agent.", given=dict(word), where=self.name)
        return counts

    def rules(self) -> Iterator[Rule]:
        """Yield the rules, one for each relation under which it fires when it does not fire under all."""
        guards = ("far <", "+1", "-1", "far >") if self.new_initiator.shape[0] > 1 else ("",)
        for relation, p, q in np.argwhere(self.enabled):
            yield Rule(
                self.states[p],
                self.states[q],
                self.states[self.new_initiator[relation, p, q]],
                self.states[self.new_responder[relation, p, q]],
                guards[relation],
                self.families[self.family[relation, p, q]],
            )

    def without(self, family: str) -> PopulationProtocol:
        """Return the protocol without the rules of one family.

        Raises
        ------
        BadValueError
            If there is no such family.
        """
        if family not in self.families[1:]:
            raise BadValueError(
                "The protocol has no such family of rules.",
                given=family,
                allowed=self.families[1:],
                nearest=nearest_of(family, self.families[1:]),
                where=f"protocol {self.name}",
            )
        drop = self.family == self.families.index(family)
        numbers = np.arange(len(self), dtype=np.int16)
        return replace(
            self,
            name=f"{self.name} without {family}",
            new_initiator=np.where(drop, numbers[:, None], self.new_initiator),
            new_responder=np.where(drop, numbers, self.new_responder),
            family=np.where(drop, 0, self.family).astype(np.uint8),
        )

    def lumped(self) -> PopulationProtocol:
        """Return the protocol with indistinguishable states merged.

        Two states are merged when they answer alike and whatever they meet, in either role, leads to states that are
        merged again: the coarsest such partition, by refinement.  Runs of both protocols correspond one to one.
        """
        size = len(self)
        classes = np.unique(self.outputs, return_inverse=True)[1].reshape(-1).astype(np.int16)
        while True:
            before = classes.max()
            # What a state and its partner become, in both roles: one table at a time, which takes the least memory.
            for table in (*self.new_initiator, *self.new_responder):
                for role in (table, table.T):
                    signature = np.concatenate([classes[:, None], classes[role]], axis=1)
                    classes = np.unique(signature, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int16)
            if classes.max() == before:
                break
        # Classes in the order of their first state.
        leaders = np.unique(classes, return_index=True)[1]
        order = np.argsort(leaders)
        rank = np.empty(len(order), np.int16)
        rank[order] = np.arange(len(order))
        classes, leaders = rank[classes], leaders[order]
        if len(leaders) == size:
            return self
        pick = np.ix_(np.arange(self.new_initiator.shape[0]), leaders, leaders)
        first = classes[self.new_initiator[pick]]
        second = classes[self.new_responder[pick]]
        numbers = np.arange(len(leaders))
        still = (first == numbers[:, None]) & (second == numbers)
        return replace(
            self,
            states=tuple(self.states[leader] for leader in leaders),
            initial=classes[self.initial].astype(np.int32),
            outputs=self.outputs[leaders],
            new_initiator=first,
            new_responder=second,
            family=np.where(still, 0, self.family[pick]).astype(np.uint8),
        )


@dataclass(frozen=True)
class PopulationRun:
    """What a simulated run came to.

    Attributes
    ----------
    interactions : int
        Meetings simulated, those that changed nothing included.
    last_change : int
        Number of the last meeting that changed a state; 0 when none did.
    last_disagreement : int
        Number of the meeting after which all agents gave the final consensus without a break; -1 when the run did not
        follow outputs meeting by meeting, or ended without consensus.
    silent : bool
        Whether no further meeting can change anything.
    counts : int64 array (states,)
        Agents in each state at the end.
    output : int
        The agents' consensus, 0 or 1; -1 when they disagree.
    """

    interactions: int
    last_change: int
    last_disagreement: int
    silent: bool
    counts: NDArray[np.int64]
    output: int


def consensus(outputs: NDArray[np.int8], counts: NDArray[np.int64]) -> int:
    """Return the output on which all agents agree, -1 when they do not."""
    ones = int(counts[outputs == 1].sum())
    return 1 if ones == counts.sum() else 0 if ones == 0 else -1


def _index_of(state: str, index: Mapping[str, int], where: str) -> int:
    if state not in index:
        raise BadValueError(
            "There is no such state.", given=state, allowed=list(index), nearest=nearest_of(state, index), where=where
        )
    return index[state]


def _checked_outputs(name: str, outputs: Mapping[str, int]) -> NDArray[np.int8]:
    for state, output in outputs.items():
        if output not in (0, 1):
            raise BadValueError(
                "An output is 0 or 1.", given=output, allowed="0, 1", where=f"protocol {name}, state {state}"
            )
    return np.array(list(outputs.values()), np.int8)


def _empty_tables(
    name: str, relations: int, size: int
) -> tuple[NDArray[np.int16], NDArray[np.int16], NDArray[np.uint8]]:
    if not 0 < size <= MAX_STATES:
        raise BadValueError(
            "The number of states is out of range.", given=size, allowed=f"1 to {MAX_STATES}", where=f"protocol {name}"
        )
    numbers = np.arange(size, dtype=np.int16)
    shape = (relations, size, size)
    return (
        np.ascontiguousarray(np.broadcast_to(numbers[:, None], shape)),
        np.ascontiguousarray(np.broadcast_to(numbers, shape)),
        np.zeros(shape, np.uint8),
    )
