"""What is admitted without a budget: nothing, everything, or up to a cap.

A cap is one number to tune and nothing to predict.  Tuned for the load, the lengths and the objective at hand it is the
rival that a controller has to beat; at other loads the same number is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from wavetank.serving.branches.interface import choose_function
from wavetank.settings import setting

Floats = NDArray[np.float64]


@choose_function
def _choose_capped(view, step, table, predictor, state, parameters, admitted):  # type: ignore[no-untyped-def]
    """Admit branches in their order, up to a width per request and a number of tokens in the step."""
    width, tokens = parameters[0], parameters[1]
    wide = np.ones(view.deadline_s.size, np.int64)
    count = 0
    n = view.request.size
    for k in range(n):
        # Requests take turns in coming first, lest the oldest always have all there is.
        i = (k + view.step) % n
        r = view.request[i]
        if count >= view.room or view.decodes + count + view.prefill_tokens >= tokens:
            break
        if wide[r] < width:
            admitted[i] = 1
            wide[r] += 1
            count += 1
    return count


@dataclass(frozen=True, kw_only=True)
class FixedCap:
    """Controller that runs the same number of branches of every request."""

    cap: int = setting(
        0, unit="branches", says="Branches of a request in a step; 0: tuned by the study", low=0, high=1 << 20
    )

    choose = staticmethod(_choose_capped)

    def parameters(self) -> Floats:
        """Return the cap, and no bound on tokens."""
        return np.array([self.cap or 1, np.inf])

    def candidates(self) -> tuple[FixedCap, ...]:
        """Return the controllers that a study tunes among; only itself where the cap is given."""
        return (self,) if self.cap else tuple(replace(self, cap=cap) for cap in (1, 2, 3, 4, 5, 6, 8))


@dataclass(frozen=True, kw_only=True)
class TokenBudget:
    """Controller that admits branches until the step has a number of tokens, prompts included."""

    tokens: int = setting(0, unit="tokens", says="Tokens of a step; 0: tuned by the study", low=0, high=1 << 20)

    choose = staticmethod(_choose_capped)

    def parameters(self) -> Floats:
        """Return no cap per request, and the tokens."""
        return np.array([np.inf, self.tokens or 1])

    def candidates(self) -> tuple[TokenBudget, ...]:
        """Return the controllers that a study tunes among; only itself where the number is given."""
        sizes = (32, 48, 64, 80, 96, 128, 160, 192, 256)
        return (self,) if self.tokens else tuple(replace(self, tokens=tokens) for tokens in sizes)


@dataclass(frozen=True, kw_only=True)
class AdmittedEager:
    """Controller that runs all branches, and lets new requests wait where the step would become too long."""

    admission: float = setting(
        0.0, says="Share of the objective per token that the step may be predicted to take; 0: tuned by the study",
        low=0.0, high=10.0,
    )  # fmt: skip

    choose = staticmethod(_choose_capped)

    def parameters(self) -> Floats:
        """Return no bounds."""
        return np.array([np.inf, np.inf])

    def candidates(self) -> tuple[AdmittedEager, ...]:
        """Return the controllers that a study tunes among; only itself where the share is given."""
        shares = (0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0, 1.1)
        return (self,) if self.admission else tuple(replace(self, admission=share) for share in shares)


@dataclass(frozen=True, kw_only=True)
class Off:
    """Controller that runs one branch of every request at a time."""

    choose = staticmethod(_choose_capped)

    def parameters(self) -> Floats:
        """Return a width of one."""
        return np.array([1.0, np.inf])


@dataclass(frozen=True, kw_only=True)
class Eager:
    """Controller that runs all branches at once."""

    choose = staticmethod(_choose_capped)

    def parameters(self) -> Floats:
        """Return no bounds."""
        return np.array([np.inf, np.inf])
