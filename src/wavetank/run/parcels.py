"""What other processes need to have a class or an object of a user's own: its pickled bytes, or the text of its file.

A file is run under a module name of its own, which stands for its path and its text; the folder that it lies in is not
searched for other modules.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.machinery
import importlib.util
import pickle
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wavetank.errors import BadFileError, BadValueError, WavetankError
from wavetank.ledger import catalog


@dataclass(frozen=True)
class Parcel:
    """A class or an object of a user's own, as any process can have it; made and opened within one run.

    Attributes
    ----------
    pickled : bytes
        The class or the object.
    module, file : str
        The module that it needs and that no process can import, and the file it was read from; empty without one.
    source : bytes
        That module's text, as this run has read it.
    """

    pickled: bytes
    module: str = ""
    file: str = ""
    source: bytes = b""

    def open(self) -> Any:
        """Return the class, or a new copy of the object."""
        if self.module and self.module not in sys.modules:
            _execute(self.module, Path(self.file), self.source)
        return pickle.loads(self.pickled)

    def build(self, parameters: Mapping[str, Any]) -> Any:
        """Return a system that nobody has used: the class built with these parameters, or a new copy of the object."""
        found = self.open()
        return found(**parameters) if isinstance(found, type) else found


def parcel_of(given: Any, where: str) -> Parcel:
    """Return a class or an object as other processes can have it.

    Parameters
    ----------
    given : type or object
    where : str
        Where it was given.

    Raises
    ------
    BadValueError
        If it cannot be pickled.
    """
    kind = given if isinstance(given, type) else type(given)
    module = sys.modules.get(kind.__module__)
    try:
        parcel = Parcel(_pickled(given, module))
        if module is not None and isinstance(module.__loader__, _Text):
            parcel = Parcel(parcel.pickled, module.__name__, str(module.__file__), module.__loader__.text)
        parcel.open()
    except WavetankError:
        raise
    except Exception as error:
        parts = {} if given is kind else getattr(given, "__dict__", {})
        part = next((name for name, value in parts.items() if not _travels(value, module)), "")
        raise BadValueError(
            f"{kind.__name__} cannot be given to other processes{f' (its {part})' if part else ''}: {error}.",
            where=where,
            hint="trials run on copies: open files, start threads and take locks where they are used",
        ) from error
    return parcel


def _travels(value: Any, module: Any) -> bool:
    try:
        _pickled(value, module)
    except Exception:
        return False
    return True


def _pickled(given: Any, module: Any) -> bytes:
    """Return the bytes of an object, with what its module defines where other processes cannot import the module."""
    # numba's, and not joblib's, because compiled functions among its parts are pickled by it in any case.
    from numba import cloudpickle

    whole = module is not None and module.__name__ != "__main__" and not _is_importable(module)
    if not whole or module.__name__ in cloudpickle.list_registry_pickle_by_value():
        return bytes(cloudpickle.dumps(given))
    cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps(given))
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def _is_importable(module: Any) -> bool:
    """Return whether a new process with this one's path has this module under its name, or is given its text."""
    if isinstance(module.__loader__, _Text):
        return True
    above, _, _ = module.__name__.rpartition(".")
    if above and (above not in sys.modules or not _is_importable(sys.modules[above])):
        return False
    path = sys.modules[above].__path__ if above else None
    found = next((spec for finder in sys.meta_path if (spec := finder.find_spec(module.__name__, path))), None)
    file = getattr(module, "__file__", None)
    return found is not None and file in (None, found.origin)


def from_file(path: Path, where: str) -> Any:
    """Return the module that a file holds, under a name that no other file and no other text has.

    Parameters
    ----------
    path : Path
    where : str
        Where the file was named.

    Raises
    ------
    BadFileError
        If it cannot be read or run.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise BadFileError(f"The file cannot be read: {error.strerror or error}.", where=where) from error
    path = path.resolve()
    mark = hashlib.sha256(str(path).encode(errors="surrogateescape") + b"\0" + text).hexdigest()[:16]
    name = f"wavetank_own_{re.sub('[^0-9a-zA-Z_]', '_', path.stem)}_{mark}"
    if name not in sys.modules:
        with _said(f"The file {path.name}", where):
            _execute(name, path, text)
    return sys.modules[name]


def imported(name: str, where: str) -> Any:
    """Import a module.

    Parameters
    ----------
    name, where : str
        The module, and where it was named.

    Raises
    ------
    BadFileError
        If it cannot be found or run.
    """
    with _said(f"The module {name}", where):
        return importlib.import_module(name)


@contextlib.contextmanager
def _said(what: str, where: str) -> Iterator[None]:
    """Turn what running a user's code raises into an error with its place."""
    try:
        yield
    except WavetankError:
        raise
    except SyntaxError as error:
        line = f", line {error.lineno}" if error.lineno else ""
        raise BadFileError(
            f"{what} is not valid Python: {error.msg} ({error.filename or 'no file'}{line}).", where=where
        ) from error
    except (Exception, SystemExit) as error:  # what a module does is beyond this one's control
        missing = isinstance(error, ModuleNotFoundError)
        # What asks for the code is no reason why it fails.
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
            frames = frames.tb_next
        raise BadFileError(
            f"{what} could not be run: {catalog.said(error.with_traceback(frames))}.", where=where,
            hint="install what is imported; modules beside a file are found if PYTHONPATH has its folder"
            if missing else None,
        ) from error  # fmt: skip


def _execute(name: str, path: Path, text: bytes) -> None:
    """Run the text of a file as a module of this name."""
    loader = _Text(name, str(path), text)
    spec = importlib.machinery.ModuleSpec(name, loader, origin=str(path))
    spec.has_location = True
    module = importlib.util.module_from_spec(spec)
    # Classes look their module up while they are made.
    sys.modules[name] = module
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


class _Text(importlib.machinery.SourceFileLoader):
    """Runs the text that it is given: a file may change faster than the times by which compiled files are checked."""

    def __init__(self, name: str, path: str, text: bytes) -> None:
        super().__init__(name, path)
        self.text = text

    def get_code(self, fullname: str) -> Any:
        """Return the text, compiled."""
        # Under the file's name only while that is what the file holds: what compiled functions keep on disk is found
        # again by what the file holds then.
        path = Path(self.path)
        same = path.is_file() and path.read_bytes() == self.text
        return self.source_to_code(self.text, self.path if same else f"{self.path}, as it was")
