"""A language model small enough to be read: the reference that shortcuts of serving are held against.

Layers of RMSNorm, attention and SwiGLU or a mixture of experts, as large models have them, in float32 or float64.
Attention is of grouped queries (GQA: heads share keys and values) or of latents (MLA: a row keeps one latent for all
heads and one small rotary key).  Nothing is hidden: the cache is an argument and a value, each row of it stands at a
position that is given, and a call computes the rows it is asked for and attends to all others as they are.  So one
call prefills, decodes, or computes chosen rows of a cache again whose other rows came from elsewhere::

    first = forward(weights, tokens[:90], np.arange(90))
    then = forward(weights, tokens[90:], np.arange(90, 100), first.cache)          # appended
    again = forward(weights, tokens[rows], rows, then.cache, rows=rows)            # these rows, in place

A cache that is put together has rows that were moved (:func:`moved`) and blank ones (:func:`blank`), which a call
must fill.

References
----------
J. Ainslie and others, "GQA", arXiv 2305.13245, 2023; DeepSeek-AI, "DeepSeek-V2", arXiv 2405.04434, 2024, for MLA and
experts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError, missing_extra, unknown_name
from wavetank.kernels.rotary import SCALINGS, Floats, frequencies, magnitude, rotated
from wavetank.settings import check_ranges, setting
from wavetank.sim.rng import stream

# A torch.Tensor: torch is an extra, and imported when a model is made.
Tensor = Any
Ints = NDArray[np.int64]

NOWHERE = -1
_ATTENTIONS, _DTYPES = ("gqa", "mla"), ("float32", "float64")
_MOST = 1 << 20


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """Sizes and rules of a decoder."""

    vocabulary: int = setting(256, says="Tokens that there are; 256: bytes", low=2, high=_MOST)
    layers: int = setting(4, says="Layers", low=1, high=1_000)
    width: int = setting(128, says="Numbers of a token between layers", low=1, high=_MOST)
    heads: int = setting(8, says="Heads of queries", low=1, high=_MOST)
    head_width: int = setting(16, says="Numbers of a query of a head; mla: less the rotary ones", low=1, high=_MOST)
    attention: str = setting("gqa", says="gqa: heads share keys; mla: a latent and a rotary key", choices=_ATTENTIONS)
    key_heads: int = setting(2, says="Heads of keys and values of gqa", low=1, high=_MOST)
    latent: int = setting(64, says="Numbers of a latent of mla", low=1, high=_MOST)
    rotary: int = setting(16, says="Numbers of a rotary key of mla", low=2, high=_MOST)
    hidden: int = setting(256, says="Hidden numbers of SwiGLU", low=1, high=_MOST)
    experts: int = setting(0, says="Experts of a layer; 0: none, SwiGLU everywhere", low=0, high=_MOST)
    chosen: int = setting(2, says="Experts that a token goes to", low=1, high=_MOST)
    expert_hidden: int = setting(64, says="Hidden numbers of an expert", low=1, high=_MOST)
    dense_layers: int = setting(1, says="First layers that have SwiGLU beside experts elsewhere", low=0, high=1_000)
    window: int = setting(4_096, unit="tokens", says="Positions are below it", low=1, high=2**31 - 1)
    bases: tuple[float, ...] = setting((10_000.0,), says="Bases of rotary positions, by turns of the layers")
    scaling: str = setting("none", says="Rule by which rotary positions are slowed", choices=SCALINGS)
    factor: float = setting(1.0, says="New window / original window", low=1.0, high=1e6)
    original_window: int = setting(2_048, unit="tokens", says="Of yarn", low=1, high=2**31 - 1)
    dtype: str = setting("float32", says="float32 or float64", choices=_DTYPES)

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            value, kind = getattr(self, item.name), type(item.default)
            if type(value) is not kind and not (kind is float and type(value) is int):
                raise BadValueError("A decoder has another type here.", given=value, allowed=kind.__name__,
                                    where=item.name)  # fmt: skip
        check_ranges(self)
        if self.attention not in _ATTENTIONS:
            raise unknown_name("kind of attention", self.attention, _ATTENTIONS)
        if self.dtype not in _DTYPES:
            raise unknown_name("number format", self.dtype, _DTYPES)
        if not self.bases or any(type(each) not in (int, float) for each in self.bases):
            raise BadValueError("Rotary positions have bases.", given=self.bases, allowed="numbers", where="bases")
        if self.attention == "gqa" and self.heads % self.key_heads:
            raise BadValueError(
                "Heads of keys must divide heads of queries.", given=f"{self.key_heads} and {self.heads}",
                allowed=[str(each) for each in range(1, self.heads + 1) if self.heads % each == 0], where="key_heads",
            )  # fmt: skip
        if self.experts and self.chosen > self.experts:
            raise BadValueError("A token goes to experts that there are.", given=self.chosen,
                                allowed=f"1 to {self.experts}", where="chosen")  # fmt: skip
        for layer in range(min(self.layers, len(self.bases))):
            self.frequencies(layer)

    @property
    def turned(self) -> int:
        """Numbers of a key that depend on its position."""
        return self.rotary if self.attention == "mla" else self.head_width

    @property
    def row_numbers(self) -> int:
        """Numbers that the cache keeps of a token and layer."""
        return self.latent + self.rotary if self.attention == "mla" else 2 * self.key_heads * self.head_width

    @property
    def row_bytes(self) -> int:
        """Bytes that the cache keeps of a token, in all layers."""
        return self.layers * self.row_numbers * np.dtype(self.dtype).itemsize

    def frequencies(self, layer: int) -> Floats:
        """Return by how much the pairs of a layer's keys turn from one position to the next, in radians.

        Parameters
        ----------
        layer : int
        """
        return frequencies(
            self.turned, base=self.bases[layer % len(self.bases)], scaling=self.scaling, factor=self.factor,
            original_window=self.original_window,
        )  # fmt: skip

    def has_experts(self, layer: int) -> bool:
        """Return whether a layer routes tokens to experts.

        Parameters
        ----------
        layer : int
        """
        return self.experts > 0 and layer >= self.dense_layers


def shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of each array of weights by its name; inputs are the second to last axis.

    Parameters
    ----------
    config : DecoderConfig
    """
    width, heads, head = config.width, config.heads, config.head_width
    found: dict[str, tuple[int, ...]] = {"embedding": (config.vocabulary, width)}
    for layer in range(config.layers):
        parts: dict[str, tuple[int, ...]] = {"attention_norm": (width,)}
        if config.attention == "mla":
            parts |= {
                "query": (width, heads * (head + config.rotary)), "latent": (width, config.latent),
                "latent_norm": (config.latent,), "rotary": (width, config.rotary),
                "key": (config.latent, heads * head), "value": (config.latent, heads * head),
            }  # fmt: skip
        else:
            keys = config.key_heads * head
            parts |= {"query": (width, heads * head), "key": (width, keys), "value": (width, keys)}
        parts |= {"out": (heads * head, width), "mlp_norm": (width,)}
        if config.has_experts(layer):
            count, hidden = config.experts, config.expert_hidden
            parts |= {"router": (width, count), "gate": (count, width, hidden), "up": (count, width, hidden),
                      "down": (count, hidden, width)}  # fmt: skip
        else:
            parts |= {"gate": (width, config.hidden), "up": (width, config.hidden), "down": (config.hidden, width)}
        found |= {f"{layer}.{name}": shape for name, shape in parts.items()}
    return found | {"norm": (width,), "head": (width, config.vocabulary)}


