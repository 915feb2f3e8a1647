"""Step time from measured profiles: the time of each layer is looked up and the layers are added up.

Two kinds of profile are read.  LLMServingSim's (data set ``vllm-layer-profiles``) hold every layer of vLLM, attention
over mixed batches included; Vidur's (data set ``vidur-profiles``) hold all layers but attention and the output head,
which then come from the roofline.

Sources: J. Cho et al., "LLMServingSim 2.0", ISPASS 2026; A. Agrawal et al., "Vidur: a large-scale simulation framework
for LLM inference", MLSys 2024.

Differs from the sources:
1. A batch is four numbers, so decoding sequences are taken to have the mean context, and prompt chunks to be one chunk
   with the same tokens and pairs.  Pairs too few for that are several short prompts; they become one prompt with the
   same pairs.  That contexts of unequal length take longer is a property of the workload, not of the batch: attention
   is lengthened by the median of what was measured at the number of sequences, in proportion to the contexts' spread.
2. Interpolation is linear in the counts themselves, not in their logarithms: held-out points of the profiles are nearer
   to it.  Below the smallest measured count the smallest is used; beyond the largest the last trend goes on.
3. Experts are routed uniformly: n tokens touch 1 - (1 - k/E)^n of them.
4. Tensor parallelism adds the collectives of the roofline, since one rank's shard was profiled alone; expert
   parallelism likewise the exchanges between its workers.
5. Where a mixture of experts was profiled on one device alone, t devices take whole experts each, as vLLM's expert
   parallelism has them: the pairs of token and expert of one device become 1/t, and so do the experts.
"""

from __future__ import annotations

import csv
import gzip
import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from numba import njit

from wavetank.errors import BadFileError, BadValueError, nearest_of
from wavetank.platforms.catalog import Model, as_device, as_model
from wavetank.platforms.engine_overheads import EngineOverheads, padded
from wavetank.platforms.links import Link, all_reduce_s, device_link, exchange_experts_s, gather_logits_s
from wavetank.platforms.memory import check_tensor_parallel
from wavetank.platforms.step_time import (
    FIXED,
    HEAD_BYTES,
    HEAD_FLOPS,
    PER_PAIR,
    PER_ROW,
    PER_TOKEN,
    PS_PER_S,
    SLOPE,
    STEP_SIGNATURE,
    UNOVERLAPPED,
    RooflineStepTime,
    StepFunction,
    check_expert_parallel,
    longer,
    step_ps,
    within,
)
from wavetank.sim.compiled import compiled

_Array = npt.NDArray[np.float64]

# vLLM's names for what runs once per transformer layer, how often, and what runs once per step.
_PER_LAYER = {"layernorm": 2, "qkv_proj": 1, "rotary_emb": 1, "o_proj": 1}
_PER_LAYER_IF_PROFILED = {"qk_norm": 1}
_PER_LAYER_DENSE = {"gate_up_proj": 1, "act_fn": 1, "down_proj": 1}
_PER_STEP = {"embedding": 1, "final_layernorm": 1}
_PER_SEQUENCE = ("lm_head", "sampler")

_VIDUR_PER_LAYER = (
    "input_layernorm", "attn_pre_proj", "attn_rope", "attn_post_proj", "post_attention_layernorm", "mlp_up_proj",
    "mlp_act", "mlp_down_proj", "add",
)  # fmt: skip
_VIDUR_PER_STEP = "emb"

# Numbers at the head of an all-layers table: how long its axes are, the largest batch that a group of workers is padded
# to together, and how many workers share the experts.
_SIZES = 13
_EXPERTS, _PADDED_UP_TO, _SHARERS = 10, 11, 12
_LEAST_VARIATION = 0.15  # of contexts, below which measurements of unequal ones say nothing
_FAR = 64.0  # the trend beyond a table is drawn to this multiple of its largest count


@njit(inline="always")
def _bracket(table: _Array, start: int, size: int, x: float) -> tuple[int, float]:
    """Index of the axis interval that holds x and x's place in it: 0 to 1, more beyond the last interval."""
    low, high = 0, size - 1
    while high - low > 1:
        middle = (low + high) // 2
        if table[start + middle] <= x:
            low = middle
        else:
            high = middle
    left = table[start + low]
    return low, max(0.0, (x - left) / (table[start + low + 1] - left))


@njit(inline="always")
def _between(a: float, b: float, w: float) -> float:
    # Exact at both ends, so that measured points come out as measured.
    return a * (1.0 - w) + b * w


@njit
def _line(table: _Array, start: int, size: int, x: float) -> float:
    i, w = _bracket(table, start, size, x)
    return _between(table[start + size + i], table[start + size + i + 1], w)


