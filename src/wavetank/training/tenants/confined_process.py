"""The other side of :mod:`~wavetank.training.tenants.confined`: a process in which one tenant's environment runs.

It reads lines of JSON, ``[call, "be", environment]`` first, which is pickled, then
``[call, "begin", prompt, key, count]``, ``[call, "act", answer, action]`` and ``[call, "end", answer]``.  It answers
each but the last with ``[call, reply]``, or ``[call, null, why]``.  What the tenant prints
goes to the error output.  The process ends when its input does, even in the middle of a loop without end.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
import sys
import threading
from typing import Any

from wavetank.sim.rng import Draws


def limit_memory(more_bytes: int) -> None:
    """Let this process take so much more memory than it has, where the system can limit it.

    Parameters
    ----------
    more_bytes : int
    """
    try:
        import resource
        from pathlib import Path

        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except (ImportError, OSError):
        return
    most = pages * resource.getpagesize() + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


async def serve(lines: asyncio.Queue[bytes], write: Any) -> None:
    """Do what lines ask for until one is empty.

    Parameters
    ----------
    lines : asyncio.Queue of bytes
    write : callable
        Takes a line.
    """
    sessions: dict[int, Any] = {}
    environment: Any = None
    jobs: set[asyncio.Task[None]] = set()

    async def do(call: int, word: str, *given: Any) -> None:
        nonlocal environment
        try:
            if word == "be":
                environment, more_bytes = pickle.loads(bytes.fromhex(given[0]))
                limit_memory(more_bytes)
                reply: list[Any] = []
            elif word == "begin":
                prompt, key, count = given
                sessions[call] = environment.begin(prompt, Draws(key, count))
                reply = [_numbers(sessions[call].observation)]
            else:
                observation, reward, done = await sessions[given[0]].act(given[1])
                reply = [_numbers(observation), float(reward), bool(done)]
            answer = [call, reply]
        except Exception as error:
            answer = [call, None, repr(error)[:200]]
        write(json.dumps(answer))

    while line := await lines.get():
        call, word, *given = json.loads(line)
        if word == "end":
            sessions.pop(given[0], None)
            continue
        job = asyncio.ensure_future(do(call, word, *given))
        jobs.add(job)
        job.add_done_callback(jobs.discard)


def _numbers(values: Any) -> list[float]:
    return [float(each) for each in values]


def _listen(file: Any, loop: asyncio.AbstractEventLoop, lines: asyncio.Queue[bytes]) -> None:
    """Hand lines on to the loop; when there are no more, end the process whatever it does."""
    for line in file:
        loop.call_soon_threadsafe(lines.put_nowait, line)
    os._exit(0)


async def _main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asked = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    lines: asyncio.Queue[bytes] = asyncio.Queue()
    threading.Thread(target=_listen, args=(asked, asyncio.get_running_loop(), lines), daemon=True).start()

    def write(text: str) -> None:
        answers.write(text + "\n")
        answers.flush()

    await serve(lines, write)


if __name__ == "__main__":
    sys.exit(asyncio.run(_main()))
