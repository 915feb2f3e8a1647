"""Keys of the router's own: who may send requests, how many, to which models; and who may read figures or administer.

A keys file holds SHA-256 digests of keys, never keys.  A key has 256 random bits (:func:`new_key`), so its digest can
neither be guessed nor inverted, and a file that leaks gives nobody access.  What a client sends is hashed and compared
with every digest in one pass over all of them, whichever matches.

Limits are token buckets.  A bucket holds what ``burst_s`` seconds earn, and one request at least; tokens are charged by
the prompt's estimate when a request comes, and by what was really used when its answer ends, so that a bucket may go
into debt, which is paid before the next request is taken.

Source: the OpenAI API's errors 401, 403 and 429 with ``Retry-After``; token buckets as in RFC 2697.

Differs from the source:

1. A request that is larger than the bucket is taken when the bucket is full, instead of never.
"""

from __future__ import annotations

import datetime
import fnmatch
import hashlib
import hmac
import ipaddress
import math
import re
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from wavetank.errors import BadFileError, BadValueError, UnknownNameError, nearest_of
from wavetank.serving.proxy.client_connection import ClientRequest
from wavetank.serving.proxy.configuration import read_toml
from wavetank.serving.proxy.refusals import RequestError
from wavetank.settings import check_parameters, setting

MOST_KEYS = 10_000
_MOST_KEY_BYTES = 512
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,62}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_USES = ("requests", "metrics", "admin")
# A program on this machine that passes on what others sent says so with one of these.
_PASSED_ON = ("Forwarded", "X-Forwarded-For", "X-Real-IP", "Via")
# A page in a browser of this machine is no administrator.
_FROM_A_PAGE = ("Origin", "Sec-Fetch-Site", "Sec-Fetch-Mode")


@dataclass(frozen=True, kw_only=True)
class KeySettings:
    """What a key allows."""

    name: str = setting("", says="Name of the key, in logs and metrics")
    sha256: str = setting("", says="SHA-256 of the key, in hex")
    uses: tuple[str, ...] = setting(("requests",), says="What the key is for", choices=_USES)
    models: tuple[str, ...] = setting((), says="Models it may use, * for any characters; by default all")
    requests_per_minute: float = setting(0.0, says="Most requests per minute; 0: no limit", low=0.0, high=1e9)
    tokens_per_minute: float = setting(
        0.0, says="Most tokens of prompts and answers per minute; 0: no limit", low=0.0, high=1e12
    )
    burst_s: float = setting(
        60.0, unit="s", says="Time whose requests and tokens may come at once", low=0.001, high=86_400.0
    )
    concurrent: int = setting(0, unit="requests", says="Most requests at once; 0: no limit", low=0, high=1_000_000)
    weight: float = setting(1.0, says="Share beside other keys when requests wait", low=0.001, high=1000.0)
    expires: str = setting("", says="When the key ends, e.g. 2027-01-01T00:00:00Z; by default never")

    def __post_init__(self) -> None:
        if _NAME.fullmatch(self.name) is None:
            raise BadValueError("This is no name of a key.", given=self.name, allowed="letters, digits, . _ @ -")
        if _DIGEST.fullmatch(self.sha256) is None:
            raise BadValueError(
                "This is no SHA-256 digest.", given=f"{len(self.sha256)} characters", allowed="64 of 0-9a-f",
                where=f"key {self.name}", hint="wavetank launch router-key makes a key and its entry",
            )  # fmt: skip
        if not self.uses:
            raise BadValueError("The key is for nothing.", allowed=_USES, where=f"key {self.name}")
        end_of(self.expires, f"key {self.name}, expires")


def end_of(text: str, where: str) -> float:
    """Return a time in s since 1970; infinity for none.

    Parameters
    ----------
    text : str
        As in ``2027-01-01T00:00:00Z``; a zone must be given.
    where : str
        For the message.
    """
    if not text:
        return math.inf
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError:
        found = datetime.datetime.max
    if found.tzinfo is None:
        raise BadValueError(
            "This is no time with a zone.", given=text, allowed="as in 2027-01-01T00:00:00Z", where=where
        )
    return found.timestamp()


