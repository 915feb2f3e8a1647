"""Decides a counter system with one formula of linear arithmetic for all parameters at once (SMT, reachability).

Guards of increments-only automata change their truth once, so a run is a short sequence of *segments* in which rules
fire any number of times in any order: what matters is how often.  A segment's lower guards hold at its start, its
upper guards at its end; between two segments one rule that forbids itself may fire once.  Flow equations say how many
processes are where, counter equations what was sent.  The solver either finds parameters and firings, which are
replayed, or proves that there are none.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from wavetank.check.deadline import Deadline, OutOfTimeError
from wavetank.protocols.threshold.answers import SETTLED, Answer
from wavetank.protocols.threshold.counterexample import AbstractRun, unreachable_sources
from wavetank.protocols.threshold.expressions import Linear, comparisons
from wavetank.protocols.threshold.parameters import Question, SmtText, number
from wavetank.protocols.threshold.preprocess import CounterSystem
from wavetank.settings import setting

# Above this many characters, the whole formula is not asked again for a smaller counterexample: it takes too long.
_LARGEST_SHRUNK = 300_000
_BRANCHES = itertools.count(1)


@dataclass(frozen=True, kw_only=True)
class SmtReachability:
    """Bounded sequences of segments, decided by z3."""

    shrink_s: float = setting(0.5, unit="s", says="Time to look for smaller counterexamples", low=0, high=3600)
    most_segments: int = setting(
        40, says="Most segments that are searched in automata with resets or decrements", low=1, high=1000
    )

    def decide(self, system: CounterSystem, deadline: Deadline) -> Answer:
        """Return whether the system's stages can be met."""
        if system.impossible:
            return Answer("holds", SETTLED, by="smt")
        needed = segments_needed(system)
        try:
            run, segments = self._search(system, _growing(needed or self.most_segments), deadline)
        except OutOfTimeError as reason:
            return Answer("undecided", str(reason), by="smt")
        if run is not None:
            return Answer("violated", f"a run of at most {segments} segments was found", run, by="smt")
        if needed is not None:
            return Answer("holds", f"no run of {needed} segments for any parameters", by="smt")
        return Answer(
            "undecided",
            f"no violation within {self.most_segments} segments; resets and decrements allow more",
            by="smt",
        )

    def _search(
        self, system: CounterSystem, sizes: Iterable[int], deadline: Deadline
    ) -> tuple[AbstractRun | None, int]:
        """Return a run that meets the stages, and the number of segments of the longest runs tried."""
        encoding = SegmentEncoding(system)
        question = Question(deadline)
        written = 0
        for size in sizes:
            while written < size:
                deadline.check()
                encoding.add_segment(range(len(system.moves)))
                written += 1
            question.add(encoding.take())
            question.push()
            encoding.require_stages()
            question.add(encoding.take())
            run = ordered_run(encoding, question)
            if run is not None:
                return self._smaller(encoding, question, run, deadline), size
            question.pop()
        return None, written

    def _smaller(
        self, encoding: SegmentEncoding, question: Question, run: AbstractRun, deadline: Deadline
    ) -> AbstractRun:
        """Return a run with smaller parameters, if one is found soon."""
        clock = deadline.at_most(self.shrink_s)
        best = smallest_run(encoding.system, run, clock)
        if encoding.size > _LARGEST_SHRUNK:
            return best
        # Another way through the automaton may need fewer processes still.
        for limit in (3, 5, 8, 12, 20):
            if limit >= _sum_of_parameters(best) or clock.left_s <= 0:
                break
            try:
                if question.satisfiable(f"(assert (<= {_sum(encoding.parameter_symbols)} {limit}))", clock):
                    found = question.model()
                    if not list(encoding.cuts(found)):
                        return smallest_run(encoding.system, encoding.run(found), clock)
            except OutOfTimeError:
                break
        return best


