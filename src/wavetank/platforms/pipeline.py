"""Pipeline parallelism: a model's layers in stages on devices one behind the other, and micro-batches between them.

A step of the simulator, in which every running sequence gets a token, is one round of the pipeline.  Its sequences are
spread over at most as many micro-batches as there are stages, and each of these goes through all stages, over a link at
every boundary, and back with the token.  Rounds follow each other without a gap: a stage begins the next micro-batch as
soon as it is there.  So a round takes the longer of two times:

way      one micro-batch through all stages and links, which is what a lone sequence waits for
work     all micro-batches through the slowest stage, or over the slowest link, which is what a full pipeline waits for

Prompts are chunks of at most one micro-batch's budget of tokens; the micro-batches that compute them are the longer
ones.  With as many micro-batches as stages, all equal, both times are the same but for links and the output head.

Source: vLLM 0.19, ``Scheduler`` with a queue of as many batches as stages, ``get_pp_indices`` (the last stage takes
none of the layers that are left over) and ``IntermediateTensors`` (hidden states and residual).

Differs from the source:

1. Sequences are spread evenly; vLLM puts those into a micro-batch that are not under way in another one.
2. Sending overlaps with computing, and every boundary has a link of its own.
3. A pipeline that runs empty or fills up pays no more than its way: the round is the steady one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
from numba import njit

from wavetank.errors import BadValueError
from wavetank.platforms.catalog import Model
from wavetank.platforms.engine_overheads import EngineOverheads
from wavetank.platforms.links import Link
from wavetank.platforms.step_time import (
    PS_PER_S,
    STEP_SIGNATURE,
    StepFunction,
    StepTime,
    fitted_ps,
    roofline_ps,
    step_ps,
    within,
)
from wavetank.platforms.table_step_time import TableStepTime, all_layers_ps
from wavetank.sim.compiled import compiled

_Array = npt.NDArray[np.float64]

_BYTES_PER_TOKEN_AND_WIDTH = 4  # hidden states and residual, bf16

# At the head of the table, before the tables of the whole model and of the shallow one.
_STAGES, _LAYERS, _SHALLOW, _LARGEST, _LAST, _BUDGET, _OVERHEAD, _SENT, _SENT_TOKEN, _SECOND = range(10)
_HEAD = 10


@njit
def _micro_batches(R: int, P: int, table: _Array) -> tuple[int, int]:
    """How many micro-batches a round has, and how many of them compute prompts."""
    stages, budget = int(table[_STAGES]), int(table[_BUDGET])
    prompts = min(stages, -(-P // budget))
    return max(1, min(stages, max(R, prompts))), prompts


@njit
def _stage(whole: float, shallow: float, table: _Array) -> tuple[float, float]:
    """The way of one micro-batch through all stages, and its time in the slowest of them, without links, ps."""
    layer = max(0.0, (whole - shallow) / (table[_LAYERS] - table[_SHALLOW]))
    # Embedding, output head, sampling and what the engine adds to a step.
    rest = max(whole - table[_LAYERS] * layer, table[_OVERHEAD])
    way = whole + (table[_STAGES] - 1.0) * table[_OVERHEAD]
    slowest = max(table[_LARGEST] * layer + table[_OVERHEAD], table[_LAST] * layer + rest)
    return way, slowest


@njit
def _round(
    micro: int, prompts: int, tokens: int, light: tuple[float, float], heavy: tuple[float, float], table: _Array
) -> int:
    """The time of one round in ps; ``tokens`` are those of a heavy micro-batch, of a light one where none is heavy."""
    sent = table[_SENT] + table[_SENT_TOKEN] * tokens
    way = (heavy[0] if prompts > 0 else light[0]) + (table[_STAGES] - 1.0) * sent + table[_SENT]
    work = (micro - prompts) * light[1] + prompts * heavy[1]
    return max(1, int(max(way, work, micro * sent) + 0.5))


def _round_of(time_ps: StepFunction) -> StepFunction:
    """Return the compiled time of a round whose whole and shallow models take ``time_ps``."""

    @compiled(STEP_SIGNATURE)
    def one_round(R: int, C: int, P: int, S: int, table: _Array) -> int:
        micro, prompts = _micro_batches(R, P, table)
        whole, shallow = table[_HEAD : int(table[_SECOND])], table[int(table[_SECOND]) :]
        r = -(-R // micro)
        c, p, s = (C * r // R if R > 0 else 0), 0, 0
        light = _stage(time_ps(r, c, 0, 0, whole), time_ps(r, c, 0, 0, shallow), table)
        heavy = light
        if prompts > 0:
            p, s = -(-P // prompts), -(-S // prompts)
            heavy = _stage(time_ps(r, c, p, s, whole), time_ps(r, c, p, s, shallow), table)
        return _round(micro, prompts, r + p, light, heavy, table)

    return one_round


_ROUNDS = {time_ps: _round_of(time_ps) for time_ps in (fitted_ps, roofline_ps, all_layers_ps)}


@dataclass(frozen=True, kw_only=True)
class PipelinedStepTime:
    """Time of one round of a pipeline; usually made by :func:`pipelined`.

    No run of an engine with a pipeline was at hand: it was held against hand-worked rounds and against a simulation of
    stages and links, not against measurements.

    Parameters
    ----------
    whole : StepTime
        Of a micro-batch in the whole model on the devices of one stage: fitted, a roofline, or a whole-layer profile.
    shallow : StepTime
        The same of a model with fewer layers: the difference is what layers take, the rest stands in the last stage.
    layers, shallow_layers : int
        Of both.
    stages : int
        Devices, or groups of them, one behind the other; at most as many as layers.
    micro_batch_tokens : int
        Most tokens of a micro-batch.
    link : Link
        At every boundary between two stages.
    sent_bytes_per_token : float
        What crosses a boundary for a token.
    overhead_s : float, default 0
        What the engine adds to a micro-batch on every stage, s; it is part of ``whole`` and of ``shallow``, once.

    Examples
    --------
    >>> from wavetank.platforms import FittedStepTime
    >>> four_layers, two_layers = (FittedStepTime(overhead_s=layers * 1e-3) for layers in (4, 2))
    >>> link = Link(bytes_per_s=1e9, latency_s=1e-4)
    >>> two_stages = PipelinedStepTime(
    ...     whole=four_layers, shallow=two_layers, layers=4, shallow_layers=2, stages=2, micro_batch_tokens=512,
    ...     link=link, sent_bytes_per_token=0.0)
    >>> f"{two_stages.seconds(8, 800) * 1e3:.1f} ms"
    '4.2 ms'
    """

    whole: StepTime
    shallow: StepTime
    layers: int
    shallow_layers: int
    stages: int
    micro_batch_tokens: int
    link: Link
    sent_bytes_per_token: float
    overhead_s: float = 0.0

    def __post_init__(self) -> None:
        if self.whole.function not in _ROUNDS or self.shallow.function is not self.whole.function:
            raise BadValueError(
                "A pipeline is made of one kind of step time.",
                given=f"{type(self.whole).__name__}, {type(self.shallow).__name__}",
                allowed="fitted, a roofline, or a profile that holds every layer; both alike",
            )
        for name, low, high in (
            ("layers", 2, 10**6), ("shallow_layers", 1, self.layers - 1), ("stages", 1, self.layers),
            ("micro_batch_tokens", 1, 10**9),
        ):  # fmt: skip
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise BadValueError(f"{name} is out of range.", given=value, allowed=f"a whole number, {low} to {high}")
        within("sent_bytes_per_token", self.sent_bytes_per_token, 0.0, 1e12)
        within("overhead_s", self.overhead_s, 0.0, 1e6)

    def with_overheads(self, overheads: EngineOverheads) -> PipelinedStepTime:
        """Return the same pipeline of profiles with what an engine adds to each micro-batch, on every stage."""
        return replace(
            self,
            whole=_with_overheads(self.whole, overheads),
            shallow=_with_overheads(self.shallow, overheads),
            overhead_s=self.overhead_s + overheads.step_s,
        )

    @property
    def context_slope_ps(self) -> int:
        """-1: sequences are spread over micro-batches in whole numbers."""
        return -1

    @cached_property
    def table(self) -> _Array:
        """Figures of the pipeline, then the tables of the whole and of the shallow model."""
        head = np.zeros(_HEAD)
        least, more = divmod(self.layers, self.stages)
        head[_STAGES], head[_LAYERS], head[_SHALLOW] = self.stages, self.layers, self.shallow_layers
        head[_LARGEST], head[_LAST] = least + bool(more), least
        head[_BUDGET], head[_OVERHEAD] = self.micro_batch_tokens, self.overhead_s * PS_PER_S
        if self.stages > 1:
            head[_SENT] = self.link.latency_s * PS_PER_S
            head[_SENT_TOKEN] = self.sent_bytes_per_token / self.link.bytes_per_s * PS_PER_S
        head[_SECOND] = _HEAD + self.whole.table.size
        return np.concatenate([head, self.whole.table, self.shallow.table])

    @property
    def function(self) -> StepFunction:
        """Compiled function of signature ``STEP_SIGNATURE``."""
        return _ROUNDS[self.whole.function]

    def seconds(
        self, decode_requests: int, context_tokens: int, prefill_tokens: int = 0, prefill_pairs: int = 0
    ) -> float:
        """Return the time of a round in s."""
        return step_ps(self, decode_requests, context_tokens, prefill_tokens, prefill_pairs) / PS_PER_S


def _with_overheads(step_time: StepTime, overheads: EngineOverheads) -> StepTime:
    if not isinstance(step_time, TableStepTime):
        raise BadValueError(
            "Overheads are added to a pipeline of profiles.", given=type(step_time).__name__, allowed="TableStepTime"
        )
    return step_time.with_overheads(overheads)


def pipelined(
    make: Callable[[Model], StepTime],
    model: Model,
    stages: int,
    *,
    micro_batch_tokens: int,
    link: Link,
    overhead_s: float = 0.0,
) -> StepTime:
    """Return the step time of a model whose layers are shared out in stages.

    Parameters
    ----------
    make : callable
        Returns the step time of a model on the devices of one stage; called with the model and with a shallower one.
    model : Model
    stages : int
        1 returns what ``make`` returns.
    micro_batch_tokens : int
        Most tokens of a micro-batch: the token budget of a step, which the simulated cluster then has ``stages`` times.
    link : Link
        At every boundary between two stages.
    overhead_s : float, default 0
        What ``make`` includes for the engine's part in a step; every stage has it.

    Examples
    --------
    >>> from wavetank.platforms import RooflineStepTime, model
    >>> from wavetank.platforms.links import Link
    >>> of = lambda model: RooflineStepTime(device="H100-SXM", model=model, overhead_s=0.0)
    >>> two = pipelined(of, model("Llama-3.1-70B"), 2, micro_batch_tokens=2048,
    ...                 link=Link(bytes_per_s=4e11, latency_s=1e-5))
    >>> f"{two.seconds(1, 1000) / of(model('Llama-3.1-70B')).seconds(1, 1000):.3f}"
    '1.000'
    """
    if stages == 1:
        return make(model)
    # Of a mixture of experts the leading dense layers stay: what differs are layers like most.
    kept = max(model.layers // 2, model.dense_layers + 1)
    if not 1 <= stages <= model.layers or kept >= model.layers:
        raise BadValueError(
            f"{model.name} cannot be shared out in stages.", given=stages, allowed=f"1 to {model.layers} stages",
            where="stages",
        )  # fmt: skip
    return PipelinedStepTime(
        whole=make(model),
        shallow=make(replace(model, layers=kept)),
        layers=model.layers,
        shallow_layers=kept,
        stages=stages,
        micro_batch_tokens=micro_batch_tokens,
        link=link,
        sent_bytes_per_token=_BYTES_PER_TOKEN_AND_WIDTH * model.hidden,
        overhead_s=overhead_s,
    )
