"""A small decoder on torch that serves as a real engine's model: rotary positions, grouped heads, experts.

It runs any batch of decoding sequences and prompt chunks in one pass, as engines with continuous batching do, over one
KV cache per layer.  Attention over that cache, and the experts of a layer, are operations of their own in torch's
dispatcher, as they are in vLLM: their work depends on what the batch holds, not on shapes alone.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from wavetank.errors import BadValueError
from wavetank.machine.cuda import require_torch
from wavetank.serving.profiling.models import BACKENDS, DTYPES, DecoderConfig
from wavetank.serving.profiling.tracing import RequestSizes

_NAMESPACE = "wavetank"
# Rows of a batch, one per sequence: its slot of the cache, its first token in the batch, its tokens, those before them.
SLOT, FIRST, COUNT, PAST = range(4)


@functools.cache
def operations() -> Any:
    """Return torch's namespace of the decoder's own operations, registered on first use."""
    torch = require_torch("A decoder")
    library = torch.library.Library(_NAMESPACE, "FRAGMENT")
    library.define(
        "cached_attention(Tensor q, Tensor k, Tensor v, Tensor(a!) cache, Tensor rows, str backend) -> Tensor"
    )
    library.define("experts(Tensor x, Tensor routing, Tensor gate_up, Tensor down, int per_token) -> Tensor")
    for device in ("CPU", "CUDA"):
        library.impl("cached_attention", _cached_attention, device)
        library.impl("experts", _experts, device)
    library.impl("cached_attention", lambda q, k, v, cache, rows, backend: torch.empty_like(q), "Meta")
    library.impl("experts", lambda x, routing, gate_up, down, per_token: torch.empty_like(x), "Meta")
    found = getattr(torch.ops, _NAMESPACE)
    # The registrations end with the object that made them.
    found.wavetank_library = library
    return found


def _cached_attention(q: Any, k: Any, v: Any, cache: Any, rows: Any, backend: str) -> Any:
    """Write keys and values into the cache and attend to all of each sequence; causal within a chunk.

    ``q`` has shape (tokens, heads, head size), ``k`` and ``v`` (tokens, key heads, head size), ``cache`` (slots, 2, key
    heads, longest context, head size), ``rows`` (sequences, 4).
    """
    import torch

    out = torch.empty_like(q)
    listed = rows.tolist()
    alone = [row for row in listed if backend == BACKENDS[0] or row[COUNT] > 1]
    for slot, first, count, past in listed:
        cache[slot, 0, :, past : past + count] = k[first : first + count].transpose(0, 1)
        cache[slot, 1, :, past : past + count] = v[first : first + count].transpose(0, 1)
    groups = q.shape[1] // k.shape[1]
    scale = 1 / math.sqrt(q.shape[2])
    for slot, first, count, past in alone:
        keys, values = cache[slot, 0, :, : past + count], cache[slot, 1, :, : past + count]
        if count == 1:
            scores = torch.bmm(q[first].view(-1, groups, q.shape[2]), keys.transpose(1, 2)).mul_(scale)
            out[first] = torch.bmm(scores.softmax(-1), values).view(q.shape[1:])
            continue
        mask = None
        if past:
            mask = torch.ones(count, past + count, dtype=torch.bool, device=q.device).tril_(past)
        attended = torch.nn.functional.scaled_dot_product_attention(
            q[first : first + count].transpose(0, 1)[None], keys[None], values[None],
            attn_mask=mask, is_causal=not past, enable_gqa=groups > 1,
        )  # fmt: skip
        out[first : first + count] = attended[0].transpose(0, 1)
    if len(alone) < len(listed):
        together = [row for row in listed if row[COUNT] == 1]
        slots = torch.tensor([row[SLOT] for row in together], device=q.device)
        places = torch.tensor([row[FIRST] for row in together], device=q.device)
        lengths = torch.tensor([row[PAST] + 1 for row in together], device=q.device)
        longest = max(row[PAST] + 1 for row in together)
        held = cache[slots, :, :, :longest]
        mask = torch.arange(longest, device=q.device) < lengths[:, None]
        attended = torch.nn.functional.scaled_dot_product_attention(
            q[places][:, :, None], held[:, 0], held[:, 1], attn_mask=mask[:, None, None], enable_gqa=groups > 1
        )
        out[places] = attended[:, :, 0]
    return out


def _experts(x: Any, routing: Any, gate_up: Any, down: Any, per_token: int) -> Any:
    """Send each token through its experts and add up what they give, weighted by the routing.

    ``x`` has shape (tokens, hidden), ``routing`` (tokens, experts), ``gate_up`` (experts, 2 width, hidden) and ``down``
    (experts, hidden, width).
    """
    import torch

    weights, chosen = routing.softmax(-1).topk(per_token, -1)
    weights = weights / weights.sum(-1, keepdim=True)
    order = chosen.flatten().argsort(stable=True)
    counts = torch.bincount(chosen.flatten(), minlength=gate_up.shape[0]).tolist()
    tokens = order // per_token
    sent = x[tokens]
    given = torch.empty_like(sent)
    start = 0
    for expert, count in enumerate(counts):
        if count:
            gate, up = (sent[start : start + count] @ gate_up[expert].T).chunk(2, -1)
            given[start : start + count] = (torch.nn.functional.silu(gate) * up) @ down[expert].T
            start += count
    given *= weights.flatten()[order, None]
    return torch.zeros_like(x).index_add_(0, tokens, given)


class Decoder:
    """A decoder with weights that are drawn, or have shapes alone.

    Parameters
    ----------
    config : DecoderConfig
    dtype : {"float32", "bfloat16"}
    backend : {"per-sequence", "padded"}
        How attention over the cache is computed.
    device : str
        ``"meta"`` for shapes alone.
    tensor_parallel : int
        Devices that share every layer; this is the part of one of them.
    seed : int
        Of the weights.
    """

    def __init__(
        self,
        config: DecoderConfig,
        *,
        dtype: str = "float32",
        backend: str = "per-sequence",
        device: str = "meta",
        tensor_parallel: int = 1,
        seed: int = 0,
    ) -> None:
        torch = require_torch("A decoder")
        for what, given, allowed in (("dtype", dtype, DTYPES), ("backend", backend, BACKENDS)):
            if given not in allowed:
                raise BadValueError(f"The {what} is not known.", given=given, allowed=allowed, where=what)
        config.check_parallel(tensor_parallel)
        self.config, self.backend, self.parallel = config, backend, tensor_parallel
        self.torch, self.device, self.dtype = torch, device, getattr(torch, dtype)
        self.heads, self.kv_heads = config.heads // tensor_parallel, config.kv_heads // tensor_parallel
        self._operations = operations()
        with torch.inference_mode():
            generator = torch.Generator(device).manual_seed(seed) if device != "meta" else None
            self.weights = {name: self._drawn(shape, generator) for name, shape in self._shapes().items()}
            frequencies = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device=device) / config.head_dim
            self.weights["frequencies"] = 1.0 / config.rope_theta**frequencies

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        c, k = self.config, self.parallel
        qkv = (self.heads + 2 * self.kv_heads) * c.head_dim
        found: dict[str, tuple[int, ...]] = {
            "embedding": (c.vocab, c.hidden), "norm": (c.hidden,), "head": (c.vocab // k, c.hidden),
        }  # fmt: skip
        for layer in range(c.layers):
            layer_shapes: dict[str, tuple[int, ...]] = {
                "norm_1": (c.hidden,), "qkv": (qkv, c.hidden), "out": (c.hidden, self.heads * c.head_dim),
                "norm_2": (c.hidden,),
            }  # fmt: skip
            if c.qkv_bias:
                layer_shapes["qkv_bias"] = (qkv,)
            if c.qk_norm:
                layer_shapes |= {"q_norm": (c.head_dim,), "k_norm": (c.head_dim,)}
            width = c.ffn // k
            if c.experts:
                layer_shapes |= {
                    "router": (c.experts, c.hidden), "gate_up": (c.experts, 2 * width, c.hidden),
                    "down": (c.experts, c.hidden, width),
                }  # fmt: skip
            else:
                layer_shapes |= {"gate_up": (2 * width, c.hidden), "down": (c.hidden, width)}
            found |= {f"{layer}.{name}": shape for name, shape in layer_shapes.items()}
        return found

    def _drawn(self, shape: tuple[int, ...], generator: Any) -> Any:
        tensor = self.torch.empty(shape, dtype=self.dtype, device=self.device)
        # Norms scale by one; everything else keeps the size of activations.
        if self.device == "meta":
            return tensor
        return tensor.fill_(1.0) if len(shape) == 1 else tensor.normal_(0, shape[-1] ** -0.5, generator=generator)

    def parameters(self) -> list[Any]:
        """Return every weight."""
        return list(self.weights.values())

    def weight_bytes(self) -> int:
        """Return the bytes of all weights."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.weights.values())

    def new_cache(self, slots: int, longest: int) -> list[Any]:
        """Return an empty KV cache per layer, with room for that number of sequences of that length."""
        shape = (slots, 2, self.kv_heads, longest, self.config.head_dim)
        return [self.torch.zeros(shape, dtype=self.dtype, device=self.device) for _ in range(self.config.layers)]

    def inputs(self, sizes: RequestSizes) -> Sequence[Any]:
        """Return the arguments of a traced pass."""
        torch, whole = self.torch, {"dtype": self.torch.int64, "device": self.device}
        tokens, positions = torch.empty(sizes.tokens, **whole), torch.empty(sizes.tokens, **whole)
        rows, last = torch.empty(sizes.requests, 4, **whole), torch.empty(sizes.requests, **whole)
        return tokens, positions, self.new_cache(sizes.max_requests, sizes.max_context), rows, last

    def __call__(self, tokens: Any, positions: Any, cache: Sequence[Any], rows: Any, last: Any) -> Any:
        """Return the logits of the last token of each sequence, float of shape (sequences, vocabulary).

        Parameters
        ----------
        tokens, positions : int64 tensors (tokens,)
            Of all sequences of the batch, one after the other.
        cache : sequence of tensors
            As :meth:`new_cache` gives it; written.
        rows : int64 tensor (sequences, 4)
            Slot, first token in the batch, number of tokens, and tokens that the slot holds already.
        last : int64 tensor (sequences,)
            Where in the batch each sequence's last token stands.
        """
        torch, config, weights = self.torch, self.config, self.weights
        layers = torch.nn.functional
        x = layers.embedding(tokens, weights["embedding"])
        angles = positions[:, None] * weights["frequencies"]
        turn = (angles.cos().to(x.dtype)[:, None], angles.sin().to(x.dtype)[:, None])
        for layer in range(config.layers):
            x = self._block(x, turn, cache[layer], rows, f"{layer}.")
        x = layers.rms_norm(x[last], (config.hidden,), weights["norm"], config.epsilon)
        logits = layers.linear(x, weights["head"])
        if self.parallel > 1:
            parts = torch.empty(self.parallel, *logits.shape, dtype=logits.dtype, device=logits.device)
            torch.distributed.all_gather_into_tensor(parts, logits)
            logits = parts.movedim(0, 1).flatten(1)
        return logits

    def _block(self, x: Any, turn: tuple[Any, Any], cache: Any, rows: Any, layer: str) -> Any:
        config, weights, layers = self.config, self.weights, self.torch.nn.functional
        count, size = x.shape[0], config.head_dim
        h = layers.rms_norm(x, (config.hidden,), weights[f"{layer}norm_1"], config.epsilon)
        qkv = layers.linear(h, weights[f"{layer}qkv"], weights.get(f"{layer}qkv_bias"))
        q, k, v = qkv.split([self.heads * size, self.kv_heads * size, self.kv_heads * size], -1)
        q, k, v = (part.view(count, -1, size) for part in (q, k, v))
        if config.qk_norm:
            q = layers.rms_norm(q, (size,), weights[f"{layer}q_norm"], config.epsilon)
            k = layers.rms_norm(k, (size,), weights[f"{layer}k_norm"], config.epsilon)
        q, k = self._turned(q, turn), self._turned(k, turn)
        attended = self._operations.cached_attention(q, k, v, cache, rows, self.backend)
        x = x + self._summed(layers.linear(attended.view(count, -1), weights[f"{layer}out"]))
        h = layers.rms_norm(x, (config.hidden,), weights[f"{layer}norm_2"], config.epsilon)
        if config.experts:
            routing = layers.linear(h, weights[f"{layer}router"])
            given = self._operations.experts(
                h, routing, weights[f"{layer}gate_up"], weights[f"{layer}down"], config.experts_per_token
            )
            return x + self._summed(given)
        gate, up = layers.linear(h, weights[f"{layer}gate_up"]).chunk(2, -1)
        return x + self._summed(layers.linear(layers.silu(gate) * up, weights[f"{layer}down"]))

    def _turned(self, x: Any, turn: tuple[Any, Any]) -> Any:
        (cos, sin), (left, right) = turn, x.chunk(2, -1)
        return self.torch.cat((left * cos - right * sin, right * cos + left * sin), -1)

    def _summed(self, x: Any) -> Any:
        if self.parallel > 1:
            self.torch.distributed.all_reduce(x)
        return x


