"""The time one engine step takes, ``T(batch)``: one small interface, a fitted and a roofline back end.

A serving engine works in steps.  One step decodes a token for each running sequence and processes some prompt tokens;
four whole numbers describe it well enough:

R  ``decode_requests``   sequences that decode one token each
C  ``context_tokens``    sum of the context lengths that those sequences read
P  ``prefill_tokens``    prompt tokens processed, over all chunks
S  ``prefill_pairs``     causal attention pairs of the chunks: sum of p * context + p * (p + 1) / 2

Time is a whole number of picoseconds, so that a simulator can add up k decode steps, whose context grows by R tokens a
step, in closed form and still get bit for bit what step by step gives.  That needs T to be linear in C with a whole
slope, which ``context_slope_ps`` declares; -1 declares that T depends on C in another way.

Source of the roofline: S. Williams et al., "Roofline: an insightful visual performance model for multicore
architectures", CACM 52(4), 2009; its use for serving engines: A. Agrawal et al., "Vidur", MLSys 2024.

Differs from the sources:
1. Times are whole picoseconds, rounded to the nearest.
2. The roofline counts weights, KV cache and collectives; activations that stay in caches are not counted.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from numba import njit, types

from wavetank.errors import BadValueError
from wavetank.platforms.catalog import Device, Model, as_device, as_model
from wavetank.platforms.links import Link, all_reduce_s, device_link, exchange_experts_s, gather_logits_s
from wavetank.platforms.memory import Precision, check_tensor_parallel, kv_share, weight_bytes_per_parameter
from wavetank.sim.compiled import compiled

STEP_SIGNATURE = types.int64(types.int64, types.int64, types.int64, types.int64, types.float64[::1])
"""Signature of a compiled step time: (R, C, P, S, table) -> picoseconds."""

PS_PER_S = 10**12

StepFunction = Callable[[int, int, int, int, npt.NDArray[np.float64]], int]


class StepTime(Protocol):
    """How long one engine step takes.

    Attributes
    ----------
    context_slope_ps : int
        When not negative, ``T(R, C, P, S) == function(R, 0, P, S, table) + context_slope_ps * C`` exactly; -1 when T
        depends on C in another way.
    table : ndarray of float64, contiguous
        Parameters of the compiled function.
    function : compiled function of signature ``STEP_SIGNATURE``
        Returns picoseconds, at least 1.  It does not check its arguments.
    """

    @property
    def context_slope_ps(self) -> int:
        """Picoseconds per token of context, or -1."""
        ...

    @property
    def table(self) -> npt.NDArray[np.float64]:
        """Parameters of the compiled function."""
        ...

    @property
    def function(self) -> StepFunction:
        """Compiled function of signature ``STEP_SIGNATURE``."""
        ...

    def seconds(
        self, decode_requests: int, context_tokens: int, prefill_tokens: int = 0, prefill_pairs: int = 0
    ) -> float:
        """Return the step time in s."""


def step_ps(
    step_time: StepTime, decode_requests: int, context_tokens: int, prefill_tokens: int = 0, prefill_pairs: int = 0
) -> int:
    """Return the time of one step in picoseconds, by the rule that the compiled simulators follow.

    Parameters
    ----------
    step_time : StepTime
        The step-time model.
    decode_requests, context_tokens, prefill_tokens, prefill_pairs : int
        The batch: R, C, P and S of the module's docstring; none negative.

    Returns
    -------
    int
        Picoseconds, at least 1.

    Raises
    ------
    BadValueError
        If a count is negative or not a whole number.
    """
    R = _count("decode_requests", decode_requests)
    C = _count("context_tokens", context_tokens)
    P = _count("prefill_tokens", prefill_tokens)
    S = _count("prefill_pairs", prefill_pairs)
    slope = step_time.context_slope_ps
    if slope < 0:
        return int(step_time.function(R, C, P, S, step_time.table))
    return int(step_time.function(R, 0, P, S, step_time.table)) + slope * C


def _count(name: str, value: int) -> int:
    try:
        count = operator.index(value)
    except TypeError:
        count = -1
    if count < 0:
        raise BadValueError(f"{name} must be a whole number, not negative.", given=value)
    return count


@compiled(STEP_SIGNATURE)
def fitted_ps(R: int, C: int, P: int, S: int, table: npt.NDArray[np.float64]) -> int:
    """Linear step time in ps: what :class:`FittedStepTime` compiles to."""
    ps = table[0] + table[1] * R + table[3] * P + table[4] * S
    return max(1, int(ps + 0.5)) + int(table[2]) * C


class Fit(NamedTuple):
    """A fitted step time and how well it fits.

    Attributes
    ----------
    step_time : FittedStepTime
    r_squared : float
        Share of the variance of the measured seconds that is explained.
    worst_relative_error : float
        Largest ``|predicted - measured| / measured``.
    """

    step_time: FittedStepTime
    r_squared: float
    worst_relative_error: float


@dataclass(frozen=True, kw_only=True)
class FittedStepTime:
    """Linear step time: ``T = overhead + a R + b C + c P + d S``, the four rates being the parameters below.

    Parameters
    ----------
    overhead_s : float
        Time of a step with nothing to do, s.
    per_request_s : float, default 0
        Per decoding sequence, s.
    per_context_token_s : float, default 0
        Per token of context read by decoding sequences, s.
    per_prefill_token_s : float, default 0
        Per prompt token, s.
    per_prefill_pair_s : float, default 0
        Per causal pair of prompt tokens, s.

    Examples
    --------
    >>> FittedStepTime(overhead_s=5e-3, per_request_s=1e-5, per_context_token_s=2e-8).seconds(64, 64_000)
    0.00692
    """

    overhead_s: float
    per_request_s: float = 0.0
    per_context_token_s: float = 0.0
    per_prefill_token_s: float = 0.0
    per_prefill_pair_s: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            within(field.name, getattr(self, field.name), 0.0, math.inf)

    @classmethod
    def fit(cls, batches: npt.ArrayLike, seconds: npt.ArrayLike, *, relative: bool = False) -> Fit:
        """Fit the five coefficients, none negative, to measured steps.

        Parameters
        ----------
        batches : array-like of shape (steps, 4)
            R, C, P and S of each step.
        seconds : array-like of shape (steps,)
            Measured time of each step, s.
        relative : bool, default False
            Least squares of the relative instead of the absolute errors.

        Returns
        -------
        Fit
            The step time, its R^2 and its worst relative error.

        Raises
        ------
        BadValueError
            If the shapes do not match, there are fewer than five steps, or a time is not positive.
        """
        from scipy.optimize import nnls

        batch_array = np.asarray(batches, dtype=np.float64)
        measured = np.asarray(seconds, dtype=np.float64)
        if batch_array.ndim != 2 or batch_array.shape[1] != 4 or measured.shape != batch_array.shape[:1]:
            raise BadValueError(
                "batches and seconds do not match.",
                given=f"shapes {batch_array.shape} and {measured.shape}",
                allowed="(steps, 4) and (steps,)",
            )
        if measured.size < 5:
            raise BadValueError("Too few steps for five coefficients.", given=measured.size, allowed="at least 5")
        if not (np.isfinite(measured).all() and (measured > 0).all()):
            raise BadValueError("seconds must be positive and finite.", given=float(measured.min()))
        if not (np.isfinite(batch_array).all() and (batch_array >= 0).all()):
            raise BadValueError("batches must be finite and not negative.", given=float(batch_array.min()))
        design = np.column_stack([np.ones(measured.size), batch_array])
        weight = 1 / measured if relative else np.ones(measured.size)
        # Columns differ by ten orders of magnitude; unit columns keep the solver's tolerance meaningful.
        scale = np.maximum(np.abs(design * weight[:, None]).max(axis=0), np.finfo(float).tiny)
        solution, _ = nnls(design * weight[:, None] / scale, measured * weight)
        coefficients = solution / scale
        predicted = design @ coefficients
        spread = float(((measured - measured.mean()) ** 2).sum())
        residual = float(((measured - predicted) ** 2).sum())
        return Fit(
            step_time=cls(**dict(zip((f.name for f in fields(cls)), map(float, coefficients), strict=True))),
            r_squared=1 - residual / spread if spread > 0 else math.nan,
            worst_relative_error=float(np.abs(predicted / measured - 1).max()),
        )

    @property
    def context_slope_ps(self) -> int:
        """Picoseconds per token of context."""
        return round(self.per_context_token_s * PS_PER_S)

    @cached_property
    def table(self) -> npt.NDArray[np.float64]:
        """Coefficients in picoseconds, float64 of shape (5,)."""
        return np.array(
            [
                self.overhead_s * PS_PER_S,
                self.per_request_s * PS_PER_S,
                self.context_slope_ps,
                self.per_prefill_token_s * PS_PER_S,
                self.per_prefill_pair_s * PS_PER_S,
            ]
        )

    @property
    def function(self) -> StepFunction:
        """Compiled function of signature ``STEP_SIGNATURE``."""
        return fitted_ps

    def seconds(
        self, decode_requests: int, context_tokens: int, prefill_tokens: int = 0, prefill_pairs: int = 0
    ) -> float:
        """Return the step time in s."""
        return step_ps(self, decode_requests, context_tokens, prefill_tokens, prefill_pairs) / PS_PER_S


def check_expert_parallel(model: Model, expert_parallel: int) -> None:
    """Raise unless the model's experts divide evenly among ``expert_parallel`` workers, or are not shared."""
    if isinstance(expert_parallel, bool) or not isinstance(expert_parallel, int) or expert_parallel < 1:
        raise BadValueError("expert_parallel must be a positive whole number.", given=expert_parallel)
    if expert_parallel > 1 and (not model.experts or model.experts % expert_parallel):
        raise BadValueError(
            f"expert_parallel does not divide the {model.experts} experts of {model.name!r}.",
            given=expert_parallel,
            allowed=[str(n) for n in range(1, model.experts + 1) if model.experts % n == 0] or ["1"],
        )


