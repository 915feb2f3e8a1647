"""Study ``ordered-languages``: what populations decide when agents can compare ranks, and what it costs them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from wavetank.errors import BadValueError
from wavetank.settings import setting
from wavetank.sim.rng import stream
from wavetank.study.study import Chart, Measurements, Metric, Study

# Languages whose protocols look for one position only: every agent has to see one certain other one.
LEVEL_ONE = ("first letter a", "some a")
_ENOUGH = 10**15
_WORDS_EXACT = 3


@dataclass(frozen=True, kw_only=True)
class OrderedLanguages(Study):
    """Every system builds a protocol for each language it has one for; each protocol runs, on words of several
    lengths, until nothing can change any more, and its answer is compared with the truth.  Random star-free languages
    then show how much of that class each way of building protocols reaches.
    """

    name = "ordered-languages"
    baseline = "sequential-dfa"
    primary = "states"
    secondary = ("growth",)
    must_be_zero = ("wrong_verdicts",)
    cases_by = "language"
    metrics = (
        Metric("wrong_verdicts", "words", "lower", "counted",
               "words on which a run ended without the right consensus, random languages included"),
        Metric("states", "states", "lower", "counted", "states of the protocol (of the minimal automaton for "
                                                       "sequential-dfa)"),
        Metric("interactions_to_stability", "interactions", "lower", "simulated",
               "interactions until the last change of an agent's state; mean over words of that length", table=False),
        Metric("growth", "", "lower", "simulated",
               "slope of log(interactions_to_stability) against log(agents)"),
        Metric("growth_over_n2_log_n", "", "lower", "simulated",
               "slope of log(interactions_to_stability / (n^2 ln n)) against log n, all languages that look for one "
               "position pooled", table=False),
        Metric("states_of_rankers", "states", "lower", "counted",
               "most states over all rankers with that many moves", table=False),
        Metric("languages", "languages", "higher", "counted", "share of the named languages for which it has a "
                                                              "protocol"),
        Metric("share_in_DA", "", "", "counted",
               "share of random star-free languages whose syntactic monoid is in DA", table=False),
        Metric("share_compiled", "", "higher", "counted",
               "share of random star-free languages for which it has a protocol that decided every word tried"),
        Metric("agreement_with_DA", "", "", "counted",
               "share of random star-free languages for which having such a protocol and being in DA are the same"),
    )  # fmt: skip
    charts = (
        Chart("sweep", "Interactions until nothing changes", y="interactions_to_stability", by="agents", log="xy",
              says="Parallel lines have the same exponent."),
        Chart("bars", "States", y="states", by="language", log="x", says="Shorter is smaller; a missing bar is "
                                                                         "impossible."),
        Chart("bars", "Random star-free languages", y="share_compiled",
              says="The languages decided by comparing ranks, next to knowing one's neighbours and to counting."),
    )  # fmt: skip

    agents: tuple[int, ...] = setting((8, 16, 32, 64), unit="agents", says="Lengths of the words", low=2, high=4096)
    random_languages: int = setting(
        20, unit="languages", says="Random star-free languages per seed", low=1, high=10_000
    )
    monoid_size: int = setting(12, unit="elements", says="Largest monoid of a random language", low=2, high=200)
    ranker_moves: int = setting(3, unit="moves", says="Greatest length of the rankers that are compiled", low=1, high=5)

    def check(self) -> None:
        """Refuse lengths from which no slope can be read."""
        if len(set(self.agents)) < 2:
            raise BadValueError(
                "A slope needs two lengths.", given=self.agents, allowed="two or more different ones", where="agents"
            )

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        return (
            "Ordered pairs meet uniformly at random; sequential-dfa reads one letter per interaction.",
            "Random languages come from random automata of five states over {a, b}, kept when aperiodic and small.",
        )

    def measure(self, system: Any, seed: int) -> Measurements:
        """Return what one way of building protocols decides under one seed."""
        from wavetank.protocols.populations.languages import SequentialReader, known_languages

        found = Measurements()
        wrong = decided = 0
        slopes: list[tuple[float, float]] = []
        for language in known_languages():
            times: list[tuple[float, float]] = []
            protocol = system.protocol(language)
            if isinstance(system, SequentialReader):
                if language.automaton is not None:
                    found.put("states", len(language.automaton.moves), language=language.name)
            elif protocol is None:
                continue
            else:
                found.put("states", len(protocol), language=language.name)
            decided += 1
            for n in sorted(set(self.agents)):
                rng = stream(seed, "ordered-languages", language.name, n)
                took = []
                for word in language.words(n, rng):
                    if protocol is None:
                        took.append(system.read(language, word)[1])
                        continue
                    right, interactions = _run(protocol, word, language.contains(word), seed)
                    wrong += not right
                    took.append(interactions)
                mean = float(np.mean(took))
                found.put("interactions_to_stability", mean, language=language.name, agents=n)
                times.append((n, max(mean, 1.0)))
                if language.name in LEVEL_ONE:
                    slopes.append((n, max(mean, 1.0)))
            found.put("growth", _slope(times), language=language.name)
        found.put("languages", decided)
        if not isinstance(system, SequentialReader):
            wrong += self._random(system, seed, found)
            found.put("wrong_verdicts", wrong)
        if slopes and system.protocol(known_languages()[0]) is not None:
            found.put("growth_over_n2_log_n", _slope([(n, took / (n * n * math.log(n))) for n, took in slopes]))
        self._rankers(system, found)
        return found

    def _random(self, system: Any, seed: int, found: Measurements) -> int:
        """Record shares of random star-free languages; return the wrong verdicts among them."""
        from wavetank.protocols.populations.exact_check import ExactCheck, words
        from wavetank.protocols.populations.languages import Language
        from wavetank.protocols.populations.syntactic_monoid import random_star_free

        rng = stream(seed, "ordered-languages", "random")
        exact = ExactCheck(most_configurations=50_000)
        wrong = compiled = in_class = agreed = 0
        for number in range(self.random_languages):
            automaton = random_star_free("ab", rng, states=5, most_elements=self.monoid_size)
            language = Language(f"random {number}", ("a", "b"), automaton)
            member = language.monoid is not None and language.monoid.is_in_DA
            errors, has = 0, False
            tried = [word for n in (6, 12) for word in language.words(n, rng)]
            try:
                protocol = system.protocol(language)
            except BadValueError:
                # In the class, but too large to build: not compiled.
                protocol = None
            if protocol is not None:
                for word in tried:
                    errors += not _run(protocol, word, automaton.accepts(word), seed)[0]
                for word in words("ab", _WORDS_EXACT):
                    verdict = exact.decide(protocol, word)
                    errors += verdict.decided and verdict.output != int(automaton.accepts(word))
                has = not errors
            wrong, compiled, in_class = wrong + errors, compiled + has, in_class + member
            agreed += has == member
        found.put("share_compiled", compiled / self.random_languages)
        found.put("share_in_DA", in_class / self.random_languages)
        found.put("agreement_with_DA", agreed / self.random_languages)
        return wrong

    def _rankers(self, system: Any, found: Measurements) -> None:
        from wavetank.protocols.populations.languages import Language
        from wavetank.protocols.populations.rankers import rankers

        most: dict[int, int] = {}
        for ranker in rankers("ab", self.ranker_moves):
            protocol = system.protocol(Language(str(ranker), ("a", "b"), ranker.automaton("ab")))
            if protocol is None:
                return
            most[len(ranker.moves)] = max(most.get(len(ranker.moves), 0), len(protocol))
        for moves, states in most.items():
            found.put("states_of_rankers", states, moves=moves)


def _run(protocol: Any, word: tuple[str, ...], truth: bool, seed: int) -> tuple[bool, int]:
    """Return whether the run ended silent and right, and when it last changed."""
    from wavetank.protocols.populations.ordered_simulator import OrderedSkipping

    run = OrderedSkipping().run(protocol, word, interactions=_ENOUGH, seed=seed)
    return run.silent and run.output == int(truth), run.last_change


def _slope(points: list[tuple[float, float]]) -> float:
    sizes, times = np.log(np.array(points)).T
    return float(np.polyfit(sizes, times, 1)[0])
