"""A cluster of real nodes: started, asked, killed, stopped, restarted, and what came out of it.

The same algorithm, network, faults and requests that a simulation takes go in, and what comes out has the same shape.
:class:`InProcessCluster` runs all nodes in this process, on the loop that calls it, over real sockets of the loopback
interface; :class:`wavetank.live.launcher.ProcessCluster` runs them in processes of their own.

Differs from the simulation:
1. Time is wall time; a figure in rounds is seconds divided by ``round_s``.
2. Links are those of the machine.  A :class:`~wavetank.sim.network.Network` whose links are not plain is put on
   top of them: its delays come before the socket, its losses take the place of it.
3. A client may ask again: after ``retry_rounds`` without an answer it asks the next node, with the same number.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from wavetank.errors import BadValueError
from wavetank.live.credentials import Certificate, make_certificates, signing_key
from wavetank.live.durable import make_state
from wavetank.live.endpoint import LARGEST_QUEUE_BYTES, TRANSPORTS, Endpoint, EndpointPlan
from wavetank.live.folder import Manifest, RunFolder, Scratch, manifest_of
from wavetank.live.journal import JOURNAL, Journal
from wavetank.live.loops import fastest_loop
from wavetank.live.node_process import CONNECT_TIMEOUT_S, tally
from wavetank.live.run import ClusterRun, Output
from wavetank.live.spill import SpillFile
from wavetank.live.values import codec_of
from wavetank.live.wire import LARGEST_FRAME_BYTES, RunIdentity
from wavetank.settings import check_parameters, setting
from wavetank.sim.faults import Fault, attach, byzantine_members
from wavetank.sim.network import Network
from wavetank.sim.node import Algorithm, Node
from wavetank.sim.simulation import Request

ENDPOINTS = ("process", "node")
OUTAGES = ("kill", "stop")
_WATCH_S = 0.01
# Requests without an answer that clients go on asking; of more than that the newest.
_MOST_RETRIED = 65_536


@dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    """How a cluster is run."""

    round_s: float = setting(0.05, unit="s", low=1e-4, high=3600.0, says="Seconds per round")
    seed: int = setting(0, low=0, says="Seed of the nodes' random streams")
    transport: str = setting("tcp", choices=TRANSPORTS, says="Transport: TCP, or datagrams without retransmission")
    endpoints: str = setting(
        "", choices=("", *ENDPOINTS), says="Whether each process (default with TCP) or each node (UDP) has a socket"
    )
    sign: bool = setting(False, says="Whether frames have Ed25519 signatures")
    tls: bool = setting(False, says="Whether links are encrypted (TCP only)")
    queue_messages: int = setting(65_536, low=1, says="Most messages in the queue of a link; the oldest are dropped")
    queue_bytes: int = setting(LARGEST_QUEUE_BYTES, unit="bytes", low=512, says="Most bytes in the queue of a link")
    frame_bytes: int = setting(LARGEST_FRAME_BYTES, unit="bytes", low=512, high=2**28, says="Largest frame")
    host: str = setting("127.0.0.1", says="Address on which nodes listen")
    base_port: int = setting(0, low=0, high=65_535, says="First port; 0 for any")
    retry_rounds: float | None = setting(None, unit="rounds", low=0.0, says="Wait before a client asks the next node")
    sticky: bool = setting(False, says="Whether clients ask the node that answered last")

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in self.__dataclass_fields__}
        check_parameters(type(self), given, where="cluster")
        if self.tls and self.transport == "udp":
            raise BadValueError("Datagrams are not encrypted.", given="--tls", allowed="--transport tcp, or --sign")

    def homes(self, size: int, processes: int) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
        """Return the nodes of each endpoint, and the endpoints of each process."""
        if not 1 <= processes <= size:
            raise BadValueError("Every process has a node.", given=processes, allowed=f"1 to {size}", where="processes")
        if (self.endpoints or ("process" if self.transport == "tcp" else "node")) == "process":
            nodes = tuple(tuple(range(place, size, processes)) for place in range(processes))
            return nodes, tuple((place,) for place in range(processes))
        places = tuple(tuple(range(place, size, processes)) for place in range(processes))
        return tuple((node,) for node in range(size)), places


@dataclass(frozen=True, kw_only=True)
class Outage:
    """A time during which a node is away.

    Parameters
    ----------
    node : int
    at_s : float
        Seconds after the start.
    kind : str
        ``kill`` (as -9) or ``stop`` (as SIGSTOP); all nodes of a process share its fate.
    for_s : float or None
        Seconds until it is restarted or goes on; None for never.
    """

    node: int
    at_s: float
    kind: str = "kill"
    for_s: float | None = 1.0

    def __post_init__(self) -> None:
        if self.kind not in OUTAGES:
            raise BadValueError("A node is killed or stopped.", given=self.kind, allowed=OUTAGES)
        if not self.at_s >= 0 or (self.for_s is not None and not self.for_s >= 0):
            raise BadValueError("An outage begins and lasts some time.", given=(self.at_s, self.for_s))


class Cluster(ABC):
    """What all clusters share: clients, their clocks, and the collection of what nodes do.

    Parameters
    ----------
    algorithm : Algorithm
    size : int
        Nodes.
    settings : ClusterSettings, optional
    network : Network, optional
        Complete and unimpaired by default.
    faults : sequence of Fault
        See :mod:`wavetank.sim.faults`.
    processes : int
        Over how many processes the nodes are spread.
    folder : Path, optional
        Where nodes keep what they save; a temporary one by default.  One that is given is locked, says in
        ``run.json`` what its nodes are, and keeps what clients asked in ``requests.jsonl``.
    resume : bool
        Go on in a folder where an earlier run of the same algorithm, parameters and size ended.
    certificate : Certificate, optional
        For TLS; made for this run by default.

    Attributes
    ----------
    run : ClusterRun
        What is known so far.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        size: int,
        *,
        settings: ClusterSettings | None = None,
        network: Network | None = None,
        faults: Sequence[Fault] = (),
        processes: int = 1,
        folder: Path | None = None,
        resume: bool = False,
        certificate: Certificate | None = None,
    ) -> None:
        self.algorithm = algorithm
        self.settings = settings or ClusterSettings()
        self.network = network or Network.complete(size)
        if self.network.topology.size != size:
            raise BadValueError("The network has another size.", given=size, allowed=str(self.network.topology.size))
        for fault in faults:
            for member in fault.members:
                if not 0 <= member < size:
                    raise BadValueError("A fault must name existing nodes.", given=member, allowed=f"0 to {size - 1}")
        self.faults = tuple(faults)
        self.homes, self.places = self.settings.homes(size, processes)
        most = 65_536 - len(self.homes)
        if self.settings.base_port > most:
            raise BadValueError(
                f"There is no port for each of {len(self.homes)} endpoints.",
                given=self.settings.base_port,
                allowed=f"0 to {most}",
                where="base_port",
            )
        self.home_of = {node: place for place, nodes in enumerate(self.homes) for node in nodes}
        self.process_of = {place: process for process, places in enumerate(self.places) for place in places}
        self.codec = codec_of(algorithm)
        self.run_name = secrets.token_hex(8)
        self.run = ClusterRun(size=size, correct=frozenset(range(size)) - byzantine_members(faults))
        # An hour's decisions and answers are more than a launcher should keep in memory.
        self.run.spill(SpillFile(lambda: self.folder, self.codec))
        self._folder = folder
        self._resume = resume
        self._run_folder: RunFolder | None = None
        self._manifest: Manifest | None = None
        self._journal: Journal | None = None
        self._scratch: Scratch | None = None
        self._certificate = certificate
        # Those that join, where there are any.
        self._hosts: tuple[str, ...] = ()
        self._epoch_s = 0.0
        self._ended = False
        self._played_s: float | None = None
        self._retry_handles: dict[int, asyncio.TimerHandle] = {}
        self._last_answered: int | None = None
        self._changed = asyncio.Event()

    # -- what a cluster of one kind does in its own way ----------------------------------------------------------------

    @abstractmethod
    async def _launch(self) -> None:
        """Start what runs the nodes."""

    @abstractmethod
    def _pass_on(self, node: int, number: int, command: Any) -> None:
        """Give a request to its node."""

    @abstractmethod
    async def _close(self) -> None:
        """End everything."""

    @abstractmethod
    async def _collect(self) -> dict[int, Node]:
        """Return the nodes as they ended, by id."""

    @abstractmethod
    def _tallied(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return the counters, and the hostile frames by reason."""

    @abstractmethod
    async def kill(self, node: int) -> None:
        """End a node as kill -9 does; with it end those that share its process."""

    @abstractmethod
    async def restart(self, node: int) -> None:
        """Start what :meth:`kill` ended again, with what was saved."""

    @abstractmethod
    async def stop(self, node: int, for_s: float | None = None) -> None:
        """Stop a node as SIGSTOP does, until :meth:`resume` or for a time; with it those that share its process."""

    @abstractmethod
    async def resume(self, node: int) -> None:
        """Let what :meth:`stop` stopped go on."""

    # -- life ----------------------------------------------------------------------------------------------------------

    @property
    def folder(self) -> Path:
        """Where nodes keep what they save."""
        if self._folder is None:
            self._scratch = Scratch("wavetank-cluster-")
            self._folder = self._scratch.path
        return self._folder

    def claim(self) -> None:
        """Take the folder that was given, before anything is started; nothing happens the second time.

        Raises
        ------
        BadFileError
            If it cannot be made, is in use, or is damaged.
        BadValueError
            If it was used before and is not to be resumed, or not by these nodes.
        """
        if self._folder is None or self._run_folder is not None or self._scratch is not None:
            if self._resume and self._folder is None:
                raise BadValueError("Only a folder that was named can be resumed.", where="--resume", hint="--out")
            return
        taken = RunFolder(self._folder)
        try:
            wanted = manifest_of(self.algorithm, self.run_name, self.run.size, len(self.places), self._hosts)
            manifest = taken.claim(wanted, resume=self._resume)
            self._journal = Journal(self._folder / JOURNAL)
        except BaseException:
            taken.close()
            raise
        self._run_folder, self._manifest = taken, manifest
        self.run_name, self.run.runs = manifest.run, manifest.runs
        self.run.journal, self.run.first_number = self._journal.path, self._journal.next_number

    def _note_begun(self, *, states_here: bool = True) -> None:
        """Write down what a resumed run will need, when all nodes listen and none has begun."""
        if self._run_folder is None or self._manifest is None:
            return
        for node in range(self.run.size) if states_here else ():
            make_state(self._run_folder.path, node, self.codec)
        self._run_folder.begun(self._manifest)

    def release(self) -> None:
        """Let others use the folder."""
        if self._journal is not None:
            self._journal.close()
        if self._run_folder is not None:
            self._run_folder.close()
        self._journal, self._run_folder = None, None

    async def __aenter__(self) -> Self:
        try:
            self.claim()
            await self._launch()
        except BaseException:
            await self._shut()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._shut()

    async def _shut(self) -> None:
        for handle in self._retry_handles.values():
            handle.cancel()
        try:
            await self._close()
        finally:
            self.release()
            if self._scratch is not None:
                self._scratch.cleanup()
                self._scratch, self._folder = None, None

    @property
    def elapsed_s(self) -> float:
        """Seconds since the nodes started."""
        return time.monotonic() - self._epoch_s

    def ask(self, node: int, command: Any, client: str = "client") -> int:
        """Ask a node for something; returns the number of the request.

        Raises
        ------
        BadValueError
            If there is no such node.
        """
        if not 0 <= node < self.run.size:
            raise BadValueError("There is no such node.", given=node, allowed=f"0 to {self.run.size - 1}")
        number = self.run.first_number + len(self.run.requests)
        self.run.requests.append(
            Request(at=self.elapsed_s / self.settings.round_s, node=node, command=command, client=client)
        )
        self._ask(number, node)
        return number

    def _ask(self, number: int, node: int) -> None:
        run = self.run
        run.invoked_s[number] = now_s = self.elapsed_s
        request = run.requests[number - run.first_number]
        if self._journal is not None:
            self._journal.asked(number, now_s, request.client, request.command)
        if self.settings.sticky and self._last_answered is not None:
            node = self._last_answered
        self._send_request(number, node, request.command)

    def _send_request(self, number: int, node: int, command: Any) -> None:
        self._pass_on(node, number, command)
        if self.settings.retry_rounds is None:
            return
        wait_s = self.settings.retry_rounds * self.settings.round_s
        handle = asyncio.get_running_loop().call_later(wait_s, self._retry, number, node, command)
        self._retry_handles[number] = handle
        if len(self._retry_handles) > _MOST_RETRIED:
            # While nobody answers, clients would otherwise ask more and more.
            self._retry_handles.pop(next(iter(self._retry_handles))).cancel()

    def _retry(self, number: int, asked: int, command: Any) -> None:
        self._retry_handles.pop(number, None)
        if number in self.run.replies or self._ended:
            return
        self.run.retries += 1
        if asked == self._last_answered:
            self._last_answered = None
        self._send_request(number, (asked + 1) % self.run.size, command)

    def take(self, outputs: Sequence[Output]) -> None:
        """Take in what nodes reported."""
        for output in outputs:
            now_s = self.elapsed_s
            if self.run.take(output, now_s):
                self._last_answered = output.node
                if self._journal is not None:
                    self._journal.answered(output.name, now_s, output.value)
                handle = self._retry_handles.pop(output.name, None)
                if handle is not None:
                    handle.cancel()
        self._changed.set()

    def failed(self, node: int, trace: str) -> None:
        """Take in that the code of a node raised."""
        self.run.failures.setdefault(node, trace)
        self._changed.set()

    def count(self) -> None:
        """Bring the counters of :attr:`run` up to date."""
        run = self.run
        run.counters, run.hostile = self._tallied()
        run.sent, run.duplicated = run.counters.get("sent", 0), run.counters.get("duplicated", 0)
        run.delivered = run.counters.get("delivered", 0)
        run.dropped = sum(run.counters.get(name, 0) for name in ("overflowed", "lost", "undelivered"))
        run.duration_s = self.elapsed_s
        run.time = run.duration_s / self.settings.round_s

    async def until(self, true: Callable[[ClusterRun], bool], timeout_s: float) -> bool:
        """Wait until something holds of the run; returns whether it did in time."""
        deadline = time.monotonic() + timeout_s
        while not true(self.run):
            left_s = deadline - time.monotonic()
            # The algorithm goes on without the nodes whose code raised, as long as it tolerates that.
            if left_s <= 0 or len(self.run.failures) > self.algorithm.max_faults(self.run.size):
                return False
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), min(left_s, _WATCH_S * 5))
            self.count()
        return True

    async def play(
        self,
        *,
        requests: Iterable[Request] = (),
        duration_s: float,
        outages: Sequence[Outage] = (),
        stop: Callable[[ClusterRun], bool] | None = None,
    ) -> None:
        """Let the cluster run for some time, ask what is to be asked, and break what is to be broken.

        Parameters
        ----------
        requests : iterable of Request
            ``at`` in rounds after the start.  Of a sequence each is numbered by its place; anything else is read one
            by one when it is time, in the order of ``at``.
        duration_s : float
            Seconds after the start at which it ends.
        outages : sequence of Outage
        stop : callable, optional
            Ends it earlier when it returns True of the run so far.
        """
        tasks = [asyncio.ensure_future(self._ask_all(self._numbered(requests)))]
        tasks += [asyncio.ensure_future(self._break(outage)) for outage in outages]
        try:
            await self.until(
                lambda run: (
                    any(task.done() and task.exception() is not None for task in tasks)
                    or (stop is not None and stop(run))
                ),
                max(duration_s - self.elapsed_s, 0.0),
            )
            for task in tasks:
                if task.done():
                    task.result()
            if stop is None or not stop(self.run):
                self._played_s = self.elapsed_s
                await self._settle()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _settle(self) -> None:  # noqa: B027  (most clusters have nothing to wait for)
        """Wait for what was begun in the last moment."""

    def _numbered(self, requests: Iterable[Request]) -> Iterator[tuple[int, Request]]:
        """Return requests in the order in which they are asked, with their numbers; -1 for the next one."""
        run = self.run
        if isinstance(requests, Sequence):
            base = run.first_number + len(run.requests)
            run.requests.extend(requests)
            return iter(sorted(enumerate(requests, base), key=lambda pair: (pair[1].at, pair[0])))
        # Others may ask meanwhile: these get their numbers when it is time.
        return ((-1, request) for request in requests)

    async def _ask_all(self, numbered: Iterator[tuple[int, Request]]) -> None:
        run = self.run
        for known, request in numbered:
            # Some loops' timers end early: uvloop's count from the start of the turn.
            while (wait_s := request.at * self.settings.round_s - self.elapsed_s) > 0:
                await asyncio.sleep(wait_s)
            number = known
            if number < 0:
                number = run.first_number + len(run.requests)
                run.requests.append(request)
            self._ask(number, request.node)

    async def _break(self, outage: Outage) -> None:
        await asyncio.sleep(max(outage.at_s - self.elapsed_s, 0.0))
        kill = outage.kind == "kill"
        await (self.kill(outage.node) if kill else self.stop(outage.node, outage.for_s))
        if outage.for_s is not None:
            await asyncio.sleep(outage.for_s)
            await (self.restart(outage.node) if kill else self.resume(outage.node))

    async def finish(self) -> ClusterRun:
        """Stop the clients, collect what there is, judge it, and return it."""
        self._ended = True
        for handle in self._retry_handles.values():
            handle.cancel()
        self.count()
        found = await self._collect()
        # What was waited for afterwards was no part of it.
        duration_s = self.run.duration_s if self._played_s is None else self._played_s
        self.count()
        run = self.run
        run.duration_s, run.time = duration_s, duration_s / self.settings.round_s
        run.nodes = [found.get(node) or attach(self.algorithm, node, run.size, self.faults) for node in range(run.size)]
        run.judge(self.algorithm)
        return run


class InProcessCluster(Cluster):
    """All nodes in this process, over real sockets; an asynchronous context.

    Examples
    --------
    >>> async def agreed(algorithm):
    ...     async with InProcessCluster(algorithm, 4) as cluster:
    ...         await cluster.until(lambda run: len(run.decisions) == 4, timeout_s=10)
    ...         return await cluster.finish()
    """

    def __init__(self, algorithm: Algorithm, size: int, **options: Any) -> None:
        super().__init__(algorithm, size, **options)
        self.endpoints: list[Endpoint] = []

    async def _launch(self) -> None:
        settings, run = self.settings, self.run
        identity = RunIdentity(run=self.run_name, secret=secrets.token_bytes(32), size=run.size)
        plan = EndpointPlan(
            identity=identity,
            homes=self.homes,
            network=self.network,
            signed=settings.sign,
            **endpoint_options(settings),
        )
        certificate = self._certificate
        if settings.tls and certificate is None:
            [certificate] = make_certificates(1)
        folder = self.folder
        keys = {node: signing_key(folder / f"node-{node}.key") for node in range(run.size)} if settings.sign else {}
        pools: list[dict[str, Any]] = [{} for _ in self.faults]
        addresses = {}
        for number, nodes in enumerate(self.homes):
            endpoint = Endpoint(
                number,
                plan,
                self.algorithm,
                make_node=lambda node: attach(self.algorithm, node, run.size, self.faults, pools=pools),
                values=self.codec,
                folder=folder,
                outputs=self.take,
                failed=self.failed,
                private_keys={node: keys[node][0] for node in nodes} if settings.sign else None,
                certificate=certificate if settings.tls else None,
            )
            self.endpoints.append(endpoint)
            endpoint.know_keys({node: pair[1] for node, pair in keys.items()})
            port = settings.base_port + number if settings.base_port else 0
            addresses[number] = await endpoint.listen(settings.host, port)
        for endpoint in self.endpoints:
            endpoint.connect(addresses)
        await asyncio.gather(*(endpoint.connected(CONNECT_TIMEOUT_S) for endpoint in self.endpoints))
        self._note_begun()
        self._epoch_s = time.monotonic()
        for endpoint in self.endpoints:
            endpoint.begin()

    def _home(self, node: int) -> Endpoint:
        return self.endpoints[self.home_of[node]]

    def _pass_on(self, node: int, number: int, command: Any) -> None:
        self._home(node).request(node, number, command)

    async def _close(self) -> None:
        for endpoint in self.endpoints:
            await endpoint.close()

    async def _collect(self) -> dict[int, Node]:
        for endpoint in self.endpoints:
            endpoint.flush()
        return {number: node for endpoint in self.endpoints for number, node in endpoint.nodes().items()}

    def _tallied(self) -> tuple[dict[str, int], dict[str, int]]:
        return tally(self.endpoints)

    async def kill(self, node: int) -> None:
        """End a node between two reactions; what it saved stays."""
        self._home(node).crash(node)

    async def restart(self, node: int) -> None:
        """Start a node that was killed, with what it saved."""
        self._home(node).restart(node)
        self.run.restarts += 1

    async def stop(self, node: int, for_s: float | None = None) -> None:
        """Have everything for a node wait, until :meth:`resume`."""
        self._home(node).hold(node)

    async def resume(self, node: int) -> None:
        """Let a stopped node go on."""
        self._home(node).release(node)


def endpoint_options(settings: ClusterSettings) -> dict[str, Any]:
    """Return what an endpoint's plan takes from the settings of a cluster."""
    names = ("round_s", "seed", "transport", "queue_messages", "queue_bytes", "frame_bytes")
    return {name: getattr(settings, name) for name in names}


def new_cluster(algorithm: Algorithm, size: int, *, processes: int = 1, **options: Any) -> Cluster:
    """Return a cluster in this process for one process, of child processes for more.

    Parameters
    ----------
    algorithm : Algorithm
    size : int
        Nodes.
    processes : int
        Over how many processes the nodes are spread.
    **options
        Those of :class:`Cluster`.
    """
    if processes == 1:
        return InProcessCluster(algorithm, size, **options)
    from wavetank.live.launcher import ProcessCluster

    return ProcessCluster(algorithm, size, processes=processes, **options)


def run_cluster(
    algorithm: Algorithm,
    size: int,
    *,
    requests: Sequence[Request] = (),
    duration_s: float = 10.0,
    round_s: float = 0.05,
    processes: int = 1,
    seed: int = 0,
    faults: Sequence[Fault] = (),
    transport: str = "tcp",
    network: Network | None = None,
    outages: Sequence[Outage] = (),
    stop: Callable[[ClusterRun], bool] | None = None,
    folder: Path | None = None,
    resume: bool = False,
    **settings: Any,
) -> ClusterRun:
    """Run an algorithm over sockets and return what came out.

    Parameters
    ----------
    algorithm : Algorithm
    size : int
        Nodes.
    requests : sequence of Request
        As for :func:`wavetank.sim.events.simulate`; ``at`` in rounds.
    duration_s : float
        Seconds it runs, at most.
    round_s : float
        Seconds per round.
    processes : int
        1 runs all nodes in this process; more spread them over child processes, node i to process ``i % processes``.
    seed : int
    faults : sequence of Fault
    transport : str
        ``tcp`` or ``udp``.
    network : Network, optional
        Complete and unimpaired by default.
    outages : sequence of Outage
        Nodes that are killed or stopped, and when.
    stop : callable, optional
        Ends the run when it returns True of the ClusterRun so far.
    folder : Path, optional
        Where nodes keep what they save; temporary by default.
    resume : bool
        Go on in a folder where an earlier run ended.
    **settings
        Further fields of :class:`ClusterSettings`.

    Raises
    ------
    WavetankError
        If something asked for makes no sense, a process is lost, or the code of a node raised.

    Examples
    --------
    >>> from wavetank.live.cluster import run_cluster
    >>> run = run_cluster(algorithm, 4, duration_s=5, stop=lambda run: len(run.decisions) == 4)  # doctest: +SKIP
    >>> run.violation  # doctest: +SKIP
    ''
    """
    chosen = ClusterSettings(round_s=round_s, seed=seed, transport=transport, **settings)

    async def whole() -> ClusterRun:
        cluster = new_cluster(
            algorithm,
            size,
            processes=processes,
            settings=chosen,
            network=network,
            faults=faults,
            folder=folder,
            resume=resume,
        )
        async with cluster:
            await cluster.play(requests=requests, duration_s=duration_s, outages=outages, stop=stop)
            return await cluster.finish()

    with asyncio.Runner(loop_factory=fastest_loop) as runner:
        run = runner.run(whole())
    run.check()
    return run


def excess_faults(algorithm: Algorithm, size: int, faulty: Sequence[int]) -> str:
    """Return a sentence about more faulty nodes than the algorithm tolerates, or "" when it tolerates them.

    Parameters
    ----------
    algorithm : Algorithm
    size : int
        Nodes.
    faulty : sequence of int
        Ids of the faulty nodes; one that is named twice counts once.
    """
    tolerated = algorithm.max_faults(size)
    count = len(set(faulty))
    if count <= tolerated:
        return ""
    return f"{count} faulty nodes of {size} are more than the {tolerated} that the algorithm tolerates: it may fail."
