"""A cluster of processes: started here as children, or on other hosts that join.

A child talks to the launcher over a pair of sockets that it inherits, so there is no port that strangers could crowd.
Hosts, if there are any, join at an address with a token, which the user who starts ``wavetank launch cluster --join``
there copies from the launcher.  From then on both are the same: they are assigned endpoints, get each other's
addresses, are watched, and are asked how it went.  A process that is killed, by the launcher or by anybody, is started
again under the next incarnation, with what its nodes had saved.  One that does not come back is reported; it ends the
run only when the algorithm tolerates no such loss.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from wavetank.errors import BadFileError, BadValueError, WavetankError
from wavetank.live import control
from wavetank.live.cluster import Cluster, endpoint_options
from wavetank.live.credentials import Certificate, make_certificates
from wavetank.live.endpoint import cannot_listen
from wavetank.live.node_process import (
    CHANNEL_VARIABLE,
    CONNECT_TIMEOUT_S,
    HOST_VARIABLE,
    NAME_VARIABLE,
    TOKEN_VARIABLE,
    inner,
)
from wavetank.live.processes import ChildProcess, python_module
from wavetank.live.run import Output
from wavetank.live.strangers import Strangers, address_of
from wavetank.live.values import with_state
from wavetank.sim.faults import attach
from wavetank.sim.node import Algorithm, Node

JOIN_TIMEOUT_S = 120.0
_CHILD_TIMEOUT_S = 60.0
_END_TIMEOUT_S = 5.0
_HANDSHAKE_S = 10.0
_MOST_REVIVALS = 10
# How long a run that has ended waits for processes that are just coming back.
_LATE_S = 10.0
# Of requests that a process has not taken yet; what comes on top is as lost as what is said to one that is away.
_UNSENT_BYTES = 4 * 2**20
_ENDED_EARLY = "A process of the cluster ended."

log = logging.getLogger("wavetank.cluster")


class _Process:
    """One process as the launcher sees it, through all its incarnations."""

    def __init__(self, number: int, name: str, *, local: bool) -> None:
        self.number = number
        self.name = name
        self.local = local
        self.child: ChildProcess | None = None
        self.log_path: Path | None = None
        self.connection: control.ControlConnection | None = None
        # "away" before it joins and after it was killed, "up", "stopped", or "done".
        self.status = "away"
        self.incarnation = 0
        self.revivals = 0
        # Whether it begins as soon as it joins again.
        self.expected = False
        # Whether it was sent its assignment: before that it can understand nothing else.
        self.assigned = False
        # Whether it was to come back and has not yet.
        self.returning = False
        # Links that were missing when the run began, and those missing in this incarnation, with their last error.
        self.missing_at_first: dict[str, str] = {}
        self.missing: dict[str, str] = {}
        self.past_counters: Counter[str] = Counter()
        self.past_hostile: Counter[str] = Counter()
        self.counters: dict[str, int] = {}
        self.hostile: dict[str, int] = {}
        self.states: dict[int, bytes] = {}
        self.joined = asyncio.Event()
        self.ended = asyncio.Event()
        self.listening: asyncio.Future[control.Listening] = asyncio.get_running_loop().create_future()
        self.connected: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()
        self.reader: asyncio.Task[None] | None = None
        # Held while it ends or starts: it never has two children.
        self.changing = asyncio.Lock()

    def renew(self) -> None:
        """Forget what the last incarnation said, except for its counters."""
        self.past_counters.update(self.counters)
        self.past_hostile.update(self.hostile)
        self.counters, self.hostile = {}, {}
        self.joined.clear()
        self.assigned = False
        loop = asyncio.get_running_loop()
        self.listening, self.connected = loop.create_future(), loop.create_future()
        self.status = "away"

    def say(self, words: control.Words) -> None:
        """Send it words, if it is there and knows what it runs: the first word it hears is its assignment."""
        if self.connection is not None and (self.assigned or isinstance(words, control.Assign)):
            self.assigned = True
            self.connection.say(words)

    def give_way(self, error: WavetankError) -> None:
        """Have everybody who waits for its answers go on with an error."""
        for future in (self.listening, self.connected):
            if not future.done():
                future.set_exception(error)
                # A task that waits gets the error; there may be none.
                future.exception()

    def last_words(self) -> str:
        """Return the end of what it wrote."""
        if self.log_path is None:
            return ""
        with contextlib.suppress(OSError):
            return self.log_path.read_text(errors="replace")[-2000:].strip()
        return ""


async def _buried(child: ChildProcess | None, patience_s: float = 0.0) -> int | None:
    """Wait until a child has ended, off the event loop; kill it after a time.  Return its code."""
    if child is None:
        return None
    deadline = time.monotonic() + patience_s
    while child.running and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
    await asyncio.to_thread(child.stop, 0)
    return child.returncode


class _Arriving(control.ControlConnection):
    """A connection to the launcher that has yet to prove the token."""

    def __init__(self, arrived: Callable[[control.ControlConnection], None]) -> None:
        super().__init__()
        self._arrived = arrived

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; called by the event loop."""
        super().connection_made(transport)
        self._arrived(self)


