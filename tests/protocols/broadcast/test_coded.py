from __future__ import annotations

from scripted_faults import Scripted

from wavetank.protocols.broadcast.accounting import Ready
from wavetank.protocols.broadcast.adversaries import Twins
from wavetank.protocols.broadcast.coded import Coded, Echo, Send
from wavetank.protocols.broadcast.erasure import encode, merkle_tree
from wavetank.protocols.broadcast.trials import judged
from wavetank.sim.events import simulate
from wavetank.sim.faults import SelectiveRelay
from wavetank.sim.simulation import Request

ONE = [Request(at=1.0, node=0, command=("broadcast", bytes(range(256)) * 40))]


def test_echoes_carry_fragments() -> None:
    run = simulate(Coded(), size=7, until=20, requests=ONE)
    assert {run.decisions[node, (0, 1)] for node in range(7)} == {ONE[0].command[1]}
    assert set(run.decided_at.values()) == {4.0}
    # n^2 fragments of a third of the payload, and paths and readies that are short.
    least = 48 * 10_240 / 3
    assert least < run.total("bytes") < least + 48 * (3 * 34 + 2 * 60)


def test_a_declared_payload_counts_as_a_real_one_of_its_size() -> None:
    small = [Request(at=1.0, node=0, command=("broadcast", b"x"))]
    declared = simulate(Coded(payload_bytes=10_240), size=7, until=20, requests=small).total("bytes")
    assert declared == simulate(Coded(), size=7, until=20, requests=ONE).total("bytes")


def test_who_got_no_fragment_decodes_from_those_of_others() -> None:
    faults = [SelectiveRelay(members=(0,), to=(1, 2, 3, 4, 5))]
    run = simulate(Coded(), size=7, until=40, requests=ONE, faults=faults)
    assert not any(judged(Coded(), run).values())
    assert (6, (0, 1)) in run.decisions


def test_fragments_of_no_payload_are_delivered_by_nobody() -> None:
    fragments = list(encode(b"payload", 4, 2))
    fragments[3] = b"\0" * len(fragments[3])
    root, paths = merkle_tree(fragments)
    menu = tuple(Send(1, root, fragments[place], paths[place]) for place in range(4))
    run = simulate(Coded(), size=4, until=60, faults=[Scripted(members=(0,), script=menu)], log=True)
    # All three correct nodes echo their fragments to each other, and see that no payload has this root.
    assert sum(isinstance(each.what, Echo) for each in run.log if each.node) == 6
    assert run.decisions == {}


def test_a_fragment_without_its_proof_is_rejected() -> None:
    root, paths = merkle_tree(fragments := encode(b"payload", 4, 2))
    wrong = Echo(0, 1, root, fragments[2], paths[3])
    run = simulate(Coded(), size=4, until=60, faults=[Scripted(members=(1,), script=(wrong,))])
    assert run.total("rejected") == 3


def test_two_halves_deliver_nothing() -> None:
    faults = [Twins(members=(0,), first=(1, 2, 3), second=(4, 5, 6))]
    assert simulate(Coded(), size=7, until=40, requests=ONE, faults=faults).decisions == {}


def test_a_root_of_another_length_is_rejected() -> None:
    script = (Ready(2, 1, b""), Ready(2, 1, bytes(31)), Send(1, b"", b"", ()))
    run = simulate(Coded(), size=4, until=60, faults=[Scripted(members=(1,), script=script)])
    assert run.total("rejected") == 9
    assert run.decisions == {}
