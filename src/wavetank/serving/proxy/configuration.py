"""What is given to the programs that are launched: a router, a stand-in engine, a replay.

A router's settings, policy and backends come from a TOML file and from flags, which win.  The file holds the settings
under their own names, the policy's parameters and the models' aliases in tables, and the backends as addresses or as
tables with settings of their own::

    policy = "balance-route"
    port = 8080
    refresh_s = "100ms"
    backends = ["http://10.0.0.4:8000", "http://10.0.0.5:8000"]

    [parameters]
    horizon_steps = 8

    [aliases]
    "gpt-4o" = "Llama-3.1-70B"
"""

from __future__ import annotations

import dataclasses
import ipaddress
import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wavetank.errors import BadFileError, BadValueError, UnknownNameError, WavetankError, nearest_of, unknown_name
from wavetank.files import read_bytes
from wavetank.ledger import catalog
from wavetank.serving.simulator.cluster import Cluster
from wavetank.settings import check_parameters, check_ranges, setting

if TYPE_CHECKING:
    from wavetank.serving.proxy.access import Access
    from wavetank.workloads.generate import Lengths

_MOST_FILE_BYTES, _MOST_KEY_FILE_BYTES = 8_388_608, 65_536
HELP = "wavetank launch router --help"


@dataclass(frozen=True, kw_only=True)
class RouterSettings:
    """How a router listens, looks, waits and gives up."""

    host: str = setting("127.0.0.1", says="Address on which the router listens; 0.0.0.0 for every network")
    port: int = setting(8080, says="Port on which the router listens; 0 for any free port", low=0, high=65535)
    refresh_s: float = setting(
        0.1, unit="s", says="Time between two refreshes of the policy's view", low=0.001, high=600.0
    )
    metrics: str = setting(
        "auto",
        says="Source of load figures: auto reads the metrics of vLLM, SGLang or llama.cpp if there are any; own uses "
        "the router's accounting alone",
        choices=("auto", "own"),
    )
    max_running: int = setting(
        256, unit="requests", says="Most requests in a backend's batch (vLLM: --max-num-seqs)", low=1, high=1_000_000
    )
    kv_capacity_tokens: int = setting(
        400_000,
        unit="tokens",
        says="Capacity of a backend's KV cache, if its metrics do not report it",
        low=2,
        high=10**12,
    )
    block_tokens: int = setting(128, unit="tokens", says="Tokens per prefix block", low=1, high=100_000)
    bytes_per_token: float = setting(
        4.0, says="Bytes of prompt text per token, until replies give a better figure", low=0.5, high=20.0
    )
    prefix_memory_s: float = setting(300.0, unit="s", says="Time for which a sent prefix counts", low=0.0, high=1e6)
    prefix_memory_blocks: int = setting(
        200_000, says="Most prefix blocks that are remembered per backend", low=0, high=10**8
    )
    pool_window: int = setting(512, unit="requests", says="Waiting requests that a pool policy sees", low=1, high=10**6)
    pool_limit: int = setting(
        4096, unit="requests", says="Most waiting requests; further requests get status 429", low=1, high=10_000_000
    )
    pool_wait_s: float = setting(
        60.0, unit="s", says="Longest wait in the pool; then status 503", low=0.001, high=86_400.0
    )
    predict_lengths: bool = setting(
        True, says="Whether the policy is shown how long answers will be, by the mean of those that have ended"
    )
    learn_from: str = setting("", says="Trace from which the policy's length predictor learns")
    connect_s: float = setting(2.0, unit="s", says="Longest time to connect to a backend", low=0.001, high=600.0)
    first_byte_s: float = setting(
        900.0, unit="s", says="Longest wait for the first byte of a stream; a plain answer is limited by total_s",
        low=0.001, high=86_400.0,
    )  # fmt: skip
    idle_s: float = setting(
        300.0, unit="s", says="Longest pause within an answer that has begun; comments in a stream end a pause",
        low=0.001, high=86_400.0,
    )  # fmt: skip
    total_s: float = setting(
        7200.0,
        unit="s",
        says="Longest time for a request, plain or streamed, including its wait",
        low=0.001,
        high=604_800.0,
    )
    read_s: float = setting(30.0, unit="s", says="Longest time for a client to send its request", low=0.001, high=3600)
    write_s: float = setting(
        300.0,
        unit="s",
        says="Longest time for which a client can stop reading its answer (Linux)",
        low=0.1,
        high=86_400.0,
    )
    tries: int = setting(
        3,
        says="Backends to which a request is sent until one accepts it (503; 2 where connections fail), "
        "refusals not counted",
        low=1,
        high=100,
    )
    retry_share: float = setting(0.2, says="Retries per request, over retry_window_s", low=0.0, high=100.0)
    retry_floor: int = setting(10, says="Retries that are always allowed in retry_window_s", low=0, high=1_000_000)
    retry_window_s: float = setting(
        10.0, unit="s", says="Length of the window in which retries are counted", low=0.1, high=3600.0
    )
    max_body_bytes: int = setting(16_777_216, unit="bytes", says="Largest request body", low=1, high=2**40)
    max_response_bytes: int = setting(268_435_456, unit="bytes", says="Largest answer", low=1024, high=2**40)
    max_connections: int = setting(10_000, says="Most client connections", low=1, high=1_000_000)
    client_keep_alive_s: float = setting(
        75.0, unit="s", says="Time for which an idle connection of a client is kept", low=0.001, high=86_400.0
    )
    keep_alive_s: float = setting(
        4.0,
        unit="s",
        says="Time for which an idle connection to a backend is kept (uvicorn: 5 s)",
        low=0.0,
        high=3600.0,
    )
    health_path: str = setting("/health", says="Path that probes request; any status below 500 is good")
    probe_every_s: float = setting(2.0, unit="s", says="Time between two probes", low=0.01, high=3600.0)
    probe_s: float = setting(2.0, unit="s", says="Longest time for a probe", low=0.001, high=600.0)
    rise: int = setting(2, says="Consecutive good probes after which a backend is used again", low=1, high=100)
    fall: int = setting(3, says="Consecutive bad probes after which a backend is taken out", low=1, high=100)
    models_every_s: float = setting(30.0, unit="s", says="Time between two listings of models", low=0.1, high=86_400.0)
    eject_after: int = setting(
        3, says="Consecutive connections that were refused, broke or returned no HTTP after which a backend "
                "is taken out for a while",
        low=1, high=10_000,
    )  # fmt: skip
    eject_after_answers: int = setting(
        5, says="Consecutive error answers (500, 502, 503; no time-out) after which a backend is taken out "
                "for a while",
        low=1, high=10_000,
    )  # fmt: skip
    eject_share: float = setting(
        0.25, says="Share of the backends that can be out at once for errors a request can provoke; at least "
                   "one of several",
        low=0.0, high=1.0,
    )  # fmt: skip
    eject_s: float = setting(
        1.0, unit="s", says="Time for which a backend is taken out at first; it doubles", low=0.001, high=3600.0
    )
    eject_most_s: float = setting(
        30.0, unit="s", says="Longest time for which a backend is taken out", low=0.001, high=86_400.0
    )
    seed: int = setting(0, says="Seed of the jitter of ejections", low=0, high=2**31)
    drain_s: float = setting(30.0, unit="s", says="Time for requests in flight after a signal", low=0.0, high=86_400.0)
    record: str = setting("", says="File (.jsonl) to which the traffic is written as a trace")
    log: str = setting("errors", says="Requests that are logged", choices=("none", "errors", "requests"))
    trace_to: str = setting("", says="URL to which OpenTelemetry traces are sent, e.g. http://127.0.0.1:4318/v1/traces")
    trace_share: float = setting(1.0, says="Share of the traces that are kept", low=0.0, high=1.0)
    api_key_env: str = setting(
        "", says="Environment variable with the backends' key, which clients need, too, without keys_file"
    )
    api_key_file: str = setting("", says="File with the backends' key, which clients need, too, without keys_file")
    keys_file: str = setting("", says="File with the router's own keys of clients (wavetank launch router-key)")
    open_metrics: bool = setting(False, says="Whether other hosts may read /metrics without a key")
    discover_every_s: float = setting(
        5.0, unit="s", says="Time between two questions to the DNS for backends", low=0.01, high=86_400.0
    )
    discover_hold_s: float = setting(
        60.0, unit="s", says="Time for which a backend that is not found any more counts on", low=0.0, high=86_400.0
    )
    peers: str = setting("", says="URLs of other routers in front of the same backends, with commas")
    peer_key_file: str = setting("", says="File with the key that routers show each other; without it, this host alone")
    peer_heard_s: float = setting(
        2.0, unit="s", says="Time for which the last word of another router counts", low=0.01, high=3600.0
    )
    max_in_flight: int = setting(
        0,
        unit="requests",
        says="Most requests at the backends; others wait, and keys take turns by their weights; 0: no limit",
        low=0,
        high=10_000_000,
    )
    tls_cert: str = setting("", says="Certificate (PEM, with its chain) for TLS to clients; taken over when replaced")
    tls_key: str = setting("", says="Key (PEM) of tls_cert")
    backend_ca_file: str = setting("", says="Certificates (PEM) of the backends' authority; by default the system's")

    def __post_init__(self) -> None:
        if not self.health_path.startswith("/") or any(ord(c) <= 32 or ord(c) > 126 for c in self.health_path):
            raise BadValueError("This is not a path.", given=self.health_path, allowed="/health", where="health_path")
        if self.api_key_env and self.api_key_file:
            raise _given_twice("api_key_env, api_key_file")
        if self.trace_to and not self.trace_to.startswith(("http://", "https://")):
            raise BadValueError(
                "This is not where traces can be sent.", given=self.trace_to, allowed="http://HOST:4318/v1/traces",
                where="trace_to",
            )  # fmt: skip
        if bool(self.tls_cert) != bool(self.tls_key):
            raise BadValueError("A certificate needs its key.", where="tls_cert, tls_key")


