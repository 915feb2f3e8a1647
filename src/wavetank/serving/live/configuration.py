"""What a router is told: settings with units, a policy, backends; from a TOML file and from flags.

A file holds the settings under their own names, the policy's parameters in a table, and the backends as addresses or as
tables with settings of their own::

    policy = "balance-route"
    port = 8080
    refresh_s = "100ms"
    backends = ["http://10.0.0.4:8000", "http://10.0.0.5:8000"]

    [parameters]
    horizon_steps = 8

Flags win over the file.
"""

from __future__ import annotations

import dataclasses
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wavetank import catalog
from wavetank.errors import BadFileError, BadValueError, UnknownNameError, nearest_of, unknown_name
from wavetank.settings import check_parameters, setting

HELP = "wavetank launch router --help"


@dataclass(frozen=True, kw_only=True)
class RouterSettings:
    """How a router listens, looks, waits and gives up."""

    host: str = setting("127.0.0.1", says="address to listen on; 0.0.0.0: every network")
    port: int = setting(8080, says="port to listen on; 0: any free one", low=0, high=65535)
    refresh_s: float = setting(0.1, unit="s", says="how often the policy's view is refreshed", low=0.001, high=600.0)
    metrics: str = setting(
        "auto", says="auto: read vLLM's metrics where there are any; own: own accounting only", choices=("auto", "own")
    )
    max_running: int = setting(
        256, unit="requests", says="most requests in a backend's batch (vLLM: --max-num-seqs)", low=1, high=1_000_000
    )
    kv_capacity_tokens: int = setting(
        400_000, unit="tokens", says="a backend's KV cache, where its metrics do not say", low=2, high=10**12
    )
    block_tokens: int = setting(128, unit="tokens", says="a prefix block", low=1, high=100_000)
    bytes_per_token: float = setting(4.0, says="of prompt text, before replies tell better", low=0.5, high=20.0)
    prefix_memory_s: float = setting(300.0, unit="s", says="how long a sent prefix counts", low=0.0, high=1e6)
    prefix_memory_blocks: int = setting(200_000, says="most remembered blocks a backend", low=0, high=10**8)
    pool_window: int = setting(512, unit="requests", says="waiting requests that a pool policy sees", low=1, high=10**6)
    pool_limit: int = setting(4096, unit="requests", says="most waiting requests; beyond: 429", low=1, high=10_000_000)
    pool_wait_s: float = setting(60.0, unit="s", says="longest wait in the pool; then 503", low=0.001, high=86_400.0)
    learn_from: str = setting("", says="a trace that the policy's length predictor learns from")
    connect_s: float = setting(2.0, unit="s", says="longest time to connect to a backend", low=0.001, high=600.0)
    first_byte_s: float = setting(
        900.0, unit="s", says="longest wait for a stream's first byte; a plain answer's comes last: see total_s",
        low=0.001, high=86_400.0,
    )  # fmt: skip
    idle_s: float = setting(
        300.0, unit="s", says="longest pause within an answer that has begun; a stream's comments end a pause",
        low=0.001, high=86_400.0,
    )  # fmt: skip
    total_s: float = setting(
        7200.0, unit="s", says="longest time for a request, plain or streamed, wait included", low=0.001, high=604_800.0
    )
    read_s: float = setting(30.0, unit="s", says="longest time for a client to send its request", low=0.001, high=3600)
    write_s: float = setting(
        300.0,
        unit="s",
        says="longest time for which a client may take none of its answer (Linux)",
        low=0.1,
        high=86_400.0,
    )
    tries: int = setting(
        3,
        says="backends a request is sent to while none takes it (503; 2 where connections die), refusals not counted",
        low=1,
        high=100,
    )
    retry_share: float = setting(0.2, says="retries for each request, over retry_window_s", low=0.0, high=100.0)
    retry_floor: int = setting(10, says="retries in retry_window_s whatever the requests", low=0, high=1_000_000)
    retry_window_s: float = setting(10.0, unit="s", says="how far back retries are counted", low=0.1, high=3600.0)
    max_body_bytes: int = setting(16_777_216, unit="bytes", says="longest request", low=1, high=2**40)
    max_response_bytes: int = setting(268_435_456, unit="bytes", says="longest answer", low=1024, high=2**40)
    max_connections: int = setting(10_000, says="most connections of clients", low=1, high=1_000_000)
    client_keep_alive_s: float = setting(
        75.0, unit="s", says="how long a client's idle connection is kept", low=0.001, high=86_400.0
    )
    keep_alive_s: float = setting(
        4.0, unit="s", says="how long an idle connection to a backend is kept (uvicorn: 5 s)", low=0.0, high=3600.0
    )
    health_path: str = setting("/health", says="what probes ask for; any answer below 500 is good")
    probe_every_s: float = setting(2.0, unit="s", says="time between two probes", low=0.01, high=3600.0)
    probe_s: float = setting(2.0, unit="s", says="longest time for a probe", low=0.001, high=600.0)
    rise: int = setting(2, says="good probes in a row that bring a backend back", low=1, high=100)
    fall: int = setting(3, says="bad probes in a row that take a backend out", low=1, high=100)
    models_every_s: float = setting(30.0, unit="s", says="how often models are listed", low=0.1, high=86_400.0)
    eject_after: int = setting(
        3, says="connections in a row that were refused, broke or brought no HTTP and take a backend out a while",
        low=1, high=10_000,
    )  # fmt: skip
    eject_after_answers: int = setting(
        5, says="error answers in a row (500, 502, 503; no time-out) that take a backend out a while",
        low=1, high=10_000,
    )  # fmt: skip
    eject_share: float = setting(
        0.25, says="of the backends that may be out at once for errors a request can provoke; at least one of several",
        low=0.0, high=1.0,
    )  # fmt: skip
    eject_s: float = setting(1.0, unit="s", says="for how long, at first; doubles", low=0.001, high=3600.0)
    eject_most_s: float = setting(30.0, unit="s", says="for how long, at most", low=0.001, high=86_400.0)
    seed: int = setting(0, says="of the jitter of ejections", low=0, high=2**31)
    drain_s: float = setting(30.0, unit="s", says="after a signal: time for what is running", low=0.0, high=86_400.0)
    record: str = setting("", says="file (.jsonl) that the traffic is written to, as a trace")
    log: str = setting("errors", says="which requests are logged", choices=("none", "errors", "requests"))
    api_key_env: str = setting("", says="environment variable with the key that clients and backends share")
    api_key_file: str = setting("", says="file with that key")

    def __post_init__(self) -> None:
        if not self.health_path.startswith("/") or any(ord(c) <= 32 or ord(c) > 126 for c in self.health_path):
            raise BadValueError("This is no path.", given=self.health_path, allowed="/health", where="health_path")
        if self.api_key_env and self.api_key_file:
            raise BadValueError(
                "The key is given twice.", allowed="api_key_env or api_key_file", where="api_key_env, api_key_file"
            )


