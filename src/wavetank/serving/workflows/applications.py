"""Applications to schedule: templates of agents, and the shapes of recorded workflows with stages attached.

Templates: a planner with parallel workers, a chain of thoughts and tools, summaries by map and reduce, a tree search,
and a map over many documents that devices can share.  Recorded shapes come from WfCommons: each kind of task becomes a
model with instructions of its own; kinds with many tasks get small models, as operators choose them.

Lengths, sizes and models are drawn from the seed; what they are drawn from is stated here and assumed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from wavetank.errors import BadValueError, unknown_name
from wavetank.serving.workflows.interface import Application, Stage
from wavetank.sim.rng import stream
from wavetank.workloads.workflows import NAME, Workflow, read_instance

LARGE, MIXTURE, SMALL, OTHER = "Qwen3-32B", "Qwen3-30B-A3B", "Llama-3.1-8B", "Llama-2-7B"
MODELS = (LARGE, MIXTURE, SMALL, OTHER)
SHAPES = (
    "1000genome-chameleon-2ch-100k-001", "bacass-dirt02-001", "blast-chameleon-small-001",
    "epigenomics-chameleon-hep-1seq-100k-001", "methylseq-dirt02-001", "montage-chameleon-2mass-005d-001",
    "sarek-dirt02-001", "scrnaseq-dirt02-001", "srasearch-chameleon-10a-001",
)  # fmt: skip
"""Recorded workflows of 11 to 58 tasks, one or two of each field."""
MIXES = ("agents", "recorded", "mixed")

_ARTEFACT_BYTES = 5e7  # median of what one stage hands to another: documents, images, results of tools


class _Draft:
    """A workflow that grows stage by stage."""

    def __init__(self, name: str, seed: int) -> None:
        self.name, self.rng = name, stream(seed, "application", name)
        self.stages: list[Stage] = []
        self.parents: list[tuple[int, ...]] = []
        self.bytes: list[tuple[float, ...]] = []

    def tokens(self, median: float, spread: float = 0.5) -> int:
        """Draw a length."""
        return max(int(median * math.exp(spread * self.rng.standard_normal())), 8)

    def add(
        self, model: str, prompt: float, output: float, *parents: int, prefix: str = "", shared: float = 0.0,
        kept: bool = False, shards: int = 1,
    ) -> int:  # fmt: skip
        """Add a stage and return its number; what it shares comes on top of its own prompt."""
        own, made, common = self.tokens(prompt), self.tokens(output), int(shared)
        self.stages.append(
            Stage(
                model=model, prompt_tokens=own + common, output_tokens=made, prefix=prefix, prefix_tokens=common,
                kept_tokens=own + common + made if kept else 0, most_shards=shards,
            )
        )  # fmt: skip
        self.parents.append(parents)
        self.bytes.append(tuple(_ARTEFACT_BYTES * math.exp(0.8 * self.rng.standard_normal()) for _ in parents))
        return len(self.stages) - 1

    def done(self) -> Application:
        """Return the application."""
        workflow = Workflow(
            name=self.name, tasks=tuple(str(i) for i in range(len(self.stages))), parents=tuple(self.parents),
            edge_bytes=tuple(self.bytes), kinds=tuple(each.model for each in self.stages),
        )  # fmt: skip
        return Application(workflow=workflow, stages=tuple(self.stages))


def _workers(seed: int) -> Application:
    """Plan, work in parallel, reduce, verify."""
    draft = _Draft("plan-and-workers", seed)
    plan = draft.add(LARGE, 600, 250, prefix="plan", shared=1500)
    workers = [
        draft.add(SMALL, 500, 220, plan, prefix="worker", shared=2500) for _ in range(int(draft.rng.integers(4, 13)))
    ]
    reduce_ = draft.add(MIXTURE, 250 * len(workers), 350, *workers, prefix="reduce", shared=800)
    draft.add(OTHER, 700, 120, reduce_, prefix="verify", shared=1200)
    return draft.done()


def _chain(seed: int) -> Application:
    """Thoughts of a large model over a growing context, each followed by a small one that reads a tool's result."""
    draft = _Draft("thoughts-and-tools", seed)
    context, last = 1500.0, draft.add(LARGE, 400, 150, prefix="react", shared=1500)
    own = f"chain {seed}"
    for turn in range(int(draft.rng.integers(4, 9))):
        tool = draft.add(SMALL, 1500, 120, last, prefix="tool", shared=600)
        last = draft.add(LARGE, 350, 150, tool, prefix=own, shared=context if turn else 0, kept=True)
        context = float(draft.stages[last].kept_tokens)
    return draft.done()


def _summary(seed: int) -> Application:
    """Summaries of documents, of summaries, and of those."""
    draft = _Draft("map-and-reduce", seed)
    level = [draft.add(SMALL, 3000, 250, prefix="summarise", shared=700) for _ in range(int(draft.rng.integers(6, 17)))]
    while len(level) > 4:
        level = [
            draft.add(OTHER, 250 * len(level[i : i + 4]), 220, *level[i : i + 4], prefix="join", shared=500)
            for i in range(0, len(level), 4)
        ]
    draft.add(LARGE, 1000, 400, *level, prefix="conclude", shared=1000)
    return draft.done()


