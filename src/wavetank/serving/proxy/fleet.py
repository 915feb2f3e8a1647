"""A cluster of the simulator as processes: stand-in engines with its limits and step time, a router in front.

What the simulator calls a :class:`~wavetank.serving.simulator.cluster.Cluster` of independent replicas becomes one
process per worker and one for the router, all on loopback and on ports of their own, all ended with the block that
started them. Every time of the cluster is stretched by one scale, the router's refresh interval and memory too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wavetank.errors import BadValueError, WavetankError
from wavetank.live.processes import ChildProcess, python_module
from wavetank.platforms.step_time import FittedStepTime, RooflineStepTime
from wavetank.serving.simulator.cluster import Cluster

_READY_S = 60.0
_ANSWER_S = 30.0
# What a cluster with measured coefficients is said to serve.
_MODEL = "stand-in"


@dataclass(frozen=True)
class Policy:
    """A router of the catalog, as the launched router is given it.

    Attributes
    ----------
    name : str
    parameters : mapping
        Constructor arguments, where they differ from the catalog's; None stands for a default.
    """

    name: str
    parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True)
class Fleet:
    """Running engines and their router.

    Attributes
    ----------
    url : str
        Of the router.
    engine_urls : tuple of str
        In the order of the cluster's workers; engine i names itself ``worker-i``.
    model : str
        What they serve.
    processes : tuple of ChildProcess
        The engines, then the router.
    configuration : Path
        The TOML file that the router was started with; it lasts as long as the processes.
    """

    url: str
    engine_urls: tuple[str, ...]
    model: str
    processes: tuple[ChildProcess, ...]
    configuration: Path

    def policy(self) -> Policy:
        """Return what the launched router says it runs: the name on its metrics page, its file's parameters.

        Raises
        ------
        WavetankError
            If the page names no policy, or another one than the file.
        """
        given = tomllib.loads(self.configuration.read_text(encoding="utf-8"))
        page = _page(self.url, "/metrics").decode()
        count = "wavetank_router_decision_seconds_count{policy="
        names = [line.partition('"')[2].partition('"')[0] for line in page.splitlines() if line.startswith(count)]
        if names != [given["policy"]]:
            raise WavetankError(
                "The launched router runs another policy than its configuration names.",
                given=", ".join(names) or "none",
                allowed=given["policy"],
                where=self.url,
            )
        return Policy(names[0], given["parameters"])

    def fallbacks(self) -> int:
        """Return how many decisions the launched router took by the fewest-requests rule instead of its policy."""
        lines = _page(self.url, "/metrics").decode().splitlines()
        return sum(
            int(float(line.rpartition(" ")[2]))
            for line in lines
            if line.startswith("wavetank_router_policy_fallbacks_total{")
        )

    def cpu_s(self) -> float:
        """Return the processor time that all of it used so far, s."""
        return sum(process.cpu_s() for process in self.processes)

    def lateness(self) -> tuple[int, float, float]:
        """Return what engines report of their steps: how many, mean lateness in s, a bound on its 99th percentile.

        The bound is the edge of a histogram's bucket; infinite beyond the last one.
        """
        buckets: dict[float, float] = {}
        steps, total_s = 0.0, 0.0
        for url in self.engine_urls:
            for line in _page(url, "/metrics").decode().splitlines():
                name, _, value = line.rpartition(" ")
                if name.startswith("wavetank_engine_late_seconds_bucket"):
                    edge = float(name.partition('le="')[2].partition('"')[0])
                    buckets[edge] = buckets.get(edge, 0.0) + float(value)
                elif name.startswith("wavetank_engine_late_seconds_sum"):
                    total_s += float(value)
                elif name.startswith("wavetank_engine_late_seconds_count"):
                    steps += float(value)
        bound_s = next((edge for edge, count in sorted(buckets.items()) if count >= 0.99 * steps), float("inf"))
        return int(steps), total_s / max(steps, 1.0), bound_s


def worker_name(number: int) -> str:
    """Return what the engine of a worker calls itself in its answers."""
    return f"worker-{number}"


class Connection:
    """One connection to a launched process, kept open between requests.

    Parameters
    ----------
    url : str
        As in ``http://127.0.0.1:8000``.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=_ANSWER_S)

    def get(self, path: str) -> bytes:
        """Return the body of an answer; raises WavetankError if there is none or it is none of success."""
        return self._ask("GET", path, None)

    def post(self, path: str, body: object) -> bytes:
        """Send JSON and return the body of the answer; raises WavetankError likewise."""
        return self._ask("POST", path, json.dumps(body).encode())

    def close(self) -> None:
        """Close it."""
        self._connection.close()

    def _ask(self, method: str, path: str, body: bytes | None) -> bytes:
        try:
            self._connection.request(method, path, body=body, headers={"Content-Type": "application/json"})
            response = self._connection.getresponse()
            text = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise WavetankError(
                f"A launched process does not answer: {error or type(error).__name__}.", given=self.url + path
            ) from error
        if response.status != 200:
            raise WavetankError(
                f"A launched process answers with HTTP {response.status}.",
                given=self.url + path,
                where=text[:500].decode(errors="replace"),
            )
        return text


