"""Engines, step times and requests that the tests of branches share."""

import numpy as np
import pytest

from wavetank.platforms.step_time import FittedStepTime
from wavetank.serving.branches.predictor import MIXED, SIZE
from wavetank.serving.branches.workload import staged
from wavetank.workloads.requests import RequestTrace

# The plain least-squares line of Qwen3-32B on one RTX PRO 6000, s.
FITTED = (46.0e-3, 0.0812e-3, 1.718e-7)


def line(fixed_s=FITTED[0], sequence_s=FITTED[1], context_s=FITTED[2], prompt_s=2e-4):
    """Return a predictor whose two lines and blind ones agree where they can."""
    found = np.zeros(SIZE)
    found[:3] = found[MIXED : MIXED + 3] = fixed_s, sequence_s, context_s
    found[MIXED + 3] = found[11] = prompt_s
    found[7:9] = found[9:11] = fixed_s, sequence_s + 1500 * context_s
    return found


def line_step(prompt_s=2e-4):
    """Return the step time that :func:`line` predicts exactly."""
    return FittedStepTime(
        overhead_s=FITTED[0], per_request_s=FITTED[1], per_context_token_s=FITTED[2], per_prefill_token_s=prompt_s
    )


def requests_of(answers, *, gap_s=0.0, prompt_tokens=16):
    """Return requests with the given stages, one every ``gap_s``."""
    n = len(answers)
    trace = RequestTrace(
        arrival_s=np.arange(n) * gap_s, prompt_tokens=np.broadcast_to(prompt_tokens, n).copy(),
        output_tokens=np.ones(n, np.int64),
    )  # fmt: skip
    return staged(trace, answers)


def mixed_answers(seed, n=40):
    """Return random stages: serial ones, and parallel ones of up to six branches."""
    draws = np.random.default_rng(seed)
    answers = []
    for _ in range(n):
        stages = [[int(draws.integers(1, 30))]]
        for _ in range(draws.integers(0, 3)):
            stages += [draws.integers(1, 40, draws.integers(1, 7)).tolist(), [int(draws.integers(1, 20))]]
        answers.append(stages)
    return answers


@pytest.fixture
def busy():
    """Return forty requests that arrive faster than they are served."""
    return requests_of(mixed_answers(0), gap_s=0.05, prompt_tokens=np.random.default_rng(1).integers(1, 700, 40))