def _search(seed: int) -> Application:
    """Thoughts that branch twice; every branch is judged, the best one is written out."""
    draft = _Draft("tree-search", seed)
    root = draft.add(LARGE, 500, 200, prefix="propose", shared=2000)
    frontier = [root]
    for _ in range(2):
        branches = [
            draft.add(MIXTURE, 400, 200, each, prefix="expand", shared=2000)
            for each in frontier
            for _ in range(int(draft.rng.integers(2, 4)))
        ]
        judged = [draft.add(OTHER, 500, 40, each, prefix="judge", shared=1500) for each in branches]
        frontier = [draft.add(SMALL, 400, 80, *judged, prefix="select", shared=600)]
    draft.add(LARGE, 800, 400, *frontier, prefix="answer", shared=1000)
    return draft.done()


def _batch(seed: int) -> Application:
    """One question to many documents, which devices can share; the answers are merged and checked."""
    draft = _Draft("shared-map", seed)
    plan = draft.add(MIXTURE, 500, 150, prefix="ask", shared=1000)
    mapped = [
        draft.add(SMALL, 12_000, 1_600, plan, prefix="extract", shared=900, shards=4)
        for _ in range(int(draft.rng.integers(1, 4)))
    ]
    merged = draft.add(LARGE, 1500, 350, *mapped, prefix="merge", shared=1000)
    draft.add(OTHER, 800, 100, merged, prefix="verify", shared=1200)
    return draft.done()


TEMPLATES = (_workers, _chain, _summary, _search, _batch)


def on_shape(shape: Workflow, seed: int) -> Application:
    """Attach stages to the tasks of a workflow.

    Parameters
    ----------
    shape : Workflow
        Its structure and the bytes of its edges stay.
    seed : int
        Draws models, prefixes and lengths for its kinds, and lengths for its tasks.
    """
    rng = stream(seed, "stages on a shape", shape.name)
    counts = Counter(shape.kinds)
    stages: dict[str, tuple[str, int, float, float, int]] = {}
    for kind in sorted(counts):
        many = counts[kind] >= 4
        model = str(rng.choice(MODELS, p=(0.05, 0.15, 0.5, 0.3) if many else (0.3, 0.25, 0.25, 0.2)))
        prompt, output = 900 * math.exp(0.5 * rng.standard_normal()), 180 * math.exp(0.4 * rng.standard_normal())
        stages[kind] = model, int(rng.integers(300, 3000)), prompt, output, 4 if many and rng.random() < 0.1 else 1
    made = []
    for kind in shape.kinds:
        model, shared, prompt, output, shards = stages[kind]
        own, written = prompt * math.exp(0.3 * rng.standard_normal()), output * math.exp(0.3 * rng.standard_normal())
        made.append(
            Stage(
                model=model, prompt_tokens=shared + max(int(own), 8), output_tokens=max(int(written), 8),
                prefix=f"{shape.name}: {kind}", prefix_tokens=shared, most_shards=shards,
            )
        )  # fmt: skip
    return Application(workflow=shape, stages=tuple(made))


def applications(
    mix: str, count: int, seed: int, *, rate_per_s: float = math.inf, error: float = 0.0
) -> tuple[Application, ...]:
    """Return applications in order of arrival.

    Parameters
    ----------
    mix : str
        ``agents``: templates; ``recorded``: shapes of the data set ``wfinstances``; ``mixed``: both in turn.
    count : int
    seed : int
    rate_per_s : float
        Of Poisson arrivals; all are there at 0 by default.
    error : float
        Standard deviation of the logarithm of expected over real lengths of answers.

    Raises
    ------
    UnknownNameError
        If there is no such mix.
    DataUnavailableError
        If recorded shapes are asked for and the data set is not on this machine.
    BadValueError
        If there is to be no application, or the rate or the error is out of range.
    """
    if count < 1 or not rate_per_s > 0 or not 0 <= error < math.inf:
        raise BadValueError("Applications are at least one, at a rate above 0.", given=(count, rate_per_s, error))
    if mix not in MIXES:
        raise unknown_name("mix of workflows", mix, MIXES)
    rng = stream(seed, "applications", "order")
    recorded = [i % 2 == 1 for i in range(count)] if mix == "mixed" else [mix == "recorded"] * count
    # Every template and shape before one comes again, so that mixes of different seeds are alike.
    templates, shapes = _in_turn(len(TEMPLATES), count, rng), _in_turn(len(SHAPES), count, rng)
    arrival, found = 0.0, []
    for i, from_shape in enumerate(recorded):
        own = seed * 100_003 + i
        each = on_shape(read_instance(SHAPES[shapes[i]]), own) if from_shape else TEMPLATES[templates[i]](own)
        found.append(replace(unsure(each, error, own), arrival_s=arrival))
        arrival += float(rng.exponential(1 / rate_per_s)) if math.isfinite(rate_per_s) else 0.0
    return tuple(found)


def _in_turn(kinds: int, count: int, rng: np.random.Generator) -> Sequence[int]:
    return [int(each) for _ in range(-(-count // kinds)) for each in rng.permutation(kinds)]


def unsure(application: Application, error: float, seed: int) -> Application:
    """Return an application whose answers are expected to be as long as they are only within an error.

    Parameters
    ----------
    application : Application
    error : float
        Standard deviation of the logarithm of expected over real lengths.
    seed : int
    """
    draws = stream(seed, "expected lengths").standard_normal(len(application.stages))
    return replace(
        application,
        stages=tuple(
            replace(stage, expected_tokens=max(stage.output_tokens * math.exp(error * draw), 1.0))
            for stage, draw in zip(application.stages, draws.tolist(), strict=True)
        ),
    )


def needs(mix: str) -> str:
    """Return the data set that a mix reads; empty for none.

    Parameters
    ----------
    mix : str
    """
    return "" if mix == "agents" else NAME