def smallest_run(system: CounterSystem, run: AbstractRun, deadline: Deadline) -> AbstractRun:
    """Return a run along the same moves with the least sum of parameters, and of these one with few firings.

    Which moves fire in which segment stays; how often, and for which parameters, is asked again.  That formula has
    next to no alternatives, so halving the bounds takes few and quick questions.

    Parameters
    ----------
    system : CounterSystem
    run : AbstractRun
    deadline : Deadline
        When it comes, the best run so far is returned.
    """
    encoding = SegmentEncoding(system)
    encoding.follow(run.segments)
    encoding.require_stages()
    best = run
    try:
        question = Question(deadline)
        question.add(encoding.take())
        wanted = ((encoding.parameter_symbols, _sum_of_parameters), (encoding.firing_symbols(), _firings))
        for symbols, total_of in wanted:
            least, most = 0, total_of(best)
            while least < most:
                limit = (least + most) // 2
                found = ordered_run(encoding, question, f"(assert (<= {_sum(symbols)} {limit}))")
                if found is None:
                    least = limit + 1
                else:
                    best, most = found, total_of(found)
            question.add(f"(assert (<= {_sum(symbols)} {most}))")
    except OutOfTimeError:
        pass
    return best


def _sum_of_parameters(run: AbstractRun) -> int:
    return sum(run.parameters.values())


def _firings(run: AbstractRun) -> int:
    return sum(sum(counts.values()) for counts in run.segments)


def ordered_run(encoding: SegmentEncoding, question: Question, limit: str = "") -> AbstractRun | None:
    """Return a run whose firings can be ordered and that keeps to a limit, or None when there is none.

    Parameters
    ----------
    encoding : SegmentEncoding
    question : Question
        Holds what the encoding wrote; what rules out firings without an order is added.
    limit : str
        Assertions in SMT-LIB; empty for none.
    """
    while question.satisfiable(limit):
        model = question.model()
        cuts = list(encoding.cuts(model))
        if not cuts:
            return encoding.run(model)
        question.add("\n".join(cuts))
    return None


def _growing(most: int) -> Iterator[int]:
    """Yield numbers of segments: most violations need few, and a short formula that has none is refuted quickly."""
    size = 3
    while size * 3 < most * 2:
        yield size
        size *= 2
    yield most


def segments_needed(system: CounterSystem) -> int | None:
    """Return how many segments every run of the system can be cut into; None when there is no bound.

    Every guard in use changes once: from where a lower guard becomes true, and to where an upper guard becomes false,
    one cut each is enough.  A stage before the last needs one more.
    """
    if not system.only_increments or not system.all_guards_grow:
        return None
    changing = {guard for move in system.moves for guard in move.guards if system.thresholds[abs(guard) - 1].term}
    return len(changing) + len(system.stages)


