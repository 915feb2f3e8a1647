"""The process of an environment: lines in, lines out, and a limit of memory."""

import asyncio
import json
import pickle
import subprocess
import sys

from wavetank.live.processes import python_code, python_module
from wavetank.sim.rng import Draws
from wavetank.training.tenants.confined_process import serve
from wavetank.training.tenants.toys import Bandit

BE = [9, "be", pickle.dumps((Bandit(secret=2), 100_000_000)).hex()]


def test_every_line_has_its_answer_and_faults_are_said(monkeypatch):
    limits = []
    monkeypatch.setattr("wavetank.training.tenants.confined_process.limit_memory", limits.append)

    async def answered(*lines):
        found, queue = [], asyncio.Queue()
        for line in lines:
            queue.put_nowait(json.dumps(line).encode())
            await asyncio.sleep(0)
        job = asyncio.ensure_future(serve(queue, lambda text: found.append(json.loads(text))))
        while len(found) < len(lines):
            await asyncio.sleep(0.001)
        queue.put_nowait(b"")
        await job
        return {each[0]: each[1:] for each in found}

    found = asyncio.run(answered(BE, [0, "begin", 5, 11, 0], [1, "act", 0, 3], [2, "act", 77, 3]))
    assert limits == [100_000_000]
    session = Bandit(secret=2).begin(5, Draws(11))
    reply = asyncio.run(session.act(3))
    assert found[0] == [[session.observation.tolist()]]
    assert found[1] == [[reply.observation.tolist(), reply.reward, True]]
    assert found[2][0] is None and "KeyError" in found[2][1]


def test_memory_beyond_the_limit_is_refused():
    code = (
        "from wavetank.training.tenants.confined_process import limit_memory\n"
        "limit_memory(50_000_000)\nb = bytearray(1_000_000)\n"
        "try:\n    b = bytearray(500_000_000)\nexcept MemoryError:\n    print('refused')\n"
    )
    done = subprocess.run(python_code(code), capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == ("refused\n" if sys.platform == "linux" else done.stdout)


def test_it_ends_with_its_input():
    words = python_module("wavetank.training.tenants.confined_process")
    done = subprocess.run(words, input=json.dumps(BE) + "\n", capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert done.stdout in ("", "[9, []]\n")