def new_key() -> str:
    """Return a new key of 256 random bits."""
    return f"wt-{secrets.token_urlsafe(32)}"


def digest_of(key: str) -> str:
    """Return what a keys file holds of a key."""
    return hashlib.sha256(key.encode()).hexdigest()


def read_keys(path: Path) -> tuple[KeySettings, ...]:
    """Read a keys file: TOML, a table ``[[keys]]`` per key.

    Raises
    ------
    WavetankError
        If it cannot be read, a key is given twice, or a field is wrong: with the key's number and name.
    """
    found, _ = read_toml(path, "The keys file")
    tables = found.pop("keys", [])
    if found or not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
        raise BadFileError("The keys file holds something else than [[keys]].", given=sorted(found), where=str(path))
    if len(tables) > MOST_KEYS:
        raise BadFileError(f"The keys file holds more than {MOST_KEYS} keys.", where=str(path))
    keys = tuple(_key(table, f"file {path}, key {number}") for number, table in enumerate(tables, 1))
    for what, values in (("name", [key.name for key in keys]), ("sha256", [key.sha256 for key in keys])):
        doubled = next((value for at, value in enumerate(values) if value in values[:at]), None)
        if doubled is not None:
            raise BadValueError(f"Two keys have the same {what}.", given=doubled[:12], where=f"file {path}")
    return keys


def _key(table: dict[str, Any], where: str) -> KeySettings:
    names = [each.name for each in fields(KeySettings)]
    unknown = next((name for name in table if name not in names), None)
    if unknown is not None:
        raise UnknownNameError(
            f"A key has no field {unknown!r}.", allowed=names, nearest=nearest_of(unknown, names), where=where
        )
    expires = table.get("expires")
    if isinstance(expires, datetime.datetime):
        table = {**table, "expires": expires.isoformat()}
    try:
        return KeySettings(**check_parameters(KeySettings, table, where=where))
    except BadValueError as error:
        error.where = error.where or where
        raise


class Bucket:
    """A limit per minute.

    Parameters
    ----------
    per_minute : float
        Above 0.
    burst_s : float
        What is earned in this time may be used at once; one unit always may.
    now_s : float
    """

    def __init__(self, per_minute: float, burst_s: float, now_s: float) -> None:
        self._at_s = now_s
        self.change(per_minute, burst_s)
        self._level = self._most

    def change(self, per_minute: float, burst_s: float) -> None:
        """Set another limit; what was used stays used."""
        # A rate that is next to nothing must not become nothing.
        self._rate = max(per_minute / 60.0, 1e-12)
        self._most = max(self._rate * burst_s, 1.0)

    def wait_s(self, amount: float, now_s: float) -> float:
        """Return how long it takes until an amount may be used; 0 where it may be used now."""
        self._level = min(self._level + max(now_s - self._at_s, 0.0) * self._rate, self._most)
        self._at_s = max(now_s, self._at_s)
        # The sum of many steps is a little off.
        need = min(amount, self._most) * (1.0 - 1e-12)
        return max(need - self._level, 0.0) / self._rate

    def use(self, amount: float) -> None:
        """Use an amount; a negative one gives back."""
        self._level -= amount


