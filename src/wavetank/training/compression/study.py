"""Study ``compressed-collectives``: sums over ranks when the network is slower than a codec."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from wavetank.errors import BadValueError, DataUnavailableError
from wavetank.platforms.fabric import Fabric, Level
from wavetank.settings import setting
from wavetank.study.study import Chart, Measurements, Metric, Study
from wavetank.training.compression.costs import Costs, all_reduce_s, crossing_bytes_per_s
from wavetank.training.compression.frames import FRAME_BYTES
from wavetank.training.compression.interface import Collective, Task, Work
from wavetank.training.compression.quantise import scales_of
from wavetank.training.compression.ring import Played, play
from wavetank.training.compression.rivals import PlainRing
from wavetank.training.compression.workload import DATA, FILE, WORKLOADS, Members, members
from wavetank.units import show
from wavetank.workloads import datasets

_MODES = ("raw", "fixed", "rans")


@dataclass(frozen=True, kw_only=True)
class CompressedCollectives(Study):
    """Ranks sum equal numbers of theirs; every scheme's messages are really made, sent and read, by ranks that take
    turns in one process, and its sums are compared with those in double precision.  Time is simulated: frames of these
    messages, enlarged to the size asked for, go through one codec and one link of each rank, on nodes whose ranks share
    a link to the others.  How fast codecs are is assumed, equally for all; the link is swept.
    """

    name: ClassVar[str] = "compressed-collectives"
    baseline: ClassVar[str] = "plain-ring"
    primary: ClassVar[str] = "time_s"
    secondary: ClassVar[tuple[str, ...]] = ("compression_ratio", "error_over_bound", "relative_error")
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("time_s", "s", "lower", "simulated", "from the numbers of all ranks to the sum on the last rank"),
        Metric("compression_ratio", "", "higher", "counted",
               "bytes that the plain ring sends / bytes that are sent, all rounds and heads of frames included"),
        Metric("own_ratio", "", "higher", "counted",
               "bytes of one rank's numbers / bytes of them encoded, without any sum; of schemes that encode",
               words="compression ratio of one rank's numbers"),
        Metric("error_over_bound", "", "lower", "counted",
               "largest error of a sum / (ranks * bound + half the spacing of single precision there); of numbers that "
               "are quantised by a bound", words="error over its bound"),
        Metric("relative_error", "", "lower", "counted", "norm of the error of the sum / norm of the sum",
               words="relative error"),
        Metric("order_difference", "", "lower", "counted",
               "largest difference between the sums of ranks in this order and in the reverse / (ranks * bound)",
               words="difference by the order of ranks"),
        Metric("speedup_over_ratio", "", "higher", "simulated",
               "time of the plain ring / time / compression ratio, on the slowest link of the sweep",
               words="speed-up over compression ratio"),
        Metric("behind_best_mode", "", "lower", "simulated",
               "time / least time with one mode for all frames - 1, the most over the sweep of links; "
               "of schemes that choose", words="time lost to the best single mode"),
        Metric("behind_when_misjudged", "", "lower", "simulated",
               "the same where the choice takes every link for half or twice as fast as it is",
               words="time lost to the best single mode by a misjudged link"),
        Metric("crossing_error", "", "lower", "simulated",
               "time / time of the plain ring - 1, absolute, at the bandwidth where the closed form has them equal; "
               "of a scheme that codes every frame by entropy", table=False, words="error of the crossing"),
        Metric("speedup_by_link", "", "higher", "simulated", "time of the plain ring / time, by the link's bandwidth",
               table=False, words="speed-up"),
        Metric("speedup_by_message", "", "higher", "simulated", "time of the plain ring / time, by bytes of a rank's "
               "numbers", table=False, words="speed-up"),
        Metric("speedup_by_ranks", "", "higher", "simulated", "time of the plain ring / time, by ranks", table=False,
               words="speed-up"),
        Metric("error_by_ranks", "", "lower", "counted", "error over its bound, by ranks", table=False,
               words="error over its bound"),
    )  # fmt: skip
    charts: ClassVar[tuple[Chart, ...]] = (
        Chart("sweep", "Speed-up by bandwidth of the link", y="speedup_by_link", by="link_bytes_per_s", log="xy",
              says="Where a line falls below 1, the codec is slower than the link."),
        Chart("bars", "Bytes that the plain ring sends over bytes sent", y="compression_ratio", log="x",
              says="Longer is better."),
        Chart("sweep", "Speed-up by size of the message", y="speedup_by_message", by="message_bytes", log="xy",
              says="Small messages are a matter of latency."),
    )  # fmt: skip

    workload: str = setting("u", says="Winds u and v or geopotential z of the atmosphere, or gradients",
                            choices=WORKLOADS)  # fmt: skip
    ranks: int = setting(8, unit="ranks", says="Ranks; a multiple of those of a node, or fewer", low=2, high=64)
    ranks_per_node: int = setting(4, unit="ranks", says="Ranks of a node, which share its link", low=1, high=64)
    relative_bound: float = setting(
        1e-3, says="Bound of the error of one rank's number, over the spread of all", low=1e-7, high=0.5
    )
    levels: int = setting(127, says="Multiples of a unit at most, of gradients", low=1, high=1 << 20)
    message_bytes: int = setting(256 << 20, unit="bytes", says="Numbers of a rank", low=4, high=1 << 40)
    link_bytes_per_s: float = setting(10e9, unit="bytes/s", says="Link of a node", low=1e3, high=1e13)
    latency_s: float = setting(
        1e-5, unit="s", says="Before the first byte of a frame, between nodes", low=0.0, high=1.0
    )
    node_bytes_per_s: float = setting(250e9, unit="bytes/s", says="Link of a rank inside of a node", low=1e3, high=1e13)
    rans_bytes_per_s: float = setting(
        100e9, unit="bytes/s", says="Coding by entropy on a device; other work is in proportion", low=1e3, high=1e13
    )
    frame_s: float = setting(5e-6, unit="s", says="What work on a frame takes besides", low=0.0, high=1.0)
    links: tuple[float, ...] = setting(
        (1e8, 1e9, 3e9, 1e10, 3e10, 1e11, 3e11), unit="bytes/s", says="Sweep of links", low=1e3, high=1e13
    )
    messages: tuple[int, ...] = setting((16384, 65536, 1 << 20, 16 << 20), unit="bytes", says="Further messages",
                                        low=4, high=1 << 40)  # fmt: skip
    sweep: tuple[int, ...] = setting((2, 4, 16), unit="ranks", says="Further numbers of ranks", low=2, high=64)

    def check(self) -> None:
        """Refuse ranks that fill no nodes."""
        for ranks in (self.ranks, *self.sweep):
            if ranks > self.ranks_per_node and ranks % self.ranks_per_node:
                raise BadValueError("Ranks fill whole nodes.", given=ranks, where="ranks",
                                    allowed=f"multiples of {self.ranks_per_node}, or fewer")  # fmt: skip
        if not self.links:
            raise BadValueError("The sweep of links is empty.", given="nothing", where="links")

    def data(self) -> Mapping[str, str]:
        """Return the checksum of the fields."""
        try:
            if self.workload == "gradients" or not datasets.find(DATA, FILE):
                return {}
        except DataUnavailableError:
            return {}
        return {DATA: next(file.sha256 for file in datasets.entry(DATA).files if file.path == FILE)}

    def costs(self) -> Costs:
        """Return what codecs take."""
        return Costs(rans_bytes_per_s=self.rans_bytes_per_s, frame_s=self.frame_s)

    def fabric(self, ranks: int, link_bytes_per_s: float) -> Fabric:
        """Return nodes of some ranks.

        Parameters
        ----------
        ranks : int
        link_bytes_per_s : float
        """
        inside = min(ranks, self.ranks_per_node)
        if inside == ranks:
            # A single node: its link is the one that is slow.
            return Fabric(levels=(Level(name="link", size=ranks, alpha_s=self.latency_s,
                                        bytes_per_s=link_bytes_per_s),))  # fmt: skip
        return Fabric(levels=(
            Level(name="node", size=inside, alpha_s=min(2e-6, self.latency_s), bytes_per_s=self.node_bytes_per_s),
            Level(name="network", size=ranks // inside, alpha_s=self.latency_s, bytes_per_s=link_bytes_per_s,
                  shared=True),
        ))  # fmt: skip

    def task(self, given: Members, link_bytes_per_s: float, scale: float, seed: int) -> Task:
        """Return what is to be summed.

        Parameters
        ----------
        given : Members
        link_bytes_per_s : float
        scale : float
            How many times as large the message is.
        seed : int
        """
        size = len(given.values)
        bound = self.relative_bound * given.spread
        levels = self.levels if self.workload == "gradients" else 0
        if levels:
            # Compressors with a bound have errors like those of the units.
            scales = np.max([scales_of(each, _BUCKET) for each in given.values], axis=0)
            bound = float(scales.mean()) / levels
        return Task(size=size, shape=given.shape, bound=max(bound, 1e-30), levels=levels, bucket=_BUCKET, seed=seed,
                    times=scale, speeds=self.costs().speeds(link_bytes_per_s))  # fmt: skip

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        try:
            source = "of ERA-Interim" if datasets.find(DATA, FILE) else ""
        except DataUnavailableError:
            source = "drawn, as the data set science-fields is absent"
        of = "Gradients are drawn from the seed." if self.workload == "gradients" else (
            f"The field {self.workload} is {source}; each member's is turned around the globe."
        )  # fmt: skip
        crossing = crossing_bytes_per_s(self.costs(), self.ranks)
        return (
            of + f" Messages of {show(self.message_bytes, 'bytes')} have the bytes per number of what was really sent.",
            f"Coding by entropy is assumed to run at {show(self.rans_bytes_per_s, 'bytes/s')}; on equal links faster "
            f"than {show(crossing, 'bytes/s')} it then takes longer than sending numbers as they are.",
        )

    def measure(self, system: Collective, seed: int) -> Measurements:
        """Sum with the system; say what it takes on every link, for every message, on every number of ranks."""
        found = Measurements()
        plain = PlainRing()
        own = _Case(self, self.ranks, seed, self.message_bytes)
        time_s, played = own.time_s(system, self.link_bytes_per_s)
        found.put("time_s", time_s)
        sent = max(played.sent_bytes, 1)
        ratio = own.played(plain, self.link_bytes_per_s).sent_bytes / sent
        found.put("compression_ratio", ratio)
        if hasattr(system, "encode"):
            found.put("own_ratio", own_ratio(system, own.given, own.task(self.link_bytes_per_s)))
        for metric, value in own.errors(played).items():
            found.put(metric, value)
        if self.workload != "gradients":
            reverse = play(system, own.given.values[::-1], own.task(self.link_bytes_per_s)).sums[0]
            least = self.ranks * self.relative_bound * own.given.spread
            apart = np.abs(reverse.astype(np.float64) - played.sums[0])
            found.put("order_difference", float(apart.max()) / least)
        times = {link: own.time_s(system, link)[0] for link in self.links}
        plain_s = {link: own.time_s(plain, link)[0] for link in self.links}
        for link in self.links:
            found.put("speedup_by_link", plain_s[link] / times[link], link_bytes_per_s=link)
        slowest = min(self.links)
        sent = max(own.played(system, slowest).sent_bytes, 1)
        found.put("speedup_over_ratio", plain_s[slowest] / times[slowest]
                  / (own.played(plain, slowest).sent_bytes / sent))  # fmt: skip
        mode = getattr(system, "mode", "")
        if mode == "chosen":
            best = {link: min(own.time_s(dataclasses.replace(system, mode=each), link)[0]  # type: ignore[type-var]
                              for each in _MODES) for link in self.links}  # fmt: skip
            found.put("behind_best_mode", max(times[link] / best[link] for link in self.links) - 1.0)
            found.put("behind_when_misjudged", max(
                own.time_s(system, link, believed=factor * link)[0] / best[link]
                for link in self.links for factor in (0.5, 2.0)
            ) - 1.0)  # fmt: skip
        if mode == "rans":
            found.put("crossing_error", self._crossing_error(system, seed))
        for message in dict.fromkeys((*self.messages, self.message_bytes)):
            case = own if message == self.message_bytes else _Case(self, self.ranks, seed, message)
            found.put("speedup_by_message", case.speedup(system), message_bytes=message)
        for ranks in dict.fromkeys((*self.sweep, self.ranks)):
            case = own if ranks == self.ranks else _Case(self, ranks, seed, self.message_bytes)
            found.put("speedup_by_ranks", case.speedup(system), ranks=ranks)
            errors = case.errors(case.played(system, self.link_bytes_per_s))
            if "error_over_bound" in errors:
                found.put("error_by_ranks", errors["error_over_bound"], ranks=ranks)
        return found

    def _crossing_error(self, system: Collective, seed: int) -> float:
        """Return how far the simulated times are apart where the closed form has them equal."""
        crossing = crossing_bytes_per_s(self.costs(), self.ranks)
        flat = dataclasses.replace(self, ranks_per_node=self.ranks, latency_s=0.0, frame_s=0.0,
                                   message_bytes=64 * self.ranks * FRAME_BYTES)  # fmt: skip
        case = _Case(flat, self.ranks, seed, flat.message_bytes)
        return abs(case.time_s(system, crossing)[0] / case.time_s(PlainRing(), crossing)[0] - 1.0)


_BUCKET = 16384


class _Case:
    """The numbers of some ranks, and what was played with them."""

    def __init__(self, study: CompressedCollectives, ranks: int, seed: int, message_bytes: int) -> None:
        self.study, self.ranks, self.seed = study, ranks, seed
        # A message that is smaller than a field is a part of it; a larger one is many of it.
        self.given = members(study.workload, ranks, seed)
        count = self.given.values[0].size
        if message_bytes < 4 * count:
            self.given = members(study.workload, ranks, seed, max(message_bytes // 4, 1))
        self.scale = max(message_bytes / (4 * self.given.values[0].size), 1.0)
        self.known: dict[Any, Played] = {}

    def task(self, link_bytes_per_s: float) -> Task:
        return self.study.task(self.given, link_bytes_per_s, self.scale, self.seed)

    def played(self, system: Collective, link_bytes_per_s: float) -> Played:
        # Only a choice depends on the link.
        key = system, link_bytes_per_s if getattr(system, "mode", "") == "chosen" else 0.0
        if key not in self.known:
            self.known[key] = play(system, self.given.values, self.task(link_bytes_per_s))
        return self.known[key]

    def time_s(self, system: Collective, link_bytes_per_s: float, *, believed: float = 0.0) -> tuple[float, Played]:
        found = self.played(system, believed or link_bytes_per_s)
        fabric = self.study.fabric(self.ranks, link_bytes_per_s)
        return all_reduce_s(found, fabric, self.study.costs(), scale=self.scale), found

    def speedup(self, system: Collective) -> float:
        link = self.study.link_bytes_per_s
        return self.time_s(PlainRing(), link)[0] / self.time_s(system, link)[0]

    @functools.cached_property
    def exact(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        return np.sum(self.given.values, axis=0, dtype=np.float64)

    def errors(self, played: Played) -> dict[str, float]:
        """Return how far the sums are from those in double precision, the worst rank's."""
        norm = float(np.linalg.norm(self.exact))
        apart = [np.abs(each - self.exact) for each in played.sums]
        found = {"relative_error": max(float(np.linalg.norm(each)) for each in apart) / (norm or 1.0)}
        if self.study.workload != "gradients":
            bound = self.ranks * self.study.relative_bound * self.given.spread
            found["error_over_bound"] = max(
                float(np.max(each / (bound + np.spacing(np.abs(sums)) / 2.0)))
                for each, sums in zip(apart, played.sums, strict=True)
            )
        return found


def own_ratio(system: Any, given: Members, task: Task) -> float:
    """Return the bytes of the first rank's numbers over those of them encoded whole.

    Parameters
    ----------
    system : scheme
    given : Members
    task : Task
    """
    alone = dataclasses.replace(task, size=1)
    begun = system.begin(given.values[0], 0, alone, Work())
    try:
        while True:
            next(begun)
    except StopIteration as end:
        held = end.value
    whole = slice(0, task.count)
    return 4.0 * task.count / len(system.encode(held[whole], whole, alone, Work(), last=False))
