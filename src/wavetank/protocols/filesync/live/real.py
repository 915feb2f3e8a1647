"""A real run: engines as processes on real directories, real git repositories in them, links with delay and cuts.

People are threads of this process that save documents and run ``git`` in their device's directory while the engines
work.  Which changes meet depends on the machine, so counts differ from run to run; what is promised never may.

Source: the account follows :mod:`wavetank.protocols.filesync.oracles`, with ``git fsck`` and ``git rev-list`` for
repositories.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from wavetank.errors import BadValueError, MissingExtraError, WavetankError
from wavetank.live.cluster import Cluster, ClusterSettings, new_cluster
from wavetank.protocols.filesync.applications import GitCommit, GitPack, Look, Remove, Save, Seen
from wavetank.protocols.filesync.bilateral import BilateralSync
from wavetank.protocols.filesync.causal import CausalSnapshotSync
from wavetank.protocols.filesync.device import Device, FileOperation, Notice, digest_of
from wavetank.protocols.filesync.live.directory import NOTICES, DirectoryTree
from wavetank.protocols.filesync.live.peers import Syncthing, Unison
from wavetank.protocols.filesync.oracles import Damage, conflict_copies, divergence_bytes, judge
from wavetank.protocols.filesync.timeline import TimelineSync
from wavetank.protocols.filesync.tree import PRIVATE, Clock, is_conflict, original_name
from wavetank.protocols.filesync.vectors import VersionVectorSync
from wavetank.protocols.filesync.workloads import Action, Scenario
from wavetank.sim.network import Network
from wavetank.sim.node import Message, Node, Snapshot

Engine = TimelineSync | VersionVectorSync | CausalSnapshotSync | BilateralSync
ENGINES = (TimelineSync, VersionVectorSync, CausalSnapshotSync, BilateralSync)

_GIT_TIMEOUT_S = 30.0
_REST_S = 1.0
# How long everything may take to come to rest.
_REST_TIMEOUT_S = 30.0
# Looks at a repository that changes under the reader's hands, before the last of them is believed.
_LOOKS = 5


@dataclass(frozen=True, kw_only=True)
class OnDirectories:
    """An engine whose devices work on the directories ``device-1``, ``device-2``, ... below a folder.

    Parameters
    ----------
    engine : TimelineSync, VersionVectorSync, CausalSnapshotSync or BilateralSync
    root : str
        The folder; the directories in it must exist.
    offsets : tuple of float
        What each device's clock is off, in rounds; () for none.
    round_s : float
        Seconds of a round.
    """

    engine: Engine
    root: str
    offsets: tuple[float, ...] = ()
    round_s: float = 0.05

    # Every engine's: it is the engine's nodes that send them.
    messages: ClassVar[tuple[type[Message], ...]] = tuple(
        dict.fromkeys(kind for each in ENGINES for kind in each.messages)
    )

    def node(self, index: int, size: int) -> Node:
        """Return the engine's node, with its directory for a tree."""
        node = self.engine.node(index, size)
        if isinstance(node, Device):
            offset = self.offsets[index - 1] if self.offsets else 0.0
            node.tree = DirectoryTree(Path(self.root) / f"device-{index}", Clock(offset), self.round_s)
        return node

    def max_faults(self, size: int) -> int:
        """Return what the engine tolerates."""
        return self.engine.max_faults(size)

    def violation(self, snapshot: Snapshot) -> str:
        """Return what the engine says."""
        return self.engine.violation(snapshot)


