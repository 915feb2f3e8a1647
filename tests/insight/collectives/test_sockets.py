"""Collectives over sockets between threads: sums are right, and what does not fit hangs."""

from __future__ import annotations

import socket
import threading
import time

import numpy as np
import pytest

from wavetank.errors import WavetankError
from wavetank.insight.collectives.probes import NoProbe, Probe, read_probe
from wavetank.insight.collectives.sockets import Channels, Communicator


def together(tmp_path, size, work, probes=False, timeout=20.0):
    """Run ``work(communicator)`` in a thread for each rank; return what each returned."""
    results = [None] * size

    def run(rank):
        channels = Channels(tmp_path, rank, size)
        probe = Probe(tmp_path / f"frames-{rank}", rank) if probes else NoProbe()
        comm = Communicator(channels, 0, range(size), probe)
        try:
            results[rank] = work(comm)
        except WavetankError as error:
            results[rank] = error
        finally:
            channels.close()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout)
    assert not any(thread.is_alive() for thread in threads)
    return results


@pytest.mark.parametrize(("size", "many"), [(2, 10), (3, 1000), (5, 3), (4, 100_000)])
@pytest.mark.parametrize("tree", [False, True])
def test_all_reduce_sums(tmp_path, size, many, tree):
    def work(comm):
        array = np.arange(many, dtype=np.float64) * (comm.place + 1)
        (comm.all_reduce_tree if tree else comm.all_reduce)(array)
        return array

    expected = np.arange(many) * (size * (size + 1) / 2)
    for found in together(tmp_path, size, work):
        assert (found == expected).all()


@pytest.mark.parametrize("root", [0, 2])
def test_broadcast_gives_the_root_s(tmp_path, root):
    def work(comm):
        array = np.full(50, comm.place, np.int32)
        comm.broadcast(array, root)
        return array

    assert all((found == root).all() for found in together(tmp_path, 3, work))


def test_probes_count_every_chunk_and_every_byte(tmp_path):
    def work(comm):
        array = np.ones(4 * 1000, np.float32)
        comm.all_reduce(array)
        comm.all_reduce_tree(array)

    together(tmp_path, 4, work, probes=True)
    for rank in range(4):
        seen = read_probe(tmp_path / f"frames-{rank}")
        assert seen.done.all() and seen.seq.tolist() == [0, 1] and seen.size.tolist() == [16_000, 16_000]
        assert (seen.posted[0], seen.received[0], seen.sent_bytes[0], seen.received_bytes[0]) == (6, 6, 24_000, 24_000)
    root = read_probe(tmp_path / "frames-0")
    assert (root.posted[1], root.received[1]) == (2, 2)


def test_a_slow_link_is_counted_as_sending_and_not_as_waiting(tmp_path):
    def work(comm):
        comm.slow_s = 0.02 if comm.place == 1 else 0.0
        comm.all_reduce(np.ones(400, np.float32))

    together(tmp_path, 3, work, probes=True)
    sends = [int(read_probe(tmp_path / f"frames-{rank}").send_ns[0]) for rank in range(3)]
    assert sends[1] >= 4 * 20_000_000 > max(sends[0], sends[2])


def test_sending_lasts_until_the_chunk_has_arrived_and_not_until_the_kernel_has_taken_it(tmp_path):
    """A chunk that fits into the buffers of a connection was counted as sent at once, however slow the link."""

    def slow_reader():
        channels = Channels(tmp_path, 1, 2)
        link = channels.into[0]
        link.setblocking(True)
        link.sendall(b"c")
        time.sleep(0.2)
        assert len(link.recv(4000, socket.MSG_WAITALL)) == 4000
        time.sleep(0.1)
        link.sendall(b"a")
        channels.close()

    reader = threading.Thread(target=slow_reader, daemon=True)
    reader.start()
    channels = Channels(tmp_path, 0, 2)
    probe = Probe(tmp_path / "frames-0", 0)
    Communicator(channels, 0, range(2), probe).broadcast(np.ones(1000, np.float32), root=0)
    reader.join(20.0)
    channels.close()
    assert int(read_probe(tmp_path / "frames-0").send_ns[0]) >= 290_000_000


def test_a_slow_link_does_not_keep_its_sender_from_receiving(tmp_path):
    """A rank that slept in its loop left what came in unread, so that the rank before it looked slow, too."""

    def work(comm):
        comm.slow_s = 0.05 if comm.place == 1 else 0.0
        comm.all_reduce(np.ones(3 * 100_000, np.float32))

    together(tmp_path, 3, work, probes=True)
    sends = [int(read_probe(tmp_path / f"frames-{rank}").send_ns[0]) for rank in range(3)]
    assert sends[1] >= 4 * 50_000_000 > max(sends[0], sends[2])


def test_a_step_can_be_met_from_outside(tmp_path):
    def work(comm):
        met = []
        comm.at_step = met.append
        comm.all_reduce(np.ones(9))
        return met

    assert together(tmp_path, 3, work) == [[0, 1, 2, 3]] * 3


def test_a_member_that_ends_is_noticed(tmp_path):
    def work(comm):
        if comm.place:
            comm.all_reduce(np.ones(100))
        time.sleep(0.05)

    found = together(tmp_path, 2, work)
    assert isinstance(found[1], WavetankError) and "rank 0" in str(found[1])
