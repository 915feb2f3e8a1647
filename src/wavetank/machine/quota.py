"""The share of the processor that the control groups of Linux grant this process.

A container that may use two of sixty-four cores sees all of them: the limit is a quota of time per period, in files of
the control group of the process and of every group above it.  Both versions of control groups are read.
"""

from __future__ import annotations

import math
from pathlib import Path


def cpu_quota(root: Path = Path("/")) -> int | None:
    """Return the cores' worth of time that this process may use, rounded up, at least 1; None without a limit.

    The least of all limits from the process's own group upwards counts.  What cannot be read is no limit.

    Parameters
    ----------
    root : Path
        Under which ``proc`` and the mounted control groups lie.
    """
    try:
        groups = _groups(root)
        mounts = (root / "proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return None
    least: float | None = None
    for line in mounts:
        found = _mounted(line)
        if found is None:
            continue
        version, shown, mounted = found
        group = groups.get(version)
        if group is None:
            continue
        top = root / mounted.lstrip("/")
        for folder in _upwards(top, shown, group):
            share = _share_v2(folder) if version == 2 else _share_v1(folder)
            if share is not None:
                least = share if least is None else min(least, share)
    return None if least is None else max(1, math.ceil(least))


def _groups(root: Path) -> dict[int, str]:
    """Return the group of this process by version: that of version 1 is the one of the cpu controller."""
    groups = {}
    for line in (root / "proc/self/cgroup").read_text(errors="replace").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            groups[2] = path
        elif "cpu" in controllers.split(","):
            groups[1] = path
    return groups


def _mounted(line: str) -> tuple[int, str, str] | None:
    """Return version, the group that is shown, and the folder of a mount that has a quota; None for other mounts."""
    before, separator, after = line.partition(" - ")
    fields, kinds = before.split(), after.split()
    if not separator or len(fields) < 5 or len(kinds) < 3:
        return None
    if kinds[0] == "cgroup2":
        return 2, fields[3], fields[4]
    if kinds[0] == "cgroup" and "cpu" in kinds[2].split(","):
        return 1, fields[3], fields[4]
    return None


def _upwards(top: Path, shown: str, group: str) -> list[Path]:
    """Return the folders of a group and of all above it that are visible below a mount."""
    shown = shown.rstrip("/")
    # Inside a container the mount shows the container's own group, whether or not the path is given from there.
    own = group[len(shown) :] if group == shown or group.startswith(shown + "/") else ""
    parts = [part for part in own.split("/") if part and part != ".."]
    return [top.joinpath(*parts[:length]) for length in range(len(parts), -1, -1)]


def _share_v2(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()[:2]
        return None if quota == "max" else _ratio(quota, period)
    except (OSError, ValueError):
        return None


def _share_v1(folder: Path) -> float | None:
    try:
        return _ratio((folder / "cpu.cfs_quota_us").read_text(), (folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None


def _ratio(quota: str, period: str) -> float | None:
    numerator, denominator = int(quota), int(period)
    return numerator / denominator if numerator > 0 and denominator > 0 else None
