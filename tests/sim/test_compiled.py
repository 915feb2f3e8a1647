"""Compiled code is never older than any source it depends on; nothing else of the cache can hurt."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from wavetank.sim import compiled as module
from wavetank.sim.compiled import compiled, sources_of

SOURCES = Path(module.__file__).parents[1]

PACKAGE = {
    "pack/__init__.py": "",
    "pack/numbers.py": "STEP = 1\n",
    "pack/inner.py": (
        "from wavetank.sim.compiled import compiled\nfrom pack.numbers import STEP\n\n"
        "@compiled\ndef grow(x):\n    return x + STEP\n"
    ),
    "pack/middle.py": "from .inner import (\n    grow as _grow,  # renamed\n)\n",
    "pack/other.py": "SIZE = 5\n",
    "pack/outer.py": (
        "from wavetank.sim.compiled import compiled\nimport pack.middle as m\nfrom pack.middle import _grow\n\n"
        "@compiled\ndef twice(x):\n    return _grow(_grow(x))\n"
    ),
    "pack/factory.py": (
        "from wavetank.sim.compiled import compiled\n\n"
        "def applied(function):\n    @compiled\n    def call(x):\n        return function(x)\n    return call\n"
    ),
    "pack/user.py": "from pack.factory import applied\nfrom pack.inner import grow\n\ncall = applied(grow)\n",
}
SHOW = """
import json, sys
import {module} as m
value = m.{name}(10)
hits = sum(m.{name}.stats.cache_hits.values())
print(json.dumps([value, hits]))
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name, text in PACKAGE.items():
        file = tmp_path / "code" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path / "code"