@njit(inline="always")
def _sheet(table: _Array, at: int, stride: int, u: float, v: float) -> float:
    """Bilinear value in the cell whose corners are at, at + 1, at + stride, at + stride + 1."""
    return _between(_between(table[at], table[at + 1], v), _between(table[at + stride], table[at + stride + 1], v), u)


@njit
def _square(table: _Array, start: int, rows: int, columns: int, x: float, y: float) -> float:
    i, u = _bracket(table, start, rows, x)
    j, v = _bracket(table, start + rows, columns, y)
    at = start + rows + columns + i * columns + j
    return _between(_between(table[at], table[at + 1], v), _between(table[at + columns], table[at + columns + 1], v), u)


@compiled(STEP_SIGNATURE)
def all_layers_ps(R: int, C: int, P: int, S: int, table: _Array) -> int:
    """Whole-layer profile in ps: what :class:`TableStepTime` compiles to."""
    tokens, rows = int(table[0]), int(table[1])
    chunks, prompts = int(table[2]), int(table[3])
    decodes, contexts = int(table[4]), int(table[5])
    mixed_chunks, mixed_prompts, mixed_decodes, mixed_contexts = (
        int(table[6]), int(table[7]), int(table[8]), int(table[9]),
    )  # fmt: skip
    at_tokens = _SIZES
    at_rows = at_tokens + 2 * tokens
    at_prefill = at_rows + 2 * rows
    at_decode = at_prefill + chunks + prompts + chunks * prompts
    at_mixed = at_decode + decodes + contexts + decodes * contexts
    at_experts = table.size - 2 * int(table[_EXPERTS])

    ps = _line(table, at_tokens, tokens, R + P)
    if table[_EXPERTS] > 0.0:
        # Padded batches are as large on every worker.  Otherwise the others are taken to decode as many sequences, and
        # to compute no prompt in this step.
        each = float(R + P)
        if each > table[_PADDED_UP_TO]:
            each = R + P / table[_SHARERS]
        ps += _line(table, at_experts, int(table[_EXPERTS]), each)
    ps += _line(table, at_rows, rows, R + (1 if P > 0 else 0))

    context = C / R if R > 0 else 0.0
    chunk, prompt = float(P), 0.0
    if P > 0:
        prompt = S / P - (P + 1) / 2
        if prompt < 0.0:
            chunk, prompt = (math.sqrt(1.0 + 8.0 * S) - 1.0) / 2, 0.0
        largest = table[at_prefill + chunks - 1]
        if chunk > largest:
            prompt += (chunk - largest) / 2
            ps += (chunk / largest - 1.0) * _square(table, at_prefill, chunks, prompts, largest, prompt)
            chunk = largest

    if P == 0 and R > 0:
        ps += _square(table, at_decode, decodes, contexts, R, context)
    elif R == 0 and P > 0:
        ps += _square(table, at_prefill, chunks, prompts, chunk, prompt)
    elif R > 0 and P > 0:
        at = at_mixed
        i, a = _bracket(table, at, mixed_chunks, chunk)
        at += mixed_chunks
        j, b = _bracket(table, at, mixed_prompts, prompt)
        at += mixed_prompts
        k, c = _bracket(table, at, mixed_decodes, R)
        at += mixed_decodes
        m, d = _bracket(table, at, mixed_contexts, context)
        at += mixed_contexts
        stride_k = mixed_contexts
        stride_j = stride_k * mixed_decodes
        stride_i = stride_j * mixed_prompts
        at += i * stride_i + j * stride_j + k * stride_k + m
        ps += _between(
            _between(_sheet(table, at, stride_k, c, d), _sheet(table, at + stride_j, stride_k, c, d), b),
            _between(
                _sheet(table, at + stride_i, stride_k, c, d), _sheet(table, at + stride_i + stride_j, stride_k, c, d), b
            ),
            a,
        )
    return max(1, int(ps + 0.5))


@compiled(STEP_SIGNATURE)
def _linear_layers(R: int, C: int, P: int, S: int, table: _Array) -> int:
    rows = R + (1 if P > 0 else 0)
    ps = _line(table, 7, int(table[0]), R + P) + table[3] * S
    ps += longer(table[1], table[2] * rows, table[6]) + table[5] * rows
    return max(1, int(ps + 0.5)) + int(table[4]) * C


