"""A quota of a control group is found from the process's own group upwards, in both versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from wavetank.machine.quota import cpu_quota


def system(root: Path, groups: str, mounts: str, files: dict[str, str]) -> Path:
    for name, text in {"proc/self/cgroup": groups, "proc/self/mountinfo": mounts, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:3 - cgroup cgroup rw,cpu,cpuacct\n"


@pytest.mark.parametrize(
    ("limit", "cores"), [("max 100000", None), ("150000 100000", 2), ("10000 100000", 1), ("200000 100000", 2)]
)
def test_version_2_gives_quota_over_period_rounded_up(tmp_path: Path, limit: str, cores: int | None) -> None:
    root = system(tmp_path, "0::/user/job\n", V2, {"sys/fs/cgroup/user/job/cpu.max": limit + "\n"})
    assert cpu_quota(root) == cores


def test_the_least_limit_of_all_groups_above_counts(tmp_path: Path) -> None:
    files = {"sys/fs/cgroup/user/cpu.max": "300000 100000", "sys/fs/cgroup/user/job/cpu.max": "800000 100000"}
    assert cpu_quota(system(tmp_path, "0::/user/job\n", V2, files)) == 3


def test_another_process_s_group_does_not_count(tmp_path: Path) -> None:
    files = {"sys/fs/cgroup/user/other/cpu.max": "100000 100000", "sys/fs/cgroup/user/job/cpu.max": "max 100000"}
    assert cpu_quota(system(tmp_path, "0::/user/job\n", V2, files)) is None


def test_version_1_reads_the_cpu_controller(tmp_path: Path) -> None:
    folder = "sys/fs/cgroup/cpu,cpuacct/job/"
    files = {folder + "cpu.cfs_quota_us": "250000\n", folder + "cpu.cfs_period_us": "100000\n"}
    groups = "9:memory:/elsewhere\n4:cpu,cpuacct:/job\n0::/\n"
    assert cpu_quota(system(tmp_path, groups, V1, files)) == 3


def test_version_1_without_a_quota_is_no_limit(tmp_path: Path) -> None:
    folder = "sys/fs/cgroup/cpu,cpuacct/"
    files = {folder + "cpu.cfs_quota_us": "-1\n", folder + "cpu.cfs_period_us": "100000\n"}
    assert cpu_quota(system(tmp_path, "4:cpu,cpuacct:/\n", V1, files)) is None


def test_a_mount_that_shows_only_the_container_s_group(tmp_path: Path) -> None:
    mounts = "30 23 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n"
    files = {"sys/fs/cgroup/cpu.max": "100000 100000", "sys/fs/cgroup/inner/cpu.max": "900000 100000"}
    assert cpu_quota(system(tmp_path, "0::/docker/abc/inner\n", mounts, files)) == 1


@pytest.mark.parametrize("text", ["", "nonsense", "100000", "x y", "100000 0", "-5 100000", "\0\xff"])
def test_damaged_files_are_no_limit(tmp_path: Path, text: str) -> None:
    assert cpu_quota(system(tmp_path, "0::/\n", V2, {"sys/fs/cgroup/cpu.max": text})) is None
    (tmp_path / "proc/self/mountinfo").write_text(text)
    assert cpu_quota(tmp_path) is None
    (tmp_path / "proc/self/cgroup").unlink()
    assert cpu_quota(tmp_path) is None
