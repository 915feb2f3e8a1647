"""Times and bytes are those of a calculation by hand."""

from dataclasses import replace

import pytest

from wavetank.errors import BadValueError
from wavetank.platforms import device, model
from wavetank.training.layouts.costs import Machine, gather_s, peak_bytes, scatter_s, step_s
from wavetank.training.layouts.interface import Footprint

H100 = device("H100-SXM")
MACHINE = Machine(device=H100, ranks=16, latency_s=1e-6)
VIEWS = Footprint(1_000_000, 16_000_000, 0, copies=False)
COPIED = VIEWS._replace(copies=True)


def test_gathering_takes_what_the_levels_take_and_copies_pass_memory_twice():
    cast_s = 1_000_000 * 6 / H100.hbm_bytes_per_s
    assert gather_s(VIEWS, MACHINE) == pytest.approx(by_levels_of_gather() + cast_s, rel=0.01)
    assert gather_s(COPIED, MACHINE) - gather_s(VIEWS, MACHINE) == pytest.approx(16e6 * 4 / H100.hbm_bytes_per_s)


def by_levels_of_gather():
    n_bytes = 32e6
    return 7 * (1e-6 + n_bytes / 8 / H100.link_bytes_per_s) + 1e-6 + n_bytes / 16 / H100.network_bytes_per_s


def test_more_buffers_have_more_messages():
    assert gather_s(VIEWS._replace(buffers=3), MACHINE) - gather_s(VIEWS, MACHINE) == pytest.approx(2 * 8e-6)


def test_gradients_of_views_need_no_pass_where_types_are_equal():
    equal = replace(MACHINE, reduce_bytes=2)
    assert scatter_s(COPIED, equal) - scatter_s(VIEWS, equal) == pytest.approx(16e6 * 4 / H100.hbm_bytes_per_s)
    assert scatter_s(COPIED, MACHINE) == scatter_s(VIEWS, MACHINE)
    assert step_s([(VIEWS, 3)], MACHINE) == pytest.approx(
        3 * (2 * gather_s(VIEWS, MACHINE) + scatter_s(VIEWS, MACHINE))
    )


def test_a_slower_network_takes_longer():
    assert gather_s(VIEWS, replace(MACHINE, network_bytes_per_s=1e9)) > 5 * gather_s(VIEWS, MACHINE)


def test_memory_is_states_of_all_buckets_and_the_largest_one_gathered():
    llama = model("Llama-3.1-8B")
    buckets = [(VIEWS, 3), (VIEWS._replace(slice_elements=10), 1)]
    held, activations = peak_bytes(buckets, MACHINE, model=llama, tokens=10)
    assert activations == 10 * 4096 * (64 + 34)
    assert held == (3_000_010 * 16) + 16e6 * (2 + 2 + 2 + 4) + activations
    equal = replace(MACHINE, reduce_bytes=2)
    views, copied = (peak_bytes([(each, 1)], equal, model=llama, tokens=1)[0] for each in (VIEWS, COPIED))
    assert copied - views == 16e6 * 2


def test_ranks_fill_nodes():
    with pytest.raises(BadValueError, match="whole nodes"):
        Machine(device=H100, ranks=12)
