"""Unscented Kalman filters over states of satellites, alone and as interacting multiple models, compiled.

A filter predicts a state to the next record's epoch, compares it with the state of that record, and moves on.  The
measurement is the state itself, so that the update is the linear one; the unscented transform serves the prediction.

One state is propagated in short steps.  The models' means and their sigma points are close to it: what is added to it
is the difference of two propagations in longer steps, whose errors are the same and cancel.

Source: E. Wan and R. van der Merwe (2000) for the transform with alpha 1e-2, beta 2, kappa 0; H. Blom and Y. Bar-Shalom
(1988) for interacting models; noises and transitions of arXiv 2605.09790.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wavetank.insight.orbits.mechanics import (
    AREA_TO_MASS,
    DAY_S,
    Floats,
    _propagate,
    _propagate_all,
    altitude_km,
    states,
)
from wavetank.sim.compiled import compiled
from wavetank.workloads.tle import Elements

STATION, MANOEUVRE, DECAY = range(3)
"""The models, in their order."""
_ALPHA, _BETA, _KAPPA = 1e-2, 2.0, 0.0
_SIZE = 6
_LAMBDA = _ALPHA**2 * (_SIZE + _KAPPA) - _SIZE
_CENTRE = _LAMBDA / (_SIZE + _LAMBDA)
_CENTRE_SPREAD = _CENTRE + 1 - _ALPHA**2 + _BETA
_OTHER = 0.5 / (_SIZE + _LAMBDA)
# Position in m and velocity in m/s of one update, of the models in their order.
NOISE = np.array([[100.0, 0.01], [500.0, 1.0], [2000.0, 0.1]])
MEASURED = (1000.0, 1.0)
"""Noise of a record's state: m, m/s."""
TRANSITIONS = np.array([[0.97, 0.015, 0.015], [0.10, 0.85, 0.05], [0.02, 0.03, 0.95]])
"""From the row's model to the column's, per update, at 550 km."""
_LONGEST_GAP_S = 10 * DAY_S
# Steps per revolution: of the centre, and of the differences.
_STEPS, _COARSE_STEPS = 15.0, 8.0


@dataclass(frozen=True)
class Filtered:
    """What filtering a history gives, record by record.

    Parameters
    ----------
    probability : numpy.ndarray of float64, shape (n, models)
        Of each model after the record's update; a filter that begins anew has its prior.
    surprise : numpy.ndarray of float64, shape (n,)
        Least squared innovation of any model in units of its covariance (chi-square of 6 degrees); NaN where the filter
        began.
    """

    probability: Floats
    surprise: Floats


def prior(height_km: float) -> Floats:
    """Return the probabilities with which a filter begins: of decay the more, the lower the orbit.

    Parameters
    ----------
    height_km : float
    """
    low = min(max((500.0 - height_km) / 300.0, 0.0), 1.0)
    return np.array([0.90 - 0.85 * low, 0.05, 0.05 + 0.85 * low])


def transitions(height_km: float) -> Floats:
    """Return the transitions per update: below 350 km, station keeping turns into decay by up to 0.10 more.

    Parameters
    ----------
    height_km : float
        The whole 0.10 is reached at 250 km.
    """
    more = 0.10 * min(max((350.0 - height_km) / 100.0, 0.0), 1.0)
    found = TRANSITIONS.copy()
    found[STATION, STATION] -= more
    found[STATION, DECAY] += more
    return found


def decay_scale(height_km: float) -> float:
    """Return by what decay's noise is multiplied: (550 / height)^2 between 1 and 20.

    Parameters
    ----------
    height_km : float
    """
    return min(max((550.0 / max(height_km, 1.0)) ** 2, 1.0), 20.0)