@dataclass(frozen=True, eq=False)
class DecoderWeights:
    """A decoder: its sizes and its numbers.

    Parameters
    ----------
    config : DecoderConfig
    tensors : mapping of str to torch.Tensor
        By the names of :func:`shapes`.

    Raises
    ------
    BadValueError
        If an array is missing, or has another shape or number format.
    """

    config: DecoderConfig
    tensors: Mapping[str, Tensor]

    def __post_init__(self) -> None:
        wanted = shapes(self.config)
        found = {name: tuple(each.shape) for name, each in self.tensors.items()}
        wrong = next((name for name in sorted({*wanted, *found}) if wanted.get(name) != found.get(name)), None)
        if wrong is not None:
            raise BadValueError("These are not the weights of this decoder.", given=found.get(wrong, "nothing"),
                                allowed=str(wanted.get(wrong, "nothing")), where=wrong)  # fmt: skip
        kinds = {str(each.dtype).removeprefix("torch.") for each in self.tensors.values()}
        if kinds != {self.config.dtype}:
            raise BadValueError(
                "These weights have another number format.", given=sorted(kinds), allowed=self.config.dtype
            )

    @classmethod
    def made(cls, config: DecoderConfig, seed: int) -> DecoderWeights:
        """Return weights that were drawn and never trained; equal seeds give equal ones.

        Parameters
        ----------
        config : DecoderConfig
        seed : int

        Raises
        ------
        MissingExtraError
            If torch is not installed.
        """
        torch = _torch()
        found = {}
        for name, shape in shapes(config).items():
            if name.endswith("norm"):
                numbers = np.ones(shape)
            else:
                spread = 1.0 if name == "embedding" else shape[-2] ** -0.5
                numbers = stream(seed, "decoder", name).normal(0.0, spread, shape)
            found[name] = torch.from_numpy(numbers).to(getattr(torch, config.dtype))
        return cls(config, found)

    def first(self, layers: int) -> DecoderWeights:
        """Return a decoder of the first layers alone.

        Parameters
        ----------
        layers : int
        """
        config = dataclasses.replace(self.config, layers=min(layers, self.config.layers))
        return DecoderWeights(config, {name: self.tensors[name] for name in shapes(config)})

    def cast(self, dtype: str) -> DecoderWeights:
        """Return the decoder in another number format.

        Parameters
        ----------
        dtype : str
            ``float32`` or ``float64``.
        """
        config = dataclasses.replace(self.config, dtype=dtype)
        return DecoderWeights(config, {name: each.to(getattr(_torch(), dtype)) for name, each in self.tensors.items()})

    def layer(self, number: int) -> dict[str, Tensor]:
        """Return the arrays of a layer, by their names within it.

        Parameters
        ----------
        number : int
        """
        opening = f"{number}."
        return {name.removeprefix(opening): each for name, each in self.tensors.items() if name.startswith(opening)}


