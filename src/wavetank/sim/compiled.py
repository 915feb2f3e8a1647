"""Compiled functions whose cache on disk is never stale.

numba compiles a function together with every compiled function that it calls, and looks, when it decides whether a
cached result is still valid, only at the file of the outer one: after a change of ``sim/streams.py`` a simulator that
draws from it would go on with the old draws.  :func:`compiled` replaces that cache.  A function's results are kept
under a hash of its module and of all modules of the same packages that this module imports, directly or not, so that
a change of any source on which the result may depend leads to a new folder.

Further rules of this cache:

1. One process compiles a function, the others wait for it and load the result; nothing is compiled twice at once.
2. A result is one file with a checksum, replaced as a whole; a damaged file counts as absent.
3. A result is not kept if a source changed on disk after this process had read it: the code in memory is then older.
   The values of plain globals that a function and those it calls by name use are part of the key as well.
4. Where the folder cannot be written (a read-only home), functions are compiled in each process, with one warning.
5. Folders that no process has used for ``KEPT_DAYS`` days are removed, and all but the newest ``KEPT_VERSIONS`` of a
   module.

The folder is ``compiled`` in ``$NUMBA_CACHE_DIR``, if that is set, else in the user's cache folder of Wavetank.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import os
import pickle
import re
import shutil
import sys
import tempfile
import time
import types as python_types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import llvmlite
import numba
import numpy
from numba.core import config
from numba.core.compiler import CompileResult
from numba.core.compiler_lock import global_compiler_lock
from numba.core.serialize import dumps

from wavetank.cache_folder import COMPILING_FILE, cache_folder

try:
    import fcntl
except ImportError:  # no such locks on this system: a function may be compiled by two processes at once
    fcntl = None  # type: ignore[assignment]

KEPT_DAYS = 30.0
KEPT_VERSIONS = 8
FORMAT = b"wavetank-compiled-1\n"

_USED = ".used"
_PLAIN = (bool, int, float, complex, str, bytes, numpy.generic)
# Read without comments.  What is no import but looks like one only makes the hash cover more.
_IMPORT = re.compile(
    rb"(?:^|[;:])[ \t]*(?:from[ \t]+(?P<source>[.\w]+)[ \t]+import[ \t]*(?P<names>\([^)]*\)|(?:[^;\n\\]|\\\r?\n)*)"
    rb"|import[ \t]+(?P<modules>(?:[^;\n\\]|\\\r?\n)*))",
    re.MULTILINE,
)
_COMMENT = re.compile(rb"#[^\n]*")
_CALLED = re.compile(rb"import_module|__import__")
_DOTTED = re.compile(rb"[\"']([A-Za-z_]\w*(?:\.\w+)*)[\"']")
# What a result depends on besides sources and machine; numba adds the processor's name and features itself.
_VERSIONS = f"{sys.implementation.cache_tag} {numba.__version__} {llvmlite.__version__} {numpy.__version__}"
_SETTINGS = (
    "OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "BOUNDSCHECK", "ENABLE_AVX", "DISABLE_INTEL_SVML", "DEBUGINFO_DEFAULT",
    "CAPTURED_ERRORS", "LLVM_PASS_TIMINGS", "LLVM_REFPRUNE_PASS", "LLVM_REFPRUNE_FLAGS",
)  # fmt: skip

_digests: dict[Path, bytes] = {}
_imported: dict[tuple[Path, Any], frozenset[Path]] = {}
_keys: dict[Path, str] = {}
_warned = False
_pruned: set[str] = set()
# What this process has spent compiling before, and since when it compiles now.
_spent: tuple[float, float | None] = (0.0, None)


def compiled(*given: Any, at_first_call: bool = False, **options: Any) -> Any:
    """Compile a function with ``numba.njit`` and keep the result on disk until a source it may depend on changes.

    Parameters
    ----------
    *given
        A function (``@compiled``), or nothing or signatures (``@compiled(int64(int64), nogil=True)``); with
        signatures, the function is compiled at once and for these types only.
    at_first_call : bool
        Compile for the signatures when the function is first called instead of at once: for what takes long and is
        not needed by everybody who imports the module.
    **options
        Options of ``numba.njit`` but ``cache``: ``nogil``, ``fastmath``, ``inline``, ``forceinline``, ...

    Returns
    -------
    dispatcher or decorator
        As ``numba.njit`` returns it.
    """
    if len(given) == 1 and isinstance(given[0], python_types.FunctionType) and not options:
        return _with_cache(given[0], [], {}, at_first_call)
    signatures = list(given[0]) if len(given) == 1 and isinstance(given[0], list | tuple) else list(given)
    return lambda function: _with_cache(function, signatures, options, at_first_call)


def compiling_s() -> float:
    """Return how long this process has compiled so far, with loading results and waiting for other processes' ones."""
    before_s, since_s = _spent
    return before_s if since_s is None else before_s + time.monotonic() - since_s


