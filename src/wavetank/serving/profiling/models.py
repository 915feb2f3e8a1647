"""Decoders that can be profiled: their configuration, read from a model's own ``config.json`` or named from a zoo.

The zoo is twelve well-known models with public shapes; it was chosen before anything was counted.
"""

from __future__ import annotations

import functools
import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from wavetank.errors import BadFileError, BadValueError, nearest_of, unknown_name
from wavetank.files import read_text

ARCHITECTURES = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe")
"""Values of ``model_type`` whose decoders are built."""
DTYPES = ("float32", "bfloat16")
BACKENDS = ("per-sequence", "padded")
"""Ways to compute attention over a KV cache: each sequence by itself, or all decoding ones padded to the longest."""
_LARGEST_CONFIG_BYTES = 1 << 20
_MOST = 1 << 24


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """The shape of a decoder-only language model.

    Attributes
    ----------
    name : str
    layers, hidden, heads, kv_heads, head_dim, ffn, vocab : int
    experts, experts_per_token : int
        Routed experts of each layer, of width ``ffn``, and those that a token goes to; 0 for a dense model.
    qkv_bias, qk_norm : bool
        Whether queries, keys and values have a bias, and whether heads of queries and keys are normalised.
    epsilon, rope_theta : float
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    experts: int = 0
    experts_per_token: int = 0
    qkv_bias: bool = False
    qk_norm: bool = False
    epsilon: float = 1e-5
    rope_theta: float = 10_000.0

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            least = 0 if item.name.startswith("experts") else 1
            if isinstance(item.default, bool) or isinstance(value, str):
                continue
            whole = not isinstance(item.default, float)
            low, high = (least, _MOST) if whole else (0.0, math.inf)
            if (
                isinstance(value, bool)
                or not isinstance(value, int if whole else int | float)
                or not (low <= value <= high and value < math.inf)
            ):
                raise BadValueError(f"{item.name} of the model {self.name!r} is out of range.", given=value,
                                    allowed=f"{low} to {high:g}", where=item.name)  # fmt: skip
        if self.heads % self.kv_heads:
            raise BadValueError("Heads of keys and values must divide the heads.",
                                given=f"{self.heads} and {self.kv_heads}", where=self.name)  # fmt: skip
        if self.head_dim % 2:
            raise BadValueError("Rotary positions need an even head size.", given=self.head_dim, where=self.name)
        if self.experts and not 0 < self.experts_per_token <= self.experts:
            raise BadValueError("Each token must go to one or more of the experts.", given=self.experts_per_token,
                                allowed=f"1 to {self.experts}", where=self.name)  # fmt: skip

    def check_parallel(self, devices: int) -> None:
        """Raise unless the heads, the feed-forward width and the vocabulary divide evenly among the devices."""
        if isinstance(devices, bool) or not isinstance(devices, int) or devices < 1:
            raise BadValueError("tensor_parallel must be a positive whole number.", given=devices)
        for name in ("heads", "kv_heads", "ffn", "vocab"):
            if getattr(self, name) % devices:
                raise BadValueError(f"tensor_parallel does not divide {name}={getattr(self, name)} of {self.name!r}.",
                                    given=devices, where="tensor_parallel")  # fmt: skip

    @property
    def numbers(self) -> tuple[int, ...]:
        """The whole numbers of the configuration but the number of layers, which is in no shape."""
        return tuple(
            getattr(self, item.name) for item in fields(self)
            if item.name != "layers" and type(getattr(self, item.name)) is int
        )  # fmt: skip


def zoo() -> tuple[str, ...]:
    """Return the names of the models in the zoo."""
    return tuple(_zoo())


def from_zoo(name: str) -> DecoderConfig:
    """Return the configuration of a model of the zoo."""
    if name not in _zoo():
        raise unknown_name("model", name, _zoo(), hint="or give the path of a config.json")
    return _zoo()[name]


@functools.cache
def _zoo() -> dict[str, DecoderConfig]:
    path = Path(__file__).with_name("zoo.toml")
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    return {name: from_table(table, name, str(path)) for name, table in tables.items()}


def read_model(given: str) -> DecoderConfig:
    """Return a model of the zoo by its name, or one from a ``config.json`` or the folder that holds it.

    Raises
    ------
    BadFileError
        If the file is unreadable, no JSON object, of an architecture that is not built, or lacks a key.
    UnknownNameError
        If it is neither a file nor in the zoo.
    """
    path = Path(given).expanduser()
    if path.is_dir():
        path = path / "config.json"
    elif given in _zoo() or (not path.exists() and path.suffix != ".json"):
        return from_zoo(given)
    try:
        table = json.loads(read_text(path, largest_bytes=_LARGEST_CONFIG_BYTES))
    except (ValueError, RecursionError) as error:
        raise BadFileError("The configuration is no JSON.", given=str(error), where=str(path)) from error
    if not isinstance(table, dict):
        raise BadFileError("The configuration is no JSON object.", given=type(table).__name__, where=str(path))
    name = path.parent.name if path.name == "config.json" else path.stem
    return from_table(table, name or path.stem, str(path))


# Our names to those of config.json; the first that is there counts.
_KEYS: dict[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers",),
    "hidden": ("hidden_size",),
    "heads": ("num_attention_heads",),
    "ffn": ("intermediate_size",),
    "vocab": ("vocab_size",),
}


def from_table(table: Mapping[str, Any], name: str, where: str) -> DecoderConfig:
    """Return the configuration that the keys of a ``config.json`` describe.

    Parameters
    ----------
    table : mapping
    name, where : str
        Of the model, and of the file for messages.
    """
    kind = table.get("model_type")
    if kind not in ARCHITECTURES:
        raise BadFileError(
            "This architecture is not built.", given=f"model_type={kind!r}", allowed=ARCHITECTURES,
            nearest=nearest_of(str(kind), ARCHITECTURES), where=where,
            hint="trace a module of your own with wavetank.serving.profiling.trace",
        )  # fmt: skip
    mixture = kind in ("mixtral", "qwen3_moe")
    keys = dict(_KEYS)
    if mixture:
        keys["experts"] = ("num_local_experts", "num_experts")
        keys["experts_per_token"] = ("num_experts_per_tok",)
        if kind == "qwen3_moe":
            keys["ffn"] = ("moe_intermediate_size",)
    values: dict[str, Any] = {}
    for ours, theirs in keys.items():
        present = [key for key in theirs if key in table]
        if not present:
            raise BadFileError("The configuration lacks a key.", given=" or ".join(theirs), where=where)
        values[ours] = _whole(table[present[0]], present[0], where)
    _refuse(table, kind, where)
    heads = values["heads"]
    values["kv_heads"] = _whole(table.get("num_key_value_heads") or heads, "num_key_value_heads", where)
    if table.get("head_dim") is None and values["hidden"] % heads:
        raise BadFileError("hidden_size is no multiple of the heads, and head_dim is not given.",
                           given=f"{values['hidden']} and {heads}", where=where)  # fmt: skip
    given = table.get("head_dim")
    values["head_dim"] = values["hidden"] // heads if given is None else _whole(given, "head_dim", where)
    for ours, key in (("epsilon", "rms_norm_eps"), ("rope_theta", "rope_theta")):
        if key in table:
            number = table[key]
            if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number < math.inf:
                raise BadFileError("This is not a positive number.", given=number, where=f"{where}, {key}")
            values[ours] = float(number)
    try:
        return DecoderConfig(name=name, qkv_bias=kind == "qwen2", qk_norm=kind.startswith("qwen3"), **values)
    except BadValueError as error:
        raise BadFileError(error.problem, given=error.given, allowed=error.allowed, where=where) from error


def _refuse(table: Mapping[str, Any], kind: str, where: str) -> None:
    """Refuse what would be profiled as something else."""
    if table.get("use_sliding_window") or (kind != "qwen2" and table.get("sliding_window")):
        raise BadFileError("Attention over a sliding window is not built.", given="sliding_window", where=where)
    if table.get("attention_bias") or table.get("mlp_bias"):
        raise BadFileError("Biases other than those of qwen2 are not built.", given="attention_bias or mlp_bias",
                           where=where)  # fmt: skip
    if table.get("hidden_act", "silu") != "silu":
        raise BadFileError("This activation is not built.", given=table["hidden_act"], allowed="silu", where=where)
    if kind == "qwen3_moe" and (table.get("mlp_only_layers") or table.get("decoder_sparse_step", 1) != 1):
        raise BadFileError("Layers with and without experts in one model are not built.", where=where)
    if "quantization_config" in table:
        raise BadFileError("Quantised weights are not built.", given="quantization_config", where=where)


def _whole(value: Any, key: str, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= _MOST:
        raise BadFileError("This is not a positive whole number.", given=value, allowed=f"1 to {_MOST}",
                           where=f"{where}, {key}")  # fmt: skip
    return value
