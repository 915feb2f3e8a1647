"""Small models on links where a byte takes a picosecond, and a run of them tick by tick."""

from __future__ import annotations

from fractions import Fraction

import pytest

from wavetank.serving.offload.interface import COLLECTIVE, COMPUTE, Case, Offload, Phase
from wavetank.sim.links import CopyView, LinkRate

BYTE_A_PS = LinkRate(bytes_per_s=10**12)


def small_case(
    *, layers: int = 4, compute: tuple[int, ...] = (30, 20), collective: int = 10, weights: int = 40,
    contended: bool = True,
) -> Case:  # fmt: skip
    """Return blocks that compute and exchange in turns; all weights belong to the first phase."""
    phases: list[Phase] = []
    for i, ps in enumerate(compute):
        phases.append(Phase(COMPUTE, ps, weights if i == 0 else 0))
        if collective:
            phases.append(Phase(COLLECTIVE, collective))
    return Case(layers=layers, phases=tuple(phases), link=BYTE_A_PS, contended=contended)


def ticked_ends(system: Offload, case: Case, steps: int, late: tuple[int, ...]) -> list[int]:
    """Return the ends of steps, of a run that looks at everything each picosecond; alpha 0, a byte a picosecond."""
    plan = system.plan(case)
    missing = [case.weight_bytes - each for each in plan.resident]
    jobs = steps * case.layers
    # Copies for a step that does not run any more go on.
    lacks = [missing[j % case.layers] for j in range(jobs + case.layers)]
    slotted: list[int] = []
    state, job, phase, left, collectives = "weights", 0, 0, Fraction(0), 0
    chunk, chunk_left = 0, Fraction(0)
    ends: list[int] = []
    now = 0
    while job < jobs:
        # Everything that can happen without time.
        changed = True
        while changed and job < jobs:
            changed = False
            if chunk and chunk_left <= 0:
                first = next(j for j, each in enumerate(lacks) if each)
                lacks[first] -= chunk
                chunk, changed = 0, True
            if state == "weights" and not lacks[job]:
                state, phase, changed = "begin", 0, True
            if state == "begin":
                kind, ps, _ = case.phases[phase]
                if kind == COMPUTE:
                    state, left = "compute", Fraction(ps)
                else:
                    state, left = "late", Fraction(late[collectives % len(late)])
                    collectives += 1
                changed = True
            if state == "late" and left <= 0:
                state, left, changed = "move", Fraction(case.phases[phase].ps), True
            if state in ("compute", "move") and left <= 0:
                changed = True
                phase += 1
                state = "begin"
                if phase == len(case.phases):
                    if job in slotted:
                        slotted.remove(job)
                    job += 1
                    state, phase = "weights", 0
                    if job % case.layers == 0:
                        ends.append(now)
            if changed or chunk or job == jobs:
                continue
            first = next((j for j, each in enumerate(lacks) if each), -1)
            if first < 0 or (first not in slotted and len(slotted) >= plan.slots):
                continue
            if first not in slotted:
                slotted.append(first)
            if state == "weights":
                due = (first - job) * sum(each.ps for each in case.phases)
            else:
                running = left if state == "compute" else case.phases[phase].ps
                rest = sum(each.ps for each in case.phases[phase + 1 :])
                due = int(running + rest + (first - job - 1) * sum(each.ps for each in case.phases))
            pending = int(case.contended and state in ("late", "move"))
            if not system.waits(CopyView(pending, lacks[first], max(0, due))):
                chunk = min(plan.chunk_bytes, lacks[first])
                chunk_left, changed = Fraction(chunk), True
        moving = state == "move" and case.contended
        share = Fraction(1, 2) if moving and chunk else Fraction(1)
        left -= share if moving else 1
        if chunk:
            chunk_left -= share
        now += 1
    return ends


@pytest.fixture
def case() -> Case:
    """Return a small model whose collectives take the link of the copies."""
    return small_case()
