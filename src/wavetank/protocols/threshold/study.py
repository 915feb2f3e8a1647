"""Study ``threshold-checkers``: which way to prove threshold automata safe decides most files, and is it right?"""

from __future__ import annotations

import csv
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wavetank.check.deadline import Deadline, OutOfTimeError
from wavetank.errors import DataUnavailableError
from wavetank.protocols.threshold.answers import Answer, Method
from wavetank.protocols.threshold.automaton import ThresholdAutomaton
from wavetank.protocols.threshold.counterexample import AbstractRun, ReplayError, concretise, replay
from wavetank.protocols.threshold.explicit import StateSpace, small_parameters
from wavetank.protocols.threshold.generate import random_automaton
from wavetank.protocols.threshold.parser import read_automaton
from wavetank.protocols.threshold.preprocess import counter_system
from wavetank.protocols.threshold.properties import Query, safety_properties
from wavetank.settings import setting
from wavetank.study.study import Chart, Measurements, Metric, Study
from wavetank.workloads import datasets

DATA_SET = "threshold-automata"
SUITES = {
    "hand-written": "isola18/handcoded", "translated": "isola18/promela", "random19": "random19",
    "concur14": "concur14", "popl17": "popl17-fmsd17", "red-belly": "red-belly", "resets": "reset-benchmarks",
}  # fmt: skip
# The column of the published sheet that is closest to each system.
PUBLISHED = {
    "threshold-smt": "taco_smt_z3_s", "threshold-acs": "taco_acs_z3_s", "threshold-zcs": "taco_zcs_z3_s",
}  # fmt: skip


@dataclass(frozen=True)
class Published:
    """What the authors' result sheet says of a file.

    Parameters
    ----------
    verdict : str
        ``safe``, ``unsafe`` or ``unknown``.
    seconds : mapping of str to float
        Column to seconds; NaN where the tool did not end or was not run.
    """

    verdict: str
    seconds: Mapping[str, float]


@dataclass(frozen=True)
class Model:
    """One file, or one drawn automaton."""

    name: str
    automaton: ThresholdAutomaton
    published: Published | None = None