@dataclass(frozen=True, kw_only=True)
class TableStepTime:
    """Step time looked up in measured layer profiles; made by one of the two class methods.

    Parameters
    ----------
    source : str
        Which profile the values come from.
    layout : {"all-layers", "linear-layers"}
        How ``values`` is laid out: every layer measured, or all but attention and the output head.
    values : tuple of float
        Sizes, axes and times in picoseconds, as the compiled function reads them.
    context_slope_ps : int
        -1 for ``"all-layers"``, where measured attention is not linear in the context; else the roofline's slope.
    """

    source: str
    layout: Literal["all-layers", "linear-layers"]
    values: tuple[float, ...] = field(repr=False)
    context_slope_ps: int

    def __post_init__(self) -> None:
        if self.layout not in ("all-layers", "linear-layers"):
            raise BadValueError("layout is unknown.", given=self.layout, allowed=("all-layers", "linear-layers"))
        if (self.context_slope_ps == -1) != (self.layout == "all-layers") or self.context_slope_ps < -1:
            raise BadValueError(
                f"context_slope_ps does not go with layout {self.layout!r}.",
                given=self.context_slope_ps,
                allowed="-1 for all-layers, otherwise not negative",
            )

    @classmethod
    def from_vllm_profiles(
        cls,
        hardware: str,
        model: str | Model,
        tensor_parallel: int = 1,
        *,
        expert_parallel: int = 1,
        folder: str | Path | None = None,
        overhead_s: float = 5e-4,
        link_efficiency: float = 0.8,
        collective_latency_s: float | None = None,
        context_variation: float = 0.0,
        link: Link | None = None,
    ) -> TableStepTime:
        """Read the profile of a model on a device from data set ``vllm-layer-profiles``, or a folder like it.

        Parameters
        ----------
        hardware : str
            The device's folder, such as ``"RTXPRO6000"``; with tensor parallelism a shipped device of that name gives
            the link.
        model : str or Model
            The language model, by shipped name or as an object; its folder has the model's name, or starts with it.
        tensor_parallel : int, default 1
            Devices that share every layer; profiled are 1 and 2.
        expert_parallel : int, default 1
            Data-parallel workers that share the experts of a mixture-of-experts model: each keeps its part of them and
            computes it for the tokens of all, which are taken to be as many as its own (see :meth:`with_overheads`).
        folder : str or Path, optional
            Folder that holds ``<hardware>/<model>/tp<k>/*.csv.gz`` (or ``.csv``); the data set when left out.
        overhead_s : float, default 5e-4
            Launches and scheduling of one step, which layer profiles do not hold, s.
        link_efficiency : float, default 0.8
            Share of the peak link bandwidth that a collective reaches.
        collective_latency_s : float, optional
            Start-up time of one collective, s; the device's ``link_latency_s`` when left out.
        context_variation : float, default 0
            Standard deviation of the contexts that are decoded together, divided by their mean; needs ``skew.csv.gz``.
        link : Link, optional
            A link of known figures, in place of the shipped device's with ``link_efficiency`` and
            ``collective_latency_s``.

        Raises
        ------
        BadFileError
            If the profile is missing, incomplete or damaged.
        BadValueError, UnknownNameError
            If a parameter is out of range or unknown.
        """
        shape = as_model(model)
        check_tensor_parallel(shape, tensor_parallel)
        within("overhead_s", overhead_s, 0.0, math.inf)
        within("link_efficiency", link_efficiency, 1e-3, 1.0)
        if collective_latency_s is not None:
            within("collective_latency_s", collective_latency_s, 0.0, 1.0)
        within("context_variation", context_variation, 0.0, 10.0)
        check_expert_parallel(shape, expert_parallel)
        profile = _vllm_folder(_data_set("vllm-layer-profiles") if folder is None else Path(folder), hardware, shape)
        profile = _choose(profile, f"tp{tensor_parallel}", "tensor parallelism profiled")
        ps_per_us = PS_PER_S / 10**6

        axis, dense_us = _dense_us(profile, shape)
        dense_ps = dense_us * ps_per_us + overhead_s * PS_PER_S
        by_layer = _by_layer(profile, "per_sequence", "sequences", _PER_SEQUENCE)
        row_axis = np.array(sorted(by_layer[_PER_SEQUENCE[0]]))
        row_ps = np.sum([_on(row_axis, by_layer[layer]) for layer in _PER_SEQUENCE], axis=0) * ps_per_us
        if tensor_parallel > 1 or expert_parallel > 1:
            between = link or device_link(as_device(hardware), link_efficiency, collective_latency_s)
            for collectives_s, workers in ((all_reduce_s, tensor_parallel), (exchange_experts_s, expert_parallel)):
                if workers > 1:
                    fixed_s, per_token_s = collectives_s(between, shape, workers)
                    dense_ps += (fixed_s + per_token_s * axis) * PS_PER_S
            if tensor_parallel > 1:
                fixed_s, per_row_s = gather_logits_s(between, shape, tensor_parallel)
                row_ps += (fixed_s + per_row_s * row_axis) * PS_PER_S

        longer = _longer_by_spread(profile) if context_variation > 0 else None
        attention = {
            (chunk, prompt, decodes, context): us * ps_per_us * shape.layers
            * (1.0 if longer is None else 1.0 + context_variation * longer(chunk > 0, decodes))
            for chunk, prompt, decodes, context, us in _rows(
                profile, "attention", ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us")
            )
        }  # fmt: skip
        experts: tuple[_Array, _Array] | None = None
        if shape.experts:
            experts_us = shape.moe_layers * _moe_us(profile, shape, axis, expert_parallel, tensor_parallel)
            experts = axis, experts_us * ps_per_us
        return cls(
            source=f"vllm-layer-profiles {'/'.join(profile.parts[-3:])}",
            layout="all-layers",
            values=_packed(
                (axis, dense_ps), (row_axis, row_ps), attention, where=str(_file(profile, "attention")),
                experts=experts, sharers=expert_parallel,
            ),
            context_slope_ps=-1,
        )  # fmt: skip

    @classmethod
    def from_measurements(
        cls,
        source: str,
        per_token_s: Mapping[float, float],
        per_row_s: Mapping[float, float],
        attention_s: Mapping[tuple[float, float, float, float], float],
    ) -> TableStepTime:
        """Build a step time from what was measured of a whole pass.

        Parameters
        ----------
        source : str
            Where the figures come from.
        per_token_s : mapping of float to float
            Tokens of a step to the time of all that depends on them alone, and of all that depends on nothing, s.
        per_row_s : mapping of float to float
            Sequences that get a token to the time of all that depends on them alone, s.
        attention_s : mapping of (float, float, float, float) to float
            Prompt tokens, tokens of the same prompt before them, decoding sequences and the context of each to the
            time of attention in all layers, s: prompts alone, decodes alone, and both together.

        Raises
        ------
        BadFileError
            If there are fewer than two points along an axis.
        BadValueError
            If a time is negative or not finite.
        """
        lines = []
        for name, points in (("per_token_s", per_token_s), ("per_row_s", per_row_s)):
            if len(points) < 2:
                raise BadFileError(
                    "Too few measurements.", given=len(points), allowed="2 or more", where=f"{source}, {name}"
                )
            axis = np.array(sorted(points), np.float64)
            lines.append((axis, np.array([points[x] for x in axis.tolist()]) * PS_PER_S))
        for value in (*per_token_s.values(), *per_row_s.values(), *attention_s.values()):
            within(f"a time of {source}", value, 0.0, math.inf)
        attention = {(float(c), float(p), float(r), float(n)): s * PS_PER_S for (c, p, r, n), s in attention_s.items()}
        per_token, per_row = lines
        values = _packed(per_token, per_row, attention, where=source)
        return cls(source=source, layout="all-layers", values=values, context_slope_ps=-1)

    @classmethod
    def from_vidur_profiles(cls, roofline: RooflineStepTime, *, folder: str | Path | None = None) -> TableStepTime:
        """Take the linear layers from data set ``vidur-profiles``, attention and the rest from a roofline.

        Parameters
        ----------
        roofline : RooflineStepTime
            Names device (A100 or H100), model and tensor parallelism, and supplies attention, output head, KV write,
            all-reduce and overhead.
        folder : str or Path, optional
            Folder that holds ``<device>/<model>_mlp.csv.gz``; the data set when left out.

        Raises
        ------
        BadFileError
            If no model of the same shape is profiled on that device, or a file is damaged.

        Notes
        -----
        A profile serves every model with its heads, width and feed-forward width: Llama-2-70B's that of Llama-3.1-70B.
        """
        axis, seconds, file = vidur_linear_layers(roofline, folder)
        # The profile has the layers' own launches.
        fixed = roofline.table[FIXED] - roofline.layer_s * as_model(roofline.model).layers * PS_PER_S
        axis, line = _with_trend(axis, seconds * PS_PER_S + fixed + roofline.table[PER_TOKEN] * axis)
        terms = (HEAD_BYTES, HEAD_FLOPS, PER_PAIR, SLOPE, PER_ROW, UNOVERLAPPED)
        head = [float(axis.size), *(float(roofline.table[term]) for term in terms)]
        return cls(
            source=f"vidur-profiles {file.parent.name}/{file.name}",
            layout="linear-layers",
            values=(*head, *axis.tolist(), *line.tolist()),
            context_slope_ps=roofline.context_slope_ps,
        )

    @classmethod
    def from_probes(
        cls,
        source: str,
        *,
        decode_s: Mapping[tuple[int, int], float],
        prefill_s: Mapping[tuple[int, int], float],
        shared_s: float,
    ) -> TableStepTime:
        """Take the times of whole steps as they were measured at an engine.

        Parameters
        ----------
        source : str
            Which engine, for people.
        decode_s : mapping
            Sequences and the context of each to the time of a step that decodes a token for each, s.
        prefill_s : mapping
            Tokens of a prompt chunk and those before it to the time of a step that computes it alone, s.
        shared_s : float
            What a step that does both takes less than the two alone, s; never so much that it is shorter than one.

        Raises
        ------
        BadValueError
            If a mapping lacks two values of each number, or a time is not positive.

        Notes
        -----
        More work never takes less time: where it was measured so, the larger of the neighbours' times counts.
        """
        grids: list[tuple[list[_Array], _Array]] = []
        for name, measured in (("prefill_s", prefill_s), ("decode_s", decode_s)):
            if not all(math.isfinite(seconds) and seconds > 0 for seconds in measured.values()):
                raise BadValueError("A measured step takes time.", given=dict(measured), where=name)
            if any(len({key[i] for key in measured}) < 2 for i in (0, 1)):
                raise BadValueError(
                    "Too few measured steps.", given=sorted(measured), allowed="two values of each number", where=name
                )
            axes, grid = _grid({tuple(map(float, key)): s * PS_PER_S for key, s in measured.items()}, 2, where=source)
            grids.append((axes, np.maximum.accumulate(np.maximum.accumulate(grid, axis=0), axis=1)))
        within("shared_s", shared_s, 0.0, math.inf)
        (prompt_axes, alone), (decode_axes, decoding) = grids
        longer = np.maximum(alone[:, :, None, None], decoding[None, None])
        both = np.maximum(alone[:, :, None, None] + decoding[None, None] - shared_s * PS_PER_S, longer)
        # All of the time is in these tables: by tokens and by sequences there is nothing more.
        nothing = np.array([1.0, 2.0]), np.zeros(2)
        axes = [*prompt_axes, *decode_axes, *prompt_axes, *decode_axes]
        sizes = [2.0, 2.0, *(float(axis.size) for axis in axes), 0.0, math.inf, 1.0]
        values = np.concatenate(
            [sizes, *nothing, *nothing, *prompt_axes, alone.ravel(), *decode_axes, decoding.ravel(), *prompt_axes,
             *decode_axes, both.ravel()]
        )  # fmt: skip
        return cls(source=source, layout="all-layers", values=tuple(values.tolist()), context_slope_ps=-1)

    def with_overheads(self, overheads: EngineOverheads) -> TableStepTime:
        """Return the same profile with what an engine adds to it.

        Parameters
        ----------
        overheads : EngineOverheads
            Added to the ``overhead_s`` that the profile was read with.  Workers that share experts are padded to the
            same size where the largest of them fits a captured size; beyond, each brings the tokens that it has, and
            the others of a worker that computes a prompt are taken to decode alone.

        Returns
        -------
        TableStepTime
            Of the same layout and compiled function: the terms become part of the tables.

        Raises
        ------
        BadValueError
            If the profile does not hold every layer.
        """
        if self.layout != "all-layers":
            raise BadValueError(
                "Overheads are added to profiles that hold every layer.",
                given=self.source,
                hint="use from_vllm_profiles, or give the roofline its overhead_s",
            )
        values = np.array(self.values)
        sizes = values[:_SIZES].copy()
        tokens, rows = int(sizes[0]), int(sizes[1])
        axis, line = values[_SIZES : _SIZES + tokens], values[_SIZES + tokens : _SIZES + 2 * tokens]
        rest = values[_SIZES + 2 * tokens :].copy()
        if overheads.graph_sizes:
            axis, line = padded(overheads.graph_sizes, axis, line)
            if sizes[_EXPERTS]:
                of_experts = int(sizes[_EXPERTS])
                shared = padded(overheads.graph_sizes, *rest[-2 * of_experts :].reshape(2, -1))
                sizes[_EXPERTS] = shared[0].size
                rest = np.concatenate([rest[: -2 * of_experts], *shared])
                if sizes[_SHARERS] > 1:
                    sizes[_PADDED_UP_TO] = overheads.graph_sizes[-1]
        sizes[0] = axis.size
        rest[rows : 2 * rows] += overheads.sequence_s * PS_PER_S * rest[:rows]
        return replace(
            self, values=tuple(np.concatenate([sizes, axis, line + overheads.step_s * PS_PER_S, rest]).tolist())
        )

    @cached_property
    def table(self) -> _Array:
        """Values as a contiguous float64 array."""
        return np.array(self.values)

    @property
    def function(self) -> StepFunction:
        """Compiled function of signature ``STEP_SIGNATURE``."""
        return all_layers_ps if self.layout == "all-layers" else _linear_layers

    def seconds(
        self, decode_requests: int, context_tokens: int, prefill_tokens: int = 0, prefill_pairs: int = 0
    ) -> float:
        """Return the step time in s."""
        return step_ps(self, decode_requests, context_tokens, prefill_tokens, prefill_pairs) / PS_PER_S