class ProcessCluster(Cluster):
    """Nodes in processes of their own; an asynchronous context.

    Parameters
    ----------
    algorithm : Algorithm
        Its class is defined in a module that the processes can import.
    size : int
    processes : int
        Child processes, when there are no ``hosts``.
    hosts : sequence of str
        Names under which hosts join; one process each.
    control_address : (str, int)
        Where the launcher listens.
    join_timeout_s : float
        How long to wait for the hosts.
    announce : callable
        Given address and token once hosts may join.
    **options
        Those of :class:`~wavetank.live.cluster.Cluster`.

    Raises
    ------
    BadValueError
        If the algorithm cannot be imported elsewhere, or two hosts have one name.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        size: int,
        *,
        processes: int = 1,
        hosts: Sequence[str] = (),
        control_address: tuple[str, int] = ("127.0.0.1", 0),
        join_timeout_s: float = JOIN_TIMEOUT_S,
        announce: Callable[[str, control.Token], None] = lambda address, token: None,
        **options: Any,
    ) -> None:
        super().__init__(algorithm, size, processes=len(hosts) or processes, **options)
        self._hosts = tuple(hosts)
        if type(algorithm).__module__ == "__main__":
            raise BadValueError(
                "Other processes cannot import an algorithm that is defined in the program that was started.",
                given=type(algorithm).__qualname__,
                hint="put it into a module of its own",
            )
        if len(set(hosts)) != len(hosts):
            raise BadValueError("Every host joins under a name of its own.", given=", ".join(hosts), where="--hosts")
        self._control_address = control_address
        self._join_timeout_s = join_timeout_s
        self._announce = announce
        self._server: asyncio.Server | None = None
        self._token = control.Token.new()
        self._certificates: list[Certificate] = []
        self._processes: list[_Process] = []
        self._addresses: dict[int, tuple[str, int]] = {}
        self._public_keys: dict[int, bytes] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._strangers: Strangers[control.ControlConnection] = Strangers()
        self._lost_nodes: set[int] = set()
        self._begun = False
        self._trouble: WavetankError | None = None

    @property
    def processes(self) -> list[int]:
        """Ids of the child processes that run, by their number."""
        return [each.child.pid for each in self._processes if each.child is not None]

    # -- start ---------------------------------------------------------------------------------------------------------

    async def _launch(self) -> None:
        loop = asyncio.get_running_loop()
        count = len(self.places)
        tls = None
        if self.settings.tls:
            # A certificate that was given serves all; of those made for this run the last is the launcher's own.
            self._certificates = (
                [self._certificate] * (count + 1) if self._certificate is not None else make_certificates(count + 1)
            )
            tls = self._certificates[-1].control_context()
            self._token = control.Token.new(self._certificates[-1].fingerprint)
        host, port = self._control_address
        if self._hosts:
            try:
                self._server = await loop.create_server(
                    lambda: _Arriving(self._arrived),
                    host,
                    port,
                    ssl=tls,
                    ssl_handshake_timeout=None if tls is None else _HANDSHAKE_S,
                )
            except OSError as error:
                raise cannot_listen(error, host, port) from None
            host, port = self._server.sockets[0].getsockname()[:2]
            self._control_address = (host, port)
        names = self._hosts or tuple(f"process {number}" for number in range(count))
        self._processes = [_Process(number, name, local=not self._hosts) for number, name in enumerate(names)]
        # A launcher that listens on every address is found under the name of this machine.
        if self._hosts:
            name = socket.gethostname() if host in ("0.0.0.0", "::") else host
            self._announce(f"{name}:{port}", self._token)
        for process in self._processes:
            if process.local:
                await self._spawn(process)
        await self._all_joined()
        for process in self._processes:
            self._assign(process)
        for process in self._processes:
            self._know(process, await self._answer(process.listening, process))
        book = control.Book(self._addresses, self._incarnations(), self._public_keys, False)
        for process in self._processes:
            process.say(book)
        for process in self._processes:
            process.missing = process.missing_at_first = await self._answer(process.connected, process)
        for text in self._missing_links():
            log.warning("%s", text)
        # Hosts keep the files of their nodes themselves.
        self._note_begun(states_here=not self._hosts)
        self._epoch_s = time.monotonic()
        self._begun = True
        for process in self._processes:
            process.status = "up"
            process.say(control.Begin(self.elapsed_s))

    async def _spawn(self, process: _Process) -> None:
        await _buried(process.child)
        if self._ended:
            raise WavetankError(f"{process.name} is not started: the run has ended.")
        process.log_path = self.folder / f"process-{process.number}.log"
        ours, theirs = socket.socketpair()
        environment = {
            CHANNEL_VARIABLE: str(theirs.fileno()),
            HOST_VARIABLE: self.settings.host,
            TOKEN_VARIABLE: self._token.text,
            NAME_VARIABLE: process.name,
            # What this program can import, its processes can.
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        try:
            with theirs:
                process.child = ChildProcess(
                    python_module("wavetank.live.node_process"),
                    name=process.name,
                    environment=environment,
                    pass_fds=(theirs.fileno(),),
                    log=process.log_path,
                )
        except WavetankError:
            ours.close()
            raise
        ours.setblocking(False)
        _, connection = await asyncio.get_running_loop().create_connection(control.ControlConnection, sock=ours)
        self._start_task(self._admit_child(process, process.child, connection))

    async def _all_joined(self) -> None:
        timeout_s = self._join_timeout_s if self._hosts else _CHILD_TIMEOUT_S
        deadline = time.monotonic() + timeout_s
        for process in self._processes:
            if not await self._joined(process, deadline):
                missing = [each.name for each in self._processes if not each.joined.is_set()]
                raise WavetankError(
                    f"{', '.join(missing)} did not join within {timeout_s:g} s.",
                    hint="start `wavetank launch cluster --join` there; is this address reachable from there?"
                    if self._hosts
                    else None,
                    where="{}:{}".format(*self._control_address),
                )

    async def _joined(self, process: _Process, deadline: float) -> bool:
        """Return whether a process has joined in time; raises WavetankError when it ends instead."""
        while not process.joined.is_set():
            if process.child is not None and not process.child.running:
                raise WavetankError(
                    f"{process.name} ended with code {process.child.returncode}.", given=process.last_words() or None
                )
            if time.monotonic() > deadline:
                return False
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.joined.wait(), 0.05)
        return True

    def _arrived(self, connection: control.ControlConnection) -> None:
        out = self._strangers.enter(connection, address_of(connection.transport.get_extra_info("peername")))
        if out is not None:
            out.close()
        self._start_task(self._admit(connection))

    async def _admit(self, connection: control.ControlConnection) -> None:
        try:
            name = await control.admit(connection, self._token)
        finally:
            self._strangers.leave(connection)
        if name is None:
            return
        process = next((each for each in self._processes if each.name == name and each.status == "away"), None)
        if process is None or process.joined.is_set():
            allowed = ", ".join(each.name for each in self._processes)
            connection.say(control.Trouble("There is no free place under this name.", name, f"names: {allowed}"))
            connection.close()
            return
        self._welcome(process, connection)

    async def _admit_child(self, process: _Process, child: ChildProcess, connection: control.ControlConnection) -> None:
        # A child takes its time to start; whether it is alive is watched elsewhere.
        name = await control.admit(connection, self._token, _CHILD_TIMEOUT_S)
        if name == process.name and process.child is child:
            self._welcome(process, connection)
        else:
            # Another one has been started in its place meanwhile.
            connection.close()

    def _welcome(self, process: _Process, connection: control.ControlConnection) -> None:
        process.connection, process.assigned = connection, False
        process.joined.set()
        process.reader = self._start_task(self._listen(process, connection))
        if process.expected:
            self._start_task(self._revive(process))

    def _start_task(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            error = task.exception()
            self._fail(error if isinstance(error, WavetankError) else WavetankError(f"{_ENDED_EARLY} {error!r}"))

    def _fail(self, error: WavetankError) -> None:
        if self._trouble is None:
            self._trouble = error
        for process in self._processes:
            process.give_way(self._trouble)
        self._changed.set()

    async def _answer(self, future: asyncio.Future[Any], process: _Process) -> Any:
        try:
            return await asyncio.wait_for(asyncio.shield(future), CONNECT_TIMEOUT_S + _CHILD_TIMEOUT_S)
        except TimeoutError:
            raise WavetankError(f"{process.name} does not answer.", given=process.last_words() or None) from None

    def _assign(self, process: _Process) -> None:
        places = self.places[process.number]
        base = self.settings.base_port
        certificate: list[str] = []
        if self._certificates:
            own = self._certificates[process.number]
            certificate = [own.certificate, own.key, own.authority]
        process.say(
            control.Assign(
                module=type(self.algorithm).__module__,
                algorithm=self.codec.encode(self.algorithm),
                network=self.codec.encode(self.network),
                faults=self.codec.encode(self.faults),
                run=self.run_name,
                size=self.run.size,
                homes=[list(nodes) for nodes in self.homes],
                endpoints=list(places),
                incarnation=process.incarnation,
                options=endpoint_options(self.settings),
                folder=str(self.folder) if process.local else "",
                ports={place: base + place for place in places} if base else {},
                sign=self.settings.sign,
                certificate=certificate,
                begun=self.run.runs > 1 or process.incarnation > 0,
                hosts=list(self._hosts),
            )
        )

    def _know(self, process: _Process, found: control.Listening) -> None:
        places = self.places[process.number]
        nodes = {node for place in places for node in self.homes[place]}
        # Who joined may speak for its own nodes alone, or one host could sign for all others.
        if set(found.addresses) != set(places) or not found.public_keys.keys() <= nodes:
            raise WavetankError(f"{process.name} sent addresses or keys for nodes of other processes.")
        self._addresses |= found.addresses
        self._public_keys |= found.public_keys

    def _incarnations(self) -> dict[int, int]:
        return {place: self._processes[number].incarnation for place, number in self.process_of.items()}

    # -- what processes say --------------------------------------------------------------------------------------------

    async def _listen(self, process: _Process, connection: control.ControlConnection) -> None:
        decode = self.codec.decode
        nodes = {node for place in self.places[process.number] for node in self.homes[place]}
        while (words := await connection.heard()) is not None:
            if isinstance(words, control.Outputs):
                rows = [row for row in words.outputs if row[1] in nodes]
                self.take([Output(kind, node, at, decode(name), decode(value)) for kind, node, at, name, value in rows])
            elif isinstance(words, control.Tally):
                process.counters, process.hostile = words.counters, words.hostile
                process.missing = words.missing
            elif isinstance(words, control.Failed):
                if words.node in nodes:
                    self.failed(words.node, words.trace)
            elif isinstance(words, control.Listening) and not process.listening.done():
                process.listening.set_result(words)
            elif isinstance(words, control.Connected) and not process.connected.done():
                process.connected.set_result(words.missing)
            elif isinstance(words, control.Ended):
                process.states = words.states
                process.status = "done"
                process.ended.set()
            elif isinstance(words, control.Trouble):
                self._give_up(
                    process,
                    BadValueError(
                        words.problem, given=words.given or None, where=process.name, hint=words.hint or None
                    ),
                )
                return
        if process.connection is connection:
            process.connection = None
            self._lost(process)

    def _lost(self, process: _Process) -> None:
        """Take notice that a process is gone without an order."""
        if process.status in ("done", "given up") or self._ended:
            return
        if process.status == "away":
            # It was just coming back: tasks that wait for it need not wait any longer.
            process.give_way(
                WavetankError(f"{process.name} ended while it started.", given=process.last_words() or None)
            )
            return
        process.renew()
        process.returning = True
        if not process.local:
            log.warning("%s is gone; waiting for it to join again", process.name)
            process.expected = True
            return
        self._start_task(self._start_lost(process))

    async def _start_lost(self, process: _Process) -> None:
        """Start a child again that somebody killed; one that ended by itself is given up."""
        async with process.changing:
            if process.status != "away":
                return
            # One that says nothing more but does not end is killed, and counts as such.
            code = await _buried(process.child, _END_TIMEOUT_S)
            if code is not None and code >= 0:
                self._give_up(
                    process,
                    WavetankError(f"{_ENDED_EARLY} {process.name}, code {code}.", given=process.last_words() or None),
                )
                return
        if process.revivals >= _MOST_REVIVALS:
            self._give_up(process, WavetankError(f"{_ENDED_EARLY} {process.name}, {process.revivals + 1} times."))
            return
        process.revivals += 1
        log.warning("%s was killed; starting it again", process.name)
        await self._revive(process)

    def _give_up(self, process: _Process, error: WavetankError) -> None:
        """Go on without a process, where the algorithm tolerates it."""
        if process.status == "given up":
            return
        process.give_way(error)
        process.status, process.returning = "given up", False
        if not self._begun or process.incarnation == 0:
            # What fails at its first start was never there to be tolerated.
            self._fail(error)
            return
        nodes = self._nodes_of(process)
        given = f" ({error.given})" if error.given else ""
        text = f"{self._named(process)} did not go on: {error.problem}{given}"
        log.warning("%s", text)
        self.run.troubles.append(text)
        self._lost_nodes |= nodes
        if len(self._lost_nodes | self.run.failures.keys()) > self.algorithm.max_faults(self.run.size):
            self._fail(error)

    def _nodes_of(self, process: _Process) -> set[int]:
        return {node for place in self.places[process.number] for node in self.homes[place]}

    def _named(self, process: _Process) -> str:
        nodes = sorted(self._nodes_of(process))
        which = f"node {nodes[0]}" if len(nodes) == 1 else f"nodes {', '.join(map(str, nodes))}"
        return f"{which} ({process.name})"

    async def _revive(self, process: _Process) -> None:
        """Start a process again, unless somebody else just did."""
        async with process.changing:
            if process.status == "away":
                await self._revive_alone(process)

    async def _revive_alone(self, process: _Process) -> None:
        """Start a process; one that is lost while it starts is started once more, and at last given up."""
        process.expected, process.returning = False, True
        while True:
            process.incarnation += 1
            try:
                await self._begin_again(process)
                return
            except WavetankError as error:
                # What it said itself, a damaged file for one, will not be different next time.
                if self._trouble is not None or self._ended or process.status == "given up":
                    return
                process.connection = None
                await _buried(process.child)
                if not process.local or process.revivals >= _MOST_REVIVALS:
                    self._give_up(process, error)
                    return
                process.revivals += 1
                process.renew()

    async def _begin_again(self, process: _Process) -> None:
        if process.local:
            await self._spawn(process)
            if not await self._joined(process, time.monotonic() + _CHILD_TIMEOUT_S):
                raise WavetankError(f"{process.name} did not come back.", given=process.last_words() or None)
        self._assign(process)
        self._know(process, await self._answer(process.listening, process))
        # Others may be down as well: it does not wait for them, its queues do.
        for each in self._processes:
            each.say(control.Book(self._addresses, self._incarnations(), self._public_keys, True))
        process.say(control.Begin(self.elapsed_s))
        process.status, process.returning = "up", False
        self.run.restarts += 1
        self._changed.set()

    # -- what is done to processes -------------------------------------------------------------------------------------

    def _process(self, node: int) -> _Process:
        return self._processes[self.process_of[self.home_of[node]]]

    def _pass_on(self, node: int, number: int, command: Any) -> None:
        process = self._process(node)
        # One that is away hears nothing; its clients ask again.
        if process.status != "up" or process.connection is None:
            return
        if process.connection.unsent_bytes > _UNSENT_BYTES:
            # One that is stopped hears nothing either.
            self.run.unheard += 1
            return
        process.say(control.Ask(node, number, self.codec.encode(command)))

    async def kill(self, node: int) -> None:
        """Kill the process of a node with SIGKILL."""
        process = self._process(node)
        if process.status != "up":
            return
        if not process.local:
            process.say(control.Die())
        process.renew()
        # From now on what comes over it, its end too, is said by nobody who counts.
        process.connection = None
        async with process.changing:
            await _buried(process.child)
            process.child = None

    async def restart(self, node: int) -> None:
        """Start the process of a node again; a host begins now or when it has joined again."""
        process = self._process(node)
        if process.status != "away":
            return
        if process.local or process.joined.is_set():
            await self._revive(process)
        else:
            process.expected = process.returning = True

    async def stop(self, node: int, for_s: float | None = None) -> None:
        """Stop the process of a node with SIGSTOP; a process of another host stands still for ``for_s`` seconds."""
        process = self._process(node)
        if process.child is not None:
            process.child.pause()
        elif process.local:
            return
        elif for_s is None:
            raise BadValueError("A host that joined is stopped for a time.", given=None, allowed="a number of seconds")
        else:
            process.say(control.Freeze(for_s))

    async def resume(self, node: int) -> None:
        """Let a stopped process go on with SIGCONT."""
        child = self._process(node).child
        if child is not None:
            child.resume()

    def _missing_links(self) -> list[str]:
        """Name the links that never came up, each pair once with the errors of both directions."""
        pairs: dict[tuple[int, int], list[str]] = {}
        for process in self._processes:
            for link, error in process.missing.items():
                place, _, target = link.partition(" ")
                if link in process.missing_at_first and place.isdecimal() and target.isdecimal():
                    pair = (min(int(place), int(target)), max(int(place), int(target)))
                    pairs.setdefault(pair, []).append(f"{place} to {target}: {error[:200]}")
        return [
            f"endpoints {one} and {other} were never connected ({'; '.join(errors)})"
            for (one, other), errors in sorted(pairs.items())
        ]

    # -- end -----------------------------------------------------------------------------------------------------------

    async def until(self, true: Callable[[Any], bool], timeout_s: float) -> bool:
        """Wait until something holds of the run; raises WavetankError when a process cannot go on."""
        found = await super().until(lambda run: self._trouble is not None or true(run), timeout_s)
        if self._trouble is not None:
            raise self._trouble
        return found

    async def _settle(self) -> None:
        """Wait a little for processes that are just coming back."""
        deadline = time.monotonic() + _LATE_S
        while time.monotonic() < deadline and self._trouble is None:
            if not any(process.returning and (process.local or process.joined.is_set()) for process in self._processes):
                return
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), 0.05)

    def _tallied(self) -> tuple[dict[str, int], dict[str, int]]:
        counters: Counter[str] = Counter()
        hostile: Counter[str] = Counter()
        for process in self._processes:
            for part in (process.past_counters, process.counters):
                counters.update(part)
            for part in (process.past_hostile, process.hostile):
                hostile.update(part)
        return dict(counters), dict(hostile)

    async def _collect(self) -> dict[int, Node]:
        for process in self._processes:
            if process.returning:
                self.run.troubles.append(f"{self._named(process)} was to come back and did not")
        self.run.troubles += self._missing_links()
        asked = [process for process in self._processes if process.status == "up"]
        for process in asked:
            if process.child is not None:
                process.child.resume()
            process.say(control.Finish())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*(process.ended.wait() for process in asked)), _END_TIMEOUT_S)
        found = {}
        for process in asked:
            for number, data in process.states.items():
                if self.process_of.get(self.home_of.get(number, -1)) != process.number:
                    continue
                node = attach(self.algorithm, number, self.run.size, self.faults)
                with contextlib.suppress(BadFileError):
                    with_state(inner(node), self.codec.decode(data))
                    found[number] = node
        return found

    async def _close(self) -> None:
        self._ended = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            self._server.close()
        for process in self._processes:
            if process.connection is not None:
                process.connection.close()
        deadline = time.monotonic() + _END_TIMEOUT_S
        for process in self._processes:
            child = process.child
            if child is None:
                continue
            while child.running and process.status == "done" and time.monotonic() < deadline:
                await asyncio.sleep(0.005)
            child.stop(0)
