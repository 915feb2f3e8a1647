"""Backends that are found instead of listed: by DNS names, or in a Kubernetes service.

Addresses come from outside, so they are checked: only plain unicast addresses count (no loopback, no link-local one
such as a cloud's metadata service, no multicast), or only those of the networks that are configured; never more than
``MOST_FOUND``.  What a source says wrongly does little harm for a while: an address that is missing from an answer of
the DNS, and a set that is suddenly empty, count on for ``hold_s``; while a source cannot be asked, as in an outage of
the DNS, the last set counts.  A router that is found among its own backends is none: its probes find that out.

Source: RFC 1035 and 2782 (A, AAAA and SRV records); the Kubernetes API: endpoint slices of ``discovery.k8s.io/v1``,
list and watch with resource versions, bookmarks and 410 Gone.

Differs from the source:

1. Weights and priorities of SRV records are not used: the policy decides.
"""

from __future__ import annotations

import abc
import asyncio
import dataclasses
import ipaddress
import logging
import os
import socket
import ssl
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from wavetank.errors import BadFileError
from wavetank.serving.proxy.backends import split_url
from wavetank.serving.proxy.configuration import BackendSettings, DiscoverySettings
from wavetank.sim.rng import stream

log = logging.getLogger("wavetank.router")

MOST_FOUND = 1024
# A start waits so long for the first answer.
FIRST_S = 5.0
_ASK_S = 5.0
_AGAIN_S, _AGAIN_MOST_S = 0.5, 30.0
_WATCH_S = 300
_MOST_LIST_BYTES = 67_108_864
_MOST_LINE_BYTES = 16_777_216
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

# Where clouds answer for their machines beside link-local addresses; no model server is there.
_METADATA = frozenset(
    map(ipaddress.ip_address, ("fd00:ec2::254", "100.100.100.200", "168.63.129.16", "192.0.0.192", "255.255.255.255"))
)
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")

Address = tuple[str, int]


# What a resolver says of a name that is not there, or has no address; anything else is its own trouble.
_NO_SUCH_NAME = frozenset((socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)))


class Addresses:
    """The addresses of one source that count, whatever it says from one answer to the next.

    Parameters
    ----------
    settings : DiscoverySettings
    hold_s : float
        How long what is missing counts on.

    Attributes
    ----------
    found : tuple of (str, int)
        Addresses and ports, in order.
    trouble : str
        What is wrong with the source; empty while it is well.
    looked : Event
        Whether it has answered, or failed, once.
    """

    def __init__(self, settings: DiscoverySettings, hold_s: float) -> None:
        self.settings = settings
        self._hold_s = hold_s
        self._networks = [ipaddress.ip_network(each) for each in settings.networks]
        self._seen_s: dict[Address, float] = {}
        self._filled = False
        self._refused: set[str] = set()
        self.found: tuple[Address, ...] = ()
        self.trouble = "it was not asked yet"
        self.looked = asyncio.Event()

    @property
    def backends(self) -> list[BackendSettings]:
        """What was found, as backends with the settings of this source; a share is split among them."""
        given = self.settings
        more = {each.name: getattr(given, each.name) for each in dataclasses.fields(BackendSettings)}
        if given.scheme == "https" and not given.server_name:
            more["server_name"] = given.host
        if given.share is not None and self.found:
            more["share"] = given.share / len(self.found)
        made = []
        for host, port in self.found:
            place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            made.append(BackendSettings(**{**more, "url": f"{given.scheme}://{place}{given.path}"}))
        return made

    def take(self, addresses: Collection[Address], now_s: float, *, whole: bool, but: str = "") -> bool:
        """Take an answer in; returns whether other addresses count now.

        Parameters
        ----------
        addresses : collection of (str, int)
        now_s : float
        whole : bool
            Whether the source always names all there are, and says so when they change, so that only an empty answer
            is doubted.
        but : str
            What was wrong with a part of the answer.
        """
        self.looked.set()
        good = {(host, port) for text, port in addresses if (host := self._plain(text))}
        if whole and self._filled:
            # What it named last was there until now: it would have said otherwise.
            self._seen_s = dict.fromkeys(self.found, now_s)
        self._filled = bool(good)
        for each in good:
            self._seen_s[each] = now_s
        held = set() if whole and good else {
            each for each, seen_s in self._seen_s.items() if now_s - seen_s < self._hold_s and each in self.found
        }  # fmt: skip
        kept = sorted(good | held)
        if len(kept) > MOST_FOUND:
            self._say(f"it names {len(kept)} addresses; the first {MOST_FOUND} count")
            kept = kept[:MOST_FOUND]
        elif not good:
            self._say(but or "it names no address that may be used")
        else:
            self._say(but)
        self._seen_s = {each: self._seen_s[each] for each in kept}
        before, self.found = self.found, tuple(kept)
        return before != self.found

    def failed(self, why: str, now_s: float) -> None:
        """Take note that the source could not be asked: what counted counts on."""
        for each in self.found:
            self._seen_s[each] = now_s
        self._say(why)
        self.looked.set()

    def _say(self, trouble: str) -> None:
        if trouble != self.trouble:
            self.trouble = trouble
            if trouble:
                log.warning("discovery of %s: %s", self.settings.name, trouble)
            else:
                log.warning("discovery of %s: well", self.settings.name)

    def _plain(self, text: str) -> str:
        """Return an address in its one usual spelling; empty where it may not be used."""
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            address = None
        if address is not None:
            plain = _inner(address)
            if self._networks:
                good = any(plain.version == each.version and plain in each for each in self._networks)
            else:
                good = not (
                    plain.is_loopback or plain.is_link_local or plain.is_multicast or plain.is_unspecified
                    or plain.is_reserved or plain in _METADATA or getattr(address, "scope_id", None)
                )  # fmt: skip
            if good:
                return str(getattr(address, "ipv4_mapped", None) or address)
        if text not in self._refused and len(self._refused) < MOST_FOUND:
            self._refused.add(text)
            log.warning("discovery of %s: the address %.60r is not used", self.settings.name, text)
        return ""


