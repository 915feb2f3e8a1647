"""A job of three sections that is small enough to be computed whole: image encoder, frozen teacher, student.

The encoder turns patches into one vector; teacher and student see tokens, the student with that vector added to each.
The teacher sends hidden states, and its output layer stands in the student's section.  The loss is the cross entropy of
the student with what the teacher says.  All is float64, gradients by hand.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from wavetank.errors import BadValueError
from wavetank.sim.rng import stream
from wavetank.training.sections.interface import Floats, Ints

WIDTH, PATCH, VOCABULARY = 12, 6, 17


@dataclass(frozen=True, kw_only=True, eq=False)
class Sample:
    """What each section sees of a sample.

    Parameters
    ----------
    patches : float64 array (patches, PATCH)
        No rows without an image.
    tokens : float64 array (tokens, WIDTH)
    """

    patches: Floats
    tokens: Floats


def samples(seed: int, count: int, images: float) -> list[Sample]:
    """Return samples of random lengths.

    Parameters
    ----------
    seed, count : int
    images : float
        Share that has an image, on average.
    """
    draws = stream(seed, "tiny samples")
    found = []
    for _ in range(count):
        patches = int(draws.integers(1, 9)) if draws.random() < images else 0
        tokens = int(draws.integers(1, 7))
        found.append(Sample(patches=draws.normal(size=(patches, PATCH)), tokens=draws.normal(size=(tokens, WIDTH))))
    return found


def _weights(name: str, *shape: int) -> Floats:
    return stream(0, "tiny weights", name).normal(size=shape) / np.sqrt(shape[0])


class Encoder:
    """The encoder's section: its weights, their gradients, and what it keeps for backward passes."""

    def __init__(self) -> None:
        self.first, self.second = _weights("first", PATCH, WIDTH), _weights("second", WIDTH, WIDTH)
        self.gradients = [np.zeros_like(self.first), np.zeros_like(self.second)]
        self._kept: dict[int, tuple[Floats, Floats]] = {}

    def forward(self, number: int, patches: Floats) -> Floats:
        """Return the vector of an image.

        Parameters
        ----------
        number : int
            Of the sample.
        patches : float64 array (patches, PATCH)
        """
        hidden = np.tanh(patches @ self.first)
        self._kept[number] = patches, hidden
        return np.asarray(hidden.mean(0) @ self.second)

    def backward(self, number: int, gradient: Floats) -> None:
        """Add a sample's gradients.

        Parameters
        ----------
        number : int
        gradient : float64 array (WIDTH,)
            Of the vector.

        Raises
        ------
        BadValueError
            If the sample has not been forward.
        """
        if number not in self._kept:
            raise BadValueError("A backward pass comes after the sample's forward pass.", given=f"sample {number}")
        patches, hidden = self._kept.pop(number)
        self.gradients[1] += np.outer(hidden.mean(0), gradient)
        inner = (self.second @ gradient) / len(patches) * (1 - hidden * hidden)
        self.gradients[0] += patches.T @ inner


class Teacher:
    """The teacher's section: forward only."""

    def __init__(self) -> None:
        self._weights = _weights("teacher", WIDTH, WIDTH)

    def forward(self, tokens: Floats) -> Floats:
        """Return hidden states.

        Parameters
        ----------
        tokens : float64 array (tokens, WIDTH)
        """
        return np.asarray(np.tanh(tokens @ self._weights))


class Student:
    """The critical section: the student, and the teacher's output layer."""

    def __init__(self) -> None:
        self.inner, self.outer = _weights("inner", WIDTH, WIDTH), _weights("outer", WIDTH, VOCABULARY)
        self._says = _weights("teacher's output", WIDTH, VOCABULARY)
        self.gradients = [np.zeros_like(self.inner), np.zeros_like(self.outer)]
        self.loss = 0.0

    def step(self, tokens: Floats, image: Floats | None, taught: Floats) -> Floats | None:
        """Go forward and backward with a sample; return the gradient of the image's vector.

        Parameters
        ----------
        tokens : float64 array (tokens, WIDTH)
        image : float64 array (WIDTH,), optional
        taught : float64 array (tokens, WIDTH)
            The teacher's hidden states.
        """
        seen = tokens if image is None else tokens + image
        hidden = np.tanh(seen @ self.inner)
        logits, wanted = hidden @ self.outer, taught @ self._says
        wanted = np.exp(wanted - wanted.max(1, keepdims=True))
        wanted /= wanted.sum(1, keepdims=True)
        most = logits.max(1, keepdims=True)
        sums = np.log(np.exp(logits - most).sum(1, keepdims=True)) + most
        self.loss += float((wanted * (sums - logits)).sum())
        back = np.exp(logits - sums) - wanted
        self.gradients[1] += hidden.T @ back
        back = (back @ self.outer.T) * (1 - hidden * hidden)
        self.gradients[0] += seen.T @ back
        return None if image is None else np.asarray((back @ self.inner.T).sum(0))


def gradients(given: list[Sample], order: Ints, ahead: int) -> list[Floats]:
    """Return the gradients of a step, with the encoder some samples ahead of the student.

    Parameters
    ----------
    given : list of Sample
    order : int64 array
    ahead : int
        Images that the encoder may have computed and not yet got back; 1 or more.

    Raises
    ------
    BadValueError
        If the encoder may not be ahead at all, or the order leaves samples out.
    """
    if ahead < 1 or not np.array_equal(np.sort(order), np.arange(len(given))):
        raise BadValueError("Each sample comes once, and the encoder is ahead.", given=f"{len(order)}, {ahead} ahead")
    encoder, teacher, student = Encoder(), Teacher(), Student()
    images = [int(k) for k in order if len(given[k].patches)]
    vectors: dict[int, Floats] = {}
    backs: list[tuple[int, Floats]] = []
    following = iter(images)
    for k in map(int, order):
        while (k in images and k not in vectors) or len(vectors) + len(backs) < ahead:
            number = next(following, None)
            if number is None:
                break
            vectors[number] = encoder.forward(number, given[number].patches)
        back = student.step(given[k].tokens, vectors.pop(k, None), teacher.forward(given[k].tokens))
        if back is not None:
            backs.append((k, back))
        if len(backs) >= ahead:
            encoder.backward(*backs.pop(0))
    for each in backs:
        encoder.backward(*each)
    return [*encoder.gradients, *student.gradients]


def largest_difference(one: Iterable[Floats], other: Iterable[Floats]) -> float:
    """Return the largest difference of gradients.

    Parameters
    ----------
    one, other : iterable of float64 array
    """
    return max(float(np.abs(a - b).max()) for a, b in zip(one, other, strict=True))
