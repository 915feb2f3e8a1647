"""Passages on an issue from a small knowledge base, found by BM25 and kept only where they are on its subject.

Source: S. Robertson, H. Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond", 2009.
"""

from __future__ import annotations

import functools
import importlib.resources
import math
import re
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

_WORD = re.compile(r"[a-z]+")
_SATURATION, _LENGTH = 1.5, 0.75
_COMMON = frozenset(
    words_of
    for words_of in re.findall(
        "[a-z]+",
        "a an and are as at be by for from has have in is it its no not of on one or so than that the their them they "
        "this to was what where which with would",
    )
)


@dataclass(frozen=True, kw_only=True)
class Passage:
    """An entry of the knowledge base.

    Parameters
    ----------
    name : str
    kinds : tuple of str
        Kinds of issues that it is about; none for what is about logs.
    says : str
    source : str
    """

    name: str
    kinds: tuple[str, ...]
    says: str
    source: str

    @property
    def cited(self) -> str:
        """How a finding cites it."""
        return f"{self.says} ({self.source})"


@functools.cache
def passages() -> tuple[Passage, ...]:
    """Return the knowledge base."""
    text = importlib.resources.files("wavetank.insight.io").joinpath("knowledge.toml").read_text(encoding="utf-8")
    return tuple(
        Passage(name=name, kinds=tuple(each["kinds"]), says=each["says"], source=each["source"])
        for name, each in tomllib.loads(text).items()
    )


def words(text: str) -> list[str]:
    """Return the words of a text that say something, without a plural's s.

    Parameters
    ----------
    text : str
    """
    found = (each for each in _WORD.findall(text.lower()) if each not in _COMMON)
    return [each[:-1] if len(each) > 3 and each.endswith("s") and not each.endswith("ss") else each for each in found]


@functools.cache
def _index() -> tuple[tuple[Counter[str], ...], Counter[str], float]:
    texts = tuple(Counter(words(each.says)) for each in passages())
    seen: Counter[str] = Counter(word for text in texts for word in text)
    return texts, seen, sum(map(Counter.total, texts)) / len(texts)


def ranked(query: str) -> list[tuple[float, Passage]]:
    """Return all passages that share a word with a query, the best first.

    Parameters
    ----------
    query : str
    """
    texts, seen, mean = _index()
    asked = set(words(query))
    found = []
    for text, passage in zip(texts, passages(), strict=True):
        score = 0.0
        for word in sorted(asked & set(text)):
            rare = math.log(1 + (len(texts) - seen[word] + 0.5) / (seen[word] + 0.5))
            long = 1 - _LENGTH + _LENGTH * text.total() / mean
            score += rare * text[word] * (_SATURATION + 1) / (text[word] + _SATURATION * long)
        if score > 0:
            found.append((score, passage))
    return sorted(found, key=lambda each: (-each[0], each[1].name))


def retrieve(query: str, kind: str, most: int = 3) -> Sequence[Passage]:
    """Return the best passages on a kind of issue; those on other subjects are dropped.

    Parameters
    ----------
    query : str
        What is known, in words.
    kind : str
    most : int
    """
    return [passage for _, passage in ranked(query) if kind in passage.kinds][:most]