@dataclass(frozen=True, kw_only=True)
class BackendSettings:
    """One backend, with what differs from the router's settings."""

    url: str = setting("", says="Scheme, host, port and base path of the backend")
    max_running: int | None = setting(
        None,
        unit="requests",
        says="Most requests in this backend's batch; by default as for all backends",
        low=1,
        high=1_000_000,
    )
    kv_capacity_tokens: int | None = setting(
        None,
        unit="tokens",
        says="Capacity of this backend's KV cache; by default as for all backends",
        low=2,
        high=10**12,
    )
    share: float | None = setting(
        None,
        says="Share of the requests that go to this backend whatever the policy decides (split among all that a source "
        "finds); by default the policy decides",
        low=0.0,
        high=1.0,
    )
    drain: bool = setting(False, says="Whether the backend gets no new requests")
    api_key_env: str = setting("", says="Environment variable with this backend's key; by default as for all backends")
    api_key_file: str = setting("", says="File with this backend's key; by default as for all backends")
    ca_file: str = setting("", says="Certificates (PEM) of this backend's authority; by default as for all backends")
    cert_file: str = setting("", says="Certificate (PEM) that is shown to this backend")
    key_file: str = setting("", says="Key (PEM) of cert_file")
    server_name: str = setting("", says="Name in this backend's certificate; by default the host of the URL")

    def __post_init__(self) -> None:
        if self.api_key_env and self.api_key_file:
            raise _given_twice(f"backend {self.url}, api_key_env, api_key_file")
        if bool(self.cert_file) != bool(self.key_file):
            raise BadValueError("A certificate needs its key.", where=f"backend {self.url}, cert_file, key_file")
        tls = [self.ca_file, self.cert_file, self.server_name]
        if any(tls) and not self.url.startswith("https://"):
            raise BadValueError(
                "Certificates are for https.", given=self.url, where="backend, ca_file, cert_file, server_name"
            )