def _page(url: str, path: str) -> bytes:
    with contextlib.closing(Connection(url)) as connection:
        return connection.get(path)


def engine_words(cluster: Cluster, number: int, time_scale: float, block_tokens: int = 512) -> list[str]:
    """Return the command line of a worker's stand-in engine.

    Raises
    ------
    BadValueError
        If the cluster is none of independent replicas, or its step time cannot be said on a command line.
    """
    if cluster.group_size > 1 or cluster.sync_s > 0:
        raise BadValueError(
            "Stand-in engines are independent replicas: they know no barrier.",
            given=f"group_size={cluster.group_size}, sync_s={cluster.sync_s:g}",
            allowed="group_size=1, sync_s=0",
        )
    plain = Cluster(workers=cluster.workers, step_time=cluster.step_time)
    unknown = ("adapters", "scheduler_overhead", "scheduled_ahead", "kinds", "max_waiting", "models", "routers")
    for name in (*unknown, "churn", "reuse"):
        if getattr(cluster, name) != getattr(plain, name):
            raise BadValueError(
                "Stand-in engines know nothing of this part of a cluster.",
                given=f"{name}={getattr(cluster, name)!r}",
                allowed=f"{name}={getattr(plain, name)!r}",
            )
    step_time = cluster.step_time
    if isinstance(step_time, FittedStepTime):
        pairs = ",".join(f"{name}={value!r}" for name, value in dataclasses.asdict(step_time).items())
        words = ["--model", _MODEL, "--step-time", pairs]
    elif (
        isinstance(step_time, RooflineStepTime)
        and isinstance(step_time.device, str)
        and isinstance(step_time.model, str)
        and step_time
        == RooflineStepTime(device=step_time.device, model=step_time.model, tensor_parallel=step_time.tensor_parallel)
    ):
        words = ["--device", step_time.device, "--model", step_time.model]
        words += ["--tensor-parallel", str(step_time.tensor_parallel)]
    else:
        raise BadValueError(
            "This step time cannot be written on a command line.",
            given=step_time,
            allowed="a roofline of named devices and models with its default efficiencies, or fitted coefficients",
        )
    limits = ("kv_capacity_tokens", "kv_watermark", "max_running", "max_batched_tokens")
    for name in limits:
        words += [f"--{name.replace('_', '-')}", str(getattr(cluster, name))]
    if cluster.prefix_caching:
        words += ["--prefix-caching", "--block-tokens", str(block_tokens)]
    words += ["--max-waiting", "1000000", "--time-scale", repr(time_scale), "--name", worker_name(number)]
    return python_module("wavetank", "launch", "engine", "--port", "0", *words)