class Source(Addresses, abc.ABC):
    """Something that is asked for addresses again and again, whatever it answers.

    Parameters
    ----------
    settings : DiscoverySettings
    every_s : float
        Time between two questions to the DNS.
    hold_s : float
        How long what is missing counts on.
    """

    def __init__(self, settings: DiscoverySettings, every_s: float, hold_s: float) -> None:
        super().__init__(settings, hold_s)
        self._every_s = every_s

    async def run(self, changed: Callable[[], None]) -> None:
        """Ask for ever; calls ``changed`` when other addresses count."""
        while True:
            try:
                pause_s = await self._ask(changed)
            except Exception:
                # Whatever made this go wrong, the backends of tomorrow must be found.
                log.exception("a defect of the router, in the discovery of %s", self.settings.name)
                self.failed("asking it ends in a defect of the router", asyncio.get_running_loop().time())
                pause_s = _AGAIN_MOST_S
            await asyncio.sleep(pause_s)

    @abc.abstractmethod
    async def _ask(self, changed: Callable[[], None]) -> float:
        """Ask once, or follow what is said until that ends; returns how long to wait before the next time, in s."""


def _inner(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return the address of version 4 that one of version 6 leads to, where it does."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


class DnsSource(Source):
    """A name whose A and AAAA records, or SRV records, are looked up again and again."""

    async def _ask(self, changed: Callable[[], None]) -> float:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_ASK_S):
                found, why = await self._found()
        except (OSError, TimeoutError) as error:
            said = getattr(error, "strerror", None) or str(error)
            self.failed(f"the DNS cannot be asked: {said or 'no answer in time'}", loop.time())
        else:
            # A name that does not exist (any more) is an answer of nothing, and ages what counted.
            if self.take(found, loop.time(), whole=False, but=why):
                changed()
        return self._every_s

    async def _found(self) -> tuple[list[Address], str]:
        """Return the addresses that the name leads to, and what was wrong with a part of them.

        Raises
        ------
        OSError
            If the DNS could not answer.
        """
        given = self.settings
        if given.dns:
            hosts, why = await self._addresses(given.dns)
            return [(host, int(given.port)) for host in hosts], why
        places, why = await self._services(given.srv)
        answers = await asyncio.gather(*(self._addresses(host) for host, _ in places), return_exceptions=True)
        found: list[Address] = []
        failed = [each for each in answers if isinstance(each, BaseException)]
        for (_, port), answer in zip(places, answers, strict=True):
            if not isinstance(answer, BaseException):
                found += [(each, port) for each in answer[0]]
                why = why or answer[1]
        if failed and not found:
            raise failed[0]
        # The others count; those that could not be asked for are held for a while.
        return found, f"{len(failed)} of its {len(places)} names could not be asked for" if failed else why

    async def _addresses(self, name: str) -> tuple[list[str], str]:
        loop = asyncio.get_running_loop()
        try:
            rows = await loop.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except UnicodeError:
            return [], f"{name[:80]!r} is no name of a host"
        except socket.gaierror as error:
            if error.errno not in _NO_SUCH_NAME:
                raise
            return [], f"its name cannot be resolved: {error.strerror}"
        return list(dict.fromkeys(str(row[4][0]) for row in rows)), ""

    async def _services(self, name: str) -> tuple[list[Address], str]:
        import dns.asyncresolver
        import dns.exception
        import dns.resolver

        try:
            answer = await dns.asyncresolver.resolve(name, "SRV", lifetime=_ASK_S)
        except (dns.resolver.NXDOMAIN, dns.resolver.NoAnswer) as error:
            return [], f"its name cannot be resolved: {error}"
        except dns.exception.DNSException as error:
            raise OSError(0, str(error) or type(error).__name__) from None
        found = [(str(row.target).rstrip("."), int(row.port)) for row in answer]
        # A root alone says that the service is not there (RFC 2782).
        return [each for each in found if each[0]][:MOST_FOUND], ""


