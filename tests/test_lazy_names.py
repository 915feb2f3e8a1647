from __future__ import annotations

import subprocess
import sys

import pytest

import wavetank
from wavetank.errors import WavetankError
from wavetank.lazy_names import lazy_names


def test_a_name_is_looked_up_below_the_package_or_where_its_home_says() -> None:
    look_up, _ = lazy_names("wavetank", {"WavetankError": "errors", "sort": "wavetank.kernels.fractal_sort"})
    assert look_up("WavetankError") is WavetankError
    assert look_up("sort").__module__ == "wavetank.kernels.fractal_sort"


def test_a_name_without_a_home_is_no_attribute() -> None:
    look_up, _ = lazy_names("wavetank", {})
    with pytest.raises(AttributeError, match="module 'wavetank' has no attribute 'nowhere'"):
        look_up("nowhere")


def test_a_package_lists_what_it_offers_and_nothing_that_it_imports_itself() -> None:
    _, names = lazy_names("wavetank", {"zebra": "errors"})
    assert names() == sorted({*wavetank.__all__, "zebra"})


@pytest.mark.parametrize(
    "package",
    ["", ".serving", ".kernels", ".kernels.layouts", ".kernels.solvers", ".protocols", ".workloads", ".platforms"],
)
def test_every_public_name_of_a_package_has_a_home_and_none_is_loaded_before(package: str) -> None:
    code = (
        "import sys, importlib\n"
        f"package = importlib.import_module('wavetank{package}')\n"
        "assert 'numba' not in sys.modules and 'torch' not in sys.modules\n"
        "assert set(package.__all__) <= set(dir(package))\n"
        "[getattr(package, name) for name in package.__all__]\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert wavetank.__version__
