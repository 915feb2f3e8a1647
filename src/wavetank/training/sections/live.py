"""A step of a job of three sections, each a real process; samples travel in a planned order through torch's gloo.

Process 0 is the encoder, 1 the student (critical), 2 the teacher, which never gets anything back.  Needs the extra
``torch``.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from wavetank.errors import BadValueError
from wavetank.live.ranks import run_ranks
from wavetank.training.sections.interface import Floats, Ints
from wavetank.training.sections.tiny_sections import WIDTH, Encoder, Student, Teacher, samples

ENCODER, STUDENT, TEACHER = range(3)


@dataclass(frozen=True, kw_only=True)
class LiveStep:
    """What processes found.

    Parameters
    ----------
    gradients : list of float64 array
        Of the encoder, then of the student.
    loss : float
    student_s : float
        Time of the student, from its first sample to the last.
    """

    gradients: list[Floats]
    loss: float
    student_s: float


def step_on_ranks(
    seed: int, count: int, images: float, order: Ints, *, ahead: int = 2, timeout_s: float = 120.0
) -> LiveStep:
    """Return the gradients of a step whose sections are processes.

    Parameters
    ----------
    seed, count : int
    images : float
        As for :func:`~wavetank.training.sections.tiny_sections.samples`.
    order : int64 array
    ahead : int
        Images that the encoder may have sent and not yet got back.
    timeout_s : float
        For the whole.

    Raises
    ------
    BadValueError
        If the order leaves samples out, or the encoder may not be ahead.
    WavetankError
        If a process fails or does not end in time.
    """
    order = np.asarray(order, np.int64)
    if ahead < 1 or not np.array_equal(np.sort(order), np.arange(count)):
        raise BadValueError("Each sample comes once, and the encoder is ahead.", given=f"{order.size}, {ahead} ahead")
    arguments = {"seed": seed, "count": count, "images": images, "order": order, "ahead": ahead}
    encoder, student, _ = run_ranks(section_here, 3, arguments=arguments, timeout_s=timeout_s)
    loss, seconds, inner, outer = student
    return LiveStep(gradients=[*encoder, inner, outer], loss=loss, student_s=seconds)


def section_here(rank: Any, seed: int, count: int, images: float, order: Ints, ahead: int) -> list[Any]:
    """Do the work of this process's section.

    Parameters
    ----------
    rank : wavetank.live.rank_process.Rank
    seed, count, images, order, ahead
        As for :func:`step_on_ranks`.
    """
    import torch

    given = samples(seed, count, images)
    numbers = [int(each) for each in order]
    with_image = [k for k in numbers if len(given[k].patches)]
    waits: list[Any] = []
    # All are there before anybody is done.
    rank.join()
    if rank.number == ENCODER:
        encoder = Encoder()
        for place, k in enumerate(with_image):
            if place >= ahead:
                number = with_image[place - ahead]
                encoder.backward(number, _taken(rank, STUDENT, (WIDTH,)))
            waits.append(_given(rank, STUDENT, encoder.forward(k, given[k].patches)))
        for number in with_image[max(len(with_image) - ahead, 0) :]:
            encoder.backward(number, _taken(rank, STUDENT, (WIDTH,)))
        found: list[Any] = list(encoder.gradients)
    elif rank.number == TEACHER:
        teacher = Teacher()
        waits += [_given(rank, STUDENT, teacher.forward(given[k].tokens)) for k in numbers]
        found = []
    else:
        student = Student()
        began = time.perf_counter()
        for k in numbers:
            image = _taken(rank, ENCODER, (WIDTH,)) if len(given[k].patches) else None
            back = student.step(given[k].tokens, image, _taken(rank, TEACHER, given[k].tokens.shape))
            if back is not None:
                waits.append(_given(rank, ENCODER, back))
        found = [student.loss, time.perf_counter() - began, *student.gradients]
    for each, _ in waits:
        each.wait()
    rank.all_reduce(torch.zeros(1))
    return found


def _given(rank: Any, target: int, content: Floats) -> tuple[Any, Any]:
    """Begin to send; the tensor must live until it has gone."""
    import torch

    tensor = torch.from_numpy(np.array(content, np.float64))
    return rank.group.send([tensor], target, 0), tensor


def _taken(rank: Any, source: int, shape: tuple[int, ...]) -> Floats:
    import torch

    tensor = torch.empty(shape, dtype=torch.float64)
    rank.group.recv([tensor], source, 0).wait()
    return np.asarray(tensor.numpy())
