"""Shares of the traffic that are fixed: a new version that gets one request in twenty, whatever the policy decides.

Every request that a backend with a share could answer is added to what the backend is due; it gets one whenever a whole
request is due.  So one backend is never more than one request away from its share, and several never more than their
number, without a draw of chance.

Source: error diffusion, as in smooth weighted round robin (nginx).
"""

from __future__ import annotations

from collections.abc import Sequence

from wavetank.serving.proxy.backends import Backend


class Shares:
    """The backends that get a fixed share.

    Attributes
    ----------
    backends : tuple of Backend
    """

    def __init__(self) -> None:
        self.backends: tuple[Backend, ...] = ()
        self._due: dict[Backend, float] = {}

    def set(self, backends: Sequence[Backend]) -> None:
        """Give shares to these from now on; what a backend is due stays."""
        self.backends = tuple(backends)
        self._due = {backend: self._due.get(backend, 0.0) for backend in backends}

    def next(self, model: str | None) -> Backend | None:
        """Return the backend that must get the next request of a model; None where the policy decides."""
        if not self.backends:
            return None
        found: Backend | None = None
        due = self._due
        for backend in self.backends:
            if not backend.serves(model):
                continue
            due[backend] += backend.share or 0.0
            # A hundred shares of 0.01 are a little off 1.
            if due[backend] >= 1.0 - 1e-9 and (found is None or due[backend] > due[found]):
                found = backend
        if found is not None:
            due[found] -= 1.0
        return found