def filtered(
    elements: Elements,
    models: tuple[int, ...] = (STATION, MANOEUVRE, DECAY),
    measured: tuple[float, float] = MEASURED,
) -> Filtered:
    """Filter a history with some models; one model alone is an unscented Kalman filter.

    Parameters
    ----------
    elements : Elements
        With its lines.
    models : tuple of int
        Of :data:`STATION`, :data:`MANOEUVRE` and :data:`DECAY`.
    measured : tuple of float
        Noise of a record's state: position in m, velocity in m/s.

    Notes
    -----
    A filter begins anew after ten days without a record, and after a record that SGP4 refuses.
    """
    seen = states(elements)
    heights = altitude_km(elements)
    chosen = np.array(models)
    noises = np.repeat(NOISE[None, chosen], len(elements), axis=0)
    moves, priors = np.empty((len(elements), len(models), len(models))), np.empty((len(elements), len(models)))
    for at, height in enumerate(heights.tolist()):
        noises[at, chosen == DECAY] *= decay_scale(height)
        move, begin = transitions(height)[np.ix_(chosen, chosen)], prior(height)[chosen]
        moves[at], priors[at] = move / move.sum(axis=1, keepdims=True), begin / begin.sum()
    seconds = np.diff(elements.epoch_ns, prepend=elements.epoch_ns[:1]) / 1e9
    period_s = DAY_S / elements.mean_motion
    probability, surprise = np.empty((len(elements), len(models))), np.empty(len(elements))
    _filter(
        seen, seconds, np.clip(elements.drag, 0.0, None) * AREA_TO_MASS, period_s, noises, np.array(measured),
        moves, priors,
        probability, surprise,
    )  # fmt: skip
    return Filtered(probability, surprise)


