"""A stand-in for a language model that forgets: what a merge tree is worth when long prompts lose facts.

Each line of a prompt is kept with probability exp(-L / L0), L the length of the prompt, L0 a memory.  A flat prompt
with n lines keeps a fact with exp(-n l / L0).  A tree whose merges see two summaries of s lines keeps it with
exp(-2 s l / L0) at each of its log2 n levels: it wins where 2 s log2 n < n and loses elsewhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from wavetank.insight.io.merge import tree
from wavetank.settings import check_ranges, setting

_LINE = 100
_DETAIL = "detail".ljust(_LINE)


class Forgetful:
    """Repeats the lines of a prompt, each with a probability that falls with the prompt's length.

    Parameters
    ----------
    memory : float
        Characters over which a line is kept with probability 1/e.
    draws : numpy.random.Generator
    """

    def __init__(self, memory: float, draws: np.random.Generator) -> None:
        self.memory, self._draws = memory, draws

    def ask(self, question: str) -> str:
        """See :class:`wavetank.live.language_model.LanguageModel`.

        Parameters
        ----------
        question : str
        """
        lines = question.split("\n")
        kept = self._draws.random(len(lines)) < math.exp(-len(question) / self.memory)
        return "\n".join(line for line, keep in zip(lines, kept, strict=True) if keep)


@dataclass(frozen=True, kw_only=True)
class ForgettingMerge:
    """Facts, one a fragment, that a forgetful model brings together: in one prompt, or in a tree."""

    facts: int = setting(32, says="Fragments, each with one fact", low=1, high=99)
    memory_lines: float = setting(
        40.0, unit="lines", says="Length over which a fact is kept with probability 1/e", low=0.1
    )
    summary: int = setting(2, unit="lines", says="Of a summary, at most and at least", low=1, high=100)
    flat: bool = False

    def __post_init__(self) -> None:
        check_ranges(self)

    def kept(self, draws: np.random.Generator) -> float:
        """Return the share of the facts that are still there at the end.

        Parameters
        ----------
        draws : numpy.random.Generator
        """
        model = Forgetful(self.memory_lines * _LINE, draws)
        if self.flat:
            answer = model.ask("\n".join(f"{number:02d}".ljust(_LINE - 1) for number in range(self.facts)))
            return len(_facts(answer)) / self.facts

        def join(first: str, second: str) -> str:
            return self._summary(_facts(model.ask(f"{first}\n{second}")))

        return len(_facts(tree([self._summary([f"{number:02d}"]) for number in range(self.facts)], join))) / self.facts

    def _summary(self, facts: list[str]) -> str:
        """Return facts in as many lines as a summary has, several in one where there are more."""
        lines = [" ".join(facts[at :: self.summary]).ljust(_LINE - 1) for at in range(self.summary)]
        return "\n".join(line if line.strip() else _DETAIL[:-1] for line in lines)

    def expected(self) -> float:
        """Return the share that is kept on average, by the formula."""
        if self.flat:
            return math.exp(-self.facts / self.memory_lines)
        return math.exp(-2 * self.summary * math.ceil(math.log2(self.facts)) / self.memory_lines)


def _facts(text: str) -> list[str]:
    return [word for word in text.split() if word.isdecimal()]
