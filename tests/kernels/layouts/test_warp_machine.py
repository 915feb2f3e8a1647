"""The machine of warps: what it executes, what it counts, and Triton's opinion of bank conflicts."""

import re

import numpy as np
import pytest

from wavetank.errors import BadValueError, WavetankError
from wavetank.kernels.layouts.access import Banks
from wavetank.kernels.layouts.conversion import LinearLayouts, Plan, through_shared
from wavetank.kernels.layouts.families import Blocked, PaddedShared, SwizzledShared
from wavetank.kernels.layouts.rivals import PaddedRows, UnswizzledShared
from wavetank.kernels.layouts.warp_machine import WarpMachine

MACHINE = WarpMachine()
NO_MATRICES = Banks(matrix_loads=False, matrix_stores=False)
ROWS = Blocked(registers=(1, 1), lanes=(1, 32), warps=(1, 1), order=(1, 0)).layout((32, 32))
COLUMNS = Blocked(registers=(1, 1), lanes=(32, 1), warps=(1, 1), order=(1, 0)).layout((32, 32))
TENSOR = np.arange(1024, dtype=np.float32).reshape(32, 32)

try:
    from triton.experimental import gluon
    from triton.experimental.gluon import language as ttgl
except ImportError:
    gluon = None
else:

    @gluon.jit
    def tell_conflicts(
        registers: ttgl.constexpr, memory: ttgl.constexpr, rows: ttgl.constexpr, columns: ttgl.constexpr
    ):
        """Let Triton's compiler print the conflicts of an access to shared memory."""
        found: ttgl.constexpr = ttgl.bank_conflicts(
            ttgl.distributed_type(ttgl.float32, [rows, columns], registers),
            ttgl.shared_memory_descriptor_type(ttgl.float32, [rows, columns], memory, [rows, columns]),
        )
        ttgl.static_print("conflicts", found)


def test_registers_hold_what_the_layout_says():
    registers = MACHINE.load(TENSOR, COLUMNS)
    assert registers.shape == (1, 32, 32)
    for lane, register in ((0, 0), (3, 5), (31, 31)):
        at = COLUMNS.apply(lane=lane, register=register)
        assert registers[0, lane, register] == TENSOR[at["dim0"], at["dim1"]]


def test_the_transposed_tile_of_the_dossier():
    plan = UnswizzledShared().plan(ROWS, COLUMNS, 4, NO_MATRICES)
    found, counts = MACHINE.run(plan, MACHINE.load(TENSOR, ROWS))
    assert np.array_equal(found, MACHINE.load(TENSOR, COLUMNS))
    # Writing rows: one wavefront each. Reading columns, four elements a lane: eight lanes in one bank in each quarter.
    assert counts.stores == 32
    assert counts.loads == 8
    assert counts.wavefronts == 32 + 8 * 4 * 8
    scalar = UnswizzledShared().plan(ROWS, COLUMNS, 4, Banks(vector_bytes=4))
    _, counts = MACHINE.run(scalar, MACHINE.load(TENSOR, ROWS))
    # One element a lane: all 32 lanes in one bank.
    assert counts.wavefronts == 32 + 32 * 32


def test_one_word_of_padding_removes_the_conflicts_of_single_words():
    plan = PaddedRows().plan(ROWS, COLUMNS, 4, Banks(vector_bytes=4))
    found, counts = MACHINE.run(plan, MACHINE.load(TENSOR, ROWS))
    assert np.array_equal(found, MACHINE.load(TENSOR, COLUMNS))
    assert counts.wavefronts == 64
    assert counts.memory_bytes == (32 * 33 - 1) * 4


def test_lanes_that_read_the_same_word_do_not_conflict():
    everybody = Blocked(registers=(1, 1), lanes=(1, 32), warps=(2, 1), order=(1, 0)).layout((32, 1))
    other = Blocked(registers=(1, 1), lanes=(1, 32), warps=(1, 2), order=(1, 0)).layout((32, 1))
    plan = through_shared(everybody, other, 4, PaddedShared().layout((32, 1)), None, Banks(vector_bytes=4))
    tensor = np.arange(32, dtype=np.int32).reshape(32, 1)
    found, counts = MACHINE.run(plan, MACHINE.load(tensor, everybody))
    assert np.array_equal(found, MACHINE.load(tensor, other))
    # Of the copies only one lane of each warp writes; all lanes of both warps read one word at a time.
    assert (counts.stores, counts.loads) == (32, 64)
    assert counts.wavefronts == 96
    assert counts.moved_bytes == 32 * 4 + 2 * 32 * 32 * 4


def test_inputs_stay_as_they_are():
    registers = MACHINE.load(TENSOR, ROWS)
    registers.flags.writeable = False
    before = registers.copy()
    for target in (ROWS, COLUMNS):
        found, _ = MACHINE.run(LinearLayouts().plan(ROWS, target, 4), registers)
        assert not np.shares_memory(found, registers)
    assert np.array_equal(registers, before)


