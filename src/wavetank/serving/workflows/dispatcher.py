"""The book-keeping between a scheduler and whatever computes stages: simulated devices or real processes.

It knows which stages are ready, what every device keeps and when it should be free, shows that to the scheduler and
refuses decisions that cannot be carried out.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from wavetank.errors import BadValueError, GaveUpError
from wavetank.serving.workflows.caches import Caches, Used
from wavetank.serving.workflows.costs import Split, Times, arrives_s, split_over
from wavetank.serving.workflows.interface import Application, DeviceView, Dispatch, Platform, Scheduler, StageKey, View


@dataclass(frozen=True, kw_only=True)
class Begun:
    """A stage that begins now.

    Parameters
    ----------
    key : tuple of int
    devices : tuple of int
    shares : tuple of float
    transfer_s : tuple of float
        Per device, until the outputs of the parents are there.
    used : tuple of Used
        Per device.
    expected_end_s : float
    """

    key: StageKey
    devices: tuple[int, ...]
    shares: tuple[float, ...]
    transfer_s: tuple[float, ...]
    used: tuple[Used, ...]
    expected_end_s: float


@dataclass(kw_only=True)
class Dispatcher:
    """Shows views to a scheduler and keeps what follows from its decisions.

    Parameters
    ----------
    platform : Platform
    scheduler : Scheduler
    record : bool
        Whether every view is kept, with the decision.
    """

    platform: Platform
    scheduler: Scheduler
    record: bool = False
    views: list[tuple[View, tuple[Dispatch, ...]]] = field(default_factory=list)
    decision_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._session = self.scheduler.session(self.platform)
        self.caches = [
            Caches(each, self.platform.model_bytes, self.platform.token_bytes) for each in self.platform.devices
        ]
        self._times: list[Times] = []
        self._missing: list[list[int]] = []
        self._ready: dict[StageKey, None] = {}
        self._placed: dict[StageKey, tuple[int, ...]] = {}
        self._done: set[StageKey] = set()
        self._expected_s: list[float | None] = [None] * len(self.platform.devices)

    @property
    def waiting(self) -> bool:
        """Whether a stage is ready that was not dispatched."""
        return bool(self._ready)

    @property
    def running(self) -> bool:
        """Whether a device is at work."""
        return any(each is not None for each in self._expected_s)

    def times(self, number: int) -> Times:
        """Return the times of an application's stages."""
        return self._times[number]

    def arrive(self, application: Application) -> None:
        """Take in an application; its first stages are ready.

        Raises
        ------
        BadValueError, UnknownNameError
            If no device can compute one of its stages.
        """
        number = len(self._times)
        times = Times(application=application, platform=self.platform)
        if not times.allowed.any(axis=1).all():
            raise BadValueError("No device can compute a stage.", given=application.workflow.name)
        self._times.append(times)
        self._missing.append([len(each) for each in application.workflow.parents])
        for task, missing in enumerate(self._missing[number]):
            if not missing:
                self._ready[number, task] = None

    def finish(self, key: StageKey) -> None:
        """Take note that a stage has ended on all of its devices."""
        number, task = key
        for device in self._placed[key]:
            self._expected_s[device] = None
        self._done.add(key)
        for child in self._times[number].application.workflow.children[task]:
            self._missing[number][child] -= 1
            if not self._missing[number][child]:
                self._ready[number, child] = None

    def view(self, now_s: float) -> View:
        """Return what a scheduler sees now."""
        devices: list[DeviceView] = []
        for caches, expected in zip(self.caches, self._expected_s, strict=True):
            # What should have ended already may end at any moment.
            devices.append(caches.view(now_s if expected is None else max(now_s, expected), expected is None))
        return View(
            now_s, tuple(devices), tuple(self._ready), dict(self._placed), frozenset(self._done),
            tuple(each.application for each in self._times),
        )  # fmt: skip

    def decide(self, now_s: float) -> list[Begun]:
        """Ask the scheduler and return what begins now.

        Raises
        ------
        BadValueError
            If it dispatches what is not ready, or to a device that is busy or cannot compute it.
        GaveUpError
            If nothing runs and it does not begin anything though stages are ready.
        """
        view = self.view(now_s)
        began = time.perf_counter()
        decisions = tuple(self._session.decide(view))
        self.decision_s.append(time.perf_counter() - began)
        if self.record:
            self.views.append((view, decisions))
        found = [self._begin(view, each) for each in decisions]
        if not found and self._ready and not self.running:
            raise GaveUpError("The scheduler lets stages wait although nothing runs.",
                              given=type(self.scheduler).__name__)  # fmt: skip
        return found

    def _begin(self, view: View, decision: Dispatch) -> Begun:
        key, devices = decision
        if key not in self._ready:
            raise BadValueError("The scheduler dispatched a stage that is not ready.", given=key,
                                allowed=[str(each) for each in list(self._ready)[:8]])  # fmt: skip
        times = self._times[key[0]]
        self._check(times, key, devices)
        split: Split = split_over(view, times, key, devices, self.caches)
        if min(split.shares) <= 0:
            raise BadValueError("A stage was given to devices of which one could not begin before the others end.",
                                given=devices)  # fmt: skip
        moves = tuple(arrives_s(view, self.platform, key, each) - view.now_s for each in devices)
        stage = times.application.stages[key[1]]
        used = tuple(self.caches[each].use(stage) for each in devices)
        del self._ready[key]
        self._placed[key] = devices
        for each in devices:
            self._expected_s[each] = split.end_s
        return Begun(key=key, devices=devices, shares=split.shares, transfer_s=moves, used=used,
                     expected_end_s=split.end_s)  # fmt: skip

    def _check(self, times: Times, key: StageKey, devices: Sequence[int]) -> None:
        stage = times.application.stages[key[1]]
        if not devices or len(set(devices)) != len(devices) or len(devices) > stage.most_shards:
            raise BadValueError("A stage needs different devices, no more than it can be shared between.",
                                given=devices, allowed=f"1 to {stage.most_shards}")  # fmt: skip
        for each in devices:
            if not 0 <= each < len(self.caches) or not times.allowed[key[1], each]:
                raise BadValueError("This device cannot compute the stage.", given=each, where=f"stage {key}")
            if self._expected_s[each] is not None:
                raise BadValueError("The scheduler dispatched a stage to a busy device.", given=each,
                                    where=f"stage {key}")  # fmt: skip