def attention_arguments(
    arguments: Mapping[str, Any], point: Mapping[str, int], device: str, longest: int
) -> tuple[Any, ...]:
    """Return the arguments of one call of cached attention, as the engine that uses it would make them.

    Parameters
    ----------
    arguments : mapping
        Of the operation's structure.
    point : mapping of str to int
        ``chunk`` prompt tokens after ``past`` of the same prompt, and ``decodes`` sequences of ``context`` tokens each,
        the one that is computed included.
    device : str
    longest : int
        Room of a slot, in tokens.
    """
    torch = require_torch("Attention")
    q, k, _, cache, _, backend = arguments["a"]
    dtype = getattr(torch, q["t"])
    chunk, past, decodes, context = (point[name] for name in ("chunk", "past", "decodes", "context"))
    tokens = chunk + decodes
    rows = [(i, i, 1, context - 1) for i in range(decodes)]
    if chunk:
        rows.append((decodes, decodes, chunk, past))
    longest = max(longest, past + chunk, context)

    def drawn(*shape: int) -> Any:
        return torch.randn(shape, dtype=dtype, device=device)

    heads, size = q["d"][1:]
    made = drawn(tokens, heads, size), *(drawn(tokens, k["d"][1], size) for _ in range(2))
    held = drawn(max(len(rows), 1), 2, cache["d"][2], longest, size)
    return (*made, held, torch.tensor(rows, dtype=torch.int64, device=device), backend)