@dataclass(frozen=True, kw_only=True)
class ThresholdCheckers(Study):
    """Every system gets the same files, the same reduced questions and the same time a file.  A verdict is wrong
    when it differs from the published one, when a counterexample does not replay in the explicit counter system, or
    when an explicit search with small parameters finds a violation of what was called safe.
    """

    name = "threshold-checkers"
    baseline = "threshold-smt"
    primary = "solved_share"
    secondary = ("file_s", "wrong_verdicts")
    must_be_zero = ("wrong_verdicts",)
    metrics = (
        Metric("solved_share", "", "higher", "measured",
               "share of files whose properties are all decided, or one violated, within the time per file",
               words="solved files"),
        Metric("wrong_verdicts", "", "lower", "counted",
               "files with a verdict that differs from the published one, a counterexample that does not replay, or a "
               "property called safe that an explicit search with small parameters violates"),
        Metric("file_s", "s", "lower", "measured",
               "mean time to decide a file, reductions included, reading left out; the limit for a file "
               "that is not decided", words="time per file"),
        Metric("slowest_file_s", "s", "lower", "measured", "the largest of these times"),
        Metric("time_to_published", "", "lower", "measured",
               "sum of times / sum of the published seconds of the same method of TACO with z3, over the "
               "files with a published time; the published figures are from another machine and include "
               "starting and reading; generated automata have no published time"),
        Metric("solved_to_best_published", "", "higher", "measured",
               "files of the published sheet decided within 60 s here / most of them that one published configuration "
               "decides within 60 s"),
        Metric("replayed_runs", "", "", "counted", "counterexamples found and replayed", table=False),
    )  # fmt: skip
    charts = (
        Chart(
            "bars", "Share of files decided", "solved_share", says="Files that are decided within the time per file."
        ),
        Chart("bars", "Time per file", "file_s", log="x", says="Mean time; undecided files count with the limit."),
    )
    default_seeds = 3
    in_process = True
    process_per_seed = True

    suite: str = setting(
        "generated", says="Suite: generated automata, or published files", choices=("generated", *SUITES, "all")
    )
    automata: int = setting(15, says="Generated automata per seed", low=1, high=100_000)
    seconds: float = setting(5.0, unit="s", says="Time per file", low=0.01, high=86400)
    largest_parameter: int = setting(
        3, says="Largest parameter of the explicit search that confirms safe verdicts", low=0, high=20
    )
    states: int = setting(3000, says="Most configurations of the explicit search per setting of the parameters", low=1)

    def check(self) -> None:
        """Refuse published files that are not on this machine."""
        if self.suite != "generated":
            datasets.find(DATA_SET)

    def data(self) -> Mapping[str, str]:
        """Return the data set and the size of what is read."""
        if self.suite == "generated":
            return {}
        return {DATA_SET: datasets.entry(DATA_SET).home}

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        return (
            "Questions are reduced before any system sees them (rules that cannot matter, locations that behave "
            "alike); TACO's published times are for less reduced ones.",
            "The explicit search can show violations but proves nothing for all parameters, so safe files count as not "
            "decided by it.",
        )

    def measure(self, system: Any, seed: int) -> Measurements:
        """Check every model with one method."""
        found = Measurements()
        solved = within_minute = wrong = runs = models = 0
        times: list[float] = []
        ours = theirs = 0.0
        best = self._best_published()
        column = PUBLISHED.get(_name_of(system), "taco_smt_z3_s")
        for model in self.models(seed):
            models += 1
            verdict, took, replayed, mistakes = self._judge(system, model)
            runs += replayed
            wrong += bool(mistakes)
            solved += verdict != "undecided"
            times.append(took if verdict != "undecided" else max(took, self.seconds))
            if model.published is not None:
                within_minute += verdict != "undecided" and took <= 60
                if "unknown" not in (verdict, model.published.verdict) and verdict != "undecided":
                    wrong += verdict != model.published.verdict and not mistakes
                published_s = model.published.seconds.get(column, math.nan)
                if not math.isnan(published_s):
                    ours += times[-1]
                    theirs += published_s
        found.put("solved_share", solved / models)
        found.put("wrong_verdicts", wrong)
        found.put("file_s", sum(times) / models)
        found.put("slowest_file_s", max(times))
        found.put("replayed_runs", runs)
        if theirs:
            found.put("time_to_published", ours / theirs)
        if best:
            found.put("solved_to_best_published", within_minute / best)
        return found

    def models(self, seed: int) -> Iterator[Model]:
        """Yield what is checked.

        Raises
        ------
        DataUnavailableError
            If the published files are not on this machine.
        """
        if self.suite == "generated":
            for number in range(self.automata):
                yield Model(f"drawn {number}", random_automaton(seed * 1_000_003 + number))
            return
        sheet = published_sheet()
        for suite, path in self._files():
            key = suite, _plain_name(path)
            yield Model("/".join(key), read_automaton(path), sheet.get(key))

    def _files(self) -> list[tuple[str, Path]]:
        folder = datasets.find(DATA_SET) / "ta"
        suites = SUITES.values() if self.suite == "all" else (SUITES[self.suite],)
        found = []
        for suite in suites:
            # The sheet calls this folder by another name.
            here = folder / suite.replace("reset-benchmarks", "reset-ta")
            listed = [path for path in sorted(here.glob("*")) if _plain_name(path).endswith((".ta", ".eta"))]
            if not listed:
                raise DataUnavailableError(f"The suite {suite!r} has no files on this machine.", where=str(here))
            found += [(suite, path) for path in listed]
        return found

    def _best_published(self) -> int:
        """Return how many of the files the best single published configuration decides within 60 s."""
        if self.suite == "generated":
            return 0
        sheet = published_sheet()
        listed = [sheet[key] for suite, path in self._files() if (key := (suite, _plain_name(path))) in sheet]
        columns = {name for item in listed for name in item.seconds}
        return max((sum(item.seconds[name] <= 60 for item in listed) for name in columns), default=0)

    def _judge(self, system: Method, model: Model) -> tuple[str, float, int, int]:
        """Return verdict, seconds, counterexamples that replayed, and mistakes."""
        clock = Deadline(self.seconds)
        began = time.perf_counter()
        outcomes: list[str] = []
        violated: list[tuple[Query, Any]] = []
        safe: list[Query] = []
        took = 0.0
        mistakes = 0
        for item in safety_properties(model.automaton):
            if item.not_checked:
                continue
            for query in item.queries:
                try:
                    reduced = counter_system(model.automaton, query, clock)
                    answer = system.decide(reduced, clock)
                    if answer.outcome == "violated":
                        violated.append((query, _concrete(answer, reduced)))
                    elif answer.outcome == "holds":
                        safe.append(query)
                except OutOfTimeError:
                    answer = Answer("undecided")
                except ReplayError:
                    mistakes += 1
                    answer = Answer("undecided")
                outcomes.append(answer.outcome)
        took = time.perf_counter() - began
        for query, run in violated:
            try:
                replay(model.automaton, query, run)
            except ReplayError:
                mistakes += 1
        # Every safe answer is looked over, whatever was published.
        mistakes += sum(self._refuted(model.automaton, query) for query in safe)
        verdict = "unsafe" if "violated" in outcomes else "undecided" if "undecided" in outcomes else "safe"
        return verdict, took, len(violated), mistakes

    def _refuted(self, automaton: ThresholdAutomaton, query: Query) -> bool:
        """Return whether an explicit search with small parameters violates what was called safe."""
        clock = Deadline(self.seconds)
        try:
            for parameters in small_parameters(automaton, self.largest_parameter, clock):
                try:
                    if StateSpace(automaton, query, parameters).violation(self.states, clock) is not None:
                        return True
                except OutOfTimeError:
                    clock.check()
        except OutOfTimeError:
            return False
        return False


def _plain_name(path: Path) -> str:
    return path.name.removesuffix(".gz")


def _concrete(answer: Answer, system: Any) -> Any:
    return concretise(system, answer.run) if isinstance(answer.run, AbstractRun) else answer.run


def _name_of(system: object) -> str:
    return {
        "SmtReachability": "threshold-smt", "IntervalBackward": "threshold-acs", "ZeroCounters": "threshold-zcs",
    }.get(type(system).__name__, "")  # fmt: skip


def published_sheet() -> dict[tuple[str, str], Published]:
    """Return the authors' result sheet by suite and file.

    Raises
    ------
    DataUnavailableError
    """
    with datasets.find(DATA_SET, "expected.csv").open(newline="", encoding="utf-8") as lines:
        return {
            (row["suite"], row["file"]): Published(
                row["verdict"],
                {name: _seconds(text) for name, text in row.items() if name.endswith("_s")},
            )
            for row in csv.DictReader(lines)
        }


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        # "TO", "Err", "Unsup." and an empty cell.
        return math.nan
