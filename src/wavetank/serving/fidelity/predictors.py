"""Ways to predict what a real engine does with a trace: from layer profiles, from data sheets, from tokens alone.

A predictor sees the arrivals, the lengths and the engine's settings of one recorded run, and what was measured in the
*other* runs.  Layer times come from profiles; what profiles lack is modelled by named terms that all engines of the
kind share, and their coefficients are fitted to the requests of the other runs, never to the run that is judged.  Where
there is no other run, coefficients that ship with the package count (:mod:`wavetank.serving.fidelity.shipped_fit`).

The terms are those of vLLM 0.19.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadFileError, BadValueError
from wavetank.platforms.catalog import Model, as_device, as_model
from wavetank.platforms.engine_overheads import EngineOverheads, vllm_graph_sizes
from wavetank.platforms.links import device_link
from wavetank.platforms.pipeline import PipelinedStepTime, pipelined
from wavetank.platforms.step_time import FittedStepTime, RooflineStepTime, StepTime
from wavetank.platforms.table_step_time import TableStepTime
from wavetank.serving.fidelity.recorded_runs import RecordedRun, latency_figures
from wavetank.serving.fidelity.shipped_fit import shipped_fit
from wavetank.serving.routing.vllm_default import VLLMDefault
from wavetank.settings import setting

if TYPE_CHECKING:
    from wavetank.platforms.links import Link
    from wavetank.platforms.roofline_fit import FittedEfficiencies
    from wavetank.serving.simulator.simulate import ServingRun
    from wavetank.workloads.requests import RequestTrace

_Floats = NDArray[np.float64]
Profile = TableStepTime | PipelinedStepTime

# Relative errors beyond this weigh less in the fit: a request that missed a step boundary by a hair is an outlier.
_ORDINARY_ERROR = 0.02
# The search begins with a grid, in the units below, and goes on from its best points.
_GRID = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0)
_BEST_POINTS = 3
_SIMPLEX = np.array([[0.0, 0.0], [0.2, 0.0], [0.0, 0.2]])
# Units in which the search sees the two coefficients, s.
_STEP_UNIT_S, _SEQUENCE_UNIT_S = 1e-3, 1e-5
# Batches that the tokens-only regression is fitted to: decode batches at this context, and single prompts.
_DECODE_BATCHES, _CONTEXT_TOKENS, _PROMPTS = (1, 2, 4, 8, 16, 32, 64, 128), 1024, (128, 256, 512, 1024, 2048)


@dataclass(frozen=True, kw_only=True, eq=False)
class Prediction:
    """What a predictor says about one run.

    Attributes
    ----------
    figures : mapping of str to (float, float)
        Figure of :func:`wavetank.serving.fidelity.recorded_runs.latency_figures` to what was measured and what is
        predicted.
    ttft_s, tpot_s, e2e_s : ndarray of float64, shape (requests,), or None
        Of each request, where the predictor knows.
    coefficients : mapping of str to float
        What was fitted to the other runs.
    """

    figures: Mapping[str, tuple[float, float]]
    ttft_s: _Floats | None = None
    tpot_s: _Floats | None = None
    e2e_s: _Floats | None = None
    coefficients: Mapping[str, float] = field(default_factory=dict)


def _compared(run: RecordedRun, served: ServingRun, coefficients: Mapping[str, float] | None = None) -> Prediction:
    predicted = latency_figures(run.requests, served.first_token_s, served.finish_s)
    return Prediction(
        figures={name: (measured, predicted[name]) for name, measured in run.figures.items()},
        ttft_s=served.ttft_s,
        tpot_s=served.tpot_s,
        e2e_s=served.e2e_s,
        coefficients=coefficients or {},
    )


def simulate_plainly(run: RecordedRun, step_time: StepTime) -> ServingRun:
    """Serve the run's requests with a step time and nothing else that real engines have.

    Parameters
    ----------
    run : RecordedRun
    step_time : StepTime
    """
    from wavetank.serving.simulator.simulate import simulate

    return simulate(run.requests, run.cluster(step_time, prefix_caching=False), VLLMDefault())


@dataclass(frozen=True, kw_only=True)
class EngineTerms:
    """Which of the things that real engines do are simulated."""

    schedules_ahead: bool = setting(True, says="Whether batches are decided one step ahead, if the engine does so")
    keeps_prefixes: bool = setting(
        True, says="Whether preempted requests find the remaining blocks of their prompts in the cache"
    )
    pads_graphs: bool = setting(True, says="Whether batches are padded to captured CUDA graphs")


def simulate_engine(run: RecordedRun, step_time: StepTime, terms: EngineTerms = EngineTerms()) -> ServingRun:
    """Serve the run's requests as its engine does: batches decided ahead, prefixes kept."""
    from wavetank.serving.simulator.simulate import simulate

    cluster = run.cluster(step_time, prefix_caching=terms.keeps_prefixes)
    cluster = replace(cluster, scheduled_ahead=terms.schedules_ahead and run.engine.schedules_ahead)
    return simulate(run.requests, cluster, VLLMDefault())


