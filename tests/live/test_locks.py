"""Locks that end with the process that holds them."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest

from wavetank.errors import BadFileError
from wavetank.live import locks
from wavetank.live.locks import holder_of, lock
from wavetank.live.processes import python_code


def test_a_lock_is_its_holders_alone_and_names_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    first, second = (os.open(path, os.O_RDWR | os.O_CREAT) for _ in range(2))
    assert holder_of(first) is None
    lock(first, path, "The file")
    lock(first, path, "The file")
    with pytest.raises(BadFileError, match="The file is in use by") as caught:
        lock(second, path, "The file")
    assert caught.value.where == str(path)
    assert holder_of(second) in (os.getpid(), None)
    os.close(first)
    lock(second, path, "The file")
    os.close(second)


def test_a_lock_ends_with_kill_9(tmp_path: Path) -> None:
    path = tmp_path / "file"
    code = (
        "import os, sys, pathlib, time\n"
        "from wavetank.live.locks import lock\n"
        "path = pathlib.Path(sys.argv[1])\n"
        "lock(os.open(path, os.O_RDWR | os.O_CREAT), path, 'The file')\n"
        "print('held', flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen(python_code(code, str(path)), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        opened = os.open(path, os.O_RDWR)
        with pytest.raises(BadFileError, match=f"pid {process.pid}|another process"):
            lock(opened, path, "The file")
        process.kill()
    lock(opened, path, "The file")
    os.close(opened)


def test_what_cannot_be_locked_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(opened: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(locks.fcntl, "flock", none_left)
    with pytest.raises(BadFileError, match="cannot be locked: No locks available"):
        lock(0, tmp_path, "The file")
