"""Backends: addresses, probes, ejection."""

from __future__ import annotations

import pytest

from wavetank.errors import BadValueError
from wavetank.serving.proxy.backend_connection import ConnectionPool
from wavetank.serving.proxy.backends import Backend, Failure, identity_of, room_to_eject, split_url
from wavetank.serving.proxy.view import PrefixMemory, WorkerAccount


def backend(url: str = "http://127.0.0.1:8001", **rules: float) -> Backend:
    made = Backend(
        url,
        WorkerAccount(4, 1000.0, PrefixMemory(300.0, 100)),
        ConnectionPool("127.0.0.1", 8001, tls=False, connect_s=1.0, keep_alive_s=1.0),
        **rules,  # type: ignore[arg-type]
    )
    made.probed(True)
    return made


@pytest.mark.parametrize(
    ("url", "place", "name"),
    [
        ("http://10.0.0.4:8000", ("10.0.0.4", 8000, False, ""), "10.0.0.4:8000"),
        ("http://engine-0.pods/", ("engine-0.pods", 80, False, ""), "engine-0.pods:80"),
        ("https://models.example", ("models.example", 443, True, ""), "models.example:443"),
        ("http://[::1]:8000", ("::1", 8000, False, ""), "[::1]:8000"),
        ("http://[FD00:0::0001]:8000", ("fd00::1", 8000, False, ""), "[fd00::1]:8000"),
        ("http://a:1/v1", ("a", 1, False, ""), "a:1"),
        ("http://a:1/models/x-1/v1/", ("a", 1, False, "/models/x-1"), "a:1/models/x-1"),
        ("http://a:1/v1/v1", ("a", 1, False, "/v1"), "a:1/v1"),
    ],
)
def test_an_address_is_scheme_host_and_port(url: str, place: tuple[str, int, bool, str], name: str) -> None:
    assert split_url(url) == place
    assert backend(url).name == name


@pytest.mark.parametrize(
    "url",
    ["", "localhost:8000", "http://", "ftp://a:1", "http://a:99999", "http://a:0", "http://a:x", "http://[::1",
     "http://a:1/../x", "http://a:1/x/./y", "http://a:1//x", "http://a:1/%2e%2e/x", "http://a\nb:1",
     "http://a:1/a b", "http://a:1/x\\y", "http://a:1/;x", "http://a:1?", "http://a:1/\u00e4", "http://a:1/a\r\nX: 1",
     "http://u:p@a:1", "http://a:1?x=1", "http://a:1#x", "http://a b:1", "http://a\r\nX: 1:80", "http://-a:1",
     "http:///v1", "http://a..b:1", f"http://{'a' * 64}:1"],
)  # fmt: skip
def test_anything_else_is_refused(url: str) -> None:
    with pytest.raises(BadValueError) as caught:
        split_url(url)
    assert caught.value.exit_code == 3


def test_the_nearest_address_is_reported_without_its_password() -> None:
    with pytest.raises(BadValueError) as caught:
        split_url("http://user:word@a:1/v1")
    assert caught.value.nearest == "http://a:1"


def test_the_first_probe_decides_alone_then_it_takes_several() -> None:
    one = backend(rise=2, fall=3)
    assert one.up
    assert [one.probed(False) for _ in range(3)] == [False, False, True]
    assert not one.up
    assert [one.probed(alive) for alive in (True, False, True, True)] == [False, False, False, True]
    assert one.up
    assert [one.probed(alive) for alive in (False, False, True, False, False)] == [False] * 5


def test_a_backend_is_down_before_its_first_probe() -> None:
    fresh = Backend(
        "http://127.0.0.1:8001",
        WorkerAccount(4, 1000.0, PrefixMemory(300.0, 100)),
        ConnectionPool("127.0.0.1", 8001, tls=False, connect_s=1.0, keep_alive_s=1.0),
    )
    assert not fresh.routable(0.0)
    assert fresh.probed(True)
    assert fresh.routable(0.0)