def fit_overheads(
    runs: Sequence[RecordedRun], profiles: Sequence[Profile], terms: EngineTerms = EngineTerms()
) -> EngineOverheads:
    """Fit the time per step and the time per sequence to recorded runs.

    Parameters
    ----------
    runs : sequence of RecordedRun
        At least one.
    profiles : sequence of TableStepTime or PipelinedStepTime
        The profile of each run's model on its hardware, without overheads.
    terms : EngineTerms
        What else is simulated.

    Returns
    -------
    EngineOverheads
        Without graph sizes, which differ between runs.  Robust least squares (soft L1) of the relative errors of every
        request's time per output token and end-to-end time, all runs weighing the same.

    Raises
    ------
    BadValueError
        If there is no run, or not one profile per run.
    """
    if not runs or len(runs) != len(profiles):
        raise BadValueError(
            "Overheads are fitted to one run or more, each with a profile.",
            given=f"{len(runs)} runs, {len(profiles)} profiles",
        )

    def served(run: RecordedRun, overheads: EngineOverheads) -> ServingRun:
        profile = profiles[next(i for i, each in enumerate(runs) if each is run)]
        return simulate_engine(run, _with(profile, overheads, run, terms), terms)

    return _fit_two(runs, served)


def _fit_two(
    runs: Sequence[RecordedRun], served_of: Callable[[RecordedRun, EngineOverheads], ServingRun]
) -> EngineOverheads:
    """Search the time per step and the time per sequence with which runs are served most nearly as they were."""
    from scipy.optimize import minimize

    def overheads_of(x: _Floats) -> EngineOverheads:
        return EngineOverheads(step_s=float(x[0]) * _STEP_UNIT_S, sequence_s=float(x[1]) * _SEQUENCE_UNIT_S)

    def loss(x: _Floats) -> float:
        total = 0.0
        for run in runs:
            served = served_of(run, overheads_of(x))
            relative = np.concatenate([served.tpot_s / run.tpot_s - 1, served.e2e_s / run.e2e_s - 1])
            relative = relative[~np.isnan(relative)]
            total += float(np.mean(np.sqrt(1 + (relative / _ORDINARY_ERROR) ** 2) - 1))
        return total

    # The simulator jumps where a request just makes or misses a step, so that slopes mean little: a simplex searches.
    points = sorted((np.array(point) for point in itertools.product(_GRID, repeat=2)), key=loss)
    found = [
        minimize(
            loss, start, method="Nelder-Mead", bounds=[(0.0, 1e3)] * 2,
            options={"xatol": 0.003, "fatol": 1e-4, "initial_simplex": start + _SIMPLEX},
        )
        for start in points[:_BEST_POINTS]
    ]  # fmt: skip
    return overheads_of(min(found, key=lambda each: float(each.fun)).x)


