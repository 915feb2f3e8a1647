"""One store for everything that is measured once about a machine and used again: profiles of products, limits, rates.

A profile is a JSON file in the user's cache.  It says what it is (its kind and the version of its content), what it
holds for (its conditions: processor, libraries and their versions, threads) and has a checksum.  Files are written
whole or not at all, by one process at a time.  A file that cannot be used counts as absent, with one warning; where no
file can be written, a profile serves the process that measured it.
"""

from __future__ import annotations

import abc
import contextlib
import datetime
import hashlib
import json
import math
import os
import stat
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Generic, TypeVar

from wavetank.cache_folder import cache_folder

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Not a POSIX system: files are still written whole, but two processes may measure at once.
    fcntl = None

FORMAT = 1
"""Version of the file around a profile; the content has a version of its own."""
LARGEST_BYTES = 1 << 22
"""A larger file is no profile."""
QUIET_SHARE = 0.2
"""Of the cores: what other processes may use while something is measured."""
_SUFFIX = ".profile.json"
_HEAD = ("format", "kind", "version", "measured", "conditions", "content")

Figures = TypeVar("Figures")

_said: set[str] = set()


@dataclass(frozen=True)
class Profile:
    """What was measured, and what it holds for."""

    kind: str
    """What was measured, such as ``"products-float32"``."""
    version: int
    """Of the content's form."""
    conditions: Mapping[str, str]
    """What the figures hold for, by name."""
    content: Mapping[str, Any]
    """The figures, as JSON has them."""
    measured: str = ""
    """When, in UTC as ISO 8601 writes it; empty until it is kept."""
    path: Path | None = None
    """The file it was read from."""


@dataclass(frozen=True)
class Step:
    """One measurement that ``wavetank profile`` makes."""

    name: str
    """What is measured."""
    measure: Callable[[], tuple[Path | None, str]]
    """Measures and keeps a profile; returns its file, None where none can be written, and its figures in words."""


class ProfileKind(abc.ABC, Generic[Figures]):
    """A kind of profile: how its figures are measured, read and described.

    An area declares its kinds in the table ``profile`` of a catalog, under the beginning of their profiles' kinds.
    """

    version: ClassVar[int]
    """Of the content that this code writes and reads."""

    @abc.abstractmethod
    def parsed(self, found: Profile) -> Figures | None:
        """Return the figures in a profile of this version; None or an error where no measurement can give them."""

    @abc.abstractmethod
    def words(self, figures: Figures) -> str:
        """Return the figures in a line or two."""

    @abc.abstractmethod
    def steps(
        self, threads: tuple[int, ...], dtypes: tuple[str, ...], named: bool, report: Callable[[str], object]
    ) -> Iterator[Step]:
        """Yield the measurements to make.

        Parameters
        ----------
        threads : tuple of int
            Numbers of threads to measure, where the kind distinguishes them.
        dtypes : tuple of str
            Element types to measure, where the kind distinguishes them; empty for its own choice.
        named : bool
            Whether this kind was asked for by name: then a device that is missing is an error.
        report : callable
            Called with what is being measured.
        """

    def fallback(self) -> str:
        """Return what serves where no profile holds, as a sentence; empty where nothing needs to be said."""
        return ""

    def figures(self, found: Profile) -> Figures | None:
        """Return what a profile says; None where it is of another version, or says what no measurement can give."""
        try:
            return self.parsed(found) if found.version == self.version else None
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
            return None

    def read(self, kind: str, conditions: Mapping[str, str], within: Path | None = None) -> Figures | None:
        """Return the figures that :func:`read` finds; None where it finds none, or none that were measured."""
        found = read(kind, self.version, conditions, within)
        return None if found is None else self.figures(found)


def folder() -> Path:
    """Return the folder of all profiles; it need not exist."""
    return cache_folder() / "profiles"