@dataclass(frozen=True, kw_only=True)
class DiscoverySettings(BackendSettings):
    """Where backends are found; the settings of a backend are those of all that are found there."""

    dns: str = setting("", says="Name whose A and AAAA records are backends")
    srv: str = setting("", says="Name whose SRV records are backends, e.g. _http._tcp.vllm.default.svc.cluster.local")
    kubernetes: str = setting("", says="NAMESPACE/SERVICE whose endpoints are backends")
    port: str = setting("8000", says="Port of the backends; of a Kubernetes service also its name")
    scheme: str = setting("http", says="How backends are spoken to", choices=("http", "https"))
    path: str = setting("", says="Base path of the backends")
    networks: tuple[str, ...] = setting(
        (), says="Networks in which backends may be, e.g. 10.0.0.0/8; by default all but the host's own"
    )
    api: str = setting("", says="URL of the Kubernetes API; by default the cluster's own")
    account_folder: str = setting("", says="Folder with token and ca.crt; by default the pod's service account")

    def __post_init__(self) -> None:
        from wavetank.serving.proxy.backends import split_url

        where = f"discover {self.name}"
        if sum(map(bool, (self.dns, self.srv, self.kubernetes))) != 1:
            raise BadValueError("A source is one of several kinds.", allowed="dns, srv or kubernetes", where="discover")
        if self.url:
            raise BadValueError("Backends that are found have no address of their own.", given=self.url, where=where)
        if self.kubernetes and not re.fullmatch(r"[a-z0-9-]{1,63}/[a-z0-9-]{1,63}", self.kubernetes):
            raise BadValueError("This is no service.", given=self.kubernetes, allowed="NAMESPACE/SERVICE", where=where)
        if self.api and not self.api.startswith("https://"):
            raise BadValueError("The token is sent over https only.", given=self.api, where=f"{where}, api")
        number = self.port.isdecimal() and 0 < int(self.port) < 65536
        if not (number or (self.kubernetes and re.fullmatch(r"[a-z0-9-]{1,15}", self.port))):
            raise BadValueError("This is no port.", given=self.port, where=f"{where}, port")
        for each in self.networks:
            try:
                ipaddress.ip_network(each)
            except ValueError as error:
                raise BadValueError(f"This is no network: {error}.", given=each, where=f"{where}, networks") from None
        split_url(f"{self.scheme}://{self.dns or 'host'}:1{self.path}")
        # What stands for all that are found must be right for one.
        given = {item.name: getattr(self, item.name) for item in dataclasses.fields(BackendSettings)}
        BackendSettings(**{**given, "url": f"{self.scheme}://host:1"})

    @property
    def name(self) -> str:
        """What it is called in logs."""
        return self.dns or self.srv or self.kubernetes

    @property
    def host(self) -> str:
        """Name that the certificates of its backends have, where none is configured."""
        if self.kubernetes:
            namespace, _, service = self.kubernetes.partition("/")
            return f"{service}.{namespace}.svc"
        return self.dns or self.srv.partition("._tcp.")[2] or self.srv


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """What a stand-in engine pretends to be.

    Attributes
    ----------
    cluster : Cluster
        The limits and the step time of its worker.
    lengths : Lengths, optional
        Where answers' lengths are drawn from; without it an answer has exactly ``max_tokens``.
    """

    model: str = setting("Llama-3.1-8B", says="Model that the engine pretends to serve")
    cluster: Cluster = field(default_factory=Cluster)
    time_scale: float = setting(1.0, says="Seconds per second of the model: 4 is slower", low=1e-9)
    block_tokens: int = setting(512, says="Tokens of a prefix block", low=1)
    context_tokens: int = setting(0, says="Most tokens of prompt and answer; 0: the KV cache", low=0)
    max_waiting: int = setting(4096, says="Most waiting requests; further requests get status 429", low=0)
    body_bytes: int = setting(8 << 20, says="Largest request body; larger ones get status 413", low=1)
    lengths: Lengths | None = None
    seed: int = setting(0, says="Seed of the lengths")

    def __post_init__(self) -> None:
        check_ranges(self)

    @property
    def longest_tokens(self) -> int:
        """Most tokens of prompt and answer."""
        capacity = self.cluster.kv_capacity_tokens
        return min(self.context_tokens, capacity) if self.context_tokens else capacity


