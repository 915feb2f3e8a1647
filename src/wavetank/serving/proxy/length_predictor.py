"""Predicts how long answers will be from those that have ended: their mean and spread, by model and length of prompt.

Answers to prompts of a like length (within a factor of two) for the same model make one cell; what ended long ago
counts less and less, so that a change in the traffic is followed.  A cell that has seen too little is not believed:
then all answers of the model count, then all there are.

Source: exponentially weighted mean and variance (D. H. D. West, "Updating mean and variance estimates: an improved
method", CACM 1979), unbiased for the weights.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from wavetank.workloads.requests import RequestTrace

_ALL = -1
_MOST_NAME_CHARACTERS = 500
UNKNOWN = (math.nan, math.nan)


class _Cell:
    """A mean and a variance in which older values count less."""

    __slots__ = ("mean", "seen", "squares", "weight", "weight_squares")

    def __init__(self) -> None:
        self.seen = 0
        self.weight = self.weight_squares = self.mean = self.squares = 0.0

    def add(self, value: float, keep: float) -> None:
        self.seen += 1
        self.weight = keep * self.weight + 1.0
        self.weight_squares = keep * keep * self.weight_squares + 1.0
        off = value - self.mean
        self.mean += off / self.weight
        self.squares = keep * self.squares + off * (value - self.mean)

    def estimate(self) -> tuple[float, float]:
        freedom = self.weight - self.weight_squares / self.weight
        return self.mean, math.sqrt(max(self.squares, 0.0) / freedom) if freedom > 0.0 else math.nan


class LengthPredictor:
    """Learns from answers that have ended and predicts those to come.

    Parameters
    ----------
    memory : float
        Answers after which one counts a third of what it did (1/e).
    enough : int
        Answers that a cell must have seen before it is believed; at least 2.
    most_cells : int
        Further pairs of model and length are predicted by what all have in common.
    """

    def __init__(self, *, memory: float = 500.0, enough: int = 10, most_cells: int = 8192) -> None:
        self._keep = math.exp(-1.0 / memory)
        self._enough = max(enough, 2)
        self._most = most_cells
        self._cells: dict[tuple[str, int], _Cell] = {}
        self._all = _Cell()

    def __len__(self) -> int:
        return len(self._cells)

    def learn(self, prompt_tokens: int, output_tokens: int, model: str = "") -> None:
        """Take in an answer that has ended.

        Parameters
        ----------
        prompt_tokens, output_tokens : int
        model : str
            Empty where it is not known.
        """
        self._all.add(output_tokens, self._keep)
        if len(model) > _MOST_NAME_CHARACTERS:
            return
        for key in ((model, _ALL), (model, _class_of(prompt_tokens))):
            cell = self._cells.get(key)
            if cell is None:
                if len(self._cells) >= self._most:
                    return
                cell = self._cells[key] = _Cell()
            cell.add(output_tokens, self._keep)

    def estimate(self, prompt_tokens: int, model: str = "", max_tokens: float = math.nan) -> tuple[float, float]:
        """Return the expected tokens of an answer and their standard deviation; NaN before enough has been seen.

        Parameters
        ----------
        prompt_tokens : int
        model : str
        max_tokens : float
            The longest answer that the request allows; NaN where it names none.
        """
        mean, spread = self._plain(_class_of(prompt_tokens), model)
        # In this order a limit that is not known, or a mean, changes nothing.
        return (max_tokens if max_tokens < mean else mean), spread

    def _plain(self, length: int, model: str) -> tuple[float, float]:
        for key in ((model, length), (model, _ALL)):
            cell = self._cells.get(key)
            if cell is not None and cell.seen >= self._enough:
                return cell.estimate()
        return self._all.estimate() if self._all.seen >= self._enough else UNKNOWN

    def fit(self, past: RequestTrace) -> None:
        """Take in the answers of a trace, in its order."""
        for prompt, output, model in zip(
            past.prompt_tokens.tolist(), past.output_tokens.tolist(), _models_of(past), strict=True
        ):
            self.learn(prompt, output, model)

    def predict(self, requests: RequestTrace) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the expected tokens of a trace's answers and their standard deviations.

        They are what :func:`wavetank.serving.simulate` takes as ``expected_output_tokens`` and
        ``output_spread_tokens``; nothing is learned from the trace.
        """
        lengths = [_class_of(prompt) for prompt in requests.prompt_tokens.tolist()]
        known: dict[tuple[int, str], tuple[float, float]] = {}
        rows = []
        for key in zip(lengths, _models_of(requests), strict=True):
            if key not in known:
                known[key] = self._plain(*key)
            rows.append(known[key])
        expected, spread = np.array(rows, np.float64).T.copy()
        if requests.max_tokens is not None:
            expected = np.where(requests.max_tokens > 0, np.minimum(expected, requests.max_tokens), expected)
        return expected, spread


def _class_of(prompt_tokens: int) -> int:
    """Return the class of a prompt's length: those of one class differ by less than a factor of two."""
    return max(int(prompt_tokens), 1).bit_length()


def _models_of(requests: RequestTrace) -> list[str]:
    if requests.model is None:
        return [""] * len(requests)
    return [requests.model_names[code] for code in requests.model.tolist()]
