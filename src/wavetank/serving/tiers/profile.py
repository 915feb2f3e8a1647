"""What a group of GPUs keeps up of a tier: the largest rate of requests at which the objectives hold.

A group for prompts alone serves them one after the other: an M/D/1 queue whose wait, at the asked quantile, and service
stay within the time to first token.  A group for answers alone runs the largest batch whose step is within the time per
token and whose cache fits.  A group that does both fills the step up to the time per token with a part of a prompt.

Sources: capacities per tier, degree and role as in arXiv 2605.05467; the tail of the M/D/1 queue is the exponential one
of its mean wait.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from wavetank.errors import BadValueError
from wavetank.platforms.calibration import calibrated_roofline
from wavetank.platforms.catalog import Device, Model, as_device, as_model
from wavetank.platforms.memory import weight_bytes_per_parameter
from wavetank.platforms.step_time import RooflineStepTime
from wavetank.serving.tiers.interface import BOTH, DECODE, PREFILL, Floats, Group, Tier, Unit
from wavetank.serving.tiers.sharding import check_degree

SAFE = 0.95
"""Share of an objective per token that steps are planned to take."""
CHUNK = 8192
"""Most prompt tokens of a step."""
_QUANTILE = 0.95
_MEMORY_SHARE, _RESERVED_BYTES = 0.9, 2e9
_SPLITS = ((1, 1), (1, 2), (2, 1), (3, 1))


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """GPUs of one kind, a model, and the degrees that groups may have.

    Parameters
    ----------
    device : str or Device
    model : str or Model
    gpus : int
        All of them; a power of two.
    degrees : tuple of int
        Powers of two that divide the KV heads.
    """

    device: str | Device
    model: str | Model
    gpus: int
    degrees: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.gpus < 1 or self.gpus & (self.gpus - 1):
            raise BadValueError("The number of GPUs is a power of two.", given=self.gpus, allowed="1, 2, 4, 8, ...")
        for degree in self.degrees:
            check_degree(self.model, degree)
            if degree & (degree - 1) or degree > self.gpus:
                raise BadValueError(
                    "A degree is a power of two up to the number of GPUs.", given=degree, allowed=f"1 to {self.gpus}"
                )
        if not self.degrees:
            raise BadValueError("There is no degree to choose.", given="none", allowed="one or more")

    def step_time(self, degree: int) -> RooflineStepTime:
        """Return the step time of a group."""
        return _step_time(self.device, self.model, degree)

    @cached_property
    def tables(self) -> Floats:
        """Step times of all degrees, float64 of shape (degrees, 13)."""
        return np.array([self.step_time(degree).table for degree in self.degrees])

    def room_tokens(self, degree: int, full_copy: bool) -> int:
        """Return the tokens of KV cache that a group holds beside the weights.

        Parameters
        ----------
        degree : int
        full_copy : bool
            Whether each GPU holds all weights, or the slice of its degree.

        Raises
        ------
        BadValueError
            If the weights leave no room.
        """
        device, model = as_device(self.device), as_model(self.model)
        weights = model.parameters * weight_bytes_per_parameter("bf16") / (1 if full_copy else degree)
        room = device.memory_bytes * _MEMORY_SHARE - _RESERVED_BYTES - weights
        tokens = int(room * degree // model.kv_bytes_per_token) if room > 0 else 0
        if tokens < 1:
            copy = "A full copy of" if full_copy else f"A slice of 1/{degree} of"
            raise BadValueError(
                f"{copy} {model.name} leaves no room for KV cache on {device.name}.", given=f"{weights / 1e9:.0f} GB",
                allowed=f"below {(device.memory_bytes * _MEMORY_SHARE - _RESERVED_BYTES) / 1e9:.0f} GB",
                hint="take a smaller model or a device with more memory",
            )  # fmt: skip
        return tokens

    def prefill_per_s(self, tier: Tier, degree: int) -> float:
        """Return the requests per second whose prompts a group processes in time."""
        prompt = math.ceil(tier.prompt_tokens)
        return _largest_rate(self.step_time(degree).seconds(0, 0, prompt, prompt * (prompt + 1) // 2), tier.ttft_s)

    def decode_per_s(self, tier: Tier, degree: int, full_copy: bool) -> float:
        """Return the requests per second whose answers a group decodes in time."""
        step, context = self.step_time(degree), tier.prompt_tokens + tier.output_tokens / 2
        batch = self.largest_batch(tier, degree, full_copy)
        if batch == 0:
            return 0.0
        return batch / (tier.output_tokens * step.seconds(batch, int(batch * context)))

    def largest_batch(self, tier: Tier, degree: int, full_copy: bool) -> int:
        """Return how many answers a group decodes together within the time per token, and has cache for."""
        step, context = self.step_time(degree), tier.prompt_tokens + tier.output_tokens / 2
        low = 0
        high = int(self.room_tokens(degree, full_copy) // (tier.prompt_tokens + tier.output_tokens)) + 1
        while high - low > 1:
            batch = (low + high) // 2
            if step.seconds(batch, int(batch * context)) <= SAFE * tier.tpot_s:
                low = batch
            else:
                high = batch
        return low

    def both_per_s(self, tier: Tier, degree: int, full_copy: bool) -> float:
        """Return the requests per second that a group serves whose steps mix prompts and answers."""
        most = self.largest_batch(tier, degree, full_copy)
        step, context = self.step_time(degree), tier.prompt_tokens + tier.output_tokens / 2
        best = 0.0
        for batch in sorted({round(most * share) for share in np.linspace(0.02, 1.0, 50)} - {0}):
            # More of prompts than their answers find room for would only lengthen the step.
            needed = math.ceil(batch * tier.prompt_tokens / tier.output_tokens)
            chunk = min(needed, largest_chunk(step, batch, int(batch * context), tier, SAFE * tier.tpot_s))
            if chunk == 0:
                continue
            took = step.seconds(batch, int(batch * context), chunk, int(chunk * tier.prompt_tokens / 2))
            prompt_s = tier.prompt_tokens / chunk * took
            best = max(best, min(batch / (tier.output_tokens * took), _largest_rate(prompt_s, tier.ttft_s)))
        return best

    def rates(self, tiers: Sequence[Tier], full_copy: bool) -> dict[Group, float]:
        """Return the requests per second that groups of every tier, degree and role keep up.

        Parameters
        ----------
        tiers : sequence of Tier
        full_copy : bool
        """
        found = {}
        for index, tier in enumerate(tiers):
            for degree in self.degrees:
                found[Group(index, degree)] = self.both_per_s(tier, degree, full_copy)
                found[Group(index, degree, PREFILL)] = self.prefill_per_s(tier, degree)
                found[Group(index, degree, DECODE)] = self.decode_per_s(tier, degree, full_copy)
        return found


def units_of(rates: Mapping[Group, float], gpus: int) -> tuple[Unit, ...]:
    """Return what can be added at once: single groups that do both, and some of each role together.

    Parameters
    ----------
    rates : mapping of Group to float
    gpus : int
        Units need no more.
    """
    found = []
    for group, per_s in rates.items():
        if group.role != BOTH:
            continue
        tier, degree, _ = group
        prefill, decode = rates[Group(tier, degree, PREFILL)], rates[Group(tier, degree, DECODE)]
        found.append(Unit(tier, degree, 0, 0, per_s))
        found += [
            Unit(tier, degree, first, second, min(first * prefill, second * decode))
            for first, second in _SPLITS if degree * (first + second) <= gpus
        ]  # fmt: skip
    return tuple(found)


@lru_cache(maxsize=64)
def _step_time(device: str | Device, model: str | Model, degree: int) -> RooflineStepTime:
    return calibrated_roofline(device, model, degree)


def largest_chunk(step: RooflineStepTime, batch: int, context: int, tier: Tier, bound_s: float) -> int:
    """Return the most prompt tokens that a step takes beside a batch within a bound, up to ``CHUNK``."""
    low, high = 0, CHUNK + 1
    while high - low > 1:
        chunk = (low + high) // 2
        if step.seconds(batch, context, chunk, int(chunk * tier.prompt_tokens / 2)) <= bound_s:
            low = chunk
        else:
            high = chunk
    return low


def _largest_rate(service_s: float, within_s: float) -> float:
    """Return the largest rate of an M/D/1 queue whose wait, at the quantile, and service are within a time."""
    if service_s >= within_s:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(40):
        busy = (low + high) / 2
        mean_s = busy * service_s / (2 * (1 - busy))
        wait_s = mean_s / busy * math.log(max(busy / (1 - _QUANTILE), 1.0))
        low, high = (busy, high) if wait_s + service_s <= within_s else (low, busy)
    return low / service_s