def test_lists_and_torch_tensors_are_taken():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    expected = MACHINE.load(TENSOR, ROWS)
    plan = LinearLayouts().plan(ROWS, COLUMNS, 4)
    wanted, _ = MACHINE.run(plan, expected)
    registers = MACHINE.load(torch.from_numpy(TENSOR), ROWS)
    assert np.array_equal(registers, expected)
    assert np.array_equal(MACHINE.run(plan, torch.from_numpy(registers))[0], wanted)
    assert np.array_equal(MACHINE.load(TENSOR.astype(int).tolist(), ROWS), expected)
    gather = LinearLayouts().plan_gather(ROWS, ROWS, "dim1", 4)
    index = torch.zeros(registers.shape, dtype=torch.int64)
    found, _ = MACHINE.run_gather(gather, torch.from_numpy(registers), index)
    assert np.array_equal(found, MACHINE.load(np.repeat(TENSOR[:, :1], 32, axis=1), ROWS))


def test_what_does_not_fit_is_refused():
    plan = UnswizzledShared().plan(ROWS, COLUMNS, 4)
    with pytest.raises(BadValueError, match="not those of the plan"):
        MACHINE.run(plan, np.zeros((1, 32, 32), np.float64))
    with pytest.raises(BadValueError, match="not those of the plan"):
        MACHINE.run(plan, np.zeros((32, 32), np.float32))
    with pytest.raises(BadValueError, match="another tensor"):
        MACHINE.load(TENSOR[:16], ROWS)
    with pytest.raises(BadValueError, match="fit into shared memory") as caught:
        WarpMachine(shared_bytes=4095).run(plan, MACHINE.load(TENSOR, ROWS))
    assert caught.value.given == "4096 bytes"


def changed(plan: Plan, **parts: object) -> Plan:
    return Plan(
        kind=plan.kind,
        source=plan.source,
        target=plan.target,
        element_bytes=plan.element_bytes,
        banks=plan.banks,
        step=plan.step._replace(**parts),
    )


def test_plans_that_break_the_rules_of_the_machine_are_caught():
    registers = MACHINE.load(TENSOR, ROWS)
    shuffles = LinearLayouts().plan(ROWS, COLUMNS, 4)
    low = shuffles.step.register_bits + shuffles.step.lane_bits
    one_round = tuple(column & ((1 << low) - 1) for column in shuffles.step.registers)
    with pytest.raises(WavetankError, match=r"two values in one round|two lanes in one round"):
        MACHINE.run(changed(shuffles, registers=one_round), registers)
    memory = UnswizzledShared().plan(ROWS, COLUMNS, 4, NO_MATRICES)
    with pytest.raises(WavetankError, match="never written"):
        MACHINE.run(changed(memory, store=memory.step.store._replace(idle_lanes=1)), registers)
    with pytest.raises(WavetankError, match="in a row"):
        MACHINE.run(changed(memory, store=_torn(memory.step.store)), registers)


def _torn(store):
    # Two registers that lie 32 elements apart are no vector of two.
    return store._replace(registers=(32 ^ 1, 64, 128, 256, 512), lanes=(1, 2, 4, 8, 16), vector_bits=1)


@pytest.mark.skipif(gluon is None, reason="Triton is not installed")
@pytest.mark.parametrize(
    ("lanes", "registers", "swizzle"),
    [
        ((32, 1), (1, 1), (1, 1, 1)),
        ((32, 1), (1, 1), (1, 1, 32)),
        ((1, 32), (1, 1), (1, 1, 1)),
        ((8, 4), (1, 4), (4, 1, 8)),
        ((8, 4), (1, 4), (1, 1, 1)),
        ((16, 2), (1, 2), (2, 1, 4)),
    ],
)
def test_triton_counts_the_same_conflicts(monkeypatch, tmp_path, capfd, lanes, registers, swizzle):
    """The compiler's own analysis, for a GPU of the Hopper generation; it needs none."""
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.experimental.gluon._runtime import GluonASTSource

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    threads = ttgl.BlockedLayout(list(registers), list(lanes), [1, 4], [1, 0])
    memory = ttgl.SwizzledSharedLayout(*swizzle, [1, 0])
    given = {"registers": threads, "memory": memory, "rows": 32, "columns": 128}
    source = GluonASTSource(fn=tell_conflicts, signature=dict.fromkeys(given, "constexpr"), constexprs=given)
    triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
    theirs = int(re.search(r"conflicts (\d+)", capfd.readouterr().out)[1])

    mine = Blocked(registers=registers, lanes=lanes, warps=(1, 4), order=(1, 0)).layout((32, 128))
    vector, per_phase, max_phase = swizzle
    shared = SwizzledShared(vector=vector, per_phase=per_phase, max_phase=max_phase, order=(1, 0)).layout((32, 128))
    plan = through_shared(mine, mine, 4, shared, None, Banks())
    tensor = np.arange(32 * 128, dtype=np.float32).reshape(32, 128)
    _, counts = MACHINE.run(plan, MACHINE.load(tensor, mine))
    assert counts == plan.counts()
    # Without conflicts a wavefront carries 32 words, as the tensor has no copies.
    assert counts.wavefronts == 2 * 128 * (theirs + 1)
