"""Profiles a model into a database, and gives its step time back: the way in for programs.

>>> from wavetank.serving.profiling import OperationDatabase, profile, step_time      # doctest: +SKIP
>>> with OperationDatabase("operations.sqlite") as database:                          # doctest: +SKIP
...     done = profile(read_model("Llama-3.2-1B"), database)
...     Cluster(workers=4, step_time=step_time(database, done))
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from wavetank.machine.limits import available_bytes
from wavetank.machine.threads import allowed_threads, libraries_limited
from wavetank.platforms.table_step_time import TableStepTime
from wavetank.serving.profiling.database import OperationDatabase, ProfiledModel
from wavetank.serving.profiling.decoder import Decoder
from wavetank.serving.profiling.measuring import Grid, Swept, Timing, device_conditions, fill
from wavetank.serving.profiling.models import DecoderConfig
from wavetank.serving.profiling.operations import canonical
from wavetank.serving.profiling.regression import compiled_step_time, latencies
from wavetank.serving.profiling.tracing import Trace, scaled, trace

if TYPE_CHECKING:
    from wavetank.platforms.links import Link

# A pass that is run as a whole has no more layers: what it shows is the time between operations, not theirs.
_CALIBRATION_LAYERS = 4
_CALIBRATION_PROMPT, _CALIBRATION_STEPS, _CALIBRATION_SEQUENCES = 16, 32, (1, 8)


@dataclass(frozen=True, kw_only=True)
class Profiled:
    """A model that was profiled.

    Attributes
    ----------
    model : ProfiledModel
    conditions : str
    swept : Swept
    calibrated : bool
        Whether the time beside the operations was measured; it is 0 where the model did not fit into memory.
    """

    model: ProfiledModel
    conditions: str
    swept: Swept
    calibrated: bool


@dataclass(frozen=True, kw_only=True)
class Variant:
    """How a model is run.

    Attributes
    ----------
    dtype, backend : str
    device : str
    tensor_parallel : int
    threads : int
        Of torch on a processor; 0 for as many as the machine allows.
    """

    dtype: str = "float32"
    backend: str = "per-sequence"
    device: str = "cpu"
    tensor_parallel: int = 1
    threads: int = 0

    @property
    def name(self) -> str:
        """What models are kept under in a database."""
        return canonical({"dtype": self.dtype, "backend": self.backend, "tensor_parallel": self.tensor_parallel})

    @property
    def used_threads(self) -> int:
        """The threads of torch."""
        return allowed_threads(self.threads or None)


def traced(config: DecoderConfig, variant: Variant = Variant()) -> Trace:
    """Return the operations of a decoder without computing any.

    Notes
    -----
    One layer and two are traced; a model of more has the same operations more often.
    """
    passes = []
    for layers in (2, 1):
        shape = replace(config, layers=layers)
        decoder = Decoder(shape, dtype=variant.dtype, backend=variant.backend, tensor_parallel=variant.tensor_parallel)
        passes.append(trace(decoder, decoder.inputs, weights=decoder.parameters(), numbers=shape.numbers,
                            tensor_parallel=variant.tensor_parallel))  # fmt: skip
    two, one = passes
    return scaled(two, one, config.layers)


def profile(
    config: DecoderConfig,
    database: OperationDatabase,
    *,
    variant: Variant = Variant(),
    grid: Grid | None = None,
    timing: Timing | None = None,
    said: Callable[[str], object] = lambda text: None,
) -> Profiled:
    """Measure what a database lacks of a decoder, and keep which operations it has.

    Parameters
    ----------
    config : DecoderConfig
    database : OperationDatabase
    variant : Variant
    grid : Grid, optional
    timing : Timing, optional
    said : callable
        Called with each operation that is measured.
    """
    found = traced(config, variant)
    grid = grid or Grid.up_to()
    timing = replace(timing or Timing(), device=variant.device)
    with libraries_limited(variant.used_threads):
        conditions = device_conditions(variant.device, variant.used_threads, timing.clock)
        swept = fill(database, list(found.counts), grid, conditions, timing, said)
        model = ProfiledModel(
            name=config.name, variant=variant.name, counts=found.counts, step_s=0.0, sequence_s=0.0,
            collectives={(each.name, each.elements, each.dtype, each.devices): count
                         for each, count in found.collectives.items()},
        )  # fmt: skip
        beside = _beside_s(config, variant, database, model, conditions, timing.clock)
    if beside is not None:
        model = replace(model, step_s=beside[0], sequence_s=beside[1])
    database.link(model, conditions)
    return Profiled(model=model, conditions=conditions, swept=swept, calibrated=beside is not None)


def profile_operations(
    name: str,
    found: Trace,
    database: OperationDatabase,
    *,
    variant: Mapping[str, str] | None = None,
    device: str = "cpu",
    threads: int = 0,
    grid: Grid | None = None,
    timing: Timing | None = None,
    step_s: float = 0.0,
    sequence_s: float = 0.0,
) -> Profiled:
    """Measure what a database lacks of any traced module, and keep which operations it has.

    Parameters
    ----------
    name : str
        Of the model.
    found : Trace
        As :func:`~wavetank.serving.profiling.tracing.trace` gives it.
    database : OperationDatabase
    variant : mapping of str to str, optional
        What else distinguishes this way to run the model.
    device : str
    threads : int
        Of torch on a processor; 0 for as many as the machine allows.
    grid : Grid, optional
    timing : Timing, optional
    step_s, sequence_s : float
        What a step takes beside its operations, and what each sequence adds to that.
    """
    how = Variant(device=device, threads=threads)
    with libraries_limited(how.used_threads):
        timing = replace(timing or Timing(), device=device)
        conditions = device_conditions(device, how.used_threads, timing.clock)
        swept = fill(database, list(found.counts), grid or Grid.up_to(), conditions, timing)
    model = ProfiledModel(
        name=name, variant=canonical(dict(variant or {})), counts=found.counts, step_s=step_s, sequence_s=sequence_s,
        collectives={(each.name, each.elements, each.dtype, each.devices): count
                     for each, count in found.collectives.items()},
    )  # fmt: skip
    database.link(model, conditions)
    return Profiled(model=model, conditions=conditions, swept=swept, calibrated=True)


def step_time(database: OperationDatabase, done: Profiled, *, link: Link | None = None) -> TableStepTime:
    """Return the step time of a profiled model, for ``Cluster(step_time=...)``.

    Parameters
    ----------
    database : OperationDatabase
    done : Profiled
    link : Link, optional
        Between the devices of a model that several share.
    """
    fits, measured = latencies(database, done.model, done.conditions)
    return compiled_step_time(done.model, fits, measured, link=link)


def kept_step_time(
    database: OperationDatabase,
    name: str,
    *,
    variant: Variant = Variant(),
    clock: str = "wall",
    link: Link | None = None,
) -> TableStepTime:
    """Return the step time of a model that was profiled on this machine before; nothing is measured.

    Raises
    ------
    UnknownNameError
        If the database has no such model for this machine.
    """
    conditions = device_conditions(variant.device, variant.used_threads, clock)
    model = database.model(name, conditions, variant.name)
    fits, measured = latencies(database, model, conditions)
    return compiled_step_time(model, fits, measured, link=link)


def _beside_s(
    config: DecoderConfig,
    variant: Variant,
    database: OperationDatabase,
    model: ProfiledModel,
    conditions: str,
    clock: str,
) -> tuple[float, float] | None:
    """Return what a step takes beside its operations, and per sequence: what a short model takes over its operations.

    None where not even one layer fits into half of the free memory, or several devices share the model.
    """
    from wavetank.serving.profiling.served import DecoderEngine
    from wavetank.serving.simulator.cluster import Cluster
    from wavetank.workloads.requests import RequestTrace

    if variant.tensor_parallel > 1:
        return None
    short = replace(config, layers=min(config.layers, _CALIBRATION_LAYERS))
    while short.layers and not _fits(short, variant):
        if short.layers == 1:
            return None
        short = replace(short, layers=short.layers - 1)
    decoder = Decoder(short, dtype=variant.dtype, backend=variant.backend, device=variant.device)
    together = _CALIBRATION_SEQUENCES[1]
    cluster = Cluster(workers=1, max_running=together, max_batched_tokens=_CALIBRATION_PROMPT * together,
                      kv_capacity_tokens=1 << 20)  # fmt: skip
    counts = traced(short, variant).counts
    table = step_time(
        database,
        Profiled(model=replace(model, counts=counts), conditions=conditions, swept=_NOTHING, calibrated=False),
    )
    beside = []
    for sequences in _CALIBRATION_SEQUENCES:
        batch = RequestTrace(
            arrival_s=np.zeros(sequences), prompt_tokens=np.full(sequences, _CALIBRATION_PROMPT),
            output_tokens=np.full(sequences, _CALIBRATION_STEPS + 1),
        )  # fmt: skip
        engine = DecoderEngine(decoder, cluster, _CALIBRATION_PROMPT + _CALIBRATION_STEPS + 1, clock)
        steps = [each for each in engine.serve(batch).steps if not each.prefill_tokens]
        # The first ones find nothing in place.
        later = steps[len(steps) // 4 :]
        beside.append(statistics.median(each.seconds - table.seconds(*each[:4]) for each in later))
    one, several = beside
    sequence_s = (several - one) / (_CALIBRATION_SEQUENCES[1] - _CALIBRATION_SEQUENCES[0])
    # What lies between operations grows with their number.
    longer = sum(model.counts.values()) / sum(counts.values())
    return (one - sequence_s) * longer, sequence_s * longer


_NOTHING = Swept(measured=(), reused=(), points_measured=0, points_reused=0, spent_s=0.0, disturbed=())


def _fits(config: DecoderConfig, variant: Variant) -> bool:
    need = Decoder(config, dtype=variant.dtype).weight_bytes()
    if variant.device != "cpu":
        from wavetank.machine.cuda import free_bytes

        return need < free_bytes(variant.device) / 2
    free = available_bytes()
    return free is None or need < free / 2
