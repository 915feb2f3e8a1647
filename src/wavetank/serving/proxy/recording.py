"""Traffic written down as a trace that ``wavetank compare llm-routing --set trace=FILE`` reads.

One JSON object per line and request, written when the request is done: when it arrived, how long its prompt and its
answer were, its model, and the hashes of its prefix blocks where the router computes them.  No text of a prompt or an
answer, and the hashes are keyed with a secret that is never written, so that nobody can test guesses.

Lines are written whole, once per second, by a thread of their own, so that a slow disk holds nobody up and a crash
loses a second.  A last line that a crash tore is cut off when the file is continued, and left out when it is read.
Requests stand in the order in which they ended; :func:`wavetank.workloads.load.read_trace` puts recorded traces in
order of arrival.

Left out: requests that gave no token (refused, failed, left by their client before the first).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from wavetank.errors import BadFileError, BadValueError
from wavetank.workloads.trace_sources import RECORDING_KEY, RECORDING_VERSION

log = logging.getLogger("wavetank.router")

FORMATS = (".jsonl", ".ndjson")
# Lines that may wait for the disk; more are lost, and counted.
MOST_WAITING = 100_000


class Recording:
    """A file that requests are appended to.

    Parameters
    ----------
    path : str or Path
        ``.jsonl`` or ``.ndjson``; a recording that is there already is continued.
    block_tokens : int
        Tokens of a prefix block.
    written, lost : callable
        Called with how many requests were written, and how many could not be.
    key : bytes, optional
        Of the block hashes; a new secret by default.  With a new one, blocks of an earlier part of the file never
        match later ones.

    Raises
    ------
    BadFileError
        If the file cannot be written or is something else than a recording.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        block_tokens: int,
        written: Callable[[int], None] = lambda count: None,
        lost: Callable[[int], None] = lambda count: None,
        key: bytes | None = None,
    ) -> None:
        self.path = Path(path).expanduser()
        self.key = secrets.token_bytes(16) if key is None else key
        self._block_tokens = block_tokens
        self._written, self._lost = written, lost
        self._lines: list[str] = []
        # The trace's clock is the wall's at the start, and monotonic from there.
        self._zero_s = time.time() - time.monotonic()
        self._file = self._opened()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="recording")
        self._complained = False

    def _opened(self) -> int:
        if not self.path.name.lower().endswith(FORMATS):
            raise BadValueError("A recording is a file of JSON lines.", given=str(self.path), allowed=FORMATS)
        try:
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise BadFileError(
                f"The recording cannot be written: {error.strerror or error}.", where=str(self.path)
            ) from None
        try:
            self._continue(file)
        except BaseException:
            os.close(file)
            raise
        return file

    def _continue(self, file: int) -> None:
        """Check that a file is a recording, and cut off a last line that is not whole."""
        with open(file, "rb", closefd=False) as stream:
            first = stream.readline(1 << 20)
            size = stream.seek(0, os.SEEK_END)
            begins = f'{{"{RECORDING_KEY}":'.encode()
            if not (begins.startswith(first) or first.startswith(begins)):
                raise BadFileError(
                    "The file exists and is not a recording.", where=str(self.path), hint="choose another name"
                )
            if first.endswith(b"\n"):
                self._check_version(first)
            end, step = size, 1 << 16
            while end > 0:
                start = max(end - step, 0)
                stream.seek(start)
                found = stream.read(end - start).rfind(b"\n")
                if found >= 0:
                    end = start + found + 1
                    break
                end = start
        if end < size:
            os.ftruncate(file, end)

    def _check_version(self, first: bytes) -> None:
        try:
            row = json.loads(first)
            version, block_tokens = row[RECORDING_KEY], row.get("block_tokens", self._block_tokens)
        except (ValueError, KeyError, AttributeError):
            raise BadFileError("The recording is damaged.", where=f"{self.path}, line 1") from None
        if version != RECORDING_VERSION or block_tokens != self._block_tokens:
            raise BadFileError(
                "The existing recording cannot be continued: its block size or its format differs.",
                given=f"version {version}, block_tokens {block_tokens}",
                allowed=f"version {RECORDING_VERSION}, block_tokens {self._block_tokens}",
                where=str(self.path),
                hint="record to another file",
            )

    def add(
        self,
        *,
        arrived_s: float,
        prompt_tokens: int,
        output_tokens: int,
        reported: bool,
        model: str,
        blocks: list[int] | None,
    ) -> None:
        """Take in a request that is done.

        Parameters
        ----------
        arrived_s : float
            On the monotonic clock.
        prompt_tokens, output_tokens : int
            At least 1.
        reported : bool
            Whether the server reported the lengths; else they are estimates.
        model : str
        blocks : list of int or None
            Hashes of the prompt's blocks; None where they are not computed.
        """
        if len(self._lines) >= MOST_WAITING:
            self._lost(1)
            return
        row: dict[str, object] = {
            RECORDING_KEY: RECORDING_VERSION,
            "arrival_s": round(self._zero_s + arrived_s, 6),
            "prompt_tokens": prompt_tokens,
            "output_tokens": output_tokens,
            "lengths": "reported" if reported else "estimated",
            "model": model,
        }
        if blocks is not None:
            # Blocks are cut from text at an average length: a prompt of long tokens has more than its tokens fill.
            row["block_ids"] = blocks[: -(-prompt_tokens // self._block_tokens)]
            row["block_tokens"] = self._block_tokens
        self._lines.append(json.dumps(row, separators=(",", ":")))

    async def write_every(self, seconds: float = 1.0) -> None:
        """Write what has come, again and again, until cancelled."""
        while True:
            await asyncio.sleep(seconds)
            await self.flush()

    async def flush(self) -> None:
        """Write what has come."""
        if self._lines:
            lines, self._lines = self._lines, []
            wrote = await asyncio.get_running_loop().run_in_executor(self._writer, self._write, lines)
            if wrote:
                self._written(len(lines))
            else:
                self._lost(len(lines))

    def _write(self, lines: list[str]) -> bool:
        data = ("\n".join(lines) + "\n").encode()
        size = os.fstat(self._file).st_size
        try:
            done = 0
            while done < len(data):
                done += os.write(self._file, data[done:])
        except OSError as error:
            # Half a line must not stand before the next ones.
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, size)
            if not self._complained:
                self._complained = True
                log.warning("the recording %s cannot be written: %s; requests are served on", self.path, error)
            return False
        return True

    async def close(self) -> None:
        """Write what has come, bring it to the disk and close the file."""
        await self.flush()
        self._writer.shutdown(wait=True)
        with contextlib.suppress(OSError):
            os.fsync(self._file)
        os.close(self._file)
