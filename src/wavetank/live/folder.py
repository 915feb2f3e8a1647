"""The folder of a run: locked while it is in use, and with a manifest of what its nodes are.

What nodes saved is worth something only to the same nodes.  A folder therefore says which protocol, with which
parameters and how many nodes, has used it; another one is refused, and the same one continues only when asked to.
Scratch folders are locked in the same way: what a launcher that was killed left behind, keys among it, is removed by
the next one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from wavetank.errors import BadFileError, BadValueError
from wavetank.live.locks import lock

MANIFEST = "run.json"
LOCK = "lock"
VERSION = 1
_FORMAT = "wavetank-cluster"
_FILES = ("node-*.state", "node-*.key", "requests.jsonl")


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a folder holds.

    Parameters
    ----------
    format : str
    version : int
    run : str
        Name under which nodes keep what they save, on this machine and on hosts that join.
    protocol : str
        Module and name of the algorithm's class.
    parameters : dict
        Parameter to its value, as text.
    nodes : int
    processes : int
        Over how many processes the nodes are spread.
    runs : int
        How many runs used the folder; one whose nodes never listened does not count.
    files : tuple of str
        Names of the files that the nodes and the clients of these runs rely on; a run that is resumed needs them all.
    hosts : tuple of str
        Names of the hosts that ran the nodes, in their order; each has the files of its nodes, and a manifest of them.
        Empty when the nodes ran beside the launcher.
    """

    format: str
    version: int
    run: str
    protocol: str
    parameters: dict[str, str]
    nodes: int
    processes: int
    runs: int
    files: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()


