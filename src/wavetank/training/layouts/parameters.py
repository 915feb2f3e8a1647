"""The parameters of language models, bucket by bucket, with the blocks that must stay whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from wavetank.errors import BadValueError
from wavetank.platforms.catalog import Model
from wavetank.training.layouts.interface import Tensor

MATRIX = 0
"""In place of rows of a block: whole matrices."""
EXPERTS = ("fused", "separate", "flat")


class Bucket(NamedTuple):
    """Parameters that are gathered at once.

    Parameters
    ----------
    name : str
    tensors : tuple of Tensor
    times : int
        How many such buckets the model has.
    """

    name: str
    tensors: tuple[Tensor, ...]
    times: int


def buckets(model: Model, *, block_rows: int = 1, experts: str = "fused") -> tuple[Bucket, ...]:
    """Return the buckets of a model: embedding, every layer, head.

    Parameters
    ----------
    model : Model
    block_rows : int
        Rows of a block that must stay whole, along all dimensions but the last; :data:`MATRIX`: every matrix.
    experts : str
        ``fused``: all experts of a layer in one tensor of three dimensions; ``flat``: the same in two, with the rows of
        all experts below each other; ``separate``: three matrices an expert.

    Raises
    ------
    BadValueError
        For a negative number of rows, or another form of experts.
    """
    if isinstance(block_rows, bool) or not isinstance(block_rows, int) or block_rows < 0:
        raise BadValueError("A block has rows.", given=block_rows, allowed="0 for whole matrices, or 1 and more")
    if experts not in EXPERTS:
        raise BadValueError("Experts have no such form.", given=experts, allowed=EXPERTS)

    def made(named: Iterator[tuple[str, tuple[int, ...]]]) -> tuple[Tensor, ...]:
        return tuple(Tensor(name, shape, _block(shape, block_rows)) for name, shape in named)

    dense = Bucket("layer", made(_layer(model, "")), model.layers - model.moe_layers)
    sparse = Bucket("layer with experts", made(_layer(model, experts)) if model.moe_layers else (), model.moe_layers)
    ends = (
        Bucket("embedding", made(iter([("embedding", (model.vocab, model.hidden))])), 1),
        Bucket("head", made(iter([("norm", (model.hidden,)), ("head", (model.vocab, model.hidden))])), 1),
    )
    return tuple(bucket for bucket in (ends[0], dense, sparse, ends[1]) if bucket.times)


def _block(shape: tuple[int, ...], rows: int) -> int:
    if rows != MATRIX:
        return rows * (shape[-1] if len(shape) > 1 else 1)
    return shape[-2] * shape[-1] if len(shape) > 1 else shape[0]


def _layer(model: Model, experts: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, heads, head_dim = model.hidden, model.heads, model.head_dim
    bias = bool(model.biases)
    yield "attention norm", (hidden,)
    if model.kv_rank:
        yield "query down", (model.query_rank, hidden)
        yield "query norm", (model.query_rank,)
        yield "query up", (heads * (head_dim + model.rope_head_dim), model.query_rank)
        yield "key value down", (model.kv_rank + model.rope_head_dim, hidden)
        yield "key value norm", (model.kv_rank,)
        yield "key value up", (heads * 2 * head_dim, model.kv_rank)
    else:
        for name, rows in (("query", heads), ("key", model.kv_heads), ("value", model.kv_heads)):
            yield name, (rows * head_dim, hidden)
            if bias:
                yield f"{name} bias", (rows * head_dim,)
    yield "attention out", (hidden, heads * head_dim)
    if bias:
        yield "attention out bias", (hidden,)
        yield "sinks", (heads,)
    yield "block norm", (hidden,)
    if not experts:
        yield from _mlp("", model.ffn, hidden)
        return
    yield "router", (model.experts, hidden)
    if bias or model.kv_rank:
        yield "router bias", (model.experts,)
    if model.shared_experts:
        yield from _mlp("shared ", model.shared_experts * model.expert_ffn, hidden)
    yield from _experts(model, experts)


def _mlp(name: str, width: int, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}gate", (width, hidden)
    yield f"{name}up", (width, hidden)
    yield f"{name}down", (hidden, width)


def _experts(model: Model, form: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    count, width, hidden = model.experts, model.expert_ffn, model.hidden
    if form == "separate":
        for expert in range(count):
            yield from _mlp(f"expert {expert} ", width, hidden)
            if model.biases:
                yield f"expert {expert} gate up bias", (2 * width,)
                yield f"expert {expert} down bias", (hidden,)
        return
    # GPT-OSS keeps its fused matrices with inputs as rows, the others with outputs.
    shapes = ((hidden, 2 * width), (width, hidden)) if model.biases else ((2 * width, hidden), (hidden, width))
    for name, (rows, columns) in zip(("experts gate up", "experts down"), shapes, strict=True):
        yield name, ((count * rows, columns) if form == "flat" else (count, rows, columns))
    if model.biases:
        yield "experts gate up bias", (count, 2 * width)
        yield "experts down bias", (count, hidden)
