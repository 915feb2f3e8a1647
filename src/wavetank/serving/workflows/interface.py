"""What a scheduler of stages sees and decides: one definition, for the simulator and for real processes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from wavetank.errors import BadValueError, unknown_name
from wavetank.platforms.calibration import calibrated_roofline
from wavetank.platforms.catalog import as_device, as_model
from wavetank.workloads.workflows import Workflow

FloatArray = npt.NDArray[np.float64]
StageKey = tuple[int, int]
"""Number of the application, in order of arrival, and of the stage in its workflow."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One call of a model.

    Parameters
    ----------
    model : str
    prompt_tokens : int
        Its whole prompt.
    output_tokens : int
        What it will write; a scheduler does not see it.
    expected_tokens : float, optional
        What a scheduler expects it to write; ``output_tokens`` by default.
    prefix : str
        Stages of equal prefix and model begin with the same tokens; empty for none.
    prefix_tokens : int
        Tokens of that beginning, at most the prompt.
    kept_tokens : int, optional
        What of the prefix is cached afterwards, for stages that continue this one; ``prefix_tokens`` by default.
    most_shards : int
        Devices that may share it: its inputs are independent of each other.
    devices : frozenset of str
        Names of the devices that may compute it; empty for all that hold its model.
    """

    model: str
    prompt_tokens: int
    output_tokens: int
    expected_tokens: float = math.nan
    prefix: str = ""
    prefix_tokens: int = 0
    kept_tokens: int = 0
    most_shards: int = 1
    devices: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if math.isnan(self.expected_tokens):
            object.__setattr__(self, "expected_tokens", float(self.output_tokens))
        if self.kept_tokens < self.prefix_tokens:
            object.__setattr__(self, "kept_tokens", self.prefix_tokens)
        if (
            min(self.prompt_tokens, self.output_tokens, self.most_shards) < 1
            or not 0 <= self.prefix_tokens <= self.prompt_tokens
            or not 0 < self.expected_tokens < math.inf
        ):
            raise BadValueError(
                "Tokens and shards of a stage are at least 1, its prefix is part of its prompt.",
                given=(self.prompt_tokens, self.output_tokens, self.prefix_tokens, self.most_shards),
            )


@dataclass(frozen=True, kw_only=True)
class Application:
    """A workflow whose tasks are stages.

    Parameters
    ----------
    workflow : Workflow
    stages : tuple of Stage
        One per task.
    arrival_s : float
    """

    workflow: Workflow
    stages: tuple[Stage, ...]
    arrival_s: float = 0.0

    def __post_init__(self) -> None:
        if len(self.stages) != len(self.workflow):
            raise BadValueError("Every task needs a stage.", given=len(self.stages), allowed=str(len(self.workflow)),
                                where=self.workflow.name)  # fmt: skip
        if not 0 <= self.arrival_s < math.inf:
            raise BadValueError("An arrival is a finite time from 0 on.", given=self.arrival_s,
                                where=self.workflow.name)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Device:
    """One device with its own memory.

    Parameters
    ----------
    name : str
    weights_bytes : float
        Memory for models.
    cache_bytes : float
        Memory for the keys and values of prefixes.
    load_bytes_per_s : float
        Rate at which a model is loaded.
    prefill_per_s, decode_per_s : mapping of str to float
        Tokens per second of prompts and of answers, by model.

    Raises
    ------
    BadValueError
        If a rate is not above 0, a memory is negative, or the two rates are not of the same models.
    """

    name: str
    weights_bytes: float
    cache_bytes: float
    load_bytes_per_s: float
    prefill_per_s: Mapping[str, float]
    decode_per_s: Mapping[str, float]

    def __post_init__(self) -> None:
        rates = (self.load_bytes_per_s, *self.prefill_per_s.values(), *self.decode_per_s.values())
        sizes = (self.weights_bytes, self.cache_bytes)
        if not (all(0 < each < math.inf for each in rates) and all(0 <= each < math.inf for each in sizes)):
            raise BadValueError("A device has rates above 0 and memories of 0 or more.", given=(*sizes, *rates),
                                where=self.name)  # fmt: skip
        if set(self.prefill_per_s) != set(self.decode_per_s):
            raise BadValueError("A device computes prompts and answers of the same models.",
                                given=sorted(self.prefill_per_s), allowed=str(sorted(self.decode_per_s)),
                                where=self.name)  # fmt: skip

    def parts_s(self, stage: Stage, output_tokens: float, reused_tokens: int = 0) -> tuple[float, float]:
        """Return what the rest of a stage's prefix takes here, and everything after it.

        Parameters
        ----------
        stage : Stage
            Of a model that the device computes.
        output_tokens : float
            Written, or expected to be.
        reused_tokens : int
            Of the prefix, which are cached.
        """
        prefill, decode = self.prefill_per_s[stage.model], self.decode_per_s[stage.model]
        prefix_s = (stage.prefix_tokens - reused_tokens) / prefill
        return prefix_s, (stage.prompt_tokens - stage.prefix_tokens) / prefill + output_tokens / decode


@dataclass(frozen=True, kw_only=True)
class Platform:
    """The devices, and what models take on them.

    Parameters
    ----------
    devices : tuple of Device
        Names differ.
    model_bytes : mapping of str to float
        Weights of each model.
    token_bytes : mapping of str to float
        Keys and values of one token.
    network_bytes_per_s : float
        Between any two devices.
    merge_s : float
        What each further shard of a stage takes at its end, s.

    Raises
    ------
    BadValueError
        If there is no device, two have one name, or a size, the network or the merge is out of range.
    """

    devices: tuple[Device, ...]
    model_bytes: Mapping[str, float]
    token_bytes: Mapping[str, float]
    network_bytes_per_s: float = 12.5e9
    merge_s: float = 0.05

    def __post_init__(self) -> None:
        names = [each.name for each in self.devices]
        if not names or len(set(names)) != len(names):
            raise BadValueError("A platform needs devices of different names.", given=names)
        good = (
            all(0 < each < math.inf for each in (*self.model_bytes.values(), self.network_bytes_per_s))
            and all(0 <= each < math.inf for each in (*self.token_bytes.values(), self.merge_s))
            and set(self.model_bytes) == set(self.token_bytes)
        )
        if not good:
            raise BadValueError(
                "A platform has a size above 0 and a size per token for every model, a network and a time to merge.",
                given=f"models {dict(self.model_bytes)}, tokens {dict(self.token_bytes)}, "
                f"network {self.network_bytes_per_s} bytes/s, merge {self.merge_s} s",
            )  # fmt: skip

    @cached_property
    def index(self) -> dict[str, int]:
        """Number of each device by its name."""
        return {device.name: number for number, device in enumerate(self.devices)}

    def may(self, stage: Stage) -> tuple[int, ...]:
        """Return the numbers of the devices that can compute a stage.

        Parameters
        ----------
        stage : Stage

        Raises
        ------
        UnknownNameError
            If the stage names a model or a device that is not there.
        BadValueError
            If no device can.
        """
        if stage.model not in self.model_bytes:
            raise unknown_name("model on this platform", stage.model, self.model_bytes)
        for name in sorted(stage.devices):
            if name not in self.index:
                raise unknown_name("device", name, self.index)
        size = self.model_bytes[stage.model]
        found = tuple(
            number
            for number, device in enumerate(self.devices)
            if size <= device.weights_bytes
            and stage.model in device.decode_per_s
            and (not stage.devices or device.name in stage.devices)
        )
        if not found:
            room = max(device.weights_bytes for device in self.devices)
            raise BadValueError(
                "No device can compute this stage.", given=f"{stage.model}, {size / 1e9:.1f} GB of weights",
                allowed=f"up to {room / 1e9:.1f} GB, on a device that the stage allows",
                hint="name other devices, or a larger one",
            )  # fmt: skip
        return found

    def transfer_s(self, size_bytes: float, source: Sequence[int], target: int) -> float:
        """Return how long an output takes to a device, of which a shard that lies there already stays.

        Parameters
        ----------
        size_bytes : float
        source : sequence of int
            Devices that hold equal parts of it.
        target : int
        """
        moved = size_bytes * (1 - 1 / len(source)) if target in source else size_bytes
        return moved / self.network_bytes_per_s


class DeviceView(NamedTuple):
    """A device as a scheduler sees it."""

    ready_s: float
    """When its stage is expected to end; now for an idle one."""
    idle: bool
    models: tuple[str, ...]
    """Resident models, the one used longest ago first."""
    prefixes: tuple[tuple[str, str, int], ...]
    """Model, prefix and tokens of what is cached, the one used longest ago first."""


class View(NamedTuple):
    """What a scheduler decides from."""

    now_s: float
    devices: tuple[DeviceView, ...]
    ready: tuple[StageKey, ...]
    """Stages whose parents are done and that were not dispatched, in the order in which they became ready."""
    placed: Mapping[StageKey, tuple[int, ...]]
    """Devices of every stage that was dispatched."""
    done: frozenset[StageKey]
    applications: tuple[Application, ...]
    """All that have arrived, by number."""


class Dispatch(NamedTuple):
    """A ready stage and the idle devices that begin it now."""

    stage: StageKey
    devices: tuple[int, ...]


class Session(Protocol):
    """A scheduler at work on one run."""

    def decide(self, view: View) -> Sequence[Dispatch]:
        """Return what begins now; stages and devices that are not named wait for the next view.

        Parameters
        ----------
        view : View
        """
        ...


class Scheduler(Protocol):
    """Decides which device computes which stage, and when."""

    def session(self, platform: Platform) -> Session:
        """Return a session that has seen nothing yet.

        Parameters
        ----------
        platform : Platform
        """
        ...


def platform_of(
    gpus: Sequence[str],
    models: Sequence[str],
    *,
    load_bytes_per_s: float = 25e9,
    network_bytes_per_s: float = 12.5e9,
    weights_share: float = 0.82,
    cache_share: float = 0.08,
) -> Platform:
    """Return a platform of GPUs with calibrated roofline rates; one sequence at a time.

    Parameters
    ----------
    gpus, models : sequence of str
        As the platforms name them; a GPU per entry.
    load_bytes_per_s : float
        From the host's memory, at most what the GPU's PCIe link carries.
    network_bytes_per_s : float
    weights_share, cache_share : float
        Parts of a GPU's memory for models, and for the keys and values of prefixes; the rest is for the stage at work.
    """
    kinds = {name: as_device(name) for name in dict.fromkeys(gpus)}
    shapes = {name: as_model(name) for name in models}
    rates: dict[str, tuple[dict[str, float], dict[str, float]]] = {}
    for name, kind in kinds.items():
        prefill, decode = {}, {}
        for model in models:
            step = calibrated_roofline(kind, model)
            # A chunk of 2,048 tokens, and one sequence of 2,048 tokens that decodes.
            prefill[model] = 2048 / step.seconds(0, 0, 2048, 2048 * 2049 // 2)
            decode[model] = 1 / step.seconds(1, 2048)
        rates[name] = prefill, decode
    return Platform(
        devices=tuple(
            Device(
                name=f"{gpu}-{number}",
                weights_bytes=kinds[gpu].memory_bytes * weights_share,
                cache_bytes=kinds[gpu].memory_bytes * cache_share,
                load_bytes_per_s=min(load_bytes_per_s, kinds[gpu].pcie_bytes_per_s),
                prefill_per_s=rates[gpu][0],
                decode_per_s=rates[gpu][1],
            )
            for number, gpu in enumerate(gpus)
        ),
        model_bytes={name: 2.0 * shape.parameters for name, shape in shapes.items()},
        token_bytes={name: float(shape.kv_bytes_per_token) for name, shape in shapes.items()},
        network_bytes_per_s=network_bytes_per_s,
    )
