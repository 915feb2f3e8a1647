from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import wavetank
from wavetank.errors import BadFileError, WavetankError


def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> Any:
    folder = tmp_path / "lazy_example"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from typing import TYPE_CHECKING\nfrom wavetank.lazy_names import lazy_names\n"
        f"{body}\n__getattr__, __dir__, __all__ = lazy_names(__name__)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "lazy_example", raising=False)
    return importlib.import_module("lazy_example")


def test_a_name_is_looked_up_in_the_module_from_which_it_is_imported_for_type_checkers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "if TYPE_CHECKING:\n    from wavetank.errors import WavetankError, BadFileError as Damaged"
    made = package(tmp_path, monkeypatch, body)
    assert "WavetankError" not in vars(made)
    assert made.WavetankError is WavetankError
    assert made.Damaged is BadFileError
    assert made.__all__ == ["Damaged", "WavetankError"]


def test_a_name_that_is_not_offered_is_no_attribute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = package(tmp_path, monkeypatch, "from os import path")
    with pytest.raises(AttributeError, match="module 'lazy_example' has no attribute 'nowhere'"):
        made.nowhere  # noqa: B018
    assert made.__all__ == dir(made) == []


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


@pytest.mark.parametrize("package", ["", ".serving", ".kernels", ".protocols", ".workloads", ".platforms"])
def test_no_public_name_is_hidden_by_a_module_of_the_same_name(package: str) -> None:
    """A module that is imported becomes an attribute of its package, in place of what the package offers."""
    made = importlib.import_module(f"wavetank{package}")
    inside = [each for folder in made.__path__ for each in Path(folder).iterdir()]
    modules = {each.stem for each in inside if each.suffix == ".py" or (each / "__init__.py").exists()}
    assert modules & set(made.__all__) == set()
