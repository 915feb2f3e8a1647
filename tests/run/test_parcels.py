from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from wavetank.errors import BadFileError, BadValueError
from wavetank.run.parcels import Parcel, from_file, imported, parcel_of

TEXT = """
from __future__ import annotations
import threading
from dataclasses import dataclass
LOCK = threading.Lock()
@dataclass
class Guarded:
    share: float = 0.5
    def change(self, draw: float) -> float:
        with LOCK:
            return draw * self.share
"""


TYPED = """
class Here:
    def __init__(self, share=0.5):
        self.share = share
    def change(self, draw):
        return beside(draw) * self.share
def beside(draw):
    return draw + 1
"""


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a module that this process alone has, as a notebook's."""
    module = types.ModuleType("wavetank_typed_here")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(TYPED, vars(module))
    return module


@dataclass
class Holder:
    part: Any


def opened_elsewhere(parcel: Parcel, call: str) -> str:
    """Open a parcel in a new process with this one's path, and return what a call gives."""
    script = "import pickle, sys; built = pickle.load(sys.stdin.buffer).build({}); print(" + call + ")"
    words = [sys.executable, "-P", "-c", script]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(words, input=pickle.dumps(parcel), capture_output=True, timeout=60, env=environment)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


def test_the_class_of_a_file_goes_to_a_process_that_does_not_have_the_file(tmp_path: Path) -> None:
    file = tmp_path / "a file.py"
    file.write_text(TEXT)
    parcel = parcel_of(from_file(file, "here").Guarded, "here")
    file.unlink()
    # A lock beside the class could not be pickled: its file's text goes along instead.
    assert opened_elsewhere(parcel, "built.change(3.0)") == "1.5"


def test_what_no_other_process_can_import_goes_whole_with_what_it_needs(typed: Any) -> None:
    assert opened_elsewhere(parcel_of(typed.Here, "here"), "built.change(3.0)") == "2.0"
    assert opened_elsewhere(parcel_of(typed.Here(0.25), "here"), "built.change(3.0)") == "1.0"


def test_what_can_be_imported_goes_by_its_name() -> None:
    from wavetank_toys.systems import Shifted

    parcel = parcel_of(Shifted, "here")
    assert parcel.source == b""
    assert len(parcel.pickled) < 100
    assert parcel.open() is Shifted


def test_every_trial_has_an_object_of_its_own(typed: Any) -> None:
    given = typed.Here(0.25)
    parcel = parcel_of(given, "here")
    given.share = 0.75
    first = parcel.build({})
    first.share = 1.0
    assert parcel.build({}).share == 0.25
    assert parcel_of(typed.Here, "here").build({"share": 0.1}).share == 0.1


def test_a_file_that_changed_is_another_module(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("SHARE = 1")
    first = from_file(file, "here")
    assert from_file(file, "here") is first
    file.write_text("SHARE = 2")
    assert (from_file(file, "here").SHARE, first.SHARE) == (2, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.py"]


def test_the_text_of_a_file_that_has_changed_since_is_not_taken_for_the_file(tmp_path: Path) -> None:
    """Or what is compiled of the old text would be kept, and found again, as if it were of the new one."""
    file = tmp_path / "mine.py"
    file.write_text("class Mine:\n    def change(self): pass\n")
    parcel = parcel_of(from_file(file, "here").Mine, "here")
    name_of = "type(built).change.__code__.co_filename"
    assert opened_elsewhere(parcel, name_of) == str(file)
    file.write_text("class Mine:\n    def change(self): return 1\n")
    assert opened_elsewhere(parcel, name_of) == f"{file}, as it was"


def test_a_file_does_not_find_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_mine.py").write_text("")
    file = tmp_path / "mine.py"
    file.write_text("\nimport neighbour_of_mine")
    with pytest.raises(BadFileError) as caught:
        from_file(file, "--policy mine.py:Mine")
    assert str(caught.value) == (
        "The file mine.py could not be run: No module named 'neighbour_of_mine' "
        f"({file}, line 2).\n  where: --policy mine.py:Mine\n"
        "  next: install what is imported; modules beside a file are found if PYTHONPATH has its folder"
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("x = (", "The file mine.py is not valid Python: '(' was never closed ({file}, line 1)."),
        ("x\0", "The file mine.py "),
        ("\n1 / 0", "The file mine.py could not be run: ZeroDivisionError: division by zero ({file}, line 2)."),
        ("raise SystemExit(3)", "The file mine.py could not be run: SystemExit: 3 ({file}, line 1)."),
        ("x = '\xff'", "The file mine.py is not valid Python: (unicode error)"),
    ],
)
def test_a_file_that_cannot_be_run_is_named_with_the_line(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "mine.py"
    file.write_bytes(text.encode("latin-1"))
    for _ in range(2):
        with pytest.raises(BadFileError) as caught:
            from_file(file, "--policy")
        assert caught.value.problem.startswith(problem.format(file=file))
        assert caught.value.where == "--policy"


def test_a_file_that_is_absent_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "gone.py", tmp_path):
        with pytest.raises(BadFileError, match=r"^The file cannot be read: "):
            from_file(path, "--policy")


def test_a_module_that_cannot_be_imported_is_named() -> None:
    assert imported("wavetank_toys.systems", "--policy").__name__ == "wavetank_toys.systems"
    with pytest.raises(BadFileError, match=r"^The module wavetank_no_such_module could not be run: "):
        imported("wavetank_no_such_module", "--policy")


def test_what_cannot_be_copied_is_named_with_the_part_that_cannot(tmp_path: Path) -> None:
    with (tmp_path / "a.txt").open("w") as file:
        for part in (threading.Lock(), file):
            with pytest.raises(BadValueError) as caught:
                parcel_of(Holder(part), "systems")
            assert caught.value.problem.startswith("Holder cannot be given to other processes (its part): ")
            assert caught.value.where == "systems"
    assert parcel_of(Holder(lambda: 3), "systems").build({}).part() == 3


def test_a_class_without_a_module_goes_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("wavetank_nowhere")
    kind = type("Lost", (), {"__module__": module.__name__, "change": lambda self: 4})
    assert opened_elsewhere(parcel_of(kind, "here"), "built.change()") == "4"
    module.Lost = kind  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert opened_elsewhere(parcel_of(kind(), "here"), "built.change()") == "4"