def _with(profile: Profile, overheads: EngineOverheads, run: RecordedRun, terms: EngineTerms) -> Profile:
    sizes = vllm_graph_sizes(run.engine.max_running) if terms.pads_graphs else ()
    return profile.with_overheads(replace(overheads, graph_sizes=sizes))


@lru_cache(maxsize=64)
def _profile(
    hardware: str,
    model: str | Model,
    tensor_parallel: int,
    expert_parallel: int,
    latency_s: float | None,
    efficiency: float,
    variation: float,
    link: Link | None = None,
) -> TableStepTime:
    return TableStepTime.from_vllm_profiles(
        hardware,
        model,
        tensor_parallel,
        expert_parallel=expert_parallel,
        overhead_s=0.0,
        link_efficiency=efficiency,
        collective_latency_s=latency_s,
        context_variation=variation,
        link=link,
    )


def profile_of(
    run: RecordedRun,
    latency_s: float | None = None,
    efficiency: float = 0.8,
    variation: float = 0.0,
    own_link: bool = True,
) -> Profile:
    """Return the layer profile of a run's model on its hardware, as its engine shares it out, without overheads.

    Parameters
    ----------
    run : RecordedRun
    latency_s : float, optional
        Start-up of a collective, s, where the run does not give its link; the device's own when left out.
    efficiency : float, default 0.8
        Share of the data sheet's link that a collective reaches, likewise.
    variation : float, default 0
        Of the contexts that decode together, see :func:`context_variation`.
    own_link : bool, default True
        Whether the link of the run's cluster file counts, where there is one.
    """
    engine = run.engine
    link = engine.link if own_link else None

    def of(model: str | Model) -> TableStepTime:
        return _profile(
            run.hardware, model, engine.tensor_parallel, engine.expert_parallel, latency_s, efficiency, variation, link
        )

    if engine.pipeline_parallel == 1:
        return of(run.model)
    between = link or device_link(as_device(run.hardware), efficiency, latency_s)
    staged = pipelined(
        of, as_model(run.model), engine.pipeline_parallel, micro_batch_tokens=engine.max_batched_tokens, link=between
    )
    return cast(PipelinedStepTime, staged)


def _staged(run: RecordedRun, roofline: RooflineStepTime) -> StepTime:
    """Return a roofline whose layers are shared out as the run's engine does."""
    engine = run.engine
    return pipelined(
        lambda model: replace(roofline, model=model),
        as_model(roofline.model),
        engine.pipeline_parallel,
        micro_batch_tokens=engine.max_batched_tokens,
        link=engine.link or device_link(as_device(run.hardware), roofline.link_efficiency),
        overhead_s=roofline.overhead_s,
    )


def context_variation(requests: RequestTrace) -> float:
    """Return the standard deviation of decoding requests' contexts, divided by their mean.

    Every request is taken to be anywhere between its first and its last token with equal chances.
    """
    middle = requests.prompt_tokens + requests.output_tokens / 2
    variance = float(middle.var() + (requests.output_tokens.astype(np.float64) ** 2).mean() / 12)
    return math.sqrt(variance) / float(middle.mean())


@lru_cache(maxsize=16)
def _fitted(runs: tuple[RecordedRun, ...], predictor: ProfilesWithOverheads) -> EngineOverheads:
    return fit_overheads(runs, [predictor.profile(run) for run in runs], predictor)


