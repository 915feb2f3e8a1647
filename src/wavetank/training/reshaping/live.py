"""Real processes that train on sequences of very different lengths, watched by StepWatch while they do.

Each process is a replica with one stage.  It says how long it computed and which lengths it had: what every job knows.
Needs the extra ``torch``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from wavetank.errors import BadValueError, WavetankError
from wavetank.live.membership import Decision
from wavetank.live.ranks import Ranks
from wavetank.sim.rng import stream
from wavetank.training.failures.trainer import Group, ResilientTrainer
from wavetank.training.reshaping.step_watch import Alarm, Watch
from wavetank.training.reshaping.telemetry import Observation

_WORDS, _WIDTH, _HEADS = 17, 32, 8
_SHORTEST = 16


class Watched(NamedTuple):
    """A step of real processes.

    Attributes
    ----------
    number : int
    seen : Observation
    alarm : Alarm or None
        Its replica is the rank.
    predicted_s : float
        What the watch had predicted; nan while it learns.
    """

    number: int
    seen: Observation
    alarm: Alarm | None
    predicted_s: float


class Stopwatch:
    """A group that notes when a replica began to compute in a step and when it began to sum.

    Parameters
    ----------
    group : Group
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self.restart()

    @property
    def number(self) -> int:
        """Return the number of this replica."""
        return self._group.number

    @property
    def members(self) -> tuple[int, ...]:
        """Return all replicas."""
        return self._group.members

    @property
    def busy_s(self) -> float:
        """Return for how long was computed since the restart, s."""
        return max(0.0, self._end_s - self._begin_s)

    def restart(self) -> None:
        """Begin a step."""
        self._begin_s = self._end_s = 0.0

    def point(self, name: str, **at: int) -> None:
        """Note the first micro-batch."""
        if name == "microbatch" and not self._begin_s:
            self._begin_s = time.perf_counter()
        self._group.point(name, **at)

    def all_reduce(self, tensor: Any, **at: int) -> None:
        """Note the first sum."""
        if not self._end_s:
            self._end_s = time.perf_counter()
        self._group.all_reduce(tensor, **at)

    def agree(self, well: bool) -> Decision:
        """Return what the group answers."""
        return self._group.agree(well)


def lengths_of(microbatch: int, tokens: int) -> list[int]:
    """Return lengths of the sequences of a micro-batch; they sum to ``tokens``, and depend on its number alone.

    Parameters
    ----------
    microbatch, tokens : int
    """
    draws, found = stream(microbatch, "lengths of a watched micro-batch"), list[int]()
    while (left := tokens - sum(found)) > 0:
        longest = min(left, tokens if draws.random() < 0.3 else 4 * _SHORTEST)
        found.append(int(draws.integers(min(_SHORTEST, longest), longest + 1)))
    return found


def train_watched(rank: Any, steps: int, microbatches: int, tokens: int) -> None:
    """Train in a rank, and report of every step what a watch wants to know.

    Parameters
    ----------
    rank : wavetank.live.rank_process.Rank
    steps, microbatches : int
        Steps, and micro-batches of each over all ranks, a multiple of them.
    tokens : int
        Of a micro-batch.
    """
    group = Stopwatch(rank)
    trainer = _trainer(group, tokens)
    for step in range(steps):
        group.restart()
        begun_s = time.perf_counter()
        report = trainer.step(range(step * microbatches, (step + 1) * microbatches))
        lengths = [np.array(lengths_of(each, tokens), np.float64) for each in report.computed]
        rank.report({
            "step": step, "busy_s": group.busy_s, "step_s": time.perf_counter() - begun_s,
            "tokens": [float(each.sum()) for each in lengths], "squares": [float((each**2).sum()) for each in lengths],
        })  # fmt: skip


def _trainer(group: Any, tokens: int) -> ResilientTrainer:
    import torch
    from torch import nn

    torch.manual_seed(0)
    parts = {
        "words": nn.Embedding(_WORDS, _WIDTH),
        "layer": nn.TransformerEncoderLayer(_WIDTH, _HEADS, 2 * _WIDTH, dropout=0.0, batch_first=True),
        "out": nn.Linear(_WIDTH, _WORDS),
    }
    model = nn.ModuleDict(parts)

    def loss(model: Any, number: int) -> Any:
        total = torch.zeros(())
        for length in lengths_of(number, tokens):
            text = torch.randint(_WORDS, (1, length + 1))
            mask = torch.full((length, length), float("-inf")).triu(1)
            scores = model["out"](model["layer"](model["words"](text[:, :-1]), src_mask=mask))
            total = total + nn.functional.cross_entropy(scores[0], text[0, 1:], reduction="sum")
        return total / tokens

    return ResilientTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1), loss, group=group)


def watch(ranks: Ranks, watching: Watch, *, timeout_s: float) -> Iterator[Watched]:
    """Yield every step that all ranks of :func:`train_watched` have reported, with what the watch says of it.

    Parameters
    ----------
    ranks : Ranks
    watching : Watch
    timeout_s : float
        For the whole.

    Raises
    ------
    WavetankError
        If a rank fails or dies.
    BadValueError
        If micro-batches are no multiple of the ranks.
    """
    open_: dict[int, dict[int, dict[str, Any]]] = {}
    for event in ranks.events(timeout_s):
        if event.kind in ("raised", "died"):
            raise WavetankError(f"Rank {event.rank} {event.kind}.", given=event.value)
        if event.kind != "reported":
            continue
        number = event.value["step"]
        reports = open_.setdefault(number, {})
        reports[event.rank] = event.value
        if len(reports) < ranks.size:
            continue
        rows = [open_[number][rank] for rank in range(ranks.size)]
        del open_[number]
        if len({len(row["tokens"]) for row in rows}) > 1:
            raise BadValueError("Ranks have equally many micro-batches.", given=[len(row["tokens"]) for row in rows],
                                allowed="a multiple of the ranks")  # fmt: skip
        seen = Observation(
            tokens=np.array([row["tokens"] for row in rows]), squares=np.array([row["squares"] for row in rows]),
            busy_s=np.array([[row["busy_s"]] for row in rows]), step_s=max(row["step_s"] for row in rows), layers=(1,),
        )  # fmt: skip
        alarm = watching.step(seen)
        yield Watched(number, seen, alarm, float(getattr(watching, "predicted_s", float("nan"))))