@dataclass
class People:
    """What is done in the directories, and the truth about it.

    Parameters
    ----------
    root : Path
        Where the devices' directories are.
    """

    root: Path
    operations: list[FileOperation] = field(default_factory=list)
    commits: set[str] = field(default_factory=set)
    looks: list[bool] = field(default_factory=list)
    refused: int = 0
    began_s: float = field(default_factory=time.monotonic)

    def folder(self, device: int) -> Path:
        """Return a device's directory."""
        return self.root / f"device-{device}"

    def do(self, action: Action) -> None:
        """Do what a person does; what git refuses is counted."""
        folder, command = self.folder(action.device), action.command
        if isinstance(command, Save):
            self._save(folder, action.device, command)
        elif isinstance(command, Remove):
            path = folder / command.path
            with contextlib.suppress(FileNotFoundError):
                seen = (command.path, digest_of(path.read_bytes()))
                path.unlink()
                self._did(action.device, command.path, b"", (seen,))
        elif isinstance(command, GitCommit):
            self._commit(folder / command.repository, command)
        elif isinstance(command, GitPack):
            self._git(folder / command.repository, "gc", "--quiet")
        elif isinstance(command, Look):
            self.looks += [repository_is_sound(each) for each in repositories(folder)]

    def _save(self, folder: Path, device: int, command: Save) -> None:
        path = folder / command.path
        path.parent.mkdir(parents=True, exist_ok=True)
        before: tuple[tuple[str, bytes], ...] = ()
        with contextlib.suppress(FileNotFoundError):
            before = ((command.path, digest_of(path.read_bytes())),)
        copy = path.with_name(f"{path.name}~")
        copy.write_bytes(command.content)
        copy.replace(path)
        self._did(device, command.path, digest_of(command.content), before)

    def _did(self, device: int, path: str, version: bytes, saw: tuple[tuple[str, bytes], ...]) -> None:
        self.operations.append(FileOperation(time.monotonic() - self.began_s, device, path, version, saw))

    def _commit(self, repository: Path, command: GitCommit) -> None:
        if not (repository / ".git" / "HEAD").exists():
            repository.mkdir(parents=True, exist_ok=True)
            self._git(repository, "init", "--quiet", "--initial-branch=main")
        path = repository / command.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(command.content)
        if self._git(repository, "add", "--all") and self._git(repository, "commit", "--quiet", "-m", "a change"):
            head = git(repository, "rev-parse", "HEAD")
            if head.returncode == 0:
                self.commits.add(head.stdout.decode().strip())

    def _git(self, repository: Path, *words: str) -> bool:
        fine = repository.is_dir() and git(repository, *words).returncode == 0
        self.refused += not fine
        return fine