@contextlib.contextmanager
def _timed() -> Iterator[None]:
    """Count a block, which holds numba's lock, as compiling."""
    global _spent
    before_s, since_s = _spent
    if since_s is not None:
        # A function that another one calls is compiled within it.
        yield
        return
    _spent = before_s, time.monotonic()
    try:
        yield
    finally:
        _spent = compiling_s(), None


def _with_cache(function: Callable[..., Any], signatures: list[Any], options: dict[str, Any], later: bool) -> Any:
    dispatcher = numba.njit(**options)(function)
    if config.DISABLE_JIT:
        return dispatcher
    # inspect.getfile unwraps nothing that a plain function lacks; functions typed at a prompt have no file to watch.
    path = Path(function.__code__.co_filename)
    if path.is_file():
        dispatcher._cache = _Cache(function, path.resolve(), options)
        compile_once = dispatcher.compile
        lock = dispatcher._cache.lock

        def compile_locked(signature: Any) -> Any:
            # numba's own lock comes first, as in a function that meets this one while it is compiled.
            with global_compiler_lock, _timed(), lock.released_after():
                return compile_once(signature)

        dispatcher.compile = compile_locked
    if signatures and later:
        return _Later(dispatcher, signatures)
    _compile_for(dispatcher, signatures)
    return dispatcher


def _compile_for(dispatcher: Any, signatures: list[Any]) -> None:
    for signature in signatures:
        dispatcher.compile(signature)
    if signatures:
        dispatcher.disable_compile()


class _Later:
    """A function that is compiled for its signatures when it is first called."""

    def __init__(self, dispatcher: Any, signatures: list[Any]) -> None:
        self._dispatcher = dispatcher
        self._signatures = signatures
        self.py_func = dispatcher.py_func

    def __call__(self, *arguments: Any) -> Any:
        if self._signatures:
            with global_compiler_lock:
                _compile_for(self._dispatcher, self._signatures)
                self._signatures = []
        return self._dispatcher(*arguments)


def sources_of(path: Path) -> frozenset[Path]:
    """Return a module's file and the files of all modules that it imports, directly or not, from its own packages.

    Its own packages are Wavetank and the one that the module belongs to (for a lone file, its folder); of others only
    versions are expected to change.  An import counts wherever it stands, in functions and under ``TYPE_CHECKING``,
    too.
    """
    roots = (_Root.of(Path(__file__).resolve()), _Root.of(path))
    found: set[Path] = set()
    open_files = [path]
    while open_files:
        file = open_files.pop()
        if file not in found:
            found.add(file)
            open_files.extend(_imports_of(file, roots) - found)
    return frozenset(found)


class _Root(NamedTuple):
    """A folder below which modules are found by name, and the package to look for; None means all."""

    folder: Path
    package: str | None

    @classmethod
    def of(cls, path: Path) -> _Root:
        folder, package = path.parent, None
        while (folder / "__init__.py").is_file():
            package, folder = folder.name, folder.parent
        if package is None and folder.name in ("site-packages", "dist-packages"):
            package = path.stem
        return cls(folder, package)

    def base_of(self, module: str) -> Path | None:
        parts = module.split(".")
        return self.folder.joinpath(*parts) if self.package in (None, parts[0]) else None


def _imports_of(path: Path, roots: tuple[_Root, _Root]) -> frozenset[Path]:
    key = (path, roots[1])
    if key in _imported:
        return _imported[key]
    text = path.read_bytes()
    _digests.setdefault(path, hashlib.sha256(text).digest())
    found: set[Path] = set()
    plain = _COMMENT.sub(b"", text)
    if _CALLED.search(plain):
        for match in _DOTTED.finditer(plain):
            bases = [base for root in roots if (base := root.base_of(match[1].decode()))]
            found.update(file for base in bases for file in _existing(base))
    for match in _IMPORT.finditer(plain):
        source = (match["source"] or b"").decode()
        names = _names_in(match["names"] if source else match["modules"])
        dots = len(source) - len(source.lstrip("."))
        if dots:
            folder = path.parents[dots - 1]
            bases = [folder.joinpath(*source[dots:].split(".")) if source[dots:] else folder]
        else:
            bases = [base for root in roots for each in ([source] if source else names) if (base := root.base_of(each))]
        for base in bases:
            found.update(_existing(base))
            if source:
                for name in names:
                    found.update(_existing(base / name))
    _imported[key] = frozenset(found)
    return _imported[key]


