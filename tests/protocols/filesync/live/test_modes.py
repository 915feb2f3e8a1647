"""Who may read a file stays as it was, and a folder that cannot be read is left alone: as a user who is not root."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from wavetank.live.processes import python_code
from wavetank.protocols.filesync.tree import access_of, mode_of, narrowed

NOBODY = 65534

# Root reads whatever it likes, so this part runs as somebody else.
STORY = """
import asyncio, json, os, sys
from pathlib import Path
from wavetank.protocols.filesync import bilateral, causal, timeline, vectors
from wavetank.protocols.filesync.live.real import OnDirectories
from wavetank.live.cluster import ClusterSettings, InProcessCluster

engine = {"timeline": timeline.TimelineSync, "vectors": vectors.VersionVectorSync,
          "causal": causal.CausalSnapshotSync, "bilateral": bilateral.BilateralSync}[sys.argv[2]]()
root = Path(sys.argv[1])
one, two = root / "device-1", root / "device-2"
# The installation may lie where only root can read: everything is imported by now.
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
os.umask(0o022)


def put(path, text, mode):
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def modes(folder):
    return {str(path.relative_to(folder)): oct(path.stat().st_mode & 0o777) for path in sorted(folder.rglob("*"))
            if path.is_file() and ".wavetank-sync" not in path.parts}


async def until(true):
    for _ in range(400):
        if true():
            return True
        await asyncio.sleep(0.05)
    return False


async def story():
    found = {}
    one.mkdir(), two.mkdir()
    put(one / "secret.txt", "secret", 0o600)
    put(one / "open.txt", "open", 0o644)
    put(one / "tool.sh", "tool", 0o755)
    put(one / "group.txt", "group", 0o640)
    put(one / "private" / "id", "key", 0o600)
    (one / "private").chmod(0o700)
    put(one / "closed" / "old.txt", "old", 0o644)
    algorithm = OnDirectories(engine=engine, root=str(root), round_s=0.02)
    async with InProcessCluster(algorithm, 3, settings=ClusterSettings(round_s=0.02)) as cluster:
        found["came"] = await until(lambda: (two / "closed" / "old.txt").exists() and len(modes(two)) == 6)
        found["modes"] = modes(two)
        found["folder"] = oct((two / "private").stat().st_mode & 0o777)
        found["own"] = oct((two / ".wavetank-sync").stat().st_mode & 0o777)
        # An editor that writes a new file leaves it readable for all; on the other device it was not.
        put(two / "secret.txt~", "edited", 0o644)
        (two / "secret.txt~").replace(two / "secret.txt")
        found["edited"] = await until(lambda: (one / "secret.txt").read_text() == "edited")
        found["after"] = oct((one / "secret.txt").stat().st_mode & 0o777)
        # A folder that cannot be read: the rest goes on, and nothing in it is taken for removed.
        (one / "closed").chmod(0)
        put(one / "new.txt", "new", 0o644)
        found["rest"] = await until(lambda: (two / "new.txt").exists())
        await asyncio.sleep(0.5)
        found["kept"] = (two / "closed" / "old.txt").exists()
        notices = (one / ".wavetank-sync" / "notices.jsonl").read_text().splitlines()
        found["notices"] = [json.loads(line)["path"] for line in notices]
        # Also not by a device that begins while it cannot be read.
        await cluster.kill(1)
        await cluster.restart(1)
        put(one / "newer.txt", "newer", 0o644)
        found["restarted"] = await until(lambda: (two / "newer.txt").exists())
        await asyncio.sleep(0.5)
        found["kept again"] = (two / "closed" / "old.txt").exists()
        (one / "closed").chmod(0o755)
        found["still here"] = (one / "closed" / "old.txt").exists()
        put(one / "closed" / "later.txt", "later", 0o644)
        found["later"] = await until(lambda: (two / "closed" / "later.txt").exists())
        run = await cluster.finish()
        found["failures"] = list(run.failures.values())
    print(json.dumps(found))


asyncio.run(story())
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder that nobody may write to, in the literal sense."""
    if os.name != "posix" or os.getuid() != 0:
        pytest.skip("only root can run a test as another user")
    path = Path(tempfile.mkdtemp(prefix="wavetank-modes-", dir="/tmp"))
    os.chown(path, NOBODY, NOBODY)
    yield path
    for each in path.rglob("*"):
        if each.is_dir() and not each.is_symlink():
            each.chmod(0o700)
    shutil.rmtree(path)


@pytest.mark.parametrize("engine", ["timeline", "vectors", "causal", "bilateral"])
def test_modes_travel_and_a_folder_that_cannot_be_read_is_unknown(folder: Path, engine: str) -> None:
    done = subprocess.run(
        python_code(STORY, str(folder), engine),
        cwd="/",
        env={**os.environ, "HOME": str(folder), "TMPDIR": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["came"]
    assert found["modes"] == {
        "closed/old.txt": "0o644",
        "group.txt": "0o640",
        "open.txt": "0o644",
        "private/id": "0o600",
        "secret.txt": "0o600",
        "tool.sh": "0o755",
    }
    assert (found["folder"], found["own"]) == ("0o700", "0o700")
    assert (found["edited"], found["after"]) == (True, "0o600")
    assert (found["rest"], found["kept"], found["restarted"], found["kept again"]) == (True, True, True, True)
    assert found["still here"]
    assert found["later"]
    assert "closed/" in found["notices"]
    assert found["failures"] == []


@pytest.mark.parametrize("mode", [0o644, 0o755, 0o600, 0o640, 0o700, 0o444, 0o664, 0o777])
def test_permission_bits_come_back_as_they_were(mode: int) -> None:
    assert mode_of(access_of(stat.S_IFREG | mode)) == mode


def test_bits_beyond_the_nine_are_dropped() -> None:
    assert mode_of(0o4755 | 0o100000) == 0o755
    assert mode_of(access_of(stat.S_IFREG | 0o6755)) == 0o755


@pytest.mark.parametrize(
    ("access", "replaced", "mode"),
    [
        (False, 0o600, 0o600),
        (True, 0o600, 0o700),
        (False, 0o644, 0o644),
        (True, 0o644, 0o755),
        (0o666, 0o644, 0o644),
        (0o600, 0o644, 0o600),
        (0o640, 0o604, 0o600),
    ],
)
def test_what_takes_a_files_place_is_open_to_no_more_people(access: bool | int, replaced: int, mode: int) -> None:
    assert narrowed(access, replaced) == mode