class RunFolder:
    """A folder that is locked until it is closed.

    Parameters
    ----------
    path : Path
        Made when it is not there; its parent must be.
    fresh : bool
        For a folder that was made just now: its lock gets its name when it is held, so nobody finds it free before.

    Raises
    ------
    BadFileError
        If it cannot be made or is in use.
    """

    def __init__(self, path: Path, *, fresh: bool = False) -> None:
        self.path = path
        name = f".{LOCK}.new" if fresh else LOCK
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(path / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise _unusable(path, error) from error
        try:
            lock(self._lock, path, "The folder")
            if fresh:
                (path / name).rename(path / LOCK)
        except OSError as error:
            os.close(self._lock)
            raise _unusable(path, error) from error
        except BaseException:
            os.close(self._lock)
            raise

    def close(self) -> None:
        """Let others use it."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def claim(self, wanted: Manifest, *, resume: bool) -> Manifest:
        """Write down what the folder is used for, or find that it may be used for it again.

        Parameters
        ----------
        wanted : Manifest
            Of the run that begins.
        resume : bool
            Whether it is to go on where an earlier run ended.

        Returns
        -------
        Manifest
            With the name of the earlier run when it is resumed.  It counts this run, the file not yet.

        Raises
        ------
        BadValueError
            If the folder was used and is not to be resumed, or by other nodes, or there is nothing to resume.
        BadFileError
            If the manifest cannot be read or written, or a file that it names is missing.
        """
        known = read_manifest(self.path)
        used = known is not None or any(next(self.path.glob(pattern), None) for pattern in _FILES)
        if not used:
            if resume:
                raise BadValueError("There is nothing to resume.", given=str(self.path), hint="leave --resume out")
            write_manifest(self.path, msgspec.structs.replace(wanted, runs=0))
            return wanted
        if not resume:
            raise BadValueError(
                "The folder holds what the nodes of an earlier run saved.",
                given=str(self.path),
                hint="--resume goes on where that run ended; otherwise name another folder",
            )
        if known is None:
            raise BadFileError(
                "The folder does not say which run its files belong to.",
                given=str(self.path / MANIFEST),
                hint="name another folder",
            )
        check_manifest(self.path, known, wanted)
        return msgspec.structs.replace(known, runs=known.runs + 1)

    def begun(self, manifest: Manifest) -> None:
        """Write down that all nodes of a claimed run listen, and which files a later run needs.

        Raises
        ------
        BadFileError
            If the manifest cannot be written.
        """
        write_manifest(self.path, manifest, listed=True)


def _unusable(path: Path, error: OSError) -> BadFileError:
    return BadFileError(
        f"The folder of a run cannot be used: {error.strerror or error}.",
        given=str(path),
        hint="name a folder that you may write to",
    )


def claim_on_host(folder: Path, wanted: Manifest) -> None:
    """Find on a host that joined that what its nodes saved in a run is all there.

    Parameters
    ----------
    folder : Path
        Of the run, in the host's folder.
    wanted : Manifest
        With the files of this host's nodes if they were started before.

    Raises
    ------
    BadFileError
        If files are missing: nodes that forgot what they promised must not start.
    BadValueError
        If the folder belongs to other nodes.
    """
    known = read_manifest(folder)
    if known is not None:
        check_manifest(folder, known, wanted)
    if wanted.files:
        _check_files(folder, wanted.files)


def check_manifest(folder: Path, known: Manifest, wanted: Manifest) -> None:
    """Raise an error unless a folder belongs to these nodes and all its files are there."""
    for what in ("protocol", "parameters", "nodes", "processes", "hosts"):
        if getattr(known, what) != getattr(wanted, what):
            given, allowed = _difference(getattr(wanted, what), getattr(known, what))
            raise BadValueError(
                f"The folder belongs to a run with other {what}.",
                given=given,
                allowed=allowed,
                where=str(folder / MANIFEST),
            )
    _check_files(folder, known.files)


def _check_files(folder: Path, names: tuple[str, ...]) -> None:
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        # A node without its file would forget its votes; a history without its beginning is false.
        raise BadFileError(
            "The folder lacks files of the earlier run.",
            given=", ".join(missing),
            where=str(folder),
            hint="bring them back from a copy, or start with a new folder",
        )


def read_manifest(folder: Path) -> Manifest | None:
    """Return the manifest of a folder, None when there is none; raises BadFileError."""
    path = folder / MANIFEST
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadFileError("The manifest cannot be read.", given=error.strerror, where=str(path)) from error
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadFileError("The manifest is damaged.", given=str(error), where=str(path)) from error
    if (found.format, found.version) != (_FORMAT, VERSION):
        raise BadFileError(
            "The folder is of a version that this Wavetank does not read.",
            given=f"{found.format} {found.version}",
            allowed=f"{_FORMAT} {VERSION}",
            where=str(path),
            hint="name another folder",
        )
    return found


def write_manifest(folder: Path, manifest: Manifest, *, listed: bool = False) -> None:
    """Write the manifest of a folder, ``listed`` with the files that are in it; raises BadFileError."""
    path = folder / MANIFEST
    beside = folder / f".{MANIFEST}.new"
    if listed:
        names = {each.name for pattern in _FILES for each in folder.glob(pattern)}
        manifest = msgspec.structs.replace(manifest, files=tuple(sorted(names)))
    try:
        with beside.open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        raise BadFileError("The manifest cannot be written.", given=error.strerror, where=str(path)) from error


def _difference(given: Any, known: Any) -> tuple[str, str]:
    """Return both as text; of parameters only those that differ."""
    if isinstance(given, tuple):
        return tuple(", ".join(map(str, each)) or "(none)" for each in (given, known))  # type: ignore[return-value]
    if not isinstance(given, dict):
        return str(given), str(known)
    names = sorted(name for name in given.keys() | known.keys() if given.get(name) != known.get(name))
    one, other = (", ".join(f"{name}={each.get(name, '(none)')}" for name in names) for each in (given, known))
    return one, other


def manifest_of(
    algorithm: Any, run: str, nodes: int, processes: int, hosts: tuple[str, ...] = (), files: tuple[str, ...] = ()
) -> Manifest:
    """Return the manifest of a new run of an algorithm."""
    kind = type(algorithm)
    names = [item.name for item in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else []
    return Manifest(
        format=_FORMAT,
        version=VERSION,
        run=run,
        protocol=f"{kind.__module__}:{kind.__qualname__}",
        parameters={name: repr(getattr(algorithm, name)) for name in names},
        nodes=nodes,
        processes=processes,
        runs=1,
        files=files,
        hosts=hosts,
    )


class Scratch:
    """A temporary folder that its owner alone can read, removed at the end, or by the next one after kill -9.

    Parameters
    ----------
    prefix : str
        Of its name.
    """

    def __init__(self, prefix: str) -> None:
        sweep(prefix)
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        self._folder = RunFolder(self.path, fresh=True)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.cleanup()

    def cleanup(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._folder.close()


def sweep(prefix: str) -> list[Path]:
    """Remove the scratch folders of this user whose process is gone; return their names."""
    found = []
    for path in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        # One without a lock file is being made at this moment, or is not ours to judge.
        with contextlib.suppress(OSError, BadFileError):
            status = path.lstat()
            if path.is_symlink() or status.st_uid != os.getuid() or not (path / LOCK).is_file():
                continue
            folder = RunFolder(path)
            shutil.rmtree(path, ignore_errors=True)
            folder.close()
            found.append(path)
    return found