# Layout of the roofline's table, all in picoseconds but the logarithm and the share that does not overlap.
FIXED, _DENSE_BYTES, _DENSE_FLOPS, _EXPERT_BYTES, _EXPERT_FLOPS, _LOG_UNTOUCHED = range(6)
HEAD_BYTES, HEAD_FLOPS, PER_PAIR, PER_TOKEN, SLOPE, PER_ROW, UNOVERLAPPED = range(6, 13)


@njit(inline="always")
def longer(a: float, b: float, unoverlapped: float) -> float:
    """Return the time of two things that overlap: the longer one, at 1 their sum, and a hyperbola between these."""
    if unoverlapped == 0.0:
        return max(a, b)
    return 0.5 * (a + b + math.sqrt((a - b) * (a - b) + 4.0 * unoverlapped * a * b))


@compiled(STEP_SIGNATURE)
def roofline_ps(R: int, C: int, P: int, S: int, table: npt.NDArray[np.float64]) -> int:
    """Roofline in ps: what :class:`RooflineStepTime` compiles to.

    Parameters
    ----------
    R, C, P, S : int
        The batch, as the module's docstring has it.
    table : ndarray of float64, shape (13,)
        Of :class:`RooflineStepTime`.
    """
    tokens = R + P
    rows = R + (1 if P > 0 else 0)
    ps = table[FIXED] + table[PER_TOKEN] * tokens + table[PER_PAIR] * S + table[PER_ROW] * rows
    ps += longer(table[_DENSE_BYTES], table[_DENSE_FLOPS] * tokens, table[UNOVERLAPPED])
    ps += longer(table[HEAD_BYTES], table[HEAD_FLOPS] * rows, table[UNOVERLAPPED])
    if table[_EXPERT_BYTES] > 0.0:
        touched = -math.expm1(table[_LOG_UNTOUCHED] * tokens)
        ps += longer(table[_EXPERT_BYTES] * touched, table[_EXPERT_FLOPS] * tokens, table[UNOVERLAPPED])
    return max(1, int(ps + 0.5)) + int(table[SLOPE]) * C