def vidur_linear_layers(roofline: RooflineStepTime, folder: str | Path | None = None) -> tuple[_Array, _Array, Path]:
    """Read how long everything in a model's layers but attention takes, from data set ``vidur-profiles``.

    Parameters
    ----------
    roofline : RooflineStepTime
        Names device, model and tensor parallelism.
    folder : str or Path, optional
        As of :meth:`TableStepTime.from_vidur_profiles`.

    Returns
    -------
    ndarray, ndarray, Path
        Tokens, ascending; seconds, the embedding once; the file.
    """
    shape = as_model(roofline.model)
    root = _data_set("vidur-profiles") if folder is None else Path(folder)
    family = as_device(roofline.device).name.split("-")[0].lower()
    file = _vidur_file(_choose(root, family, "device profiled"), shape)
    columns = [f"time_stats.{op}.median" for op in (_VIDUR_PER_STEP, *_VIDUR_PER_LAYER)]
    by_tokens: dict[float, list[float]] = {}
    for degree, tokens, once_ms, *layer_ms in _rows_of(file, ("num_tensor_parallel_workers", "num_tokens", *columns)):
        if degree == roofline.tensor_parallel:
            by_tokens.setdefault(tokens, []).append(once_ms + shape.layers * sum(layer_ms))
    if len(by_tokens) < 2:
        raise BadFileError(
            f"No profile for tensor_parallel={roofline.tensor_parallel}.", given=str(file), hint="try 1, 2, 4 or 8"
        )
    axis = np.array(sorted(by_tokens))
    return axis, np.array([statistics.median(by_tokens[tokens]) for tokens in axis.tolist()]) / 1e3, file


