"""Device memory: how many bytes the weights take and how many tokens of KV cache fit beside them.

The budget is vLLM's: a share of each device's memory, less the weights, less what activations and graphs need, is KV
cache (vLLM, ``gpu_memory_utilization``; Kwon et al., "Efficient Memory Management for Large Language Model Serving
with PagedAttention", SOSP 2023).
"""

from __future__ import annotations

from typing import Literal

from wavetank.errors import BadValueError
from wavetank.platforms.catalog import Device, Model, as_device, as_model
from wavetank.units import show

Precision = Literal["bf16", "fp8"]

_WEIGHT_BYTES = {"bf16": 2, "fp8": 1}


def weight_bytes_per_parameter(precision: str) -> int:
    """Return the bytes that one weight takes.

    Raises
    ------
    BadValueError
        If the precision is neither ``"bf16"`` nor ``"fp8"``.
    """
    if precision not in _WEIGHT_BYTES:
        raise BadValueError("precision is not one that is known.", given=precision, allowed=_WEIGHT_BYTES)
    return _WEIGHT_BYTES[precision]


def check_tensor_parallel(model: Model, tensor_parallel: int) -> None:
    """Raise unless the model's heads divide evenly among ``tensor_parallel`` devices."""
    if isinstance(tensor_parallel, bool) or not isinstance(tensor_parallel, int) or tensor_parallel < 1:
        raise BadValueError("tensor_parallel must be a positive whole number.", given=tensor_parallel)
    if model.heads % tensor_parallel:
        raise BadValueError(
            f"tensor_parallel does not divide the {model.heads} attention heads of {model.name!r}.",
            given=tensor_parallel,
            allowed=[str(n) for n in range(1, model.heads + 1) if model.heads % n == 0],
        )


def kv_share(model: Model, tensor_parallel: int) -> float:
    """Return the share of a token's KV cache that each of ``tensor_parallel`` devices keeps.

    Heads are divided; a head that many devices need is copied, and the latent cache of MLA is kept whole on each.
    """
    return 1.0 if model.kv_rank else 1 / min(tensor_parallel, model.kv_heads)


def kv_capacity_tokens(
    device: str | Device,
    model: str | Model,
    tensor_parallel: int = 1,
    *,
    memory_share: float = 0.9,
    reserved_bytes: int = 2_000_000_000,
    precision: Precision = "bf16",
    expert_parallel: int = 1,
    pipeline_parallel: int = 1,
) -> int:
    """Return how many tokens of KV cache fit beside the weights.

    Parameters
    ----------
    device : str or Device
        The accelerator; every one of the group is alike.
    model : str or Model
        The language model.
    tensor_parallel : int, default 1
        Devices that share the weights.
    memory_share : float, default 0.9
        Share of each device's memory that the engine may use (vLLM's ``gpu_memory_utilization``).
    reserved_bytes : int, default 2e9
        Activations, graphs and buffers on each device, bytes.
    precision : {"bf16", "fp8"}, default "bf16"
        Of the weights; the cache is bf16.
    expert_parallel : int, default 1
        Data-parallel workers that share the routed experts: each keeps that share of their weights.
    pipeline_parallel : int, default 1
        Stages of the model's layers: the one with the most layers has the least room.

    Returns
    -------
    int
        Tokens, at least 1.

    Raises
    ------
    BadValueError
        If a parameter is out of range, or the weights leave no room.

    Examples
    --------
    >>> kv_capacity_tokens("H100-SXM", "Llama-3.1-8B")
    452033
    """
    device, model = as_device(device), as_model(model)
    check_tensor_parallel(model, tensor_parallel)
    if not 0 < memory_share <= 1:
        raise BadValueError("memory_share is out of range.", given=memory_share, allowed="more than 0, at most 1")
    if reserved_bytes < 0:
        raise BadValueError("reserved_bytes must not be negative.", given=reserved_bytes)
    if expert_parallel < 1:
        raise BadValueError("expert_parallel must be a positive whole number.", given=expert_parallel)
    if not 1 <= pipeline_parallel <= model.layers:
        raise BadValueError(
            "A stage has at least one layer.", given=pipeline_parallel, allowed=f"1 to {model.layers}",
            where="pipeline_parallel",
        )  # fmt: skip
    # Embedding and output head count as if they were layers, for a stage has one of them at most.
    share = -(-model.layers // pipeline_parallel) / model.layers
    kept = (model.parameters - model.expert_parameters * (1 - 1 / expert_parallel)) * share
    weights = kept * weight_bytes_per_parameter(precision) / tensor_parallel
    room = device.memory_bytes * memory_share - reserved_bytes - weights
    tokens = int(room // (model.kv_bytes_per_token * share * kv_share(model, tensor_parallel)))
    if tokens < 1:
        raise BadValueError(
            f"{model.name} leaves no room for KV cache on {tensor_parallel} x {device.name}.",
            given=f"{show(weights, 'bytes')} of weights and {show(reserved_bytes, 'bytes')} reserved on each device",
            allowed=f"{show(device.memory_bytes * memory_share, 'bytes')} "
            f"({memory_share:g} of {show(device.memory_bytes, 'bytes')})",
            hint="raise tensor_parallel, or choose a device with more memory",
        )
    return tokens
