"""Small random threshold automata, for cross-checks of the checkers and for studies without data.

They look like translated broadcast algorithms: a few locations, rules mostly in one direction, guards with the usual
thresholds, sometimes upper guards, sums, cycles, resets.  About half of their properties are violated.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wavetank.protocols.threshold.automaton import ThresholdAutomaton
from wavetank.protocols.threshold.parser import parse_automaton
from wavetank.sim.rng import stream

_BOUNDS = (
    "1", "2", "T + 1 - F", "N - T - F", "T + 1", "N - T", "N - F", "2 * T + 1", "F", "T", "N - 2 * T",
    "(N + T) / 2 + 1",
)  # fmt: skip
_RESILIENCE = (
    "N > 3 * T; T >= F; T >= 1;", "N > 2 * T; T >= F;", "N > T; T >= F; T >= 1;", "N >= 1; T >= F; N >= T;",
)  # fmt: skip


def random_automaton(seed: int, *, resets: bool = False, differences: bool = False) -> ThresholdAutomaton:
    """Return the automaton of a seed.

    Parameters
    ----------
    seed : int
    resets : bool
        Whether rules may reset or lower counters.
    differences : bool
        Whether guards may compare differences of counters, and counters may start at any value up to ``N``.

    Returns
    -------
    ThresholdAutomaton
        With 3 to 6 locations, 1 to 3 counters, up to 8 rules and 3 safety properties.
    """
    return parse_automaton(random_text(seed, resets=resets, differences=differences), f"seed {seed}")


def random_text(seed: int, *, resets: bool = False, differences: bool = False) -> str:
    """Return the ``.ta`` text of :func:`random_automaton`."""
    return _Draw(stream(seed, "threshold", "automaton"), resets, differences).text()


class _Draw:
    def __init__(self, rng: np.random.Generator, resets: bool, differences: bool) -> None:
        self.rng = rng
        self.resets = resets
        self.differences = differences
        self.locations = [f"l{number}" for number in range(rng.integers(3, 7))]
        self.counters = [f"x{number}" for number in range(rng.integers(1, 4))]

    def one(self, options: Sequence[str]) -> str:
        return options[int(self.rng.integers(len(options)))]

    def some(self, options: Sequence[str], count: int) -> list[str]:
        return [options[int(place)] for place in self.rng.choice(len(options), count, replace=False)]

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def atom(self) -> str:
        counters = self.some(self.counters, int(self.rng.integers(1, min(2, len(self.counters)) + 1)))
        sign = " - " if self.differences and self.chance(0.6) else " + "
        term = sign.join(self.one(("", "2 * ")) + counter for counter in counters)
        relation = self.one((">=", "<", ">", "<=", "==", "!=")) if self.chance(0.35) else ">="
        return f"{term} {relation} {self.one(_BOUNDS)}"

    def guard(self) -> str:
        kind = self.rng.random()
        if kind < 0.3:
            return "true"
        if kind < 0.7:
            return self.atom()
        return f"{self.atom()} {self.one(('&&', '&&', '||'))} {self.atom()}"

    def rule(self, number: int) -> str:
        source, target = self.one(self.locations), self.one(self.locations)
        if source > target and self.chance(0.7):
            source, target = target, source
        updates = []
        if source != target or self.chance(0.3):
            for counter in self.some(self.counters, int(self.rng.integers(0, len(self.counters) + 1))):
                if self.resets and self.chance(0.3):
                    updates.append(self.one((f"{counter}' == 0;", f"{counter}' == {counter} - 1;")))
                else:
                    updates.append(f"{counter}' == {counter} + {self.one(('1', '1', '2'))};")
        return f"{number}: {source} -> {target} when ({self.guard()}) do {{ {' '.join(updates)} }};"

    def condition(self) -> str:
        here, there = self.one(self.locations), self.one(self.locations)
        return self.one(
            (
                f"{here} == 0", f"{here} < 2", f"{here} + {there} < 2", f"({here} == 0 || {there} == 0)",
                f"({here} == 0 || {there} != 0)", f"{self.one(self.counters)} < {self.one(_BOUNDS)}",
                f"{here} < {self.one(_BOUNDS)}",
            )
        )  # fmt: skip

    def specification(self) -> str:
        kind = self.rng.random()
        if kind < 0.6:
            body = f"[]({self.condition()})"
        elif kind < 0.8:
            body = f"[]({self.condition()} -> []({self.condition()}))"
        else:
            body = f"[]({self.condition()}) || []({self.condition()})"
        if self.chance(0.4):
            body = f"({self.one(self.locations)} == 0) -> ({body})"
        return f"(T > F) -> ({body})" if self.chance(0.15) else body

    def text(self) -> str:
        starts = self.some(self.locations, int(self.rng.integers(1, 3)))
        initial = [f"{' + '.join(starts)} == {self.one(('N - F', 'N', 'N - T', '2'))};"]
        open_counters = [name for name in self.counters if self.differences and self.chance(0.4)]
        initial += [f"{name} == 0;" for name in self.locations if name not in starts]
        initial += [f"{name} {'<= N' if name in open_counters else '== 0'};" for name in self.counters]
        rules = [self.rule(number) for number in range(int(self.rng.integers(3, 9)))]
        specifications = [f"s{number}: {self.specification()};" for number in range(3)]
        lines = [
            "skel Drawn {",
            f"  shared {', '.join(self.counters)};",
            "  parameters N, T, F;",
            f"  assumptions (0) {{ {self.one(_RESILIENCE)} }}",
            "  locations (0) {",
            *(f"    {name}: [{number}];" for number, name in enumerate(self.locations)),
            "  }",
            "  inits (0) {",
            *(f"    {item}" for item in initial),
            "  }",
            "  rules (0) {",
            *(f"    {rule}" for rule in rules),
            "  }",
            "  specifications (0) {",
            *(f"    {item}" for item in specifications),
            "  }",
            "}",
        ]
        return "\n".join(lines) + "\n"
