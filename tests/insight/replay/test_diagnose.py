"""Planted faults are found with the culprit, sound traces get nothing, and every line recomputes."""

import random

import pytest
from tests.insight.replay.test_checks import PLAN, program
from tests.insight.replay.test_reading import job

from wavetank.diagnosis.findings import unsupported
from wavetank.errors import BadValueError, DataUnavailableError, WavetankError
from wavetank.insight.replay import critical_path, read_et, simulate
from wavetank.insight.replay.diagnose import LABELS, ChakraDiagnosis
from wavetank.platforms.fabric import Fabric, Level
from wavetank.workloads import datasets
from wavetank.workloads.chakra_writing import made_node, made_trace
from wavetank.workloads.operations import COLLECTIVES


def diagnosed(path, **settings):
    analyser = ChakraDiagnosis(**settings)
    diagnosis = analyser.diagnose(path)
    assert unsupported(diagnosis, analyser.source(path)) == []
    return diagnosis


def found(path, **settings):
    return {each.label: each for each in diagnosed(path, **settings).findings}


def worker(work, took=1000, calls=4):
    """A rank that computes and calls an all-reduce in turn, with recorded times."""
    nodes = []
    for n in range(calls):
        nodes += [
            made_node(2 * n, f"gemm {n}", "compute", after=[2 * n - 1] if n else [], duration_ns=work),
            made_node(2 * n + 1, "sum", "collective", after=[2 * n], duration_ns=took,
                      attributes={"comm_type": 0, "comm_size": 1 << 20, "pg_name": "0"}),
        ]  # fmt: skip
    return made_trace(nodes)


def test_ranks_that_compute_alike_get_no_finding(tmp_path):
    diagnosis = diagnosed(job(tmp_path, [worker(50_000)] * 3))
    assert diagnosis.findings == ()
    assert diagnosis.too_little == ()
    facts = {fact.name: fact.value for fact in diagnosis.facts}
    assert facts["makespan_s"] == pytest.approx(4 * 51e-6)
    assert facts["path_communication_share"] == pytest.approx(1 / 51)


@pytest.mark.parametrize("late", [0, 1, 2])
def test_a_late_rank_is_named(tmp_path, late):
    ranks = [worker(50_000)] * 3
    ranks[late] = worker(80_000)
    (finding,) = diagnosed(job(tmp_path, ranks)).findings
    assert (finding.label, finding.where, finding.confidence) == ("late-rank", f"rank {late}", 1.0)
    assert {each.name: each.value for each in finding.evidence}["waiting_share"] == pytest.approx(30 / 81)
    assert found(tmp_path, waiting=0.5) == {}


def test_communication_that_decides_is_reported_and_recomputes(tmp_path):
    label = found(job(tmp_path, [worker(50_000, 50_000)] * 2))
    assert set(label) == {"communication-bound", "one-operation"}
    assert label["communication-bound"].evidence[0].value == 0.5
    assert label["one-operation"].evidence[1].value == "sum"


def test_a_job_that_its_host_holds_up(tmp_path):
    trace = made_trace([
        made_node(0, "launch", "compute", duration_ns=90_000, attributes={"is_cpu_op": True}),
        made_node(1, "k", "compute", after=[0], duration_ns=10_000),
    ])  # fmt: skip
    assert found(job(tmp_path, [trace]))["host-bound"].evidence[0].value == 0.9


def test_mismatched_collectives_name_the_culprit_in_place_of_a_replay(tmp_path):
    ranks = [program(PLAN)] * 4
    ranks[2] = program(PLAN[1:])
    diagnosis = diagnosed(job(tmp_path, ranks))
    (finding,) = diagnosis.findings
    assert (finding.label, finding.where, finding.severity) == ("mismatched-collective", "rank 2", "critical")
    assert "Rank 2 leaves a call out" in finding.sentence(finding.says)
    assert "makespan_s" not in {fact.name for fact in diagnosis.facts}
    assert diagnosis.too_little