class _Gone(Exception):  # noqa: N818  (an answer, not a fault of ours)
    """The watched version is too old: the list must be asked for again."""


class _Conditions(msgspec.Struct):
    ready: bool | None = None
    terminating: bool | None = None


class _Endpoint(msgspec.Struct):
    addresses: list[str] = []
    conditions: _Conditions = msgspec.field(default_factory=_Conditions)


class _Port(msgspec.Struct):
    name: str | None = None
    port: int | None = None
    protocol: str | None = None


class _Metadata(msgspec.Struct, rename="camel"):
    name: str = ""
    resource_version: str = ""


class _Slice(msgspec.Struct, rename="camel"):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    address_type: str = ""
    endpoints: list[_Endpoint] | None = None
    ports: list[_Port] | None = None
    code: int = 0
    message: str = ""


class _List(msgspec.Struct):
    metadata: _Metadata
    items: list[_Slice] | None = None


class _Event(msgspec.Struct):
    type: str
    object: _Slice


@dataclass(frozen=True)
class _Api:
    """Where the Kubernetes API is, and how it is asked."""

    url: str
    token_file: Path
    tls: ssl.SSLContext | bool

    def headers(self) -> dict[str, str]:
        """Return what shows who asks; the token is replaced now and then."""
        token = self.token_file.read_text(encoding="ascii").strip()
        return {"Authorization": f"Bearer {token}", "Accept": "application/json"}


