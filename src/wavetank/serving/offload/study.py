"""Study ``weight-offload``: what a step takes whose weights come from the host, and what it needs on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from wavetank.platforms.catalog import as_device
from wavetank.serving.offload.interface import Case, Offload
from wavetank.serving.offload.models import Placement
from wavetank.serving.offload.rivals import AllResident
from wavetank.serving.offload.simulate import Times, simulate_offload
from wavetank.settings import setting
from wavetank.sim.links import PS_PER_S
from wavetank.sim.rng import stream
from wavetank.study.study import Chart, Measurements, Metric, Study


@dataclass(frozen=True, kw_only=True)
class WeightOffload(Study):
    """A transformer's blocks run step after step on several devices that share its tokens; weights that do not stay
    come over the link to the host.  Where devices have no faster link among themselves, collectives take it too.
    Figures are those of a step once the first is over, for each number of tokens.
    """

    name: ClassVar[str] = "weight-offload"
    baseline: ClassVar[str] = "layerwise-offload"
    primary: ClassVar[str] = "step_s"
    secondary: ClassVar[tuple[str, ...]] = ("peak_bytes", "longest_wait_s", "copied_bytes")
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("step_s", "s", "lower", "simulated", "time of a step, mean of all but the first",
               words="time of a step"),
        Metric("exposed_s", "s", "lower", "simulated",
               "time of a step - time of a step with all weights on the device, equal lateness of the others",
               words="exposed time"),
        Metric("above_model_s", "s", "lower", "simulated",
               "exposed_s - blocks * max(0, time of a block's copies on a free link - time in which collectives leave "
               "it free): what chunks that are under way cost, and what yielding could not avoid", table=False),
        Metric("longest_wait_s", "s", "lower", "simulated",
               "by how much a collective took longer than on a free link, at most",
               words="longest wait of a collective"),
        Metric("peak_bytes", "bytes", "lower", "counted",
               "weights of blocks that stay, landing slots, and activations of a block; no text encoder, no decoder of "
               "images, no workspace", words="peak memory"),
        Metric("copied_bytes", "bytes", "lower", "counted", "over the link to the host, mean of all steps"),
    )  # fmt: skip
    charts: ClassVar[tuple[Chart, ...]] = (
        Chart("sweep", "Time of a step as sequences grow", y="step_s", by="tokens", log="xy",
              says="Where computing a block takes longer than copying one, copying ahead is nearly free."),
        Chart("pareto", "Memory against time", x="peak_bytes", y="step_s",
              says="Few bytes and little time are at the lower left."),
        Chart("sweep", "Longest wait of a collective", y="longest_wait_s", by="tokens", log="x",
              says="One chunk where copies step aside."),
    )  # fmt: skip

    model: str = setting(
        "Wan2.1-T2V-14B", says="A diffusion transformer, or a dense language model of the platforms that reads a prompt"
    )
    device: str = setting("H100-PCIe", says="Of the platforms")
    ranks: int = setting(2, unit="devices", says="Devices that share the tokens", low=1, high=64)
    tokens: int = setting(14_040, unit="tokens", says="Of the sequence: 14,040 is a video of 33 frames, 832 x 480",
                          low=1, high=10_000_000)  # fmt: skip
    sweep: tuple[int, ...] = setting((1_560, 7_800, 14_040, 20_280, 32_760, 75_600), unit="tokens",
                                     says="Further lengths", low=1, high=10_000_000)  # fmt: skip
    flops_share: float = setting(0.7, says="Share of the peak arithmetic rate", low=1e-3, high=1.0)
    link_share: float = setting(0.8, says="Share of the peak rates of links", low=1e-3, high=1.0)
    alpha_s: float = setting(5e-6, unit="s", says="Of each copy before its first byte", low=0.0, high=1.0)
    weight: int = setting(1, says="Of a collective on the link beside a copy of weight 1", low=1, high=11)
    lateness: float = setting(0.02, says="Mean time after which the last device comes to a collective, as a share of "
                              "what a block computes; exponential", low=0.0, high=100.0)  # fmt: skip
    steps: int = setting(4, says="Simulated steps, the first of which does not count", low=2, high=1000)

    def check(self) -> None:
        """Refuse devices and models that are not known, and tokens that cannot be shared."""
        for tokens in (self.tokens, *self.sweep):
            self.case(tokens)

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        return (
            "Links share by weights, and kernels run at one share of the peak: settings, not measured.",
            "What reading in place does to kernels besides their traffic is not modelled: times are the best possible.",
        )

    def case(self, tokens: int) -> Case:
        """Return the model on its device.

        Parameters
        ----------
        tokens : int
        """
        placement = Placement(
            device=as_device(self.device), ranks=self.ranks, flops_share=self.flops_share,
            link_share=self.link_share, alpha_s=self.alpha_s,
        )  # fmt: skip
        return placement.case(self.model, tokens)

    def late_ps(self, case: Case, seed: int) -> tuple[int, ...]:
        """Return how late others come to the collectives of a run, ps.

        Parameters
        ----------
        case : Case
        seed : int
        """
        if not self.lateness:
            return (0,)
        count = self.steps * case.layers * sum(each.kind != "compute" for each in case.phases)
        drawn = stream(seed, "lateness").exponential(self.lateness * case.compute_ps, max(count, 1))
        return tuple(int(each) for each in drawn)

    def times(self, system: Offload, case: Case, seed: int) -> Times:
        """Return what the steps of a system take.

        Parameters
        ----------
        system : Offload
        case : Case
        seed : int
        """
        late_ps = self.late_ps(case, seed)
        return simulate_offload(system, case, steps=self.steps, late_ps=late_ps, weight=self.weight)

    def measure(self, system: Offload, seed: int) -> Measurements:
        """Run the steps for each number of tokens.

        Parameters
        ----------
        system : Offload
        seed : int
        """
        found = Measurements()
        for tokens in dict.fromkeys((self.tokens, *self.sweep)):
            case = self.case(tokens)
            got = self.times(system, case, seed)
            free_ps = self.times(AllResident(), case, seed).step_ps
            plan = system.plan(case)
            missing = [case.weight_bytes - each for each in plan.resident]
            model_ps = sum(case.exposed_ps(each, plan.chunk_bytes) for each in missing)
            figures = {
                "step_s": got.step_ps / PS_PER_S,
                "exposed_s": (got.step_ps - free_ps) / PS_PER_S,
                "above_model_s": (got.step_ps - free_ps - model_ps) / PS_PER_S,
                "longest_wait_s": got.longest_wait_ps / PS_PER_S,
                "peak_bytes": got.peak_bytes,
                "copied_bytes": got.copied_bytes / self.steps,
            }
            for name, value in figures.items():
                if tokens == self.tokens:
                    found.put(name, value)
                if tokens in self.sweep:
                    found.put(name, value, tokens=float(tokens))
        return found
