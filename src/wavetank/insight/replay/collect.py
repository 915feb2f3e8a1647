"""Real steps of two uneven ranks, recorded by torch's own observers: as they are, and with one rank held up.

Rank 1 prepares its rows for a while before every step, so that rank 0 waits for it.  In each turn the same step runs as
it is, with rank 0 held up, and with rank 1 held up, by a loop of a known length at its beginning.

Needs the extra ``torch``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from wavetank.live.rank_process import Rank

RANKS = 2
AS_IS = "as is"
CHANGES = ("rank 0 later", "rank 1 later")
_BUCKET_MB = 0.5
_WARM_UP = 3
_RATE = 1e-3


def step_name(change: str, turn: int) -> str:
    """Return the name of the range around a step.

    Parameters
    ----------
    change : str
        :data:`AS_IS`, or one of :data:`CHANGES`.
    turn : int
    """
    return f"wavetank {change}, turn {turn}"


def collect(
    rank: Rank,
    *,
    folder: str,
    width: int,
    layers: int,
    rows: int,
    prepare_s: float,
    turns: int,
    delay_s: float,
    seed: int,
) -> None:
    """Train, and write ``host.RANK.json`` and ``device.RANK.json``.

    Parameters
    ----------
    rank : Rank
    folder : str
        Where to.
    width, layers : int
        Numbers in a row, and layers, of the model.
    rows : int
        Of a step.
    prepare_s : float
        How long rank 1 is busy before each step.
    turns : int
    delay_s : float
        How long a rank is held up.
    seed : int
        Of weights and rows.
    """
    import torch
    from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile, record_function

    torch.set_num_threads(1)
    rank.default_group()
    torch.manual_seed(seed)
    step = _step(width, layers, rows)
    for _ in range(_WARM_UP):
        step()
    observer = ExecutionTraceObserver()
    observer.register_callback(str(Path(folder) / f"host.{rank.number}.json"))
    with profile(activities=[ProfilerActivity.CPU], execution_trace_observer=observer) as profiler:
        for turn in range(turns):
            order = (AS_IS, *CHANGES) if turn % 2 == 0 else (*reversed(CHANGES), AS_IS)
            for change in order:
                held_up = change != AS_IS and CHANGES.index(change) == rank.number
                torch.distributed.barrier()
                with record_function(step_name(change, turn)):
                    _busy((prepare_s if rank.number == 1 else 0.0) + (delay_s if held_up else 0.0))
                    step()
    observer.unregister_callback()
    profiler.export_chrome_trace(str(Path(folder) / f"device.{rank.number}.json"))


def _busy(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def _step(width: int, layers: int, rows: int) -> Callable[[], None]:
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    stack: list[Any] = []
    for _ in range(layers):
        stack += [nn.Linear(width, width), nn.GELU()]
    model = DistributedDataParallel(nn.Sequential(*stack), bucket_cap_mb=_BUCKET_MB, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=_RATE)
    given, wanted = torch.randn(rows, width), torch.randn(rows, width)

    def step() -> None:
        ((model(given) - wanted) ** 2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
