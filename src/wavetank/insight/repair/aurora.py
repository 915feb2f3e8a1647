"""Acts on the likeliest fault only where its removal would help, no harm is likely, and the model knows such readings.

A causal graph over faults, mechanisms and symptoms is filled with counts.  From the readings inside the faults' Markov
blankets follow, exactly, how likely each fault is and how surprising the readings are (the free energy of the exact
belief).  Two gates must both open.  The causal gate asks for a likely fault and for a repair that would help in a twin
of the very case (its unknown causes kept, the fault removed).  The free energy gate asks whether readings like these
were seen when diagnoses were right.  A single gate lets through what the other was made for: a classifier is sure of
faults it never met.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.insight.repair.interface import (
    FAULTS,
    LEVELS,
    MECHANISMS,
    NAMES,
    READINGS,
    SYMPTOMS,
    WORSE,
    Cuts,
    Decisions,
    Episodes,
    Flags,
    Floats,
    Learning,
    Levels,
    cuts_of,
    states_of,
)
from wavetank.insight.repair.networks import MISSING, Network, counted
from wavetank.settings import check_ranges, setting
from wavetank.sim.compiled import compiled

GATES = ("both", "causal", "free-energy", "posterior", "none")
_FAULTS, _INNER, _OUTER = len(FAULTS), len(MECHANISMS), len(SYMPTOMS)
_OK = len(NAMES) - 1
_CONFIGS = 2**_FAULTS
_LEVELS = 3


class Packed(NamedTuple):
    """A network as arrays, for compiled code.

    Attributes
    ----------
    tables : ndarray of float64
        All tables behind each other, each in C order.
    offsets : ndarray of int64, shape (nodes,)
    parents : ndarray of int64, shape (nodes, most parents)
        -1 behind the last one.
    strides : ndarray of int64, shape (nodes, most parents)
        By how many cells a level of a parent moves.
    """

    tables: Floats
    offsets: Levels
    parents: Levels
    strides: Levels


def packed(network: Network) -> Packed:
    """Return a network as arrays.

    Parameters
    ----------
    network : Network
    """
    most = max(len(each) for each in network.parents)
    parents = np.full((len(network.names), most), -1, np.int64)
    strides = np.zeros_like(parents)
    for node, of in enumerate(network.parents):
        parents[node, : len(of)] = of
        step = network.levels[node]
        for place in range(len(of) - 1, -1, -1):
            strides[node, place] = step
            step *= network.levels[of[place]]
    sizes = [table.size for table in network.tables]
    offsets = np.concatenate(([0], np.cumsum(sizes)[:-1])).astype(np.int64)
    return Packed(np.concatenate([table.ravel() for table in network.tables]), offsets, parents, strides)


class Believed(NamedTuple):
    """What an agent makes of cases.

    Attributes
    ----------
    beliefs : ndarray of float64, shape (cases, 8)
        Of each set of faults: bit k is fault k.
    faults : ndarray of float64, shape (cases, 3)
        Of each fault.
    energy : ndarray of float64, shape (cases,)
        Free energy per table that was used, in nats.
    entropy : ndarray of float64, shape (cases,)
        Of the belief over no fault and each single one, as a share of the largest.
    """

    beliefs: Floats
    faults: Floats
    energy: Floats
    entropy: Floats


class Outlook(NamedTuple):
    """What an action would do to cases.

    Attributes
    ----------
    gain : ndarray of float64, shape (cases,)
        P(objective kept | action) - P(objective kept | nothing), of this very window; NaN where a reading is missing.
    harm : ndarray of float64, shape (cases,)
        P(a symptom worse | action).
    energy : ndarray of float64, shape (cases,)
        Free energy per table of the likeliest readings afterwards.
    """

    gain: Floats
    harm: Floats
    energy: Floats


@dataclass(frozen=True, kw_only=True)
class Aurora:
    """The agent.  ``inference`` and ``gates`` make the contenders that lack one of its parts."""

    certainty: float = setting(0.85, says="Least probability of the fault that is repaired; above 1: never act",
                               low=0.0, high=2.0)  # fmt: skip
    margin: float = setting(0.2, says="By how much it must be likelier than every set of faults without it", low=-1.0,
                            high=1.0)  # fmt: skip
    gain: float = setting(0.3, says="Least gain in the probability that the objective is kept", low=-1.0, high=1.0)
    harm: float = setting(0.05, says="Largest probability of harm", low=0.0, high=1.0)
    entropy: float = setting(0.5, says="Largest entropy of the belief, as a share of the largest", low=0.0, high=1.0)
    quantile: float = setting(0.95, says="Share of rightly diagnosed validation cases below the free energy limit",
                              low=0.0, high=1.0)  # fmt: skip
    energy_max: float = setting(0.0, unit="nats", says="Free energy limit per table; 0: by that share", low=0.0,
                                high=1e9)  # fmt: skip
    prior: float = setting(1.0, says="Dirichlet prior of the tables", low=1e-6, high=1e6)
    inference: str = setting("blanket", choices=("blanket", "full"), says="Tables used: blankets of faults, or all")
    gates: str = setting("both", choices=GATES, says="Which gates must open")

    def __post_init__(self) -> None:
        check_ranges(self)

    def fitted(self, learning: Learning) -> FittedAurora:
        """Return the agent with tables from training cases and a free energy limit from validation cases.

        Parameters
        ----------
        learning : Learning

        Raises
        ------
        BadValueError
            If the graph is not over the variables of a service.
        """
        if len(learning.parents) != len(NAMES) or any(learning.parents[each] for each in range(_FAULTS)):
            raise BadValueError("The causal graph has these variables, and nothing causes faults.", allowed=NAMES,
                                given=f"{len(learning.parents)} variables")  # fmt: skip
        cuts = cuts_of(learning.healthy)
        network = counted(NAMES, learning.parents, LEVELS, states_of(learning.history, cuts), self.prior)
        network = with_priors(network, learning.train)
        agent = FittedAurora(self, cuts, network, 0.0)
        cases = learning.validation
        believed = agent.believe(agent.levels(*cases.shown()))
        top = believed.faults.argmax(axis=1)
        right = cases.present[np.arange(len(top)), top]
        limit = self.energy_max or (float(np.quantile(believed.energy[right], self.quantile)) if right.any() else 0.0)
        return FittedAurora(self, cuts, network, limit)


def with_priors(network: Network, cases: Episodes) -> Network:
    """Return the network with how often faults are behind a case in place of how often they are there.

    Parameters
    ----------
    network : Network
    cases : Episodes
    """
    shares = (cases.present.sum(axis=0) + 1.0) / (len(cases.present) + 2.0)
    return Network(network.names, network.parents, (*(np.array([1 - each, each]) for each in shares.tolist()),
                                                    *network.tables[_FAULTS:]))  # fmt: skip


class FittedAurora:
    """The agent with what it learned.

    Parameters
    ----------
    agent : Aurora
    cuts : Cuts
    network : Network
    limit : float
        Of free energy per table, in nats.
    """

    def __init__(self, agent: Aurora, cuts: Cuts, network: Network, limit: float) -> None:
        self.agent, self.cuts, self.network, self.limit = agent, cuts, network, limit
        self._packed = packed(network)
        near = set[int]()
        for fault in range(_FAULTS):
            near |= {fault, *network.children[fault]}
        used = range(len(NAMES)) if agent.inference == "full" else sorted(near)
        self._used: NDArray[np.int64] = np.array([each for each in used if each >= _FAULTS], np.int64)

    def levels(self, readings: Floats, slo_ok: Flags) -> Levels:
        """Return observed levels, faults missing, shape (cases, nodes).

        Parameters
        ----------
        readings : ndarray of float64, shape (cases, 9)
        slo_ok : ndarray of bool, shape (cases,)

        Raises
        ------
        BadValueError
            If the arrays have another shape.
        """
        if readings.ndim != 2 or readings.shape[1] != len(READINGS) or slo_ok.shape != readings.shape[:1]:
            raise BadValueError("A case has one reading of each kind and says whether the objective is kept.",
                                given=(readings.shape, slo_ok.shape), allowed=READINGS)  # fmt: skip
        hidden = np.full((len(readings), _FAULTS), MISSING, np.int64)
        return np.concatenate((hidden, self.cuts.levels(readings), slo_ok[:, None].astype(np.int64)), axis=1)

    def believe(self, levels: Levels) -> Believed:
        """Return how likely faults are, and how surprising the readings.

        Parameters
        ----------
        levels : ndarray of int64, shape (cases, nodes)
        """
        beliefs, energy = _beliefs(*self._packed, self._used, levels)
        return _believed(beliefs, energy)

    def over_windows(self, readings: Floats, slo_ok: Flags) -> Believed:
        """Return how likely faults are by several windows together, as the tier above sees them.

        Parameters
        ----------
        readings : ndarray of float64, shape (cases, windows, 9)
        slo_ok : ndarray of bool, shape (cases, windows)
        """
        cases, windows = slo_ok.shape
        log_prior, total, energy = np.zeros(_CONFIGS), np.zeros((cases, _CONFIGS)), np.zeros(cases)
        for fault in range(_FAULTS):
            of = np.log(self.network.tables[fault])
            log_prior += [of[config >> fault & 1] for config in range(_CONFIGS)]
        for window in range(windows):
            beliefs, each = _beliefs(
                *self._packed, self._used, self.levels(readings[:, window], slo_ok[:, window])
            )
            total += np.log(np.maximum(beliefs, 1e-300)) - log_prior
            energy += each / windows
        total += log_prior
        total = np.exp(total - total.max(axis=1, keepdims=True))
        return _believed(total / total.sum(axis=1, keepdims=True), energy)

    def outlook(self, levels: Levels, beliefs: Floats, action: Levels) -> Outlook:
        """Return what an action would do, in the twin of each case.

        Parameters
        ----------
        levels : ndarray of int64, shape (cases, nodes)
        beliefs : ndarray of float64, shape (cases, 8)
        action : ndarray of int64, shape (cases,)
        """
        return Outlook(*_outlook(*self._packed, self._used, levels, beliefs, action,
                                 np.array(WORSE, np.int64)))  # fmt: skip

    def decide(self, readings: Floats, slo_ok: Flags) -> Decisions:
        """Return what to do in each case.

        Parameters
        ----------
        readings : ndarray of float64, shape (cases, 9)
        slo_ok : ndarray of bool, shape (cases,)
        """
        levels = self.levels(readings, slo_ok)
        believed = self.believe(levels)
        action = believed.faults.argmax(axis=1)
        opened = self.opened(levels, believed, action)
        # Where all gates open comes before everything else, by probability; then what the gates keep back.
        return Decisions(action, opened, believed.faults.max(axis=1) + opened)

    def opened(self, levels: Levels, believed: Believed, action: Levels) -> Flags:
        """Return in which cases all gates open.

        Parameters
        ----------
        levels : ndarray of int64, shape (cases, nodes)
        believed : Believed
        action : ndarray of int64, shape (cases,)
        """
        agent, rows = self.agent, np.arange(len(action))
        opened = np.ones(len(action), np.bool_)
        if agent.gates in ("both", "free-energy"):
            opened &= (believed.energy <= self.limit) & (believed.entropy <= agent.entropy)
        if agent.gates in ("both", "causal", "posterior"):
            q = believed.faults[rows, action]
            opened &= q >= agent.certainty
        if agent.gates in ("both", "causal"):
            without = (np.arange(_CONFIGS)[None] >> action[:, None] & 1) == 0
            second = np.where(without, believed.beliefs, 0.0).max(axis=1)
            opened &= q - second >= agent.margin
        if agent.gates in ("both", "causal") and opened.any():
            ahead = self.outlook(levels[opened], believed.beliefs[opened], action[opened])
            passes = (ahead.gain >= agent.gain) & (ahead.harm <= agent.harm)
            if agent.gates == "both":
                passes &= ahead.energy <= self.limit
            opened[opened] = passes
        return opened


def _believed(beliefs: Floats, energy: Floats) -> Believed:
    bits = (np.arange(_CONFIGS)[:, None] >> np.arange(_FAULTS)) & 1
    faults = np.clip(beliefs @ bits, 1e-12, 1 - 1e-12)
    # Whether a second fault is there as well changes no action: entropy is over none and single ones.
    odds = faults / (1 - faults)
    single = np.concatenate((np.ones((len(faults), 1)), odds), axis=1)
    single /= single.sum(axis=1, keepdims=True)
    entropy = -(single * np.log(single)).sum(axis=1) / math.log(_FAULTS + 1)
    return Believed(beliefs, faults, energy, entropy)


@compiled
def _row(offsets, parents, strides, node, state):  # type: ignore[no-untyped-def]
    """Return where the row of a variable's table begins; -1 where a parent is missing."""
    at = offsets[node]
    for place in range(parents.shape[1]):
        parent = parents[node, place]
        if parent >= 0:
            if state[parent] < 0:
                return -1
            at += strides[node, place] * state[parent]
    return at


