"""Compiles unambiguous star-free languages to population protocols that observe and compare ranks (IO-PP[<]).

The language becomes a tree of questions "which is the first (last) of these letters between here and there?".  Every
agent whose letter fits claims to be the position asked for and gives way to a better claimant; the holder of a
position asks the next questions; every other agent remembers on which side of the holders it stands.  What makes this
come out right is what an agent may forget: one that takes over from another, or sees that a claim rested on an error,
starts its own next question afresh, so that a holder's news are always younger than the last error below it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from wavetank.errors import BadValueError
from wavetank.protocols.populations.decision_tree import END, START, DecisionTree, Found
from wavetank.protocols.populations.interface import FAR_BEFORE, JUST_BEFORE, PopulationProtocol
from wavetank.protocols.populations.rankers import Formula
from wavetank.protocols.populations.syntactic_monoid import Automaton, SyntacticMonoid
from wavetank.settings import setting

if TYPE_CHECKING:
    from wavetank.protocols.populations.languages import Language

_LEFT, _RIGHT, _ANYWHERE = -1, 1, 0


class _Bystander(NamedTuple):
    """Holds no position: knows the holders up to ``node`` and on which side of each it stands."""

    letter: str
    node: int
    sides: tuple[int, ...]
    answer: int


class _Holder(NamedTuple):
    """Claims the position ``node``; ``answer`` is -1 while no next position is known (the holder is fresh)."""

    node: int
    answer: int


class _Repairer(NamedTuple):
    """Held a position by error and waits until a holder of at most ``level`` is fresh."""

    letter: str
    level: int
    answer: int


_State = _Bystander | _Holder | _Repairer


@dataclass(frozen=True, kw_only=True)
class RankerCompiler:
    """Compiles rankers, their Boolean combinations and automata whose language is unambiguous star-free."""

    most_positions: int = setting(
        400, unit="positions", says="Most positions in the tree of questions", low=1, high=5000
    )

    def compile(self, language: Formula | Automaton, letters: Sequence[str], name: str = "") -> PopulationProtocol:
        """Return a protocol that decides the language on words of at least one letter.

        Parameters
        ----------
        language : Ranker, Combination or Automaton
        letters : sequence of str
        name : str
            Of the protocol; by default the formula's text.

        Raises
        ------
        BadValueError
            If the language is not unambiguous star-free or its tree of questions is too large.
        """
        automaton = language if isinstance(language, Automaton) else language.automaton(letters)
        name = name or ("language" if isinstance(language, Automaton) else str(language))
        return self.unmerged(automaton, name).lumped()

    def protocol(self, language: Language) -> PopulationProtocol | None:
        """Return the compiled protocol of a language, None outside the class.

        Raises
        ------
        BadValueError
            If the language is in the class but its tree of questions is too large.
        """
        if language.automaton is None or language.monoid is None or not language.monoid.is_in_DA:
            return None
        return self.compile(language.automaton, language.letters, language.name)

    def unmerged(self, automaton: Automaton, name: str) -> PopulationProtocol:
        """Return the protocol before indistinguishable states are merged, with readable states."""
        tree = self.tree(automaton)
        rules = _Rules(tree)
        return PopulationProtocol.from_function(
            name,
            initial={letter: rules.start(letter) for letter in tree.letters},
            output=rules.output,
            meet=rules.meet,
            ordered=True,
            neighbours=False,
            label=rules.label,
        )

    def tree(self, automaton: Automaton) -> DecisionTree:
        """Return the smaller of the trees that ask from the left first and from the right first."""
        monoid = SyntacticMonoid.of(automaton)
        trees, problem = [], None
        for left_first in (True, False):
            try:
                trees.append(DecisionTree(monoid, left_first=left_first, most=self.most_positions))
            except BadValueError as error:
                problem = error
        if not trees and problem is not None:
            raise problem
        return min(trees, key=lambda tree: len(tree.found))


class _Rules:
    """What an agent makes of what it sees."""

    def __init__(self, tree: DecisionTree) -> None:
        self.tree = tree
        self.nodes = tree.found
        # Path of positions that ends in each node, the root left out.
        self.path: list[tuple[int, ...]] = []
        for node in self.nodes:
            self.path.append(() if node.parent < 0 else (*self.path[node.parent], node.number))
        # Positions that bound a question asked later; of the others nobody needs to know the side.
        self.bounds = [False] * len(self.nodes)
        for node in self.nodes:
            for question in node.questions:
                for bound in (question.low, question.high):
                    if bound not in (START, END):
                        self.bounds[self.path[node.number][bound]] = True

    def start(self, letter: str) -> _State:
        claimed = self._claim(letter, self.nodes[0], ())
        return _Holder(claimed, -1) if claimed else _Bystander(letter, 0, (), int(self.nodes[0].verdict))

    def output(self, state: _State) -> int:
        if isinstance(state, _Holder) and state.answer < 0:
            return int(self.nodes[state.node].verdict)
        return state.answer

    def label(self, state: _State) -> str:
        if isinstance(state, _Repairer):
            return f"{state.letter} repairs level {state.level + 1}, says {state.answer}"
        path = "".join(f"/{self.nodes[each].letter}{each}" for each in self.path[state.node]) or "/"
        if isinstance(state, _Holder):
            return f"holds {path}, " + ("fresh" if state.answer < 0 else f"says {state.answer}")
        sides = "".join("<*>"[side + 1] for side in state.sides)
        return f"{state.letter} knows {path} {sides}, says {state.answer}"

    def meet(self, observer: _State, seen: _State, relation: int) -> tuple[_State, _State, str] | None:
        """Change the observer alone."""
        side = _LEFT if relation in (FAR_BEFORE, JUST_BEFORE) else _RIGHT
        if isinstance(observer, _Holder):
            new = self._as_holder(observer, seen, side)
        elif not isinstance(seen, _Holder):
            return None
        elif isinstance(observer, _Repairer):
            new = self._as_repairer(observer, seen)
        else:
            new = self._as_bystander(observer, seen, side)
        return None if new is None else (new[0], seen, new[1])

    def _as_repairer(self, observer: _Repairer, seen: _Holder) -> tuple[_State, str] | None:
        if seen.answer >= 0:
            return None
        answer = int(self.nodes[seen.node].verdict)
        if self.nodes[seen.node].level <= observer.level:
            return _Bystander(observer.letter, 0, (), answer), "repaired"
        return observer._replace(answer=answer), "answer"

    def _as_bystander(self, observer: _Bystander, seen: _Holder, side: int) -> tuple[_State, str]:
        node, fresh = self.nodes[seen.node], seen.answer < 0
        if fresh:
            observer = observer._replace(answer=int(node.verdict))
        path = self.path[observer.node]
        if path[: node.level] != self.path[node.parent] or self._implied(observer.sides, node) == -side:
            return observer, "answer"
        kept = side if self.bounds[node.number] else _ANYWHERE
        below = observer.sides[: node.level]
        if len(path) > node.level and path[node.level] == node.number and observer.sides[node.level] == kept:
            if not fresh:
                return observer, "answer"
            # Whatever comes after a fresh holder is being asked anew.
            claimed = self._claim(observer.letter, node, (*below, kept))
            if claimed:
                return _Holder(claimed, -1), "claim"
            return observer._replace(node=node.number, sides=(*below, kept)), "forget"
        claimed = self._claim(observer.letter, self.nodes[node.parent], below)
        if node.level and claimed and self._better(self.nodes[claimed], node, side):
            known = path[node.level] if len(path) > node.level else 0
            # One that gave way to a better one does not come back for a worse one.
            if not known:
                return _Holder(claimed, -1), "claim"
            return observer, "answer"
        return observer._replace(node=node.number, sides=(*below, kept)), "learn"

    def _as_holder(self, observer: _Holder, seen: _State, side: int) -> tuple[_State, str] | None:
        own = self.nodes[observer.node]
        busy = observer.answer >= 0
        if isinstance(seen, _Repairer):
            return (_Holder(own.number, -1), "refresh") if busy and seen.level == own.level else None
        if isinstance(seen, _Bystander):
            return None
        node, fresh = self.nodes[seen.node], seen.answer < 0
        verdict = int(node.verdict)
        after_answer = observer._replace(answer=verdict) if busy and fresh else observer
        if node.level > own.level + 1:
            return after_answer, "answer"
        if node.level == own.level + 1:
            if node.parent == own.number and fresh and self._side(own, node) == side:
                return _Holder(own.number, verdict), "advance"
            return after_answer, "answer"
        path = self.path[own.number]
        if path[: node.level] != self.path[node.parent]:
            return after_answer, "answer"
        if node.level == own.level:
            if not self._better(node, own, -side):
                return (_Holder(own.number, -1), "refresh") if busy else None
            if not fresh:
                return None
            sides = tuple(
                self._side_at(own, level) if self.bounds[each] else _ANYWHERE for level, each in enumerate(path[:-1])
            )
            kept = side if self.bounds[node.number] else _ANYWHERE
            return _Bystander(own.letter, node.number, (*sides, kept), verdict), "retreat"
        # A position that this one's claim rests on.
        if path[node.level] == node.number and self._side_at(own, node.level) == side:
            if not fresh:
                return None
            if node.level == own.level - 1:
                return (_Holder(own.number, -1), "refresh") if busy else None
        else:
            sides = tuple(self._side_at(own, level) for level in range(node.level))
            if self._implied(sides, node) == -side:
                return after_answer, "answer"
        return _Repairer(own.letter, own.level - 1, verdict if fresh else self.output(observer)), "resign"

    def _claim(self, letter: str, node: Found, sides: tuple[int, ...]) -> int:
        """Return the position after ``node`` that an agent on these sides may hold, 0 for none."""
        for rank, question in enumerate(node.questions):
            if letter not in question.letters:
                continue
            right_of_low = question.low == START or sides[question.low] == _RIGHT
            left_of_high = question.high == END or sides[question.high] == _LEFT
            if right_of_low and left_of_high:
                return node.children[rank, letter]
        return 0

    def _better(self, one: Found, other: Found, side: int) -> bool:
        """Return whether ``one``, standing on that side of ``other``, answers their parent's questions before it."""
        if one.rank != other.rank:
            return one.rank < other.rank
        return side == (_LEFT if self.nodes[one.parent].questions[one.rank].way == "X" else _RIGHT)

    def _side(self, own: Found, later: Found) -> int:
        """Return on which side of ``later``, a child of ``own``, its parent stands."""
        return _LEFT if later.order.index(own.level) < later.order.index(later.level) else _RIGHT

    def _side_at(self, own: Found, level: int) -> int:
        """Return on which side of the position at ``level`` on its path ``own`` stands."""
        return _LEFT if own.order.index(own.level) < own.order.index(level) else _RIGHT

    def _implied(self, sides: Sequence[int], node: Found) -> int:
        """Return the side of ``node`` on which an agent must stand that stands on these sides of the ones before."""
        place = node.order.index(node.level)
        if any(level < len(sides) and sides[level] == _LEFT for level in node.order[:place]):
            return _LEFT
        if any(level < len(sides) and sides[level] == _RIGHT for level in node.order[place + 1 :]):
            return _RIGHT
        return _ANYWHERE
