"""Several routers in front of the same backends: each hears what the others have there.

A router sees its own requests at once and the others' never; where backends report no load of their own, two routers
would each believe in half of it.  So every router asks the others, every ``refresh_s``, how many requests and tokens
they have at which backend, and adds them to its own accounting at the next refresh.  Backends whose own metrics are
read report everybody's load already.

The disagreement is bounded: what a router believes of another one's requests differs from the truth by those that began
or ended since the answer was made, which is at most the time of one exchange and two refreshes ago.  A router that does
not answer counts for ``heard_s`` and is then taken to have nothing, as one that has ended.

Only counts are exchanged.  They are shown to those who have the routers' common key; without one, to programs of this
machine.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from operator import itemgetter

import msgspec

from wavetank.serving.proxy.access import given_key, is_local
from wavetank.serving.proxy.backend_connection import ConnectionPool
from wavetank.serving.proxy.backends import Backend
from wavetank.serving.proxy.client_connection import ClientRequest
from wavetank.serving.proxy.members import Wanted
from wavetank.serving.proxy.refusals import RequestError
from wavetank.serving.proxy.view import PrefixMemory, WorkerAccount

log = logging.getLogger("wavetank.router")

PATH = "/peer/counts"
_MOST = 2**40
Get = Callable[[Backend, str, float], Awaitable[tuple[int, bytes] | None]]


class _Counts(msgspec.Struct):
    router: str
    backends: dict[str, tuple[int, int]]


class Peers:
    """The other routers.

    Parameters
    ----------
    listed : sequence of Wanted
        Where they are.
    key : str
        What routers show each other; empty: nothing, and only programs of this machine are answered.
    get : callable
        Asks for a page.
    backends : callable
        Returns the backends.
    ask_s, heard_s : float
        Longest time for an answer, and how long it counts.
    connect_s : float
    """

    def __init__(
        self,
        listed: Sequence[Wanted],
        key: str,
        get: Get,
        backends: Callable[[], Sequence[Backend]],
        *,
        ask_s: float,
        heard_s: float,
        connect_s: float,
    ) -> None:
        self._key = key.encode()
        self._get, self._backends = get, backends
        self._ask_s, self._heard_s = ask_s, heard_s
        self.name = secrets.token_hex(8)
        self.routers = [_peer(each, key, connect_s) for each in listed]
        self._heard: dict[Backend, tuple[float, str, dict[str, tuple[int, int]]]] = {}
        self._away: set[Backend] = set()

    async def page(self, request: ClientRequest) -> object:
        """Answer another router."""
        return {"router": self.name, "backends": {each.name: each.account.load() for each in self._backends()}}

    def check(self, request: ClientRequest) -> None:
        """Let other routers through alone.

        Raises
        ------
        RequestError
            401.
        """
        known = hmac.compare_digest(given_key(request), self._key) if self._key else is_local(request, strict=True)
        if not known:
            raise RequestError(401, "Incorrect key of a router.", code="invalid_api_key")

    async def ask_often(self, router: Backend, every_s: Callable[[], float]) -> None:
        """Ask one of the others again and again: none waits for another one that is slow, or hangs."""
        while True:
            await self._ask(router)
            self._add_up(time.monotonic())
            await asyncio.sleep(every_s())

    async def _ask(self, router: Backend) -> None:
        asked_s = time.monotonic()
        found = await self._get(router, PATH, self._ask_s)
        try:
            if found is None or found[0] != 200:
                raise ValueError("no answer" if found is None else f"status {found[0]}")
            counts = msgspec.json.decode(found[1], type=_Counts)
            if any(not 0 <= each <= _MOST for pair in counts.backends.values() for each in pair):
                raise ValueError("impossible counts")
        except (ValueError, msgspec.MsgspecError) as error:
            if router not in self._away:
                self._away.add(router)
                log.warning("the router %s does not say what it has: %s", router.name, error)
            return
        self._away.discard(router)
        if counts.router != self.name:
            # As old as the question: the answer was made later.
            self._heard[router] = (asked_s, counts.router, counts.backends)

    def _add_up(self, now_s: float) -> None:
        for router, (heard_s, *_) in list(self._heard.items()):
            if now_s - heard_s > self._heard_s:
                del self._heard[router]
        # One that is listed under several names is one: what it said last counts.
        words = {name: counts for _, name, counts in sorted(self._heard.values(), key=itemgetter(0))}
        for backend in self._backends():
            said = [counts[backend.name] for counts in words.values() if backend.name in counts]
            backend.account.elsewhere = (sum(each[0] for each in said), sum(each[1] for each in said))

    def close(self) -> None:
        """Close the connections to the others."""
        for router in self.routers:
            router.connections.close()


def _peer(given: Wanted, key: str, connect_s: float) -> Backend:
    pool = ConnectionPool(
        given.place.host, given.place.port, tls=given.tls or False, connect_s=connect_s, keep_alive_s=60.0
    )
    made = Backend(given.settings.url, WorkerAccount(1, 2.0, PrefixMemory(0.0, 0)), pool)
    made.credentials = f"Authorization: Bearer {key}\r\n".encode() if key else b""
    return made