@dataclass(frozen=True, kw_only=True)
class ProfilesWithOverheads(EngineTerms):
    """Layer profiles plus named engine overheads, whose coefficients are fitted to the other runs."""

    own_link: bool = setting(
        True, says="Whether the link of a run's cluster_config.json counts; else that of the data sheet"
    )
    collective_latency_s: float = setting(
        30e-6, unit="s",
        says="Start-up time of a collective where the run gives no link: Vidur's two-device all-reduces on H100",
        low=0.0, high=1.0,
    )  # fmt: skip
    link_efficiency: float = setting(
        0.5,
        says="Share of the data sheet's bandwidth that a collective reaches, where the run gives no link: PCIe prompts "
        "of gpu-specs-and-estimates",
        low=1e-3,
        high=1.0,
    )
    fits: bool = setting(
        True,
        says="Whether time per step and per sequence are fitted to the other runs, or shipped where there are none; "
        "else they are zero",
    )
    unequal_contexts: bool = setting(
        True, says="Whether attention takes longer for contexts of different length, as was measured"
    )

    def profile(self, run: RecordedRun) -> Profile:
        """Return the layer profile that a run is predicted from, before overheads."""
        variation = context_variation(run.requests) if self.unequal_contexts else 0.0
        return profile_of(run, self.collective_latency_s, self.link_efficiency, variation, self.own_link)

    def predict(self, run: RecordedRun, others: Sequence[RecordedRun]) -> Prediction:
        """Return what the simulated engine does with the run's requests.

        Parameters
        ----------
        run : RecordedRun
        others : sequence of RecordedRun
            What the coefficients are fitted to; without any, those that ship with the package count.
        """
        overheads = EngineOverheads()
        if self.fits:
            overheads = _fitted(tuple(others), self) if others else shipped_fit().overheads
        served = simulate_engine(run, _with(self.profile(run), overheads, run, self), self)
        return _compared(run, served, {"step_s": overheads.step_s, "sequence_s": overheads.sequence_s})


@dataclass(frozen=True, kw_only=True)
class ProfilesOnly:
    """Layer profiles added up; the engine keeps to its limits and costs nothing."""

    def predict(self, run: RecordedRun, others: Sequence[RecordedRun]) -> Prediction:
        """Return what the simulated engine does with the run's requests; other runs are not looked at."""
        return _compared(run, simulate_plainly(run, profile_of(run)))

    def step_time(self, device: str, model: str, tensor_parallel: int) -> StepTime | None:
        """Return the step time of a model on a device; None where it was not profiled."""
        try:
            return _profile(device, model, tensor_parallel, 1, None, 0.8, 0.0)
        except BadFileError:
            return None


@dataclass(frozen=True, kw_only=True)
class RooflineOnly:
    """Data-sheet figures alone: nothing was measured."""

    def predict(self, run: RecordedRun, others: Sequence[RecordedRun]) -> Prediction:
        """Return what the simulated engine does with the run's requests; other runs are not looked at."""
        engine = run.engine
        step_time = self.step_time(run.hardware, run.model, engine.tensor_parallel, engine.expert_parallel)
        return _compared(run, simulate_plainly(run, _staged(run, replace(step_time, link=engine.link))))

    def step_time(self, device: str, model: str, tensor_parallel: int, expert_parallel: int = 1) -> RooflineStepTime:
        """Return the roofline of a model on a device, with its default efficiencies."""
        return RooflineStepTime(
            device=device, model=model, tensor_parallel=tensor_parallel, expert_parallel=expert_parallel
        )


@lru_cache(maxsize=8)
def _efficiencies(without: str) -> FittedEfficiencies:
    """Fit a roofline to everything measured but one device."""
    from wavetank.platforms.roofline_fit import fit_roofline, measured_steps

    return fit_roofline([each for each in measured_steps() if each.roofline.device != without])


@lru_cache(maxsize=16)
def fit_roofline_overheads(
    runs: tuple[RecordedRun, ...], predictor: CalibratedRoofline, without: str = ""
) -> EngineOverheads:
    """Fit the time per step and the time per sequence of the calibrated roofline to recorded runs.

    Parameters
    ----------
    runs : tuple of RecordedRun
        At least one.
    predictor : CalibratedRoofline
    without : str
        A device of which no measured layer may count.
    """

    def served(run: RecordedRun, overheads: EngineOverheads) -> ServingRun:
        bare = predictor.roofline(run, without)
        fitted = replace(bare, overhead_s=overheads.step_s, sequence_s=overheads.sequence_s)
        return simulate_plainly(run, _staged(run, fitted))

    return _fit_two(runs, served)


