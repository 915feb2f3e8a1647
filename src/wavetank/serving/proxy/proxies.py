"""Proxies in front of model servers, as systems: how each one is started with the same backends and one core.

Every system is its own program with the simplest, fastest configuration its manual offers for this task: OpenAI
requests in, the same to one of several equal servers, no database, no log of requests, no keys, loopback only.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from wavetank.errors import BadFileError, WavetankError
from wavetank.ledger import catalog
from wavetank.live.processes import ChildProcess, free_port, python_module
from wavetank.serving.proxy.null_backend import MODEL
from wavetank.settings import setting


class Start(NamedTuple):
    """How a proxy is started: its words, and what its environment has on top of ours."""

    words: tuple[str, ...]
    environment: Mapping[str, str] = {}


class Proxy(Protocol):
    """A system: says how it is started, or None when there is nothing to start.

    program    name of its executable, for messages and for a look-up; empty when it needs none of others
    """

    @property
    def program(self) -> str: ...

    def start(self, port: int, backends: Sequence[int], folder: Path, executable: str) -> Start | None:
        """Return the words that start it on ``port`` in front of the loopback ports ``backends``.

        Parameters
        ----------
        port : int
        backends : sequence of int
        folder : Path
            For configuration files.
        executable : str
            Path of its program.
        """


def find_program(name: str, given: str = "") -> str:
    """Return the path of a system's program: as given, in ``.venv-peers/bin`` or on the search path.

    Raises
    ------
    BadFileError
        If ``given`` is no program.
    WavetankError
        If it is not installed.
    """
    if given:
        found = shutil.which(given)
        if found is None:
            raise BadFileError(f"This is no program that can be started as {name}.", given=given, where="--set")
        return found
    if not (found := catalog.program(name)):
        get = "apt-get install haproxy" if name == "haproxy" else "make peers"
        raise WavetankError(
            f"The system {name} is not installed.",
            where=f"{catalog.PEERS / name} and the search path",
            hint=f"{get}; or name its program with --set {name.replace('-', '_')}=PATH; or leave it out with --systems",
        )
    return str(Path(found).absolute())


@contextlib.contextmanager
def launched(
    proxy: Proxy, backends: Sequence[int], folder: Path, *, cores: frozenset[int] = frozenset(), program: str = ""
) -> Iterator[tuple[int, ChildProcess]]:
    """Start a proxy, yield its port and process once it answers, and end it.

    Parameters
    ----------
    proxy : Proxy
    backends : sequence of int
        Loopback ports.
    folder : Path
        For configuration files.
    cores : frozenset of int
        Where it may run; empty: anywhere.
    program : str
        Path of its executable; empty: looked for.

    Raises
    ------
    WavetankError
        If it is not installed, cannot be started or is no program at all.
    """
    port = free_port()
    start = proxy.start(port, backends, folder, find_program(proxy.program, program) if proxy.program else "")
    if start is None:
        raise WavetankError("There is no program to start.", given=type(proxy).__name__)
    name = proxy.program or type(proxy).__name__
    with ChildProcess(start.words, name=name, cores=cores, environment=start.environment) as process:
        process.wait_ready(port)
        yield port, process


@dataclass(frozen=True, kw_only=True)
class DirectConnection:
    """No proxy: clients talk to the backends' first port themselves."""

    program = ""

    def start(self, port: int, backends: Sequence[int], folder: Path, executable: str) -> None:
        """Return None: there is nothing to start."""


@dataclass(frozen=True, kw_only=True)
class WavetankRouter:
    """``wavetank launch router``: the policies of :mod:`wavetank.serving.routing` in front of real servers."""

    policy: str = setting("vllm-default", says="Name of the routing policy")

    program = ""

    def start(self, port: int, backends: Sequence[int], folder: Path, executable: str) -> Start:
        """Return the command that a user would type."""
        words = python_module("wavetank", "launch", "router", "--policy", self.policy, "--port", str(port))
        for backend in backends:
            words += ["--backend", f"http://127.0.0.1:{backend}"]
        return Start(tuple(words))


@dataclass(frozen=True, kw_only=True)
class LiteLLMProxy:
    """LiteLLM's proxy, one worker, its default router (``simple-shuffle``)."""

    program = "litellm"

    def start(self, port: int, backends: Sequence[int], folder: Path, executable: str) -> Start:
        """Return its command; the list of models goes into a file."""
        models = "".join(
            f"  - model_name: {MODEL}\n"
            f"    litellm_params: {{model: openai/{MODEL}, api_base: 'http://127.0.0.1:{backend}/v1', api_key: none, "
            "input_cost_per_token: 0.000001, output_cost_per_token: 0.000001}\n"
            for backend in backends
        )
        file = folder / f"litellm-{port}.yaml"
        file.write_text(
            f"model_list:\n{models}"
            "router_settings: {routing_strategy: simple-shuffle}\n"
            "general_settings: {disable_spend_logs: true, disable_error_logs: true}\n",
            encoding="utf-8",
        )
        words = (executable, "--config", str(file), "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1")
        return Start(
            words,
            {
                "LITELLM_LOCAL_MODEL_COST_MAP": "True",
                "LITELLM_LOG": "ERROR",
                "LITELLM_MODE": "PRODUCTION",
                "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
                "NO_DOCS": "True",
                "NO_PROXY": "127.0.0.1",
            },
        )


@dataclass(frozen=True, kw_only=True)
class VLLMRouter:
    """vLLM's own router, written in Rust."""

    policy: str = setting(
        "round_robin",
        says="Routing policy of vLLM's router",
        choices=("round_robin", "random", "power_of_two", "cache_aware", "consistent_hash"),
    )

    program = "vllm-router"

    def start(self, port: int, backends: Sequence[int], folder: Path, executable: str) -> Start:
        """Return its command."""
        words = [executable, "--host", "127.0.0.1", "--port", str(port), "--policy", self.policy]
        words += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port()), "--log-level", "error"]
        return Start((*words, "--worker-urls", *(f"http://127.0.0.1:{backend}" for backend in backends)))


@dataclass(frozen=True, kw_only=True)
class HAProxy:
    """HAProxy with one thread, joining the backend with the fewest connections in use."""

    program = "haproxy"

    def start(self, port: int, backends: Sequence[int], folder: Path, executable: str) -> Start:
        """Return its command; its configuration goes into a file."""
        servers = "".join(f"    server s{backend} 127.0.0.1:{backend}\n" for backend in backends)
        file = folder / f"haproxy-{port}.cfg"
        file.write_text(
            "global\n    nbthread 1\n    maxconn 4096\n"
            "defaults\n    mode http\n    timeout connect 5s\n    timeout client 60s\n    timeout server 60s\n"
            "    http-reuse always\n    option http-no-delay\n    option redispatch\n    retries 3\n"
            f"frontend clients\n    bind 127.0.0.1:{port}\n    default_backend engines\n"
            f"backend engines\n    balance leastconn\n{servers}",
            encoding="utf-8",
        )
        return Start((executable, "-db", "-q", "-f", str(file)))