class Client:
    """Who sent a request, by key: its limits and what it uses of them.

    Parameters
    ----------
    settings : KeySettings
    now_s : float
        On a monotonic clock.

    Attributes
    ----------
    name : str
    weight : float
    in_flight : int
        Requests that were taken and are not done.
    waiting : int
        Those of them that wait for their turn.
    served_to : float
        Where its last turn ended, in the virtual time of :mod:`wavetank.serving.proxy.turns`.
    """

    def __init__(self, settings: KeySettings, now_s: float) -> None:
        self.in_flight = 0
        self.waiting = 0
        self.served_to = 0.0
        self._requests: Bucket | None = None
        self._tokens: Bucket | None = None
        self.configure(settings, now_s)

    def configure(self, settings: KeySettings, now_s: float) -> None:
        """Take over changed settings; what was used of a limit stays used."""
        self.settings = settings
        self.name, self.weight = settings.name, settings.weight
        self.uses = frozenset(settings.uses)
        self.restricted = bool(settings.models)
        self._ends = end_of(settings.expires, "")
        self._requests = _changed(self._requests, settings.requests_per_minute, settings.burst_s, now_s)
        self._tokens = _changed(self._tokens, settings.tokens_per_minute, settings.burst_s, now_s)

    @property
    def expired(self) -> bool:
        """Whether its time is over."""
        return time.time() >= self._ends

    def may_use(self, model: str) -> bool:
        """Say whether it may use a model."""
        return not self.restricted or any(fnmatch.fnmatchcase(model, each) for each in self.settings.models)

    def enter(self, now_s: float) -> None:
        """Take a request; :meth:`leave` must follow.

        Raises
        ------
        RequestError
            429, if the key has as many requests as it may have at once or in a minute.
        """
        most = self.settings.concurrent
        if most and self.in_flight >= most:
            raise _too_many(f"This key may have {most} requests at once.", "concurrency_limit_exceeded", 1.0)
        if self._requests is not None:
            wait_s = self._requests.wait_s(1.0, now_s)
            if wait_s:
                limit = f"{self.settings.requests_per_minute:g} requests per minute"
                raise _too_many(f"This key may send {limit}.", "rate_limit_exceeded", wait_s)
            self._requests.use(1.0)
        self.in_flight += 1

    def leave(self) -> None:
        """Take note that a request is done, however it ended."""
        self.in_flight -= 1

    def charge(self, tokens: int, now_s: float) -> None:
        """Charge the estimated tokens of a prompt.

        Raises
        ------
        RequestError
            429, if they are more than the key has left.
        """
        if self._tokens is None:
            return
        wait_s = self._tokens.wait_s(tokens, now_s)
        if wait_s:
            limit = f"{self.settings.tokens_per_minute:g} tokens per minute"
            raise _too_many(f"This key may use {limit}; the prompt has about {tokens}.", "rate_limit_exceeded", wait_s)
        self._tokens.use(tokens)

    def used(self, charged: int, tokens: int) -> None:
        """Correct a charge by what was used: tokens of prompt and answer."""
        if self._tokens is not None:
            self._tokens.use(tokens - charged)


def _changed(bucket: Bucket | None, per_minute: float, burst_s: float, now_s: float) -> Bucket | None:
    if not per_minute:
        return None
    if bucket is None:
        return Bucket(per_minute, burst_s, now_s)
    bucket.change(per_minute, burst_s)
    return bucket


def _too_many(says: str, code: str, wait_s: float) -> RequestError:
    # Beyond an hour the exact time is of no use.
    after_s = math.ceil(min(max(wait_s, 1.0), 3600.0))
    return RequestError(429, says, kind="rate_limit_error", code=code, retry_after_s=after_s)