@dataclass(frozen=True, kw_only=True)
class CalibratedRoofline:
    """The roofline that routers are simulated with: shares of the data sheet fitted to layers, overheads to runs."""

    knows_device: bool = setting(
        True, says="Whether layers and runs of the run's own device count; else only those of other devices do"
    )

    def predict(self, run: RecordedRun, others: Sequence[RecordedRun]) -> Prediction:
        """Return what the simulated engine does with the run's requests.

        Parameters
        ----------
        run : RecordedRun
        others : sequence of RecordedRun
            What the overheads are fitted to; without any, those that ship with the package count.
        """
        from wavetank.platforms.calibration import calibration

        without = "" if self.knows_device else run.hardware
        fitted_to = tuple(other for other in others if other.hardware != without)
        if fitted_to:
            overheads = fit_roofline_overheads(fitted_to, self, without)
        else:
            shipped = calibration().shared
            overheads = EngineOverheads(step_s=shipped["overhead_s"], sequence_s=shipped["sequence_s"])
        step_time = replace(self.roofline(run, without), overhead_s=overheads.step_s, sequence_s=overheads.sequence_s)
        return _compared(
            run,
            simulate_plainly(run, _staged(run, step_time)),
            {"step_s": overheads.step_s, "sequence_s": overheads.sequence_s},
        )

    def roofline(self, run: RecordedRun, without: str = "") -> RooflineStepTime:
        """Return the calibrated roofline of a run's model on its hardware, its link where the run has one.

        Parameters
        ----------
        run : RecordedRun
        without : str
            A device of which no measurement may count; empty: the shares that ship.
        """
        from wavetank.platforms.calibration import calibrated_roofline

        engine = run.engine
        found = calibrated_roofline(
            run.hardware, run.model, engine.tensor_parallel, expert_parallel=engine.expert_parallel
        )
        if without:
            found = replace(found, **_efficiencies(without).terms(""))  # type: ignore[arg-type]
        return replace(found, link=engine.link)

    def step_time(self, device: str, model: str, tensor_parallel: int) -> StepTime | None:
        """Return the step time of a model on a device, with the figures that ship."""
        from wavetank.platforms.calibration import calibrated_roofline

        return calibrated_roofline(device, model, tensor_parallel) if self.knows_device else None


@dataclass(frozen=True, kw_only=True)
class LinearTokens:
    """A straight line in the tokens of a step, fitted to the same profile: what is lost without attention and rows."""

    def predict(self, run: RecordedRun, others: Sequence[RecordedRun]) -> Prediction:
        """Return what the simulated engine does with the run's requests; other runs are not looked at."""
        profile = profile_of(run)
        tokens = np.array((*_DECODE_BATCHES, *_PROMPTS), np.float64)
        seconds = np.array(
            [profile.seconds(n, n * _CONTEXT_TOKENS) for n in _DECODE_BATCHES]
            + [profile.seconds(0, 0, n, n * (n + 1) // 2) for n in _PROMPTS]
        )
        # Relative errors count, as in the figures that are judged.
        slope, intercept = np.polyfit(tokens, seconds, 1, w=1 / seconds)
        each_s, fixed_s = max(0.0, float(slope)), max(0.0, float(intercept))
        step_time = FittedStepTime(overhead_s=fixed_s, per_request_s=each_s, per_prefill_token_s=each_s)
        return _compared(run, simulate_plainly(run, step_time), {"step_s": fixed_s, "token_s": each_s})


@dataclass(frozen=True, kw_only=True)
class PublishedPrediction:
    """What LLMServingSim 2.0 published for the same runs, by its own definitions; nothing is simulated here."""

    def predict(self, run: RecordedRun, others: Sequence[RecordedRun]) -> Prediction:
        """Return the published figures; empty where none were published."""
        return Prediction(figures=run.published)
