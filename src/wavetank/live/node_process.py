"""A process of a cluster: it joins a launcher, runs the endpoints it is assigned, and reports what they do.

The launcher's own children and the hosts that join from elsewhere run the same code.  A child imports whatever module
the launcher names; a joined host runs algorithms of the catalog alone.  A process whose launcher is gone ends.

``python -m wavetank.live.node_process`` is what a launcher starts; it reads the launcher's address and the
token from its environment, where other users of the machine do not see them.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib
import logging
import os
import re
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from wavetank.errors import BadValueError, WavetankError
from wavetank.ledger import catalog
from wavetank.live import control
from wavetank.live.credentials import Certificate, signing_key
from wavetank.live.durable import make_state
from wavetank.live.endpoint import Endpoint, EndpointPlan
from wavetank.live.folder import claim_on_host, manifest_of, write_manifest
from wavetank.live.loops import fastest_loop
from wavetank.live.run import Output
from wavetank.live.values import ValueCodec, codec_of_module, state_of
from wavetank.live.wire import RunIdentity
from wavetank.sim.faults import FaultyNode, attach
from wavetank.sim.node import Algorithm, Node

ADDRESS_VARIABLE = "WAVETANK_LAUNCHER"
TOKEN_VARIABLE = "WAVETANK_TOKEN"
NAME_VARIABLE = "WAVETANK_PROCESS"
# Where a joined host keeps what its nodes save; set for no child of a launcher, which names a folder itself.
FOLDER_VARIABLE = "WAVETANK_JOINED_FOLDER"
# The number of the open file over which a child of a launcher talks to it: no port, nobody else can reach it.
CHANNEL_VARIABLE = "WAVETANK_LAUNCHER_CHANNEL"
HOST_VARIABLE = "WAVETANK_HOST"
RUN_NAME = re.compile("[0-9a-f]{16}")
TALLY_S = 0.25
CONNECT_TIMEOUT_S = 10.0
_WAIT_FOR_ASSIGNMENT_S = 24 * 3600.0
# The exit code of a process whose launcher is gone.
LAUNCHER_LOST = 5


class NodeProcess:
    """What one process runs.

    Parameters
    ----------
    connection : ControlConnection
        To the launcher, who is known to be it.
    token : Token
    joined_folder : Path, optional
        Given on a host that joined: where its nodes keep what they save.  The launcher then names neither folders nor
        modules other than those of systems of the catalog.
    """

    def __init__(
        self, connection: control.ControlConnection, token: control.Token, *, joined_folder: Path | None = None
    ) -> None:
        self._connection = connection
        self._token = token
        self._joined_folder = joined_folder
        self._endpoints: dict[int, Endpoint] = {}
        self._codec = ValueCodec()

    async def run(self) -> bool:
        """Do what the launcher says until it says finish; returns whether it did.

        Raises
        ------
        WavetankError
            If the assignment cannot be carried out; the launcher knows it by then.
        """
        try:
            assign = await self._connection.heard(_WAIT_FOR_ASSIGNMENT_S)
            if isinstance(assign, control.Trouble):
                raise WavetankError(assign.problem, given=assign.given or None, hint=assign.hint or None)
            if assign is None:
                return False
            try:
                if not isinstance(assign, control.Assign):
                    raise WavetankError(
                        "A process received a message before its run was described.",
                        given=type(assign).__name__,
                        allowed=control.Assign.__name__,
                    )
                await self._prepare(assign)
                return await self._obey()
            except WavetankError as error:
                self._connection.say(control.trouble_of(error))
                raise
        finally:
            for endpoint in self._endpoints.values():
                await endpoint.close()
            self._connection.close()

    async def _prepare(self, assign: control.Assign) -> None:
        _check(assign)
        algorithm = self._algorithm(assign)
        faults = self._codec.decode(assign.faults)
        folder = Path(assign.folder) if self._joined_folder is None else self._joined_folder / assign.run
        ours = sorted(node for place in assign.endpoints for node in assign.homes[place])
        if self._joined_folder is not None:
            self._claim(folder, assign, algorithm, ours)
        keys = {node: signing_key(folder / f"node-{node}.key") for node in ours} if assign.sign else {}
        plan = EndpointPlan(
            identity=RunIdentity(run=assign.run, secret=self._token.derived("run", assign.run), size=assign.size),
            homes=tuple(map(tuple, assign.homes)),
            network=self._codec.decode(assign.network),
            signed=assign.sign,
            **assign.options,  # type: ignore[arg-type]
        )
        certificate = None
        if assign.certificate:
            text, key, authority = assign.certificate
            certificate = Certificate(certificate=text, key=key, authority=authority)
        # Members of one fault in one process may collude.
        pools: list[dict[str, Any]] = [{} for _ in faults]
        # Nodes listen where their launcher is reached; the channel of a child has no address, its environment has.
        name = self._connection.transport.get_extra_info("sockname")
        host = str(name[0]) if isinstance(name, tuple) else os.environ.get(HOST_VARIABLE, "127.0.0.1")
        addresses = {}
        for place in assign.endpoints:
            endpoint = Endpoint(
                place,
                plan,
                algorithm,
                make_node=lambda node: attach(algorithm, node, assign.size, faults, pools=pools),
                values=self._codec,
                folder=folder,
                outputs=self._report_outputs,
                failed=lambda node, trace: self._connection.say(control.Failed(node, trace)),
                private_keys={node: keys[node][0] for node in assign.homes[place]} if assign.sign else None,
                certificate=certificate,
                incarnation=assign.incarnation,
            )
            self._endpoints[place] = endpoint
            addresses[place] = await endpoint.listen(host, assign.ports.get(place, 0))
        self._connection.say(control.Listening(addresses, {node: pair[1] for node, pair in keys.items()}))

    def _claim(self, folder: Path, assign: control.Assign, algorithm: Algorithm, ours: list[int]) -> None:
        """Find that a host that joined has what its nodes saved, and write down what a later run needs."""
        names = [f"node-{node}.state" for node in ours] + [f"node-{node}.key" for node in ours if assign.sign]
        hosts = tuple(assign.hosts)
        expected = tuple(sorted(names)) if assign.begun else ()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        claim_on_host(folder, manifest_of(algorithm, assign.run, assign.size, len(hosts), hosts, expected))
        for node in ours:
            make_state(folder, node, self._codec)
            if assign.sign:
                signing_key(folder / f"node-{node}.key")
        write_manifest(folder, manifest_of(algorithm, assign.run, assign.size, len(hosts), hosts), listed=True)

    def _algorithm(self, assign: control.Assign) -> Algorithm:
        if self._joined_folder is not None:
            known = {entry.object.partition(":")[0] for entry in catalog.everything() if entry.interface == "algorithm"}
            if assign.module not in known:
                raise BadValueError(
                    "A host that joins runs protocols of the catalog alone.", given=assign.module, allowed=sorted(known)
                )
        try:
            importlib.import_module(assign.module)
        except ImportError as error:
            raise BadValueError(
                "The module of the algorithm cannot be imported here.", given=f"{assign.module} ({error})"
            ) from error
        self._codec = codec_of_module(assign.module)
        algorithm: Algorithm = self._codec.decode(assign.algorithm)
        self._codec = codec_of_module(assign.module, algorithm.messages)
        return algorithm

    async def _obey(self) -> bool:
        reporting = asyncio.get_running_loop().create_task(self._report())
        try:
            while (words := await self._connection.heard()) is not None:
                if isinstance(words, control.Finish):
                    self._end()
                    return True
                await self._do(words)
            return False
        finally:
            reporting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reporting

    async def _do(self, words: control.Words) -> None:
        if isinstance(words, control.Book):
            for endpoint in self._endpoints.values():
                endpoint.know_keys(words.public_keys)
                endpoint.connect(words.addresses, words.incarnations)
            if not words.settled:
                ready = [endpoint.connected(CONNECT_TIMEOUT_S) for endpoint in self._endpoints.values()]
                await asyncio.gather(*ready)
                self._connection.say(control.Connected(self._missing()))
        elif isinstance(words, control.Begin):
            for endpoint in self._endpoints.values():
                endpoint.begin(words.elapsed_s)
        elif isinstance(words, control.Ask):
            for endpoint in self._endpoints.values():
                if words.node in endpoint.homes[endpoint.number]:
                    endpoint.request(words.node, words.number, self._codec.decode(words.command))
        elif isinstance(words, control.Die):
            os.kill(os.getpid(), signal.SIGKILL)
        elif isinstance(words, control.Freeze):
            # Nothing of this process moves meanwhile, as if it had been stopped from outside.
            time.sleep(words.for_s)

    def _report_outputs(self, outputs: list[Output]) -> None:
        encode = self._codec.encode
        rows = []
        for output in outputs:
            try:
                rows.append((output.kind, output.node, output.at, encode(output.name), encode(output.value)))
            except BadValueError as error:
                self._connection.say(control.Failed(output.node, str(error)))
        self._connection.say(control.Outputs(rows))

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(TALLY_S)
            self._tally()

    def _missing(self) -> dict[str, str]:
        return {
            f"{place} {target}": error
            for place, endpoint in self._endpoints.items()
            for target, error in endpoint.missing().items()
        }

    def _tally(self) -> None:
        counters, hostile = tally(self._endpoints.values())
        self._connection.say(control.Tally(counters, hostile, self._missing()))

    def _end(self) -> None:
        for endpoint in self._endpoints.values():
            endpoint.flush()
        self._tally()
        states = {}
        for endpoint in self._endpoints.values():
            for number, node in endpoint.nodes().items():
                # A state that holds more than plain values stays here; the verdict then rests on the decisions.
                with contextlib.suppress(BadValueError):
                    states[number] = self._codec.encode(state_of(inner(node)))
        self._connection.say(control.Ended(states))


def _check(assign: control.Assign) -> None:
    """Raise BadValueError unless an assignment is one that an honest launcher makes."""
    from wavetank.live.cluster import ClusterSettings

    if RUN_NAME.fullmatch(assign.run) is None:
        # It becomes the name of a folder.
        raise BadValueError("This is not a name of a run.", given=assign.run, allowed="16 hexadecimal digits")
    known = {"round_s", "seed", "transport", "queue_messages", "queue_bytes", "frame_bytes"}
    if assign.options.keys() - known:
        raise BadValueError("An option of a run is unknown.", given=str(sorted(assign.options)), allowed=sorted(known))
    ClusterSettings(**assign.options)  # type: ignore[arg-type]
    nodes = sorted(node for home in assign.homes for node in home)
    if nodes != list(range(assign.size)) or not all(0 <= place < len(assign.homes) for place in assign.endpoints):
        raise BadValueError("Each node of a run has one home.", given=f"{assign.size} nodes, {len(nodes)} of them")


def inner(node: Node) -> Node:
    """Return the algorithm's own node, without the faults around it."""
    return node.inner if isinstance(node, FaultyNode) else node


