"""Study ``expert-placement``: how many routes stay on a token's device."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np

from wavetank.errors import BadValueError, unknown_name
from wavetank.serving.experts.counting import count, homes_of
from wavetank.serving.experts.decoder_routes import DecoderRoutes
from wavetank.serving.experts.interface import ExpertPlacement, RoutingTrace, check_devices
from wavetank.serving.experts.traces import Generated, read_routes
from wavetank.settings import setting
from wavetank.sim.rng import stream
from wavetank.study.study import Chart, Measurements, Metric, Study

_KINDS = ("generated", "decoder")


@dataclass(frozen=True, kw_only=True)
class ExpertPlacementStudy(Study):
    """A fifth of the requests is learned from, the others are sent and counted.  Requests come in rounds of
    equally many per device; of a request its prompt is known when it is sent, and all its tokens are counted.
    """

    name: ClassVar[str] = "expert-placement"
    baseline: ClassVar[str] = "contiguous-experts"
    primary: ClassVar[str] = "local_share"
    secondary: ClassVar[tuple[str, ...]] = ("remote_bytes", "layer_time", "load_ratio")
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("local_share", "", "higher", "counted",
               "routes whose expert is on the token's device / all routes, of requests that were not learned from",
               words="local routes"),
        Metric("remote_bytes", "bytes", "lower", "counted",
               "2 x routes that leave their device x hidden x 2 bytes, per token and layer", words="remote traffic"),
        Metric("visit_bytes", "bytes", "lower", "counted",
               "the same where a token is sent once to each other device, however many of its experts are there",
               words="remote traffic, once per device"),
        Metric("load_ratio", "", "lower", "counted",
               "routes of the device with most / mean, mean over rounds and layers", words="busiest device"),
        Metric("home_ratio", "", "lower", "counted", "tokens of the device with most / mean, of the whole run",
               words="tokens of the fullest device", table=False),
        Metric("layer_time", "", "lower", "modelled",
               "1 - c for experts, in proportion to the busiest device's routes, and c for the exchange, in proportion "
               "to the routes that leave or reach the device with most; 1: even and local by chance",
               words="layer time"),
    )  # fmt: skip
    charts: ClassVar[tuple[Chart, ...]] = (
        Chart("bars", "Routes that stay on a token's device", y="local_share", says="Longer is better."),
        Chart("sweep", "Local routes by number of devices", y="local_share", by="devices", log="x",
              says="Chance is one over the number of devices."),
    )  # fmt: skip

    traffic: str = setting(
        "generated", says="generated, decoder (a small model's own routes), or a file of routes (.npz)"
    )
    attention: str = setting("data-parallel", says="data-parallel: a request has one device; tensor-parallel: tokens "
                             "are divided in each layer anew",
                             choices=("data-parallel", "tensor-parallel"))  # fmt: skip
    devices: int = setting(4, says="Devices with equally many experts", low=1, high=1_024)
    others: tuple[int, ...] = setting((), says="Further numbers of devices", low=1, high=1_024)
    waiting: int = setting(1, unit="requests", says="Per device that are sent together; 1 in the paper", low=1,
                           high=1_000)  # fmt: skip
    learn: float = setting(0.2, says="Share of requests that are learned from", low=0.01, high=0.99)
    hidden: int = setting(2_048, says="Numbers of a token's state, of 2 bytes each", low=1, high=1_000_000)
    exchange: float = setting(0.592, says="c: share of a layer's time for the exchange at even load and chance, from "
                              "the paper", low=0.0, high=1.0)  # fmt: skip
    requests: int = setting(600, says="Generated requests", low=10, high=100_000)
    tokens: int = setting(128, says="Tokens of each", low=2, high=100_000)
    layers: int = setting(4, says="Layers with experts", low=1, high=1_000)
    experts: int = setting(64, says="Experts of each layer", low=1, high=4_096)
    per_token: int = setting(6, says="Experts of a token", low=1, high=4_096)
    topics: int = setting(24, says="Topics of generated requests", low=1, high=4_096)
    circle: int = setting(16, says="Experts of a topic in a layer", low=1, high=4_096)
    affinity: float = setting(0.9, says="Probability that a token goes to a favourite expert", low=0.0, high=1.0)
    bond: float = setting(0.7, says="Probability that a favourite expert of a word is one of its topic's", low=0.0,
                          high=1.0)  # fmt: skip

    def check(self) -> None:
        """Refuse traffic that is neither known nor a file, and devices that do not divide the experts."""
        if self.traffic not in _KINDS and not Path(self.traffic).suffix:
            raise unknown_name("traffic", self.traffic, _KINDS)
        trace = self.trace(0)
        for devices in (self.devices, *self.others):
            check_devices(trace, devices)
        learned, judged = self.parts(trace, 0)
        if not len(learned) or not len(judged):
            raise BadValueError("Nothing is left to learn from or to judge by.", given=f"{trace.requests} requests")

    def data(self) -> Mapping[str, str]:
        """Return the checksum of a file of routes."""
        if self.traffic in _KINDS:
            return {}
        return {self.traffic: hashlib.sha256(Path(self.traffic).read_bytes()).hexdigest()}

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        found = ["layer_time is a formula: no kernel and no link was timed."]
        if self.traffic == "generated":
            found.append(
                "How much can be local depends on affinity and bond, which the generator is given and no model has."
            )
        if self.traffic == "decoder":
            found.append("All seeds have the same routes of one small model; they differ in what is learned from.")
        return tuple(found)

    def trace(self, seed: int) -> RoutingTrace:
        """Return the routes of a seed.

        Parameters
        ----------
        seed : int
            Draws generated routes; others are the same for all seeds, which draw what is learned from.
        """
        if self.traffic == "decoder":
            return _decoded(
                DecoderRoutes(requests=self.requests, tokens=self.tokens, layers=self.layers, experts=self.experts,
                              per_token=self.per_token)
            )  # fmt: skip
        if self.traffic != "generated":
            return read_routes(self.traffic)
        return _generated(
            Generated(
                requests=self.requests, tokens=self.tokens, layers=self.layers, experts=self.experts,
                per_token=self.per_token, topics=self.topics, circle=self.circle,
                affinity=self.affinity, bond=self.bond,
            ),
            seed,
        )  # fmt: skip

    def parts(self, trace: RoutingTrace, seed: int) -> tuple[list[int], list[int]]:
        """Return the requests that are learned from, and those that are judged by, in order of arrival.

        Parameters
        ----------
        trace : RoutingTrace
        seed : int
        """
        order = stream(seed, "expert-placement", "parts").permutation(trace.requests)
        many = round(self.learn * trace.requests)
        return sorted(order[:many].tolist()), sorted(order[many:].tolist())

    def measure(self, system: ExpertPlacement, seed: int) -> Measurements:
        """Fit a plan, send the other requests by it, and count.

        Parameters
        ----------
        system : ExpertPlacement
        seed : int
        """
        trace, found = self.trace(seed), Measurements()
        learned, judged = (trace.part(each) for each in self.parts(trace, seed))
        whole = self.attention == "data-parallel"
        for devices in sorted({self.devices, *self.others}):
            plan = system.fit(judged if system.clairvoyant else learned, devices, whole_requests=whole)
            homes = homes_of(plan, judged, devices, whole_requests=whole,
                             clairvoyant=system.clairvoyant, waiting=self.waiting)  # fmt: skip
            got = count(plan.experts, homes, judged, devices, waiting=self.waiting)
            per_token = got.pairs / trace.routes.shape[2]
            # By chance 1 - 1/devices of a device's routes leave it, and as many reach it.
            even = got.pairs / devices
            sent = got.busiest_sent / (even * (1 - 1 / devices)) if devices > 1 else 0.0
            figures = {
                "local_share": got.local / got.pairs,
                "remote_bytes": 2 * (got.pairs - got.local) * self.hidden * 2 / per_token,
                "visit_bytes": 2 * got.visits * self.hidden * 2 / per_token,
                "load_ratio": got.busiest_routed / even,
                "home_ratio": float(got.homes.max() / np.mean(got.homes)),
                "layer_time": (1 - self.exchange) * got.busiest_routed / even + self.exchange * sent,
            }
            places: list[dict[str, float]] = [{}] if devices == self.devices else []
            for at in [*places, {"devices": float(devices)}] if self.others else places:
                for name, value in figures.items():
                    found.put(name, value, **at)
        return found


@lru_cache(maxsize=2)
def _decoded(routes: DecoderRoutes) -> RoutingTrace:
    return routes.trace()


@lru_cache(maxsize=2)
def _generated(generated: Generated, seed: int) -> RoutingTrace:
    return generated.trace(seed)
