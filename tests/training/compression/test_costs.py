"""Times on a fabric: formulas where there are any, a plain walk event by event elsewhere."""

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.platforms.fabric import Fabric, Level
from wavetank.training.compression.costs import RELATIVE, Costs, all_reduce_s, crossing_bytes_per_s
from wavetank.training.compression.frames import FRAME_BYTES
from wavetank.training.compression.interface import WORK, Task
from wavetank.training.compression.ncclz import Ncclz
from wavetank.training.compression.ring import play
from wavetank.training.compression.rivals import Bfloat16, PlainRing

FREE = Costs(rans_bytes_per_s=1e15, frame_s=0.0)


def flat(size, bytes_per_s=1e9, alpha_s=0.0):
    return Fabric(levels=(Level(name="link", size=size, alpha_s=alpha_s, bytes_per_s=bytes_per_s),))


def played(system, size=4, shape=(64, 64), bound=0.05):
    given = [np.cumsum(np.random.default_rng(i).normal(size=shape), axis=1).astype(np.float32).reshape(-1)
             for i in range(size)]  # fmt: skip
    return play(system, given, Task(size=size, shape=shape, bound=bound))


@pytest.mark.parametrize("size", [2, 4, 8])
def test_a_plain_ring_takes_what_the_fabric_says(size):
    one = played(PlainRing(), size)
    fabric = flat(size, alpha_s=3e-6)
    assert all_reduce_s(one, fabric, FREE) == pytest.approx(
        fabric.collective_ps("all-reduce", range(size), 4 * 64 * 64) / 1e12, rel=1e-6
    )


def test_a_large_plain_ring_is_bound_by_its_links_and_its_frames_overlap():
    one = played(PlainRing())
    scale = 4 * 8 * FRAME_BYTES / (4 * 64 * 64)
    took_s = all_reduce_s(one, flat(4), FREE, scale=scale)
    assert took_s == pytest.approx(6 * 8 * FRAME_BYTES / 1e9, rel=1e-6)
    # Latency is paid once: frames of the next round leave while the last ones of this round are on their way.
    assert all_reduce_s(one, flat(4, alpha_s=1e-3), FREE, scale=scale) == pytest.approx(took_s + 1e-3, rel=1e-5)


def test_ranks_of_a_node_share_its_link_in_a_direct_exchange_and_not_in_a_ring():
    from tests.training.compression.test_ring import PlainDirect

    nodes = Fabric(levels=(
        Level(name="node", size=2, alpha_s=0.0, bytes_per_s=1e12),
        Level(name="network", size=2, alpha_s=0.0, bytes_per_s=1e9, shared=True),
    ))  # fmt: skip
    part_s = 4 * 64 * 64 / 4 / 1e9
    ring_s = all_reduce_s(played(PlainRing()), nodes, FREE)
    direct_s = all_reduce_s(played(PlainDirect()), nodes, FREE)
    assert ring_s == pytest.approx(6 * part_s, rel=0.01)
    # Distances 1, 2 and 3: of two ranks one, two and one leave the node.
    assert direct_s == pytest.approx(2 * (1 + 2 + 1) * part_s, rel=0.01)


def walked(one, link, costs, scale, frames):
    """Return the time of the same rules, rank by rank and frame by frame, on equal links without latency."""
    size = len(one.sums)
    codec, wire = [0.0] * size, [0.0] * size
    here = [[costs.seconds(one.rounds[0].work[r].first) * scale] * frames for r in range(size)]
    codec = [each[0] for each in here]
    for each in one.rounds:
        there = [[0.0] * frames for _ in range(size)]
        for r in range(size):
            before, after = (
                costs.seconds(getattr(each.work[r], when)) * scale / frames for when in ("before", "after")
            )
            for f in range(frames):
                leaves = here[r][f]
                if before > 0:
                    codec[r] = leaves = max(codec[r], leaves) + before + costs.frame_s
                wire[r] = max(wire[r], leaves) + each.n_bytes[r] * scale / frames / link
                there[(r + each.distance) % size][f] = wire[r]
                if after > 0:
                    codec[r] = max(codec[r], here[r][f]) + after + costs.frame_s
        here = there
    ends = []
    for r in range(size):
        for f in range(frames):
            late = costs.seconds(one.rest[r].after) * scale / frames
            if late > 0:
                codec[r] = max(codec[r], here[r][f]) + late + costs.frame_s
        ends.append(max(codec[r], max(here[r])) + costs.seconds(one.rest[r].before + one.rest[r].first) * scale)
    return max(ends)