def path_of(kind: str, conditions: Mapping[str, str], within: Path | None = None) -> Path:
    """Return where the profile of a kind under these conditions is kept.

    Parameters
    ----------
    kind : str
        Letters, digits and hyphens.
    conditions : mapping of str to str
    within : Path, optional
        Instead of :func:`folder`.
    """
    # The name keeps profiles of different conditions apart; what is in the file decides.
    digest = hashlib.sha256(json.dumps(dict(conditions), sort_keys=True).encode()).hexdigest()[:16]
    return (within or folder()) / f"{kind}-{digest}{_SUFFIX}"


def read(kind: str, version: int, conditions: Mapping[str, str], within: Path | None = None) -> Profile | None:
    """Return the kept profile of a kind for exactly these conditions.

    Parameters
    ----------
    kind : str
    version : int
        Of the content.
    conditions : mapping of str to str
    within : Path, optional
        Instead of :func:`folder`.

    Returns
    -------
    Profile or None
        None where there is no file.  None with a warning, given once per file, where it is damaged, truncated, of
        another kind or of another version, newer ones included: it is left as it is until the next profile is kept.
    """
    path = path_of(kind, conditions, within)
    found = _opened(path)
    if isinstance(found, str):
        _say(f"{path} is not used: {found}.", path)
        return None
    if found is None:
        return None
    if (found.kind, found.version, dict(found.conditions)) != (kind, version, dict(conditions)):
        _say(
            f"{path} is not used: it is of the kind {found.kind}, version {found.version}, "
            f"where {kind}, version {version}, is wanted.",
            path,
        )
        return None
    return found


def keep(profile: Profile, within: Path | None = None) -> Path | None:
    """Write a profile for later processes, in place of an earlier one under the same conditions.

    Parameters
    ----------
    profile : Profile
        Its figures are finite; ``measured`` and ``path`` are not read.
    within : Path, optional
        Instead of :func:`folder`.

    Returns
    -------
    Path or None
        None, with a warning given once per folder, where no file can be written.
    """
    path = path_of(profile.kind, profile.conditions, within)
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    values = (FORMAT, profile.kind, profile.version, now, dict(profile.conditions), dict(profile.content))
    body = dict(zip(_HEAD, values, strict=True))
    # NaN and infinity are no JSON, and no figure that was measured.
    text = json.dumps({**body, "checksum": _checksum(body)}, allow_nan=False, indent=1)
    part: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, part = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".part")
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(part).replace(path)
        part = None
    except OSError as error:
        _say(f"Nothing can be kept in {path.parent} ({error.strerror}); profiles serve this process alone.",
             path.parent)  # fmt: skip
        return None
    finally:
        if part is not None:
            with contextlib.suppress(OSError):
                Path(part).unlink()
    return path


def disturbance(spread: float, largest_spread: float, others_cores: float, cores: int) -> str:
    """Return why a machine was too busy for figures that are worth keeping; empty where it was calm.

    Parameters
    ----------
    spread : float
        By what share repetitions of one measurement differed.
    largest_spread : float
        Up to which share they may.
    others_cores : float
        Cores that other processes used meanwhile, on average.
    cores : int
        That this process may use.
    """
    if spread > largest_spread:
        return f"rounds differed by {spread:.0%}, where {largest_spread:.0%} are allowed"
    if others_cores > QUIET_SHARE * cores:
        return f"other processes used {others_cores:.1f} of {cores} cores"
    return ""


def kept(kind: str = "", within: Path | None = None) -> tuple[list[Profile], list[tuple[Path, str]]]:
    """Return all profiles in the store, and the files there that cannot be used with the reason.

    Parameters
    ----------
    kind : str, optional
        Beginning of the kinds to return.
    within : Path, optional
        Instead of :func:`folder`.
    """
    good: list[Profile] = []
    bad: list[tuple[Path, str]] = []
    for path in _files(kind, within):
        found = _opened(path)
        if isinstance(found, str):
            bad.append((path, found))
        elif found is not None:
            good.append(found)
    return good, bad


