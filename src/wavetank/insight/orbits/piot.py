"""The paper's transformer, small: a frozen physics branch, heads for residual and noise, and a classifier of records.

What physics does not explain of a record, its innovation, is computed in double precision before the network: changes
of a few metres would be lost in a network's single precision.  The classifier sees the hidden state, the innovation
and the innovation in units of the noise head's sigma.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.insight.orbits import rules
from wavetank.insight.orbits.filters import STATION, labels_of
from wavetank.insight.orbits.interface import History, Scorer
from wavetank.insight.orbits.mechanics import MEAN_EARTH_KM, Floats, axis_km, node_rate, perigee_rate
from wavetank.insight.orbits.rivals import filter_of
from wavetank.insight.orbits.rules import running_median
from wavetank.settings import check_ranges, setting
from wavetank.workloads.tle import DAY_NS, Elements

WINDOW, STRIDE = 50, 25
_CLASS_WEIGHTS = (0.4, 3.0, 4.5, 4.5)
_FOCUS = 2.0
_LONGEST_HOURS = 240.0


@dataclass(frozen=True, kw_only=True)
class Piot:
    """A causal transformer over windows of 50 records, taught by weak labels: rules first, then the filters'."""

    alarm_at: ClassVar[float] = math.nan

    labels: str = setting(
        "weak", says="what it learns: the labels of rules and filters, or the true times of other satellites",
        choices=("weak", "true"),
    )  # fmt: skip
    noise: str = setting(
        "head", says="what innovations are held against: the noise head alone, or also the satellite's running noise",
        choices=("head", "running"),
    )  # fmt: skip
    times: bool = setting(
        True, says="whether it knows the time between records; without it, physics takes them to be evenly spaced"
    )
    angles: bool = setting(True, says="whether it sees node, perigee and anomaly, which turn with time like clocks")
    width: int = setting(64, says="width of the hidden state", low=8, high=1024)
    layers: int = setting(2, says="layers", low=1, high=24)
    heads: int = setting(4, says="heads of attention; divide the width", low=1, high=32)
    epochs: int = setting(8, says="passes over the windows, in each of two stages", low=1, high=500)
    batch: int = setting(64, says="windows per step", low=1, high=4096)

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.width % self.heads:
            raise BadValueError("The heads divide the width.", given=f"{self.heads} heads, width {self.width}")

    def fitted(self, histories: Sequence[History], usable: Sequence[NDArray[np.bool_]], seed: int) -> Scorer:
        """Return the network learned from the histories.

        Parameters
        ----------
        histories, usable, seed
            As the interface says.
        """
        scale = _Scale(histories, usable, times=self.times, running=self.noise == "running", angles=self.angles)
        # Several trials share a machine; one thread each, and the sums of one order.
        with _one_thread():
            network = _train(self, histories, usable, scale, seed)
        return lambda history: _scores(network, scale, history)


def inputs(elements: Elements) -> Floats:
    """Return the eleven features of each record; time counts from the first one.

    Parameters
    ----------
    elements : Elements

    Returns
    -------
    numpy.ndarray of float64, shape (n, 11)
        Hours, mean motion, eccentricity, inclination, B* within 1, altitude, hours since the record before within 240,
        node, perigee, mean anomaly, rate of the mean motion.
    """
    hours = (elements.epoch_ns - elements.epoch_ns[0]) / (DAY_NS / 24)
    gaps = np.clip(np.diff(hours, prepend=hours[:1]), 0.0, _LONGEST_HOURS)
    return np.column_stack(
        [
            hours, elements.mean_motion, elements.eccentricity, elements.inclination_deg,
            np.clip(elements.drag, -1.0, 1.0), axis_km(elements.mean_motion) - MEAN_EARTH_KM, gaps,
            elements.node_deg, elements.perigee_deg, elements.anomaly_deg, elements.motion_rate,
        ]
    )  # fmt: skip


TIMES, ANGLES = (0, 6), (7, 8, 9)
"""Which of the features are times, and which angles."""
_TURNS = (3, 4, 7)


def evenly(elements: Elements) -> Elements:
    """Return the records as if they were evenly spaced over the same time.

    Parameters
    ----------
    elements : Elements
    """
    epochs = np.linspace(0, float(elements.epoch_ns[-1] - elements.epoch_ns[0]), len(elements))
    return replace(elements, epoch_ns=elements.epoch_ns[0] + np.round(epochs).astype(np.int64))


