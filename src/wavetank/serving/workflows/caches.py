"""What a device keeps between stages: models, and the keys and values of prefixes, each least recently used out first.

The simulator, the schedulers' what-if questions and the worker processes use this one definition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from wavetank.serving.workflows.interface import Device, DeviceView, Stage


class Used(NamedTuple):
    """What a stage found and changed on a device."""

    loaded: bool
    """Whether its model had to be loaded."""
    reused_tokens: int
    """Tokens of its prefix that were there."""
    evicted: tuple[str, ...]
    """Models that had to go."""


class Caches:
    """Models and prefixes on one device.

    Parameters
    ----------
    device : Device
    model_bytes, token_bytes : mapping of str to float
        Weights of each model, and keys and values of one of its tokens.
    """

    __slots__ = ("_device", "_model_bytes", "_token_bytes", "models", "prefixes")

    def __init__(self, device: Device, model_bytes: Mapping[str, float], token_bytes: Mapping[str, float]) -> None:
        self._device, self._model_bytes, self._token_bytes = device, model_bytes, token_bytes
        self.models: dict[str, None] = {}
        self.prefixes: dict[tuple[str, str], int] = {}

    def fill(self, models: Iterable[str], prefixes: Iterable[tuple[str, str, int]]) -> None:
        """Take over what a view says."""
        self.models = dict.fromkeys(models)
        self.prefixes = {(model, prefix): tokens for model, prefix, tokens in prefixes}

    def copy(self) -> Caches:
        """Return caches of their own with the same content."""
        found = Caches(self._device, self._model_bytes, self._token_bytes)
        found.models, found.prefixes = dict(self.models), dict(self.prefixes)
        return found

    def view(self, ready_s: float, idle: bool) -> DeviceView:
        """Return the device as a scheduler sees it."""
        return DeviceView(
            ready_s, idle, tuple(self.models),
            tuple((model, prefix, tokens) for (model, prefix), tokens in self.prefixes.items()),
        )  # fmt: skip

    def cached_tokens(self, stage: Stage) -> int:
        """Return how many tokens of a stage's prefix are there."""
        if not stage.prefix or stage.model not in self.models:
            return 0
        return min(stage.prefix_tokens, self.prefixes.get((stage.model, stage.prefix), 0))

    def use(self, stage: Stage) -> Used:
        """Make room for a stage's model and prefix, mark both as used, and return what was found and what went."""
        reused = self.cached_tokens(stage)
        evicted = []
        loaded = stage.model not in self.models
        if loaded:
            free = self._device.weights_bytes - sum(self._model_bytes[each] for each in self.models)
            for old in list(self.models):
                if free >= self._model_bytes[stage.model]:
                    break
                free += self._model_bytes[old]
                del self.models[old]
                evicted.append(old)
                # Keys and values are worth nothing without the model that made them.
                for key in [each for each in self.prefixes if each[0] == old]:
                    del self.prefixes[key]
        else:
            del self.models[stage.model]
        self.models[stage.model] = None
        if stage.prefix:
            key = stage.model, stage.prefix
            kept = max(self.prefixes.pop(key, 0), stage.kept_tokens)
            room = self._device.cache_bytes - kept * self._token_bytes[stage.model]
            if room >= 0:
                taken = sum(tokens * self._token_bytes[each[0]] for each, tokens in self.prefixes.items())
                for other in list(self.prefixes):
                    if taken <= room:
                        break
                    taken -= self.prefixes.pop(other) * self._token_bytes[other[0]]
                self.prefixes[key] = kept
        return Used(loaded, reused, tuple(evicted))
