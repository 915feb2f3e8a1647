"""Whether two devices shall share a factorisation at all, and with which border they begin.

Below some size the hand-offs cost more than the slower device contributes.  A product of two blocks is timed on each
device, a block is copied across the link, an empty call is given to the second thread: with these four figures the
cost model estimates what sharing takes, and what each device takes alone.  They come from the store of profiles
(:mod:`wavetank.machine.profiles`), where ``wavetank profile`` keeps what a calm machine gave; where none is kept a pair
is measured once in a process, some milliseconds for a size of blocks, and what that gives serves this process alone.

Source: the model is ours; that a scheduler remembers what a task took on a kind of worker is the idea of C. Augonnet,
S. Thibault, R. Namyst, "Automatic calibration of performance models on heterogeneous multicore architectures", HPPC
2009.

Differs from the source:

1. Block products are timed before there is work to share, not while tasks run.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from wavetank.errors import BadValueError
from wavetank.kernels.products.libraries import steering
from wavetank.kernels.solvers.balance import Load, PowerSplit, SplitLaw
from wavetank.kernels.solvers.link import LinkModel
from wavetank.kernels.solvers.model import Balanced, CostModel
from wavetank.kernels.solvers.pair import DeviceSpec, Pair, default_devices, opened
from wavetank.machine import profiles
from wavetank.machine.limits import cpu_model, others_cores
from wavetank.machine.threads import usable_cores
from wavetank.units import show

BLOCKS = (64, 128, 256)
"""Rows of a block that are measured for the store: those that solvers choose."""
LARGEST_SPREAD = 0.3
"""Above this spread of the products' times a profile says more of what else ran than of the devices."""
_KIND = "solvers"
_ROUNDS = 7

# Below as many block rows there is nothing to share: the accelerator keeps three to the end.
_LEAST_BLOCKS = 5
# Calls of the accelerator's thread in a column: two copies, a solve, two updates.  Those of the host's thread are
# made meanwhile.
_CALLS = 5


class Rates(NamedTuple):
    """What a pair of devices takes for blocks of one size."""

    host_s: float
    """For a product of two blocks."""
    accelerator_s: float
    """For a product of two blocks."""
    copy_s: float
    """For a block that crosses the link."""
    call_s: float
    """For a call that is given to the accelerator's thread, from the asking to the end, without its work."""


@dataclass(frozen=True, kw_only=True)
class RatesProfile:
    """The rates of a pair of devices, as measured.

    Parameters
    ----------
    rates : mapping of int to Rates
        By rows of a block.
    spread : float
        By what share the times of products differed between rounds at worst, the outermost rounds left aside.
    others_cores : float
        Cores that other processes used meanwhile, on average.
    conditions : mapping of str to str
        What the figures hold for, as of :func:`conditions_of`.
    """

    rates: Mapping[int, Rates]
    spread: float = 0.0
    others_cores: float = 0.0
    conditions: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def disturbed(self) -> str:
        """Why the machine was too busy for figures that are worth keeping; empty where it was calm."""
        return profiles.disturbance(self.spread, LARGEST_SPREAD, self.others_cores, usable_cores())

    def note(self) -> str:
        """Return one line for a report: how fast each device is at products of the largest blocks."""
        block = max(self.rates)
        flops, found = 2 * block**3, self.rates[block]
        return (
            f"blocks of {block} rows: host {show(flops / found.host_s, 'FLOP/s')}, accelerator "
            f"{show(flops / found.accelerator_s, 'FLOP/s')}; rounds differed by up to {self.spread:.1%}"
        )


def conditions_of(specs: tuple[DeviceSpec, DeviceSpec]) -> dict[str, str]:
    """Return what rates hold for: processor, cores, both devices, scipy's BLAS, and variables that steer it."""
    import scipy

    found = {"cpu": cpu_model(), "cores": str(usable_cores()), "scipy": scipy.__version__}
    return found | {"host": specs[0].words(), "accelerator": specs[1].words()} | steering()


