"""The ways to serve tenants that need less: one after the other, side by side, or in step with each other."""

from __future__ import annotations

from dataclasses import dataclass

from wavetank.settings import check_ranges, setting
from wavetank.training.tenants.interface import Rules


@dataclass(frozen=True, kw_only=True)
class OneByOne:
    """Serves one task until it is done, on all accelerators, then the next one."""

    s_max: int = setting(0, unit="updates", says="How old an answer may be when it is trained on", low=0, high=64)

    def __post_init__(self) -> None:
        check_ranges(self)

    def rules(self) -> Rules:
        """Return who may generate and train when."""
        return Rules(s_max=self.s_max, at_once=1)


@dataclass(frozen=True, kw_only=True)
class Divided:
    """Gives every task an equal part of the accelerators of each engine."""

    s_max: int = setting(0, unit="updates", says="How old an answer may be when it is trained on", low=0, high=64)

    def __post_init__(self) -> None:
        check_ranges(self)

    def rules(self) -> Rules:
        """Return who may generate and train when."""
        return Rules(s_max=self.s_max, divided=True)


@dataclass(frozen=True, kw_only=True)
class LockStep:
    """Lets all tasks generate in one batch; when all answers are there, all tasks are trained, one by one."""

    def rules(self) -> Rules:
        """Return who may generate and train when."""
        return Rules(barrier=True)


@dataclass(frozen=True, kw_only=True)
class OutOfPhase:
    """Lets all tasks run on-policy, each at its own pace, so that one generates while another one trains."""

    adapters: int = setting(0, says="Distinct adapters that a batch may hold; 0: any number", low=0, high=100_000)

    def __post_init__(self) -> None:
        check_ranges(self)

    def rules(self) -> Rules:
        """Return who may generate and train when."""
        return Rules(adapters=self.adapters)
