"""Study ``slow-ranks``: who notices a slow GPU, and who takes long sequences for one."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from wavetank.errors import BadValueError
from wavetank.settings import setting
from wavetank.sim.rng import stream
from wavetank.study.study import Chart, Measurements, Metric, Study
from wavetank.training.context.workload import DATA, FILE, document_classes, sequence_lengths
from wavetank.training.reshaping.interface import Floats, even_layers
from wavetank.training.reshaping.step_watch import Detector, Watch
from wavetank.training.reshaping.telemetry import Cost, Noise, Observation, observe
from wavetank.workloads import datasets

_MICROBATCHES = 4096  # of each mix, from which steps are drawn
_PERIODS = 4  # of a healthy run: as at first, drifting, another mix, other layers


@dataclass
class Watched:
    """What a detector has done on a run of steps.

    Parameters
    ----------
    steps : int
    false_alarms : int
        Validations that found nothing.
    lost_s : float
        In validations, and because of groups that were slow and not yet found.
    healthy_s : float
        What all steps would have taken without slow groups.
    errors : list of float
        Of predicted healthy steps, |predicted / observed - 1|.
    delays : dict
        By loss of speed: steps from the onset of each fault to its alarm, -1 for a missed one.
    named : list of bool
        Of each alarm that was right, whether it named the group.
    """

    steps: int = 0
    false_alarms: int = 0
    lost_s: float = 0.0
    healthy_s: float = 0.0
    errors: list[float] = field(default_factory=list)
    delays: dict[float, list[int]] = field(default_factory=dict)
    named: list[bool] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class SlowRanks(Study):
    """A job trains on documents of very different lengths, packed into micro-batches of equally many tokens.  In a long
    healthy run the mix of lengths drifts, changes at once, and layers move; in another one groups become slow, one
    after another.  Every alarm stops the job for a validation, which finds the slow group if there is one.  Rivals have
    the thresholds that cost least in rehearsals.
    """

    name: ClassVar[str] = "slow-ranks"
    baseline: ClassVar[str] = "raw-step-time"
    primary: ClassVar[str] = "lost_share"
    secondary: ClassVar[tuple[str, ...]] = ("false_alarms", "missed_share", "delay_steps")
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("lost_share", "", "lower", "simulated",
               "time in validations and in waiting for slow groups that were not found yet / time of the same steps "
               "without either, healthy run and run with faults together", words="lost time"),
        Metric("false_alarms", "", "lower", "counted",
               "validations that found nothing, per 10,000 steps of the healthy run", words="false alarms"),
        Metric("missed_share", "", "lower", "counted",
               "share of slowdowns without an alarm in fault_steps steps; all sizes", words="missed slowdowns"),
        Metric("missed_at", "", "lower", "counted", "missed slowdowns by size", table=False,
               words="missed slowdowns"),
        Metric("delay_steps", "steps", "lower", "counted", "mean steps from onset to alarm, of those that were found",
               words="delay"),
        Metric("delay_at_steps", "steps", "lower", "counted", "delay by size", table=False, words="delay"),
        Metric("named_share", "", "higher", "counted", "share of the right alarms that named the slow group",
               words="slow groups named"),
        Metric("step_mape", "", "lower", "simulated",
               "mean of |predicted / observed step - 1| over the healthy run; of detectors that predict",
               words="error of predicted steps"),
        Metric("threshold", "", "", "counted", "threshold that was best in rehearsals; 0 where there is none"),
    )  # fmt: skip
    charts: ClassVar[tuple[Chart, ...]] = (
        Chart("bars", "False alarms in 10,000 healthy steps", y="false_alarms", says="None is best."),
        Chart("bars", "Time lost to alarms and to slow groups", y="lost_share", log="y", says="Shorter is better."),
        Chart("sweep", "Missed slowdowns by size", y="missed_at", by="loss", says="Lost share of a GPU's speed."),
    )  # fmt: skip

    stages: int = setting(8, unit="stages", says="Stages of a pipeline", low=1, high=64)
    replicas: int = setting(4, unit="replicas", says="Data-parallel replicas", low=1, high=64)
    layers: int = setting(32, unit="layers", says="Layers of the model", low=2, high=1000)
    share: int = setting(8, unit="microbatches", says="Micro-batches of each replica per step", low=1, high=256)
    tokens: int = setting(32_768, unit="tokens", says="Tokens of a micro-batch", low=64, high=1 << 22)
    longest: int = setting(32_768, unit="tokens", says="Longest document", low=64, high=1 << 22)
    lengths: str = setting("documents", choices=("documents", "lognormal", "equal"), says="Lengths of documents")
    square_tokens: float = setting(
        24_576.0, unit="tokens", says="Length at which a layer's attention costs as much as all its other products",
        low=1.0, high=1e9,
    )  # fmt: skip
    layer_ms: float = setting(20.0, unit="ms", says="Time of a layer for a micro-batch without attention", low=0.001,
                              high=1e6)  # fmt: skip
    noise: float = setting(0.02, says="Spread of the time of a pass, as a share of it", low=0.0, high=1.0)
    spikes: float = setting(0.005, says="Share of steps that something else delays, by up to a half", low=0.0, high=1.0)
    steps: int = setting(10_000, unit="steps", says="Steps of the healthy run", low=200, high=10_000_000)
    faults: int = setting(6, says="Slowdowns of each size", low=1, high=10_000)
    losses: tuple[float, ...] = setting((0.1, 0.25, 0.5), says="Shares of its speed that a group loses", low=0.001,
                                        high=0.99)  # fmt: skip
    fault_steps: int = setting(100, unit="steps", says="Steps in which a slowdown can be found", low=5,
                               high=100_000)  # fmt: skip
    lasting_steps: int = setting(2000, unit="steps", says="Steps of a slowdown that is not found; those after "
                                 "fault_steps cost what these do on average", low=5, high=10**9)  # fmt: skip
    quiet_steps: int = setting(100, unit="steps", says="Healthy steps before each slowdown", low=30, high=100_000)
    validate_s: float = setting(3.0, unit="s", says="Standstill of a validation", low=0.0, high=1e6)
    rehearsal_steps: int = setting(1500, unit="steps", says="Healthy steps of a rehearsal", low=100, high=1_000_000)

    def check(self) -> None:
        """Refuse pipelines without layers to move."""
        if self.layers < 2 * self.stages and self.stages > 1:
            raise BadValueError("Layers move between stages.", given=f"{self.layers} layers on {self.stages} stages",
                                allowed="two or more on each", where=f"study {self.name}")  # fmt: skip

    def data(self) -> Mapping[str, str]:
        """Return the checksum of the documents' lengths."""
        if self.lengths != "documents" or document_classes() is None:
            return {}
        return {DATA: next(file.sha256 for file in datasets.entry(DATA).files if file.path == FILE)}

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        source = "drawn, as the data set seq-lengths is absent" if document_classes() is None else "counted"
        return (
            f"Passes vary by {self.noise:.0%} and {self.spikes:.1%} of the steps are delayed by something else; "
            f"lengths of documents are {source if self.lengths == 'documents' else self.lengths}.",
            "A validation finds a slow group whenever there is one; it costs all detectors the same.",
        )

    def cost(self) -> Cost:
        """Return what a layer costs."""
        token_s = self.layer_ms / 1e3 / self.tokens
        return Cost(token_s=0.95 * token_s, square_s=token_s / self.square_tokens, batch_s=0.05 * self.layer_ms / 1e3)

    def measure(self, system: Any, seed: int) -> Measurements:
        """Watch a healthy run and one with slow groups, with the best threshold of rehearsals."""
        found = Measurements()
        threshold = self.chosen(system, seed)
        healthy = self.healthy(system, threshold, seed, "run", self.steps)
        faulty = self.faulty(system, threshold, seed, "run", self.faults)
        whole_s = healthy.healthy_s + faulty.healthy_s
        found.put("lost_share", (healthy.lost_s + faulty.lost_s) / whole_s)
        found.put("false_alarms", healthy.false_alarms * 10_000 / healthy.steps)
        every = [delay for delays in faulty.delays.values() for delay in delays]
        for metric, at, delays in [
            ("", {}, every), *(("_at", {"loss": loss}, faulty.delays[loss]) for loss in self.losses)
        ]:  # fmt: skip
            seen = [delay for delay in delays if delay >= 0]
            found.put(f"missed{metric or '_share'}", 1 - len(seen) / len(delays), **at)
            if seen:
                found.put(f"delay{metric}_steps", float(np.mean(seen)), **at)
        if faulty.named:
            found.put("named_share", float(np.mean(faulty.named)))
        if healthy.errors:
            found.put("step_mape", float(np.mean(healthy.errors)))
        found.put("threshold", threshold)
        return found

    def chosen(self, system: Detector, seed: int) -> float:
        """Return the threshold that costs least in rehearsals, 0 where nothing is to be chosen.

        Parameters
        ----------
        system : Detector
        seed : int
        """
        if len(system.thresholds) < 2:
            return system.thresholds[0] if system.thresholds else 0.0

        def lost(threshold: float) -> float:
            runs = (
                self.healthy(system, threshold, seed, "rehearsal", self.rehearsal_steps),
                self.faulty(system, threshold, seed, "rehearsal", 1),
            )
            # As many steps of each kind as in the run itself.
            weights = self.steps / runs[0].steps, self.faults
            return sum(run.lost_s * weight for run, weight in zip(runs, weights, strict=True))

        return min(system.thresholds, key=lost)

    def healthy(self, system: Detector, threshold: float, seed: int, purpose: str, steps: int) -> Watched:
        """Return what a detector does on steps in which nothing is slow, while lengths and layers change.

        Parameters
        ----------
        system : Detector
        threshold : float
        seed : int
        purpose : str
        steps : int
        """
        found, watch = Watched(), system.start(threshold, self._send_s)
        for seen, whole_s in self.healthy_steps(seed, purpose, steps):
            found.steps += 1
            found.healthy_s += whole_s
            alarm = watch.step(seen)
            predicted = getattr(watch, "predicted_s", float("nan"))
            if np.isfinite(predicted):
                found.errors.append(abs(predicted / seen.step_s - 1))
            if alarm is not None:
                found.false_alarms += 1
                found.lost_s += self.validate_s
                watch.reset()
        return found

    def faulty(self, system: Detector, threshold: float, seed: int, purpose: str, faults: int) -> Watched:
        """Return what a detector does while groups become slow, ``faults`` of each size, until it finds them.

        Parameters
        ----------
        system : Detector
        threshold : float
        seed : int
        purpose : str
        faults : int
        """
        found, watch = Watched(), system.start(threshold, self._send_s)
        for loss, place, quiet, slow in self.fault_runs(seed, purpose, faults):
            for seen, whole_s in quiet:
                self._take(found, watch, seen, whole_s)
            delay, before_s = -1, found.lost_s
            for number, (seen, whole_s) in enumerate(slow):
                found.steps += 1
                found.healthy_s += whole_s
                found.lost_s += seen.step_s - whole_s
                alarm = watch.step(seen)
                if alarm is not None:
                    delay = number + 1
                    found.lost_s += self.validate_s
                    found.named.append((alarm.replica, alarm.stage) == place)
                    break
            else:
                found.lost_s += (found.lost_s - before_s) * (max(self.lasting_steps, len(slow)) / len(slow) - 1)
            found.delays.setdefault(loss, []).append(delay)
            watch.reset()
        return found

    def _take(self, found: Watched, watch: Watch, seen: Observation, whole_s: float) -> None:
        found.steps += 1
        found.healthy_s += whole_s
        if watch.step(seen) is not None:
            found.false_alarms += 1
            found.lost_s += self.validate_s
            watch.reset()

    @property
    def _send_s(self) -> float:
        # Activations of a micro-batch, 8192 numbers of two bytes for each token, at 25 GB/s.
        return self.tokens * 16_384 / 25e9

    def healthy_steps(self, seed: int, purpose: str, steps: int) -> list[Step]:
        """Return steps in which nothing is slow, and what each takes.

        A quarter has one mix of lengths; in one it drifts to longer ones, one has short ones alone, and in the last one
        a layer has moved.

        Parameters
        ----------
        seed : int
        purpose : str
        steps : int
        """
        return _healthy_steps(self, seed, purpose, steps)

    def fault_runs(self, seed: int, purpose: str, faults: int) -> list[FaultRun]:
        """Return slowdowns: the loss of speed, the group, healthy steps before, and steps from the onset on.

        Parameters
        ----------
        seed : int
        purpose : str
        faults : int
            Of each size.
        """
        return _fault_runs(self, seed, purpose, faults)

    def layer_counts(self, moved: bool) -> tuple[int, ...]:
        """Return the layers of each stage: even, or one moved from the first stage to the last."""
        counts = list(even_layers(self.layers, self.stages))
        if moved and self.stages > 1:
            counts[0] -= 1
            counts[-1] += 1
        return tuple(counts)

    def drawn(self, long_share: float, pools: Pools, draws: np.random.Generator) -> tuple[Floats, Floats]:
        """Return tokens and squares of the micro-batches of a step.

        Parameters
        ----------
        long_share : float
            Probability that a micro-batch may hold documents of any length.
        pools : (float64 array, float64 array)
            Sums of squares of micro-batches with short documents, and with all.
        draws : numpy.random.Generator
        """
        shape = self.replicas, self.share
        chosen, place = draws.random(shape), draws.random(shape)
        short, every = (pool[(place * pool.size).astype(np.int64)] for pool in pools)
        squares = np.where(chosen < long_share, every, short)
        return np.full(shape, float(self.tokens)), squares

    def observed(
        self, lengths: tuple[Floats, Floats], moved: bool, slow: Floats, draws: np.random.Generator
    ) -> Observation:
        """Return what is seen of a step.

        Parameters
        ----------
        lengths : (float64 array, float64 array)
        moved : bool
        slow : float64 array (replicas, stages)
            By which factor each group is slower.
        draws : numpy.random.Generator
        """
        rest_s = 2 * self.layer_ms / 1e3
        return observe(self.cost(), self.layer_counts(moved), lengths, slow, self._send_s, rest_s,
                       Noise(self.noise, self.spikes), draws)  # fmt: skip