def _names_in(listed: bytes) -> list[str]:
    """Return the names of a list such as ``(a as b, c,)``."""
    plain = listed.replace(b"\\", b" ").strip(b"() \t\r\n")
    return [each.split()[0].decode() for each in plain.split(b",") if each.split()]


def _existing(base: Path) -> list[Path]:
    return [file for file in (base.with_name(base.name + ".py"), base / "__init__.py") if file.is_file()]


def _key_of(path: Path) -> str:
    """Return the hash of all sources on which functions of a file may depend, as this process has read them."""
    if path not in _keys:
        total = hashlib.sha256()
        for file in sorted(sources_of(path)):
            # Paths count from the packages' root: checkouts of equal sources share results.
            total.update(str(file.relative_to(_Root.of(file).folder)).encode() + b"\0" + _digests[file])
        settings = {name: getattr(config, name, None) for name in _SETTINGS}
        total.update(f"{_VERSIONS} {settings}".encode())
        _keys[path] = total.hexdigest()[:20]
    return _keys[path]


def _unchanged_on_disk(path: Path) -> bool:
    try:
        return all(hashlib.sha256(file.read_bytes()).digest() == _digests[file] for file in sources_of(path))
    except OSError:
        return False


def _base() -> Path:
    return Path(config.CACHE_DIR) / "wavetank-compiled" if config.CACHE_DIR else cache_folder() / "compiled"


