from __future__ import annotations

import dataclasses
import importlib.machinery
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from wavetank_toys.systems import Shifted

from wavetank import catalog
from wavetank.errors import BadFileError, BadValueError, UnknownNameError
from wavetank.workloads import datasets

Register = Callable[[str], None]

GOOD = """
[other]
object = "wavetank_toys.systems:Plain"
shape = "policy"
does = "Something else."
source = { title = "Nothing" }
runs = ["simulated"]
studies = []
"""


@pytest.fixture
def register(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Register]:
    """Install a third-party package whose catalog holds the given text."""

    def install(text: str, package: str = "some_party") -> None:
        folder = tmp_path / package
        folder.mkdir()
        (folder / "__init__.py").write_text("")
        (folder / "catalog.toml").write_text(text)
        info = tmp_path / f"{package}-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n")
        (info / "entry_points.txt").write_text(f"[wavetank.systems]\n{package} = {package}\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        catalog.everything.cache_clear()

    yield install
    monkeypatch.undo()
    catalog.everything.cache_clear()
    sys.modules.pop("some_party", None)


def test_a_third_party_adds_systems_and_studies_through_an_entry_point() -> None:
    assert "toy-plain" not in catalog.built_in().systems
    assert catalog.everything().systems["toy-plain"].area == "toys"
    assert catalog.study("toy-noise").asks == "Which toy gives the smallest value?"


def test_an_entry_loads_and_builds_its_class_with_the_catalogs_parameters() -> None:
    assert catalog.system("toy-shifted").load() is Shifted
    assert catalog.system("toy-fragile").build().every == 3
    assert catalog.system("toy-fragile").build(every="5").every == 5


def test_claims_know_their_system_and_conditions() -> None:
    first = catalog.system("toy-shifted").claims[0]
    assert (first.system, first.metric, first.versus, first.paper, first.better, dict(first.where)) == (
        "toy-shifted",
        "value_s",
        "toy-plain",
        0.5,
        "lower",
        {"mode": "calm"},
    )


def test_areas_are_the_folders_with_a_catalog() -> None:
    folder = Path(catalog.__file__).parent
    assert catalog.areas() == tuple(sorted(file.parent.name for file in folder.glob("*/catalog.toml")))


def test_reading_the_catalog_imports_no_system() -> None:
    code = "import sys; from wavetank import catalog; catalog.everything(); print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"


def test_a_wrong_system_comes_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError) as caught:
        catalog.system("toy-shiftd")
    error = caught.value
    assert error.problem == "There is no system named 'toy-shiftd'."
    assert error.nearest == "toy-shifted"
    assert error.hint == "wavetank list"


def test_a_wrong_study_comes_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError) as caught:
        catalog.study("toy-nois")
    assert (caught.value.nearest, caught.value.hint) == ("toy-noise", "wavetank list --studies")


def test_a_wrong_parameter_comes_with_the_nearest() -> None:
    with pytest.raises(BadValueError) as caught:
        catalog.system("toy-shifted").build(shaer=0.1)
    assert str(caught.value) == (
        "There is no parameter named 'shaer'.\n  allowed: label, pause_s, share\n  nearest: share\n"
        "  where: system toy-shifted\n  next: wavetank show toy-shifted"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[other", "The catalog is not valid TOML: "),
        (GOOD.replace("shape", "form"), "The catalog entry has unknown keys: form.\n  allowed: name, area, object, "),
        (
            GOOD.replace('"policy"', '"plan"'),
            "The shape is not one of the known ones.\n  given: plan\n  allowed: policy",
        ),
        (GOOD + 'role = "hero"\n', "The role is not one of the known ones.\n  given: hero\n  allowed: system"),
        (GOOD.replace('"simulated"', '"dreamt"'), "The key runs holds unknown words.\n  given: ('dreamt',)\n"),
        (GOOD.replace('does = "Something else."', ""), "The catalog entry is incomplete: "),
        (GOOD.replace("[other]", "[toy-plain]"), "The name 'toy-plain' is registered twice.\n  where: areas "),
        (GOOD + "[[other.claims]]\nsay = 'x'\n", "The catalog entry has unknown keys: say.\n  allowed: system, says, "),
    ],
)
def test_a_damaged_catalog_names_the_culprit(register: Register, text: str, message: str) -> None:
    register(text)
    with pytest.raises(BadFileError) as caught:
        catalog.everything()
    assert str(caught.value).startswith(message)
    assert "some_party" in str(caught.value)


def test_a_package_that_is_gone_is_named(register: Register, tmp_path: Path) -> None:
    register(GOOD)
    (tmp_path / "some_party" / "catalog.toml").unlink()
    with pytest.raises(BadFileError) as caught:
        catalog.everything()
    assert str(caught.value).startswith("The package behind the entry point 'some_party' could not be read: ")
    assert caught.value.hint == "uninstall or repair that package"


@pytest.mark.parametrize("path", ["wavetank_toys.nowhere:Plain", "wavetank_toys.systems:Nobody"])
def test_an_object_that_cannot_be_loaded_is_named(register: Register, path: str) -> None:
    register(GOOD.replace("wavetank_toys.systems:Plain", path))
    with pytest.raises(BadFileError) as caught:
        catalog.system("other").load()
    assert str(caught.value).startswith("The object of 'other' could not be loaded: ")
    assert caught.value.where == path


@pytest.mark.parametrize(
    ("needs", "lack"),
    [
        ((), ""),
        (("json", "sys"), ""),
        (("json", "no_such_library", "no_other"), "no_such_library"),
        (("no_such_library.part",), "no_such_library.part"),
    ],
)
def test_an_entry_knows_what_it_lacks(needs: tuple[str, ...], lack: str) -> None:
    assert dataclasses.replace(catalog.system("toy-plain"), needs=needs).lacks() == lack


@pytest.mark.parametrize(("found", "lack"), [(True, ""), (False, "cuda")])
def test_a_device_is_a_need_too(found: bool, lack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = SimpleNamespace(
        cuda=SimpleNamespace(is_available=lambda: found), __spec__=importlib.machinery.ModuleSpec("torch", None)
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert dataclasses.replace(catalog.system("toy-plain"), needs=("cuda",)).lacks() == lack


def test_a_data_set_is_a_need_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WAVETANK_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    entry = dataclasses.replace(catalog.system("toy-plain"), needs=("data:lcma-schemes",))
    assert entry.lacks() == "data:lcma-schemes"
    for file in datasets.entry("lcma-schemes").files:
        place = tmp_path / "lcma-schemes" / file.path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    assert entry.lacks() == ""


def test_a_device_is_lacking_where_the_library_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert dataclasses.replace(catalog.system("toy-plain"), needs=("cuda",)).lacks() == "cuda"


def test_what_an_entry_needs_is_in_the_extra_that_it_names() -> None:
    extras = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    needy = [entry for entry in catalog.built_in() if entry.needs]
    assert needy
    for entry in needy:
        libraries = {
            re.split("[^A-Za-z0-9_-]", line)[0].replace("-", "_").lower() for line in extras.get(entry.extra, ())
        }
        # What is installed under one name may be imported by another.
        libraries = {"cv2" if name == "opencv_python_headless" else name for name in libraries}
        needed = {
            need.removeprefix("package:")
            for need in entry.needs
            if need != "cuda" and not need.startswith(("data:", "blas:"))
        }
        assert needed <= libraries, entry.name
