"""Platforms: what a workload runs on, as plain data with cited figures, and what one step on it costs.

``device("H100-SXM")`` and ``model("Llama-3.1-8B")`` look up the figures that ship with Wavetank
(``devices.toml``, ``models.toml``); ``load_devices`` and ``load_models`` read your own.  A step-time model answers
"how long does the engine take for this batch?" and comes in three kinds: :class:`RooflineStepTime` from data sheets,
which :func:`calibrated_roofline` builds with what of them engines reach, :class:`TableStepTime` from measured layer
profiles, :class:`FittedStepTime` from step times that you measured.  ``kv_capacity_tokens`` says how many tokens of KV
cache fit beside the weights, ``power_table`` what a device draws.  A
:class:`~wavetank.platforms.fabric.Fabric` connects ranks, and says what messages and collectives take.

Names are loaded on first use; none of them but the step times needs numba.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wavetank.lazy_names import lazy_names

if TYPE_CHECKING:
    from wavetank.platforms.calibration import calibrated_roofline
    from wavetank.platforms.catalog import Device, Model, device, devices, load_devices, load_models, model, models
    from wavetank.platforms.machines import Machine, load_machines, machine
    from wavetank.platforms.memory import kv_capacity_tokens
    from wavetank.platforms.power import PowerTable, measured_power, power_table, power_tables
    from wavetank.platforms.step_time import FittedStepTime, RooflineStepTime, StepTime, step_ps
    from wavetank.platforms.table_step_time import TableStepTime

__getattr__, __dir__, __all__ = lazy_names(__name__)