class KeysValues(NamedTuple):
    """What a layer with grouped queries keeps of tokens.

    Attributes
    ----------
    turned : torch.Tensor (..., key heads, rows, head width)
        Keys, each turned by its position.
    still : torch.Tensor (..., key heads, rows, head width)
        Values.
    """

    turned: Tensor
    still: Tensor


class Latents(NamedTuple):
    """What a layer with latents keeps of tokens.

    Attributes
    ----------
    turned : torch.Tensor (..., rows, rotary)
        The rotary key k_r that all heads share, turned by its position.
    still : torch.Tensor (..., rows, latent)
        The latent c_KV, from which keys and values of all heads are expanded.
    """

    turned: Tensor
    still: Tensor


Rows = KeysValues | Latents


class Cache(NamedTuple):
    """Rows of tokens in all layers.  What is turned and what is still is the same for both kinds of attention.

    Attributes
    ----------
    positions : int64 array (rows,)
        Where each row stands; -1: it is blank.
    layers : tuple of KeysValues or Latents
    """

    positions: Ints
    layers: tuple[Rows, ...]


class Routing(NamedTuple):
    """Where a layer sent tokens.

    Attributes
    ----------
    experts : torch.Tensor, int64 (..., tokens, chosen)
        The highest gate first; of equal ones, the lower number.
    gates : torch.Tensor (..., tokens, chosen)
        Weights of these experts, 1 together.
    shares : torch.Tensor (..., tokens, experts)
        Of all experts, by which these were chosen; 1 together.
    """

    experts: Tensor
    gates: Tensor
    shares: Tensor


class Forward(NamedTuple):
    """What a call found.

    Attributes
    ----------
    logits : torch.Tensor (..., tokens, vocabulary)
    cache : Cache
        With the computed rows.
    routing : tuple of Routing or None
        Of each layer; None where a layer has no experts.
    queries : tuple of torch.Tensor (..., heads, tokens, turned and other numbers)
        Of each layer, as scores are made of them; of MLA the rotary part is last.  Empty if not wanted.
    attention : tuple of torch.Tensor (..., heads, tokens, rows)
        Weights of each layer, 1 together for each head and token.  Empty if not wanted.
    """

    logits: Tensor
    cache: Cache
    routing: tuple[Routing | None, ...]
    queries: tuple[Tensor, ...] = ()
    attention: tuple[Tensor, ...] = ()


def blank(config: DecoderConfig, rows: int) -> Cache:
    """Return a cache of rows that were never computed; no call attends to them before it fills them.

    Parameters
    ----------
    config : DecoderConfig
    rows : int
    """
    torch = _torch()

    def numbers(*shape: int) -> Tensor:
        # Not zeros: should one ever be attended to, everything after it would say so.
        return torch.full(shape, float("nan"), dtype=getattr(torch, config.dtype))

    if config.attention == "mla":
        layers: list[Rows] = [
            Latents(numbers(rows, config.rotary), numbers(rows, config.latent)) for _ in range(config.layers)
        ]
    else:
        shape = (config.key_heads, rows, config.head_width)
        layers = [KeysValues(numbers(*shape), numbers(*shape)) for _ in range(config.layers)]
    return Cache(np.full(rows, NOWHERE, np.int64), tuple(layers))


