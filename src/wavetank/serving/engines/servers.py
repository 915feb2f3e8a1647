"""Model servers that nobody here wrote, as child processes: how each is started, asked, and seen by the simulator.

Both batch continuously on the processor: llama.cpp's own server, from the package ``xllamacpp``, and Transformers'
``transformers serve --continuous-batching``.  They serve a model that was made here
(:class:`wavetank.serving.engines.tiny_llama.TinyLlama`), because nothing can be downloaded.

They listen on free ports of loopback, with a bounded number of threads, on cores of their own where asked, and end with
the block that started them, or with this process where it is killed.  What a server printed is kept in a file when the
block ends with an error.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec

from wavetank.cache_folder import cache_folder
from wavetank.errors import WavetankError
from wavetank.live.processes import ChildProcess, free_port, python_code, python_module
from wavetank.platforms.step_time import StepTime
from wavetank.serving.engines.llamacpp_process import Options
from wavetank.serving.engines.tiny_llama import MODEL, TinyLlama
from wavetank.serving.simulator.cluster import Cluster
from wavetank.settings import check_ranges, setting

START_S = 120.0
# The first answer, for which some servers make their caches.
_FIRST_ANSWER_S = 120.0
_LOGS_KEPT = 8
# Characters of what a server printed that go into an error.
_SHOWN = 280


@dataclass(frozen=True)
class Command:
    """What starts a server.

    Attributes
    ----------
    words : sequence of str
        Program and arguments.
    environment : mapping
        On top of this process's own; None takes a variable away.
    """

    words: Sequence[str]
    environment: Mapping[str, str | None] = field(default_factory=dict)


class Server(Protocol):
    """A kind of model server.

    Attributes
    ----------
    as_text : bool
        Whether prompts must be text: it takes no token ids.
    reports_cached : bool
        Whether its answers say how many prompt tokens came from the prefix cache.
    """

    @property
    def as_text(self) -> bool:
        """Whether prompts must be text."""

    @property
    def reports_cached(self) -> bool:
        """Whether its answers say what came from the prefix cache."""

    def command(self, port: int, folder: Path) -> Command:
        """Return what starts it on a port of loopback; ``folder`` is its own for as long as it runs."""

    def cluster(self, workers: int, step_time: StepTime, refresh_s: float) -> Cluster:
        """Return how the simulator sees a number of them behind a router."""


def _threads(count: int) -> dict[str, str | None]:
    return dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(count))


@dataclass(frozen=True, kw_only=True)
class LlamaCpp:
    """Every step decodes a token for each slot that generates and fills what is left of the batch with prompts.

    A slot keeps its last context; a prompt goes to the free slot whose context begins alike, and only the rest of it is
    computed.  The simulator's prefix cache is by blocks and drops what was used least recently: it finds more than the
    slots do when requests with one prefix run at the same time.
    """

    model: TinyLlama = field(default_factory=TinyLlama, metadata={"says": "the model that it serves"})
    slots: int = setting(16, unit="requests", says="Most requests that are generated for at once", low=1, high=128)
    slot_tokens: int = setting(2048, unit="tokens", says="Context of each slot", low=16, high=100_000)
    batch_tokens: int = setting(2048, unit="tokens", says="Most tokens of a step", low=32, high=100_000)
    threads: int = setting(1, says="Threads that compute", low=1, high=256)
    prefix_caching: bool = setting(True, says="Whether slots keep their contexts for prompts that begin alike")

    as_text = False
    reports_cached = True

    def __post_init__(self) -> None:
        check_ranges(self)

    def command(self, port: int, folder: Path) -> Command:
        """Return what starts it on a port of loopback."""
        options = Options(
            model=str(self.model.gguf()),
            name=MODEL,
            port=port,
            slots=self.slots,
            slot_tokens=self.slot_tokens,
            batch_tokens=self.batch_tokens,
            threads=self.threads,
            prefix_caching=self.prefix_caching,
        )
        words = python_module("wavetank.serving.engines.llamacpp_process", msgspec.json.encode(options).decode())
        return Command(words, _threads(self.threads))

    def cluster(self, workers: int, step_time: StepTime, refresh_s: float) -> Cluster:
        """Return how the simulator sees a number of them behind a router."""
        return Cluster(
            workers=workers,
            step_time=step_time,
            max_running=self.slots,
            max_batched_tokens=max(self.batch_tokens, self.slots),
            kv_capacity_tokens=self.slots * self.slot_tokens,
            kv_watermark=0.0,
            prefix_caching=self.prefix_caching,
            refresh_s=refresh_s,
        )


_SERVE = "from transformers.cli.transformers import main; main()"


@dataclass(frozen=True, kw_only=True)
class TransformersServe:
    """Paged attention in torch: decodes first, then prompts, up to the tokens of a batch; prefixes share blocks.

    Its server takes text alone and refuses fields that OpenAI does not have.
    """

    model: TinyLlama = field(default_factory=TinyLlama, metadata={"says": "the model that it serves"})
    continuous: bool = setting(True, says="Whether it batches continuously; else it answers one request at a time")
    blocks: int = setting(1024, says="Blocks of the KV cache", low=16, high=10**6)
    block_tokens: int = setting(32, unit="tokens", says="Tokens of a block", low=1, high=1024)
    batch_tokens: int = setting(256, unit="tokens", says="Most tokens of a step", low=32, high=8192)
    threads: int = setting(1, says="Threads that compute", low=1, high=256)

    as_text = True
    reports_cached = False

    def __post_init__(self) -> None:
        check_ranges(self)

    def command(self, port: int, folder: Path) -> Command:
        """Return what starts it on a port of loopback."""
        words = ["serve", MODEL, "--device", "cpu", "--dtype", "float32", "--host", "127.0.0.1", "--port", str(port)]
        if self.continuous:
            words += [
                "--continuous-batching", "--cb-num-blocks", str(self.blocks), "--cb-block-size",
                str(self.block_tokens), "--cb-max-batch-tokens", str(self.batch_tokens),
            ]  # fmt: skip
        environment = {
            # Other entries of the user's cache, and the network, are out of reach.
            "HF_HUB_CACHE": str(self.model.hub() / "hub"),
            "HF_HOME": str(folder),
            "HF_HUB_OFFLINE": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_UPDATE_CHECK": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "CUDA_VISIBLE_DEVICES": "",
        }
        return Command(python_code(_SERVE, *words), {**environment, **_threads(self.threads)})

    def cluster(self, workers: int, step_time: StepTime, refresh_s: float) -> Cluster:
        """Return how the simulator sees a number of them behind a router."""
        return Cluster(
            workers=workers,
            step_time=step_time,
            max_running=self.batch_tokens if self.continuous else 1,
            max_batched_tokens=self.batch_tokens,
            kv_capacity_tokens=self.blocks * self.block_tokens,
            kv_watermark=0.0,
            prefix_caching=self.continuous,
            refresh_s=refresh_s,
        )


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
def running(server: Server, count: int, *, cores: Sequence[frozenset[int]] = ()) -> Iterator[tuple[Running, ...]]:
    """Start servers, yield them once each has answered a request, and end them.

    Parameters
    ----------
    server : Server
    count : int
    cores : sequence of frozenset of int
        Server ``i`` is kept on ``cores[i % len(cores)]``; anywhere when empty.

    Raises
    ------
    WavetankError
        If one ends or does not answer in time: with the last lines that it printed, and the file that has all of them.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="wavetank-engines-")))
        try:
            with contextlib.ExitStack() as processes:
                # All start at once; the wait for the first is the wait for all.
                begun = [_begin(server, f"{type(server).__name__} {i}", folder / str(i), _of(cores, i), processes)
                         for i in range(count)]  # fmt: skip
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


def _begin(server: Server, name: str, folder: Path, cores: frozenset[int], processes: contextlib.ExitStack) -> _Begun:
    folder.mkdir(exist_ok=True)
    port = free_port()
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
            begun = _begin(server, begun.process.name, folder, cores, processes)
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