@pytest.mark.parametrize(
    ("label", "nodes"),
    [
        ("dangling-dependency", [made_node(1, "a", "compute", after=[7], duration_ns=1)]),
        ("cycle", [made_node(n, "a", "compute", after=[3 - n], duration_ns=1) for n in (1, 2)]),
        ("bad-node", [made_node(1, "a", "collective", attributes={"comm_type": 77, "comm_size": 1})]),
        ("unmatched-message", [made_node(1, "a", "send", attributes={"comm_dst": 0, "comm_size": 1})]),
    ],
)
def test_broken_traces_are_explained(tmp_path, label, nodes):
    assert set(found(job(tmp_path, [made_trace(nodes)]))) == {label}
    assert label in LABELS


def test_the_first_few_of_many_problems_stand_for_them(tmp_path):
    nodes = [made_node(n, "a", "compute", after=[100 + n], duration_ns=1) for n in range(20)]
    findings = diagnosed(job(tmp_path, [made_trace(nodes)])).findings
    assert len(findings) == 3
    assert {each.name: each.value for each in findings[0].evidence}["problems_alike"] == 20


def test_sizes_without_durations_take_what_the_settings_say(tmp_path):
    nodes = [made_node(0, "x", "collective",
                       attributes={"comm_type": COLLECTIVES.index("all-gather"), "comm_size": 4_000_000})]  # fmt: skip
    path = job(tmp_path, [made_trace(nodes)] * 4)
    facts = {fact.name: fact.value for fact in diagnosed(path, alpha_s=0.0, bytes_per_s=1e9).facts}
    assert facts["makespan_s"] == pytest.approx(0.003)
    assert facts["unrecorded_share"] == 1.0


def test_settings_out_of_range_are_refused():
    for wrong in ({"waiting": 1.5}, {"communication": float("nan")}, {"bytes_per_s": 0.0}):
        with pytest.raises(BadValueError):
            ChakraDiagnosis(**wrong)


@pytest.mark.parametrize(
    ("name", "says"), [("chakra.0.json.gz", 0), ("small_chakra.0.json", 1), ("host_et_1.0.2-chakra.0.0.4.json.gz", 1),
                       ("custom_ring_allreduce_8npus_1MB", 0), ("micro/all_to_all/8npus_1MB", 0)]
)  # fmt: skip
def test_recorded_traces_are_explained(name, says):
    try:
        path = datasets.find("chakra-et") / name
    except DataUnavailableError as error:
        pytest.skip(str(error))
    diagnosis = diagnosed(path)
    assert len(diagnosis.too_little) == says
    assert diagnosis.facts


MUTATIONS, DIAGNOSED = 1500, 100
FABRIC = Fabric(levels=(Level(name="ring", size=2, alpha_s=1e-6, bytes_per_s=1e9),))


def mutated(content, rng):
    """The content with some bytes changed, dropped, doubled or cut off."""
    found = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        if not found:
            break
        at, size = rng.randrange(len(found)), rng.randint(1, 12)
        how = rng.randrange(5)
        if how == 0:
            found[at] = rng.randrange(256)
        elif how == 1:
            del found[at : at + size]
        elif how == 2:
            found[at:at] = found[at : at + size]
        elif how == 3:
            found[at : at + size] = bytes(rng.randrange(256) for _ in range(size))
        else:
            del found[at:]
    return bytes(found)


def survives(path, content, whole):
    """Whether a damaged file is replayed, or diagnosed as a whole; a clear error is the other way out."""
    path.write_bytes(content)
    try:
        if whole:
            diagnosed(path)
        else:
            timeline = simulate(read_et(path), FABRIC)
            assert critical_path(timeline).taken_ps == timeline.makespan_ps > 0
    except WavetankError:
        return False
    return True


@pytest.mark.parametrize("form", ["et", "json"])
def test_damaged_files_are_refused_or_explained_but_never_crash(tmp_path, form):
    fuzz(tmp_path, form, MUTATIONS)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["et", "json"])
def test_very_many_damaged_files_never_crash(tmp_path, form):
    fuzz(tmp_path, form, 200_000)


def fuzz(tmp_path, form, count):
    rng = random.Random(f"{form} {count}")
    job(tmp_path, [worker(50_000, calls=2)], f"trace.{{}}.{form}")
    path = tmp_path / f"trace.0.{form}"
    content = path.read_bytes()
    outcomes = [survives(path, mutated(content, rng), n < DIAGNOSED) for n in range(count)]
    assert any(outcomes)
    assert not all(outcomes)
