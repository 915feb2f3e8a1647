"""The network is an ordinary one: equal seeds, equal weights, and places that see each other."""

import pytest

pytest.importorskip("torch", reason="needs the library torch")

import torch

from wavetank.training.domains.network import PATCH, network


def test_equal_seeds_give_equal_weights_and_leave_torchs_numbers_alone():
    state = torch.random.get_rng_state()
    one, other, third = network(3, 4, 2, 0), network(3, 4, 2, 0), network(3, 4, 2, 1)
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(map(torch.equal, one.parameters(), other.parameters()))
    assert not all(map(torch.equal, one.parameters(), third.parameters()))


def test_every_place_is_seen_from_every_patch():
    model = network(3, 4, 2, 0)
    field = torch.randn(1, 3, 8, 16, dtype=torch.float64, requires_grad=True)
    out = model(field)
    assert out.shape == (1, 3, 8 // PATCH, 16 // PATCH)
    out[0, 0, 0, 0].backward()
    assert (field.grad != 0).all()
