"""``wavetank check`` of threshold automata: every safety property of a file, for every number of processes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from wavetank.check.deadline import Deadline, OutOfTimeError
from wavetank.check.report import Budget, CheckReport, Verdict
from wavetank.errors import unknown_name
from wavetank.protocols.threshold.answers import SETTLED, Answer
from wavetank.protocols.threshold.automaton import ThresholdAutomaton
from wavetank.protocols.threshold.counterexample import AbstractRun, Counterexample, concretise, listing
from wavetank.protocols.threshold.page import Violation, counterexample_page
from wavetank.protocols.threshold.parser import read_automaton
from wavetank.protocols.threshold.portfolio import Portfolio
from wavetank.protocols.threshold.preprocess import CounterSystem, counter_system
from wavetank.protocols.threshold.properties import SafetyProperty, safety_properties
from wavetank.protocols.threshold.race import race
from wavetank.protocols.threshold.smt import SmtReachability, segments_needed
from wavetank.settings import setting

if TYPE_CHECKING:
    from wavetank.protocols.threshold.answers import Method

METHODS = ("portfolio", "smt", "acs", "zcs", "explicit")
_LEAST_TURN_S = 2.0
# What is asked in this process: a solver that runs out of memory takes its process along.
_MOST_FIRINGS_ASKED_HERE = 5_000
_LONGEST_ASKED_HERE_S = 5.0


@dataclass(frozen=True, kw_only=True)
class OneMethod:
    """A checker alone, in a process that can be killed and whose memory is limited."""

    name: str = setting("smt", says="Name of the checker", choices=("smt", "acs", "zcs"))
    memory_bytes: float = setting(2.0 * 2**30, unit="bytes", says="Memory of the checker's process", low=2.0**27)

    def decide(self, system: CounterSystem, deadline: Deadline) -> Answer:
        """Return whether the system's stages can be met."""
        if system.impossible:
            return Answer("holds", SETTLED, by=self.name)
        return race(system, [[(self.name, {})]], deadline, int(self.memory_bytes))


@dataclass(frozen=True, kw_only=True)
class FormulaFirst:
    """The segment formula: in this process for small questions and a moment, else in one with limited memory."""

    memory_bytes: float = setting(2.0 * 2**30, unit="bytes", says="Memory of the checker's process", low=2.0**20)

    def decide(self, system: CounterSystem, deadline: Deadline) -> Answer:
        """Return whether the system's stages can be met."""
        here = SmtReachability()
        if len(system.moves) * (segments_needed(system) or here.most_segments) > _MOST_FIRINGS_ASKED_HERE:
            return OneMethod(name="smt", memory_bytes=self.memory_bytes).decide(system, deadline)
        return here.decide(system, deadline.at_most(_LONGEST_ASKED_HERE_S))


