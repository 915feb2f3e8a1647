"""Triton, where it is installed, as a second opinion."""

import pytest


@pytest.fixture(scope="session")
def triton_layouts():
    """Return Triton's own linear layouts."""
    return pytest.importorskip("triton._C.libtriton", reason="Triton is not installed").linear_layout.LinearLayout


@pytest.fixture(scope="session")
def triton_bases():
    """Return a function from a Gluon layout and a shape to the bases that Triton's compiler gives it."""
    library = pytest.importorskip("triton._C.libtriton", reason="Triton is not installed")
    pytest.importorskip("triton.experimental.gluon", reason="This Triton has no Gluon")
    context = library.ir.context()
    library.ir.load_dialects(context)
    builder = library.gluon_ir.GluonOpBuilder(context)

    def bases(layout, shape):
        # The builder does not keep its context alive.
        assert context is not None
        found = builder.to_linear_layout(layout._to_ir(builder), list(shape))
        if hasattr(found, "offset_bases"):
            return {"offset": tuple(map(tuple, found.offset_bases))}
        names = {"register": found.reg_bases, "lane": found.lane_bases, "warp": found.warp_bases}
        return {name: tuple(map(tuple, vectors)) for name, vectors in names.items()}

    return bases