def _packed(
    per_token: tuple[_Array, _Array],
    per_row: tuple[_Array, _Array],
    attention: Mapping[tuple[float, float, float, float], float],
    *,
    where: str,
    experts: tuple[_Array, _Array] | None = None,
    sharers: int = 1,
) -> tuple[float, ...]:
    """Return the values of the layout "all-layers" from axes and times in picoseconds."""
    parts: list[tuple[tuple[int, ...], Callable[[tuple[float, ...]], bool]]] = [
        ((0, 1), lambda key: key[2] == 0 and key[0] > 0),
        ((2, 3), lambda key: key[0] == 0 and key[2] > 0),
        ((0, 1, 2, 3), lambda key: key[0] > 0 and key[2] > 0),
    ]
    sizes: list[float] = []
    blocks: list[_Array] = []
    for axis, line in (per_token, per_row):
        far_axis, far_line = _with_trend(axis, line)
        sizes.append(far_axis.size)
        blocks += [far_axis, far_line]
    for columns, belongs in parts:
        points = {tuple(key[c] for c in columns): ps for key, ps in attention.items() if belongs(key)}
        axes, grid = _grid(points, len(columns), where=where)
        sizes += [float(a.size) for a in axes]
        blocks += [*axes, grid.ravel()]
    shared = [] if experts is None else [*_with_trend(*experts)]
    sizes += [float(shared[0].size) if shared else 0.0, math.inf, float(sharers)]
    return tuple(np.concatenate([np.array(sizes), *blocks, *shared]).tolist())