_SHARES = (
    "flops_efficiency", "bandwidth_efficiency", "link_efficiency", "kv_bandwidth_efficiency", "expert_efficiency",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RooflineStepTime:
    r"""Step time from data-sheet figures: each operator takes the longer of its arithmetic and its memory traffic.

    With :math:`n` = R + P tokens, tensor parallelism :math:`t`, arithmetic rate :math:`F` and memory bandwidth
    :math:`B` after their efficiencies, and :math:`w` bytes a weight, the step takes the sum of

    ==================  =============================================================================================
    overhead            ``overhead_s``, ``layer_s`` for each layer, and ``sequence_s`` for each row
    linear layers       max(2 N n / (t F), w N / (t B)), N = weights of projections and feed-forward blocks
    routed experts      max(2 N_e k n / (E t F), w N_e (1 - (1 - k/E)^n) / (t B)): k of E experts a token, so that n
                        tokens touch that share of the expert weights N_e when routing is uniform
    output head         max(2 V H rows / (t F), w V H / (t B)), rows = R, and one more for a step with a prompt chunk
    decode attention    C max(kv bytes / B, flops / F) per context token, on the share of heads that a device keeps
    prompt attention    4 layers heads head_dim S / (t F); with latent attention 2 layers heads (2 head_dim + rope) S
    KV write            kv bytes n / B
    all-reduce          (2 layers + 1) (alpha + 2 (t - 1) / t * 2 H n / link), if t > 1: the embedding is summed too
    logits              alpha + 2 (t - 1) / t * V rows / link, if t > 1: their shards are gathered
    expert exchange     2 layers with experts (alpha + (g - 1) 2 H n / link), if g > 1 workers share the experts: each
                        then keeps N_e / g of their weights and meets the tokens of all, taken to be g n
    ==================  =============================================================================================

    T is linear in C, with the slope rounded to a whole picosecond per token.  Where arithmetic and traffic overlap by a
    share o only, :math:`\max(a, b)` becomes :math:`(a + b + \sqrt{(a - b)^2 + 4 (1 - o) a b}) / 2`, the sum at o = 0.

    Parameters
    ----------
    device : str or Device
        The accelerator, by shipped name or as an object.
    model : str or Model
        The language model, likewise.
    tensor_parallel : int, default 1
        Devices of one node that share every layer; must divide the attention heads.
    precision : {"bf16", "fp8"}, default "bf16"
        Of the weights and the linear layers; attention and the KV cache are bf16.
    overhead_s : float, default 5e-4
        Launches and scheduling of one step, s.
    flops_efficiency : float, default 0.7
        Share of the peak arithmetic rate that is reached.
    bandwidth_efficiency : float, default 0.8
        Share of the peak memory bandwidth that is reached.
    link_efficiency : float, default 0.8
        Share of the peak link bandwidth that a collective reaches.
    all_reduce_latency_s : float, optional
        Start-up time alpha of one collective, s; the device's ``link_latency_s`` when left out.
    expert_parallel : int, default 1
        Data-parallel workers g that share the experts.
    link : Link, optional
        A link of known figures, in place of the device's with ``link_efficiency`` and ``all_reduce_latency_s``.
    overlap : float, default 1
        How far arithmetic and memory traffic of linear layers, experts and output head overlap.
    kv_bandwidth_efficiency : float, optional
        Share of the peak memory bandwidth that reading the KV cache reaches; ``bandwidth_efficiency`` when left out.
    expert_efficiency : float, default 1
        Rate of arithmetic of routed experts, whose matrices meet few tokens each, over that of other layers.
    layer_s : float, default 0
        Launches and small kernels of one layer, s.
    sequence_s : float, default 0
        Each sequence that a step gives a token, s.

    Notes
    -----
    How many prompt chunks end in this step, and so need a row of the output head, is not part of the batch; one is
    assumed.  A chunk's reading of its own earlier context counts as arithmetic only, which is short for chunks of fewer
    than about a hundred tokens on a long context.

    The default efficiencies come from data set ``gpu-specs-and-estimates``: 0.8 is its achievable share of memory
    bandwidth, 0.7 brings prompts near its predictions.  Decode and prompt steps of H100, H200 and A100 are then 0.62 to
    1.25 times those predictions (median 0.91), the low ones at tensor parallelism 8.  Collectives of four and more
    devices over PCIe are far too optimistic (down to a tenth): those predictions let them cross sockets.  Values that
    were fitted ship too: :func:`wavetank.platforms.calibration.calibrated_roofline`.

    Examples
    --------
    >>> step = RooflineStepTime(device="H100-SXM", model="Llama-3.1-8B")
    >>> f"{step.seconds(64, 64 * 2048) * 1e3:.1f} ms"
    '12.5 ms'
    """

    device: str | Device
    model: str | Model
    tensor_parallel: int = 1
    precision: Precision = "bf16"
    overhead_s: float = 5e-4
    flops_efficiency: float = 0.7
    bandwidth_efficiency: float = 0.8
    link_efficiency: float = 0.8
    all_reduce_latency_s: float | None = None
    expert_parallel: int = 1
    link: Link | None = None
    overlap: float = 1.0
    kv_bandwidth_efficiency: float | None = None
    expert_efficiency: float = 1.0
    layer_s: float = 0.0
    sequence_s: float = 0.0

    def __post_init__(self) -> None:
        device = as_device(self.device)
        check_tensor_parallel(as_model(self.model), self.tensor_parallel)
        check_expert_parallel(as_model(self.model), self.expert_parallel)
        weight_bytes_per_parameter(self.precision)
        if self.precision == "fp8" and device.fp8_flops_per_s is None:
            raise BadValueError(f"{device.name} has no 8-bit floating point.", given="precision='fp8'", allowed="bf16")
        for name in ("overhead_s", "layer_s", "sequence_s"):
            within(name, getattr(self, name), 0.0, math.inf)
        within("overlap", self.overlap, 0.0, 1.0)
        for name in _SHARES:
            value = getattr(self, name)
            if name == "kv_bandwidth_efficiency" and value is None:
                continue
            within(name, value, 0.0, 1.0)
            if value == 0.0:
                raise BadValueError(f"{name} is out of range.", given=value, allowed="more than 0, at most 1")
        if self.all_reduce_latency_s is not None:
            within("all_reduce_latency_s", self.all_reduce_latency_s, 0.0, math.inf)

    @property
    def context_slope_ps(self) -> int:
        """Picoseconds per token of context."""
        device, model = as_device(self.device), as_model(self.model)
        traffic = model.kv_bytes_per_token * kv_share(model, self.tensor_parallel)
        arithmetic = model.decode_flops_per_context_token / self.tensor_parallel
        reached = self.bandwidth_efficiency if self.kv_bandwidth_efficiency is None else self.kv_bandwidth_efficiency
        seconds = max(
            traffic / (device.hbm_bytes_per_s * reached),
            arithmetic / (device.bf16_flops_per_s * self.flops_efficiency),
        )
        return round(seconds * PS_PER_S)

    @cached_property
    def table(self) -> npt.NDArray[np.float64]:
        """Terms of the formula in picoseconds, float64 of shape (13,)."""
        device, model, share = as_device(self.device), as_model(self.model), 1 / self.tensor_parallel
        weight_bytes = weight_bytes_per_parameter(self.precision)
        peak = device.bf16_flops_per_s
        if self.precision == "fp8" and device.fp8_flops_per_s is not None:
            peak = device.fp8_flops_per_s
        per_flop = PS_PER_S / (peak * self.flops_efficiency)
        per_attention_flop = PS_PER_S / (device.bf16_flops_per_s * self.flops_efficiency)
        per_byte = PS_PER_S / (device.hbm_bytes_per_s * self.bandwidth_efficiency)
        table = np.zeros(13)
        table[FIXED] = (self.overhead_s + self.layer_s * model.layers) * PS_PER_S
        table[PER_ROW] = self.sequence_s * PS_PER_S
        table[UNOVERLAPPED] = 1.0 - self.overlap
        table[_DENSE_BYTES] = model.dense_parameters * share * weight_bytes * per_byte
        table[_DENSE_FLOPS] = model.dense_parameters * share * 2 * per_flop
        if model.experts:
            chosen = model.experts_per_token / model.experts
            table[_EXPERT_BYTES] = model.expert_parameters * share * weight_bytes * per_byte / self.expert_parallel
            table[_EXPERT_FLOPS] = model.expert_parameters * chosen * share * 2 * per_flop / self.expert_efficiency
            table[_LOG_UNTOUCHED] = self.expert_parallel * math.log1p(-chosen)
        table[HEAD_BYTES] = model.head_parameters * share * weight_bytes * per_byte
        table[HEAD_FLOPS] = model.head_parameters * share * 2 * per_flop
        table[PER_PAIR] = model.prefill_flops_per_pair * share * per_attention_flop
        table[PER_TOKEN] = model.kv_bytes_per_token * kv_share(model, self.tensor_parallel) * per_byte
        link = self.link or device_link(device, self.link_efficiency, self.all_reduce_latency_s)
        for collectives_s, sharers, each in (
            (all_reduce_s, self.tensor_parallel, PER_TOKEN),
            (gather_logits_s, self.tensor_parallel, PER_ROW),
            (exchange_experts_s, self.expert_parallel, PER_TOKEN),
        ):
            if sharers > 1:
                fixed_s, each_s = collectives_s(link, model, sharers)
                table[FIXED] += fixed_s * PS_PER_S
                table[each] += each_s * PS_PER_S
        table[SLOPE] = self.context_slope_ps
        return table

    @property
    def function(self) -> StepFunction:
        """Compiled function of signature ``STEP_SIGNATURE``."""
        return roofline_ps

    def linear_layers_s(self, tokens: int) -> float:
        """Return the time of everything in the layers but attention, experts and collectives, s."""
        alone = self.table.copy()
        alone[[_EXPERT_BYTES, HEAD_BYTES, HEAD_FLOPS, PER_TOKEN, PER_ROW]] = 0.0
        alone[FIXED] = self.layer_s * as_model(self.model).layers * PS_PER_S
        return roofline_ps(tokens, 0, 0, 0, alone) / PS_PER_S

    def seconds(
        self, decode_requests: int, context_tokens: int, prefill_tokens: int = 0, prefill_pairs: int = 0
    ) -> float:
        """Return the step time in s."""
        return step_ps(self, decode_requests, context_tokens, prefill_tokens, prefill_pairs) / PS_PER_S


def within(name: str, value: Any, low: float, high: float) -> None:
    """Raise unless ``value`` is a finite number from ``low`` to ``high``."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not (low <= value <= high) or value == math.inf:
        limit = "finite and not negative" if high == math.inf else f"from {low:g} to {high:g}"
        raise BadValueError(f"{name} is out of range.", given=value, allowed=f"a number, {limit}")