@compiled
def _weigh(tables, offsets, parents, strides, used, state, logs):  # type: ignore[no-untyped-def]
    """Fill in the log probability of readings with each set of faults; return how many tables were used."""
    count = 0
    for config in range(_CONFIGS):
        total = 0.0
        for fault in range(_FAULTS):
            state[fault] = config >> fault & 1
            total += math.log(tables[offsets[fault] + state[fault]])
        count = 0
        for node in used:
            at = _row(offsets, parents, strides, node, state)
            if at >= 0 and state[node] >= 0:
                total += math.log(tables[at + state[node]])
                count += 1
        logs[config] = total
    return count


@compiled
def _log_sum(logs):  # type: ignore[no-untyped-def]
    top = logs.max()
    return top + math.log(np.exp(logs - top).sum())


@compiled
def _beliefs(tables, offsets, parents, strides, used, levels):  # type: ignore[no-untyped-def]
    cases = levels.shape[0]
    beliefs, energy = np.empty((cases, _CONFIGS)), np.empty(cases)
    logs = np.empty(_CONFIGS)
    for case in range(cases):
        state = levels[case].copy()
        count = _weigh(tables, offsets, parents, strides, used, state, logs)
        total = _log_sum(logs)
        beliefs[case] = np.exp(logs - total)
        energy[case] = -total / max(count, 1)
    return beliefs, energy


