"""A service with grey failures, as a structural causal model that no agent is shown.

Faults shift mechanisms (queues, memory, the network), mechanisms make symptoms, symptoms decide whether the objective
is kept.  A fault's pattern is mixed with the mean of all patterns: mixing 0 leaves every fault its own, at 1 all look
alike and nobody can say which it is.  Every reading has a standard deviation of 1 in a healthy service.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from wavetank.errors import BadValueError
from wavetank.insight.repair.interface import FAULTS, MECHANISMS, NAMES, SYMPTOMS, Episodes, Flags, Floats, Levels
from wavetank.sim.rng import stream


class Service(NamedTuple):
    """How faults become readings.

    Attributes
    ----------
    patterns : ndarray of float64, shape (faults, mechanisms)
        Shift of each mechanism by a fault of severity 1, in standard deviations.
    weights : ndarray of float64, shape (symptoms, mechanisms)
        Of mechanisms in symptoms, beside a noise of weight 1.
    worse : ndarray of float64, shape (symptoms,)
        In which direction a symptom is worse.
    limit : float
        The objective is broken where a symptom is worse than this, in standard deviations: one window in a hundred of
        a symptom of a healthy service.
    """

    patterns: Floats
    weights: Floats
    worse: Floats
    limit: float = 2.326


SERVICE = Service(
    #          run_queue cpu_share rss_slope page_faults retransmits rtt
    np.array([[1.2, -1.0, 0.0, 0.2, 0.0, 0.3],
              [0.3, 0.0, 1.2, 1.0, 0.0, 0.0],
              [0.0, -0.3, 0.2, 0.0, 1.2, 1.0]]),
    np.array([[0.6, 0.0, 0.0, 0.5, 0.0, 0.6],
              [0.0, 0.6, 0.0, -0.4, -0.5, 0.0],
              [0.5, 0.0, 0.5, 0.0, 0.6, 0.0]]),
    np.array([1.0, -1.0, 1.0]),
)  # fmt: skip
"""Three faults that share mechanisms, and symptoms that all of them worsen."""


def mixed(patterns: Floats, mixing: float) -> Floats:
    """Return patterns of which a share is the mean of all.

    Parameters
    ----------
    patterns : ndarray of float64, shape (faults, mechanisms)
    mixing : float
        0 leaves them as they are, 1 makes them equal.
    """
    if not 0 <= mixing <= 1:
        raise BadValueError("Patterns are mixed by a share between 0 and 1.", given=mixing)
    blended: Floats = (1 - mixing) * patterns + mixing * patterns.mean(axis=0)
    return blended


def episodes(
    seed: int, purpose: str, cases: int, *, mixing: float, service: Service = SERVICE, windows: int = 5,
    severity: tuple[float, float] = (0.5, 4.0), healthy: float = 0.1, double: float = 0.1, unknown: float = 0.1,
    repaired: Levels | None = None,
) -> Episodes:  # fmt: skip
    """Return drawn cases, with what is planted.

    Parameters
    ----------
    seed : int
    purpose : str
        Names the stream of draws: other purposes give other cases.
    cases : int
    mixing : float
        How alike faults look, from 0 to 1.
    service : Service
    windows : int
        Of telemetry in each case.
    severity : tuple of float
        Least and largest, drawn evenly.
    healthy, double, unknown : float
        Shares of cases without a fault, with two known ones, and with one that no graph has; the rest has one.
    repaired : ndarray of int64, shape (cases,), optional
        The fault that an action removes from each case, -1 for none.  The same cases are returned as they are
        afterwards: what else is there stays, in windows of their own.

    Raises
    ------
    BadValueError
        If the shares are none, or there is no case.
    """
    shares = (healthy, double, unknown)
    if cases < 1 or windows < 1 or min(shares) < 0 or sum(shares) > 1 + 1e-12:
        raise BadValueError("Some cases, whose shares without, with two and with unknown faults add up to 1 at most.",
                            given=(cases, windows, *shares))  # fmt: skip
    draws = stream(seed, "episodes", purpose)
    kinds, mechanisms = service.patterns.shape
    symptoms = len(service.weights)
    u = draws.random(cases)
    none, two, other = u < healthy, (u >= healthy) & (u < healthy + double), u >= 1 - unknown
    first = draws.integers(0, kinds, cases)
    second = (first + draws.integers(1, max(kinds, 2), cases)) % kinds
    present = np.zeros((cases, kinds), np.bool_)
    rows = np.arange(cases)
    present[rows[~none & ~other], first[~none & ~other]] = True
    present[rows[two], second[two]] = True
    strength = draws.uniform(*severity, (cases, kinds)) * present
    if repaired is not None:
        gone = repaired >= 0
        strength[rows[gone], repaired[gone]] = 0.0
        present[rows[gone], repaired[gone]] = False
    shift = strength @ mixed(service.patterns, mixing)
    # What is in no graph goes in a direction of its own, through mechanisms and past them, as far as a known fault.
    directions = draws.standard_normal((cases, mechanisms + symptoms))
    length = float(np.sqrt((service.patterns**2).sum(axis=1)).mean())
    directions *= length / np.linalg.norm(directions, axis=1, keepdims=True)
    force = draws.uniform(*severity, cases) * other
    shift += force[:, None] * ((1 - mixing) * directions[:, :mechanisms] + mixing * service.patterns.mean(axis=0))
    direct = force[:, None] * (1 - mixing) * directions[:, mechanisms:]
    if repaired is not None:
        draws = stream(seed, "episodes", purpose, "afterwards")
    inner = shift[:, None] + draws.standard_normal((cases, windows, mechanisms))
    noise = draws.standard_normal((cases, windows, symptoms))
    scale = np.sqrt((service.weights**2).sum(axis=1) + 1)
    outer = (inner @ service.weights.T + noise) / scale + direct[:, None]
    readings = np.concatenate((inner, outer), axis=2)
    return Episodes(readings, kept(service, outer), present, other)


def kept(service: Service, symptoms: Floats) -> Flags:
    """Return whether the objective is kept: no symptom worse than the limit.

    Parameters
    ----------
    service : Service
    symptoms : ndarray of float64, shape (..., symptoms)
    """
    return np.asarray((symptoms * service.worse <= service.limit).all(axis=-1), np.bool_)


def graph(wrong: int = 0, seed: int = 0, service: Service = SERVICE) -> tuple[tuple[int, ...], ...]:
    """Return the causal graph of a service as operators draw it, over ``NAMES``.

    Parameters
    ----------
    wrong : int
        Edges that are missing; as many are drawn where none is.
    seed : int
        Which edges are wrong.
    service : Service

    Raises
    ------
    BadValueError
        If there are fewer edges than wrong ones.
    """
    first, after = len(FAULTS), len(FAULTS) + len(MECHANISMS)
    faults, inner, outer = range(first), range(first, after), range(after, after + len(SYMPTOMS))
    edges = [(fault, node) for fault in faults for node in inner]
    edges += [(first + int(of), after + row) for row, of in np.argwhere(service.weights != 0).tolist()]
    others = [(fault, node) for fault in faults for node in outer]
    others += [(each, node) for each in inner for node in outer if (each, node) not in edges]
    if not 0 <= wrong <= min(len(edges), len(others)):
        raise BadValueError("There are fewer edges than are to be wrong.", given=wrong,
                            allowed=f"0 to {min(len(edges), len(others))}")  # fmt: skip
    draws = stream(seed, "wrong edges")
    # The graph with more wrong edges has those of the graph with fewer.
    gone = {edges[at] for at in draws.permutation(len(edges))[:wrong].tolist()}
    more = [others[at] for at in draws.permutation(len(others))[:wrong].tolist()]
    found = sorted([each for each in edges if each not in gone] + more)
    parents = [tuple(start for start, end in found if end == node) for node in range(len(NAMES) - 1)]
    return (*parents, tuple(outer))
