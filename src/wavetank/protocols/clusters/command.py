"""``wavetank launch cluster``: the nodes of a protocol as real processes that talk over sockets."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import math
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from wavetank.errors import BadFileError, BadValueError, UnknownNameError, WavetankError, unknown_name
from wavetank.exits import DOES_NOT_HOLD, INTERRUPTED
from wavetank.ledger import catalog
from wavetank.ledger.catalog import SystemEntry
from wavetank.live.processes import python_module
from wavetank.settings import assigned
from wavetank.sim.rng import Draws, stream_key
from wavetank.terminal import is_terminal, say, say_heading, say_json, say_wrapped, style
from wavetank.units import parse_quantity, show

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from wavetank.live.cluster import Cluster, ClusterSettings, Outage
    from wavetank.live.credentials import Certificate
    from wavetank.live.run import ClusterRun
    from wavetank.sim.faults import Fault
    from wavetank.sim.node import Algorithm
    from wavetank.sim.simulation import Request

_OUTAGE = re.compile(r"(\d+)@([^:]+)(?::(.+))?")
_CLIENTS = 4
_KEYS = 4
# A client that was not answered for so long asks the next node.
_RETRY_ROUNDS = 20.0
# Requests come in the first part of a run, so that the last ones can still be answered.
_ASKING = 0.8
# How long a host waits before it starts a process again that was killed.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S, _STEADY_S = 0.05, 30.0, 2.0
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@click.command()
@click.option("--protocol", metavar="NAME", help="A system of shape node (wavetank list protocols).")
@click.option("--nodes", type=click.IntRange(1, 4096), default=4, show_default=True, help="Number of nodes.")
@click.option("--set", "pairs", metavar="KEY=VALUE", multiple=True, help="A parameter of the protocol; repeatable.")
@click.option("--duration", metavar="SECONDS", default="10", show_default=True, help="Duration of the run.")
@click.option("--round-s", metavar="SECONDS", default="0.05", show_default=True, help="Duration of a round.")
@click.option("--requests", type=click.IntRange(0), default=0, help="Number of client requests.")
@click.option(
    "--kill",
    "kills",
    metavar="N@T[:FOR]",
    multiple=True,
    help="Kill node N with SIGKILL at T s, restart it after FOR s [1].",
)
@click.option(
    "--stop", "stops", metavar="N@T[:FOR]", multiple=True, help="Stop node N with SIGSTOP at T s, for FOR s [1]."
)
@click.option(
    "--fault",
    "faults",
    metavar="KIND@N,N",
    multiple=True,
    help="Inject a fault into these nodes, as in equivocation@3.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the nodes' random streams.")
@click.option(
    "--transport", type=click.Choice(["tcp", "udp"]), default="tcp", show_default=True, help="Transport of the links."
)
@click.option("--sign", is_flag=True, help="Sign frames with Ed25519, one key per node.")
@click.option("--tls", is_flag=True, help="Encrypt links; certificates are made for this run.")
@click.option("--tls-files", metavar="CERT,KEY,CA", help="Encrypt links with these PEM files.")
@click.option("--processes", type=click.IntRange(1), help="Number of processes for the nodes; by default one per node.")
@click.option("--base-port", type=click.IntRange(0, 65535), default=0, help="First port of the nodes; any by default.")
@click.option("--listen", metavar="HOST:PORT", default="127.0.0.1:0", help="Address on which the launcher listens.")
@click.option("--hosts", metavar="A,B,...", help="Wait for these hosts to join, and run the nodes there.")
@click.option("--join-timeout", metavar="SECONDS", default="120", show_default=True, help="Time to wait for the hosts.")
@click.option("--join", metavar="HOST:PORT", help="Join a launcher as one of its hosts, until the run ends.")
@click.option(
    "--token-file", type=click.Path(path_type=Path), help="With --join: file with the token; otherwise WAVETANK_TOKEN."
)
@click.option("--name", help="With --join: name of this host in --hosts; its host name by default.")
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for the nodes' saved state and logs."
)
@click.option("--resume", is_flag=True, help="With --out: continue where the previous run ended.")
@click.option(
    "--history", type=click.Path(dir_okay=False, path_type=Path), help="Write the requests as a history to this file."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(**given: Any) -> int:
    """Run a protocol as real processes over sockets: the same nodes that are simulated and explored.

    Kills and stops processes on the way, starts them again, and reports at the end what was decided, whether the
    protocol's invariants hold, and how long requests took.  Everything stays on this machine unless --listen and
    --hosts say otherwise.  Ctrl-C ends the run in order and prints the results so far.
    """
    if given["join"] is not None:
        return _join(given["join"], given["token_file"], given["name"], given["out"])
    if given["protocol"] is None:
        raise BadValueError("Which protocol?", allowed=_protocols(), where="--protocol", hint="wavetank list protocols")
    return _launch(given)


def _is_algorithm(entry: SystemEntry) -> bool:
    return entry.interface == "algorithm"


def _protocols() -> list[str]:
    return sorted(entry.name for entry in catalog.everything() if _is_algorithm(entry))


def _algorithm(name: str, pairs: tuple[str, ...]) -> Algorithm:
    systems = catalog.everything().systems
    if name not in systems or not _is_algorithm(systems[name]):
        if name in systems:
            raise UnknownNameError(
                f"The system {name!r} has no nodes that could be launched.", allowed=_protocols(), where="--protocol"
            )
        raise unknown_name("protocol", name, _protocols(), where="--protocol", hint="wavetank list protocols")
    algorithm: Algorithm = catalog.system(name).build(**assigned(pairs))
    return algorithm


def _seconds(text: str, where: str) -> float:
    value = parse_quantity(text, "s", where=where)
    if not value >= 0 or math.isinf(value):
        raise BadValueError("This is not a duration.", given=text, allowed="0 s or more", where=where)
    return value


def _outages(kills: tuple[str, ...], stops: tuple[str, ...], nodes: int, duration_s: float) -> list[Outage]:
    from wavetank.live.cluster import Outage

    found = []
    for option, kind, texts in (("--kill", "kill", kills), ("--stop", "stop", stops)):
        for text in texts:
            match = _OUTAGE.fullmatch(text.strip())
            if match is None or int(match[1]) >= nodes:
                raise BadValueError(
                    "This is not an outage.",
                    given=text,
                    allowed=f"NODE@SECONDS or NODE@SECONDS:FOR, nodes 0 to {nodes - 1}; FOR may be `never`",
                    where=option,
                )
            away = match[3] or "1"
            for_s = None if away == "never" else _seconds(away, option)
            outage = Outage(node=int(match[1]), at_s=_seconds(match[2], option), kind=kind, for_s=for_s)
            if outage.at_s + (outage.for_s or 0.0) >= duration_s:
                raise BadValueError(
                    "The outage is not over when the run ends.",
                    given=text if match[3] else f"{text}:1",
                    allowed=f"before {duration_s:g} s",
                    where=option,
                    hint="make --duration longer; a node that stays away is `NODE@SECONDS:never`",
                )
            found.append(outage)
    return found


def _faults(texts: tuple[str, ...], nodes: int) -> list[Fault]:
    from wavetank.sim.faults import FAULTS

    found = []
    for text in texts:
        kind, _, members = text.partition("@")
        if kind not in FAULTS:
            raise unknown_name("fault", kind, FAULTS, where="--fault")
        numbers = [part.strip() for part in members.split(",")]
        if not all(part.isdecimal() and int(part) < nodes for part in numbers):
            raise BadValueError(
                "A fault must name existing nodes.",
                given=text,
                allowed=f"{kind}@N or {kind}@N,N with nodes 0 to {nodes - 1}",
                where="--fault",
            )
        try:
            found.append(FAULTS[kind](members=tuple(map(int, numbers))))
        except TypeError as error:
            raise BadValueError("This fault needs more than its members.", given=str(error), where="--fault") from None
    return found


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _requests(
    algorithm: Algorithm, count: int, nodes: int, rounds: float, seed: int, first: int = 0
) -> Iterator[Request]:
    """Yield requests spread evenly; the algorithm says what is asked of it, or a store's reads and writes are.

    Numbers count from ``first``: no value is written twice, also when an earlier run is gone on with.
    """
    from wavetank.sim.simulation import Request

    example = getattr(algorithm, "example_command", None)
    draws = Draws(stream_key(seed, "requests", first)) if first else Draws(stream_key(seed, "requests"))
    for place in range(count):
        number = first + place
        key = f"key-{draws.below(_KEYS)}"
        usual = ("write", key, number) if draws.chance(0.5) else ("read", key)
        yield Request(
            at=1.0 + place * rounds * _ASKING / count,
            node=number % nodes,
            command=usual if example is None else example(number),
            client=f"client-{number % _CLIENTS}",
        )


def _takes_requests(algorithm: Algorithm, nodes: int) -> bool:
    from wavetank.sim.node import Node

    return type(algorithm.node(0, nodes)).request is not Node.request


def _certificate(files: str | None) -> Certificate | None:
    if files is None:
        return None
    from wavetank.live.credentials import Certificate

    parts = [Path(part.strip()) for part in files.split(",")]
    if len(parts) != 3:
        raise BadValueError("TLS takes three files.", given=files, allowed="CERT,KEY,CA", where="--tls-files")
    return Certificate.read(*parts)


def _settings(given: dict[str, Any]) -> ClusterSettings:
    from wavetank.live.cluster import ClusterSettings

    return ClusterSettings(
        round_s=_seconds(given["round_s"], "--round-s"),
        seed=given["seed"],
        transport=given["transport"],
        sign=given["sign"],
        tls=given["tls"] or given["tls_files"] is not None,
        base_port=given["base_port"],
        retry_rounds=_RETRY_ROUNDS,
        sticky=True,
    )


def _launch(given: dict[str, Any]) -> int:
    from wavetank.check.consistency.files import write_history
    from wavetank.live.cluster import excess_faults
    from wavetank.live.launcher import ProcessCluster
    from wavetank.live.loops import fastest_loop
    from wavetank.live.node_process import parse_address
    from wavetank.sim.history import History

    nodes: int = given["nodes"]
    algorithm = _algorithm(given["protocol"], given["pairs"])
    settings = _settings(given)
    duration_s = _seconds(given["duration"], "--duration")
    outages = _outages(given["kills"], given["stops"], nodes, duration_s)
    faults = _faults(given["faults"], nodes)
    for path in (given["history"], given["out"]):
        if path is not None and not path.parent.is_dir():
            raise BadValueError("There is no such folder.", given=str(path.parent), where=str(path))
    history = given["history"]
    if history is not None and not history.name.lower().removesuffix(".gz").endswith(".jsonl"):
        # By its name `wavetank check` knows what it is.
        raise BadValueError(
            "A history is not written in this format.",
            given=history.name,
            allowed=".jsonl, .jsonl.gz",
            where="--history",
        )
    hosts = [host.strip() for host in (given["hosts"] or "").split(",") if host.strip()]
    logging.basicConfig(stream=sys.stderr, format="%(message)s", level=logging.WARNING)
    faulty = [outage.node for outage in outages] + [member for fault in faults for member in fault.members]
    warning = excess_faults(algorithm, nodes, faulty)
    if warning:
        say_wrapped(f"Note: {warning}", rest="  ", err=True)
    count = given["requests"]
    if count and not _takes_requests(algorithm, nodes):
        say_wrapped(f"Note: {given['protocol']} takes no requests; none are made.", rest="  ", err=True)
        count = 0
    listen = parse_address(given["listen"], "--listen")
    if hosts and not settings.tls and not _is_loopback(listen[0]):
        text = "without --tls, what the launcher and its hosts say to each other can be read on the network."
        say_wrapped(f"Note: {text}", rest="  ", err=True)
    if hosts and given["tls_files"] is not None:
        say_wrapped("Note: every host that joins is sent the key of --tls-files.", rest="  ", err=True)

    def announce(address: str, token: Any) -> None:
        for host in hosts:
            # In the environment other users of the host do not see it.
            words = f"WAVETANK_TOKEN={token.text} wavetank launch cluster --join {address} --name {host}"
            say(f"on {host}: {words}", err=given["as_json"])

    cluster = ProcessCluster(
        algorithm,
        nodes,
        processes=given["processes"] or nodes,
        hosts=hosts,
        control_address=listen,
        join_timeout_s=_seconds(given["join_timeout"], "--join-timeout"),
        announce=announce,
        settings=settings,
        faults=faults,
        folder=given["out"],
        resume=given["resume"],
        certificate=_certificate(given["tls_files"]),
    )
    # Before requests are made: their numbers go on where those of the folder end.
    cluster.claim()
    requests = _requests(
        algorithm, count, nodes, duration_s / settings.round_s, settings.seed, cluster.run.first_number
    )
    with asyncio.Runner(loop_factory=fastest_loop) as runner:
        run, interrupted, trouble = runner.run(_played(cluster, requests, duration_s, outages, quiet=given["as_json"]))
    if given["history"] is not None:
        write_history(given["history"], History(operations=()), run.operations())
    if given["as_json"]:
        say_json(_as_json(run, given["protocol"], warning))
    else:
        _say(run, given["protocol"], algorithm)
        for label, path in (("history", given["history"]), ("folder", given["out"])):
            if path is not None:
                say(f"{label:<16} {path}")
    if trouble is not None:
        # After what there is: a process that was lost takes nothing of it away.
        raise trouble
    if interrupted:
        return INTERRUPTED
    return DOES_NOT_HOLD if run.violation or run.failures or run.troubles else 0


async def _played(
    cluster: Cluster, requests: Iterable[Request], duration_s: float, outages: list[Outage], *, quiet: bool
) -> tuple[ClusterRun, bool, WavetankError | None]:
    """Run a cluster; return what came out, whether it was interrupted, and what ended it early."""
    interrupted = asyncio.Event()
    trouble: WavetankError | None = None
    loop = asyncio.get_running_loop()
    for number in _ENDING:
        loop.add_signal_handler(number, interrupted.set)
    showing = None
    begin = asyncio.ensure_future(cluster.__aenter__())
    try:
        # Waiting for hosts may take long: Ctrl-C ends that, too.
        asked = asyncio.ensure_future(interrupted.wait())
        await asyncio.wait((begin, asked), return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        if not begin.done():
            begin.cancel()
            await asyncio.gather(begin, return_exceptions=True)
            raise KeyboardInterrupt
        await begin
        if is_terminal(sys.stderr) and not quiet:
            showing = asyncio.ensure_future(_show(cluster))
        try:
            await cluster.play(
                requests=requests, duration_s=duration_s, outages=outages, stop=lambda run: interrupted.is_set()
            )
        except WavetankError as error:
            trouble = error
        run = await cluster.finish()
    finally:
        if showing is not None:
            showing.cancel()
        for number in _ENDING:
            loop.remove_signal_handler(number)
        if begin.done() and not begin.cancelled() and begin.exception() is None:
            await cluster.__aexit__(None, None, None)
    return run, interrupted.is_set(), trouble


async def _show(cluster: Cluster) -> None:
    """Write one line a second."""
    before, then_s = 0, time.monotonic()
    while True:
        await asyncio.sleep(1.0)
        cluster.count()
        run, now_s = cluster.run, time.monotonic()
        per_s = (run.delivered - before) / (now_s - then_s)
        before, then_s = run.delivered, now_s
        parts = [
            f"{run.duration_s:4.0f} s",
            f"{per_s:,.0f} messages/s",
            f"{len(run.decisions):,} decisions",
            f"{len(run.replies):,} of {len(run.invoked_s):,} answered",
        ]
        parts += [f"{run.restarts} restarts"] * bool(run.restarts)
        parts += [f"{sum(run.hostile.values())} hostile"] * bool(run.hostile)
        say("  ".join(parts), err=True)


def _counted(count: int, one: str, several: str = "") -> str:
    return f"{count:,} {one if count == 1 else several or one + 's'}"


def _say(run: ClusterRun, name: str, algorithm: Algorithm) -> None:
    from wavetank.live.run import exception_of

    seconds = max(run.duration_s, 1e-9)
    say_heading(f"{name}, {_counted(run.size, 'node')}, {show(run.duration_s, 's')}")
    judged = run.delivered or run.decisions or run.replies
    verdict = run.violation or ("none broken" if judged else "not judged: no message was delivered")
    rows = [
        ("messages", f"{run.delivered:,} delivered, {run.delivered / seconds:,.0f} a second"),
        ("dropped", f"{run.dropped:,}"),
        ("decisions", f"{len(run.decisions):,} in {_counted(len(run.instances), 'instance')}"),
        ("invariants", style(verdict, fg="red" if run.violation else "green" if judged else "yellow")),
        ("restarts", f"{run.restarts:,}"),
        ("hostile frames", _hostile(run)),
    ]
    if run.invoked_s:
        retries = _counted(run.retries, "retry", "retries")
        rows.append(("requests", f"{len(run.invoked_s):,} made, {len(run.replies):,} answered, {retries}"))
        times = f"p50 {show(run.latency_s(0.5), 's')}, p99 {show(run.latency_s(0.99), 's')}"
        rows.append(("latency", times if run.latencies_s else "-"))
    for label, text in rows:
        say(f"{label:<16} {text}")
    if run.runs > 1:
        say(f"{'resumed':<16} run {run.runs} of this folder; the history holds the requests of all of them")
    for text in _troubles(run):
        say_wrapped(f"trouble: {text}", rest="  ", err=True)
    for node, trace in sorted(run.failures.items()):
        say_wrapped(f"node {node} ended with an exception: {exception_of(trace)}", rest="  ", err=True)


def _troubles(run: ClusterRun) -> list[str]:
    torn = run.counters.get("torn_bytes", 0)
    found = list(run.troubles)
    if torn:
        found.append(f"{torn:,} bytes of what nodes saved were torn by a crash, and are kept in node-*.state.torn")
    return found


def _hostile(run: ClusterRun) -> str:
    if not run.hostile:
        return "0"
    reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(run.hostile.items()))
    return f"{sum(run.hostile.values()):,} ({reasons})"


def _as_json(run: ClusterRun, name: str, warning: str) -> dict[str, Any]:
    def finite(value: float) -> float | None:
        return value if math.isfinite(value) else None

    return {
        "protocol": name,
        "nodes": run.size,
        "duration_s": run.duration_s,
        "messages_delivered": run.delivered,
        "messages_per_s": run.delivered / max(run.duration_s, 1e-9),
        "messages_dropped": run.dropped,
        "decisions": len(run.decisions),
        "instances": len(run.instances),
        "violation": run.violation,
        "restarts": run.restarts,
        "hostile": run.hostile,
        "requests": len(run.invoked_s),
        "answered": len(run.replies),
        "retries": run.retries,
        "unheard": run.unheard,
        "latency_p50_s": finite(run.latency_s(0.5)),
        "latency_p99_s": finite(run.latency_s(0.99)),
        "counters": run.counters,
        "troubles": _troubles(run),
        "runs": run.runs,
        "failures": {str(node): trace for node, trace in run.failures.items()},
        "note": warning,
    }


def _token(file: Path | None) -> str:
    """Return the token from a file that its owner alone can read or from the environment, never from a command line."""
    if file is None:
        token = os.environ.get("WAVETANK_TOKEN", "")
        if not token:
            raise BadValueError(
                "A host joins with the token that the launcher printed.",
                where="WAVETANK_TOKEN or --token-file",
                hint="paste the launcher's line as it is",
            )
        return token
    try:
        with file.open(encoding="utf-8") as opened:
            mode = stat.S_IMODE(os.fstat(opened.fileno()).st_mode)
            if mode & 0o077:
                raise BadFileError(
                    "Others can read the file of the token.",
                    given=f"{mode:04o}",
                    allowed="0600",
                    where=str(file),
                    hint=f"chmod 600 {file}",
                )
            return opened.read(4096).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadFileError("The file of the token cannot be read.", given=str(error), where=str(file)) from error


def _join(address: str, token_file: Path | None, name: str | None, out: Path | None) -> int:
    """Run processes for a launcher until it has finished; one that is killed is started again."""
    from wavetank.live import control, node_process
    from wavetank.live.folder import RunFolder, Scratch

    node_process.parse_address(address, "--join")
    environment = {
        **os.environ,
        node_process.ADDRESS_VARIABLE: address,
        node_process.TOKEN_VARIABLE: control.Token(_token(token_file)).text,
        node_process.NAME_VARIABLE: name or socket.gethostname(),
    }
    with contextlib.ExitStack() as stack:
        if out is None:
            folder = stack.enter_context(Scratch("wavetank-joined-"))
        else:
            folder = out
            stack.callback(RunFolder(out).close)
        environment[node_process.FOLDER_VARIABLE] = str(folder)
        code = _kept_running(environment)
    if code == 0:
        say("The launcher has finished.")
    if code == node_process.LAUNCHER_LOST:
        raise WavetankError("The launcher ended without reporting that the run had finished.", where=address)
    return code if code >= 0 else INTERRUPTED


def _kept_running(environment: dict[str, str]) -> int:
    """Start the process of a joined host, again and again while somebody kills it; return the code of its end."""
    pause_s = _FIRST_PAUSE_S
    while True:
        begun_s = time.monotonic()
        with subprocess.Popen(
            python_module("wavetank.live.node_process"), env=environment, stdin=subprocess.DEVNULL
        ) as child:
            try:
                code = child.wait()
            except KeyboardInterrupt:
                child.kill()
                raise
        if code != -signal.SIGKILL:
            return code
        # What is killed at once, for want of memory for one, would otherwise keep the machine busy.
        pause_s = (
            _FIRST_PAUSE_S if time.monotonic() - begun_s > _LONGEST_PAUSE_S else min(2 * pause_s, _LONGEST_PAUSE_S)
        )
        time.sleep(pause_s)
