"""Study ``sparse-attention``: steps of decoding over one long cache, of which a few hundredths may be read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import numpy as np

from wavetank.errors import BadValueError, WavetankError
from wavetank.machine.clocks import WallClock
from wavetank.machine.limits import cached, require_memory
from wavetank.machine.threads import allowed_threads, libraries_limited, together
from wavetank.serving.attention import allocation
from wavetank.serving.attention.ab_sparse import ABSparse
from wavetank.serving.attention.decoder_heads import decoder_cache
from wavetank.serving.attention.interface import Attention, Cache, Ints
from wavetank.serving.attention.recall import Full, dense, full_attention, mass, top_share, top_tokens
from wavetank.serving.attention.sparse_kv import SparseKV
from wavetank.serving.attention.workload import HEADS, planted, ways
from wavetank.settings import setting
from wavetank.study.study import Chart, Measurements, Metric
from wavetank.study.timing import Case, Limits, Repeated, Seconds, TimingStudy

DECODER = "decoder"
_TOP = 64
_SHORT = 16
# How far a float32 answer may be from float64's, values being about 1.
_TOLERANCE = 5e-5


class Asked(NamedTuple):
    """A cache, what full attention gives, and who has answered."""

    cache: Cache
    calibration: Cache
    budget: int
    runs: Ints
    full: list[Full]
    top: list[Ints]
    ready: dict[str, Attention]


@dataclass(frozen=True, kw_only=True)
class SparseAttentionStudy(TimingStudy):
    """A call is ``steps`` steps of decoding, each with a query about other tokens, so that no step finds in the
    processor's caches what the one before has read.  Important tokens are planted (runs of drawn length, height and
    place); lengths of blocks are learned on another, shorter text of the same heads.  The first and the last
    answer are compared with float64 over the tokens that they were computed from; shares of attention are float64's.
    """

    name = "sparse-attention"
    baseline = "dense-attention"
    cases_by = "tokens"
    primary = "mass_per_byte"
    secondary = ("recall", "time_s")
    default_seeds = 6
    # Threads of torch's OpenMP spin on for a while after a call, on a core that the next system needs.
    rest_s = 0.03
    from_own_state = True
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("recall", "", "higher", "counted",
               "share of full attention (float64) on the tokens that a step reads, mean over steps and heads of "
               "queries"),
        Metric("mass_per_byte", "", "higher", "counted",
               "recall / (bytes that a step must read / bytes of all keys and values): 1 for dense attention",
               words="attention per byte read"),
        Metric("top_share", "", "higher", "counted",
               f"share of a query's {_TOP} most important tokens that a step reads, mean over steps and heads"),
        Metric("output_error", "", "lower", "counted",
               "length of (answer - full attention in float64) / length of full attention, over all steps and heads"),
        Metric("summary_bytes", "bytes", "lower", "counted", "bytes kept beside keys and values, with scales and zeros",
               table=False),
        Metric("read_bytes", "bytes", "lower", "counted",
               "keys and values that a step reads, and all summaries, each once; of a box both of its numbers"),
        Metric("share_of_bound", "", "higher", "measured",
               "time in which a copy by all threads moves read_bytes (read plus written) / time, same round"),
        Metric("share_of_dense_bound", "", "higher", "measured",
               "time in which a copy by all threads moves the bytes of all keys and values (read plus written) / time, "
               "same round: above 1 only where not all is read", table=False),
        Metric("overlap", "", "higher", "counted",
               "of the tokens that float32 summaries choose, the share that summaries of 4 bits choose as well",
               table=False),
        Metric("allocation_share", "", "higher", "counted",
               "recall on the calibration with lengths that are chosen step by step / with the best lengths there are",
               table=False),
        Metric("head_recall", "", "higher", "counted",
               "as recall, of the heads whose runs are short (1 to 15 tokens) or long", table=False),
    )  # fmt: skip
    charts = (
        Chart("pareto", "Attention found against time of a step", x="time_s", y="recall", log="x",
              says="Up and left is better."),
        Chart("bars", "Share of full attention that a step reads", y="recall", by="tokens",
              says="1 is full attention; the oracle shows what as many tokens could have."),
    )  # fmt: skip

    tokens: tuple[int, ...] = setting((65536,), unit="tokens", says="Lengths of the cache", low=512, high=2**22)
    budget_share: float = setting(0.04, says="Share of the tokens that a step may read", low=1e-3, high=1)
    heads: str = setting("mixed", says="Heads: each of its own kind, all alike, each another in use, or a decoder's",
                         choices=(*HEADS, DECODER))  # fmt: skip
    key_heads: int = setting(8, says="Heads of keys", low=1, high=4096)
    group: int = setting(4, says="Heads of queries that share a head of keys", low=1, high=256)
    dim: int = setting(128, says="Numbers of a key", low=8, high=1024)
    steps: int = setting(8, says="Steps a call, each about another topic", low=1, high=256)
    calibration_tokens: int = setting(
        16384, unit="tokens", says="Length of the text to learn from", low=512, high=2**22
    )
    threads: int = setting(0, says="Threads of each system; 0 takes all allowed threads", low=0, high=4096)
    rounds: int = setting(4, says="Interleaved rounds after the warm-up, in each process", low=1, high=1000)

    def check(self) -> None:
        """Refuse caches that do not fit, budgets too small for a block at each end, and sizes that a decoder has."""
        sizes = {"key_heads": self.key_heads, "group": self.group, "dim": self.dim}
        if self.heads == DECODER and any(sizes[each] != getattr(SparseAttentionStudy, each) for each in sizes):
            raise BadValueError(
                "The decoder has heads of its own.", given=sizes, where="heads",
                hint="leave key_heads, group and dim out, or plant heads",
            )  # fmt: skip
        if self.heads == "drifting" and self.key_heads < 2:
            raise BadValueError("A single head cannot be as another one was.", given=self.key_heads, where="key_heads",
                                allowed="2 or more with heads=drifting")  # fmt: skip
        for each in self.tokens:
            if round(self.budget_share * each) < 256 and self.budget_share < 1:
                raise BadValueError(
                    "The budget is less than two blocks of 128 tokens.", given=f"{self.budget_share} of {each} tokens",
                    allowed=f"a share of {256 / each:.3g} or more", where="budget_share",
                )  # fmt: skip
        most = self.key_heads * max(max(self.tokens), self.calibration_tokens)
        require_memory(most * (24 * self.dim + 8 * self.steps * self.group), "sparse-attention")

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        least = min(256, self.calibration_tokens)
        least = min(256, self.calibration_tokens)
        more = round(self.budget_share * self.calibration_tokens) < least
        learned = (f"Lengths are learned with {least} of {self.calibration_tokens} tokens: more than are judged.",)
        return (
            *(learned if more else ()),
            f"Systems may use {allowed_threads(self.threads or None)} threads each; keys and values are float32.",
            "The decoder is small, was trained on pieces of 256 bytes, and its layers stand beside one another as one."
            if self.heads == DECODER
            else "Important tokens are planted: shares of attention say how systems compare, not what a model answers.",
            "Times of token-oracle and random-blocks are those of reading their tokens: these are chosen before.",
            cached().note(),
        )

    def case_names(self, seed: int) -> Sequence[str]:
        """Return the lengths."""
        return tuple(str(each) for each in self.tokens)

    def case(self, name: str, seed: int) -> Case:
        """Return a cache of planted heads, another one to learn from, and full attention."""
        runs = np.zeros(0, np.int64)
        if self.heads == DECODER:
            with libraries_limited(allowed_threads(self.threads or None)):
                calibration, cache = (
                    decoder_cache(tokens=tokens, steps=self.steps, seed=seed, text=text)
                    for tokens, text in ((self.calibration_tokens, "calibration"), (int(name), "use"))
                )
        else:
            learned, used = ways(self.heads, self.key_heads, seed)
            shape = {"dim": self.dim, "group": self.group, "steps": self.steps, "seed": seed}
            calibration = planted(learned, tokens=self.calibration_tokens, text="calibration", **shape)
            cache, runs = planted(used, tokens=int(name), text="use", **shape), used.runs
        with libraries_limited(1):
            full = [full_attention(cache, head) for head in range(cache.keys.shape[0])]
        top = [top_tokens(each.shares, min(_TOP, int(name))) for each in full]
        budget = int(name) if self.budget_share == 1 else round(self.budget_share * int(name))
        return Case(name, Asked(cache, calibration, budget, runs, full, top, {}))

    def prepared_call(self, system: Any, case: Case) -> Callable[[], object]:
        """Return all steps, one after the other."""
        if self.threads and hasattr(system, "threads"):
            system = dataclasses.replace(system, threads=self.threads)
        asked: Asked = case.data
        with libraries_limited(1):
            ready = system.build(asked.cache, asked.budget, asked.calibration)

        def steps() -> object:
            # torch takes no number of threads.
            with libraries_limited(allowed_threads(self.threads or None)):
                return ready, [ready.attend(query) for query in asked.cache.queries]

        return Repeated(steps, self.steps)

    def verify(self, case: Case, system: str, result: Any) -> None:
        """Compare answers with float64 over the tokens that they were computed from, and count these."""
        ready, answers = result
        asked: Asked = case.data
        # The first and the last step: the float64 answer takes longer than all steps.
        for step in sorted({0, self.steps - 1}):
            query, answer = asked.cache.queries[step], answers[step]
            grouped = query.reshape(asked.cache.keys.shape[0], asked.cache.group, -1)
            for head, tokens in enumerate(ready.selected(query)):
                if tokens.size == int(case.name):
                    expected = asked.full[head].out[step]
                else:
                    expected = dense(grouped[head], asked.cache.keys[head, tokens], asked.cache.values[head, tokens])
                    if tokens.size > asked.budget or np.unique(tokens).size < tokens.size:
                        raise WavetankError(f"{system} read more than the budget, or a token twice.")
                found = answer.reshape(grouped.shape)[head]
                if not (np.abs(found - expected) <= _TOLERANCE).all():
                    raise WavetankError(f"{system} did not compute attention over its tokens.")
        asked.ready[system] = ready

    def result_figures(self, case: Case, name: str, system: Any, result: Any) -> Measurements:
        """Return what the tokens that were read have of full attention, and how many bytes that took."""
        asked: Asked = case.data
        ready, answers = result
        masses, tops = (np.zeros((self.steps, asked.cache.keys.shape[0])) for _ in range(2))
        for step, query in enumerate(asked.cache.queries):
            for head, tokens in enumerate(ready.selected(query)):
                masses[step, head] = mass(asked.full[head].shares[step], tokens)
                tops[step, head] = top_share(asked.top[head][step], tokens)
        full = np.stack([each.out for each in asked.full], 1)
        wrong = np.stack(answers).reshape(full.shape) - full
        whole = 2 * asked.cache.keys.nbytes
        found = Measurements({
            "recall": float(masses.mean()), "top_share": float(tops.mean()),
            "mass_per_byte": float(masses.mean()) * whole / ready.read_bytes,
            "output_error": float(np.linalg.norm(wrong) / np.linalg.norm(full)),
            "summary_bytes": ready.summary_bytes, "read_bytes": ready.read_bytes,
        })  # fmt: skip
        for kind, among in (("short", asked.runs < _SHORT), ("long", asked.runs >= _SHORT)):
            if asked.runs.size and among.any():
                found.put("head_recall", float(masses[:, among].mean()), tokens=case.name, runs=kind)
        if isinstance(ready, SparseKV) and ready.bits < 32:
            found.put("overlap", self._overlap(asked, ready))
        if isinstance(system, ABSparse):
            found.put("allocation_share", self._allocation_share(asked, system))
        return found

    def _overlap(self, asked: Asked, ready: SparseKV) -> float:
        twin = SparseKV(
            asked.cache.keys, asked.cache.values, asked.budget, blocks=ready.blocks, summary=ready.summary, bits=32,
            combine=ready.combine, reach=ready.reach,
        )  # fmt: skip
        shares = []
        for query in asked.cache.queries:
            pairs = zip(twin.selected(query), ready.selected(query), strict=True)
            shares += [np.isin(whole, coded).mean() for whole, coded in pairs]
        return float(np.mean(shares))

    def _allocation_share(self, asked: Asked, system: ABSparse) -> float:
        recalls = system.recalls(asked.calibration, asked.budget / asked.cache.keys.shape[1])
        chosen = allocation.greedy(recalls, system.lengths, system.average)
        best = allocation.exact(recalls, system.lengths, system.average)
        return allocation.total(recalls, chosen) / allocation.total(recalls, best)

    def limits(self, case: Case, clock: WallClock) -> Limits:
        """Return the copy of as many bytes as all keys and values have, by all threads."""
        half = case.data.cache.keys.nbytes
        source, target = np.ones(half, np.uint8), np.zeros(half, np.uint8)
        threads = allowed_threads(self.threads or None)
        edges = [half * each // threads for each in range(threads + 1)]
        parts = [(target[a:b], source[a:b]) for a, b in pairwise(edges)]
        return {"share_of_dense_bound": lambda: clock.seconds(lambda: together(np.copyto, parts, threads))}

    def case_figures(self, case: Case, name: str, times: Seconds, limits: Seconds) -> Measurements:
        """Return the share of the bound by the bytes that the system itself must read."""
        asked: Asked = case.data
        share = asked.ready[name].read_bytes / (2 * asked.cache.keys.nbytes)
        return Measurements({"share_of_bound": limits["share_of_dense_bound"] * share / times[name]})
