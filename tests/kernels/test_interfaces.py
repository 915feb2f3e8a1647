"""What a sorter promises."""

import inspect

import pytest

from wavetank import catalog
from wavetank.kernels.interfaces import PairSorter, Sorter

SORTERS = [entry.name for entry in catalog.built_in() if "sort-integers" in entry.studies]


def promised(protocol):
    return [name for name, value in vars(protocol).items() if inspect.isfunction(value) and not name.startswith("_")]


@pytest.mark.parametrize("name", SORTERS)
def test_every_contender_keeps_the_promise(name):
    sorter = catalog.system(name).build()
    for method in promised(Sorter):
        wanted = [p for p in inspect.signature(getattr(Sorter, method)).parameters if p != "self"]
        assert list(inspect.signature(getattr(sorter, method)).parameters)[: len(wanted)] == wanted


def test_fractal_sort_sorts_pairs_too():
    sorter = catalog.system("fractal-sort").build()
    assert all(hasattr(sorter, method) for method in promised(PairSorter))
