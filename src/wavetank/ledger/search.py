"""Find studies, systems and papers by a user's own words: BM25 over what the catalog says of them, offline.

Each entry is a set of passages: its problems in a user's words, its name, its line, its claims, its source's title.
A passage that holds several of the words counts for more than several passages with one each.
"""

from __future__ import annotations

import difflib
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from wavetank.ledger import catalog
from wavetank.ledger.catalog import Catalog

KINDS = ("study", "system", "paper")

# What a passage weighs by where it stands, and the two constants of BM25 (Robertson and Zaragoza, 2009).
_PROBLEM, _NAME, _LINE, _TITLE, _CLAIM, _OF_ANOTHER = 3.0, 2.5, 2.0, 1.0, 0.7, 0.5
_K1, _B = 1.2, 0.6
# The share of the question's weight that an entry must cover, and the share of the best score that is still shown.
_COVERED, _NEAR_BEST = 0.5, 0.3
_STOP = frozenset(
    re.findall(
        r"\w+",
        "a about all am an and any are as at be because been but by can could do does for from get gets go had has "
        "have help how i if in into is it its just like me more much my need no not nothing of on one or our out "
        "should so some than that the their them then there these they this to too us use using want was we were "
        "what when where which who why will with would you your",
    )
)
_ENDINGS = ("ations", "ation", "ings", "ing", "ers", "er", "ed", "ies", "es", "s", "y", "e")


@dataclass(frozen=True)
class Match:
    """One entry that a question found.

    Attributes
    ----------
    kind : str
        A word of :data:`KINDS`.
    name : str
        The entry's name.
    score : float
        Larger is better; only comparable within one search.
    passage : str
        The passage that matches best, as the catalog has it.
    """

    kind: str
    name: str
    score: float
    passage: str


@dataclass(frozen=True)
class _Passage:
    entry: tuple[str, str]
    weight: float
    text: str
    counts: Counter[str]


def stems(text: str) -> list[str]:
    """Return the words of a text without case, accents, punctuation, common endings and words that say nothing.

    Parameters
    ----------
    text : str
        A question, or a passage of the catalog.

    Examples
    --------
    >>> stems("Why is the load-balancer's cache missing?"), stems("Load balancing: caches miss")
    (['load', 'balanc', 'cach', 'miss'], ['load', 'balanc', 'cach', 'miss'])
    """
    plain = unicodedata.normalize("NFKD", text).casefold().replace("'s", "").replace("n't", "")
    words = re.findall(r"\w+", "".join(letter for letter in plain if not unicodedata.combining(letter)))
    return [_stem(word) for word in words if word not in _STOP]


def _stem(word: str) -> str:
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3 and not (ending == "s" and word.endswith("ss")):
            word = word.removesuffix(ending)
            break
    if len(word) > 4 and word[-1] == word[-2] and word[-1] not in "sle":
        word = word[:-1]
    # Cache and caching, retry and retries, queue and queueing are of one stem.
    return word.rstrip("eiy") if len(word.rstrip("eiy")) >= 3 else word


