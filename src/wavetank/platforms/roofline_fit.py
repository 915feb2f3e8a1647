"""The efficiencies of a roofline, fitted to measured layers: what of a data sheet a device gives to an engine.

Of each device family the fit finds the shares of arithmetic rate and memory bandwidth that are reached, the latter for
weights and for the KV cache apart.  What is of the kernels rather than of the device is one figure for all families:
how far arithmetic and traffic overlap, the launches of a layer, and the rate of experts' small matrices.

Whole layers with attention come from data set ``vllm-layer-profiles``, linear layers of data-centre devices from
``vidur-profiles``; of these the bandwidth of the KV cache is not known, and that of the other families counts.  What
ships (:mod:`wavetank.platforms.calibration`) was made with :func:`fit_roofline` and recorded runs.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from wavetank.errors import BadFileError, BadValueError
from wavetank.platforms.calibration import family_of
from wavetank.platforms.catalog import models
from wavetank.platforms.step_time import PS_PER_S, RooflineStepTime
from wavetank.platforms.table_step_time import TableStepTime, vidur_linear_layers

_Array = npt.NDArray[np.float64]

# Decode batches by sequences and context, prompts, and both together: what the fitted and the profiled step are asked.
_DECODES, _CONTEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256), (256, 1024, 4096)
_PROMPTS, _MIXED = (64, 128, 256, 512, 1024, 2048), ((8, 32, 96), (512, 1024, 2048), (128, 256, 512, 1024, 1900))
_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
BATCHES: tuple[tuple[int, int, int, int], ...] = (
    *((n, n * context, 0, 0) for n, context in itertools.product(_DECODES, _CONTEXTS)),
    *((0, 0, n, n * (n + 1) // 2) for n in _PROMPTS),
    *((n, n * context, p, p * (p + 1) // 2) for n, context, p in itertools.product(*_MIXED)),
)
"""Batches that whole profiles are compared at: R, C, P and S of each."""

_PROFILED = (
    ("RTX4090", "Llama-3.1-8B"), ("RTXPRO6000", "Llama-3.1-8B"), ("RTXPRO6000", "Qwen3-30B-A3B"),
    ("RTXPRO6000", "Qwen3-32B"),
)  # fmt: skip
_LINEAR = ("H100-SXM", "A100-SXM-80GB")
# Relative errors beyond this weigh less: a kernel that was chosen badly for one size is no property of the device.
_ORDINARY_ERROR = 0.05
_SHARED = ("overlap", "layer_s", "expert_efficiency")
_OF_FAMILY = ("flops_efficiency", "bandwidth_efficiency", "kv_bandwidth_efficiency")
_FIRST = {
    "overlap": 0.7, "layer_s": 5e-6, "expert_efficiency": 0.5,
    "flops_efficiency": 0.7, "bandwidth_efficiency": 0.8, "kv_bandwidth_efficiency": 0.8,
}  # fmt: skip
_LEAST, _MOST = {"layer_s": 1e-8}, {"layer_s": 6e-5}


@dataclass(frozen=True, kw_only=True, eq=False)
class MeasuredSteps:
    """Step times that a roofline is fitted to.

    Attributes
    ----------
    roofline : RooflineStepTime
        Device, model and how they are shared; its efficiencies are not looked at.
    family : str
    seconds : ndarray of float64
        One for each of :data:`BATCHES`, or for each of ``tokens`` where linear layers alone were measured.
    tokens : tuple of int
        Empty where whole layers were measured.
    """

    roofline: RooflineStepTime
    family: str
    seconds: _Array
    tokens: tuple[int, ...] = ()

    @cached_property
    def name(self) -> str:
        """Device and model."""
        return f"{self.roofline.device} {self.roofline.model}"

    def errors(self, terms: Mapping[str, float]) -> _Array:
        """Return the logarithms of modelled over measured times for these fields, without an engine's overheads."""
        modelled = replace(self.roofline, **{**terms, "overhead_s": 0.0, "sequence_s": 0.0})  # type: ignore[arg-type]
        if self.tokens:
            return np.log(np.array([modelled.linear_layers_s(n) for n in self.tokens]) / self.seconds)
        function, table, slope = modelled.function, modelled.table, modelled.context_slope_ps
        found = [function(R, 0, P, S, table) + slope * C for R, C, P, S in BATCHES]
        return np.log(np.array(found) / PS_PER_S / self.seconds)


