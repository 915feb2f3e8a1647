"""The backends: where they are, whether they can be routed to, what they serve.

A backend is in the rotation while its probes succeed and it is not ejected.  Probes (active) need ``rise`` successes to
bring it in and ``fall`` failures to take it out; failed requests (passive) eject it for a time that doubles with every
ejection in a row, with a jitter so that several routers do not return at once.

What a failure says depends on its kind (:class:`Failure`).  No client can make a backend refuse connections, so these
eject without a limit.  A connection that broke, and still more an error answer, may be the doing of a request that
every backend fails at: they eject at most a share of the backends at once (:func:`room_to_eject`), error answers only
after a longer row, and only broken connections eject again at the first failure behind an ejection.

Source: outlier ejection as in Envoy's (rows of failures, answers apart from connections, ``max_ejection_percent``);
exponential back-off with jitter.

Differs from the source:

1. The jitter comes from a seeded stream, so that a run can be repeated.
2. A backend that probes saw die and come back is trusted at once: it is a new process.
3. Refused connections do not count against the share.
"""

from __future__ import annotations

import enum
import ipaddress
import re
from collections.abc import Iterable
from hashlib import blake2b
from typing import NamedTuple
from urllib.parse import urlsplit

import numpy as np

from wavetank.errors import BadValueError
from wavetank.serving.proxy.backend_connection import ConnectionPool
from wavetank.serving.proxy.view import WorkerAccount
from wavetank.sim.rng import stream

_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+){0,20}")
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?"
_HOST = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(\.{_LABEL})*")


class Place(NamedTuple):
    """Where a backend is: host, port, whether TLS is spoken, and what stands before every path."""

    host: str
    port: int
    tls: bool
    prefix: str = ""


def split_url(url: str) -> Place:
    """Return where a backend is; a ``/v1`` at the end says nothing, as it is part of the paths.

    Raises
    ------
    BadValueError
        If it is not the address of a server: scheme, host, port and path, without user or query.

    Examples
    --------
    >>> tuple(split_url("http://10.0.0.4:8000")), tuple(split_url("https://[::1]/models/a/v1/"))
    (('10.0.0.4', 8000, False, ''), ('::1', 443, True, '/models/a'))
    """
    hint = "e.g. --backend http://127.0.0.1:8001"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise BadValueError(f"This is no backend's address: {error}.", given=_shown(url), hint=hint) from None
    host = parts.hostname or ""
    # The parser passes over line ends.
    if parts.scheme not in ("http", "https") or not _is_host(host) or not (url.isascii() and url.isprintable()):
        raise BadValueError(
            "This is not the address of a backend.",
            given=_shown(url),
            allowed="http://HOST:PORT or https://HOST:PORT",
            hint=hint,
        )
    prefix = parts.path.rstrip("/").removesuffix("/v1")
    if parts.query or parts.fragment or "@" in parts.netloc or port == 0 or not _is_prefix(prefix) or "?" in url:
        raise BadValueError(
            "A backend's address is scheme, host, port and perhaps a path.",
            given=_shown(url),
            allowed="http://HOST:PORT or http://HOST:PORT/PATH, no user or query; in a path letters, digits and ._~-",
            nearest=f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}",
        )
    tls = parts.scheme == "https"
    return Place(_spelling(host), port or (443 if tls else 80), tls, prefix)


def _shown(url: str) -> str:
    # A password belongs into no message.
    return re.sub(r"//[^/]*@", "//", url)


def _is_prefix(prefix: str) -> bool:
    steps = prefix.split("/")[1:]
    return _PREFIX.fullmatch(prefix) is not None and not any(step in (".", "..") for step in steps)


