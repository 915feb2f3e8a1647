"""Lengths of the sequences of a batch: documents as they were counted, with a log-normal tail, or drawn ones.

Source: the histogram of 13.45 million training documents of SandAI's MagiAttention (data set ``seq-lengths``).

Differs from the source:

1. Inside of a class lengths are log-uniform.
2. The histogram ends at 196,608 tokens.  Its last class is drawn from the tail of the log-normal distribution through
   the two shares before, up to the longest length asked for.
"""

from __future__ import annotations

import csv
import functools
import io
import re

import numpy as np
from scipy.special import ndtr, ndtri

from wavetank.errors import BadFileError, BadValueError, DataUnavailableError
from wavetank.sim.rng import stream
from wavetank.training.context.interface import Floats, Ints
from wavetank.workloads import datasets

DATA, FILE = "seq-lengths", "doc_length_distribution.csv"
_CLASS = re.compile(r"\[(\d+), (\d+)\]")
# Where the data set is absent: median and spread of most documents, and the share of long ones.
_MEDIAN, _SIGMA, _LONG_SHARE = 540.0, 1.35, 0.006
_TAIL = (32_768, 131_072)


@functools.cache
def document_classes() -> tuple[tuple[int, int, int], ...] | None:
    """Return first length, last length and number of documents of each class; None where the data set is absent.

    Raises
    ------
    BadFileError
        If a row is no class.
    """
    try:
        path = datasets.find(DATA, FILE)
    except DataUnavailableError:
        return None
    return read_classes(path.read_text(encoding="utf-8"), str(path))


def read_classes(text: str, where: str = "") -> tuple[tuple[int, int, int], ...]:
    """Return the classes of a histogram with columns ``range`` (as ``[11, 50]``) and ``number``.

    Parameters
    ----------
    text : str
    where : str
        For messages.

    Raises
    ------
    BadFileError
        If a row is no class, or classes do not follow one another.
    """
    found: list[tuple[int, int, int]] = []
    for number, row in enumerate(csv.DictReader(io.StringIO(text)), start=2):
        match, count = _CLASS.fullmatch(row.get("range") or ""), row.get("number") or ""
        if match is None or not count.isdigit() or (found and int(match[1]) != found[-1][1] + 1):
            raise BadFileError(
                "This row is no class of lengths.", given=str(row)[:100], allowed='"[first, last]",documents, in order',
                where=f"{where}, line {number}",
            )  # fmt: skip
        found.append((max(int(match[1]), 1), int(match[2]), int(count)))
    if sum(count for _, _, count in found) == 0 or any(first > last for first, last, _ in found):
        raise BadFileError("The histogram holds no lengths.", where=where)
    return tuple(found)


def sequence_lengths(tokens: int, seed: int, *, mix: str, longest: int, median: float, sigma: float) -> Ints:
    """Return lengths that sum to ``tokens``: draws in their order, the last one cut.

    Parameters
    ----------
    tokens : int
        Tokens of the batch.
    seed : int
    mix : str
        ``documents``, ``lognormal`` or ``equal``.
    longest : int
        Longest sequence, tokens; all are as long where they are equal.
    median, sigma : float
        Of log-normal lengths.

    Raises
    ------
    BadValueError
        If there is no such mix.
    """
    if mix not in ("documents", "lognormal", "equal"):
        raise BadValueError("There is no such mix.", given=mix, allowed=("documents", "lognormal", "equal"))
    draws = stream(seed, "sequence lengths")
    parts: list[Ints] = []
    have = 0
    while have < tokens:
        uniform = draws.random((2, 4096))
        if mix == "equal":
            part = np.full(4096, longest, np.int64)
        elif mix == "lognormal":
            part = _log_normal(uniform[0], median, sigma, longest)
        else:
            part = _documents(uniform, longest)
        parts.append(part)
        have += int(part.sum())
    lengths = np.concatenate(parts)
    ends = np.cumsum(lengths)
    count = int(np.searchsorted(ends, tokens)) + 1
    lengths = lengths[:count].copy()
    lengths[-1] -= int(ends[count - 1]) - tokens
    return lengths


def _documents(uniform: Floats, longest: int) -> Ints:
    classes = document_classes()
    if classes is None:
        body = _log_normal(uniform[0] / (1 - _LONG_SHARE), _MEDIAN, _SIGMA, 32_768)
        tail = np.exp(np.log(32_768) + uniform[1] * np.log(longest / 32_768)) if longest > 32_768 else body
        return np.where(uniform[0] < 1 - _LONG_SHARE, body, tail).astype(np.int64)
    counts = np.array([count for _, _, count in classes], np.float64)
    ends = np.cumsum(counts) / counts.sum()
    place = np.minimum(np.searchsorted(ends, uniform[0], side="right"), counts.size - 1)
    first, last = (np.array([each[k] for each in classes], np.float64)[place] for k in (0, 1))
    lengths = np.exp(np.log(first) + uniform[1] * (np.log(last + 1) - np.log(first)))
    tail = place == counts.size - 1
    lasts = [each[1] for each in classes]
    if longest > lasts[-2] and all(each in lasts for each in _TAIL):
        # In the coordinates of log length and normal quantile a log-normal distribution is a line.
        x = np.log(np.array(_TAIL))
        y = ndtri(ends[[lasts.index(each) for each in _TAIL]])
        slope = (y[1] - y[0]) / (x[1] - x[0])
        low, high = ndtr(-y[1]), ndtr(-(y[1] + slope * (np.log(longest) - x[1])))
        beyond = low - uniform[1][tail] * (low - high)
        lengths[tail] = np.exp(x[1] + (-ndtri(beyond) - y[1]) / slope)
    return np.clip(lengths, 1, longest).astype(np.int64)


def _log_normal(uniform: Floats, median: float, sigma: float, longest: int) -> Ints:
    most = ndtr(np.log(longest / median) / sigma)
    drawn = median * np.exp(sigma * ndtri(np.clip(uniform, 1e-12, 1 - 1e-12) * most))
    return np.clip(drawn, 1, longest).astype(np.int64)