def tally(endpoints: Any) -> tuple[dict[str, int], dict[str, int]]:
    """Return the counters of several endpoints together, and what was refused by reason."""
    counters: dict[str, int] = {}
    hostile: dict[str, int] = {}
    for endpoint in endpoints:
        for into, found in ((counters, endpoint.counters()), (hostile, endpoint.hostile)):
            for name, count in found.items():
                into[name] = into.get(name, 0) + count
    return counters, hostile


async def join_and_run(
    where: tuple[str, int] | socket.socket, token: control.Token, name: str, *, joined_folder: Path | None = None
) -> bool:
    """Join a launcher, at an address or over a channel inherited from it, and serve it to the end.

    Returns whether it ended in order; raises WavetankError.
    """
    if isinstance(where, socket.socket):
        connection = await control.join_over(where, token, name)
    else:
        connection = await control.join(where, token, name)
    return await NodeProcess(connection, token, joined_folder=joined_folder).run()


def parse_address(text: str, where: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``.

    Parameters
    ----------
    text : str
        Brackets around an IPv6 address are taken off.
    where : str
        The option or variable that the text comes from, for the error.

    Raises
    ------
    BadValueError
        If it is no such pair, or the port is beyond 65,535.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65_535:
        raise BadValueError(
            "This is not an address.", given=text, allowed="HOST:PORT, as in 127.0.0.1:7000", where=where
        )
    return host.strip("[]"), int(port)


def _end_with_parent() -> None:
    # A child that is stopped when its launcher is killed could not notice that it is alone.
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))


def main() -> int:
    """Run as a child of a launcher."""
    _end_with_parent()
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(message)s", level=logging.WARNING)
    try:
        where: tuple[str, int] | socket.socket
        if CHANNEL_VARIABLE in os.environ:
            where = socket.socket(fileno=int(os.environ[CHANNEL_VARIABLE]))
            where.setblocking(False)
        else:
            where = parse_address(os.environ[ADDRESS_VARIABLE], ADDRESS_VARIABLE)
        token = control.Token(os.environ.pop(TOKEN_VARIABLE))
        folder = os.environ.get(FOLDER_VARIABLE)
        joined = Path(folder) if folder else None
        with asyncio.Runner(loop_factory=fastest_loop) as runner:
            ended = runner.run(join_and_run(where, token, os.environ[NAME_VARIABLE], joined_folder=joined))
        return 0 if ended else LAUNCHER_LOST
    except KeyError as error:
        sys.stderr.write(f"{error} is not set; a launcher starts this program\n")
        return 3
    except WavetankError as error:
        sys.stderr.write(f"{error}\n")
        return 3


if __name__ == "__main__":
    sys.exit(main())