def git(repository: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    """Run git in a repository, without the user's or the machine's settings.

    Raises
    ------
    MissingExtraError
        When git is not installed.
    """
    program = shutil.which("git")
    if program is None:
        raise MissingExtraError("Real runs of file synchronisation need git, which is not installed.")
    environment = {
        "PATH": os.environ.get("PATH", ""),
        "HOME": str(repository),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_AUTHOR_NAME": "a person",
        "GIT_AUTHOR_EMAIL": "person@localhost",
        "GIT_COMMITTER_NAME": "a person",
        "GIT_COMMITTER_EMAIL": "person@localhost",
        "GIT_CEILING_DIRECTORIES": str(repository.parent),
    }
    settings = ("-c", "gc.auto=0", "-c", "maintenance.auto=false")
    return subprocess.run(
        [program, *settings, *words], cwd=repository, env=environment, capture_output=True, timeout=_GIT_TIMEOUT_S
    )


def repositories(folder: Path) -> list[Path]:
    """Return the git repositories directly below a folder, conflict copies among them."""
    return sorted(path.parent for path in folder.glob("*/.git") if path.is_dir())


def repository_is_sound(repository: Path) -> bool:
    """Return whether ``git fsck`` finds everything.

    Git reads one file after the other: what it misses in a repository that changed meanwhile may never have been
    missing, so it looks again, a few times at most.
    """
    for _ in range(_LOOKS):
        before = _inside(repository / ".git")
        if git(repository, "fsck", "--full", "--no-dangling").returncode == 0:
            return True
        if _inside(repository / ".git") == before:
            return False
    return False


def _inside(folder: Path) -> list[tuple[str, int, int, int]]:
    """Return ``folder`` and all below it but the engine's own: equal lists mean that nothing changed in between."""
    found = []
    for home, names, files in os.walk(folder):
        names[:] = [name for name in names if name != PRIVATE]
        for place in (home, *(os.path.join(home, name) for name in names + files)):  # noqa: PTH118  (a walk gives text)
            with contextlib.suppress(FileNotFoundError):
                status = os.lstat(place)
                found.append((place, status.st_ino, status.st_size, status.st_mtime_ns))
    return sorted(set(found))


def reachable_commits(repository: Path) -> set[str]:
    """Return the commits that the branches of a repository reach, as far as their chains are whole."""
    found: set[str] = set()
    for name in git(repository, "for-each-ref", "--format=%(refname)").stdout.decode().split():
        # Where an ancestor is missing, git names the commits up to there before it stops.
        found.update(git(repository, "rev-list", name).stdout.decode().split())
    return found


def files_of(folder: Path) -> dict[str, Seen]:
    """Return all files of a device but the engine's own."""
    found = {}
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if path.is_file() and not path.is_symlink() and PRIVATE not in relative.parts:
            with contextlib.suppress(FileNotFoundError):
                found[relative.as_posix()] = Seen(path.read_bytes(), path.stat().st_mtime)
    return found


@dataclass(frozen=True, kw_only=True)
class RealOutcome:
    """What a real run gave.

    Parameters
    ----------
    damage : Damage
        Of documents; files that differ and conflict copies are those of everything.
    commits, lost_commits : int
        Made, and not reachable from any branch of any copy at the end.
    silent_commits : int
        Those lost without a word about the repository or a branch, and without a conflict copy of either.
    fsck_runs, fsck_failures : int
        Of readers, while the engines worked.
    unsound_at_end : int
        Repositories that ``git fsck`` finds damaged at the end.
    bytes_sent, messages : int or None
        Over all links; None where a peer does not report them.
    refused : int
        Times that git refused.
    rest_s : float
        Wall time from the last change to rest.
    """

    damage: Damage
    commits: int
    lost_commits: int
    silent_commits: int
    fsck_runs: int
    fsck_failures: int
    unsound_at_end: int
    bytes_sent: int | None
    messages: int | None
    refused: int
    rest_s: float


def real_outcome(
    people: People, devices: int, *, bytes_sent: int | None, messages: int | None, rest_s: float
) -> RealOutcome:
    """Return what the oracles say about directories at rest."""
    at_end: dict[int, Mapping[str, Seen]] = {}
    reached: set[str] = set()
    unsound = 0
    notices: list[Notice] = []
    for device in range(1, devices + 1):
        folder = people.folder(device)
        at_end[device] = files_of(folder)
        for repository in repositories(folder):
            reached |= reachable_commits(repository)
            unsound += not repository_is_sound(repository)
        notices += _notices(folder)
    lost = people.commits - reached
    folders = [people.folder(device) for device in range(1, devices + 1)]
    noticed = any(_is_noticed(repository, notices) for folder in folders for repository in repositories(folder))
    # Git's own checks speak for what belongs together in repositories, whose files nobody wrote by name.
    notes = {
        device: {path: seen for path, seen in files.items() if path.split("/")[0] == "notes"}
        for device, files in at_end.items()
    }
    damage = replace(
        judge(people.operations, notices, notes),
        divergence_bytes=divergence_bytes(at_end),
        conflict_copies=conflict_copies(at_end),
    )
    return RealOutcome(
        damage=damage,
        commits=len(people.commits),
        lost_commits=len(lost),
        silent_commits=0 if noticed else len(lost),
        fsck_runs=len(people.looks),
        fsck_failures=people.looks.count(False),
        unsound_at_end=unsound,
        bytes_sent=bytes_sent,
        messages=messages,
        refused=people.refused,
        rest_s=rest_s,
    )


def _is_noticed(repository: Path, notices: Iterable[Notice]) -> bool:
    """Return whether a notice or the name of a copy says that branches of a repository clashed."""
    noticed = {notice.path for notice in notices}
    if repository.name in noticed or is_conflict(repository.name):
        return True
    inside = {path.relative_to(repository / ".git").as_posix() for path in (repository / ".git").rglob("*")}
    clashed = {original_name(path) for path in inside if is_conflict(path)}
    clashed |= {path.removeprefix(f"{repository.name}/.git/") for path in noticed}
    # A clash of a branch's log counts as well: it names the commits.
    return any(path == "packed-refs" or path.startswith(("refs/", "logs/refs/")) for path in clashed)


def _notices(folder: Path) -> Iterable[Notice]:
    with contextlib.suppress(FileNotFoundError):
        for line in (folder / PRIVATE / NOTICES).read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            yield Notice(0.0, str(row["path"]), str(row["says"]))


def real_actions(scenario: Scenario, seed: int) -> list[Action]:
    """Return the scenario's actions that real programs can do: documents, commits, gc, and looks with fsck."""
    kinds = (Save, Remove, GitCommit, GitPack, Look)
    return [action for action in scenario.actions(seed) if isinstance(action.command, kinds)]


def run_real(
    engine: Engine,
    scenario: Scenario,
    seed: int,
    network: Network,
    *,
    round_s: float = 0.05,
    processes: int = 0,
) -> RealOutcome:
    """Run an engine on real directories.

    Parameters
    ----------
    engine : TimelineSync, VersionVectorSync, CausalSnapshotSync or BilateralSync
    scenario : Scenario
    seed : int
    network : Network
        Delays and cuts, injected before the sockets.
    round_s : float
        Seconds of a round.
    processes : int
        0 for one per node, 1 for all nodes in this process.

    Raises
    ------
    WavetankError
        When a node ended with an exception.
    """
    size = scenario.devices + 1
    clocks = scenario.clocks(seed)
    with tempfile.TemporaryDirectory(prefix="wavetank-filesync-") as scratch:
        root = Path(scratch)
        people = People(root)
        for device in range(1, size):
            people.folder(device).mkdir()
        algorithm = OnDirectories(
            engine=engine,
            root=scratch,
            offsets=tuple(clocks[device].offset for device in range(1, size)),
            round_s=round_s,
        )
        settings = ClusterSettings(round_s=round_s, seed=seed)

        async def whole() -> RealOutcome:
            async with new_cluster(
                algorithm, size, processes=processes or size, settings=settings, network=network
            ) as cluster:
                await _act(people, real_actions(scenario, seed), cluster, round_s)
                # Rest cannot begin before the last cut is over.
                await asyncio.sleep(max(scenario.rounds * round_s - cluster.elapsed_s, 0.0))
                rest_s = await _rest(cluster, root, scenario.devices)
                run = await cluster.finish()
            run.check()
            sent = run.recorded.get("sent_bytes", [])
            return real_outcome(
                people,
                scenario.devices,
                bytes_sent=int(sum(value for _, _, value in sent)),
                messages=len(sent),
                rest_s=rest_s,
            )

        return asyncio.run(whole())


async def _act(people: People, actions: list[Action], cluster: Cluster, round_s: float) -> None:
    for action in actions:
        wait_s = action.at * round_s - cluster.elapsed_s
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        await asyncio.to_thread(people.do, action)


async def _rest(cluster: Cluster, root: Path, devices: int) -> float:
    """Wait until no file has changed for a while; return how long that took."""
    began = time.monotonic()
    folders = [root / f"device-{device}" for device in range(1, devices + 1)]
    last, since = [_inside(folder) for folder in folders], began
    while time.monotonic() - began < _REST_TIMEOUT_S:
        await asyncio.sleep(0.1)
        now = [_inside(folder) for folder in folders]
        if now != last:
            last, since = now, time.monotonic()
        elif time.monotonic() - since > max(_REST_S, 25 * cluster.settings.round_s):
            return since - began
    raise WavetankError("The devices did not come to rest.", given=f"{_REST_TIMEOUT_S} s", where=str(root))


def run_beside(peer: Unison | Syncthing, scenario: Scenario, seed: int) -> RealOutcome:
    """Run a synchroniser of others between two directories: it ends its work before every action, unless cut off.

    Nothing waits for the scenario's times: only their order counts.  Outside cuts nobody ever meets an old state or
    one that is on its way, which is kinder than what the engines here get.

    Parameters
    ----------
    peer : Unison or Syncthing
    scenario : Scenario
        With two devices.
    seed : int

    Raises
    ------
    BadValueError
        For another number of devices.
    MissingExtraError
        When the peer is not installed.
    """
    if scenario.devices != 2:
        raise BadValueError("This peer is driven on two directories.", given=scenario.devices, allowed="2 devices")
    cuts = scenario.partitions(seed)
    with tempfile.TemporaryDirectory(prefix="wavetank-filesync-") as scratch:
        people = People(Path(scratch))
        one, other = people.folder(1), people.folder(2)
        one.mkdir()
        other.mkdir()
        with peer.between(one, other) as synchronise:
            for action in real_actions(scenario, seed):
                if not any(cut.start <= action.at < cut.stop for cut in cuts):
                    synchronise()
                people.do(action)
            began = time.monotonic()
            for _ in range(2):
                synchronise()
            rest_s = time.monotonic() - began
        return real_outcome(people, 2, bytes_sent=None, messages=None, rest_s=rest_s)
