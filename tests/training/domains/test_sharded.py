"""Operations that a user registers, operations without a handler, and what a cut tensor refuses."""

import pytest

pytest.importorskip("torch", reason="needs the library torch")

from tests.training.domains import cases

from wavetank.live.ranks import run_ranks
from wavetank.training.domains.sharded import handler_of


def test_an_operation_is_gathered_until_somebody_registers_a_handler():
    for before, after, found, wanted in run_ranks(cases.own_operation, 2, timeout_s=300.0):
        assert before == {"frac": 1}
        assert after == before
        assert found == wanted


def test_comparisons_and_indices_are_those_of_tensors_and_are_not_gathered_where_parts_suffice():
    for found in run_ranks(cases.asked_like_tensors, 3, timeout_s=300.0):
        assert found == {"wrong": [], "kept": [[], []], "gathered": [9, 6], "beyond": 4, "length": 7, "rows": 7,
                         "member": True}  # fmt: skip


def test_what_would_cut_parts_or_does_not_fit_is_refused():
    said = run_ranks(cases.refusals, 3, timeout_s=300.0)
    assert said[0] == said[1] == said[2]
    assert [each.split(".")[0] for each in said[0]] == [
        "A view would cut through the parts of a tensor",
        "A view would cut through the parts of a tensor",
        "A view would cut through the parts of a tensor",
        "A part has another size than the tensor says",
        "A dimension is cut into a part for each process",
        "A tensor is cut along a dimension that it has",
        "A dimension is cut into a part for each process",
        "A piece lies within its dimension",
        "What is gathered or cut anew is a copy, which no operation in place would change",
        "What is gathered or cut anew is a copy, which no operation in place would change",
        "There are not as many points",
        "There are not as many points",
        "Queries and points are lists of places",
        "Sizes are given or asked for",
        "A domain has members, this process among them",
    ]


def test_names_of_functions_lead_to_their_handlers():
    import wavetank.training.domains.halo

    assert handler_of("conv2d") is wavetank.training.domains.halo.convolution
    assert handler_of("_max_pool2d") is handler_of("max_pool2d") is wavetank.training.domains.halo.max_pool
    assert handler_of("__truediv__") is handler_of("div")
    assert handler_of("cumsum") is None