class Access:
    """Decides who may do what.

    Parameters
    ----------
    keys : sequence of KeySettings
    asked : bool
        Whether requests need a key.
    open_metrics : bool
        Whether anybody may read the metrics.
    now_s : callable
        A monotonic clock.

    Attributes
    ----------
    anybody : Client
        All who need no key, as one.
    """

    def __init__(
        self,
        keys: Sequence[KeySettings] = (),
        *,
        asked: bool = False,
        open_metrics: bool = False,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._now_s = now_s
        # All who ask where nobody needs a key, as one among the others.
        self.anybody = Client(KeySettings(name="anybody", sha256="0" * 64), now_s())
        self._clients: dict[str, Client] = {}
        self.configure(keys, asked=asked, open_metrics=open_metrics)

    def configure(self, keys: Sequence[KeySettings], *, asked: bool, open_metrics: bool) -> None:
        """Take over changed keys; a key that stays keeps what it used of its limits.

        Parameters
        ----------
        keys : sequence of KeySettings
        asked : bool
        open_metrics : bool
        """
        now, known = self._now_s(), self._clients
        clients: dict[str, Client] = {}
        for key in keys:
            client = known.get(key.sha256)
            if client is None:
                client = Client(key, now)
            else:
                client.configure(key, now)
            clients[key.sha256] = client
        self._clients = clients
        self._in_order = tuple(clients.values())
        self._digests = tuple(bytes.fromhex(each) for each in clients)
        self._table = np.frombuffer(b"".join(self._digests), np.uint64).reshape(-1, 4)
        self.asked = asked
        self._open_metrics = open_metrics

    @property
    def clients(self) -> tuple[Client, ...]:
        """All clients that have a key."""
        return self._in_order

    def client(self, request: ClientRequest) -> Client | None:
        """Return who sends a request; None where nobody needs a key.

        Raises
        ------
        RequestError
            401 or 403.
        """
        return self._holder(request, "requests") if self.asked else None

    def check(self, request: ClientRequest, use: str) -> None:
        """Let a request for metrics or administration through only where it may be.

        Raises
        ------
        RequestError
            401 or 403.
        """
        if use == "metrics" and self._open_metrics:
            return
        # Where there is a key to administer, a proxy on this machine that hides whom it passes on opens nothing.
        keyed = use == "admin" and any("admin" in client.uses for client in self._in_order)
        if not keyed and is_local(request, strict=use != "metrics"):
            return
        self._holder(request, use)

    def _holder(self, request: ClientRequest, use: str) -> Client:
        client = self._find(given_key(request))
        if client is None:
            raise RequestError(401, "Incorrect API key provided.", code="invalid_api_key")
        if client.expired:
            raise RequestError(401, "The API key has expired.", code="expired_api_key")
        if use not in client.uses:
            raise RequestError(403, f"The API key is not for {use}.", kind="permission_error", code="not_allowed")
        return client

    def _find(self, key: bytes) -> Client | None:
        """Compare a key with all there are; takes the same time whichever it is, and where it is none."""
        if not self._digests:
            return None
        digest = hashlib.sha256(key).digest()
        differs = np.bitwise_or.reduce(self._table ^ np.frombuffer(digest, np.uint64), axis=1)
        at = int(np.argmin(differs != 0))
        return self._in_order[at] if hmac.compare_digest(digest, self._digests[at]) else None


def given_key(request: ClientRequest) -> bytes:
    """Return the key that a request carries, in ``Authorization: Bearer`` or ``x-api-key``; empty where it has none.

    Raises
    ------
    RequestError
        401, if it carries several: which one counts would be a matter of taste.
    """
    found = []
    for name, value in request.raw_headers:
        lower = name.lower()
        if lower == b"x-api-key":
            found.append(value)
        elif lower == b"authorization":
            scheme, _, rest = value.partition(b" ")
            found.append(rest.strip(b" ") if scheme.lower() == b"bearer" else b"")
    if len(found) > 1:
        raise RequestError(401, "The request carries several API keys.", code="invalid_api_key")
    return found[0] if found and len(found[0]) <= _MOST_KEY_BYTES else b""


def is_local(request: ClientRequest, *, strict: bool) -> bool:
    """Say whether a request comes from a program of this machine itself, as far as can be seen.

    Parameters
    ----------
    request : ClientRequest
    strict : bool
        Whether what a browser's page sends does not count either.
    """
    names = (*_PASSED_ON, *_FROM_A_PAGE) if strict else _PASSED_ON
    if any(name in request.headers for name in names):
        return False
    peer: Iterable[Any] | None = request.transport.get_extra_info("peername") if request.transport else None
    if not peer:
        return False
    try:
        address = ipaddress.ip_address(str(next(iter(peer))).partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