def whole_layers(device: str, model: str) -> MeasuredSteps:
    """Return the steps of a profile of whole layers, without what an engine adds.

    Parameters
    ----------
    device, model : str
        Of data set ``vllm-layer-profiles``.
    """
    profile = TableStepTime.from_vllm_profiles(device, model, overhead_s=0.0)
    return MeasuredSteps(
        roofline=RooflineStepTime(device=device, model=model),
        family=family_of(device),
        seconds=np.array([profile.seconds(*batch) for batch in BATCHES]),
    )


def linear_layers(device: str, model: str, tensor_parallel: int = 1) -> MeasuredSteps:
    """Return the times of a profile of linear layers.

    Parameters
    ----------
    device, model : str
        Of data set ``vidur-profiles``, or of a model of the same shape.
    tensor_parallel : int, default 1
    """
    roofline = RooflineStepTime(device=device, model=model, tensor_parallel=tensor_parallel)
    axis, seconds, _ = vidur_linear_layers(roofline)
    return MeasuredSteps(
        roofline=roofline, family=family_of(device), seconds=np.interp(_TOKENS, axis, seconds), tokens=_TOKENS
    )


def measured_steps() -> tuple[MeasuredSteps, ...]:
    """Return everything that the shipped efficiencies are fitted to.

    Raises
    ------
    DataUnavailableError
        If one of the data sets is not on this machine.
    """
    found = {(device, model): whole_layers(device, model) for device, model in _PROFILED}
    for device, name in itertools.product(_LINEAR, models()):
        try:
            each = linear_layers(device, name)
        except BadFileError:
            continue  # no model of this shape was profiled on this device
        # Models of one shape have one profile.
        found[device, str(each.seconds)] = each
    return tuple(found.values())


@dataclass(frozen=True, kw_only=True)
class FittedEfficiencies:
    """What :func:`fit_roofline` finds.

    Attributes
    ----------
    shared : mapping of str to float
        Fields of :class:`~wavetank.platforms.step_time.RooflineStepTime` that are the same for all families.
    families : mapping of str to mapping of str to float
        Fields by family.
    """

    shared: Mapping[str, float]
    families: Mapping[str, Mapping[str, float]]

    @property
    def pooled(self) -> dict[str, float]:
        """Fields of a device of no measured family: geometric means over the families."""
        return {
            name: statistics.geometric_mean([each[name] for each in self.families.values() if name in each])
            for name in _OF_FAMILY
        }

    def terms(self, family: str) -> dict[str, float]:
        """Return the fields for a device of a family, measured or not."""
        return {**self.shared, **self.pooled, **self.families.get(family, {})}


def fit_roofline(measured: Sequence[MeasuredSteps]) -> FittedEfficiencies:
    """Fit efficiencies to measured steps.

    Parameters
    ----------
    measured : sequence of MeasuredSteps
        Of at least one family with whole layers.

    Returns
    -------
    FittedEfficiencies
        Robust least squares (soft L1) of the logarithms of modelled over measured times.

    Raises
    ------
    BadValueError
        If no family has whole layers.
    """
    from scipy.optimize import least_squares

    whole = {each.family for each in measured if not each.tokens}
    if not whole:
        raise BadValueError(
            "Efficiencies are fitted to whole layers of one device or more.", given=[each.name for each in measured]
        )
    families = sorted({each.family for each in measured})
    places = [("", name) for name in _SHARED] + [
        (family, name) for family in families for name in _OF_FAMILY if family in whole or not name.startswith("kv_")
    ]

    def found(x: _Array) -> FittedEfficiencies:
        values = dict(zip(places, np.exp(x).tolist(), strict=True))
        return FittedEfficiencies(
            shared={name: values["", name] for name in _SHARED},
            families={family: {name: v for (f, name), v in values.items() if f == family} for family in families},
        )

    first = np.log([_FIRST[name] for _, name in places])

    def residuals(x: _Array) -> _Array:
        fitted = found(x)
        # The last part holds a term that nothing was measured of where it is.
        return np.concatenate([*(each.errors(fitted.terms(each.family)) for each in measured), 1e-3 * (x - first)])

    low = np.log([_LEAST.get(name, 0.02) for _, name in places])
    high = np.log([_MOST.get(name, 1.0) for _, name in places])
    # A wide step for the derivatives: step times are whole picoseconds, and so is a token's share of one.
    best = least_squares(residuals, first, bounds=(low, high), loss="soft_l1", f_scale=_ORDINARY_ERROR, diff_step=1e-3)
    return found(best.x)