def _data_set(name: str) -> Path:
    from wavetank.workloads import datasets

    return Path(datasets.find(name))


def _choose(folder: Path, name: str, what: str) -> Path:
    there = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    if name not in there:
        raise BadFileError(
            f"There is no profile of {what} {name!r}.",
            given=str(folder / name),
            allowed=there or None,
            nearest=nearest_of(name, there),
        )
    return folder / name


def _vllm_folder(root: Path, hardware: str, model: Model) -> Path:
    device_folder = _choose(root, hardware, "device")
    there = sorted(path.name for path in device_folder.iterdir() if path.is_dir())
    alike = [name for name in there if name == model.name or name.startswith(f"{model.name}-")]
    return _choose(device_folder, alike[0] if alike else model.name, "model")


def _vidur_file(folder: Path, model: Model) -> Path:
    wanted = (model.heads, model.kv_heads, model.hidden, model.ffn)
    columns = ("n_head", "n_kv_head", "n_embd", "n_expanded_embd", "vocab_size")
    alike = []
    for file in sorted(folder.glob("*_mlp.csv.gz")):
        *shape, vocab = next(_rows_of(file, columns), (0.0,))
        if tuple(shape) == wanted and not model.experts:
            alike.append((vocab != model.vocab, file))
    if not alike:
        raise BadFileError(
            f"No profiled model has the shape of {model.name}.",
            given=f"heads={model.heads}, kv_heads={model.kv_heads}, hidden={model.hidden}, ffn={model.ffn}",
            allowed=[file.name.removesuffix("_mlp.csv.gz") for file in sorted(folder.glob("*_mlp.csv.gz"))],
            where=str(folder),
            hint="use RooflineStepTime, which needs no profile",
        )
    return min(alike)[1]


