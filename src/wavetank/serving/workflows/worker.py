"""A process that stands for one device: it keeps models and prefixes in real memory and computes stages in real time.

It reads one JSON object a line from its standard input and answers each with one line.  What it keeps, and what goes
when there is no room, it decides by itself; it waits for as long as a stage would take, divided by the speed.  It is
started by :mod:`wavetank.serving.workflows.live` and ends with its input.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any, TextIO

from wavetank.serving.workflows.caches import Caches
from wavetank.serving.workflows.interface import Device, Stage

_LONGEST_LINE = 1_000_000


class Worker:
    """One device.

    Parameters
    ----------
    about : dict
        ``device``, ``model_bytes`` and ``token_bytes`` as the platform has them, ``memory_scale`` (bytes that are
        really held per byte of the device) and ``speed`` (simulated seconds per second).
    """

    def __init__(self, about: dict[str, Any]) -> None:
        self._device = Device(**about["device"])
        self._model_bytes, self._token_bytes = about["model_bytes"], about["token_bytes"]
        self._scale, self._speed = float(about["memory_scale"]), float(about["speed"])
        self._caches = Caches(self._device, self._model_bytes, self._token_bytes)
        self._weights: dict[str, bytearray] = {}
        self._kept: dict[tuple[str, str], bytearray] = {}

    def run(self, task: dict[str, Any]) -> dict[str, Any]:
        """Compute a share of a stage and return what was found, what went and what is kept now."""
        stage = Stage(**{**task["stage"], "devices": frozenset(task["stage"]["devices"])})
        used = self._caches.use(stage)
        self._hold()
        load = self._model_bytes[stage.model] / self._device.load_bytes_per_s if used.loaded else 0.0
        prefix, rest = self._device.parts_s(stage, stage.output_tokens, used.reused_tokens)
        seconds = task["transfer_s"] + load + prefix + task["share"] * rest + task["merge_s"]
        time.sleep(seconds / self._speed)
        view = self._caches.view(0.0, True)
        return {
            "loaded": used.loaded, "reused_tokens": used.reused_tokens, "evicted": used.evicted, "models": view.models,
            "prefixes": view.prefixes, "load_s": load,
            "held_bytes": sum(map(len, self._weights.values())) + sum(map(len, self._kept.values())),
        }  # fmt: skip

    def _hold(self) -> None:
        """Let go of memory that nothing is kept in any more, and take what is new."""
        for gone in self._weights.keys() - self._caches.models.keys():
            del self._weights[gone]
        for model in self._caches.models:
            if model not in self._weights:
                self._weights[model] = bytearray(int(self._model_bytes[model] * self._scale))
        for key in list(self._kept):
            if key not in self._caches.prefixes:
                del self._kept[key]
        for key, tokens in self._caches.prefixes.items():
            size = int(tokens * self._token_bytes[key[0]] * self._scale)
            if len(self._kept.get(key, b"")) != size:
                self._kept[key] = bytearray(size)


def serve(lines: TextIO, answers: TextIO) -> None:
    """Answer requests until the input ends.

    Parameters
    ----------
    lines, answers : text streams
        The first line describes the device; every other one is a share of a stage.
    """
    worker: Worker | None = None
    while line := lines.readline(_LONGEST_LINE):
        if worker is None:
            worker = Worker(json.loads(line))
            answer: dict[str, Any] = {"ready": True}
        else:
            answer = worker.run(json.loads(line))
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve(sys.stdin, sys.stdout)
