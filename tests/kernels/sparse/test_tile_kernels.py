"""The kernels of a GPU, compiled for one without one; what they compute is held in test_gpu.py."""

import pytest

triton = pytest.importorskip("triton", reason="Triton is not installed")

from wavetank.kernels.sparse import tile_kernels  # noqa: E402


@pytest.mark.parametrize("kind", ["fp32", "fp64"])
@pytest.mark.parametrize("weighted", [True, False])
def test_the_kernels_compile_for_a_gpu_of_the_hopper_generation(monkeypatch, tmp_path, kind, weighted):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    if tile_kernels.INTERPRETED:
        pytest.skip("Triton interprets in this process")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    words = {"words": "*i32", "ends_before": "*i16", "first_row": "*i64", "first_nonzero": "*i64"}
    floats = dict.fromkeys(("values", "scale", "x", "y", "tails"), f"*{kind}")
    rows = {"rows": "*i64", "first_tail": "*i32", "last_tail": "*i32", "count": "i32", "longest": "i32"}
    kernels = [
        (tile_kernels.multiply_tiles, words | {"columns": "*i32"} | floats, {"STEPS": 1024, "WEIGHTED": weighted}),
        (tile_kernels.close_rows, rows | floats, {"ROWS": 128, "WIDTH": 1}),
        (tile_kernels.close_rows, rows | floats, {"ROWS": 1, "WIDTH": 1024}),
    ]
    for kernel, signature, constants in kernels:
        types = {name: "constexpr" if name in constants else signature[name] for name in kernel.arg_names}
        source = ASTSource(kernel, types, constants)
        made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
        assert made.asm["cubin"]
        if kernel is tile_kernels.multiply_tiles and tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 9):
            # Ones are counted by the instruction for it, one for each of a thread's eight steps; before Triton 3.9 the
            # compiler did not see that it fits, and left the dozen of others.
            assert made.asm["ptx"].count("popc.b32") == 8