def _file(folder: Path, stem: str) -> Path:
    for name in (f"{stem}.csv.gz", f"{stem}.csv"):
        if (folder / name).is_file():
            return folder / name
    raise BadFileError(f"The profile lacks {stem}.csv.gz.", given=str(folder))


def _records(file: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, list[str]]]:
    """Line number and the named columns of each line."""
    opener: Callable[..., object] = gzip.open if file.suffix == ".gz" else open
    try:
        with opener(file, "rt", encoding="utf-8", newline="") as text:  # type: ignore[attr-defined]
            lines = csv.reader(text)
            header = next(lines, [])
            missing = [column for column in columns if column not in header]
            if missing:
                raise BadFileError(
                    f"Columns are missing: {', '.join(missing)}.", given=header or "an empty file", where=str(file)
                )
            picks = [header.index(column) for column in columns]
            for number, line in enumerate(lines, start=2):
                if len(line) != len(header):
                    raise BadFileError(
                        f"A line has {len(line)} values, the header {len(header)}.", where=f"{file}, line {number}"
                    )
                yield number, [line[pick] for pick in picks]
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise BadFileError(f"The profile cannot be read: {error}.", given=str(file)) from error


def _number(text: str, file: Path, line: int) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise BadFileError("This is not a count or a time.", given=text, where=f"{file}, line {line}")
    return value


def _rows_of(file: Path, columns: tuple[str, ...]) -> Iterator[tuple[float, ...]]:
    for line, texts in _records(file, columns):
        yield tuple(_number(text, file, line) for text in texts)


def _rows(folder: Path, stem: str, columns: tuple[str, ...]) -> Iterator[tuple[float, ...]]:
    return _rows_of(_file(folder, stem), columns)


def _by_layer(folder: Path, stem: str, count: str, needed: tuple[str, ...]) -> dict[str, dict[float, float]]:
    """Times in us by layer and count; every needed layer is there with two counts or more."""
    file = _file(folder, stem)
    layers: dict[str, dict[float, float]] = {}
    for line, (layer, number, us) in _records(file, ("layer", count, "time_us")):
        layers.setdefault(layer, {})[_number(number, file, line)] = _number(us, file, line)
    short = [layer for layer in needed if len(layers.get(layer, ())) < 2]
    if short:
        raise BadFileError(
            f"Too few measurements of {', '.join(short)}.", allowed=f"two {count} or more a layer", where=str(file)
        )
    return layers


def _on(axis: _Array, points: dict[float, float]) -> _Array:
    known = np.array(sorted(points))
    return np.interp(axis, known, [points[x] for x in known.tolist()])


def _dense_us(profile: Path, model: Model) -> tuple[_Array, _Array]:
    """Tokens, and the time in us of all but experts whose time depends on them alone, over the whole model."""
    per_layer = _PER_LAYER | ({} if model.experts else _PER_LAYER_DENSE)
    layers = _by_layer(profile, "dense", "tokens", (*per_layer, *_PER_STEP))
    per_layer |= {layer: each for layer, each in _PER_LAYER_IF_PROFILED.items() if layer in layers}
    axis = np.array(sorted(set().union(*layers.values())))
    times = _PER_STEP | {layer: model.layers * each for layer, each in per_layer.items()}
    total = np.sum([count * _on(axis, layers[layer]) for layer, count in times.items()], axis=0)
    return axis, total