def taken(cache: Cache, rows: Any) -> Cache:
    """Return some rows of a cache, in the order in which they are named.

    Parameters
    ----------
    cache : Cache
    rows : int array or slice
    """
    rows = np.arange(len(cache.positions))[rows]
    return Cache(
        cache.positions[rows], tuple(type(each)(*(part[..., rows, :] for part in each)) for each in cache.layers)
    )


def joined(caches: Sequence[Cache]) -> Cache:
    """Return the rows of caches, one after another.

    Parameters
    ----------
    caches : sequence of Cache
        At least one, all of one decoder.
    """
    torch = _torch()
    layers = zip(*(each.layers for each in caches), strict=True)
    return Cache(
        np.concatenate([each.positions for each in caches]),
        tuple(type(same[0])(*(torch.cat(parts, -2) for parts in zip(*same, strict=True))) for same in layers),
    )


def moved(config: DecoderConfig, cache: Cache, positions: Any) -> Cache:
    """Return rows at other positions: what is turned is turned on by the difference, everything else stays.

    In the first layer these are the rows that a forward pass has at these positions; in later ones a row depends on
    what stood before it, and stays what it was.

    Parameters
    ----------
    config : DecoderConfig
    cache : Cache
    positions : int array (rows,)

    Raises
    ------
    BadValueError
        For positions outside the window, or a blank row.
    """
    positions = _positions(config, positions, len(cache.positions))
    if np.any(cache.positions < 0):
        raise BadValueError("A blank row stands nowhere and cannot be moved.",
                            given=np.flatnonzero(cache.positions < 0)[:5].tolist())  # fmt: skip
    by = positions - cache.positions
    return Cache(
        positions,
        tuple(
            type(each)(rotated(each.turned, by, config.frequencies(layer)), each.still)
            for layer, each in enumerate(cache.layers)
        ),
    )


def forward(
    weights: DecoderWeights, tokens: Any, positions: Any, cache: Cache | None = None, *, rows: Any = None,
    queries: bool = False, attention: bool = False,
) -> Forward:  # fmt: skip
    """Compute rows of tokens, which attend to one another and to the other rows of a cache.

    A token sees the rows at its own position and before it, whatever their order in the cache.

    Parameters
    ----------
    weights : DecoderWeights
    tokens : int array or tensor (..., tokens)
        Several sequences share positions, rows and the leading axes of the cache.
    positions : int array (tokens,)
        From 0 to the window; no two rows of a cache stand at the same one.
    cache : Cache, optional
        Left as it is.
    rows : int array (tokens,), optional
        Which rows of the cache these tokens are, in place of what was there; rows behind the last one are added, with
        no gap.  Appended when it is left out.
    queries, attention : bool
        Whether to return these, too; attention takes heads x tokens x rows numbers a layer either way.

    Returns
    -------
    Forward

    Raises
    ------
    BadValueError
        For tokens, positions or rows that do not fit, more rows than the window, and blank rows that stay blank.
    """
    torch, config = _torch(), weights.config
    tokens = torch.as_tensor(tokens, device=weights.tensors["embedding"].device)
    if tokens.ndim < 1 or tokens.is_floating_point() or tokens.is_complex() or tokens.dtype == torch.bool:
        raise BadValueError("Tokens are whole numbers, at least one axis of them.", given=f"{tokens.dtype}, "
                            f"shape {tuple(tokens.shape)}", where="tokens")  # fmt: skip
    if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < config.vocabulary:
        raise BadValueError("There is no such token.", given=f"{int(tokens.min())} to {int(tokens.max())}",
                            allowed=f"0 to {config.vocabulary - 1}", where="tokens")  # fmt: skip
    count = tokens.shape[-1]
    positions = _positions(config, positions, count)
    old = 0 if cache is None else len(cache.positions)
    rows = _rows(rows, old, count)
    stand = np.full(max(old, int(rows.max(initial=-1)) + 1), NOWHERE, np.int64)
    if cache is not None:
        if len(cache.layers) != config.layers:
            raise BadValueError("This cache is of another decoder.", given=f"{len(cache.layers)} layers",
                                allowed=f"{config.layers} layers")  # fmt: skip
        stand[:old] = cache.positions
    stand[rows] = positions
    _check_stand(stand, config)
    seen = torch.from_numpy(stand[None, :] <= positions[:, None]).to(tokens.device)
    fresh = cache is None and np.array_equal(rows, np.arange(count))
    inner = torch.nn.functional.embedding(tokens.long(), weights.tensors["embedding"])
    kept, routings, all_queries, all_attention = [], [], [], []
    for number in range(config.layers):
        layer = weights.layer(number)
        normed = rms_norm(inner, layer["attention_norm"])
        new = _new_rows(config, layer, normed, positions, number)
        whole = new if fresh else _placed(new, None if cache is None else cache.layers[number], rows, len(stand))
        query, weight, out = _attended(config, layer, normed, whole, positions, seen, number)
        inner = inner + out @ layer["out"]
        normed = rms_norm(inner, layer["mlp_norm"])
        routing = None
        if config.has_experts(number):
            routing = route(normed, layer["router"], config.chosen)
            inner = inner + mixed(layer, normed, routing)
        else:
            inner = inner + swiglu(normed, layer["gate"], layer["up"], layer["down"])
        kept.append(whole)
        routings.append(routing)
        all_queries += [query] if queries else []
        all_attention += [weight] if attention else []
    logits = rms_norm(inner, weights.tensors["norm"]) @ weights.tensors["head"]
    return Forward(logits, Cache(stand, tuple(kept)), tuple(routings), tuple(all_queries), tuple(all_attention))


