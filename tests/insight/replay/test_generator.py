"""Generated traces have the source's shares and sizes, and neither its names nor its order."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadTraceError, BadValueError
from wavetank.insight.replay import TraceModel, generate, likeness, simulate, validate
from wavetank.insight.replay.generator import Sizes, communication, ks_distance, repeats_of
from wavetank.platforms.fabric import Fabric, Level
from wavetank.workloads.chakra_writing import made_node, made_trace
from wavetank.workloads.operations import COLLECTIVES

SECRET = "acme_ultra_70b.layers"


def job(seed=0, calls=400, ranks=4):
    """Tensor-parallel pairs and a job of data parallel: kinds in runs, sizes of a few layers and of many buckets."""
    rng = np.random.default_rng(seed)
    program, kind = [], 0
    for n in range(calls):
        if rng.random() > 0.6:
            kind = rng.choice(3, p=[0.6, 0.3, 0.1])
        size = int(rng.choice([33_554_432, 8_388_608], p=[0.7, 0.3])) if kind == 0 else int(rng.lognormal(13, 1))
        program.append((kind, size, int(rng.lognormal(11, 0.5)), f"{SECRET}.{n}"))
    return [made_trace(list(nodes_of(rank, ranks, program))) for rank in range(ranks)]


def nodes_of(rank, ranks, program):
    for n, (kind, size, took, name) in enumerate(program):
        yield made_node(3 * n, name, "compute", after=[3 * n - 2] if n else [], duration_ns=took,
                        attributes={"module": name})  # fmt: skip
        common = {"comm_size": size, "is_cpu_op": False}
        if kind == 2:
            yield made_node(3 * n + 1, name, "send", after=[3 * n],
                            attributes=common | {"comm_dst": (rank + 1) % ranks, "comm_tag": n})  # fmt: skip
            yield made_node(3 * n + 2, name, "receive", after=[3 * n],
                            attributes=common | {"comm_src": (rank - 1) % ranks, "comm_tag": n})  # fmt: skip
        else:
            group = f"{SECRET}.tp{rank // 2}" if kind == 0 else "world"
            yield made_node(3 * n + 1, name, "collective", after=[3 * n],
                            attributes=common | {"comm_type": (0, 7)[kind], "pg_name": group})  # fmt: skip


SOURCE = job()


@pytest.mark.parametrize("seed", [0, 1])
def test_mix_and_sizes_are_those_of_the_source(seed):
    near = likeness(SOURCE, generate(SOURCE, seed=seed))
    assert near.degrees == 2
    assert near.p_value > 0.99
    assert near.ks < 0.05
    assert near.largest_ks < 0.1
    assert near.repeats == pytest.approx(near.source_repeats, abs=0.08)


def test_a_mix_that_differs_shows():
    single = made_trace([made_node(0, "x", "collective", attributes={"comm_type": 0, "comm_size": 9})])
    assert likeness(SOURCE, generate([single] * 4)).p_value < 1e-6
    assert likeness(SOURCE, job(seed=1)).p_value < 0.5
    assert likeness(SOURCE, generate(SOURCE, blur=1.0)).ks > 0.1


def test_group_sizes_and_message_ways_are_kept():
    made = generate(SOURCE, seed=3)
    assert {kind for calls in communication(made) for kind, _ in calls} == {
        ("all-reduce", 2), ("reduce-scatter", 4), ("send", 1)
    }  # fmt: skip


def test_generated_traces_are_sound_and_run():
    made = generate(SOURCE, seed=0, ranks=6, calls=50)
    assert len(made) == 6
    assert validate(made) == ()
    fabric = Fabric(levels=(Level(name="ring", size=6, alpha_s=1e-6, bytes_per_s=1e10),))
    assert simulate(made, fabric).makespan_ps > 0


def test_no_name_of_the_source_is_in_them():
    content = b"".join(trace.content() for trace in generate(SOURCE))
    assert b"acme" not in content
    assert b"world" not in content
    assert {node.name for trace in generate(SOURCE) for node in trace.nodes} == {
        "compute", "send", "receive", "all-reduce", "reduce-scatter"
    }  # fmt: skip


def shared_run(one, other):
    """Length of the longest run of calls that stands in both."""
    best, row = 0, [0] * (len(other) + 1)
    for a in one:
        fresh = [0] * (len(other) + 1)
        for j, b in enumerate(other, 1):
            fresh[j] = row[j - 1] + 1 if a == b else 0
        best, row = max(best, *fresh), fresh
    return best


def test_the_order_of_calls_is_no_nearer_than_that_of_calls_shuffled():
    true = communication(SOURCE)[0]
    made = communication(generate(SOURCE, seed=5))[0]
    rng = np.random.default_rng(0)
    by_chance = [shared_run(true, [true[i] for i in rng.permutation(len(true))]) for _ in range(10)]
    # Kinds come in runs on both sides, so that runs of one size are somewhat longer.
    assert shared_run(true, made) <= 2 * max(by_chance)
    assert shared_run(true, true) == len(true)


def test_sizes_that_could_show_whose_trace_it_is_are_not_taken_over():
    rare = {1_234_567, 7_654_321}
    sizes = [4096] * 50 + sorted(rare) + list(range(10_000, 30_000, 500))
    drawn = set(Sizes.fitted(sizes).dealt(1000, np.random.default_rng(0)).tolist())
    assert not drawn & rare
    assert 4096 in drawn
    assert max(drawn) <= max(sizes)


def test_the_least_and_largest_size_that_occur_once_are_not_taken_over():
    rng = np.random.default_rng(5)
    for _ in range(20):
        sizes = [int(each) for each in rng.lognormal(13, 1, 300)]
        made = Sizes.fitted(sizes).dealt(300, rng)
        assert min(sizes) < made.min()
        assert made.max() < max(sizes)


def test_a_size_that_every_rank_calls_once_is_as_rare_as_on_one_rank():
    true = {size for calls in communication(SOURCE) for kind, size in calls if kind[0] == "reduce-scatter"}
    made = {size for calls in communication(generate(SOURCE)) for kind, size in calls if kind[0] == "reduce-scatter"}
    assert len(true) > 50
    assert len(true & made) < 5


def test_blur_moves_frequent_sizes():
    drawn = Sizes.fitted([4096] * 50).dealt(100, np.random.default_rng(0), blur=0.3)
    assert len(set(drawn.tolist())) == 1
    assert drawn[0] != 4096


def test_equal_seeds_give_equal_traces_and_others_do_not():
    one, again, other = (generate(SOURCE, seed=seed)[1].content() for seed in (4, 4, 5))
    assert one == again != other


@settings(max_examples=50)
@given(sizes=st.lists(st.integers(0, 2**40), min_size=1, max_size=60), n=st.integers(0, 80))
def test_as_many_sizes_are_dealt_as_asked_for_and_none_outside_of_the_source(sizes, n):
    drawn = Sizes.fitted(sizes).dealt(n, np.random.default_rng(0))
    assert drawn.size == n
    assert n == 0 or (min(sizes) <= drawn.min() and drawn.max() <= max(sizes))


def test_repeats_are_0_by_chance_and_1_always():
    kinds = [("a", 1), ("b", 1)]
    rng = np.random.default_rng(0)
    drawn = [(kinds[i], 0) for i in rng.integers(0, 2, 5000)]
    assert repeats_of([drawn]) == pytest.approx(0, abs=0.05)
    assert repeats_of([sorted(drawn)]) > 0.99
    assert repeats_of([[(kinds[0], 0)] * 5]) == repeats_of([[]]) == 0.0


def test_the_distance_of_distributions_by_hand():
    assert ks_distance([1, 2, 3, 4], [1, 2, 3, 4]) == 0
    assert ks_distance([1, 1, 1, 1], [1, 1, 2, 2]) == 0.5
    assert ks_distance([1], [2]) == 1


def test_computation_that_waits_is_kept():
    always = TraceModel.fitted(SOURCE)
    assert always.awaited == pytest.approx(1, abs=0.01)
    never = [
        made_trace([made_node(n, "x", "collective", attributes={"comm_type": 0, "comm_size": 9}) for n in range(9)])
    ]
    assert TraceModel.fitted(never).awaited == 0
    assert all(not node.ctrl_deps or node.type == 7 or len(node.ctrl_deps) == 1 for node in generate(never)[0].nodes)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: generate(SOURCE, ranks=3), "more members"),
        (lambda: generate(SOURCE, ranks=0), "ranks"),
        (lambda: generate(SOURCE, calls=0), "calls"),
        (lambda: generate(SOURCE, calls=10**7), "more calls than"),
        (lambda: generate(SOURCE, blur=float("nan")), "share of themselves"),
        (lambda: TraceModel.fitted(SOURCE, ranks=2), "as many ranks"),
        (lambda: TraceModel.fitted([made_trace([])]), "Nothing in the traces communicates"),
        (lambda: likeness(SOURCE, [made_trace([])]), "Nothing in the traces communicates"),
    ],
)
def test_what_cannot_be_generated_is_refused(call, says):
    with pytest.raises((BadValueError, BadTraceError), match=says):
        call()


def test_a_trace_of_one_rank_of_many_counts_its_groups_as_all():
    source = [
        made_trace(
            [
                made_node(
                    0,
                    "x",
                    "collective",
                    attributes={"comm_type": COLLECTIVES.index("broadcast"), "comm_size": 9, "pg_name": "w"},
                )
            ]
        )
    ]
    assert TraceModel.fitted(source, ranks=8).mix == {("broadcast", 8): 1.0}