class KubernetesSource(Source):
    """The ready endpoints of a service, listed once and watched from then on."""

    def __init__(self, settings: DiscoverySettings, every_s: float, hold_s: float) -> None:
        super().__init__(settings, every_s, hold_s)
        self._api = _api(settings)
        self._namespace, _, self._service = settings.kubernetes.partition("/")
        self._slices: dict[str, list[Address]] = {}
        self._pause_s = _AGAIN_S
        self._jitter = stream(0, "discovery", settings.name)

    async def _ask(self, changed: Callable[[], None]) -> float:
        loop, began_s = asyncio.get_running_loop(), asyncio.get_running_loop().time()
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_ASK_S, sock_read=_WATCH_S + 30)
        async with aiohttp.ClientSession(timeout=timeout, trust_env=False) as session:
            try:
                version = await self._list(session, changed)
                while True:
                    version = await self._watch(session, version, changed)
            except _Gone:
                why = ""
            except (aiohttp.ClientError, OSError, TimeoutError, ValueError, msgspec.MsgspecError) as error:
                why = f"the Kubernetes API cannot be asked: {str(error) or type(error).__name__}"
                self.failed(why, loop.time())
        # One that was well for a while is asked again soon.
        well = loop.time() - began_s > _AGAIN_MOST_S
        self._pause_s = _AGAIN_S if well else min(self._pause_s * 2, _AGAIN_MOST_S)
        return (self._pause_s if why else _AGAIN_S / 5) * (0.5 + float(self._jitter.random()))

    async def _list(self, session: aiohttp.ClientSession, changed: Callable[[], None]) -> str:
        async with asyncio.timeout(_ASK_S), self._get(session, {}) as answer:
            data = await answer.content.read(_MOST_LIST_BYTES)
            while piece := await answer.content.read(_MOST_LIST_BYTES):
                data += piece
                if len(data) > _MOST_LIST_BYTES:
                    raise ValueError("its list is too long")
        found = msgspec.json.decode(data, type=_List)
        self._slices = {each.metadata.name: self._addresses(each) for each in found.items or ()}
        self._tell(changed)
        return found.metadata.resource_version

    async def _watch(self, session: aiohttp.ClientSession, version: str, changed: Callable[[], None]) -> str:
        """Follow changes until the server ends the watch; returns the version to go on from."""
        query = {
            "watch": "1",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(_WATCH_S),
        }
        began, buffer = version, b""
        async with self._get(session, query) as answer:
            async for piece in answer.content.iter_any():
                *lines, buffer = (buffer + piece).split(b"\n")
                if len(buffer) > _MOST_LINE_BYTES:
                    raise ValueError("an event is too long")
                for line in filter(None, lines):
                    version = self._event(msgspec.json.decode(line, type=_Event)) or version
                if any(lines):
                    self._tell(changed)
        if version == began:
            # An end at once, again and again, must not become a storm.
            await asyncio.sleep(_AGAIN_S)
        return version

    def _event(self, event: _Event) -> str:
        given = event.object
        if event.type == "ERROR":
            if given.code == 410:
                raise _Gone
            raise ValueError(given.message[:200] or f"error {given.code}")
        if event.type in ("ADDED", "MODIFIED"):
            self._slices[given.metadata.name] = self._addresses(given)
        elif event.type == "DELETED":
            self._slices.pop(given.metadata.name, None)
        return given.metadata.resource_version

    def _get(self, session: aiohttp.ClientSession, query: dict[str, str]) -> Any:
        path = f"/apis/discovery.k8s.io/v1/namespaces/{self._namespace}/endpointslices"
        labels = {"labelSelector": f"kubernetes.io/service-name={self._service}"}
        return _Answer(
            session.get(
                self._api.url + path, params={**labels, **query}, headers=self._api.headers(), ssl=self._api.tls,
                # The token is for nobody else.
                allow_redirects=False,
            )
        )  # fmt: skip

    def _addresses(self, given: _Slice) -> list[Address]:
        wanted = self.settings.port
        ports = [
            each.port
            for each in given.ports or ()
            if each.port and each.protocol in (None, "TCP") and str(wanted) in (each.name, str(each.port))
        ]
        if given.address_type not in ("IPv4", "IPv6") or not ports:
            return []
        return [
            (address, ports[0])
            for each in given.endpoints or ()
            if each.conditions.ready is not False and not each.conditions.terminating
            for address in each.addresses[:1]
        ]

    def _tell(self, changed: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        found = {address for each in self._slices.values() for address in each}
        if self.take(found, loop.time(), whole=True):
            changed()
        if not found and self.found:
            loop.call_later(self._hold_s + 0.001, self._tell_again, changed)

    def _tell_again(self, changed: Callable[[], None]) -> None:
        if not any(self._slices.values()) and self.found:
            self._tell(changed)


class _Answer:
    """The context of an answer that must be one of success."""

    def __init__(self, asking: Any) -> None:
        self._asking = asking

    async def __aenter__(self) -> aiohttp.ClientResponse:
        answer: aiohttp.ClientResponse = await self._asking.__aenter__()
        if answer.status == 410:
            await self.__aexit__()
            raise _Gone
        if answer.status != 200:
            await self.__aexit__()
            raise ValueError(f"it answers {answer.status}")
        return answer

    async def __aexit__(self, *_: object) -> None:
        await self._asking.__aexit__(None, None, None)


def _api(settings: DiscoverySettings) -> _Api:
    url = settings.api
    if not url:
        host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not host:
            raise BadFileError(
                "There is no Kubernetes API here.",
                where=f"discover {settings.name}, environment KUBERNETES_SERVICE_HOST",
            )
        url = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    account = Path(settings.account_folder).expanduser() if settings.account_folder else _ACCOUNT
    try:
        tls = ssl.create_default_context(cafile=str(account / "ca.crt"))
        tls.minimum_version = ssl.TLSVersion.TLSv1_2
        (account / "token").read_text(encoding="ascii")
    except (OSError, ValueError) as error:
        raise BadFileError(f"The service account cannot be read: {error}.", where=str(account)) from None
    return _Api(url.rstrip("/"), account / "token", tls)


def source_of(settings: DiscoverySettings, every_s: float, hold_s: float) -> Source:
    """Return what asks as the settings say.

    Raises
    ------
    BadFileError
        If Kubernetes is to be asked and no service account is here.
    """
    kind = KubernetesSource if settings.kubernetes else DnsSource
    return kind(settings, every_s, hold_s)


def places(sources: Sequence[Addresses], known: Sequence[BackendSettings]) -> list[BackendSettings]:
    """Return listed backends and those that were found, each place once."""
    listed = {split_url(each.url): each for each in known}
    for source in sources:
        for each in source.backends:
            listed.setdefault(split_url(each.url), each)
    return list(listed.values())