def is_any_kept(kind: str, within: Path | None = None) -> bool:
    """Return whether the store has any file of a kind, whatever it holds; quicker than to read one.

    Parameters
    ----------
    kind : str
        Beginning of the kinds.
    within : Path, optional
        Instead of :func:`folder`.
    """
    return bool(_files(kind, within))


def delete(kind: str = "", within: Path | None = None) -> list[Path]:
    """Remove the profiles whose kind begins with ``kind``, unusable files included, and return their paths.

    A folder in the place of a profile is left.

    Parameters
    ----------
    kind : str, optional
        Beginning of the kinds.
    within : Path, optional
        Instead of :func:`folder`.

    Raises
    ------
    OSError
        If a file cannot be removed.
    """
    removed = []
    for path in _files(kind, within):
        if path.is_dir() and not path.is_symlink():
            continue
        path.unlink(missing_ok=True)
        removed.append(path)
    return removed


@contextlib.contextmanager
def locked(kind: str, within: Path | None = None, wait_s: float = math.inf) -> Iterator[bool]:
    """Let one process at a time measure profiles of a kind: two at once would disturb each other.

    Parameters
    ----------
    kind : str
    within : Path, optional
        Instead of :func:`folder`.
    wait_s : float
        How long to wait for a process that holds the lock.

    Yields
    ------
    bool
        Whether the lock is held.  True as well where the system or the folder knows no locks.
    """
    root = within or folder()
    descriptor = -1
    if fcntl is not None:
        with contextlib.suppress(OSError):
            root.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(root / f"{kind}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if fcntl is None or descriptor < 0:
        yield True
        return
    owner = os.getpid()
    try:
        yield _taken(fcntl, descriptor, wait_s)
    finally:
        # The lock is given back by name: a process that was forked meanwhile has the file open as well, and closing
        # alone would leave it locked.  Such a process must not give back what is its parent's.
        if os.getpid() == owner:
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _taken(system: Any, descriptor: int, wait_s: float) -> bool:
    end = time.monotonic() + wait_s
    while True:
        try:
            system.flock(descriptor, system.LOCK_EX | system.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= end:
                return False
            time.sleep(0.05)
        except OSError:
            # The file system has no locks, or none left.
            return True


def _files(kind: str, within: Path | None) -> list[Path]:
    try:
        return sorted(path for path in (within or folder()).glob(f"*{_SUFFIX}") if path.name.startswith(kind))
    except OSError:
        return []


def _checksum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, allow_nan=False).encode()).hexdigest()


def _opened(path: Path) -> Profile | str | None:
    """Return the profile in a file, why it is none, or None where there is no file."""
    try:
        # A pipe or a device would block or never end.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            return "it is no file"
        with os.fdopen(descriptor, "rb") as file:
            data = file.read(LARGEST_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    if len(data) > LARGEST_BYTES:
        return f"it is larger than {LARGEST_BYTES} bytes"
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return "it is damaged or cut off"
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        given = found.get("format") if isinstance(found, dict) else None
        newer = isinstance(given, int) and given > FORMAT
        return "a newer Wavetank wrote it" if newer else "it is no profile, or an older Wavetank wrote it"
    body = {key: value for key, value in found.items() if key != "checksum"}
    try:
        is_whole = set(body) == set(_HEAD) and found.get("checksum") == _checksum(body)
    except ValueError:
        return "a figure in it is not finite"
    if not is_whole:
        return "its checksum is wrong"
    conditions, content = body["conditions"], body["content"]
    typed = isinstance(body["kind"], str) and type(body["version"]) is int and isinstance(body["measured"], str)
    if not typed or not isinstance(conditions, dict) or not isinstance(content, dict):
        return "its parts have the wrong types"
    return Profile(body["kind"], body["version"], conditions, content, body["measured"], path)


def _say(text: str, about: Path) -> None:
    """Warn, once per process for each file or folder."""
    if str(about) not in _said:
        _said.add(str(about))
        warnings.warn(text, RuntimeWarning, stacklevel=3)