def measure(
    specs: tuple[DeviceSpec, DeviceSpec] | None = None, report: Callable[[str], object] = lambda _: None
) -> RatesProfile:
    """Measure a pair of devices, about a second.

    Parameters
    ----------
    specs : (host, accelerator), optional
        By default those that :func:`~wavetank.kernels.solvers.solve_spd` takes.
    report : callable, optional
        Called with what is being measured.
    """
    specs = default_devices() if specs is None else specs
    others = others_cores()
    rates: dict[int, Rates] = {}
    spread = 0.0
    with opened(specs) as pair:
        for block in BLOCKS:
            report(f"blocks of {block} rows")
            rounds = np.array([_measured(pair, block) for _ in range(_ROUNDS)])
            middle = np.median(rounds, axis=0)
            # Copies and calls are short and vary; what decides are the products.
            products = np.sort(rounds[:, :2], axis=0)[1:-1]
            spread = max(spread, float((np.ptp(products, axis=0) / middle[:2]).max()))
            rates[block] = Rates(*middle.tolist())
    return RatesProfile(rates=rates, spread=spread, others_cores=others(), conditions=conditions_of(specs))


def kept(specs: tuple[DeviceSpec, DeviceSpec], folder: Path | None = None) -> RatesProfile | None:
    """Return the profile that was kept for a pair under the present conditions; None where there is none.

    A file that is no good counts as none.

    Parameters
    ----------
    specs : (host, accelerator)
    folder : Path, optional
        Of the store; see :mod:`wavetank.machine.profiles`.
    """
    return SolverRates().read(_KIND, conditions_of(specs), folder)


def keep(profile: RatesProfile, folder: Path | None = None) -> Path | None:
    """Keep a profile for later processes; this one looks at the store again when it next wants rates.

    Parameters
    ----------
    profile : RatesProfile
        Rates in seconds per block.
    folder : Path, optional
        Of the store; see :mod:`wavetank.machine.profiles`.

    Returns
    -------
    Path or None
        None, after a warning, where no file can be written; a pair is then measured once in a process.

    Raises
    ------
    BadValueError
        If the machine was busy while it was measured: what is kept already stays.
    """
    if profile.disturbed:
        raise BadValueError(
            f"The machine was busy while the solvers' devices were measured: {profile.disturbed}.",
            hint="stop what else runs and measure again; what was kept before stays",
        )
    content = {
        "rates": {str(block): list(rates) for block, rates in profile.rates.items()},
        "spread": profile.spread, "others_cores": profile.others_cores,
    }  # fmt: skip
    path = profiles.keep(profiles.Profile(_KIND, SolverRates.version, dict(profile.conditions), content), folder)
    forget()
    return path


class SolverRates(profiles.ProfileKind[RatesProfile]):
    """The profiles of this module."""

    version = 1

    def parsed(self, found: profiles.Profile) -> RatesProfile | None:
        """Return the rates in a profile."""
        rates = {int(block): Rates(*map(float, each)) for block, each in found.content["rates"].items()}
        profile = RatesProfile(
            rates=rates, spread=float(found.content["spread"]), others_cores=float(found.content["others_cores"]),
            conditions=dict(found.conditions),
        )  # fmt: skip
        figures = [figure for each in rates.values() for figure in each]
        sound = bool(rates) and min(rates) > 0 and all(0.0 < figure < math.inf for figure in figures)
        return profile if sound and profile.spread >= 0.0 and not profile.disturbed else None

    def words(self, figures: RatesProfile) -> str:
        """Return how fast each device is."""
        return figures.note()

    def steps(
        self, threads: tuple[int, ...], dtypes: tuple[str, ...], named: bool, report: Callable[[str], object]
    ) -> Iterator[profiles.Step]:
        """Yield the measurement of the default devices."""

        def devices() -> tuple[Path | None, str]:
            found = measure(report=report)
            return keep(found), found.note()

        yield profiles.Step("devices of solvers", devices)


