"""The Triton kernels as a compiler sees them: made for GPUs of two generations without one."""

import os
import re

import pytest

from wavetank.kernels.products.schemes import STRASSEN, WINOGRAD

triton = pytest.importorskip("triton", reason="Triton is not installed")
torch = pytest.importorskip("torch", reason="torch is not installed")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("kernels are interpreted in this process, not compiled", allow_module_level=True)

from wavetank.kernels.products import gpu_kernels, gpu_passes  # noqa: E402

POINTERS = {"float16": "*fp16", "bfloat16": "*bf16", "float32": "*fp32", "float64": "*fp64"}
# Shared memory that a block can have: H100 and A100.
SHARED_BYTES = {90: 227 * 1024, 80: 163 * 1024}


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    """Return a function that compiles a kernel: aligned arguments unless they are constants."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")

    def compile_it(kernel, pointers, constants, capability=90, aligned=True, **options):
        signature = {name: "constexpr" if name in constants else pointers.get(name, "i32") for name in kernel.arg_names}
        places = [(i,) for i, name in enumerate(kernel.arg_names) if name not in constants]
        attributes = {place: [["tt.divisibility", 16]] for place in places} if aligned else {}
        source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
        return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)

    return compile_it


def number(dtype):
    return triton.language.float64 if dtype == "float64" else triton.language.float32


def sums_constants(scheme, dtype, rows):
    table = tuple(map(int, scheme.u.ravel()))
    return {
        "column_stride": 1, "coefficients": table, "count": scheme.rank, "down": scheme.m, "across": scheme.k,
        "number": number(dtype), "tile_rows": rows, "tile_columns": 128,
    }  # fmt: skip


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_a_pass_reads_every_block_once_and_writes_every_sum_once_in_wide_words(compiled, dtype):
    rows = gpu_passes.pass_rows(4, getattr(torch, dtype).itemsize)
    pointers = {"matrix": POINTERS[dtype], "sums": POINTERS[dtype]}
    code = compiled(gpu_kernels.sum_blocks, pointers, sums_constants(STRASSEN, dtype, rows), num_warps=4).asm["ptx"]
    loads, stores = (re.findall(rf"{kind}\.global[^;]*;", code) for kind in ("ld", "st"))
    # A thread's elements of a block, in words of 16 bytes: 4 blocks are read, 7 sums written.
    words = rows * 128 // 128 * getattr(torch, dtype).itemsize // 16
    assert (len(loads), len(stores)) == (4 * words, 7 * words)
    wide = r"\.v2\.b64|\.v4\.b32" if dtype != "float64" else r"\.v2\.b64|\.v4\.b32|\.v2\.f64"
    assert all(re.search(wide, each) for each in (*loads, *stores))


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_a_spreading_pass_reads_every_product_once(compiled, dtype):
    rows = gpu_passes.pass_rows(4, getattr(torch, dtype).itemsize)
    constants = sums_constants(WINOGRAD, dtype, rows) | {"coefficients": tuple(map(int, WINOGRAD.w.ravel()))}
    del constants["column_stride"]
    pointers = {"products": POINTERS[dtype], "result": POINTERS[dtype], "flag": "*i32"}
    code = compiled(gpu_kernels.spread_products, pointers, constants, num_warps=4).asm["ptx"]
    words = rows * getattr(torch, dtype).itemsize // 16
    assert len(re.findall(r"ld\.global[^;]*;", code)) == 7 * words


@pytest.mark.parametrize("capability", [90, pytest.param(80, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("dtype", "tf32"),
    [("bfloat16", False), ("float32", False), ("float32", True), ("float64", False),
     pytest.param("float16", False, marks=pytest.mark.slow)],
)  # fmt: skip
@pytest.mark.parametrize("guarded", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_multiplying_kernel_fits_the_gpu_and_uses_its_matrix_units(compiled, dtype, tf32, guarded, capability):
    tile = gpu_passes.tile_for(getattr(torch, dtype), tf32, SHARED_BYTES[capability])
    kind = "*fp64" if dtype == "float64" else "*fp32"
    pointers = dict.fromkeys(("left", "right", "result"), POINTERS[dtype])
    pointers |= {"partial": kind, "scales": kind, **dict.fromkeys(("flag", "starts", "places", "states"), "*i32")}
    if guarded:
        pointers["partial"] = POINTERS[dtype]
    constants = {
        "left_column": 1, "right_column": 1, "number": number(dtype), "precision": "tf32" if tf32 else "ieee",
        "apart": "16" in dtype and not guarded, "guarded": guarded, "tile_rows": tile.rows,
        "tile_columns": tile.columns, "tile_depth": tile.depth, "group": 8, "halvings": tile.halvings,
    }  # fmt: skip
    made = compiled(
        gpu_kernels.multiply_blocks, pointers, constants, capability, num_warps=tile.warps, num_stages=tile.stages
    )
    assert made.metadata.shared <= SHARED_BYTES[capability]
    assert made.asm["cubin"]
    unit = "wgmma.mma_async" if capability == 90 and dtype != "float64" else "mma.sync"
    # Float32 without rounding has no matrix unit.
    assert (unit in made.asm["ptx"]) == (dtype != "float32" or tf32)


def test_operands_without_alignment_or_neighbours_compile_too(compiled):
    tile = gpu_passes.tile_for(torch.bfloat16, False, SHARED_BYTES[90])
    pointers = dict.fromkeys(("left", "right", "result", "partial"), "*bf16") | {"scales": "*fp32"}
    pointers |= dict.fromkeys(("flag", "starts", "places", "states"), "*i32")
    pointers |= dict.fromkeys(("left_product", "left_row", "left_column"), "i64")
    constants = {
        "count": 1, "across": 1, "right_column": 1, "row_stride": 1, "number": number("bfloat16"), "precision": "ieee",
        "apart": False, "guarded": True, "tile_rows": tile.rows, "tile_columns": tile.columns,
        "tile_depth": tile.depth, "group": 8, "halvings": tile.halvings,
    }  # fmt: skip
    made = compiled(
        gpu_kernels.multiply_blocks, pointers, constants, aligned=False, num_warps=tile.warps, num_stages=tile.stages
    )
    assert made.metadata.shared <= SHARED_BYTES[90]
