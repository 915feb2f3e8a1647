"""Decides whether abstract error paths are real: one formula a path of contexts, grown and cut back step by step.

The backward checkers leave a graph of contexts from which the violation looks reachable.  A path through it is real
when parameters and firings exist that stay in each of its contexts for a while (a steady segment) and cross to the next
by one firing.  Paths are extended one context at a time, so that a prefix that is already impossible rules out all its
extensions, and the solver keeps what it learnt about the prefix.

Source: the spuriousness check of TACO's ACS and ZCS checkers (arXiv 2605.06118).

Differs from the source:

1. Depth first where contexts cannot return (no resets), breadth first by length elsewhere.
2. Each step adds what the backward search knows about the locations needed in that context.
3. A run that was found is made small: the least sum of parameters along the same moves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from wavetank.check.deadline import Deadline
from wavetank.protocols.threshold.counterexample import AbstractRun
from wavetank.protocols.threshold.intervals import IntervalAbstraction
from wavetank.protocols.threshold.parameters import Question
from wavetank.protocols.threshold.preprocess import CounterSystem
from wavetank.protocols.threshold.smt import SegmentEncoding, ordered_run, smallest_run

_MOST_ALTERNATIVES = 64
# Time to make a run small that was found.
_SHRINK_S = 0.5


def find_run(
    system: CounterSystem,
    abstraction: IntervalAbstraction,
    live: Mapping[int, int],
    needs: Callable[[int], Sequence[Mapping[int, int]]],
    deadline: Deadline,
) -> AbstractRun | None:
    """Return a real run through live contexts that meets the system's stages, or None when every path is spurious.

    Parameters
    ----------
    system : CounterSystem
    abstraction : IntervalAbstraction
    live : mapping of int to int
        Contexts from which the violation looks reachable, each with the locations that can be occupied there.
    needs : callable
        Of a context, what processes must at least be where for the violation to be reachable: one of several maps of
        location to number; an empty sequence when nothing is known.
    deadline : Deadline

    Raises
    ------
    OutOfTimeError
        Always in the end when contexts return (resets) and no run is found: longer paths remain.
    """
    run = _Search(system, abstraction, live, needs, deadline).run()
    return None if run is None else smallest_run(system, run, deadline.at_most(_SHRINK_S))


class _Search:
    def __init__(
        self,
        system: CounterSystem,
        abstraction: IntervalAbstraction,
        live: Mapping[int, int],
        needs: Callable[[int], Sequence[Mapping[int, int]]],
        deadline: Deadline,
    ) -> None:
        self.system = system
        self.abstraction = abstraction
        self.live = live
        self.needs = needs
        self.deadline = deadline
        # Where a threshold does not grow, being met at both ends of a segment says nothing about its middle.
        mixed = {counter for threshold in system.thresholds if not threshold.grows for counter, _ in threshold.term}
        self.steady_moves = [
            move
            for move, rule in enumerate(system.moves)
            if rule.only_increments and mixed.isdisjoint(counter for counter, _ in rule.shifts)
        ]
        self.single_moves = set(range(len(system.moves))) - set(self.steady_moves)
        # Whether the last bounded search left longer paths untried.
        self.cut = False
        self.successors: dict[int, dict[int, list[int]]] = {}

    def run(self) -> AbstractRun | None:
        starts = [context for context in self.abstraction.initial if context in self.live]
        if self.system.only_increments and self.system.all_guards_grow:
            for start in starts:
                found = self._extend([start], None)
                if found is not None:
                    return found
            return None
        length = 1
        while True:
            longer = False
            for start in starts:
                found, more = self._bounded(start, length)
                longer |= more
                if found is not None:
                    return found
            if not longer:
                return None
            length += 1

    def _bounded(self, start: int, length: int) -> tuple[AbstractRun | None, bool]:
        """Try paths of exactly this many contexts; return also whether longer ones remain."""
        self.cut = False
        found = self._extend([start], length)
        return found, self.cut

    def _next(self, context: int) -> dict[int, list[int]]:
        """Return the live contexts one firing away, each with the moves that lead there."""
        if context not in self.successors:
            found: dict[int, list[int]] = {}
            occupied = self.live[context]
            for move, rule in enumerate(self.system.moves):
                if not occupied >> rule.source & 1 or not self.abstraction.allows(context, move):
                    continue
                for new in self.abstraction.after(context, move):
                    if new in self.live and (new != context or move in self.single_moves):
                        found.setdefault(new, []).append(move)
            self.successors[context] = found
        return self.successors[context]

    def _extend(self, path: list[int], length: int | None) -> AbstractRun | None:
        """Try a path of contexts and, where it is possible, its extensions.

        An explicit stack: contexts follow one another up to the number of thresholds, or without bound.
        """
        question = Question(self.deadline)
        root = SegmentEncoding(self.system)
        frames: list[tuple[SegmentEncoding, Iterator[tuple[int, list[int]]]]] = []

        def enter(encoding: SegmentEncoding, context: int, depth: int) -> AbstractRun | None:
            self.deadline.check()
            moves = [
                move
                for move in self.steady_moves
                if self.live[context] >> self.system.moves[move].source & 1 and self.abstraction.allows(context, move)
            ]
            literals = self.abstraction.literals(context)
            for _ in self.system.stages:
                encoding.add_steady(moves, literals)
            alternatives = self.needs(context)
            if 0 < len(alternatives) <= _MOST_ALTERNATIVES and len(self.system.stages) <= 1:
                encoding.require_one_of(alternatives)
            question.push()
            question.add(encoding.take())
            following: Iterator[tuple[int, list[int]]] = iter(())
            if ordered_run(encoding, question) is not None:
                if length is None or depth == length:
                    found = self._meets_stages(question, encoding)
                    if found is not None:
                        return found
                if length is None or depth < length:
                    following = iter(self._next(context).items())
                elif self._next(context):
                    self.cut = True
            frames.append((encoding, following))
            return None

        found = enter(root, path[0], 1)
        if found is not None:
            return found
        while frames:
            encoding, following = frames[-1]
            step = next(following, None)
            if step is None:
                frames.pop()
                question.pop()
                continue
            context, moves = step
            longer = encoding.copy()
            longer.add_crossing(moves)
            found = enter(longer, context, len(frames) + 1)
            if found is not None:
                return found
        return None

    def _meets_stages(self, question: Question, encoding: SegmentEncoding) -> AbstractRun | None:
        question.push()
        last = encoding.copy()
        last.require_stages()
        question.add(last.take())
        run = ordered_run(encoding, question)
        question.pop()
        return run