class Index:
    """The passages of a catalog, ready to be searched.

    Parameters
    ----------
    entries : Catalog
        What is searched; nothing of it is imported.
    """

    def __init__(self, entries: Catalog) -> None:
        self._passages = [
            _Passage(entry, weight, text, Counter(stems(text))) for entry, weight, text in _passages(entries)
        ]
        self._mean = sum(each.counts.total() for each in self._passages) / max(len(self._passages), 1)
        having = Counter(stem for each in self._passages for stem in each.counts)
        count = len(self._passages)
        self._rarity = {stem: math.log(1 + (count - n + 0.5) / (n + 0.5)) for stem, n in having.items()}
        self._unknown = math.log(1 + 2 * count)
        self.problems = tuple(dict.fromkeys(each.text for each in self._passages if each.weight == _PROBLEM))

    def search(self, question: str, kinds: Sequence[str] = KINDS) -> list[Match]:
        """Return the entries that a question in a user's own words finds, best first.

        Parameters
        ----------
        question : str
            A few words or a sentence.  A word that the catalog lacks stands for those that begin with it, else for
            the three nearest ones.
        kinds : sequence of str, optional
            Which entries: words of :data:`KINDS`.

        Returns
        -------
        list of Match
            Empty where one word alone is found of several that weigh more.
        """
        asked = [(stem, self._known(stem)) for stem in dict.fromkeys(stems(question))]
        whole = sum(self._weight(options) for _, options in asked)
        best: dict[tuple[str, str], dict[str, float]] = {}
        single: dict[tuple[str, str], tuple[float, str]] = {}
        for each in self._passages:
            if each.entry[0] not in kinds:
                continue
            scores = {stem: each.weight * self._score(each, options) for stem, options in asked}
            total = sum(scores.values())
            if total > 0:
                found = best.setdefault(each.entry, {})
                for stem, score in scores.items():
                    found[stem] = max(found.get(stem, 0.0), score)
                single[each.entry] = max(single.get(each.entry, (0.0, "")), (total, each.text))
        matches = []
        for entry, found in best.items():
            held = [self._weight(options) for stem, options in asked if found[stem] > 0]
            covered = sum(held)
            # Of a long sentence two words are enough; of several words one at least is as the catalog has it.
            known = len(asked) == 1 or any(found[stem] > 0 and options == (stem,) for stem, options in asked)
            if known and (covered >= _COVERED * whole or len(held) > 1):
                # Together in one passage counts once more.
                score = (sum(found.values()) + single[entry][0]) * covered / whole
                matches.append(Match(*entry, score, single[entry][1]))
        matches.sort(key=lambda match: (-match.score, KINDS.index(match.kind), match.name))
        return [match for match in matches if match.score >= _NEAR_BEST * matches[0].score]

    def nearest_problem(self, question: str) -> str:
        """Return the problem of the catalog that is spelt much as a question that found nothing; empty for none."""
        folded = {problem.casefold(): problem for problem in self.problems}
        found = difflib.get_close_matches(question.casefold(), folded, n=1, cutoff=0.6)
        return folded[found[0]] if found else ""

    def _known(self, stem: str) -> tuple[str, ...]:
        """Return the stem, or what may stand for it where the catalog lacks it; empty when nothing is near."""
        if stem in self._rarity:
            return (stem,)
        longer = tuple(known for known in self._rarity if len(stem) >= 3 and known.startswith(stem))
        # One letter in three makes another word.
        return longer or tuple(difflib.get_close_matches(stem, self._rarity, n=3, cutoff=0.8) if len(stem) > 3 else ())

    def _weight(self, options: tuple[str, ...]) -> float:
        return max((self._rarity[stem] for stem in options), default=self._unknown)

    def _score(self, passage: _Passage, options: tuple[str, ...]) -> float:
        """Return BM25 of one word of the question, the best of what stands for it."""
        length = 1 - _B + _B * passage.counts.total() / self._mean
        return max(
            (
                self._rarity[stem] * passage.counts[stem] * (_K1 + 1) / (passage.counts[stem] + _K1 * length)
                for stem in options
                if stem in passage.counts
            ),
            default=0.0,
        )


@cache
def index() -> Index:
    """Return the index of everything that can be named, made once per process."""
    return Index(catalog.everything())


def _passages(entries: Catalog) -> Iterator[tuple[tuple[str, str], float, str]]:
    """Yield entry, weight and text of every passage."""

    def own(kind: str, name: str, problems: Iterable[str], line: str) -> Iterator[tuple[tuple[str, str], float, str]]:
        yield (kind, name), _NAME, name.replace("-", " ")
        yield (kind, name), _LINE, line
        for problem in problems:
            yield (kind, name), _PROBLEM, problem

    for study in entries.studies.values():
        yield from own("study", study.name, study.problems, study.asks)
    for system in entries:
        # A system answers the problems of its studies, less so than those that it names itself.
        yield from own("system", system.name, system.problems, system.does)
        yield ("system", system.name), _TITLE, " ".join(str(system.source.get(key, "")) for key in ("title", "arxiv"))
        for claim in system.claims:
            yield ("system", system.name), _CLAIM, claim.says
        for study in (entries.studies[name] for name in system.studies if name in entries.studies):
            part = 1.0 if system.role == "system" else 0.6
            for problem in study.problems:
                yield ("system", system.name), part, problem
            yield ("study", study.name), _OF_ANOTHER, f"{system.name.replace('-', ' ')}: {system.does}"
            for problem in system.problems:
                yield ("study", study.name), _LINE, problem
    for paper in entries.papers.values():
        words = [str(paper.source.get(key, "")) for key in ("title", "arxiv", "venue")]
        yield ("paper", paper.name), _LINE, " ".join(filter(None, (paper.name.replace("-", " "), *words)))
        for system in entries:
            if system.paper == paper.name:
                yield ("paper", paper.name), _OF_ANOTHER, system.does