def _spelling(host: str) -> str:
    """Return an address in its one usual spelling, so that a backend is not listed twice; names are as they are."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host


def _is_host(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return _HOST.fullmatch(host) is not None
    return True


def identity_of(url: str) -> int:
    """Return the number by which policies know a backend: 63 bits, the same in every router and after every start."""
    place = split_url(url)
    named = "\n".join((place.host, str(place.port), "tls" if place.tls else "", place.prefix))
    return int.from_bytes(blake2b(named.encode(), digest_size=8).digest(), "little") >> 1


class Failure(enum.Enum):
    """How a request failed, by what it says about the backend."""

    REFUSED = "no connection was made: no request's doing"
    BROKEN = "the connection ended, or what came was no HTTP"
    ANSWERED = "an answer came: 500, 502, 503, or a body that is not what its head says"


class Backend:
    """One OpenAI-compatible server.

    Parameters
    ----------
    url : str
    account : WorkerAccount
        What the router knows of its load.
    connections : ConnectionPool
    rise, fall : int
        Probes in a row that bring it in, or take it out.
    eject_after : int
        Refused or broken connections in a row that eject it.
    eject_after_answers : int
        Error answers in a row that eject it.
    eject_s, eject_most_s : float
        First and longest ejection, in s.
    seed : int
        Of the jitter.

    Attributes
    ----------
    name : str
        Host, port and path: its label.
    prefix : bytes
        What stands before every path at the server.
    host_header : bytes
    credentials : bytes
        Header lines that show it the router's key; empty where it needs none.
    share : float or None
        Of the requests that go to it whatever the policy decides.
    draining : bool
        Whether it gets nothing new.
    trouble : str
        Why no connection can be made, where its certificate or ours is the reason.
    tls_digest : bytes
        Of all that TLS to it depends on.
    kv_capacity_tokens : int
        As configured.
    models : dict of str to bytes
        Id to the JSON of its entry, as the server lists them; empty before they are known.
    up : bool
        Whether its probes succeed.
    """

    def __init__(
        self,
        url: str,
        account: WorkerAccount,
        connections: ConnectionPool,
        *,
        rise: int = 2,
        fall: int = 3,
        eject_after: int = 5,
        eject_after_answers: int = 5,
        eject_s: float = 1.0,
        eject_most_s: float = 30.0,
        seed: int = 0,
    ) -> None:
        self.place = split_url(url)
        self.url = url.rstrip("/")
        host, port, _, prefix = self.place
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.name = where + prefix
        self.prefix = prefix.encode()
        self.host_header = where.encode()
        self.credentials = b""
        self.share: float | None = None
        self.draining = False
        self.trouble = ""
        self.tls_digest = b""
        self.kv_capacity_tokens = 0
        self.account = account
        self.connections = connections
        self.models: dict[str, bytes] = {}
        self.up = False
        self._probed = False
        self.configure(
            rise=rise, fall=fall, eject_after=eject_after, eject_after_answers=eject_after_answers, eject_s=eject_s,
            eject_most_s=eject_most_s,
        )  # fmt: skip
        self._jitter = stream(seed, "ejection", self.name)
        self._successes = 0
        self._misses = 0
        self._failures = self._errors = 0
        self._ejections = 0
        self._ejected_until_s = -np.inf

    def configure(
        self,
        *,
        rise: int,
        fall: int,
        eject_after: int,
        eject_after_answers: int,
        eject_s: float,
        eject_most_s: float,
    ) -> None:
        """Set the rules; parameters as of the constructor."""
        self._rise, self._fall = rise, fall
        self._eject_after, self._eject_after_answers = eject_after, eject_after_answers
        self._eject_s, self._eject_most_s = eject_s, eject_most_s

    def routable(self, now_s: float) -> bool:
        """Say whether requests may be sent to it."""
        return self.up and not self.draining and now_s >= self._ejected_until_s

    @property
    def ejected_until_s(self) -> float:
        """When the last ejection ends; minus infinity without one."""
        return self._ejected_until_s

    def probed(self, alive: bool) -> bool:
        """Take in the outcome of a probe; returns whether ``up`` changed.  The first one decides alone."""
        self._successes = self._successes + 1 if alive else 0
        self._misses = 0 if alive else self._misses + 1
        before = self.up
        if not self._probed:
            self._probed = True
            self.up = alive
        elif not self.up and self._successes >= self._rise:
            self.up = True
            self._failures = self._errors = self._ejections = 0
            self._ejected_until_s = -np.inf
            # Another process: it holds nothing that was sent to the one before.
            self.account.prefixes.clear()
        elif self.up and self._misses >= self._fall:
            self.up = False
        return self.up != before

    def serves(self, model: str | None) -> bool:
        """Say whether it serves a model, as far as is known: before its list is, it may serve any."""
        return not self.models or model in self.models

    def succeeded(self) -> None:
        """Take in a request that was answered."""
        self._failures = self._errors = 0
        self._ejections = 0

    def failed(self, now_s: float, failure: Failure = Failure.BROKEN, *, room: bool = True) -> bool:
        """Take in a request that failed; returns whether the backend is ejected for it.

        After an ejection the first failure of a connection ejects again, for twice the time.

        Parameters
        ----------
        now_s : float
        failure : Failure
        room : bool
            Whether one more backend may be ejected for what may be a request's doing; the failure counts either way.
        """
        if failure is Failure.ANSWERED:
            self._errors += 1
            due = self._errors >= self._eject_after_answers
        else:
            self._failures += 1
            due = self._failures >= self._eject_after or self._ejections > 0
        if not due or now_s < self._ejected_until_s or not (room or failure is Failure.REFUSED):
            return False
        # Doublings beyond 30 are beyond every longest time.
        pause_s = min(self._eject_s * 2.0 ** min(self._ejections, 30), self._eject_most_s)
        self._ejected_until_s = now_s + pause_s * (1.0 + 0.25 * float(self._jitter.random()))
        self._ejections += 1
        self._failures = self._errors = 0
        return True


def room_to_eject(backends: Iterable[Backend], share: float, now_s: float) -> bool:
    """Say whether one more backend may be ejected for what may be the doing of the requests.

    Parameters
    ----------
    backends : iterable of Backend
        All of them; those whose probes fail do not count.
    share : float
        Of the backends that may be out at once.  One may be where there are two or more, and a lone one never.
    now_s : float
    """
    up = [backend for backend in backends if backend.up]
    out = sum(not backend.routable(now_s) for backend in up)
    return len(up) > 1 and share > 0.0 and out < max(int(share * len(up)), 1)