class SegmentEncoding:
    """A run as text for the solver, one segment after the other."""

    def __init__(self, system: CounterSystem) -> None:
        self.system = system
        self.size = 0
        self.parameter_symbols = [f"p{number}" for number in range(len(system.parameters))]
        self._lines: list[str] = []
        self._text = SmtText({})
        self._moves_by_guards: dict[frozenset[int], list[int]] = {}
        self._segment_moves: list[int] = []
        self._single_moves: list[int] = []
        grows = [threshold.grows for threshold in system.thresholds]
        for index, move in enumerate(system.moves):
            plain = move.only_increments and all(grows[abs(guard) - 1] for guard in move.guards)
            if plain:
                self._segment_moves.append(index)
            if not plain or self._forbids_itself(index):
                self._single_moves.append(index)
        # Guards stay as they become only where nothing is ever lowered.
        self._monotone = system.only_increments and system.all_guards_grow
        for symbol in self.parameter_symbols:
            self._natural(symbol)
        self._text.symbols = dict(zip(system.parameters, self.parameter_symbols, strict=True))
        linears = [threshold.bound for threshold in system.thresholds]
        for formula in (system.resilience, system.initial, *system.stages):
            linears += [side for item in comparisons(formula) for side in (item.left, item.right)]
        self._lines += self._text.declare_quotients(linears)
        self._bounds = [self._text.linear(threshold.bound) for threshold in system.thresholds]
        self._lines.append(f"(assert {self._text.formula(system.resilience)})")
        self._at = ["0"] * len(system.locations)
        for location in sorted(system.starts):
            self._at[location] = self._natural(f"k_{location}")
        self._count = ["0"] * len(system.counters)
        for counter in range(len(system.counters)):
            if counter not in system.zero_counters:
                self._count[counter] = self._natural(f"c_{counter}")
        self._started = tuple(self._at), tuple(self._count)
        self._bind_configuration()
        self._lines.append(f"(assert {self._text.formula(system.initial)})")
        # For every segment: what fires, and where processes are before.
        self._segments: list[tuple[dict[int, str], tuple[str, ...]]] = []
        self._before: dict[int, str] = {}
        self._stage_marks: list[str] = []
        # Symbols are declared once a solver, so branches of a search must not share them.
        self._branch = 0
        self._mark_stages("i")

    def copy(self) -> SegmentEncoding:
        """Return an encoding that continues this one; both may go on, in different scopes of a solver."""
        other = copy.copy(self)
        for name in ("_lines", "_at", "_count", "_segments", "_before", "_stage_marks"):
            setattr(other, name, copy.copy(getattr(self, name)))
        other._branch = next(_BRANCHES)
        return other

    def take(self) -> str:
        """Return what was written since the last call."""
        text = "\n".join(self._lines)
        self._lines.clear()
        self.size += len(text)
        return text

    def add_segment(self, moves: Iterable[int]) -> None:
        """Let a single self-forbidding rule fire (after a first segment), then these moves any number of times."""
        chosen = set(moves)
        if self._segments:
            self._single_firing(self._tag(), [move for move in self._single_moves if move in chosen])
        self._any_number_of_times([move for move in self._segment_moves if move in chosen])

    def _any_number_of_times(self, moves: Iterable[int]) -> None:
        tag = self._tag()
        fired = {move: self._natural(f"x{tag}_{move}") for move in moves}
        at, count = tuple(self._at), tuple(self._count)
        self._segments.append((fired, at))
        self._apply(f"e{tag}", fired)
        holds: dict[int, str] = {}
        groups: dict[frozenset[int], list[str]] = {}
        for move, symbol in fired.items():
            groups.setdefault(self.system.moves[move].guards, []).append(symbol)
        for guard in sorted({guard for guards in groups for guard in guards}):
            # A lower guard that holds at the start and an upper one that holds at the end hold throughout.
            name = f"g{tag}_{guard}" if guard > 0 else f"u{tag}_{-guard}"
            condition = self._condition(guard, count if guard > 0 else self._count)
            self._lines.append(f"(declare-const {name} Bool)(assert (=> {name} {condition}))")
            if self._monotone and guard in self._before:
                earlier = self._before[guard]
                first, second = (earlier, name) if guard > 0 else (name, earlier)
                self._lines.append(f"(assert (=> {first} {second}))")
            holds[guard] = name
        self._before.update(holds)
        for guards, symbols in groups.items():
            if guards:
                names = [holds[guard] for guard in sorted(guards)]
                allowed = names[0] if len(names) == 1 else f"(and {' '.join(names)})"
                self._lines.append(f"(assert (or (<= {_sum(symbols)} 0) {allowed}))")
        self._mark_stages(f"e{tag}")

    def add_steady(self, moves: Iterable[int], context: Iterable[int]) -> None:
        """Let these moves fire any number of times while ``context``, which implies their guards, stays true.

        All of them may: that a guard's threshold does not grow is no obstacle where no move changes it.

        Parameters
        ----------
        moves : iterable of int
        context : iterable of int
            Guards that hold at the start and at the end; thresholds in them must grow, or no move may change them.
        """
        tag = self._tag()
        self.require(context)
        fired = {move: self._natural(f"x{tag}_{move}") for move in moves}
        self._segments.append((fired, tuple(self._at)))
        self._apply(f"e{tag}", fired)
        self.require(context)
        self._mark_stages(f"e{tag}")

    def add_crossing(self, moves: Sequence[int]) -> None:
        """Let exactly one of these moves fire once."""
        self._single_firing(self._tag(), moves)
        fired = self._segments[-1][0]
        self._lines.append(f"(assert (>= {_sum(fired.values())} 1))")

    def follow(self, segments: Iterable[Mapping[int, int]]) -> None:
        """Let exactly the moves of a run fire, segment by segment, each segment's at least once.

        Parameters
        ----------
        segments : iterable of mapping of int to int
            Moves and their firings; more than one firing only of moves that fire in segments.
        """
        for counts in segments:
            moves = [move for move, count in counts.items() if count]
            if not moves:
                continue
            if len(moves) == 1 and counts[moves[0]] == 1 and moves[0] in self._single_moves:
                self.add_crossing(moves)
            elif self._fire_together(moves):
                self._any_number_of_times(moves)
                self._lines += [f"(assert (>= {symbol} 1))" for symbol in self._segments[-1][0].values()]
            else:
                raise ValueError("Moves that reset, lower or change a difference fire once between segments.")

    def _fire_together(self, moves: Sequence[int]) -> bool:
        """Return whether guards that hold at both ends of a segment of these moves hold throughout."""
        listed = [self.system.moves[move] for move in moves]
        shifted = {counter for move in listed for counter, _ in move.shifts}
        thresholds = [self.system.thresholds[abs(guard) - 1] for move in listed for guard in move.guards]
        return all(move.only_increments for move in listed) and all(
            each.grows or shifted.isdisjoint(counter for counter, _ in each.term) for each in thresholds
        )

    def firing_symbols(self) -> list[str]:
        """Return the symbols of how often moves fire, of all segments."""
        return [symbol for fired, _ in self._segments for symbol in fired.values()]

    def _tag(self) -> str:
        return f"{self._branch}.{len(self._segments)}"

    def _single_firing(self, tag: str, moves: Sequence[int]) -> None:
        fired = {move: self._natural(f"y{tag}_{move}") for move in moves}
        if fired:
            self._lines.append(f"(assert (<= {_sum(fired.values())} 1))")
            for move, symbol in fired.items():
                conditions = [self._condition(guard, self._count) for guard in self.system.moves[move].guards]
                conditions.append(f"(>= {self._at[self.system.moves[move].source]} 1)")
                self._lines.append(f"(assert (or (<= {symbol} 0) (and {' '.join(conditions)})))")
        self._segments.append((fired, tuple(self._at)))
        self._apply(f"s{tag}", fired)
        self._mark_stages(f"s{tag}")

    def _apply(self, tag: str, fired: Mapping[int, str]) -> None:
        """Write where processes and counters are after the firings."""
        moved: dict[int, list[str]] = {}
        added: dict[int, list[str]] = {}
        assigned: dict[int, list[tuple[str, Linear]]] = {}
        for move, symbol in fired.items():
            rule = self.system.moves[move]
            if rule.source != rule.target:
                moved.setdefault(rule.source, []).append(f"(- {symbol})")
                moved.setdefault(rule.target, []).append(symbol)
            for counter, by in rule.shifts:
                added.setdefault(counter, []).append(_times(by, symbol))
            for counter, value in rule.assigns:
                assigned.setdefault(counter, []).append((symbol, value))
        self._bind_configuration()
        texts = {c: [(s, self._text.linear(v)) for s, v in items] for c, items in assigned.items()}
        for location, parts in moved.items():
            before = self._at[location]
            self._at[location] = self._natural(f"k{tag}_{location}")
            self._lines.append(f"(assert (= {self._at[location]} {_sum((before, *parts))}))")
        for counter in sorted({*added, *texts}):
            total = _sum((self._count[counter], *added.get(counter, ())))
            for symbol, text in texts.get(counter, ()):
                total = f"(ite (>= {symbol} 1) {text} {total})"
            self._count[counter] = self._natural(f"c{tag}_{counter}")
            self._lines.append(f"(assert (= {self._count[counter]} {total}))")

    def _mark_stages(self, tag: str) -> None:
        """Note which stages but the last were met by now."""
        marks: list[str] = []
        for stage, formula in enumerate(self.system.stages[:-1]):
            self._bind_configuration()
            name = f"m{tag}_{stage}"
            now = [self._text.formula(formula), *([marks[-1]] if marks else [])]
            met = f"(and {' '.join(now)})"
            if self._stage_marks:
                met = f"(or {self._stage_marks[stage]} {met})"
            self._lines.append(f"(declare-const {name} Bool)(assert (=> {name} {met}))")
            marks.append(name)
        self._stage_marks = marks

    def require_stages(self) -> None:
        """Demand the last stage at the end, and the others before."""
        self._lines += [f"(assert {mark})" for mark in self._stage_marks]
        self._bind_configuration()
        self._lines.append(f"(assert {self._text.formula(self.system.stages[-1])})")

    def require(self, guards: Iterable[int]) -> None:
        """Demand that guards hold in the configuration at the end of what was written so far."""
        for guard in guards:
            self._lines.append(f"(assert {self._condition(guard, self._count)})")

    def require_one_of(self, alternatives: Iterable[Mapping[int, int]]) -> None:
        """Demand that now, for one alternative, each of its locations holds at least that many processes."""
        listed = [
            f"(and true {' '.join(f'(>= {self._at[place]} {least})' for place, least in alternative.items())})"
            for alternative in alternatives
        ]
        self._lines.append(f"(assert (or {' '.join(listed)}))")

    def cuts(self, model: Mapping[str, int]) -> Iterator[str]:
        """Yield assertions that refute a model in which a segment's firings cannot be ordered."""
        for fired, at in self._segments:
            counts = {move: model.get(symbol, 0) for move, symbol in fired.items()}
            occupied = {place: _value(symbol, model) for place, symbol in enumerate(at)}
            stranded = unreachable_sources(self.system, counts, occupied)
            if stranded:
                # The same set of locations is a trap in every segment.
                for symbols, places in self._segments:
                    yield self._cut(stranded, symbols, places)
                return

    def _cut(self, stranded: set[int], fired: Mapping[int, str], at: Sequence[str]) -> str:
        moves = self.system.moves
        leaving = [symbol for move, symbol in fired.items() if moves[move].source in stranded]
        entering = [
            symbol
            for move, symbol in fired.items()
            if moves[move].target in stranded and moves[move].source not in stranded
        ]
        there = [at[place] for place in sorted(stranded) if at[place] != "0"]
        return f"(assert (or (<= {_sum(leaving)} 0) (>= {_sum((*there, *entering))} 1)))"

    def run(self, model: Mapping[str, int]) -> AbstractRun:
        """Return a model as a run."""
        at, count = self._started
        parameters = {
            name: model.get(symbol, 0)
            for name, symbol in zip(self.system.parameters, self.parameter_symbols, strict=True)
        }
        return AbstractRun(
            parameters,
            {place: _value(symbol, model) for place, symbol in enumerate(at) if _value(symbol, model)},
            {name: _value(symbol, model) for name, symbol in zip(self.system.counters, count, strict=True)},
            tuple(
                {move: _value(symbol, model) for move, symbol in fired.items() if _value(symbol, model)}
                for fired, _ in self._segments
            ),
        )

    def _forbids_itself(self, index: int) -> bool:
        move = self.system.moves[index]
        for guard in move.guards:
            if guard < 0:
                factors = dict(self.system.thresholds[-guard - 1].term)
                if any(factors.get(counter, 0) * by > 0 for counter, by in move.shifts):
                    return True
        return False

    def _condition(self, guard: int, count: Sequence[str]) -> str:
        threshold = self.system.thresholds[abs(guard) - 1]
        parts = [
            count[counter]
            if factor * threshold.scale == 1
            else f"(* {number(factor * threshold.scale)} {count[counter]})"
            for counter, factor in threshold.term
            if count[counter] != "0"
        ]
        return f"({'>=' if guard > 0 else '<'} {_sum(parts)} {self._bounds[abs(guard) - 1]})"

    def _natural(self, symbol: str) -> str:
        self._lines.append(f"(declare-const {symbol} Int)(assert (>= {symbol} 0))")
        return symbol

    def _bind_configuration(self) -> None:
        system = self.system
        symbols = dict(zip(system.parameters, self.parameter_symbols, strict=True))
        symbols |= {names[0]: self._at[place] for place, names in enumerate(system.locations)}
        symbols |= dict(zip(system.counters, self._count, strict=True))
        self._text.symbols = symbols


def _times(factor: int, symbol: str) -> str:
    return symbol if factor == 1 else f"(* {number(factor)} {symbol})"


def _sum(parts: Iterable[str]) -> str:
    listed = [part for part in parts if part != "0"]
    if not listed:
        return "0"
    return listed[0] if len(listed) == 1 else f"(+ {' '.join(listed)})"


def _value(symbol: str, model: Mapping[str, int]) -> int:
    return 0 if symbol == "0" else model.get(symbol, 0)