@dataclass(frozen=True, kw_only=True)
class ReplayOptions:
    """How a trace is sent to a server, and its answers are measured.

    Attributes
    ----------
    check : bool, optional
        Whether every token is checked against what a stand-in engine says; by default when the server is one.
    """

    url: str = setting("", says="URL of the server, as in http://127.0.0.1:8000")
    time_scale: float = setting(1.0, says="Stretch of the trace's times: 4 is slower", low=1e-9)
    as_text: bool = setting(False, says="Send text to /v1/chat/completions, not token ids to /v1/completions")
    model: str = setting("", says="Model to request; by default the first that the server lists")
    extensions: str = setting(
        "auto",
        says="Whether fields beyond OpenAI's (min_tokens, ignore_eos) ask for answers as long as the trace says: auto "
        "sends them where the models are listed as vLLM's, SGLang's, llama.cpp's or Wavetank's",
        choices=("auto", "on", "off"),
    )
    prompt_seed: int = setting(
        0, says="Prompts of another seed are others, so that prefix caches know nothing of them", low=0, high=7000
    )
    timeout_s: float = setting(600.0, says="Longest wait for one answer", low=1e-9)
    check: bool | None = None

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise BadValueError(
                "This is not the address of a server.", given=self.url, allowed="http://HOST:PORT", where="--url"
            )
        check_ranges(self)