def router_settings(cluster: Cluster, time_scale: float, block_tokens: int = 512) -> dict[str, object]:
    """Return the settings under which a launched router sees what the cluster's simulated one does.

    Parameters
    ----------
    cluster : Cluster
    time_scale : float
        Seconds that a second of the simulation takes.
    block_tokens : int
        Tokens of the trace's prefix blocks.
    """
    return {
        "port": 0,
        "refresh_s": max(cluster.refresh_s * time_scale, 0.001),
        "prefix_memory_s": cluster.prefix_memory_s * time_scale,
        "max_running": cluster.max_running,
        "kv_capacity_tokens": cluster.kv_capacity_tokens,
        "block_tokens": block_tokens,
        "pool_window": cluster.pool_window,
        "pool_limit": 1_000_000,
        "pool_wait_s": 600.0,
        "first_byte_s": 600.0,
        "idle_s": 600.0,
        # A simulation has no predictor beside the policy.
        "predict_lengths": False,
        "log": "none",
    }


@contextlib.contextmanager
def fleet(cluster: Cluster, policy: Policy, *, time_scale: float = 1.0, block_tokens: int = 512) -> Iterator[Fleet]:
    """Start the engines and the router of a cluster, yield them once they serve, and end them.

    Parameters
    ----------
    cluster : Cluster
        Of independent replicas.
    policy : Policy
    time_scale : float
        Seconds that a second of the simulation takes.
    block_tokens : int
        Tokens of the trace's prefix blocks.

    Raises
    ------
    WavetankError
        If a process cannot be started or does not serve within a minute.
    """
    with contextlib.ExitStack() as stack:
        engines = [
            stack.enter_context(
                ChildProcess(engine_words(cluster, number, time_scale, block_tokens), name=worker_name(number))
            )
            for number in range(cluster.workers)
        ]
        urls = tuple(_address(engine) for engine in engines)
        settings = router_settings(cluster, time_scale, block_tokens)
        yield stack.enter_context(routed(policy, settings, urls, engines))


@contextlib.contextmanager
def routed(
    policy: Policy, settings: Mapping[str, object], urls: Sequence[str], engines: Sequence[ChildProcess]
) -> Iterator[Fleet]:
    """Start a router in front of running engines, yield both once it routes to all of them, and end the router.

    Parameters
    ----------
    policy : Policy
    settings : mapping
        Of the router.
    urls : sequence of str
        Of the engines.
    engines : sequence of ChildProcess

    Raises
    ------
    WavetankError
        If the router cannot be started or does not reach every engine within a minute.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="wavetank-fleet-")))
        words = [*python_module("wavetank", "launch", "router"), *_configured(policy, settings, urls, folder)]
        router = stack.enter_context(ChildProcess(words, name="router"))
        url = _address(router)
        complaint = f"does not route to all {len(urls)} workers"
        router.until(lambda: _workers_behind(url) == len(urls), _READY_S, complaint)
        model = json.loads(_page(urls[0], "/v1/models"))["data"][0]["id"]
        yield Fleet(url, tuple(urls), model, (*engines, router), Path(words[-1]))


def _address(process: ChildProcess) -> str:
    line = process.first_line().strip()
    address = next((word for word in line.split() if word.startswith("http://")), "")
    if not address:
        raise WavetankError(f"The process {process.name} does not say where it listens.", given=line)
    return address.rstrip("/,")


def _configured(policy: Policy, settings: Mapping[str, object], backends: Sequence[str], folder: Path) -> list[str]:
    """Write the configuration of a router into a file and return the words that name it."""
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    lines += [f"policy = {json.dumps(policy.name)}", f"backends = {json.dumps(list(backends))}", "[parameters]"]
    lines += [f"{name} = {json.dumps(value)}" for name, value in policy.parameters.items() if value is not None]
    file = folder / "router.toml"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return ["--config", str(file)]


def _workers_behind(url: str) -> int:
    """Return to how many workers the router routes."""
    try:
        return int(json.loads(_page(url, "/health")).get("backends", 0))
    except (WavetankError, ValueError):
        return 0