@pytest.mark.parametrize("system", [Ncclz(mode="rans"), Ncclz(mode="fixed"), Bfloat16()])
@pytest.mark.parametrize("link", [1e7, 1e9, 1e11])
def test_times_are_those_of_a_walk_rank_by_rank(system, link):
    one = played(system)
    costs = Costs(rans_bytes_per_s=1e9, frame_s=1e-5)
    for frames in (1, 3):
        # The largest part has a quarter of the numbers.
        scale = frames * FRAME_BYTES / (64 * 64) * 0.99
        assert all_reduce_s(one, flat(4, link), costs, scale=scale) == pytest.approx(
            walked(one, link, costs, scale, frames), rel=1e-9
        )


def test_the_speed_up_is_the_ratio_where_the_link_binds_and_below_one_where_the_codec_does():
    plain, ours = played(PlainRing()), played(Ncclz(mode="rans"))
    costs = Costs(rans_bytes_per_s=1e9, frame_s=0.0)
    scale = 64 * FRAME_BYTES / (64 * 64)
    slow, fast = flat(4, 1e6), flat(4, 1e11)
    gain = all_reduce_s(plain, slow, costs, scale=scale) / all_reduce_s(ours, slow, costs, scale=scale)
    ratio = plain.sent_bytes / ours.sent_bytes
    assert ratio > 3
    assert gain == pytest.approx(ratio, rel=0.1)
    assert all_reduce_s(plain, fast, costs, scale=scale) < all_reduce_s(ours, fast, costs, scale=scale)


@pytest.mark.parametrize("size", [2, 4, 8])
def test_times_are_equal_at_the_bandwidth_of_the_closed_form(size):
    costs = Costs(rans_bytes_per_s=1e9, frame_s=0.0)
    crossing = crossing_bytes_per_s(costs, size)
    scale = 64 * size * FRAME_BYTES / (4 * 64 * 64)
    plain, ours = played(PlainRing(), size), played(Ncclz(mode="rans"), size)

    def ratio(link):
        return all_reduce_s(ours, flat(size, link), costs, scale=scale) / all_reduce_s(
            plain, flat(size, link), costs, scale=scale
        )

    assert ratio(crossing) == pytest.approx(1.0, abs=0.1)
    assert ratio(1.3 * crossing) > 1.1
    assert ratio(crossing / 1.3) < 0.9


def test_work_costs_by_its_kind_and_speeds_are_of_both_sides():
    costs = Costs(rans_bytes_per_s=4e9, frame_s=0.0)
    one = played(Ncclz(mode="rans"))
    work = one.rounds[0].work[0].before
    assert costs.seconds(work) == pytest.approx(work["rans-encode"] / 1e9)
    assert costs.speeds(1e9).rans_bytes_per_s == pytest.approx(
        4e9 / (1 / RELATIVE["rans-encode"] + 1 / RELATIVE["rans-decode"])
    )
    assert set(RELATIVE) <= set(WORK)


def test_what_does_not_fit_is_refused():
    one = played(PlainRing())
    with pytest.raises(BadValueError, match="fit"):
        all_reduce_s(one, flat(3), FREE)
    with pytest.raises(BadValueError, match="fit"):
        all_reduce_s(one, flat(4), FREE, scale=0.0)
    with pytest.raises(BadValueError):
        Costs(rans_bytes_per_s=float("nan"))
    with pytest.raises(BadValueError, match="speed"):
        Costs(relative={"add": 1.0})
