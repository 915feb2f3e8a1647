from __future__ import annotations

import pytest
from scripted_faults import Scripted

from wavetank.errors import BadValueError
from wavetank.protocols.broadcast.accounting import Echo, Ready
from wavetank.protocols.broadcast.adversaries import Twins
from wavetank.protocols.broadcast.bracha import Bracha
from wavetank.protocols.broadcast.hash_bracha import HashBracha, Payload
from wavetank.protocols.broadcast.trials import judged
from wavetank.sim.events import simulate
from wavetank.sim.faults import SelectiveRelay
from wavetank.sim.simulation import Request

ONE = [Request(at=1.0, node=0, command=("broadcast", b"x" * 5000))]


def test_the_payload_travels_once_to_each() -> None:
    short, long = (
        simulate(algorithm, size=7, until=20, requests=ONE).total("bytes") for algorithm in (HashBracha(), Bracha())
    )
    assert 6 * 5000 < short < 6 * 5000 + 2 * 7 * 6 * 60
    # Send, echo and ready of everyone carry it in the plain protocol.
    assert 5000 * (6 + 2 * 7 * 6) < long < 5100 * (6 + 2 * 7 * 6)


def test_it_takes_three_message_delays() -> None:
    run = simulate(HashBracha(), size=7, until=20, requests=ONE)
    assert set(run.decided_at.values()) == {4.0}
    assert run.replies[0].result == (0, 1)


def test_who_was_left_out_fetches_the_payload_from_those_who_echoed() -> None:
    faults = [SelectiveRelay(members=(0,), to=(1, 2, 3, 4))]
    run = simulate(HashBracha(), size=7, until=40, requests=ONE, faults=faults, log=True)
    assert not any(judged(HashBracha(), run).values())
    assert run.decisions[6, (0, 1)] == b"x" * 5000
    fetched = [each for each in run.log if type(each.what).__name__ == "Payload" and each.node == 6]
    assert 1 <= len(fetched) <= 3


def test_a_node_that_heard_something_else_delivers_what_the_others_do() -> None:
    faults = [Twins(members=(0,), first=(1, 2, 3, 4, 5), second=(6,))]
    run = simulate(HashBracha(), size=7, until=40, requests=ONE, faults=faults)
    delivered = {run.decisions.get((node, (0, 1))) for node in range(1, 7)}
    assert delivered == {b"x" * 5000}


def test_two_halves_that_heard_different_things_deliver_nothing() -> None:
    faults = [Twins(members=(0,), first=(1, 2, 3), second=(4, 5, 6))]
    run = simulate(HashBracha(), size=7, until=40, requests=ONE, faults=faults)
    assert run.decisions == {}


def test_a_negative_payload_is_refused() -> None:
    with pytest.raises(BadValueError, match="out of range"):
        HashBracha(payload_bytes=-1)


def test_a_vote_for_nothing_delivers_nothing() -> None:
    # The empty digest stands for "none yet": taken for a digest it would make all deliver the empty payload.
    script = (Echo(2, 1, b""), Ready(2, 1, b""), Echo(2, 2, b"short"), Payload(2, 1, b""))
    run = simulate(HashBracha(), size=4, until=40, faults=[Scripted(members=(0,), script=script)])
    assert run.decisions == {}
    assert run.total("rejected") == 9