def test_failures_in_a_row_eject_for_a_time_that_doubles() -> None:
    one = backend(eject_after=3, eject_s=1.0, eject_most_s=6.0)
    assert [one.failed(10.0) for _ in range(3)] == [False, False, True]
    pauses = []
    now = 10.0
    for _ in range(5):
        pauses.append(one.ejected_until_s - now)
        assert not one.routable(one.ejected_until_s - 0.001)
        now = one.ejected_until_s
        assert one.routable(now)
        # The first failure behind an ejection is enough.
        assert one.failed(now)
    for pause, low in zip(pauses, (1.0, 2.0, 4.0, 6.0, 6.0), strict=True):
        assert low <= pause <= 1.25 * low


def test_an_answer_ends_the_row() -> None:
    one = backend(eject_after=2)
    for _ in range(10):
        assert not one.failed(0.0)
        one.succeeded()


def test_error_answers_eject_after_a_row_of_their_own_and_anew_each_time() -> None:
    one = backend(eject_after=2, eject_after_answers=4, eject_s=1.0)
    for now in (0.0, 10.0):
        assert [one.failed(now, Failure.ANSWERED) for _ in range(4)] == [False, False, False, True]
    # A connection that breaks behind an ejection is another thing.
    assert one.failed(20.0, Failure.BROKEN)
    one.succeeded()
    assert [one.failed(40.0, failure) for failure in (Failure.ANSWERED, Failure.BROKEN) * 2] == [False] * 3 + [True]


def test_without_room_only_refused_connections_eject_and_all_count() -> None:
    one = backend(eject_after=3, eject_after_answers=3)
    assert not any(one.failed(0.0, failure, room=False) for failure in (Failure.BROKEN, Failure.ANSWERED) * 5)
    assert one.routable(0.0)
    assert one.failed(0.0, Failure.BROKEN)
    other = backend(eject_after=2)
    assert [other.failed(0.0, Failure.REFUSED, room=False) for _ in range(2)] == [False, True]


@pytest.mark.parametrize(
    ("up", "down", "share", "most"),
    [(1, 0, 1.0, 0), (1, 3, 1.0, 0), (2, 0, 0.25, 1), (4, 0, 0.25, 1), (8, 0, 0.25, 2), (8, 4, 0.5, 4), (8, 0, 0.0, 0),
     (3, 0, 1.0, 3)],
)  # fmt: skip
def test_the_share_that_may_be_out_is_of_those_that_are_up(up: int, down: int, share: float, most: int) -> None:
    all_of_them = [backend(eject_after=1, fall=1) for _ in range(up + down)]
    for each in all_of_them[:down]:
        each.probed(False)
    ejected = 0
    for each in all_of_them[down:]:
        ejected += each.failed(0.0, room=room_to_eject(all_of_them, share, 0.0))
    assert ejected == most


def test_late_failures_of_an_ejection_do_not_lengthen_it() -> None:
    one = backend(eject_after=1)
    assert one.failed(0.0)
    until = one.ejected_until_s
    assert [one.failed(0.5) for _ in range(10)] == [False] * 10
    assert one.ejected_until_s == until


def test_a_process_started_anew_is_trusted_and_holds_no_prefix() -> None:
    one = backend(eject_after=1, eject_s=100.0, eject_most_s=1000.0, fall=1, rise=1)
    one.account.prefixes.sent([1, 2], 0.0)
    one.failed(0.0)
    one.probed(False)
    assert one.probed(True)
    assert one.routable(0.1)
    assert one.account.prefixes.matched([1, 2], 0.1) == 0


def test_the_jitter_is_the_seeds_and_the_backends_own() -> None:
    def until(url: str, seed: int) -> float:
        one = backend(url, eject_after=1, seed=seed)
        one.failed(0.0)
        return one.ejected_until_s

    assert until("http://a:1", 0) == until("http://a:1", 0)
    assert len({until("http://a:1", 0), until("http://a:1", 1), until("http://a:2", 0)}) == 3


def test_a_backend_is_known_by_one_number_for_ever() -> None:
    assert identity_of("http://10.0.0.4:8000") == 8289217443946260042
    assert identity_of("http://10.0.0.4:8000/v1/") == identity_of("http://10.0.0.4:8000")
    others = ("https://10.0.0.4:8000", "http://10.0.0.4:8001", "http://10.0.0.5:8000", "http://10.0.0.4:8000/b")
    numbers = {identity_of(url) for url in ("http://10.0.0.4:8000", *others)}
    assert len(numbers) == 5
    assert all(0 <= number < 2**63 for number in numbers)