_known: dict[tuple[DeviceSpec, DeviceSpec, int], Rates] = {}
# One at a time measures: two would disturb each other, and what they find is used until the process ends.
_measuring = threading.Lock()


def _forked() -> None:
    # The thread that held it does not exist in the child.
    global _measuring
    _measuring = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def forget() -> None:
    """Look at the store again when the next rates are wanted."""
    _known.clear()


def rates_of(pair: Pair, block: int) -> Rates:
    """Return the rates of a pair for blocks of ``block`` rows: those that are kept, else measured here and now."""
    key = (*pair.specs, block)
    found = _known.get(key)
    if found is None:
        with _measuring:
            found = _known.get(key) or _kept_rates(pair, block) or _measured(pair, block)
            _known[key] = found
    return found


def _kept_rates(pair: Pair, block: int) -> Rates | None:
    # To look is cheap where nobody ever measured.
    if not profiles.is_any_kept(_KIND):
        return None
    profile = kept(pair.specs)
    return None if profile is None else profile.rates.get(block)


def _measured(pair: Pair, block: int) -> Rates:
    (host_s, _), (accelerator_s, _) = pair.at_once(
        lambda: pair.host.block_product_s(block), lambda: pair.accelerator.block_product_s(block)
    )
    return Rates(host_s, accelerator_s, pair.copy_s(block), pair.call_s())


def _balanced(rates: Rates, blocks: int) -> int:
    """Return the border with which both devices end column 0 as nearly together as they can."""
    left = blocks - 1

    def longer_s(rows: int) -> float:
        # Half a product for a block that is solved, one for one that is updated, and one for the diagonal block: its
        # factorisation has fewer operations, but most of them one after the other.
        host = 1.0 + rows / 2 + rows * (rows + 1) / 2
        accelerator = (left - rows) / 2 + (left * (left + 1) - rows * (rows + 1)) / 2
        return max(host * rates.host_s, accelerator * rates.accelerator_s)

    return 1 + min(range(blocks), key=longer_s)


def chosen_border(pair: Pair, size: int, block: int, blocks: int, law: SplitLaw) -> int:
    """Return the border with which a factorisation shall begin.

    Parameters
    ----------
    pair : Pair
    size, block, blocks : int
        N, b, n.
    law : SplitLaw
        The power law decides by joules, any other way by time.

    Returns
    -------
    int
        0 where the accelerator does better alone, n where the host does, else the border that balances column 0.
    """
    if blocks < _LEAST_BLOCKS:
        return 0
    rates = rates_of(pair, block)
    both = _balanced(rates, blocks)
    if isinstance(law, PowerSplit):
        seen = Load(
            blocks=blocks, first=1, border=both, host_blocks=1.0, host_s=rates.host_s, accelerator_blocks=1.0,
            accelerator_s=rates.accelerator_s,
        )  # fmt: skip
        border = law.border(seen)
        return 0 if border <= 1 else border
    copied = 8.0 * block * block
    copy_s = max(rates.copy_s, pair.link.model.seconds(copied) if pair.link.model else 0.0)
    model = CostModel(
        host_rate=2.0 * block**3 / rates.host_s, accelerator_rate=2.0 * block**3 / rates.accelerator_s,
        link=LinkModel(bytes_per_s=copied / copy_s, latency_s=0.0), serial_s=_CALLS * rates.call_s,
    )  # fmt: skip
    shared_s = model.cholesky_s(size, block, Balanced(speed=rates.host_s / rates.accelerator_s), both)
    alone_s = {border: model.seconds("cholesky", size, block, share) for border, share in ((0, 1.0), (blocks, 0.0))}
    fastest = min(alone_s, key=alone_s.__getitem__)
    return both if shared_s < alone_s[fastest] else fastest