def innovations(elements: Elements) -> Floats:
    """Return what drag and the Earth's flattening do not explain of each record after the one before it.

    Parameters
    ----------
    elements : Elements

    Returns
    -------
    numpy.ndarray of float64, shape (n, 8)
        Of mean motion, eccentricity, inclination, node, argument of latitude, its rate, B* and perigee; the first
        record's are 0.
    """
    days = np.diff(elements.epoch_ns) / DAY_NS
    motion, shape, tilt = elements.mean_motion, elements.eccentricity, elements.inclination_deg
    axis = axis_km(motion)
    # Line 1 has half the rate of the mean motion.
    faster = 2 * elements.motion_rate[:-1] * days
    latitude = elements.perigee_deg + elements.anomaly_deg
    turned = perigee_rate(axis, shape, tilt)[:-1] * days
    moved = 360 * (motion[:-1] + faster / 2) * days + turned
    rounder = -2.0 / 3.0 * (1 - shape[:-1]) * faster / motion[:-1]
    out = np.zeros((len(elements), 8))
    out[1:] = np.column_stack(
        [
            np.diff(motion) - faster, np.diff(shape) - rounder, np.diff(tilt),
            _turn(np.diff(elements.node_deg) - node_rate(axis, shape, tilt)[:-1] * days),
            _turn(np.diff(latitude) - moved), np.diff(elements.motion_rate), np.diff(elements.drag),
            _turn(np.diff(elements.perigee_deg) - turned),
        ]
    )  # fmt: skip
    return out


def _turn(degrees: Floats) -> Floats:
    found: Floats = (degrees + 180.0) % 360.0 - 180.0
    return found


class _Scale:
    """Means and deviations of the training records; innovations by their median size."""

    def __init__(
        self, histories: Sequence[History], usable: Sequence[NDArray[np.bool_]], *, times: bool, running: bool,
        angles: bool = True,
    ) -> None:  # fmt: skip
        self.running, self.times, self.angles = running, times, angles
        seen = np.concatenate([inputs(each.elements)[keep] for each, keep in zip(histories, usable, strict=True)])
        off = np.concatenate([self._off(each.elements)[keep] for each, keep in zip(histories, usable, strict=True)])
        self.mean, self.deviation = seen.mean(axis=0), np.maximum(seen.std(axis=0), 1e-12)
        # Hours count from a window's first record.
        self.mean[0], self.deviation[0] = 0.0, WINDOW * 24.0
        size = np.median(np.abs(off), axis=0)
        self.size = np.where(size > 0, size, np.maximum(np.abs(off).mean(axis=0), 1e-12))

    def _off(self, elements: Elements) -> Floats:
        off = innovations(elements if self.times else evenly(elements))
        if not self.angles:
            off[:, _TURNS] = 0.0
        if not self.running:
            return off
        for column in off.T:
            column -= running_median(column, 31)
            noise = running_median(np.abs(column), 31)
            column /= np.maximum(noise, 0.1 * max(float(np.median(noise)), 1e-12))
        return off

    def windows(self, elements: Elements) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]:
        """Return the records of each window by index, their features, and their innovations."""
        last = max(len(elements) - WINDOW, 0)
        starts = np.unique(np.append(np.arange(0, last + 1, STRIDE), last))
        at = starts[:, None] + np.arange(min(WINDOW, len(elements)))
        seen = inputs(elements)[at]
        seen[:, :, 0] -= seen[:, :1, 0]
        seen = (seen - self.mean) / self.deviation
        if not self.times:
            seen[:, :, TIMES] = 0.0
        if not self.angles:
            seen[:, :, ANGLES] = 0.0
        off = np.clip(self._off(elements)[at] / self.size, -1e3, 1e3)
        return at, seen.astype(np.float32), off.astype(np.float32)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _targets(history: History, labels: str, stage: int) -> NDArray[np.int64]:
    if labels == "true":
        return history.first_after().astype(np.int64)
    if stage == 0:
        return rules.rule_labels(history.elements)
    found = labels_of(filter_of(history, (0, 1, 2)).probability)
    # The filters' models are in the order of the labels: station keeping, manoeuvre, decay.
    return np.where(found == STATION, rules.NORMAL, found)