class _Lock:
    """A lock between processes on one file; within a process, numba's lock lets only one thread come here."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self._depth = 0

    @classmethod
    def of(cls, path: Path) -> _Lock:
        """Return the lock on a file: one object for all functions that share it, or a process would wait for itself."""
        return _locks.setdefault(path, cls(path))

    def take(self) -> None:
        """Wait until no other process holds the lock, and hold it; without the file, go on."""
        if self._file is not None or fcntl is None:
            return
        with contextlib.suppress(OSError):
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            except BaseException:
                os.close(descriptor)
                raise
            self._file = descriptor

    @contextlib.contextmanager
    def released_after(self) -> Iterator[None]:
        """Give the lock back at the end of the block, if it was taken within."""
        # A recursive function is compiled within its own compilation.
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth and self._file is not None:
                # Closing alone would not do: a child that was forked meanwhile holds the file open, too.
                with contextlib.suppress(OSError):
                    fcntl.flock(self._file, fcntl.LOCK_UN)
                os.close(self._file)
                self._file = None

    def forget(self) -> None:
        """Leave the lock to the process that this one was forked from."""
        if self._file is not None:
            os.close(self._file)
        self._file, self._depth = None, 0


_locks: dict[Path, _Lock] = {}


def _forget_locks() -> None:
    global _spent
    _spent = _spent[0], None
    for lock in _locks.values():
        lock.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_locks)


class _Cache:
    """What numba asks of a dispatcher's cache, over one folder a version of a module's sources."""

    def __init__(self, function: Callable[..., Any], path: Path, options: dict[str, Any]) -> None:
        self._function = function
        self._options = repr(sorted((name, _ordered(value)) for name, value in options.items()))
        self._path = path
        self._name = f"{function.__module__}.{function.__qualname__}".replace("<", "").replace(">", "")
        self._folder = _base() / f"{function.__module__.rpartition('.')[2] or 'main'}-{_key_of(path)}"
        # Two functions of one name in one module differ in the line.
        self._stem = f"{self._name.rpartition('.')[2][:60]}-{function.__code__.co_firstlineno}"
        self._enabled = True
        self._since: float | None = None
        self.lock = _Lock.of(self._folder / f"{self._stem}.lock")

    @property
    def cache_path(self) -> str:
        return str(self._folder)

    def enable(self) -> None:
        self._enabled = True

    def disable(self) -> None:
        self._enabled = False

    def flush(self) -> None:
        """Forget all results of this function."""
        for file in self._folder.glob(f"{self._stem}-*.bin"):
            with contextlib.suppress(OSError):
                file.unlink()

    def load_overload(self, signature: Any, context: Any) -> Any:
        """Return the kept result for a signature, or None; after None the lock is held until the compilation ends."""
        context.refresh()
        if not self._enabled:
            return None
        found = self._load(signature, context)
        if found is None and _ready(self._folder):
            self.lock.take()
            # Another process may have compiled it while this one waited.
            found = self._load(signature, context)
        if found is None:
            self._since = time.monotonic()
            _report(f"begin {self._name}")
        return found

    def save_overload(self, signature: Any, result: Any) -> None:
        """Keep a result, unless it holds addresses of this process or its sources have changed on disk."""
        _report(f"end {self._name} {time.monotonic() - (self._since or time.monotonic()):.2f}")
        if not self._enabled or any(not each.can_cache for each in result.lifted) or result.library.has_dynamic_globals:
            return
        if getattr(sys.modules.get(self._function.__module__), "__dict__", None) is not self._function.__globals__:
            # numba looks globals up by the module's name when it loads; text run by exec belongs to no module.
            return
        if not _ready(self._folder) or not _unchanged_on_disk(self._path):
            return
        if any(self._function in _called_by(each) for each in _called_by(self._function) if each is not self._function):
            # numba cannot load functions that call one another in a circle.
            return
        key = self._index(signature, result.codegen)
        content = dumps((key, result._reduce()))
        file = self._file_of(key)
        try:
            descriptor, name = tempfile.mkstemp(dir=self._folder, prefix=file.name, suffix=".part")
            try:
                with os.fdopen(descriptor, "wb") as out:
                    out.write(FORMAT + hashlib.sha256(content).digest() + content)
                Path(name).replace(file)
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise
        except OSError as error:
            _warn(str(error))

    def _load(self, signature: Any, context: Any) -> Any:
        key = self._index(signature, context.codegen())
        try:
            if not _private(self._folder):
                return None
            data = self._file_of(key).read_bytes()
        except OSError:
            return None
        content = data[len(FORMAT) + 32 :]
        if not data.startswith(FORMAT) or hashlib.sha256(content).digest() != data[len(FORMAT) : len(FORMAT) + 32]:
            return None
        # Only this user's own processes write here (_private), as with numba's own cache.
        try:
            kept, payload = pickle.loads(content)
            return CompileResult._rebuild(context, *payload) if kept == key else None
        except Exception:
            # A module that the result names may not be importable in this process; it is compiled anew.
            return None

    def _index(self, signature: Any, codegen: Any) -> tuple[Any, ...]:
        called = _called_by(self._function)
        constants = [_constants_of(each) for each in (self._function, *called)]
        # Which of several functions of a module has a name may be decided when the module is run.
        bodies = [_within(each) for each in called if each is not self._function]
        within = f"{self._options} {constants} {bodies} {_within(self._function)}"
        return (signature, codegen.magic_tuple(), hashlib.sha256(within.encode()).hexdigest())

    def _file_of(self, key: tuple[Any, ...]) -> Path:
        # Names of types are nearly unique; the key itself is compared when the file is read.
        return self._folder / f"{self._stem}-{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}.bin"


def _within(function: Callable[..., Any], outer: tuple[Callable[..., Any], ...] = ()) -> str:
    """Return what distinguishes two functions of one place: their instructions and the values that they enclose."""
    parts = [_code_bytes(function.__code__)]
    outer = (*outer, function)
    for cell in function.__closure__ or ():
        try:
            value = cell.cell_contents
        except ValueError:
            parts.append(b"not yet assigned")
            continue
        if getattr(value, "py_func", None) in outer:
            # A function defined within another that calls itself encloses itself.
            parts.append(f"recursion {outer.index(value.py_func)}".encode())
        elif hasattr(value, "py_func"):
            # A compiled function that a factory was given may stem from a module that the factory's does not import.
            path = Path(value.py_func.__code__.co_filename)
            source = _key_of(path.resolve()) if path.is_file() else ""
            options = getattr(getattr(value, "_cache", None), "_options", "")
            parts.append(f"{value.py_func.__qualname__} {source} {options} {_within(value.py_func, outer)}".encode())
        else:
            parts.append(dumps(value))
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def _ordered(value: Any) -> Any:
    return sorted(value) if isinstance(value, set | frozenset) else value


def _names_of(code: python_types.CodeType) -> list[str]:
    inner = [each for each in code.co_consts if isinstance(each, python_types.CodeType)]
    return sorted({*code.co_names, *(name for each in inner for name in _names_of(each))})


def _is_plain(value: Any) -> bool:
    return all(map(_is_plain, value)) if isinstance(value, tuple) else isinstance(value, _PLAIN)


def _constants_of(function: Callable[..., Any]) -> list[tuple[str, Any]]:
    """Return the plain values that a function names, its globals and attributes of modules: they are part of what is
    compiled, and may come from elsewhere than a source, such as the environment."""
    found: list[tuple[str, Any]] = []
    for name, value in _named_by(function):
        if isinstance(value, numpy.ndarray):
            found.append((name, (value.dtype.str, value.shape, hashlib.sha256(value.tobytes()).hexdigest())))
        elif isinstance(value, type) and issubclass(value, enum.Enum):
            found.append((name, repr(list(value.__members__.items()))))
        elif _is_plain(value):
            found.append((name, repr(value)))
    return found


def _named_by(function: Callable[..., Any]) -> list[tuple[str, Any]]:
    """Return name and value of the globals that a function names, and of attributes of those that are modules."""
    names, values = _names_of(function.__code__), function.__globals__
    found = [(name, values[name]) for name in names if name in values]
    for module, value in tuple(found):
        if isinstance(value, python_types.ModuleType):
            found.extend((f"{module}.{name}", vars(value)[name]) for name in names if name in vars(value))
    return found


def _called_by(function: Callable[..., Any]) -> list[Callable[..., Any]]:
    """Return the compiled functions that a function names, directly or not; itself where it is named again."""
    found: list[Callable[..., Any]] = []
    open_functions = [function]
    while open_functions:
        for _, value in _named_by(open_functions.pop()):
            called = getattr(value, "py_func", None)
            if isinstance(called, python_types.FunctionType) and called not in found:
                found.append(called)
                open_functions.append(called)
    return found


def _code_bytes(code: python_types.CodeType) -> bytes:
    """Return what two functions of one line must share: instructions and constants, without addresses in memory."""
    inner = [each for each in code.co_consts if isinstance(each, python_types.CodeType)]
    plain = [each for each in code.co_consts if not isinstance(each, python_types.CodeType)]
    return code.co_code + repr(plain).encode() + b"".join(map(_code_bytes, inner))


def _ready(folder: Path) -> bool:
    """Make a folder of the cache, or say that there can be none; old folders are removed when a new one is made."""
    try:
        if not folder.is_dir():
            folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            folder.mkdir(mode=0o700, exist_ok=True)
            _prune(folder)
        if not _private(folder):
            _warn(f"{folder} belongs to another user or can be written by others")
            return False
        if not os.access(folder, os.W_OK | os.X_OK):
            _warn(f"{folder} cannot be written")
            return False
        if folder.name not in _pruned:
            _pruned.add(folder.name)
            (folder / _USED).touch()
    except OSError as error:
        _warn(str(error))
        return False
    return True


def _private(folder: Path) -> bool:
    """Say whether only this user can have written into a folder."""
    state = folder.stat()
    return not hasattr(os, "getuid") or (state.st_uid == os.getuid() and not state.st_mode & 0o022)


def _prune(newest: Path) -> None:
    """Remove folders that no process has used for long, and old versions of the same module."""
    module = newest.name.rpartition("-")[0]
    used: list[tuple[float, Path]] = []
    for folder in newest.parent.iterdir():
        if folder != newest:
            with contextlib.suppress(OSError):
                mark = folder / _USED
                used.append(((mark if mark.exists() else folder).stat().st_mtime, folder))
    used.sort(reverse=True)
    versions = [folder for _, folder in used if folder.name.rpartition("-")[0] == module]
    limit = time.time() - KEPT_DAYS * 86_400
    for folder in {folder for last, folder in used if last < limit} | set(versions[KEPT_VERSIONS - 1 :]):
        shutil.rmtree(folder, ignore_errors=True)


def _warn(reason: str) -> None:
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(
            f"Compiled code cannot be kept, so each process compiles anew: {reason}. "
            "Point XDG_CACHE_HOME to a folder that you may write to.",
            stacklevel=2,
        )


def _report(line: str) -> None:
    """Append what is being compiled to the file that the process which shows progress has named, if one has."""
    if name := os.environ.get(COMPILING_FILE):
        with contextlib.suppress(OSError), Path(name).open("a") as out:
            out.write(line + "\n")