def environment(package: Path) -> dict[str, str]:
    path = os.pathsep.join([str(package), str(SOURCES.parent)])
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    return {
        **kept,
        "PYTHONPATH": path,
        "NUMBA_CACHE_DIR": str(package.parent / "cache"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


# Each process loads numba and lets it compile once, then forks whenever a program is to run: half a minute less than
# as many new processes.  No program, and no source of ours, was loaded before the fork.
FORKING = """
import json, os, sys
import numba
from numba.core import config

numba.njit(lambda x: x + 1)(1)
for line in sys.stdin:
    program, environment, output, errors = json.loads(line)
    child = os.fork()
    if not child:
        for path, descriptor in ((output, 1), (errors, 2)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
        os.environ.clear()
        os.environ.update(environment)
        sys.path[:0] = environment["PYTHONPATH"].split(os.pathsep)
        assert not any(name.partition(".")[0] in ("wavetank", "pack") for name in sys.modules)
        config.reload_config()
        try:
            exec(program, {"__name__": "__main__"})
            sys.stdout.flush()
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
Run = Callable[[str, dict[str, str], Path], tuple[int, str, str]]


@pytest.fixture(scope="module", autouse=True)
def forking() -> Iterator[None]:
    """Two processes that take turns: what one has kept, another with other hash values of words finds."""
    global run_forked
    words = [sys.executable, "-P", "-c", FORKING]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NUMBA_", "PYTHONPATH"))}
    seeds = [{"PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": seed} for seed in ("1", "2")]
    with contextlib.ExitStack() as stack:
        turns = itertools.cycle(
            stack.enter_context(
                subprocess.Popen(words, env=kept | seed, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            for seed in seeds
        )

        def run(program: str, environment: dict[str, str], folder: Path) -> tuple[int, str, str]:
            process = next(turns)
            output, errors = folder / "stdout.txt", folder / "stderr.txt"
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(json.dumps([program, environment, str(output), str(errors)]) + "\n")
            process.stdin.flush()
            code = int(process.stdout.readline())
            return code, output.read_text(), errors.read_text()

        run_forked = run
        yield
        for _ in seeds:
            stdin = next(turns).stdin
            assert stdin is not None
            stdin.close()


run_forked: Run


def shown(package: Path, name: str = "pack.outer.twice", **more: str) -> tuple[int, int]:
    """Return what a function gives for 10 in another process, and how many results that process took from the cache."""
    module_name, _, function = name.rpartition(".")
    code, output, errors = run_forked(
        SHOW.format(module=module_name, name=function), environment(package) | more, package.parent
    )
    assert code == 0, errors
    value, hits = json.loads(output)
    return value, hits


def shown_by_a_new_process(package: Path, name: str = "pack.outer.twice") -> tuple[int, int]:
    """Return what :func:`shown` does, of a process that shares nothing with any other."""
    module_name, _, function = name.rpartition(".")
    ended = subprocess.run(
        [sys.executable, "-P", "-c", SHOW.format(module=module_name, name=function)],
        env=environment(package),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    value, hits = json.loads(ended.stdout)
    return value, hits


def replace(package: Path, name: str, old: str, new: str) -> None:
    """Change a file without changing its size or its time, as a tool that restores times would."""
    file = package / name
    state = file.stat()
    text = file.read_text()
    assert old in text and len(old) == len(new)
    file.write_text(text.replace(old, new))
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))


def test_a_change_of_a_called_function_is_seen(package: Path) -> None:
    assert shown_by_a_new_process(package) == (12, 0)
    assert shown_by_a_new_process(package) == shown(package) == shown(package) == (12, 1)
    replace(package, "pack/inner.py", "x + STEP", "x - STEP")
    assert shown_by_a_new_process(package) == (8, 0)
    assert shown_by_a_new_process(package) == shown(package) == shown(package) == (8, 1)


def test_a_change_of_a_constant_of_a_module_behind_it_is_seen(package: Path) -> None:
    assert shown(package) == (12, 0)
    replace(package, "pack/numbers.py", "STEP = 1", "STEP = 7")
    assert shown(package) == (24, 0)


def test_a_change_of_what_it_does_not_import_keeps_the_result(package: Path) -> None:
    shown(package)
    replace(package, "pack/other.py", "SIZE = 5", "SIZE = 6")
    assert shown(package) == (12, 1)


def test_going_back_finds_the_old_result(package: Path) -> None:
    shown(package)
    replace(package, "pack/inner.py", "x + STEP", "x - STEP")
    shown(package)
    replace(package, "pack/inner.py", "x - STEP", "x + STEP")
    assert shown(package) == (12, 1)


def test_a_change_of_a_function_that_a_factory_was_given_is_seen(package: Path) -> None:
    assert shown(package, "pack.user.call")[0] == 11
    replace(package, "pack/inner.py", "x + STEP", "x - STEP")
    assert shown(package, "pack.user.call")[0] == 9


def test_a_change_of_wavetanks_own_helper_is_seen_in_a_module_of_another_package(package: Path) -> None:
    """The case that was seen: a policy that draws from ``sim/streams`` went on with the old draws."""
    copied = package.parent / "copy"
    for name in ("__init__.py", "cache_folder.py", "errors.py", "lazy_names.py", "sim"):
        source = SOURCES / name
        for file in [source] if source.is_file() else sorted(source.glob("*.py")):
            target = copied / "wavetank" / file.relative_to(SOURCES)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(file.read_text())
    (copied / "wavetank" / "__init__.py").write_text("")
    (package / "pack" / "draws.py").write_text(
        "import numpy as np\nfrom wavetank.sim.compiled import compiled\n"
        "from wavetank.sim.streams import next_below\n\n"
        "@compiled\ndef draw(bound):\n    return next_below(np.array([3.0, 0.0]), bound * 1000000)\n"
    )
    path = os.pathsep.join([str(package), str(copied)])
    first, _ = shown(package, "pack.draws.draw", PYTHONPATH=path)
    assert first > 0
    streams = copied / "wavetank" / "sim" / "streams.py"
    text = streams.read_text()
    streams.write_text(text.replace("np.int64(next_uniform(stream) * bound)", "np.int64(0) * bound"))
    assert streams.read_text() != text
    assert shown(package, "pack.draws.draw", PYTHONPATH=path) == (0, 0)


def test_a_source_that_changed_after_this_process_read_it_keeps_nothing(package: Path) -> None:
    program = (
        "import pack.outer as m, pathlib\n"
        "file = pathlib.Path(m.__file__).with_name('inner.py')\n"
        "file.write_text(file.read_text().replace('x + STEP', 'x - STEP'))\n"
        "print(m.twice(10))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-P", "-c", program], env=environment(package), capture_output=True, text=True, timeout=120
    )
    assert ended.stdout == "12\n"
    assert shown(package) == (8, 0)


def test_processes_compile_a_function_once_between_them(package: Path) -> None:
    log = package.parent / "log.txt"
    (package / "pack" / "inner.py").write_text(
        "from wavetank.sim.compiled import compiled\nfrom pack.numbers import STEP\n\n"
        "@compiled\ndef grow(x):\n"
        + "".join(f"    x = (x * {i}) % 1000003\n" for i in range(2, 300))
        + "    return x\n"
    )
    words = [sys.executable, "-P", "-c", SHOW.format(module="pack.outer", name="twice")]
    running = [
        subprocess.Popen(words, env=environment(package) | {"WAVETANK_COMPILING": str(log)}, stdout=subprocess.PIPE)
        for _ in range(4)
    ]
    values = {json.loads(each.communicate(timeout=300)[0])[0] for each in running}
    assert len(values) == 1
    begun = [line.split()[1] for line in log.read_text().splitlines() if line.startswith("begin ")]
    assert sorted(begun) == ["pack.inner.grow", "pack.outer.twice"]


@pytest.mark.parametrize("damage", ["empty", "short", "flipped", "foreign"])
def test_a_damaged_result_is_compiled_anew(package: Path, damage: str) -> None:
    shown(package)
    for file in (package.parent / "cache").rglob("*.bin"):
        data = bytearray(file.read_bytes())
        if damage == "flipped":
            data[len(data) // 2] ^= 1
        file.write_bytes({"empty": b"", "short": data[:-100], "flipped": data, "foreign": b"\x80\x04."}[damage])
    assert shown(package) == (12, 0)
    assert shown(package) == (12, 1)


def test_a_folder_that_others_can_write_is_not_read(package: Path) -> None:
    shown(package)
    for folder in (package.parent / "cache" / "wavetank-compiled").iterdir():
        folder.chmod(0o777)
    value, hits = shown(package)
    assert (value, hits) == (12, 0)


def test_where_nothing_can_be_written_each_process_compiles_and_says_so_once(package: Path) -> None:
    blocked = package.parent / "cache"
    blocked.write_text("a file where the folder should be")
    ended = subprocess.run(
        [sys.executable, "-P", "-c", SHOW.format(module="pack.outer", name="twice")],
        env=environment(package),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert json.loads(ended.stdout) == [12, 0]
    assert ended.stderr.count("Compiled code cannot be kept") == 1
    assert blocked.read_text() == "a file where the folder should be"


def test_folders_are_private_and_old_versions_are_removed(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown(package)
    base = package.parent / "cache" / "wavetank-compiled"
    newest = next(base.glob("outer-*"))
    assert stat.S_IMODE(newest.stat().st_mode) == 0o700
    for number in range(12):
        old = base / f"outer-{number:020d}"
        old.mkdir()
        (old / ".used").touch()
        os.utime(old / ".used", (time.time() - number, time.time() - number))
    unused = base / "elsewhere-00000000000000000000"
    unused.mkdir()
    (unused / ".used").touch()
    long_ago = time.time() - (module.KEPT_DAYS + 1) * 86_400
    os.utime(unused / ".used", (long_ago, long_ago))
    module._prune(newest)
    assert newest.exists() and not unused.exists()
    assert len(list(base.glob("outer-*"))) == module.KEPT_VERSIONS
    assert (base / f"outer-{0:020d}").exists()


def test_two_functions_on_one_line_do_not_share_a_result(package: Path) -> None:
    (package / "pack" / "pair.py").write_text(
        "from wavetank.sim.compiled import compiled\nf, g = compiled(lambda x: x + 1), compiled(lambda x: x + 2)\n"
    )
    for _ in range(2):
        assert shown(package, "pack.pair.f")[0] == 11
        assert shown(package, "pack.pair.g")[0] == 12


def test_a_constant_from_the_environment_is_part_of_the_key(package: Path) -> None:
    (package / "pack" / "surroundings.py").write_text(
        "import os\nimport numpy as np\nfrom wavetank.sim.compiled import compiled\n"
        "SIZE = int(os.environ['SIZE'])\nTABLE = np.arange(SIZE)\n"
        "@compiled\ndef inner(x):\n    return x * SIZE\n"
        "@compiled\ndef outer(x):\n    return inner(x) + TABLE[-1]\n"
    )
    for size in (1, 5, 1, 5):
        assert shown(package, "pack.surroundings.outer", SIZE=str(size))[0] == 10 * size + size - 1
    assert shown(package, "pack.surroundings.outer", SIZE="5") == (54, 1)


FROM_ENVIRONMENT = {
    "an attribute of a module": "import pack.chosen as c\n\n@compiled\ndef call(x):\n    return x + c.STEP\n",
    "a member of an enumeration": (
        "from pack.chosen import Step\n\n@compiled\ndef call(x):\n    return x + Step.LONG\n"
    ),
    "one function or another": (
        "from pack.chosen import STEP\nif STEP == 1:\n    @compiled\n    def grow(x):\n        return x + 1\n"
        "else:\n    @compiled\n    def grow(x):\n        return x + 2\n\n@compiled\ndef call(x):\n    return grow(x)\n"
    ),
    "a function of a module": (
        "import pack.chosen as c\n\n@compiled\ndef call(x):\n    return c.behind(x)\n"
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", FROM_ENVIRONMENT)
def test_what_a_module_takes_from_the_environment_is_part_of_the_key(package: Path, how: str) -> None:
    (package / "pack/chosen.py").write_text(
        "import os\nfrom enum import IntEnum\nfrom wavetank.sim.compiled import compiled\n"
        "STEP = int(os.environ['PACK_STEP'])\nStep = IntEnum('Step', {'LONG': STEP})\n\n"
        "@compiled\ndef behind(x):\n    return x + STEP\n"
    )
    head = "from wavetank.sim.compiled import compiled\n"
    (package / "pack/env.py").write_text(head + FROM_ENVIRONMENT[how])
    assert shown(package, "pack.env.call", PACK_STEP="1") == (11, 0)
    assert shown(package, "pack.env.call", PACK_STEP="2") == (12, 0)
    assert shown(package, "pack.env.call", PACK_STEP="1") == (11, 1)


def test_options_are_part_of_the_key(package: Path) -> None:
    (package / "pack" / "models.py").write_text(
        "from wavetank.sim.compiled import compiled\n"
        "def make(model):\n    @compiled(error_model=model)\n    def f(x):\n"
        "        return 1.0 / (x - 10)\n    return f\n"
        "lenient, strict = make('numpy'), make('python')\n"
    )
    assert shown(package, "pack.models.lenient") == (float("inf"), 0)
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        shown(package, "pack.models.strict")


def test_a_factory_applied_to_its_own_product_does_not_wait_for_itself(package: Path) -> None:
    (package / "pack" / "chain.py").write_text(
        "from wavetank.sim.compiled import compiled\nfrom pack.inner import grow\n"
        "def make(inner, k):\n    @compiled\n    def f(x):\n        return inner(x) + k\n    return f\n"
        "twice = make(make(grow, 1), 10)\n"
    )
    assert shown(package, "pack.chain.twice") == (22, 0)
    assert shown(package, "pack.chain.twice") == (22, 1)


def test_functions_that_call_one_another_in_a_circle_are_not_kept(package: Path) -> None:
    (package / "pack" / "circle.py").write_text(
        "from wavetank.sim.compiled import compiled\n"
        "@compiled\ndef even(n):\n    if n == 0:\n        return 1\n    return odd(n - 1)\n"
        "@compiled\ndef odd(n):\n    if n == 0:\n        return 0\n    return even(n - 1)\n"
    )
    for _ in range(2):
        assert shown(package, "pack.circle.even") == (1, 0)
        assert shown(package, "pack.circle.odd") == (0, 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_that_was_forked_meanwhile_does_not_keep_the_lock(tmp_path: Path) -> None:
    lock = module._Lock.of(tmp_path / "x.lock")
    other = module._Lock(tmp_path / "x.lock")
    with lock.released_after():
        lock.take()
        child = os.fork()
        if not child:
            time.sleep(20)
            os._exit(0)
    try:
        started = time.monotonic()
        with other.released_after():
            other.take()
        assert time.monotonic() - started < 15
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def test_a_signature_compiles_at_once_and_for_nothing_else() -> None:
    @compiled("int64(int64)")
    def double(x: int) -> int:
        return x * 2

    assert len(double.signatures) == 1
    assert double(2.7) == 4
    assert len(double.signatures) == 1


def test_what_compiles_at_the_first_call_compiles_then() -> None:
    @compiled("int64(int64)", at_first_call=True)
    def double(x: int) -> int:
        return x * 2

    assert double._dispatcher.signatures == []
    assert double(2.7) == 4
    assert double(3) == 6
    assert len(double._dispatcher.signatures) == 1
    assert double.py_func(2.5) == 5.0


ENCLOSED = """
from wavetank.sim.compiled import compiled

def make():
    @compiled
    def total(at):
        return 0 if at == 0 else at + total(at - 1)
    return total

total = make()
"""
PAGE = """
import json
space = {"__name__": "page"}
exec(compile(open(PATH).read(), PATH, "exec"), space)
print(json.dumps([space["total"](4), sum(space["total"].stats.cache_hits.values())]))
"""


def test_a_function_that_encloses_itself_is_compiled_and_right_in_every_process(package: Path) -> None:
    (package / "pack" / "recursive.py").write_text(ENCLOSED)
    assert [shown(package, "pack.recursive.total")[0] for _ in range(2)] == [55, 55]


def test_a_text_run_by_exec_is_compiled_anew_in_every_process(package: Path) -> None:
    # numba would look its globals up in a module of the text's name, which no later process can import.
    path = package / "page.md"
    path.write_text(
        "from wavetank.sim.compiled import compiled\n\n@compiled\ndef total(at):\n    return at * (at + 1) // 2\n"
    )
    for _ in range(2):
        code, output, errors = run_forked(PAGE.replace("PATH", repr(str(path))), environment(package), package.parent)
        assert code == 0, errors
        assert json.loads(output) == [10, 0]
    assert not [file for file in (package.parent / "cache").rglob("*.bin") if "page-" in str(file.parent)]


def test_a_kept_result_that_cannot_be_loaded_is_made_anew(package: Path) -> None:
    shown(package)
    failing = package / "failing.py"
    failing.write_text(
        "import pickle\nfrom wavetank.sim import compiled\n"
        "class Broken:\n    @staticmethod\n    def loads(_):\n        raise ModuleNotFoundError('<dynamic>')\n"
        "compiled.pickle = Broken\nimport pack.outer\ntwice = pack.outer.twice\n"
    )
    assert shown(package, "failing.twice") == (12, 0)


def test_results_hold_for_arrays_and_recursion() -> None:
    @compiled
    def total(values: np.ndarray, at: int) -> float:
        if at == values.size:
            return 0.0
        return values[at] + total(values, at + 1)

    assert total(np.arange(5.0), 0) == 10.0


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("import wavetank.sim.streams\n", {"sim/streams.py"}),
        ("import numpy, wavetank.sim.streams as s, wavetank.units\n", {"sim/streams.py", "units.py"}),
        ("from wavetank.sim import streams, borrow\n", {"sim/__init__.py", "sim/streams.py", "sim/borrow.py"}),
        ("from wavetank.sim.streams import (  # why\n    mix,\n    next_below,\n)\n", {"sim/streams.py"}),
        ("from wavetank.sim.streams import mix, \\\n    next_below\n", {"sim/streams.py"}),
        ("def f():\n    from wavetank.sim.streams import mix\n", {"sim/streams.py"}),
        (
            "from wavetank.sim import (\n    borrow,  # (really)\n    streams,\n)\n",
            {"sim/__init__.py", "sim/borrow.py", "sim/streams.py"},
        ),
        ("import os; from wavetank.sim.streams import mix\n", {"sim/streams.py"}),
        ("try: import wavetank.units\nexcept ImportError: pass\n", {"units.py"}),
        ("import importlib\nm = importlib.import_module('wavetank.sim.streams')\n", {"sim/streams.py"}),
        ("import numpy as np\nfrom scipy import sparse\n", set()),
    ],
)
def test_imports_are_found_however_they_are_written(tmp_path: Path, line: str, names: set[str]) -> None:
    file = tmp_path / f"case{abs(hash(line))}.py"
    file.write_text(line)
    direct = module._imports_of(file, (module._Root.of(SOURCES / "errors.py"), module._Root.of(file)))
    assert {str(each.relative_to(SOURCES)) for each in direct} == names


def test_all_modules_that_python_loads_for_a_compiled_module_count() -> None:
    """The reader of imports finds at least what Python itself imports, for the simulator's core."""
    program = (
        "import sys, wavetank.serving.simulator.core\n"
        "print('\\n'.join(m.__file__ for n, m in sys.modules.items() if n.startswith('wavetank.') and m.__file__))"
    )
    ended = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    loaded = {Path(line) for line in ended.stdout.splitlines()}
    packages = {each for each in loaded if each.name == "__init__.py"}
    assert loaded - packages <= sources_of(SOURCES / "serving" / "simulator" / "core.py")


def test_nothing_else_in_the_package_uses_numbas_own_cache() -> None:
    pattern = re.compile(r"\bcache\s*=\s*True|enable_caching\(")
    found = [
        str(file.relative_to(SOURCES))
        for file in SOURCES.rglob("*.py")
        if file.name != "compiled.py" and any(pattern.search(line) for line in file.read_text().splitlines())
    ]
    assert found == []
