"""What is being compiled while a study runs, in this process and in those that run its trials.

The processes append a line to a file when they begin to compile a function and when they have ended; the file is named
in an environment variable, which they inherit.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from wavetank.cache_folder import COMPILING_FILE
from wavetank.terminal import say

SHOWN_AFTER_S = 2.0
_POLL_S = 0.5


def saying_once() -> Callable[[list[str]], None]:
    """Return a call-back that says of each function, once, that this is what the command waits for."""
    said: set[str] = set()

    def shown(names: list[str]) -> None:
        for name in names:
            if name not in said:
                said.add(name)
                say(f"  compiling {name}, once", err=True)

    return shown


class CompileWatch:
    """Calls back when a function has been compiling for ``SHOWN_AFTER_S``, and when nothing is compiling any more.

    Parameters
    ----------
    shown : callable
        Called from a thread with the names of the functions that are being compiled, sorted; with none of them at the
        end.
    """

    def __init__(self, shown: Callable[[list[str]], None]) -> None:
        self._shown = shown
        self._begun: dict[str, float] = {}
        self._last: list[str] = []
        self._read = 0
        self._ended = threading.Event()
        self._file: Path | None = None
        self._before: str | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> CompileWatch:
        try:
            descriptor, name = tempfile.mkstemp(prefix="wavetank-compiling-", suffix=".txt")
        except OSError:
            # No folder for temporary files: a run goes on without this line of progress.
            return self
        os.close(descriptor)
        self._file = Path(name)
        self._before = os.environ.get(COMPILING_FILE)
        os.environ[COMPILING_FILE] = name
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        if self._file is not None:
            self._file.unlink(missing_ok=True)
            if self._before is None:
                os.environ.pop(COMPILING_FILE, None)
            else:
                os.environ[COMPILING_FILE] = self._before

    def _watch(self) -> None:
        while not self._ended.wait(_POLL_S):
            self.look(time.monotonic())

    def look(self, now: float) -> None:
        """Read what the processes have written since the last look, and call back if what is shown has changed."""
        if self._file is None:
            return
        try:
            with self._file.open() as lines:
                lines.seek(self._read)
                text = lines.read()
        except OSError:
            return
        # A line that is not whole yet is read at the next look.
        whole = text[: text.rfind("\n") + 1]
        self._read += len(whole.encode())
        for line in whole.splitlines():
            what, _, rest = line.partition(" ")
            name = rest.split(" ")[0]
            if what == "begin":
                self._begun[name] = now
            else:
                self._begun.pop(name, None)
        shown = sorted(name for name, since in self._begun.items() if now - since >= SHOWN_AFTER_S)
        if shown != self._last:
            self._last = shown
            self._shown(shown)