@dataclass(frozen=True, kw_only=True)
class ThresholdCheck:
    """Checks the safety properties of a ``.ta``, ``.eta`` or ``.tla`` file."""

    method: str = setting("portfolio", says="Method that decides", choices=METHODS)
    properties: tuple[str, ...] = setting((), says="Names of the specifications to check; all by default")

    def check(self, path: Path, budget: Budget) -> CheckReport:
        """Read a file and decide its properties.

        Parameters
        ----------
        path : Path
        budget : Budget
            Of the whole file.  Every property gets its share of the first turn, undecided ones share what is left.

        Raises
        ------
        BadFileError
            With line and column.
        UnknownNameError
            For a property that the file does not have.
        """
        clock = Deadline(budget.seconds)
        automaton = read_automaton(path)
        wanted = self._wanted(automaton, path)
        asked = [item for item in wanted if not item.not_checked]
        found: dict[str, tuple[Verdict, Violation | None]] = {}
        for turn in (1, 2):
            waiting = [item for item in asked if item.name not in found or found[item.name][0].outcome == "undecided"]
            for number, item in enumerate(waiting):
                if turn == 2 and clock.left_s < _LEAST_TURN_S:
                    break
                # The first turn leaves a share for the second.
                share = max(clock.left_s / (len(waiting) - number + (turn == 1)), _LEAST_TURN_S)
                found[item.name] = self._property(automaton, item, clock.at_most(share), self._method(turn, budget))
        verdicts = [found[item.name][0] for item in asked]
        violations = [violation for _, violation in found.values() if violation is not None]
        return CheckReport(
            subject=automaton.name,
            kind="threshold",
            facts=_facts(automaton, wanted),
            verdicts=verdicts,
            page=counterexample_page(automaton, violations),
        )

    def _wanted(self, automaton: ThresholdAutomaton, path: Path) -> list[SafetyProperty]:
        listed = list(safety_properties(automaton))
        names = [item.name for item in listed]
        for name in self.properties:
            if name not in names:
                raise unknown_name("specification", name, names, where=str(path))
        return [item for item in listed if not self.properties or item.name in self.properties]

    def _method(self, turn: int, budget: Budget) -> Method:
        if self.method == "portfolio":
            # The formula decides most questions, so all get its answer before any is raced for.
            if turn == 1:
                return FormulaFirst(memory_bytes=float(budget.memory_bytes))
            return Portfolio(head_start_s=0.0, memory_bytes=float(budget.memory_bytes))
        if self.method == "explicit":
            from wavetank.protocols.threshold.explicit import ExplicitSearch

            return ExplicitSearch()
        return OneMethod(name=self.method, memory_bytes=float(budget.memory_bytes))

    def _property(
        self, automaton: ThresholdAutomaton, item: SafetyProperty, clock: Deadline, method: Method
    ) -> tuple[Verdict, Violation | None]:
        """Decide one property: violated by the first query that can be met, holds when none can."""
        undecided: Answer | None = None
        last = Answer("holds", "it can never be false", by="logic")
        for query in item.queries:
            try:
                system = counter_system(automaton, query, clock)
                last = method.decide(system, clock)
                if last.outcome == "violated" and last.run is not None:
                    run = concretise(system, last.run) if isinstance(last.run, AbstractRun) else last.run
                    return _violated(automaton, item, replace(last, run=run), Violation(item.name, query, run), clock)
            except OutOfTimeError as reason:
                last = Answer("undecided", str(reason))
            if last.outcome == "undecided":
                undecided = last
        answer = undecided or last
        verdict = Verdict(
            name=item.name,
            outcome=answer.outcome,
            says=_sentence(answer),
            by=answer.by,
            seconds=clock.spent_s,
        )
        return verdict, None


def _violated(
    automaton: ThresholdAutomaton, item: SafetyProperty, answer: Answer, violation: Violation, clock: Deadline
) -> tuple[Verdict, Violation]:
    run: Counterexample = violation.run
    verdict = Verdict(
        name=item.name,
        outcome="violated",
        says=f"violated with {run.setting} after {sum(step.times for step in run.steps)} firings, replayed",
        by=answer.by,
        seconds=clock.spent_s,
        evidence=listing(automaton, violation.query, run),
    )
    return verdict, violation


def _sentence(answer: Answer) -> str:
    return {"holds": "for every number of processes; ", "undecided": "", "violated": ""}[answer.outcome] + answer.says


def _facts(automaton: ThresholdAutomaton, wanted: list[SafetyProperty]) -> tuple[tuple[str, str], ...]:
    facts = [
        (
            "automaton",
            f"{len(automaton.rules)} rules, {len(automaton.locations)} locations, {len(automaton.counters)} counters, "
            f"parameters {', '.join(automaton.parameters) or 'none'}",
        ),
        ("resilience", "; ".join(map(str, automaton.assumptions)) or "none"),
    ]
    if not automaton.has_only_increments:
        facts.append(("extended", "counters are reset or lowered: checkers may come to no end on a safe automaton"))
    left_out = [f"{item.name} ({item.not_checked})" for item in wanted if item.not_checked]
    if left_out:
        facts.append(("not checked", "; ".join(left_out)))
    if len(left_out) == len(wanted):
        facts.append(("verdicts", "none: the file states no safety property"))
    return tuple(facts)
