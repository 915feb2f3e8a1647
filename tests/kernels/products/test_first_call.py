"""The first product of a fresh program: nothing is compiled, measured or imported that the library's does without."""

import json
import subprocess
import sys

_PROGRAM = """
import json, sys, warnings
import numpy as np
from wavetank.kernels import matmul
from wavetank.kernels.products import product
before = set(sys.modules)
results = []
for side in (8, 500, 1100):
    a = np.ones((side, side), np.float32)
    results.append(float(matmul(a, a)[0, 0]))
    results.append(float(matmul(a, a, accuracy="normwise")[0, 0]) if side == 1100 else float(side))
new = sorted(set(sys.modules) - before)
print(json.dumps({"results": results, "new": new, "all": sorted(sys.modules)}))
"""


def test_the_first_products_import_no_compiler_and_read_no_profile(tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _PROGRAM], capture_output=True, text=True, check=True,
        env={**_environment(), "XDG_CACHE_HOME": str(tmp_path)},
    )  # fmt: skip
    told = json.loads(done.stdout)
    assert told["results"] == [8.0, 8.0, 500.0, 500.0, 1100.0, 1100.0]
    for heavy in ("numba", "llvmlite", "torch", "scipy", "wavetank.kernels.products.fused"):
        assert heavy not in told["all"]
    assert not [name for name in told["new"] if name.startswith("numpy.")]
    assert list(tmp_path.iterdir()) == []


def _environment():
    import os

    return dict(os.environ)
