"""What of their data sheets devices give to an engine: fitted figures that ship with the package, by device family.

A roofline of data-sheet figures is right about what limits a step and wrong by a third about how long it takes.
:func:`calibrated_roofline` builds one whose shares of arithmetic rate and bandwidth were fitted to measured layers and
whose overheads were fitted to recorded runs (``calibration.toml``).  A device of a family that was never measured is
given the families' geometric means, and :func:`said_of` says so.

Differs from a measurement of your own device: a family's share is taken for all of its devices.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wavetank.platforms.catalog import Device, Model, as_device

if TYPE_CHECKING:
    from wavetank.platforms.step_time import RooflineStepTime

_FORMAT = 1


@dataclass(frozen=True, kw_only=True, eq=False)
class Calibration:
    """Fitted fields of :class:`~wavetank.platforms.step_time.RooflineStepTime`.

    Attributes
    ----------
    shared : mapping of str to float
        Fields that hold for every device.
    pooled : mapping of str to float
        Fields of devices of a family that was not measured.
    families : mapping of str to mapping of str to float
        Fields by family; what one lacks is pooled.
    devices : mapping of str to str
        Device to family.
    measured : mapping of str to str
        Family to what was measured of it, in words.
    fitted_to : mapping of str to str
        Which figure came from what, in words.
    """

    shared: Mapping[str, float]
    pooled: Mapping[str, float]
    families: Mapping[str, Mapping[str, float]]
    devices: Mapping[str, str]
    measured: Mapping[str, str]
    fitted_to: Mapping[str, str]

    def terms(self, device: str) -> dict[str, float]:
        """Return the fields for a device."""
        return {**self.shared, **self.pooled, **self.families.get(self.devices.get(device, ""), {})}


@cache
def calibration() -> Calibration:
    """Return what ships with the package."""
    found: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    if found["format"] != _FORMAT:
        raise ValueError("calibration.toml is of another format than this code")
    tables = found["families"]
    return Calibration(
        shared=found["shared"],
        pooled=found["pooled"],
        families={
            name: {key: value for key, value in table.items() if isinstance(value, float)}
            for name, table in tables.items()
        },
        devices={device: name for name, table in tables.items() for device in table["devices"]},
        measured={name: table["measured"] for name, table in tables.items()},
        fitted_to=found["fitted_to"],
    )


def family_of(device: str | Device) -> str:
    """Return the family of a device: itself where it is in none."""
    name = as_device(device).name
    return calibration().devices.get(name, name)


def calibrated_roofline(
    device: str | Device,
    model: str | Model,
    tensor_parallel: int = 1,
    *,
    expert_parallel: int = 1,
) -> RooflineStepTime:
    """Return a roofline with the fitted figures of the device's family.

    Parameters
    ----------
    device : str or Device
        The accelerator; one that does not ship is given the pooled figures.
    model : str or Model
        The language model.
    tensor_parallel : int, default 1
        Devices that share every layer.
    expert_parallel : int, default 1
        Data-parallel workers that share the experts.

    Examples
    --------
    >>> from wavetank.platforms import RooflineStepTime
    >>> step = calibrated_roofline("H100-SXM", "Llama-3.1-8B")
    >>> step.flops_efficiency == RooflineStepTime(device="H100-SXM", model="Llama-3.1-8B").flops_efficiency
    False
    """
    from wavetank.platforms.step_time import RooflineStepTime

    return RooflineStepTime(
        device=device,
        model=model,
        tensor_parallel=tensor_parallel,
        expert_parallel=expert_parallel,
        **calibration().terms(as_device(device).name),  # type: ignore[arg-type]
    )


def said_of(device: str | Device) -> str:
    """Return in two sentences where the figures of a device come from."""
    fitted, name = calibration(), as_device(device).name
    family = fitted.devices.get(name)
    shared = f"Overheads of a step and of a sequence were fitted to {fitted.fitted_to['overheads']}."
    if family is None:
        return (
            f"Nothing was measured of {name} or of its family: shares of its data sheet are the geometric means over "
            f"{', '.join(fitted.families)}. {shared}"
        )
    lacking = (
        ""
        if set(fitted.pooled) <= set(fitted.families[family])
        else "; the share of the bandwidth that the KV cache is read with is that of the other families"
    )
    return f"Shares of the data sheet of {name} were fitted to {fitted.measured[family]}{lacking}. {shared}"