def _moe_us(profile: Path, model: Model, axis: _Array, expert_parallel: int, tensor_parallel: int) -> _Array:
    """Time in us of one expert block for each number of tokens, at the expected number of experts touched.

    Of g workers that share the experts each meets the tokens of all on its part: as many pairs of token and expert as
    its own tokens have on all experts, but on no more than 1/g of them.  A worker of t devices whose expert block was
    profiled on one takes 1/t of the pairs and of the experts on each.
    """
    devices = 1
    if tensor_parallel > 1 and not any((profile / f"moe.csv{ending}").is_file() for ending in (".gz", "")):
        profile, devices = profile.with_name("tp1"), tensor_parallel
    measured: dict[float, dict[float, float]] = {}
    for tokens, touched, us in _rows(profile, "moe", ("tokens", "activated_experts", "time_us")):
        measured.setdefault(touched, {})[tokens] = us
    if len(measured) < 2:
        raise BadFileError(
            "Too few measurements.", allowed="two activated_experts or more", where=str(_file(profile, "moe"))
        )
    columns = sorted(measured)
    by_touched = np.array([_on(axis / devices, measured[touched]) for touched in columns])
    untouched = np.expm1(expert_parallel * axis * math.log1p(-model.experts_per_token / model.experts))
    expected = -model.experts / (expert_parallel * devices) * untouched
    return np.array([np.interp(x, columns, by_touched[:, i]) for i, x in enumerate(expected)])


def _longer_by_spread(profile: Path) -> Callable[[bool, float], float]:
    """Return by what share attention takes longer, per unit of the contexts' variation, with and without prompts.

    The function takes whether the batch has a prompt chunk, and how many sequences decode; it is 0 for none.
    """
    columns = ("pc", "n", "nb", "kvs", "kv_big", "t_mean_us", "t_skew_us")
    found: dict[bool, dict[float, list[float]]] = {False: {0.0: [0.0]}, True: {0.0: [0.0]}}
    for chunk, n, big, short_tokens, long_tokens, even_us, skewed_us in _rows(profile, "skew", columns):
        if not 0 < big < n or even_us <= 0:
            continue
        share = big / n
        mean = share * long_tokens + (1 - share) * short_tokens
        variation = math.sqrt(share * (1 - share)) * abs(long_tokens - short_tokens) / mean if mean > 0 else 0.0
        # Where contexts hardly differ the quotient is noise.
        if variation >= _LEAST_VARIATION:
            found[chunk > 0].setdefault(n, []).append((skewed_us / even_us - 1) / variation)
    lines = {
        mixed: (sorted(by_n), [max(0.0, statistics.median(by_n[n])) for n in sorted(by_n)])
        for mixed, by_n in found.items()
    }
    if any(len(axis) < 2 for axis, _ in lines.values()):
        raise BadFileError(
            "Too few measurements of unequal contexts.", allowed="decodes alone, and together with prompt chunks",
            where=str(_file(profile, "skew")),
        )  # fmt: skip
    return lambda mixed, n: float(np.interp(n, *lines[mixed]))


def _with_trend(axis: _Array, line: _Array) -> tuple[_Array, _Array]:
    """Add one far point on the trend of the upper half, since the last interval alone is mostly noise."""
    half = float(np.interp(axis[-1] / 2, axis, line))
    slope = max(0.0, (float(line[-1]) - half) / (axis[-1] / 2))
    far = axis[-1] * _FAR
    return np.append(axis, far), np.append(line, line[-1] + slope * (far - axis[-1]))


def _grid(points: dict[tuple[float, ...], float], dimensions: int, *, where: str) -> tuple[list[_Array], _Array]:
    """Axes and full grid of scattered grid points; what was not measured is interpolated along one axis at a time."""
    axes = [np.array(sorted({key[i] for key in points})) for i in range(dimensions)]
    if any(axis.size < 2 for axis in axes):
        raise BadFileError(
            "Too few measurements of attention.",
            allowed="prompt chunks alone, decodes alone and both together, two values or more of each column",
            where=where,
        )
    grid = np.full([axis.size for axis in axes], np.nan)
    places = [{x: i for i, x in enumerate(axis.tolist())} for axis in axes]
    for key, value in points.items():
        grid[tuple(place[x] for place, x in zip(places, key, strict=True))] = value
    # Between measured neighbours first, along the context axes before the others; only then past the outermost ones.
    for outside, dimension in itertools.product((False, True), reversed(range(dimensions))):
        lines = np.moveaxis(grid, dimension, -1)
        axis = axes[dimension]
        for place in map(tuple, np.argwhere(np.isnan(lines).any(axis=-1) & ~np.isnan(lines).all(axis=-1))):
            line = lines[place]
            known = ~np.isnan(line)
            reach = np.nan if not outside else None
            lines[place] = np.where(known, line, np.interp(axis, axis[known], line[known], left=reach, right=reach))
    return axes, grid
