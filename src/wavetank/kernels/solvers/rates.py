"""Whether two devices shall share a factorisation at all, and with which border they begin.

Below some size the hand-offs cost more than the slower device contributes.  A product of two blocks is timed on each
device, a block is copied across the link, an empty call is given to the second thread: with these four figures the
cost model tells what sharing takes, and what each device takes alone.  Devices do not change, so a pair is measured
once in a process.

Source: the model is ours; that a scheduler remembers what a task took on a kind of worker is the idea of C. Augonnet,
S. Thibault, R. Namyst, "Automatic calibration of performance models on heterogeneous multicore architectures", HPPC
2009.

Differs from the source:

1. Block products are timed when they are first asked for, not while tasks run.
"""

from __future__ import annotations

from typing import NamedTuple

from wavetank.kernels.solvers.balance import Load, PowerSplit, SplitLaw
from wavetank.kernels.solvers.link import LinkModel
from wavetank.kernels.solvers.model import Balanced, CostModel
from wavetank.kernels.solvers.pair import DeviceSpec, Pair

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


_known: dict[tuple[DeviceSpec, DeviceSpec, int], Rates] = {}


def rates_of(pair: Pair, block: int) -> Rates:
    """Return the rates of a pair for blocks of ``block`` rows; measured when they are first asked for."""
    key = (*pair.specs, block)
    if key not in _known:
        (host_s, _), (accelerator_s, _) = pair.at_once(
            lambda: pair.host.block_product_s(block), lambda: pair.accelerator.block_product_s(block)
        )
        _known[key] = Rates(host_s, accelerator_s, pair.copy_s(block), pair.call_s())
    return _known[key]


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
