"""Child processes: started, watched, pinned, and always gone afterwards."""

import ast
import contextlib
import http.server
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from wavetank.errors import WavetankError
from wavetank.live import processes
from wavetank.live.processes import (
    ChildProcess,
    free_port,
    free_ports,
    hold_port,
    own_cores,
    pinned,
    python_code,
    python_module,
    split_cores,
)  # fmt: skip

LINUX = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


def python(code, **more):
    return ChildProcess([sys.executable, "-u", "-c", code], name="child", **more)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(true, seconds=20):
    stop = time.monotonic() + seconds
    while not true() and time.monotonic() < stop:
        time.sleep(0.02)
    return true()


def test_its_first_line_and_all_its_output_can_be_read():
    with python("import sys; print('ready'); print('more', file=sys.stderr); input()") as child:
        assert child.first_line() == "ready"
        assert wait_until(lambda: "more" in child.output())


def test_one_that_ends_early_is_reported_with_what_it_said():
    with python("print('no', end=''); raise SystemExit(7)") as child:
        with pytest.raises(WavetankError) as caught:
            child.first_line()
        assert caught.value.problem == "child ended with code 7."
        assert caught.value.given == "no"
        with pytest.raises(WavetankError, match="code 7"):
            child.wait_ready(free_port())


def test_one_that_says_nothing_in_time_is_reported():
    with python("import time; time.sleep(60)") as child, pytest.raises(WavetankError, match="said nothing after"):
        child.first_line(timeout_s=0.2)


def test_a_program_that_does_not_exist_is_reported():
    with pytest.raises(WavetankError) as caught:
        ChildProcess(["no-such-program-anywhere"], name="it")
    assert caught.value.problem == "it could not be started: there is no such program."
    assert caught.value.given == "no-such-program-anywhere"


def test_it_waits_for_a_page_and_not_only_for_the_port():
    class Answers(http.server.BaseHTTPRequestHandler):
        left = 2

        def do_GET(self):
            type(self).left -= 1
            self.send_response(503 if self.left > 0 else 404)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with python("import time; time.sleep(60)") as child:
            child.wait_ready(server.server_port)
            assert Answers.left == 0
            server.shutdown()
            server.server_close()
            with pytest.raises(WavetankError, match="does not answer"):
                child.wait_ready(server.server_port, timeout_s=0.2)
    finally:
        server.server_close()
        thread.join()


def test_it_is_gone_when_the_block_ends_for_whatever_reason():
    with contextlib.suppress(KeyboardInterrupt), python("input()") as child:
        assert child.running
        raise KeyboardInterrupt
    assert not child.running


@LINUX
def test_its_children_and_those_that_do_not_listen_go_too(monkeypatch):
    monkeypatch.setattr(processes, "_STOP_TIMEOUT_S", 0.3)
    code = (
        "import signal, subprocess, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "own = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); print(own.pid); own.wait()"
    )
    with python(code) as child:
        grandchild = int(child.first_line())
        assert set(child.family()) == {child.pid, grandchild}
    assert not child.running
    assert wait_until(lambda: not alive(grandchild))


@LINUX
@pytest.mark.skipif(sys.platform != "linux" or not Path("/usr/bin/setpriv").exists(), reason="needs setpriv")
def test_it_ends_when_this_process_is_killed():
    code = (
        "import sys, time; from wavetank.live.processes import ChildProcess\n"
        "child = ChildProcess([sys.executable, '-c', 'import time; time.sleep(60)'], name='it')\n"
        "time.sleep(1); print(child.pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        pid = int(parent.stdout.readline())
        assert alive(pid)
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    assert wait_until(lambda: not alive(pid))


def test_kill_ends_it_at_once_and_stop_may_follow():
    with python("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1); input()") as child:
        child.first_line()
        child.kill()
        assert not child.running


@LINUX
def test_its_processor_time_memory_and_files_are_seen():
    code = "held = [open('/dev/null') for _ in range(20)]; print(1); sum(range(30_000_000)); print(2); import time; time.sleep(60)"  # noqa: E501
    with python(code) as child:
        child.first_line()
        assert wait_until(lambda: child.output().count("\n") == 2)
        assert child.open_files() >= 23
        assert child.cpu_s() > 0
        assert 1e6 < child.resident_bytes() < 1e9
    assert child.open_files() == 0
    assert not math.isnan(child.cpu_s())


def test_pipes_carry_questions_and_answers_and_their_end_is_polite():
    code = "import sys\nfor line in sys.stdin: print(line.strip()[::-1], flush=True)\nprint('bye', file=sys.stderr)"
    with python(code, pipes=True) as child:
        child.stdin.write(b"abc\n")
        child.stdin.flush()
        assert child.stdout.readline() == b"cba\n"
        assert child.returncode is None
    assert child.returncode == 0
    assert child.stdin.closed
    assert child.stdout.closed
    with python("") as child, pytest.raises(WavetankError, match="without pipes"):
        child.stdin.close()


def test_one_without_patience_is_killed_at_once():
    with python("import sys; print('ready', flush=True); sys.stdin.read(); print('never')", pipes=True) as child:
        child.stdout.readline()
        child.stop(0)
        assert child.returncode == -signal.SIGKILL
    with python("raise SystemExit(3)") as child:
        assert child.wait(60) == 3


def test_its_output_is_appended_to_a_file(tmp_path):
    log = tmp_path / "new" / "child.log"
    for word in ("one", "two"):
        with python(f"print({word!r})", log=log) as child:
            child.wait(60)
            assert word in child.output()
    assert log.read_text() == "one\ntwo\n"
    with pytest.raises(WavetankError, match="child could not be started"):
        python("", log=tmp_path)


def test_variables_are_set_and_taken_away(monkeypatch):
    monkeypatch.setenv("WAVETANK_GONE", "there")
    code = "import os; print([os.environ.get('WAVETANK_' + name) for name in ('GONE', 'NEW')])"
    with python(code, environment={"WAVETANK_GONE": None, "WAVETANK_NEW": "1"}) as child:
        assert child.first_line() == "[None, '1']"


def test_something_is_waited_for_as_long_as_it_runs():
    looks = iter((False, False, True))
    with python("input()", pipes=True) as child:
        child.until(lambda: next(looks), 60, "sleeps")
        with pytest.raises(WavetankError, match="child sleeps after 0 s"):
            child.until(lambda: False, 0, "sleeps")
        child.kill()
        with pytest.raises(WavetankError, match="ended with code -9"):
            child.until(lambda: False, 60, "sleeps")


def state(child):
    return Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0]