Step = tuple[Observation, float]
FaultRun = tuple[float, tuple[int, int], list[Step], list[Step]]
Pools = tuple[Floats, Floats]


@functools.lru_cache(maxsize=8)
def _pools(study: SlowRanks, seed: int, purpose: str) -> Pools:
    """Sums of squared lengths of packed micro-batches: with documents up to an eighth of the longest, and with all."""
    found = []
    for name, longest in (("short", max(1, study.longest // 8)), ("all", study.longest)):
        number = int(stream(seed, "documents", purpose, name).integers(2**31))
        lengths = sequence_lengths(
            study.tokens * _MICROBATCHES, number, mix=study.lengths, longest=longest, median=1500.0, sigma=1.8
        )
        # A document that reaches over the end of a micro-batch is cut there.
        cuts = np.arange(1, _MICROBATCHES + 1) * study.tokens
        ends = np.unique(np.concatenate([np.cumsum(lengths), cuts]))
        pieces = np.diff(np.r_[0, ends]).astype(np.float64)
        found.append(np.add.reduceat(pieces**2, np.searchsorted(ends, np.r_[0, cuts[:-1]], side="right")))
    return found[0], found[1]


@functools.lru_cache(maxsize=4)
def _healthy_steps(study: SlowRanks, seed: int, purpose: str, steps: int) -> list[Step]:
    draws, pools = stream(seed, "healthy steps", purpose), _pools(study, seed, purpose)
    found = []
    for number in range(steps):
        period, at = divmod(number * _PERIODS / steps, 1.0)
        long_share = (0.5, 0.2 + 0.8 * at, 0.0, 0.5)[int(period)]
        lengths = study.drawn(long_share, pools, draws)
        seen = study.observed(lengths, period == _PERIODS - 1, np.ones((study.replicas, study.stages)), draws)
        found.append((seen, seen.step_s))
    return found


@functools.lru_cache(maxsize=4)
def _fault_runs(study: SlowRanks, seed: int, purpose: str, faults: int) -> list[FaultRun]:
    draws, pools = stream(seed, "slow groups", purpose), _pools(study, seed, purpose)
    well = np.ones((study.replicas, study.stages))
    found: list[FaultRun] = []
    for loss in draws.permutation(np.repeat(study.losses, faults)).tolist():
        place = int(draws.integers(study.replicas)), int(draws.integers(study.stages))
        slow = well.copy()
        slow[place] = 1 / (1 - loss)
        quiet, sick = [], []
        for number in range(study.quiet_steps + study.fault_steps):
            lengths, key = study.drawn(0.5, pools, draws), int(draws.integers(2**31))
            seen = study.observed(lengths, False, well, stream(key, "noise"))
            if number < study.quiet_steps:
                quiet.append((seen, seen.step_s))
            else:
                # The same step with the same noise, but for the slow group.
                sick.append((study.observed(lengths, False, slow, stream(key, "noise")), seen.step_s))
        found.append((loss, place, quiet, sick))
    return found