@dataclass(frozen=True, kw_only=True)
class RouterConfiguration:
    """A policy, its parameters, its backends, and the router's settings.

    Attributes
    ----------
    policy : str
        Name of a router of the catalog.
    parameters : mapping
        Of the policy, as text or as their own types.
    backends : tuple of BackendSettings
    settings : RouterSettings
    aliases : mapping of str to str
        Names under which clients may ask for a model.
    discover : tuple of DiscoverySettings
        Where further backends are found.
    """

    policy: str
    backends: tuple[BackendSettings, ...]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    settings: RouterSettings = field(default_factory=RouterSettings)
    aliases: Mapping[str, str] = field(default_factory=dict)
    discover: tuple[DiscoverySettings, ...] = ()

    def __post_init__(self) -> None:
        from wavetank.serving.proxy.backends import split_url

        if not self.policy:
            raise BadValueError(
                "No policy was named.", allowed=live_policies(), hint="wavetank launch router --policy vllm-default ..."
            )
        if not self.backends and not self.discover:
            raise BadValueError(
                "No backend was named.",
                allowed="one or more, e.g. --backend http://127.0.0.1:8001",
                hint="wavetank launch engine starts a stand-in",
            )
        seen = set()
        for backend in self.backends:
            place = split_url(backend.url)
            where = (place.host, place.port, place.prefix)
            if where in seen:
                raise BadValueError("A backend is named twice.", given=backend.url, where="backends")
            if place[:2] == (self.settings.host, self.settings.port):
                raise BadValueError("The router would be its own backend.", given=backend.url, where="backends")
            seen.add(where)
        shares = sum(each.share or 0.0 for each in (*self.backends, *self.discover))
        if shares > 1.0 + 1e-9:
            raise BadValueError("The backends' shares are more than 1 together.", given=shares, where="backends, share")
        for alias, name in self.aliases.items():
            if not alias or not isinstance(name, str) or not name or name in self.aliases:
                raise BadValueError(
                    "An alias stands for one model.", given=f"{alias} = {name!r}", allowed="the name of a model",
                    where="aliases",
                )  # fmt: skip

    def router(self) -> Any:
        """Build the policy.

        Raises
        ------
        WavetankError
            If there is none of that name, it has no such parameter, or cannot decide on live traffic.
        """
        from wavetank.serving.proxy.dispatcher import check_router

        entry = catalog.built_in().systems.get(self.policy) or catalog.everything().systems.get(self.policy)
        if entry is None:
            raise unknown_name("policy", self.policy, live_policies(), hint="wavetank list serving")
        router = entry.build(**self.parameters)
        check_router(router, self.policy)
        if "live" not in entry.runs:
            raise BadValueError(
                f"The router {self.policy!r} is for simulations only.",
                given=f"runs = {', '.join(entry.runs)}",
                allowed=live_policies(),
                hint=f"wavetank show {self.policy}",
            )
        if self.settings.learn_from:
            if not getattr(router, "learns_lengths", False):
                raise BadValueError(f"The router {self.policy!r} learns nothing from traces.", where="learn_from")
            from wavetank.workloads.load import read_trace

            router = router.fitted_to(read_trace(self.settings.learn_from, bad_rows="drop"))
        return router

    def access(self) -> Access:
        """Return who may do what.

        Raises
        ------
        WavetankError
            If the file of the keys is wrong.
        """
        from wavetank.serving.proxy.access import Access

        access = Access()
        self.read_access()(access)
        return access

    def read_access(self) -> Callable[[Access], None]:
        """Read the keys; returns what brings an Access to this configuration and cannot fail.

        Raises
        ------
        WavetankError
            If the file of the keys is wrong.
        """
        from wavetank.serving.proxy.access import KeySettings, digest_of, read_keys

        settings = self.settings
        keys: tuple[KeySettings, ...] = ()
        if settings.keys_file:
            keys = read_keys(Path(settings.keys_file))
        elif shared := self.api_key():
            keys = (KeySettings(name="shared", sha256=digest_of(shared)),)
        asked = bool(keys or settings.keys_file)
        return lambda access: access.configure(keys, asked=asked, open_metrics=settings.open_metrics)

    def peers(self) -> tuple[BackendSettings, ...]:
        """Return where the other routers are."""
        urls = filter(None, (each.strip() for each in self.settings.peers.split(",")))
        return tuple(BackendSettings(url=url, api_key_file=self.settings.peer_key_file) for url in urls)

    def peer_key(self) -> str:
        """Return the key that routers show each other; empty where there is none.

        Raises
        ------
        WavetankError
            If its file is missing or empty.
        """
        return self.api_key(BackendSettings(api_key_file=name)) if (name := self.settings.peer_key_file) else ""

    def api_key(self, backend: BackendSettings | None = None) -> str:
        """Return the key of the backends, or of one of them; empty where there is none.

        Raises
        ------
        WavetankError
            If the variable or the file is missing or empty.
        """
        settings: RouterSettings | BackendSettings = self.settings
        if backend is not None and (backend.api_key_env or backend.api_key_file):
            settings = backend
        if settings.api_key_env:
            key = os.environ.get(settings.api_key_env, "")
            where = f"environment variable {settings.api_key_env}"
        elif settings.api_key_file:
            where = settings.api_key_file
            file = Path(settings.api_key_file).expanduser()
            key = read_bytes(file, largest_bytes=_MOST_KEY_FILE_BYTES, what="The key").decode("utf-8", "replace")
        else:
            return ""
        key = key.strip()
        if not key or not key.isascii() or not key.isprintable() or " " in key:
            raise BadValueError("The key is missing, or no line of printable characters.", where=where)
        return key