@compiled
def _overlap(tables, before, after, level, levels, out):  # type: ignore[no-untyped-def]
    """As networks.overlap, on rows of the packed tables."""
    low = 0.0
    for each in range(level):
        low += tables[before + each]
    high = low + tables[before + level]
    total, start = 0.0, 0.0
    for each in range(levels):
        end = start + tables[after + each] if each < levels - 1 else 1.0
        out[each] = max(min(end, high) - max(start, low), 0.0)
        total += out[each]
        start = end
    for each in range(levels):
        out[each] = out[each] / total if total > 0 else tables[after + each]


@compiled
def _outlook(tables, offsets, parents, strides, used, levels, beliefs, action, worse):  # type: ignore[no-untyped-def]
    cases, nodes = levels.shape
    gain, harm, energy = np.empty(cases), np.empty(cases), np.empty(cases)
    inner, outer = np.empty((_INNER, _LEVELS)), np.empty((_OUTER, _LEVELS))
    ok, logs, pair = np.empty(_LEVELS**_OUTER), np.empty(_CONFIGS), np.empty(2)
    for case in range(cases):
        missing = False
        for node in range(_FAULTS, nodes):
            missing = missing or levels[case, node] < 0
        if missing:
            gain[case], harm[case], energy[case] = np.nan, np.nan, np.nan
            continue
        fault = action[case]
        # Of a fault that nobody believes in nothing is foretold: no limit lets it pass.
        energy[case] = np.inf
        was, would = levels[case].copy(), levels[case].copy()
        # The objective in the twin, for every turn of the symptoms.
        before = _row(offsets, parents, strides, _OK, was)
        for turn in range(_LEVELS**_OUTER):
            rest = turn
            for place in range(_OUTER):
                would[_FAULTS + _INNER + place] = rest % _LEVELS
                rest //= _LEVELS
            after = _row(offsets, parents, strides, _OK, would)
            _overlap(tables, before, after, was[_OK], 2, pair)
            ok[turn] = pair[1]
        now = float(was[_OK])
        better, hurt, likeliest, best = 0.0, 0.0, -1.0, 0
        for config in range(_CONFIGS):
            if config >> fault & 1 and beliefs[case, config] > likeliest:
                likeliest, best = beliefs[case, config], config
        for config in range(_CONFIGS):
            weight = beliefs[case, config]
            if not config >> fault & 1:
                better += weight * now
                continue
            if weight < 1e-12:
                continue
            for each in range(_FAULTS):
                was[each] = config >> each & 1
                would[each] = was[each]
            would[fault] = 0
            for place in range(_INNER):
                node = _FAULTS + place
                _overlap(tables, _row(offsets, parents, strides, node, was), _row(offsets, parents, strides, node,
                         would), was[node], _LEVELS, inner[place])  # fmt: skip
            if config == best:
                for place in range(_INNER):
                    would[_FAULTS + place] = inner[place].argmax()
                for place in range(_OUTER):
                    node = _FAULTS + _INNER + place
                    _overlap(tables, _row(offsets, parents, strides, node, was), _row(offsets, parents, strides, node,
                             would), was[node], _LEVELS, outer[place])  # fmt: skip
                    would[node] = outer[place].argmax()
                after = _row(offsets, parents, strides, _OK, would)
                would[_OK] = 1 if tables[after + 1] > 0.5 else 0
                count = _weigh(tables, offsets, parents, strides, used, would, logs)
                energy[case] = -_log_sum(logs) / max(count, 1)
                for each in range(_FAULTS):
                    would[each] = was[each]
                would[fault] = 0
            for turn in range(_LEVELS**_INNER):
                chance, rest = weight, turn
                for place in range(_INNER):
                    level = rest % _LEVELS
                    rest //= _LEVELS
                    would[_FAULTS + place] = level
                    chance *= inner[place, level]
                    if chance == 0.0:
                        break
                if chance == 0.0:
                    continue
                calm = 1.0
                for place in range(_OUTER):
                    node = _FAULTS + _INNER + place
                    _overlap(tables, _row(offsets, parents, strides, node, was), _row(offsets, parents, strides, node,
                             would), was[node], _LEVELS, outer[place])  # fmt: skip
                    bad = 0.0
                    for level in range(_LEVELS):
                        if (level - was[node]) * worse[place] > 0:
                            bad += outer[place, level]
                    calm *= 1.0 - bad
                hurt += chance * (1.0 - calm)
                for way in range(_LEVELS**_OUTER):
                    likely, rest = chance, way
                    for place in range(_OUTER):
                        likely *= outer[place, rest % _LEVELS]
                        rest //= _LEVELS
                    better += likely * ok[way]
        gain[case] = better - now
        harm[case] = min(hurt, 1.0)
    return gain, harm, energy


def escalated(fitted: FittedAurora, episodes: Episodes, decisions: Decisions) -> Decisions:
    """Return what the tier above does with cases that were handed on: all windows, the same certainty and limit.

    Parameters
    ----------
    fitted : FittedAurora
    episodes : Episodes
    decisions : Decisions
        What the agent itself decided; its own actions are not taken again.
    """
    believed = fitted.over_windows(episodes.readings, episodes.slo_ok)
    action = believed.faults.argmax(axis=1)
    certain = believed.faults.max(axis=1)
    acts = ~decisions.acts & (certain >= fitted.agent.certainty) & (believed.energy <= fitted.limit)
    return Decisions(action, acts, certain)