def rms_norm(rows: Tensor, scale: Tensor) -> Tensor:
    """Return rows divided by the root of their mean square, and scaled.

    Parameters
    ----------
    rows : torch.Tensor (..., width)
    scale : torch.Tensor (width,)
    """
    return rows * _torch().rsqrt((rows * rows).mean(-1, keepdim=True) + 1e-6) * scale


def swiglu(rows: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """Return what one network, or one expert, makes of rows.

    Parameters
    ----------
    rows : torch.Tensor (..., width)
    gate, up : torch.Tensor (width, hidden)
    down : torch.Tensor (hidden, width)
    """
    return (_torch().nn.functional.silu(rows @ gate) * (rows @ up)) @ down


def route(rows: Tensor, router: Tensor, chosen: int) -> Routing:
    """Return to which experts rows go.

    Parameters
    ----------
    rows : torch.Tensor (..., width)
    router : torch.Tensor (width, experts)
    chosen : int
    """
    shares = (rows @ router).softmax(-1)
    ordered, order = _torch().sort(shares, dim=-1, descending=True, stable=True)
    gates = ordered[..., :chosen]
    return Routing(order[..., :chosen], gates / gates.sum(-1, keepdim=True), shares)


def mixed(layer: Mapping[str, Tensor], rows: Tensor, routing: Routing) -> Tensor:
    """Return the sum over a token's experts of what each makes of it, in the order of its gates.

    Parameters
    ----------
    layer : mapping of str to torch.Tensor
        ``gate``, ``up`` and ``down`` of all experts.
    rows : torch.Tensor (..., width)
    routing : Routing
    """
    torch = _torch()
    flat, experts = rows.reshape(-1, rows.shape[-1]), routing.experts.reshape(-1)
    chosen = routing.experts.shape[-1]
    places = torch.argsort(experts, stable=True)
    counts = torch.bincount(experts, minlength=len(layer["gate"])).tolist()
    # Unbound once: the gradient of each expert taken alone would be as large as that of all.
    weights = zip(*(layer[name].unbind() for name in ("gate", "up", "down")), strict=True)
    pieces = [
        swiglu(flat[mine // chosen], *expert)
        for expert, mine in zip(weights, torch.split(places, counts), strict=True)
        if len(mine)
    ]
    made = torch.cat(pieces)[torch.argsort(places)] if pieces else flat[:0]
    weighted = made.reshape(*routing.experts.shape, rows.shape[-1]) * routing.gates[..., None]
    return weighted.sum(-2)


def _new_rows(config: DecoderConfig, layer: dict[str, Tensor], normed: Tensor, positions: Ints, number: int) -> Rows:
    turns = config.frequencies(number)
    if config.attention == "mla":
        latent = rms_norm(normed @ layer["latent"], layer["latent_norm"])
        return Latents(rotated(normed @ layer["rotary"], positions, turns), latent)
    keys, values = (_by_heads(normed @ layer[name], config.key_heads) for name in ("key", "value"))
    return KeysValues(rotated(keys, positions, turns), values)


def _attended(
    config: DecoderConfig,
    layer: dict[str, Tensor],
    normed: Tensor,
    rows: Rows,
    positions: Ints,
    seen: Tensor,
    number: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, weights and the heads' results side by side."""
    torch, turns = _torch(), config.frequencies(number)
    query = _by_heads(normed @ layer["query"], config.heads)
    if config.attention == "mla":
        plain, turned = query[..., : config.head_width], rotated(query[..., config.head_width :], positions, turns)
        query = torch.cat([plain, turned], -1)
        keys, values = (_by_heads(rows.still @ layer[name], config.heads) for name in ("key", "value"))
        scores = plain @ keys.mT + turned @ rows.turned[..., None, :, :].mT
    else:
        query, group = rotated(query, positions, turns), config.heads // config.key_heads
        keys, values = (each.repeat_interleave(group, -3) for each in rows)
        scores = query @ keys.mT
    scores = scores * (magnitude(config.scaling, config.factor) ** 2 * query.shape[-1] ** -0.5)
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
    out = weights @ values
    return query, weights, out.transpose(-3, -2).flatten(-2)


def _by_heads(rows: Tensor, heads: int) -> Tensor:
    return rows.reshape(*rows.shape[:-1], heads, rows.shape[-1] // heads).transpose(-3, -2)


def _placed(new: Rows, old: Rows | None, rows: Ints, count: int) -> Rows:
    torch = _torch()
    placed = []
    for number, part in enumerate(new):
        whole = part.new_empty((*part.shape[:-2], count, part.shape[-1]))
        if old is not None:
            before = old[number]
            if before.shape[:-2] != part.shape[:-2] or before.shape[-1] != part.shape[-1] or before.dtype != part.dtype:
                raise BadValueError(
                    "This cache is of another decoder.", given=f"{before.dtype}, shape {tuple(before.shape)}",
                    allowed=f"{part.dtype}, shape {(*part.shape[:-2], before.shape[-2], part.shape[-1])}",
                )  # fmt: skip
            whole[..., : before.shape[-2], :] = before
        whole[..., torch.from_numpy(rows), :] = part
        placed.append(whole)
    return type(new)(*placed)


def _positions(config: DecoderConfig, positions: Any, count: int) -> Ints:
    given = np.asarray(positions)
    if given.shape != (count,) or (count and given.dtype.kind not in "iu"):
        raise BadValueError("Each token has one whole position.", given=f"{given.dtype}, shape {given.shape}",
                            allowed=f"whole numbers, shape ({count},)", where="positions")  # fmt: skip
    found: Ints = given.astype(np.int64)
    if count and not 0 <= found.min() <= found.max() < config.window:
        raise BadValueError("A position is outside the window.", given=f"{found.min()} to {found.max()}",
                            allowed=f"0 to {config.window - 1}", where="positions",
                            hint="shorten the prompt, or make the decoder with a larger window")  # fmt: skip
    return found


def _rows(rows: Any, old: int, count: int) -> Ints:
    if rows is None:
        return np.arange(old, old + count)
    given = np.asarray(rows)
    if given.shape != (count,) or (count and given.dtype.kind not in "iu"):
        raise BadValueError("Each token is one row.", given=f"{given.dtype}, shape {given.shape}",
                            allowed=f"whole numbers, shape ({count},)", where="rows")  # fmt: skip
    found: Ints = given.astype(np.int64)
    unique = np.unique(found)
    added = unique[unique >= old]
    if len(unique) != count or (count and unique[0] < 0) or not np.array_equal(added, np.arange(old, old + len(added))):
        raise BadValueError("Rows are those of the cache or right behind it, each once.", given=found[:10].tolist(),
                            allowed=f"0 to {old - 1}, or {old} and on without a gap", where="rows")  # fmt: skip
    return found


def _check_stand(stand: Ints, config: DecoderConfig) -> None:
    if np.any(stand < 0):
        raise BadValueError("Rows of the cache are blank and not computed here.",
                            given=np.flatnonzero(stand < 0)[:5].tolist(), where="rows")  # fmt: skip
    unique, times = np.unique(stand, return_counts=True)
    if len(unique) < len(stand):
        raise BadValueError("Two rows stand at the same position.", given=unique[times > 1][:5].tolist(),
                            where="positions", hint="move the rows that were reused")  # fmt: skip
    if len(unique) and unique[-1] >= config.window:
        raise BadValueError("A row of the cache stands outside the window.", given=int(unique[-1]),
                            allowed=f"0 to {config.window - 1}", where="cache")  # fmt: skip


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise missing_extra("torch", "torch", needed_for="A decoder") from None
    return torch
