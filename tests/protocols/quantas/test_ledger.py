"""Tests of a miner's view of the tree of blocks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wavetank.protocols.quantas.ledger import GENESIS, Ledger, forks

# Two branches from the first block: a-b-c, and x with three children.
BLOCKS = [
    ("a", GENESIS, False), ("b", "a", False), ("c", "b", True), ("x", GENESIS, False), ("y1", "x", False),
    ("y2", "x", False), ("y3", "x", False),
]  # fmt: skip


def filled(blocks: list[tuple[str, str, bool]], *, heaviest: bool = False) -> Ledger:
    ledger = Ledger(heaviest)
    for block in blocks:
        ledger.add(*block)
    return ledger


@given(st.permutations(BLOCKS))
def test_the_longest_chain_does_not_depend_on_the_order_of_arrival(blocks: list[tuple[str, str, bool]]) -> None:
    ledger = filled(blocks)
    assert ledger.tip == "c"
    heights = {name: block.height for name, block in ledger.blocks.items()}
    assert heights == {GENESIS: 0, "a": 1, "b": 2, "c": 3, "x": 1, "y1": 2, "y2": 2, "y3": 2}


def test_among_equal_heights_the_smaller_name_wins() -> None:
    assert filled([("b", GENESIS, False), ("a", GENESIS, False)]).tip == "a"
    assert filled([("a", GENESIS, False), ("b", GENESIS, False)]).tip == "a"


def test_a_block_without_its_ancestors_waits() -> None:
    ledger = filled([("b", "a", False), ("c", "b", False)])
    assert ledger.tip == GENESIS
    assert ledger.blocks["c"].height == -1
    ledger.add("a", GENESIS, False)
    assert (ledger.tip, ledger.blocks["c"].height) == ("c", 3)


def test_a_known_block_may_turn_out_to_be_a_parasites() -> None:
    ledger = filled([("a", GENESIS, False), ("a", GENESIS, True), ("a", GENESIS, False)])
    assert ledger.blocks["a"].parasite


def test_the_heaviest_rule_follows_descendants_and_compares_weights() -> None:
    ledger = filled([("a", GENESIS, False), ("b", "a", False)], heaviest=True)
    assert ledger.tip == "b"
    # A branch that arrives late, children first, is weighed as a whole.
    for block in (("y1", "x", False), ("y2", "x", False), ("x", GENESIS, False)):
        ledger.add(*block)
    assert ledger.tip == "y1"
    ledger.add("c", "b", False)
    assert ledger.tip == "c"


def test_the_union_of_views_is_summed_up_as_in_quantas() -> None:
    views = [filled(BLOCKS), filled(BLOCKS[:3]), filled(BLOCKS[:4])]
    found = forks(views, heaviest=False)
    assert found == {
        "minedBlocks": 7.0,
        "dagLongestChainLength": 3.0,
        "dagCommonRootHeight": 3.0,
        "dagCommonRootParasites": 1.0,
        "dagTotalForkPoints": 2.0,
        "dagForks": {"2": 1},
        "dagForkLocations": [{"height": 0, "length": 2}],
    }


def test_the_heaviest_chain_goes_by_the_weight_of_subtrees() -> None:
    found = forks([filled(BLOCKS, heaviest=True)], heaviest=True)
    # x weighs 4, a weighs 3; among the children of x the smallest name goes on.
    assert (found["dagLongestChainLength"], found["dagCommonRootParasites"]) == (2.0, 0.0)
    assert found["dagForks"] == {"3": 1}


def test_an_empty_tree_has_no_forks() -> None:
    found = forks([Ledger(False), Ledger(False)], heaviest=False)
    assert (found["minedBlocks"], found["dagLongestChainLength"], found["dagTotalForkPoints"]) == (0.0, 0.0, 0.0)