@LINUX
def test_it_is_paused_and_goes_on():
    with python("import time; time.sleep(60)") as child:
        child.pause()
        assert wait_until(lambda: state(child) == "T")
        child.resume()
        assert wait_until(lambda: state(child) != "T")
        child.pause()
    # One that is paused ends politely, too.
    assert child.returncode == -signal.SIGTERM


def test_free_ports_are_different():
    assert len(set(free_ports(20))) == len(set(free_ports(20, socket.SOCK_DGRAM))) == 20


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system cannot pin")
def test_cores_are_split_and_kept():
    own, others = split_cores()
    assert frozenset().union(*own_cores()) == os.sched_getaffinity(0)
    assert len(own) == 1
    assert others
    assert own | others == os.sched_getaffinity(0)
    before = os.sched_getaffinity(0)
    with pinned(own):
        assert os.sched_getaffinity(0) == own
    assert os.sched_getaffinity(0) == before
    with python("import os; input()", cores=own) as child:
        assert os.sched_getaffinity(child.pid) == own


def test_where_nothing_can_be_pinned_nothing_happens(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert split_cores() == (frozenset(), frozenset())
    with pinned(frozenset()):
        pass


def test_a_held_port_refuses_until_a_server_shares_it():
    with hold_port() as port:
        with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), timeout=5):
            pass
        with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
            stranger.bind(("127.0.0.1", port))
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            server.bind(("127.0.0.1", port))
            server.listen()
            with socket.create_connection(("127.0.0.1", port), timeout=5):
                pass


def test_ctrl_c_does_not_reach_the_child_by_itself():
    with python("import signal, time; print(1); time.sleep(60)") as child:
        child.first_line()
        assert os.getpgid(child.pid) != os.getpgrp()
        os.kill(child.pid, signal.SIGINT)
        assert wait_until(lambda: not child.running)


# Child processes run what is installed, not what lies in the current directory.

SOURCE = Path(__file__).parents[2] / "src" / "wavetank"
HOSTILE = ("queue", "types", "asyncio", "socket", "msgspec", "numpy", "wavetank")


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """Return a folder whose modules say so when somebody imports them."""
    for name in HOSTILE:
        (tmp_path / f"{name}.py").write_text(
            f"import pathlib\npathlib.Path({str(tmp_path / 'executed')!r}).open('a').write({name!r})\n"
        )
    return tmp_path


def test_children_import_nothing_from_the_current_directory(hostile: Path) -> None:
    for words in (python_module("wavetank", "--version"), python_code("import queue, types, asyncio, wavetank")):
        done = subprocess.run(words, cwd=hostile, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, "")
    assert not (hostile / "executed").exists()


def test_a_launched_cluster_imports_nothing_from_the_current_directory(hostile: Path, executable: str) -> None:
    words = [executable, "launch", "cluster", "--protocol", "raft", "--nodes", "2", "--duration", "0.2"]
    done = subprocess.run(words, cwd=hostile, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert not (hostile / "executed").exists()


def test_no_other_place_starts_python() -> None:
    # The commands that extras.py makes of it are shown, for the user to run.
    found = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path in sorted(SOURCE.rglob("*.py"))
        if path.name not in ("processes.py", "extras.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.executable"
    ]
    assert found == []
