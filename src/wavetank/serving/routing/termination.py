"""How likely a running request is to be still alive some steps ahead: what a look-ahead router needs to know.

Three answers of rising knowledge, and none: *geometric* (every step ends it with the same probability, fitted on past
lengths), *logistic* (the probability to end within the horizon depends on how much was generated and on the prompt),
*oracle* (the truth; only a simulation has it).

Source: the termination-classifier interface of Bu et al., "Tackling the Data-Parallel Load Balancing Bottleneck in LLM
Serving", arXiv 2605.06113; logistic regression by Newton's method (Bishop, "Pattern Recognition and Machine Learning",
section 4.3.3).

Differs from the source:

1. The paper does not publish its classifier's features; ours are log(1 + generated) and log(prompt).
2. The classifier's probability for the whole horizon is spread over its steps as a constant hazard.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wavetank.errors import BadValueError
from wavetank.sim.rng import stream

_SAMPLES = 20_000
_RIDGE = 1e-6


def fit_geometric(output_tokens: ArrayLike) -> float:
    """Return the mean output length: the maximum-likelihood hazard of a step is its inverse.

    Raises
    ------
    BadValueError
        If there are no lengths.
    """
    lengths = np.asarray(output_tokens, np.float64)
    if not lengths.size:
        raise BadValueError("A termination classifier needs past lengths.", given="none", allowed="one or more")
    return max(float(lengths.mean()), 1.0)


def fit_logistic(prompt_tokens: ArrayLike, output_tokens: ArrayLike, horizon_steps: int) -> tuple[float, float, float]:
    """Fit P(ends within the horizon | generated, prompt) on past requests.

    Each sample is a moment in the life of a past request, drawn so that every decode step of the past is equally
    likely: that is what a router meets.

    Parameters
    ----------
    prompt_tokens, output_tokens : array-like of shape (requests,)
    horizon_steps : int
        At least 1.

    Returns
    -------
    tuple of float
        Intercept, weight of log(1 + generated), weight of log(prompt).
    """
    prompts, outputs = np.asarray(prompt_tokens, np.float64), np.asarray(output_tokens, np.int64)
    # The first token comes with the prompt, the others with a decode step each.
    steps = outputs - 1
    if prompts.shape != outputs.shape or not (steps > 0).any() or horizon_steps < 1:
        raise BadValueError(
            "A termination classifier needs past requests that decode, and a horizon.",
            given=f"{outputs.size} lengths, horizon {horizon_steps}",
            allowed="a length of 2 or more, a horizon of 1 or more",
        )
    rng = stream(0, "logistic-termination")
    step = rng.integers(0, steps.sum(), _SAMPLES)
    ends = np.cumsum(steps)
    request = np.searchsorted(ends, step, side="right")
    generated = 1 + step - (ends[request] - steps[request])
    remaining = outputs[request] - generated
    design = np.column_stack([np.ones(_SAMPLES), np.log1p(generated), np.log(prompts[request])])
    return newton_logistic(design, remaining <= horizon_steps)


def newton_logistic(design: NDArray[np.float64], hit: NDArray[np.bool_]) -> tuple[float, float, float]:
    """Return the coefficients of a logistic regression with a very small ridge, so that separable data end too."""
    weights = np.zeros(design.shape[1])
    penalty = _RIDGE * len(design) * np.eye(design.shape[1])
    for _ in range(50):
        probability = 1.0 / (1.0 + np.exp(-np.clip(design @ weights, -30, 30)))
        gradient = design.T @ (hit - probability) - penalty @ weights
        curvature = (design * (probability * (1 - probability))[:, None]).T @ design + penalty
        change = np.linalg.solve(curvature, gradient)
        weights += change
        if np.abs(change).max() < 1e-9:
            break
    return float(weights[0]), float(weights[1]), float(weights[2])
