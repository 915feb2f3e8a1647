"""A real engine to predict: the readable simulator's scheduler, with every step computed by a decoder.

Requests are scheduled by :mod:`wavetank.serving.simulator.worker`, as in the simulator; a step computes its batch on
the device, and takes what it took.  Time stands still between steps, so that a run lasts no longer than its computing
and waiting costs nothing.  Tokens are real: the likeliest one of each sequence is fed to the next step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.platforms.step_time import PS_PER_S
from wavetank.serving.profiling.decoder import Decoder
from wavetank.serving.profiling.measuring import clock_of
from wavetank.serving.routing.vllm_default import VLLMDefault
from wavetank.serving.simulator.cluster import Cluster
from wavetank.serving.simulator.worker import Request, Worker
from wavetank.sim.rng import stream

if TYPE_CHECKING:
    from wavetank.workloads.requests import RequestTrace

_Floats = NDArray[np.float64]


class Step(NamedTuple):
    """What one step computed and how long it took: R, C, P, S of :mod:`wavetank.platforms.step_time`, and s."""

    decode_requests: int
    context_tokens: int
    prefill_tokens: int
    prefill_pairs: int
    seconds: float


@dataclass(frozen=True, eq=False)
class MeasuredRun:
    """A run of the engine.

    Attributes
    ----------
    ttft_s, tpot_s : ndarray of float64, shape (requests,)
        As :class:`~wavetank.serving.simulator.simulate.ServingRun` defines them.
    steps : tuple of Step
    tokens : tuple of tuple of int
        What was generated for each request.
    """

    ttft_s: _Floats
    tpot_s: _Floats
    steps: tuple[Step, ...]
    tokens: tuple[tuple[int, ...], ...]


class DecoderEngine:
    """One replica that serves requests with a decoder.

    Parameters
    ----------
    decoder : Decoder
        With weights.
    cluster : Cluster
        Limits of the one worker; its step time is not read.
    longest : int
        Tokens of the longest request, prompt and answer.
    clock : {"wall", "processor"}
        What steps are timed with.
    """

    def __init__(self, decoder: Decoder, cluster: Cluster, longest: int, clock: str = "wall") -> None:
        if cluster.workers != 1 or cluster.prefix_caching or cluster.adapters is not None:
            raise BadValueError("A decoder serves as one worker, without prefix caching and adapters.",
                                given=f"{cluster.workers} workers")  # fmt: skip
        self.decoder, self.cluster = decoder, cluster
        self._clock = clock_of(clock, decoder.device)
        self._cache = decoder.new_cache(cluster.max_running, longest)
        self.steps: list[Step] = []
        self._prompts: dict[int, list[int]] = {}
        self._slots: dict[int, int] = {}
        self._ran: list[Request] = []

    def serve(self, requests: RequestTrace, seed: int = 0) -> MeasuredRun:
        """Serve a trace whose prompts are drawn.

        Parameters
        ----------
        requests : RequestTrace
        seed : int
            Of the prompts.
        """
        from wavetank.serving.simulator.reference import simulate_slowly

        draw = stream(seed, "prompts")
        vocab = self.decoder.config.vocab
        self._prompts = {i: draw.integers(0, vocab, int(n)).tolist() for i, n in enumerate(requests.prompt_tokens)}
        self._slots, self.steps = {}, []
        found = simulate_slowly(requests, self.cluster, VLLMDefault(), step=self.step)
        first_s, finish_s = found["first_ps"] / PS_PER_S, found["finish_ps"] / PS_PER_S
        later = requests.output_tokens - 1
        tokens = [tuple(self._prompts[i][int(n) :]) for i, n in enumerate(requests.prompt_tokens)]
        return MeasuredRun(
            ttft_s=first_s - requests.arrival_s,
            tpot_s=np.where(later > 0, (finish_s - first_s) / np.maximum(later, 1), np.nan),
            steps=tuple(self.steps), tokens=tuple(tokens),
        )  # fmt: skip

    def step(self, workers: Sequence[Worker], cluster: Cluster) -> int:
        """Plan a step, compute it, and return the picoseconds that both took.

        Parameters
        ----------
        workers : sequence of Worker
            The one worker.
        cluster : Cluster
        """
        (worker,) = workers
        began = self._clock.now()
        before = {id(request): request.prefilled for request in worker.running if not request.decodes}
        prefill_tokens, pairs = worker.plan()
        rows: list[tuple[int, int, int, int]] = []
        tokens: list[int] = []
        positions: list[int] = []
        self._give_slots(worker)
        decoding = worker.decoding
        for request in decoding:
            text, past = self._prompts[request.number], request.resident
            rows.append((self._slots[request.number], len(tokens), 1, past))
            tokens.append(text[past])
            positions.append(past)
        for request in worker.running:
            past = before.get(id(request), 0)
            if not request.decodes and request.prefilled > past:
                rows.append((self._slots[request.number], len(tokens), request.prefilled - past, past))
                tokens += self._prompts[request.number][past : request.prefilled]
                positions += range(past, request.prefilled)
        if rows:
            self._compute(worker, rows, tokens, positions)
        self._clock.wait()
        seconds = self._clock.now() - began
        worker.own_ps, worker.prefill_tokens = max(1, round(seconds * PS_PER_S)), prefill_tokens
        self.steps.append(Step(len(decoding), worker.context, prefill_tokens, pairs, seconds))
        return worker.own_ps

    def _give_slots(self, worker: Worker) -> None:
        running = {request.number for request in worker.running}
        self._slots = {number: slot for number, slot in self._slots.items() if number in running}
        free = iter(sorted(set(range(self.cluster.max_running)) - set(self._slots.values())))
        for request in worker.running:
            if request.number not in self._slots:
                self._slots[request.number] = next(free)

    def _compute(
        self, worker: Worker, rows: list[tuple[int, int, int, int]], tokens: list[int], positions: list[int]
    ) -> None:
        decoder, torch = self.decoder, self.decoder.torch
        device = decoder.device
        with torch.inference_mode():
            last = torch.tensor([first + count - 1 for _, first, count, _ in rows], device=device)
            logits = decoder(
                torch.tensor(tokens, device=device), torch.tensor(positions, device=device), self._cache,
                torch.tensor(rows), last,
            )  # fmt: skip
            chosen = logits.argmax(-1).tolist()
        by_slot = {slot: number for number, slot in self._slots.items()}
        ending = {request.number for request in worker.ending} | {request.number for request in worker.decoding}
        for (slot, *_), token in zip(rows, chosen, strict=True):
            # A prompt that is not computed to its end has no next token yet.
            if by_slot[slot] in ending:
                self._prompts[by_slot[slot]].append(token)
