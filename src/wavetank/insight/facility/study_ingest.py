"""Study ``facility-ingest``: how many messages a second become means, and how many means are right."""

from __future__ import annotations

import gc
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from wavetank.errors import WavetankError
from wavetank.insight.facility.ingest import MINUTE_S, Mean
from wavetank.insight.facility.intakes import Arrived, Intake
from wavetank.settings import setting
from wavetank.sim.rng import stream
from wavetank.study.study import Chart, Measurements, Metric, Study

_START_S = 1_780_000_020 // MINUTE_S * MINUTE_S
_SENSORS = (("power", "W", 250.0, 20.0), ("load", "", 0.5, 0.05), ("inlet", "C", 25.0, 0.3))
_NEAR = 1e-9


@dataclass(frozen=True, kw_only=True)
class FacilityIngest(Study):
    """Servers send power, load and inlet temperature every ten seconds, at least once: some messages come twice, some
    up to four minutes late.  All messages of some minutes are made before; what is timed is one process that parses
    them and gives means of minutes, in one thread.  Means are held against those of the messages that were sent.
    """

    name: ClassVar[str] = "facility-ingest"
    baseline: ClassVar[str] = "in-order-means"
    primary: ClassVar[str] = "messages_per_s"
    secondary: ClassVar[tuple[str, ...]] = ("wrong_means",)
    must_be_zero: ClassVar[tuple[str, ...]] = ("wrong_means",)
    process_per_seed: ClassVar[bool] = True
    in_process: ClassVar[bool] = True
    takes_turns: ClassVar[bool] = True
    default_seeds: ClassVar[int] = 5
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("messages_per_s", "messages/s", "higher", "measured", "messages / processor time, at the largest number "
               "of servers; at servers: with that number", words="messages a second"),
        Metric("wrong_means", "", "lower", "counted", "share of the means of topics and minutes that are not there, or "
               "differ from the mean of what was sent by more than 1e-9", words="wrong means"),
        Metric("slowdown", "", "lower", "measured", "messages a second with the fewest servers / with the most",
               words="slowdown"),
    )  # fmt: skip
    charts: ClassVar[tuple[Chart, ...]] = (
        Chart("sweep", "Messages a second as there are more servers", y="messages_per_s", by="servers", log="x",
              says="A flat line scales."),
    )  # fmt: skip

    servers: tuple[int, ...] = setting((10, 100, 1000, 10_000), unit="servers", says="Numbers of servers", low=1,
                                       high=100_000)  # fmt: skip
    every_s: int = setting(10, unit="s", says="Time between a sensor's messages", low=1, high=60)
    messages: int = setting(20_000, says="Messages of a run at least, so that small sites run for more minutes",
                            low=1, high=10**7)  # fmt: skip
    twice: float = setting(0.05, says="Share of messages that come twice", low=0, high=1)
    delayed: float = setting(0.1, says="Share of messages that come up to four minutes late", low=0, high=1)

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        return ("Messages come out of memory: neither a broker nor a network is in the figures.",)

    def measure(self, system: Intake, seed: int) -> Measurements:
        """Time a system with each number of servers.

        Parameters
        ----------
        system : Intake
        seed : int
        """
        found = Measurements()
        speeds: dict[int, float] = {}
        for servers in sorted(set(self.servers)):
            minutes = max(1, math.ceil(self.messages * self.every_s / (len(_SENSORS) * servers * MINUTE_S)))
            sent, messages = self.made(servers, minutes, seed)
            until_s = _START_S + minutes * MINUTE_S
            if not speeds:
                # What a system loads at its first call is none of its speed.
                system.means(messages[:100], until_s)
            gc.collect()
            began = time.process_time()
            means = system.means(messages, until_s)
            took = time.process_time() - began
            if took <= 0:
                raise WavetankError("The processor's clock did not move.", given=took)
            speeds[servers] = len(messages) / took
            found.put("messages_per_s", speeds[servers], servers=servers)
            wrong = wrong_share(means, sent)
            found.put("wrong_means", wrong, servers=servers)
        most, fewest = max(speeds), min(speeds)
        found.put("messages_per_s", speeds[most])
        found.put("wrong_means", wrong)
        found.put("slowdown", speeds[fewest] / speeds[most])
        return found

    def made(self, servers: int, minutes: int, seed: int) -> tuple[dict[tuple[str, int], float], list[Arrived]]:
        """Return the true means by topic and minute, and the messages in the order in which they come.

        Parameters
        ----------
        servers : int
        minutes : int
        seed : int
        """
        draws = stream(seed, "facility", "messages", servers)
        times = _START_S + np.arange(0, minutes * MINUTE_S, self.every_s)
        sent, messages = {}, []
        for server in range(servers):
            for metric, unit, mean, spread in _SENSORS:
                topic = f"site/rack{server // 40}/s{server}/{metric}"
                # A tenth of its range: sensors are silent for less than the checks allow to change.
                values = np.round(mean + spread * draws.uniform(-0.5, 0.5, size=times.size), 4)
                delays = draws.uniform(0.0, 2.0, size=times.size)
                delays[draws.random(times.size) < self.delayed] *= 120.0
                again = draws.random(times.size) < self.twice
                for ts, value, delay, twice in zip(
                    times.tolist(), values.tolist(), delays.tolist(), again, strict=True
                ):
                    payload = json.dumps({"ts": ts, "value": value, "unit": unit}).encode()
                    messages.append(Arrived(ts + delay, topic, payload))
                    if twice:
                        messages.append(Arrived(ts + delay + 1.0, topic, payload))
                for minute, part in enumerate(values.reshape(minutes, -1).tolist()):
                    sent[topic, _START_S // MINUTE_S + minute] = math.fsum(part) / len(part)
        messages.sort()
        return sent, messages


def wrong_share(means: Sequence[Mean], sent: dict[tuple[str, int], float]) -> float:
    """Return the share of true means that were not given, or were given otherwise or more than once.

    Parameters
    ----------
    means : sequence of Mean
    sent : dict
        True means by topic and minute.
    """
    given: dict[tuple[str, int], list[float]] = {}
    for each in means:
        given.setdefault((each.topic, each.minute), []).append(each.value)
    right = sum(
        len(given.get(key, ())) == 1 and abs(given[key][0] - value) <= _NEAR * max(1.0, abs(value))
        for key, value in sent.items()
    )  # fmt: skip
    return 1.0 - right / len(sent)