def _given_twice(where: str) -> BadValueError:
    return BadValueError("The key is given twice.", allowed="api_key_env or api_key_file", where=where)


# What a running router cannot change: it listens, writes and remembers by these.
FIXED = (
    "host", "port", "record", "block_tokens", "bytes_per_token", "prefix_memory_s", "prefix_memory_blocks",
    "pool_window", "seed", "tls_cert", "tls_key", "trace_to",
    "trace_share", "peers", "peer_key_file", "peer_heard_s",
)  # fmt: skip


def check_change(old: RouterConfiguration, new: RouterConfiguration) -> None:
    """Refuse a configuration that a running router cannot take over.

    Raises
    ------
    BadValueError
        If a setting differs that needs a restart.
    """
    for name in FIXED:
        before, after = getattr(old.settings, name), getattr(new.settings, name)
        if before != after:
            raise BadValueError("Another value needs a restart.", given=after, allowed=str(before), where=name)


def live_policies() -> list[str]:
    """Return the names of the routers that can be launched."""
    return sorted(entry.name for entry in catalog.everything() if entry.interface == "router" and "live" in entry.runs)


def make_configuration(
    *,
    file: str | Path | None = None,
    policy: str | None = None,
    backends: Sequence[str] = (),
    parameters: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> RouterConfiguration:
    """Put a configuration together from a file and from what is given here, which wins.

    Parameters
    ----------
    file : str or Path, optional
        TOML.
    policy : str, optional
    backends : sequence of str
        Addresses; instead of the file's where there are any.
    parameters : mapping, optional
        Of the policy; added to the file's, unless the policy is another one than the file's.
    settings : mapping, optional
        Fields of :class:`RouterSettings`.

    Raises
    ------
    WavetankError
        For a key that does not exist, a value out of range, a file that is no TOML.
    """
    if file is None:
        return _made({}, "launch router", policy, backends, parameters, settings)
    found, text = _read(Path(file))
    try:
        return _made(found, f"file {file}", policy, backends, parameters, settings)
    except WavetankError as error:
        line = _line_of(error, text)
        if line and error.where is not None and error.where.startswith(f"file {file}"):
            error.where = f"{error.where}, line {line}"
        raise


def _made(
    found: dict[str, Any],
    where: str,
    policy: str | None,
    backends: Sequence[str],
    parameters: Mapping[str, Any] | None,
    settings: Mapping[str, Any] | None,
) -> RouterConfiguration:
    listed = found.pop("backends", [])
    known = found.pop("parameters", {})
    named = found.pop("policy", "")
    aliases = found.pop("aliases", {})
    sources = found.pop("discover", [])
    for key, value, kind, allowed in (
        ("backends", listed, list, 'a list, e.g. ["http://127.0.0.1:8001"]'),
        ("parameters", known, dict, "a table"),
        ("aliases", aliases, dict, "a table of names"),
        ("discover", sources, list, 'a list, e.g. [{ dns = "vllm.default.svc", port = 8000 }]'),
        ("policy", named, str, "a name"),
    ):
        if not isinstance(value, kind):
            raise BadValueError("The value has the wrong form.", given=value, allowed=allowed, where=f"{where}, {key}")
    if policy is not None and policy != named:
        known, named = {}, policy
    checked = {
        **_checked(RouterSettings, found, where, more=("policy", "parameters", "backends", "aliases", "discover")),
        **_checked(RouterSettings, settings or {}, "launch router"),
    }
    if backends:
        listed = list(backends)
    tables = [each if isinstance(each, dict) else {"url": each} for each in listed]
    return RouterConfiguration(
        policy=named,
        parameters={**known, **(parameters or {})},
        backends=tuple(
            BackendSettings(**_checked(BackendSettings, table, f"{where}, backend {number}"))
            for number, table in enumerate(tables, 1)
        ),
        settings=RouterSettings(**checked),
        aliases=aliases,
        discover=tuple(
            DiscoverySettings(
                **_checked(
                    DiscoverySettings,
                    {name: str(value) if name == "port" else value for name, value in source.items()},
                    f"{where}, source {number}",
                )
            )
            for number, source in enumerate(sources, 1)
        ),
    )


def _line_of(error: WavetankError, text: str) -> int:
    """Return the line of the key that an error is about, as far as there is only one; 0 else."""
    named = re.search(r"named '([^']+)'", str(error))
    key = named[1] if named else (error.where or "").rpartition(", ")[2]
    lines = [
        number
        for number, line in enumerate(text.splitlines(), 1)
        if re.search(rf"(^|[\s{{,\[])\"?{re.escape(key)}\"?\s*(=|\])", line)
    ]
    return lines[0] if len(lines) == 1 else 0


def _read(file: Path) -> tuple[dict[str, Any], str]:
    return read_toml(file, "The configuration")


def read_toml(file: Path, what: str) -> tuple[dict[str, Any], str]:
    """Read a file of TOML; returns its content, and its text.

    Parameters
    ----------
    file : Path
    what : str
        For the message.

    Raises
    ------
    BadFileError
        If it cannot be read, is larger than 8 MiB, or is no TOML.
    """
    data = read_bytes(file.expanduser(), largest_bytes=_MOST_FILE_BYTES, what=what)
    try:
        text = data.decode("utf-8")
        return tomllib.loads(text), text
    except RecursionError:
        raise BadFileError(f"{what} is nested too deeply.", where=str(file)) from None
    except ValueError as error:
        raise BadFileError(f"{what} is not valid TOML: {error}", where=str(file)) from None


def _checked(kind: type, given: Mapping[str, Any], where: str, more: Sequence[str] = ()) -> dict[str, Any]:
    names = [*(item.name for item in dataclasses.fields(kind)), *more]
    for name in given:
        if name not in names:
            raise UnknownNameError(
                f"There is no setting named {name!r}.", allowed=names, nearest=nearest_of(name, names), where=where,
                hint=HELP,
            )  # fmt: skip
    return check_parameters(kind, given, where=where, what="setting")
