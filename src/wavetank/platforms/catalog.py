"""Devices and language models: the figures that step times and memory budgets are computed from.

They are plain data in ``devices.toml`` and ``models.toml``, each entry with its source; a file of your own in the same
form is read by :func:`load_devices` and :func:`load_models`.
"""

from __future__ import annotations

import functools
import tomllib
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from wavetank.errors import BadFileError, BadValueError, nearest_of, unknown_name

_BYTES_PER_ELEMENT = 2  # bf16


@dataclass(frozen=True, kw_only=True)
class Device:
    """One accelerator.

    Parameters
    ----------
    name : str
        As users write it, such as ``"H100-SXM"``.
    memory_bytes : int
        Memory on the device.
    hbm_bytes_per_s : float
        Peak bandwidth of that memory, bytes/s.
    bf16_flops_per_s, fp8_flops_per_s : float
        Peak of the matrix units without structured sparsity, operations/s; ``fp8_flops_per_s`` is None where the
        device has no 8-bit floating point.
    tdp_w : float
        Board power, W.
    link_bytes_per_s, network_bytes_per_s, pcie_bytes_per_s : float
        One-direction bandwidth of one device to another in the node, to another node, and to the host, bytes/s.
    link_latency_s : float
        Start-up time of one collective within the node, s.
    source : str
        Where the figures come from.
    """

    name: str
    memory_bytes: int
    hbm_bytes_per_s: float
    bf16_flops_per_s: float
    fp8_flops_per_s: float | None = None
    tdp_w: float
    link_bytes_per_s: float
    network_bytes_per_s: float
    pcie_bytes_per_s: float
    link_latency_s: float
    source: str

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float) and not 0 < value < float("inf"):
                raise BadValueError(f"{field.name} of device {self.name!r} must be positive and finite.", given=value)


@dataclass(frozen=True, kw_only=True)
class Model:
    """Shape of one decoder-only language model.

    Parameters
    ----------
    name : str
        As users write it, such as ``"Llama-3.1-8B"``.
    layers, hidden, heads, kv_heads, head_dim, ffn, vocab : int
        Shape of the network; ``head_dim`` is per head of queries, keys and values, with latent attention without the
        rotary part.
    parameters : int
        All weights, embedding and output head included.
    active_parameters : int
        Weights that one token meets.
    experts, experts_per_token, shared_experts, expert_ffn : int, default 0
        Mixture of experts: routed experts a layer, those one token goes to, those every token goes to, and the width
        of one expert.  0 experts is a dense model.
    dense_layers : int, default 0
        Leading layers of a mixture-of-experts model that have an ordinary feed-forward block.
    query_rank, kv_rank, rope_head_dim : int, default 0
        Multi-head latent attention: ranks of the query and key-value projections, rotary part of a key.  A ``kv_rank``
        of 0 is ordinary attention with ``kv_heads`` groups; a ``query_rank`` of 0 projects queries in one step.
    biases : int, default 0
        1 where projections, router and experts have biases, and every head of attention a sink.
    source : str
        Where the figures come from.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    parameters: int
    active_parameters: int
    experts: int = 0
    experts_per_token: int = 0
    shared_experts: int = 0
    expert_ffn: int = 0
    dense_layers: int = 0
    query_rank: int = 0
    kv_rank: int = 0
    rope_head_dim: int = 0
    biases: int = 0
    source: str

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 1 if field.default is MISSING else 0
            if isinstance(value, int) and value < least:
                raise BadValueError(f"{field.name} of model {self.name!r} must be at least {least}.", given=value)
        if self.active_parameters > self.parameters:
            raise BadValueError(
                f"active_parameters of model {self.name!r} exceeds its parameters.",
                given=self.active_parameters,
                allowed=f"at most {self.parameters}",
            )
        if self.experts and not (0 < self.experts_per_token < self.experts and self.expert_ffn):
            raise BadValueError(
                f"Model {self.name!r} has experts but no sensible routing.",
                given=f"experts={self.experts}, experts_per_token={self.experts_per_token}, "
                f"expert_ffn={self.expert_ffn}",
                allowed="0 < experts_per_token < experts and expert_ffn > 0",
            )

    @property
    def moe_layers(self) -> int:
        """Layers with experts."""
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of KV cache that one token takes over all layers and devices, in bf16."""
        per_layer = self.kv_rank + self.rope_head_dim if self.kv_rank else 2 * self.kv_heads * self.head_dim
        return self.layers * per_layer * _BYTES_PER_ELEMENT

    @property
    def attention_parameters(self) -> int:
        """Weights of the projections around attention, over all layers."""
        if not self.kv_rank:
            return self.layers * 2 * self.hidden * (self.heads + self.kv_heads) * self.head_dim
        width = self.heads * (self.head_dim + self.rope_head_dim)
        query = self.query_rank * (self.hidden + width) if self.query_rank else self.hidden * width
        key_value = self.hidden * (self.kv_rank + self.rope_head_dim) + self.kv_rank * self.heads * 2 * self.head_dim
        return self.layers * (query + key_value + self.heads * self.head_dim * self.hidden)

    @property
    def expert_parameters(self) -> int:
        """Weights of all routed experts, over all layers."""
        return self.moe_layers * self.experts * 3 * self.hidden * self.expert_ffn

    @property
    def dense_parameters(self) -> int:
        """Weights of the linear layers that every token goes through, output head excepted."""
        blocks = (self.layers - self.moe_layers) * 3 * self.hidden * self.ffn
        shared = self.moe_layers * self.hidden * (3 * self.shared_experts * self.expert_ffn + self.experts)
        return self.attention_parameters + blocks + shared

    @property
    def head_parameters(self) -> int:
        """Weights of the output head."""
        return self.vocab * self.hidden

    @property
    def prefill_flops_per_pair(self) -> int:
        """Operations of attention for one (query, key) pair of prompt tokens, over all layers and heads."""
        return 2 * self.layers * self.heads * (2 * self.head_dim + self.rope_head_dim)

    @property
    def decode_flops_per_context_token(self) -> int:
        """Operations of attention for one cached token that one decoding sequence reads.

        Latent attention is computed in the latent space there: scores over rank and rotary part, values over the rank.
        """
        if self.kv_rank:
            return 2 * self.layers * self.heads * (2 * self.kv_rank + self.rope_head_dim)
        return self.prefill_flops_per_pair


