"""What people do on their devices, drawn from a seed: six kinds of work and their mixture.

A person works on one device at a time, for a while, and now and then touches another; devices are cut off and come
back; every device has a clock of its own.  Each save has content of its own, so that no two versions are equal.

Source: the workloads are ours; J. Mogul's and others' observation that clocks of ordinary devices differ by seconds is
in D. Mills, "Internet Time Synchronization: The Network Time Protocol", IEEE Trans. Comm. 39(10), 1991.
"""

from __future__ import annotations

from dataclasses import dataclass

from wavetank.protocols.filesync.applications import (
    Backup,
    Build,
    GitCommit,
    GitPack,
    GitSwitch,
    Look,
    Move,
    Put,
    Remove,
    Save,
    SaveBundle,
)
from wavetank.protocols.filesync.tree import Clock
from wavetank.sim.network import Partition
from wavetank.sim.node import Message
from wavetank.sim.rng import Draws, stream, stream_key

WORK = ("documents", "git", "backup", "build", "bundles", "moves")
WORKLOADS = (*WORK, "mixed")

_JUMP_SHARE = 0.2
_SHARE_ELSEWHERE = 0.15


@dataclass(frozen=True)
class Action:
    """Something a person has a program do.

    Parameters
    ----------
    at : float
        Rounds after the start.
    device : int
        From 1; number 0 is the cloud.
    command : Message
    """

    at: float
    device: int
    command: Message


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """People, devices, clocks and cuts.

    Parameters
    ----------
    work : str
        One of :data:`WORKLOADS`.
    devices : int
    rounds : float
        How long people work.
    pause_rounds : float
        Mean time between two actions.
    stay_rounds : float
        Mean time a person stays at one device.
    cuts : int
        Times that a device, drawn each time, is cut off.
    cut_rounds : float
        How long each lasts.
    skew_rounds : float
        Standard deviation of the clocks' offsets.
    files : int
        Documents, and sources of the build folder.
    look_rounds : float
        Time between two looks of a reader at each device.
    """

    work: str = "mixed"
    devices: int = 3
    rounds: float = 900.0
    pause_rounds: float = 4.0
    stay_rounds: float = 60.0
    cuts: int = 6
    cut_rounds: float = 60.0
    skew_rounds: float = 2.0
    files: int = 24
    look_rounds: float = 20.0

    def actions(self, seed: int) -> list[Action]:
        """Return what people do, in the order of time."""
        draws = Draws(stream_key(seed, "file-sync", self.work))
        kinds = WORK if self.work == "mixed" else (self.work,)
        at, left, person = 0.0, 0.0, 1
        actions: list[Action] = []
        count = 0
        while True:
            pause = draws.exponential(self.pause_rounds)
            at, left = at + pause, left - pause
            if at >= self.rounds:
                break
            if left <= 0:
                person = draws.between(1, self.devices)
                left = draws.exponential(self.stay_rounds)
            device = draws.between(1, self.devices) if draws.chance(_SHARE_ELSEWHERE) else person
            count += 1
            command = self._command(draws.choice(kinds), count, device, draws)
            actions.append(Action(at, device, command))
        looks = int(self.rounds / self.look_rounds)
        for device in range(1, self.devices + 1):
            actions += [Action((number + 0.5) * self.look_rounds, device, Look()) for number in range(looks)]
        actions.sort(key=lambda action: action.at)
        return actions

    def _command(self, kind: str, count: int, device: int, draws: Draws) -> Message:
        label = f"{kind} {count} by {device}\n".encode()
        content = label * draws.between(1, 40)
        number = draws.below(self.files)
        document = f"notes/{number}.txt"
        if kind == "documents":
            return Remove(document) if draws.chance(0.08) else Save(document, content)
        if kind == "git":
            choice = draws.random()
            if choice < 0.05:
                return GitPack("repo")
            if choice < 0.12:
                return GitSwitch("repo", draws.choice(("main", "topic")))
            return GitCommit("repo", f"src/{draws.below(8)}.c", content)
        if kind == "backup":
            return Backup() if draws.chance(0.2) else Save(document, content)
        if kind == "build":
            names = {f"{draws.below(self.files)}.c" for _ in range(draws.between(1, 3))}
            return Build("app", tuple((name, name.encode() + label) for name in sorted(names)))
        if kind == "bundles":
            parts = tuple((f"part{part}", bytes([65 + part]) + content) for part in range(3))
            return SaveBundle(f"letter{draws.below(2)}.bundle", parts)
        name = f"m{number}.txt"
        folders = draws.sample(("inbox", "done"), 2)
        if draws.chance(0.5):
            return Put(f"{folders[0]}/{name}", content)
        return Move(f"{folders[0]}/{name}", f"{folders[1]}/{name}")

    def clocks(self, seed: int) -> dict[int, Clock]:
        """Return every device's clock: an offset each, and a jump for some."""
        rng = stream(seed, "file-sync", "clocks")
        clocks = {}
        for device in range(1, self.devices + 1):
            offset = float(rng.normal(0.0, 1.0)) * self.skew_rounds
            jumps = ((float(rng.uniform(0, self.rounds)), float(rng.normal(0.0, 1.0)) * 3 * self.skew_rounds),)
            clocks[device] = Clock(offset, jumps if rng.random() < _JUMP_SHARE and self.skew_rounds else ())
        return clocks

    def partitions(self, seed: int) -> tuple[Partition, ...]:
        """Return when which device is cut off."""
        draws = Draws(stream_key(seed, "file-sync", "cuts"))
        found = []
        for _ in range(self.cuts):
            start = draws.random() * max(self.rounds - self.cut_rounds, 0.0)
            device = draws.between(1, self.devices)
            others = tuple(node for node in range(self.devices + 1) if node != device)
            found.append(Partition(start=start, stop=start + self.cut_rounds, groups=(others, (device,))))
        return tuple(found)
