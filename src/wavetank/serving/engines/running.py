"""Model servers as child processes: started on free ports of loopback, on cores of their own where asked, and ended.

They have a bounded number of threads and end with the block that started them, or with this process where it is killed.
What a server printed is kept in a file when the block ends with an error.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from wavetank.cache_folder import cache_folder
from wavetank.errors import WavetankError
from wavetank.live.processes import ChildProcess, free_port
from wavetank.serving.engines.servers import Server
from wavetank.serving.engines.tiny_llama import MODEL

START_S = 120.0
# The first answer, for which some servers make their caches.
_FIRST_ANSWER_S = 120.0
_LOGS_KEPT = 8
# Characters of what a server printed that go into an error.
_SHOWN = 280


@dataclass(frozen=True)
class Running:
    """A server that answers.

    Attributes
    ----------
    url : str
    process : ChildProcess
    """

    url: str
    process: ChildProcess


@contextlib.contextmanager
def running(
    server: Server, count: int, *, cores: Sequence[frozenset[int]] = (), ports: Sequence[int] = ()
) -> Iterator[tuple[Running, ...]]:
    """Start servers, yield them once each has answered a request, and end them.

    Parameters
    ----------
    server : Server
    count : int
    cores : sequence of frozenset of int
        Server ``i`` is kept on ``cores[i % len(cores)]``; anywhere when empty.
    ports : sequence of int
        One for each server; free ones by default.

    Raises
    ------
    WavetankError
        If one ends or does not answer in time: with the last lines that it printed, and the file that has all of them.
        If somebody listens on a given port.
    """
    for port in ports:
        if _listened_on(port):
            raise WavetankError("Somebody listens on this port.", given=port, hint="choose another port, or 0")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="wavetank-engines-")))
        try:
            with contextlib.ExitStack() as processes:
                # All start at once; the wait for the first is the wait for all.
                begun = [
                    _begin(
                        server, f"{type(server).__name__} {i}", folder / str(i), _of(cores, i), processes,
                        ports[i] if ports else free_port(),
                    )
                    for i in range(count)
                ]  # fmt: skip
                found = [
                    _ready(server, one, folder / str(number), _of(cores, number), processes)
                    for number, one in enumerate(begun)
                ]
                yield tuple(found)
        except BaseException as error:
            kept = _keep_logs(folder)
            if isinstance(error, WavetankError):
                error.given = _last_lines(error.given)
                error.hint = error.hint or (f"what the servers printed is in {kept}" if kept is not None else None)
            raise


def _last_lines(given: object) -> object:
    """Return the last lines of a long text, as many as an error shows: a program says last what stopped it."""
    if not isinstance(given, str) or len(given) <= _SHOWN:
        return given
    return given[-_SHOWN:].partition("\n")[2] or given[-_SHOWN:]


def _of(cores: Sequence[frozenset[int]], number: int) -> frozenset[int]:
    return cores[number % len(cores)] if cores else frozenset()


@dataclass(frozen=True)
class _Begun:
    port: int
    process: ChildProcess


def _begin(
    server: Server, name: str, folder: Path, cores: frozenset[int], processes: contextlib.ExitStack, port: int
) -> _Begun:
    folder.mkdir(exist_ok=True)
    command = server.command(port, folder)
    process = ChildProcess(
        command.words, name=name, cores=cores, environment=command.environment, log=folder / "printed.log"
    )
    return _Begun(port, processes.enter_context(process))


def _ready(
    server: Server, begun: _Begun, folder: Path, cores: frozenset[int], processes: contextlib.ExitStack
) -> Running:
    """Wait until a server has answered a request; start it again where somebody else took its port."""
    for tries_left in (2, 1, 0):
        try:
            _answered(begun.process, begun.port)
            break
        except WavetankError:
            if not tries_left or begun.process.running or not _listened_on(begun.port):
                raise
            begun = _begin(server, begun.process.name, folder, cores, processes, free_port())
    return Running(f"http://127.0.0.1:{begun.port}", begun.process)


def _answered(process: ChildProcess, port: int) -> None:
    """Wait until a server has answered a request, and raise where it does not."""
    process.wait_ready(port, "/health", START_S)
    process.until(lambda: _serves(port), START_S, f"does not serve {MODEL}")
    _first_answer(process, port)


def _listened_on(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _asked(port: int, method: str, path: str, body: object, timeout_s: float) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    with contextlib.closing(connection):
        text = None if body is None else json.dumps(body)
        connection.request(method, path, body=text, headers={"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read(1 << 20)


def _serves(port: int) -> bool:
    """Say whether who listens there serves the model: another program might."""
    try:
        status, page = _asked(port, "GET", "/v1/models", None, 10.0)
        return status == 200 and any(model["id"] == MODEL for model in json.loads(page)["data"])
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return False


def _first_answer(process: ChildProcess, port: int) -> None:
    body = {"model": MODEL, "prompt": " abc", "max_tokens": 2, "temperature": 0}
    stop_s = time.monotonic() + _FIRST_ANSWER_S
    try:
        status, text = _asked(port, "POST", "/v1/completions", body, _FIRST_ANSWER_S)
        problem = f"HTTP {status}: {text[:500].decode(errors='replace')}" if status != 200 else ""
    except (OSError, http.client.HTTPException) as error:
        problem = str(error) or type(error).__name__
    if problem:
        late = " in time" if time.monotonic() >= stop_s else ""
        raise WavetankError(
            f"{process.name} does not answer its first request{late}: {problem}",
            given=process.output()[-2000:].strip() or None,
        )


def _keep_logs(folder: Path) -> Path | None:
    """Copy what servers printed into the cache folder, beside that of a few earlier failures."""
    logs = sorted(folder.glob("*/printed.log"))
    place = cache_folder() / "engines" / "logs"
    try:
        place.mkdir(parents=True, exist_ok=True)
        kept = Path(tempfile.mkdtemp(prefix=time.strftime("%Y%m%d-%H%M%S-", time.gmtime()), dir=place))
        for log in logs:
            shutil.copyfile(log, kept / f"{log.parent.name}.log")
        for old in sorted(place.iterdir())[:-_LOGS_KEPT]:
            shutil.rmtree(old, ignore_errors=True)
    except OSError:
        return None
    return kept if logs else None