@compiled
def _filter(  # type: ignore[no-untyped-def]
    seen, seconds, drag, period_s, noises, measured, moves, priors, probability, surprise
):
    models = priors.shape[1]
    means, spreads = np.zeros((models, 6)), np.zeros((models, 6, 6))
    began = False
    for at in range(seen.shape[0]):
        if np.isnan(seen[at, 0]):
            began = False
        if not began or seconds[at] > _LONGEST_GAP_S:
            probability[at], surprise[at] = priors[at], np.nan
            began = not np.isnan(seen[at, 0])
            for model in range(models):
                means[model] = seen[at]
                spreads[model] = 0.0
                for i in range(6):
                    spreads[model, i, i] = measured[i // 3] ** 2
            continue
        mixed, mixed_spreads, weights = _mix(means, spreads, probability[at - 1], moves[at])
        fits = np.empty(models)
        least = np.inf
        # The models' states differ by little: one of them is propagated in short steps, and stands for all.
        fine = _propagate(mixed[0].copy(), seconds[at], drag[at - 1], period_s[at] / _STEPS)
        rough = _propagate(mixed[0].copy(), seconds[at], drag[at - 1], period_s[at] / _COARSE_STEPS)
        for model in range(models):
            mean, spread = _predict(
                mixed[model], mixed_spreads[model], seconds[at], drag[at - 1], period_s[at], fine, rough
            )
            for i in range(6):
                spread[i, i] += noises[at, model, i // 3] ** 2
            means[model], spreads[model], fits[model], distance = _update(mean, spread, seen[at], measured)
            least = min(least, distance)
        surprise[at] = least
        probability[at] = _weighed(weights, fits)


@compiled
def _mix(means, spreads, probability, moves):  # type: ignore[no-untyped-def]
    """Mix the models by the probability that each was the one before; also return each one's probability now."""
    models = means.shape[0]
    now = np.zeros(models)
    out, out_spreads = np.zeros((models, 6)), np.zeros((models, 6, 6))
    for to in range(models):
        for of in range(models):
            now[to] += moves[of, to] * probability[of]
        for of in range(models):
            share = moves[of, to] * probability[of] / max(now[to], 1e-300)
            # As a difference from one of them: states are large, and what they differ by is small.
            out[to] += share * (means[of] - means[0])
        out[to] += means[0]
        for of in range(models):
            share = moves[of, to] * probability[of] / max(now[to], 1e-300)
            off = means[of] - out[to]
            for i in range(6):
                for j in range(6):
                    out_spreads[to, i, j] += share * (spreads[of, i, j] + off[i] * off[j])
    return out, out_spreads, now


@compiled
def _weighed(weights, fits):  # type: ignore[no-untyped-def]
    """Bayes' rule with logarithms of likelihoods."""
    most = fits.max()
    out = weights * np.exp(fits - most)
    total = out.sum()
    return out / total if total > 0.0 else weights / weights.sum()


@compiled
def _predict(mean, spread, seconds, drag, period_s, fine, rough):  # type: ignore[no-untyped-def]
    """The unscented transform of a state through the propagation, beside one that was propagated both ways."""
    root = _root(spread)
    scale = math.sqrt(_SIZE + _LAMBDA)
    coarse = period_s / _COARSE_STEPS
    points, moved = np.empty((1 + 2 * _SIZE, 6)), np.empty((1 + 2 * _SIZE, 6))
    points[0] = mean
    for i in range(_SIZE):
        for side in range(2):
            points[1 + 2 * i + side] = mean + (1.0 - 2.0 * side) * scale * root[:, i]
    _propagate_all(points, seconds, drag, coarse, moved)
    own = moved[0].copy()
    centre = fine + (own - rough)
    off = moved[1:] - own
    shift = np.zeros(6)
    for i in range(2 * _SIZE):
        shift += _OTHER * off[i]
    out = np.empty((6, 6))
    for i in range(6):
        for j in range(6):
            total = _CENTRE_SPREAD * shift[i] * shift[j]
            for k in range(2 * _SIZE):
                total += _OTHER * (off[k, i] - shift[i]) * (off[k, j] - shift[j])
            out[i, j] = total
    return centre + shift, out


@compiled
def _update(mean, spread, seen, measured):  # type: ignore[no-untyped-def]
    """Kalman's update with the state as measurement; also the logarithm of the likelihood, and its squared distance."""
    total = spread.copy()
    for i in range(6):
        total[i, i] += measured[i // 3] ** 2
    root = _root(total)
    off = _solved(root, seen - mean)
    distance = 0.0
    logarithm = -0.5 * _SIZE * math.log(2.0 * math.pi)
    for i in range(6):
        distance += off[i] * off[i]
        logarithm -= math.log(root[i, i])
    gain = np.empty((6, 6))
    for i in range(6):
        # The gain's row: spread total^-1, by two triangular solutions.
        gain[i] = _solved_back(root, _solved(root, spread[i]))
    out = spread.copy()
    for i in range(6):
        for j in range(6):
            taken = 0.0
            for k in range(6):
                taken += gain[i, k] * spread[k, j]
            out[i, j] -= taken
    for i in range(6):
        for j in range(i):
            half = 0.5 * (out[i, j] + out[j, i])
            out[i, j] = half
            out[j, i] = half
    move = np.zeros(6)
    for i in range(6):
        for k in range(6):
            move[i] += gain[i, k] * (seen[k] - mean[k])
    return mean + move, out, logarithm - 0.5 * distance, distance


@compiled
def _root(spread):  # type: ignore[no-untyped-def]
    """Cholesky's root; a pivot that rounding made negative counts as a part in 10^12 of its diagonal."""
    out = np.zeros((6, 6))
    for j in range(6):
        total = spread[j, j]
        for k in range(j):
            total -= out[j, k] * out[j, k]
        out[j, j] = math.sqrt(max(total, 1e-12 * abs(spread[j, j]) + 1e-18))
        for i in range(j + 1, 6):
            total = spread[i, j]
            for k in range(j):
                total -= out[i, k] * out[j, k]
            out[i, j] = total / out[j, j]
    return out


@compiled
def _solved(root, right):  # type: ignore[no-untyped-def]
    out = np.empty(6)
    for i in range(6):
        total = right[i]
        for k in range(i):
            total -= root[i, k] * out[k]
        out[i] = total / root[i, i]
    return out


@compiled
def _solved_back(root, right):  # type: ignore[no-untyped-def]
    out = np.empty(6)
    for i in range(5, -1, -1):
        total = right[i]
        for k in range(i + 1, 6):
            total -= root[k, i] * out[k]
        out[i] = total / root[i, i]
    return out


def labels_of(probability: Floats, least: float = 0.3) -> NDArray[np.int64]:
    """Return the most probable model of each record, where it is more probable than ``least``; else station keeping.

    Parameters
    ----------
    probability : numpy.ndarray of float64, shape (n, 3)
    least : float
    """
    best = probability.argmax(axis=1)
    found: NDArray[np.int64] = np.where(probability.max(axis=1) > least, best, STATION)
    return found
