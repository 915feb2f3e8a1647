"""Other schedulers: rotation, least load, residency, prefixes, a common queue, and the least immediate cost.

The first four give a stage to a device's queue as soon as it is ready, as routers do; the last two let stages wait
until a device is idle.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from wavetank.serving.workflows.caches import Caches
from wavetank.serving.workflows.costs import ends_s
from wavetank.serving.workflows.interface import Dispatch, Platform, Session, Stage, StageKey, View
from wavetank.serving.workflows.watch import Watch
from wavetank.settings import setting


class Pushing(ABC):
    """A session that puts every stage into the queue of a device when it becomes ready.

    Parameters
    ----------
    platform : Platform
    """

    def __init__(self, platform: Platform) -> None:
        self.watch = Watch(platform)
        self.queues: list[deque[StageKey]] = [deque() for _ in platform.devices]
        self._queued: set[StageKey] = set()

    def decide(self, view: View) -> Sequence[Dispatch]:
        """Give new stages to queues and begin the first one of each idle device.

        Parameters
        ----------
        view : View
        """
        caches = self.watch.see(view)
        for key in view.ready:
            if key not in self._queued:
                self._queued.add(key)
                times = self.watch.times[key[0]]
                may = [each for each, allowed in enumerate(times.allowed[key[1]]) if allowed]
                self.queues[self.pick(view, key, may, caches)].append(key)
        return [
            Dispatch(queue.popleft(), (device,))
            for device, queue in enumerate(self.queues)
            if queue and view.devices[device].idle
        ]

    @abstractmethod
    def pick(self, view: View, key: StageKey, may: Sequence[int], caches: Sequence[Caches]) -> int:
        """Return the device for a stage."""

    def queued_s(self, view: View, device: int) -> float:
        """Return when a device should have done all that it was given."""
        waiting = sum(float(self.watch.times[each[0]].run_s[each[1], device]) for each in self.queues[device])
        return view.devices[device].ready_s + waiting


class _Rotating(Pushing):
    def __init__(self, platform: Platform) -> None:
        super().__init__(platform)
        self._next = 0

    def pick(self, view: View, key: StageKey, may: Sequence[int], caches: Sequence[Caches]) -> int:
        count = len(view.devices)
        found = min(may, key=lambda each: (each - self._next) % count)
        self._next = (found + 1) % count
        return found


class _LeastLoaded(Pushing):
    def pick(self, view: View, key: StageKey, may: Sequence[int], caches: Sequence[Caches]) -> int:
        run = self.watch.times[key[0]].run_s[key[1]]
        return min(may, key=lambda each: (self.queued_s(view, each) + float(run[each]), each))


class _Residency(_LeastLoaded):
    """Among the devices that hold the model, or will after what they were given; the least loaded of all if none."""

    def __init__(self, platform: Platform, most_ahead_s: float) -> None:
        super().__init__(platform)
        self._most_ahead_s = most_ahead_s

    def pick(self, view: View, key: StageKey, may: Sequence[int], caches: Sequence[Caches]) -> int:
        best = super().pick(view, key, may, caches)
        held = [each for each in may if self.holds(key, each, caches)]
        if not held:
            return best
        found = super().pick(view, key, held, caches)
        run = self.watch.times[key[0]].run_s[key[1]]
        ahead = self.queued_s(view, found) + run[found] - self.queued_s(view, best) - run[best]
        return found if ahead <= self._most_ahead_s else best

    def holds(self, key: StageKey, device: int, caches: Sequence[Caches]) -> bool:
        """Return whether a device has what this session looks for."""
        model = self._stage(key).model
        return model in caches[device].models or any(self._stage(each).model == model for each in self.queues[device])

    def _stage(self, key: StageKey) -> Stage:
        return self.watch.times[key[0]].application.stages[key[1]]


class _Prefix(_Residency):
    def holds(self, key: StageKey, device: int, caches: Sequence[Caches]) -> bool:
        stage = self._stage(key)
        if not stage.prefix:
            return super().holds(key, device, caches)
        return caches[device].cached_tokens(stage) > 0 or any(
            (self._stage(each).model, self._stage(each).prefix) == (stage.model, stage.prefix)
            for each in self.queues[device]
        )


class _Queue:
    """One queue for all devices: idle devices take the first stage that they can compute."""

    def __init__(self, platform: Platform) -> None:
        self._watch = Watch(platform)

    def decide(self, view: View) -> Sequence[Dispatch]:
        self._watch.see(view)
        idle = [number for number, each in enumerate(view.devices) if each.idle]
        found = []
        for key in view.ready:
            run = self._watch.times[key[0]].run_s[key[1]]
            may = [each for each in idle if run[each] < math.inf]
            if may:
                taken = min(may, key=lambda each: (float(run[each]), each))
                idle.remove(taken)
                found.append(Dispatch(key, (taken,)))
        return found


class _LeastCost:
    """Ready stages, the most urgent first, each where it ends first, as things stand; a busy device is waited for."""

    def __init__(self, platform: Platform, by_rank: bool, shards: bool) -> None:
        self._watch = Watch(platform)
        self._by_rank, self._shards = by_rank, shards

    def decide(self, view: View) -> Sequence[Dispatch]:
        caches = self._watch.see(view)
        ready = list(view.ready)
        if self._by_rank:
            ready.sort(key=lambda key: -float(self._watch.times[key[0]].rank_s[key[1]]))
        free = set(range(len(view.devices)))
        found = []
        for key in ready:
            if not free:
                break
            devices = self._best(view, key, free, caches)
            if devices:
                free -= set(devices)
                if all(view.devices[each].idle for each in devices):
                    found.append(Dispatch(key, devices))
        return found

    def _best(self, view: View, key: StageKey, free: set[int], caches: Sequence[Caches]) -> tuple[int, ...]:
        times = self._watch.times[key[0]]
        may = [each for each in sorted(free) if times.allowed[key[1], each]]
        ends = ends_s(view, times, key, may, caches, shards=self._shards)
        return min(ends, key=lambda each: (ends[each], each), default=())


@dataclass(frozen=True, kw_only=True)
class RoundRobin:
    """Devices in turn, passing over those that cannot compute the stage."""

    def session(self, platform: Platform) -> Session:
        """Return a session that begins with the first device.

        Parameters
        ----------
        platform : Platform
        """
        return _Rotating(platform)


@dataclass(frozen=True, kw_only=True)
class LeastLoaded:
    """The device that would be done first, by the work that it was given; models and prefixes are not looked at."""

    def session(self, platform: Platform) -> Session:
        """Return a session with empty queues.

        Parameters
        ----------
        platform : Platform
        """
        return _LeastLoaded(platform)


@dataclass(frozen=True, kw_only=True)
class ResidencyFirst:
    """The least loaded device that holds the stage's model, unless others would be done much earlier."""

    most_ahead_s: float = setting(
        4.0, unit="s", says="How much later than on the least loaded device a stage may end", low=0.0, high=1e6
    )

    def session(self, platform: Platform) -> Session:
        """Return a session with empty queues.

        Parameters
        ----------
        platform : Platform
        """
        return _Residency(platform, self.most_ahead_s)


@dataclass(frozen=True, kw_only=True)
class PrefixFirst(ResidencyFirst):
    """The least loaded device that has the stage's prefix cached, unless others would be done much earlier."""

    def session(self, platform: Platform) -> Session:
        """Return a session with empty queues.

        Parameters
        ----------
        platform : Platform
        """
        return _Prefix(platform, self.most_ahead_s)


@dataclass(frozen=True, kw_only=True)
class CommonQueue:
    """First come, first served: the stage that was ready first goes to the fastest idle device."""

    def session(self, platform: Platform) -> Session:
        """Return a session.

        Parameters
        ----------
        platform : Platform
        """
        return _Queue(platform)


@dataclass(frozen=True, kw_only=True)
class LeastCost:
    """The most urgent stage first, where it ends first with loading, transfers and cached prefixes counted."""

    by_rank: bool = setting(True, says="Whether stages with the longest way to go come first, or those ready first")
    shards: bool = setting(True, says="Whether stages may be shared between devices")

    def session(self, platform: Platform) -> Session:
        """Return a session.

        Parameters
        ----------
        platform : Platform
        """
        return _LeastCost(platform, self.by_rank, self.shards)