_Entry = TypeVar("_Entry", Device, Model)


def _load(path: Path, kind: type[_Entry]) -> dict[str, _Entry]:
    what = kind.__name__.lower()
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadFileError(f"The {what} file cannot be read: {error}.", given=str(path)) from error
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadFileError(f"The {what} file is not TOML: {error}.", where=str(path)) from error
    except RecursionError as error:
        raise BadFileError(f"The {what} file is nested too deeply.", where=str(path)) from error
    return {name: _entry(kind, name, table, f"{path}, [{name}]") for name, table in tables.items()}


def _entry(kind: type[_Entry], name: str, table: Any, where: str) -> _Entry:
    if not isinstance(table, dict):
        raise BadFileError(
            f"{name!r} is not a table.", given=table, allowed=f'one table a {kind.__name__.lower()}: ["NAME"]',
            where=where,
        )  # fmt: skip
    known = {field.name: field for field in fields(kind) if field.name != "name"}
    for key in table:
        if key not in known:
            raise BadFileError(
                "This key is not known.", given=key, allowed=known, nearest=nearest_of(key, known), where=where
            )
    missing = [key for key, field in known.items() if field.default is MISSING and key not in table]
    if missing:
        raise BadFileError(f"Keys are missing: {', '.join(missing)}.", allowed=known, where=where)
    values: dict[str, Any] = {}
    for key, value in table.items():
        wanted = str(known[key].type)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if "float" in wanted and number:
            values[key] = float(value)
        elif (wanted == "int" and number and isinstance(value, int)) or (wanted == "str" and isinstance(value, str)):
            values[key] = value
        else:
            allowed = {"int": "a whole number", "str": "text in quotes"}.get(wanted, "a number")
            raise BadFileError(f"{key} has the wrong type.", given=value, allowed=allowed, where=where)
    try:
        return kind(name=name, **values)
    except BadValueError as error:
        error.where = where
        raise


def load_devices(path: str | Path) -> dict[str, Device]:
    """Read devices from a TOML file: one table a device, keys as the parameters of :class:`Device`.

    Parameters
    ----------
    path : str or Path
        The file.

    Raises
    ------
    BadFileError
        If the file cannot be read, or an entry has missing, unknown or wrongly typed keys.
    BadValueError
        If a figure is not positive.
    """
    return _load(Path(path), Device)


def load_models(path: str | Path) -> dict[str, Model]:
    """Read models from a TOML file: one table a model, keys as the parameters of :class:`Model`; see `load_devices`."""
    return _load(Path(path), Model)


@functools.cache
def _shipped(kind: Any) -> dict[str, Any]:
    return _load(Path(__file__).with_name(f"{kind.__name__.lower()}s.toml"), kind)


def _named(kind: type[_Entry], name: str) -> _Entry:
    what, known = kind.__name__.lower(), _shipped(kind)  # type: ignore[arg-type]
    if name not in known:
        raise unknown_name(what, name, known, hint=f"read your own with wavetank.platforms.load_{what}s(path)")
    found: _Entry = known[name]
    return found


def devices() -> tuple[str, ...]:
    """Return the names of the devices that ship with Wavetank."""
    return tuple(_shipped(Device))


def models() -> tuple[str, ...]:
    """Return the names of the models that ship with Wavetank."""
    return tuple(_shipped(Model))


def device(name: str) -> Device:
    """Return the device of that name.

    Raises
    ------
    UnknownNameError
        If no device of that name ships with Wavetank.

    Examples
    --------
    >>> device("H100-SXM").hbm_bytes_per_s
    3350000000000.0
    """
    return _named(Device, name)


def model(name: str) -> Model:
    """Return the model of that name.

    Raises
    ------
    UnknownNameError
        If no model of that name ships with Wavetank.

    Examples
    --------
    >>> model("DeepSeek-V3").kv_bytes_per_token
    70272
    """
    return _named(Model, name)


def as_device(given: str | Device) -> Device:
    """Return ``given`` itself, or the shipped device of that name."""
    return device(given) if isinstance(given, str) else given


def as_model(given: str | Model) -> Model:
    """Return ``given`` itself, or the shipped model of that name."""
    return model(given) if isinstance(given, str) else given
