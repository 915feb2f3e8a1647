"""Plans of transfers between cuts of a model, held against one element at a time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.training.rollouts.shards import Cut, Weight, cut_up, gathered_elements, piece, plan, put


@st.composite
def models(draw):
    layers = draw(st.integers(1, 5))
    weights = []
    for number in range(draw(st.integers(1, 6))):
        shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
        weights.append(Weight(name=f"w{number}", shape=shape, layer=draw(st.integers(0, layers - 1)),
                              axis=draw(st.integers(-1, len(shape) - 1))))  # fmt: skip
    cuts = [Cut(tensor=draw(st.integers(1, 5)), stages=draw(st.integers(1, layers)), layers=layers) for _ in range(2)]
    return weights, *cuts


def owners(cut, weight):
    """By element of a weight the ranks that hold it, one element at a time."""
    found = {}
    for part in range(cut.tensor):
        low, high = cut.bounds(weight, part)
        for index in np.ndindex(*weight.shape):
            if weight.axis < 0 or low <= index[weight.axis] < high:
                found.setdefault(index, []).append(cut.stage(weight.layer) * cut.tensor + part)
    return found


@given(models())
def test_every_element_that_a_target_needs_arrives_once_from_one_who_has_it(model):
    weights, source, target = model
    transfers = plan(weights, source, target)
    for weight in weights:
        have, need = owners(source, weight), owners(target, weight)
        arrived = {}
        for each in (each for each in transfers if each.weight == weight):
            for index in np.ndindex(*weight.shape):
                if each.begin <= index[max(weight.axis, 0)] < each.end:
                    assert each.source in have[index]
                    arrived.setdefault(index, []).append(each.target)
        assert {index: sorted(ranks) for index, ranks in arrived.items()} == need
    total = sum(len(ranks) for weight in weights for ranks in owners(target, weight).values())
    assert sum(each.elements for each in transfers) == total <= gathered_elements(weights, target)


@given(models(), st.integers(0, 2**32))
def test_carried_out_it_makes_the_shards_of_the_target(model, seed):
    weights, source, target = model
    draws = np.random.default_rng(seed)
    whole = {each.name: draws.integers(0, 2**16, each.shape, dtype=np.uint16) for each in weights}
    held, wanted = cut_up(whole, weights, source), cut_up(whole, weights, target)
    got = {key: np.zeros_like(array) for key, array in wanted.items()}
    for each in plan(weights, source, target):
        put(got, target, each, piece(held, source, each))
    assert got.keys() == wanted.keys()
    assert all((got[key] == wanted[key]).all() for key in wanted)


def test_a_known_plan():
    weight = Weight(name="up", shape=(6, 4), layer=1, axis=0)
    source, target = Cut(tensor=2, stages=2, layers=2), Cut(tensor=3, layers=2)
    found = [(each.source, each.target, each.begin, each.end, each.elements) for each in plan([weight], source, target)]
    assert found == [(2, 0, 0, 2, 8), (2, 1, 2, 3, 4), (3, 1, 3, 4, 4), (3, 2, 4, 6, 8)]
    assert gathered_elements([weight], target) == 72
    norm = Weight(name="norm", shape=(5,), layer=0, axis=-1)
    found = [(each.source, each.target, each.elements) for each in plan([norm], source, target)]
    assert found == [(0, 0, 5), (1, 1, 5), (0, 2, 5)]


def test_stages_have_whole_layers_the_first_ones_more():
    cut = Cut(tensor=1, stages=3, layers=8)
    assert [cut.stage(layer) for layer in range(8)] == [0, 0, 0, 1, 1, 1, 2, 2]
    assert cut.ranks == 3


def test_what_is_no_model_or_no_cut_is_refused():
    weight = Weight(name="w", shape=(4,), layer=0, axis=0)
    for change in ({"shape": ()}, {"shape": (0,)}, {"layer": -1}, {"axis": 1}, {"axis": -2}):
        with pytest.raises(BadValueError, match="no weight"):
            Weight(**{"name": "w", "shape": (4,), "layer": 0, "axis": 0, **change})
    for change in ({"tensor": 0}, {"stages": 0}, {"stages": 3}):
        with pytest.raises(BadValueError, match="cannot be cut"):
            Cut(**{"tensor": 1, "stages": 1, "layers": 2, **change})
    with pytest.raises(BadValueError, match="twice"):
        plan([weight, weight], Cut(tensor=1, layers=1), Cut(tensor=1, layers=1))
    deep = Weight(name="deep", shape=(4,), layer=3, axis=0)
    with pytest.raises(BadValueError, match="no layer"):
        plan([deep], Cut(tensor=1, layers=4), Cut(tensor=1, layers=3))
    with pytest.raises(BadValueError, match="another shape"):
        cut_up({"w": np.zeros(5)}, [weight], Cut(tensor=1, layers=1))