def _network(system: Piot) -> Any:
    import torch
    from torch import nn

    class Network(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.enter = nn.Linear(11, system.width)
            self.place = nn.Parameter(0.02 * torch.randn(WINDOW, system.width))
            layer = nn.TransformerEncoderLayer(
                system.width, system.heads, 4 * system.width, dropout=0.0, batch_first=True, norm_first=True
            )
            self.encoder = nn.TransformerEncoder(layer, system.layers, enable_nested_tensor=False)
            self.residual, self.noise = nn.Linear(system.width, 8), nn.Linear(system.width, 8)
            self.classify = nn.Sequential(
                nn.Linear(system.width + 16, system.width), nn.GELU(), nn.Linear(system.width, len(_CLASS_WEIGHTS))
            )

        def forward(self, seen: Any, off: Any) -> tuple[Any, Any, Any]:
            length = seen.shape[1]
            mask = torch.triu(torch.ones(length, length, dtype=torch.bool), diagonal=1)
            hidden = self.encoder(self.enter(seen) + self.place[:length], mask=mask)
            # Residual and noise of a record come from the records before it.
            before = torch.cat([torch.zeros_like(hidden[:, :1]), hidden[:, :-1]], dim=1)
            residual, logarithm = self.residual(before), self.noise(before).clamp(-6, 8)
            score = off * torch.exp(-logarithm)
            # Innovations reach over orders of magnitude.
            squeezed = torch.sign(off) * torch.log1p(off.abs())
            known = torch.cat([hidden, squeezed, torch.sign(score) * torch.log1p(score.abs())], dim=-1)
            return self.classify(known), residual, logarithm

    return Network()


def _train(
    system: Piot, histories: Sequence[History], usable: Sequence[NDArray[np.bool_]], scale: _Scale, seed: int
) -> Any:
    import torch

    torch.manual_seed(seed)
    network = _network(system)
    parts = [scale.windows(each.elements) for each in histories]
    seen = torch.from_numpy(np.concatenate([each[1] for each in parts]))
    off = torch.from_numpy(np.concatenate([each[2] for each in parts]))
    keep = torch.from_numpy(np.concatenate([use[each[0]] for use, each in zip(usable, parts, strict=True)]))
    weights = torch.tensor(_CLASS_WEIGHTS)
    for stage in range(2):
        target = torch.from_numpy(
            np.concatenate(
                [_targets(of, system.labels, stage)[each[0]] for of, each in zip(histories, parts, strict=True)]
            )
        )
        optimiser = torch.optim.AdamW(network.parameters(), lr=1e-3, weight_decay=1e-4)
        steps = system.epochs * math.ceil(len(seen) / system.batch)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
        for _ in range(system.epochs):
            for rows in torch.randperm(len(seen)).split(system.batch):
                loss = _loss(network, seen[rows], off[rows], target[rows], keep[rows], weights)
                optimiser.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
                optimiser.step()
                schedule.step()
    return network.eval()


def _loss(network: Any, seen: Any, off: Any, target: Any, keep: Any, weights: Any) -> Any:
    import torch
    from torch.nn import functional

    logits, residual, logarithm = network(seen, off)
    known = off.clamp(-30, 30)
    next_record = functional.smooth_l1_loss(residual[keep], known[keep])
    # A Laplace law: innovations have heavy tails, which a normal one would take for noise.
    noise = (logarithm + known.abs() * torch.exp(-logarithm))[keep].mean()
    surely = functional.log_softmax(logits[keep], dim=-1)
    chosen = surely.gather(1, target[keep][:, None])[:, 0]
    focal = -(weights[target[keep]] * (1 - chosen.exp()) ** _FOCUS * chosen).mean()
    change = residual[:, 1:] - residual[:, :-1]
    return next_record + 0.1 * noise + focal + 1e-4 * (change[:, 1:] - change[:, :-1]).square().mean()


def _scores(network: Any, scale: _Scale, history: History) -> Floats:
    """Return log odds of a manoeuvre: of each record from the window in which it stands farthest from the start."""
    import torch

    at, seen, off = scale.windows(history.elements)
    with torch.no_grad():
        logits = network(torch.from_numpy(seen), torch.from_numpy(off))[0].numpy().astype(np.float64)
    found = np.full(len(history.elements), np.nan)
    # Later windows first: of two windows the earlier one has seen more before a record.
    for window in range(len(at) - 1, -1, -1):
        found[at[window]] = logits[window, :, rules.MANOEUVRE] - logits[window, :, rules.NORMAL]
    found[0] = np.nan
    return found
