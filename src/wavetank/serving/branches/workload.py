"""Requests with parallel stages: arrivals and prompts of a trace, branches drawn from a seed.

A request is a list of stages, a stage a list of branches; a serial stage has one.  A share of the requests gets three
stages: a prologue, ``width`` branches of log-normal length, and an epilogue, the first and the last of a fifth of the
tokens each.  The others are served as the trace has them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.sim.rng import stream
from wavetank.workloads.requests import RequestTrace

Ints = NDArray[np.int64]

# Standard deviation of the logarithm of branch lengths; share of a request's tokens before, and after, its branches.
SIGMA, SERIAL_SHARE = 0.6, 0.2


@dataclass(frozen=True, kw_only=True, eq=False)
class BranchingRequests:
    """A trace, and the stages of its answers.

    Attributes
    ----------
    trace : RequestTrace
        With the tokens of all branches of a request as its output.
    stage_offsets : int64 array (requests + 1,)
        Request i has stages ``stage_offsets[i]`` to ``stage_offsets[i + 1] - 1``; the first of them has one branch.
    branch_offsets : int64 array (stages + 1,)
        Stage s has branches ``branch_offsets[s]`` to ``branch_offsets[s + 1] - 1``.
    lengths : int64 array (branches,)
        Tokens of each, >= 1.
    branch_tokens : float
        What a controller expects of a branch before any has ended.
    """

    trace: RequestTrace
    stage_offsets: Ints
    branch_offsets: Ints
    lengths: Ints
    branch_tokens: float

    def __post_init__(self) -> None:
        for name in ("stage_offsets", "branch_offsets", "lengths"):
            own = np.array(getattr(self, name), np.int64)
            own.flags.writeable = False
            object.__setattr__(self, name, own)
        stages, branches = np.diff(self.stage_offsets), np.diff(self.branch_offsets)
        if (
            self.stage_offsets.size != len(self.trace) + 1 or self.stage_offsets[-1] != branches.size
            or self.branch_offsets[-1] != self.lengths.size or stages.min() < 1 or branches.min() < 1
            or self.lengths.min() < 1 or (branches[self.stage_offsets[:-1]] != 1).any()
        ):  # fmt: skip
            raise BadValueError(
                "The stages do not fit the requests.",
                allowed="one stage or more per request, the first with one branch; every branch with a token or more",
            )
        ends = self.branch_offsets[self.stage_offsets]
        tokens = np.add.reduceat(self.lengths, ends[:-1])
        if (tokens != self.trace.output_tokens).any():
            raise BadValueError(
                "The branches of a request do not have the tokens of its answer.",
                where=f"request {int(np.flatnonzero(tokens != self.trace.output_tokens)[0]) + 1}",
            )

    def part(self, first: int, n: int) -> BranchingRequests:
        """Return ``n`` requests from request ``first`` on."""
        stages = self.stage_offsets[first : first + n + 1]
        branches = self.branch_offsets[stages[0] : stages[-1] + 1]
        return BranchingRequests(
            trace=self.trace.part(first, n), stage_offsets=stages - stages[0], branch_offsets=branches - branches[0],
            lengths=self.lengths[branches[0] : branches[-1]], branch_tokens=self.branch_tokens,
        )  # fmt: skip

    def at_rate(self, requests_per_s: float) -> BranchingRequests:
        """Return the same requests at another mean rate; infinity: all at once."""
        if math.isinf(requests_per_s):
            n = len(self.trace)
            trace = RequestTrace(
                arrival_s=np.zeros(n), prompt_tokens=self.trace.prompt_tokens, output_tokens=self.trace.output_tokens
            )
        else:
            trace = self.trace.at_rate(requests_per_s)
        return BranchingRequests(
            trace=trace, stage_offsets=self.stage_offsets, branch_offsets=self.branch_offsets, lengths=self.lengths,
            branch_tokens=self.branch_tokens,
        )  # fmt: skip


def staged(trace: RequestTrace, answers: list[list[list[int]]], branch_tokens: float = 100.0) -> BranchingRequests:
    """Return requests with the given stages.

    Parameters
    ----------
    trace : RequestTrace
        Gives arrivals and prompts.
    answers : list of list of list of int
        Per request its stages, per stage the tokens of its branches.
    branch_tokens : float
        As of :class:`BranchingRequests`.
    """
    stages = [stage for answer in answers for stage in answer]
    return BranchingRequests(
        trace=RequestTrace(
            arrival_s=trace.arrival_s, prompt_tokens=trace.prompt_tokens,
            output_tokens=np.array([sum(map(sum, answer)) for answer in answers]), name=trace.name,
        ),
        stage_offsets=np.cumsum([0, *(len(answer) for answer in answers)]),
        branch_offsets=np.cumsum([0, *(len(stage) for stage in stages)]),
        lengths=np.array([tokens for stage in stages for tokens in stage]),
        branch_tokens=branch_tokens,
    )  # fmt: skip


def branching(trace: RequestTrace, share: float, width: int, branch_tokens: float, seed: int) -> BranchingRequests:
    """Return the requests of a trace, a share of them with a parallel stage.

    Parameters
    ----------
    trace : RequestTrace
    share : float
        Of the requests, 0 to 1.
    width : int
        Branches of a parallel stage, >= 1.
    branch_tokens : float
        Their mean length.
    seed : int
    """
    draws = stream(seed, "branches")
    branch = draws.random(len(trace)) < share
    lengths = draws.lognormal(math.log(branch_tokens) - SIGMA**2 / 2, SIGMA, (len(trace), width))
    answers: list[list[list[int]]] = []
    for has, drawn, tokens in zip(branch.tolist(), lengths, trace.output_tokens.tolist(), strict=True):
        if not has:
            answers.append([[tokens]])
            continue
        parallel = [max(1, round(each)) for each in drawn.tolist()]
        serial = max(1, round(sum(parallel) * SERIAL_SHARE / (1 - 2 * SERIAL_SHARE)))
        answers.append([[serial], parallel, [serial]])
    return staged(trace, answers, branch_tokens)