@dataclass(frozen=True, kw_only=True)
class BackendSettings:
    """One backend, with what differs from the router's settings."""

    url: str = setting("", says="scheme, host and port")
    max_running: int | None = setting(None, unit="requests", says="as for all backends", low=1, high=1_000_000)
    kv_capacity_tokens: int | None = setting(None, unit="tokens", says="as for all backends", low=2, high=10**12)


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
    """

    policy: str
    backends: tuple[BackendSettings, ...]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    settings: RouterSettings = field(default_factory=RouterSettings)

    def __post_init__(self) -> None:
        from wavetank.serving.live.backends import split_url

        if not self.policy:
            raise BadValueError(
                "No policy was named.", allowed=live_policies(), hint="wavetank launch router --policy vllm-default ..."
            )
        if not self.backends:
            raise BadValueError(
                "No backend was named.",
                allowed="one or more, e.g. --backend http://127.0.0.1:8001",
                hint="wavetank launch engine starts a stand-in",
            )
        seen = set()
        for backend in self.backends:
            place = split_url(backend.url)[:2]
            if place in seen:
                raise BadValueError("A backend is named twice.", given=backend.url, where="backends")
            if place == (self.settings.host, self.settings.port):
                raise BadValueError("The router would be its own backend.", given=backend.url, where="backends")
            seen.add(place)

    def router(self) -> Any:
        """Build the policy.

        Raises
        ------
        WavetankError
            If there is none of that name, it has no such parameter, or cannot decide on live traffic.
        """
        from wavetank.serving.live.dispatcher import check_router

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

            router = router.fitted_to(read_trace(self.settings.learn_from))
        return router

    def api_key(self) -> str:
        """Return the key that clients and backends share; empty where there is none.

        Raises
        ------
        WavetankError
            If the variable or the file is missing or empty.
        """
        settings = self.settings
        if settings.api_key_env:
            key = os.environ.get(settings.api_key_env, "")
            where = f"environment variable {settings.api_key_env}"
        elif settings.api_key_file:
            where = settings.api_key_file
            try:
                key = Path(settings.api_key_file).expanduser().read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise BadFileError(f"The key cannot be read: {error}", where=where) from None
        else:
            return ""
        key = key.strip()
        if not key or not key.isascii() or not key.isprintable() or " " in key:
            raise BadValueError("The key is missing, or no line of printable characters.", where=where)
        return key


def live_policies() -> list[str]:
    """Return the names of the routers that can be launched."""
    return sorted(entry.name for entry in catalog.everything() if entry.shape == "policy" and "live" in entry.runs)


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
    found = _read(Path(file)) if file is not None else {}
    where = f"file {file}" if file is not None else "launch router"
    listed = found.pop("backends", [])
    known = found.pop("parameters", {})
    named = found.pop("policy", "")
    for key, value, kind, allowed in (
        ("backends", listed, list, 'a list, e.g. ["http://127.0.0.1:8001"]'),
        ("parameters", known, dict, "a table"),
        ("policy", named, str, "a name"),
    ):
        if not isinstance(value, kind):
            raise BadValueError("The value has the wrong form.", given=value, allowed=allowed, where=f"{where}, {key}")
    if policy is not None and policy != named:
        known, named = {}, policy
    checked = {
        **_checked(RouterSettings, found, where, more=("policy", "parameters", "backends")),
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
    )


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.expanduser().read_text(encoding="utf-8"))
    except OSError as error:
        raise BadFileError(f"The configuration cannot be read: {error.strerror or error}.", where=str(file)) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadFileError(f"The configuration is not valid TOML: {error}", where=str(file)) from None


def _checked(kind: type, given: Mapping[str, Any], where: str, more: Sequence[str] = ()) -> dict[str, Any]:
    names = [*(item.name for item in dataclasses.fields(kind)), *more]
    for name in given:
        if name not in names:
            raise UnknownNameError(
                f"There is no setting named {name!r}.", allowed=names, nearest=nearest_of(name, names), where=where,
                hint=HELP,
            )  # fmt: skip
    return check_parameters(kind, given, where=where, what="setting")
