"""TAPER: before every step, admit branches while the predicted lengthening of the step fits the batch's slack.

A branch that runs beside its request's protected one shortens that request and lengthens the step for everybody: its
*externality*.  Requests that are ahead of their objective have slack; the request with the least says how long the step
may become.  Because the decision is taken anew before each step, width follows the batch, the contexts and the slack,
where a fixed cap is either too wide in a crowd or too narrow in an empty batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from wavetank.errors import WavetankError
from wavetank.serving.branches.interface import StepView, choose_function
from wavetank.serving.branches.predictor import blind_s, predicted_s
from wavetank.settings import setting

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_ONLINE, _BLIND, _EXACT = 0.0, 1.0, 2.0
_PREDICTORS = {"online": _ONLINE, "blind": _BLIND, "exact": _EXACT}


@njit(inline="always")
def _seconds(view, step, table, predictor, kind, sequences, context):  # type: ignore[no-untyped-def]
    """Return the predicted time of the step with these sequences and this context, s."""
    if kind == _EXACT:
        return step(sequences, int(context), view.prefill_tokens, view.prefill_pairs, table) / 1e12
    if kind == _BLIND:
        return blind_s(predictor, sequences, view.prefill_tokens)
    return predicted_s(predictor, sequences, context, view.prefill_tokens)


@choose_function
def _choose(  # type: ignore[no-untyped-def]
    view, step, table, predictor, state, parameters, admitted
):
    rho, most, bank, budgeted, replans, kind, stops = (
        parameters[0], parameters[1], parameters[2], parameters[3], parameters[4], parameters[5], parameters[6],
    )  # fmt: skip
    n, sequences, context = view.request.size, view.decodes, float(view.context_tokens)
    plain_s = _seconds(view, step, table, predictor, kind, sequences, context)
    slack_s = np.inf
    for r in range(view.deadline_s.size):
        due_s = view.deadline_s[r]
        if bank < 0.0:
            due_s = min(due_s, view.last_token_s[r] + view.tpot_slo_s)
        spare_s = (due_s - view.now_s - plain_s * view.steps_left[r]) / view.steps_left[r]
        if spare_s > view.tpot_slo_s:
            spare_s = view.tpot_slo_s + max(bank, 0.0) * (spare_s - view.tpot_slo_s)
        slack_s = min(slack_s, spare_s)
    if budgeted == 0.0:
        limit_s = np.inf
    else:
        limit_s = plain_s + (rho * max(slack_s, 0.0) if rho > 0.0 else 0.0)
    wide = np.ones(view.deadline_s.size, np.int64)
    count = 0
    if replans == 0.0:
        # The width of a stage is decided in its first step: those of the others come first.
        for i in range(n):
            r = view.request[i]
            if view.width[r] > wide[r] and count < view.room:
                admitted[i] = 1
                wide[r] += 1
                count += 1
                sequences += 1
                context += view.context[i]
    gain = np.zeros(n)
    for i in range(n):
        cost_s = predictor[8] if kind == _BLIND else predictor[1] + predictor[2] * view.context[i]
        # A tie goes to the one that comes next after the last step's first.
        gain[i] = -min(view.protected_left[view.request[i]], view.left[i]) / max(cost_s, 1e-12)
    turn = view.step % n if n else 0
    turned = np.empty(n, np.int64)
    for i in range(n):
        turned[i] = (i + turn) % n
    order = turned[np.argsort(gain[turned], kind="mergesort")]
    for i in order:
        r = view.request[i]
        if count >= view.room:
            break
        if admitted[i] == 1 or wide[r] >= most or (replans == 0.0 and view.width[r] > 0):
            continue
        longer_s = _seconds(view, step, table, predictor, kind, sequences + 1, context + view.context[i])
        if longer_s <= limit_s:
            admitted[i] = 1
            wide[r] += 1
            count += 1
            sequences += 1
            context += view.context[i]
        elif stops != 0.0:
            break
    return count


@dataclass(frozen=True, kw_only=True)
class Taper:
    """Controller that admits branches while their externality fits the slack of the batch.

    Parameters
    ----------
    predictor : {"online", "blind", "exact"}
        ``online``: lines in sequences and context, fitted to a profile and refitted; ``blind``: the same time for every
        sequence; ``exact``: the step times of the simulation themselves, which nobody has.
    """

    rho: float = setting(0.8, says="Share of the slack that a step may spend", low=0.0, high=1.0)
    most_branches: int = setting(
        64, unit="branches", says="Branches of a request in a step at most", low=1, high=1 << 20
    )
    bank_share: float = setting(
        0.25, says="Share of the slack beyond one objective that a step may spend; 1: all of it", low=0.0, high=1.0
    )
    banks: bool = setting(True, says="Whether a request that ran fast keeps the slack that it gained")
    budget: bool = setting(True, says="Whether slack limits what is admitted")
    replans: bool = setting(True, says="Whether every step decides anew; if not, the first step of a stage does")
    predictor: str = setting("online", says="What predicts step times", choices=tuple(_PREDICTORS))
    fill: str = setting(
        "skip", says="At the first branch that does not fit: skip it, or stop", choices=("skip", "stop")
    )
    knows_lengths: bool = setting(False, says="Whether the lengths of branches are known, not expected")

    choose = staticmethod(_choose)

    def parameters(self) -> Floats:
        """Return the parameters in the order in which the compiled function reads them."""
        return np.array([
            self.rho, self.most_branches, self.bank_share if self.banks else -1.0, self.budget, self.replans,
            _PREDICTORS[self.predictor], self.fill == "stop",
        ])  # fmt: skip

    def plan(self, view: StepView, predictor: Floats) -> list[int]:
        """Return the candidates to run, in plain Python: what a live engine without a compiler would call.

        Parameters
        ----------
        view : StepView
        predictor : float64 array
            Fitted: :mod:`wavetank.serving.branches.predictor`.

        Raises
        ------
        WavetankError
            If the predictor is the exact one, which only a simulation has.
        """
        if self.predictor == "exact":
            raise WavetankError("Exact step times are known in a simulation alone.", hint="predictor=online")
        fitted = predictor.tolist()
        prefill = view.prefill_tokens
        if self.predictor == "blind":
            fixed, each = (fitted[9] + fitted[11] * prefill, fitted[10]) if prefill else fitted[7:9]
            per_token, cost, cost_per_token = 0.0, fitted[8], 0.0
        else:
            fixed, each, per_token = (fitted[3] + fitted[6] * prefill, fitted[4], fitted[5]) if prefill else fitted[:3]
            cost, cost_per_token = fitted[1], fitted[2]
        sequences, tokens = view.decodes, float(view.context_tokens)
        plain_s = fixed + each * sequences + per_token * tokens
        limit_s = plain_s + self.rho * max(0.0, self._slack_s(view, plain_s)) if self.rho else plain_s
        if not self.budget:
            limit_s = float("inf")
        requests, contexts, lefts = view.request.tolist(), view.context.tolist(), view.left.tolist()
        widths, protected = view.width.tolist(), view.protected_left.tolist()
        wide = [1] * len(widths)
        chosen: list[int] = []

        def admit(i: int) -> None:
            nonlocal sequences, tokens
            chosen.append(i)
            wide[requests[i]] += 1
            sequences += 1
            tokens += contexts[i]

        if not self.replans:
            for i, r in enumerate(requests):
                if widths[r] > wide[r] and len(chosen) < view.room:
                    admit(i)
        n = len(requests)
        gain = [
            min(protected[r], left) / max(cost + cost_per_token * context, 1e-12)
            for r, left, context in zip(requests, lefts, contexts, strict=True)
        ]
        turned = [(i + view.step) % n for i in range(n)]
        before = set(chosen)
        for i in sorted(turned, key=gain.__getitem__, reverse=True):
            if len(chosen) >= view.room:
                break
            r = requests[i]
            if i in before or wide[r] >= self.most_branches or not (self.replans or widths[r] == 0):
                continue
            if fixed + each * (sequences + 1) + per_token * (tokens + contexts[i]) <= limit_s:
                admit(i)
            elif self.fill == "stop":
                break
        return sorted(chosen)

    def _slack_s(self, view: StepView, plain_s: float) -> float:
        """Return what the request with the least slack lets a step spend, s."""
        slo_s, least = view.tpot_slo_s, float("inf")
        rows: Any = zip(view.deadline_s.tolist(), view.last_token_s.tolist(), view.steps_left.tolist(), strict=True)
        for due_s, last_s, steps in rows:
            if not self.banks:
                due_s = min(due_s, last_s + slo_s)
            spare_s = (due_s - view.now_s - plain_s * steps) / steps
            if spare_s > slo_s:
                spare_s = slo_s + (self.bank_share if self.banks else 0.0) * (spare_s - slo_s)
            least = min(least, spare_s)
        return least
