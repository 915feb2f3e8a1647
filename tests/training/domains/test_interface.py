"""Who has and who needs what, against a search over all windows one by one."""

import itertools

import pytest

from wavetank.errors import BadValueError
from wavetank.training.domains.interface import Layout, check_sizes, even_sizes, exchanged, windows


def test_parts_begin_where_those_before_them_end():
    assert Layout(2, (3, 0, 4)).begins() == (0, 3, 3, 7)
    assert Layout(0, (3, 0, 4)).length == 7


def test_even_parts_are_those_of_torch():
    torch = pytest.importorskip("torch", reason="needs the library torch")
    for length, processes in itertools.product(range(1, 12), range(1, 5)):
        chunks = [len(each) for each in torch.arange(length).chunk(processes)]
        assert even_sizes(length, processes) == (*chunks, *[0] * (processes - len(chunks)))


def test_sizes_that_are_none_are_refused():
    assert check_sizes([1, 0, 2], 3, 3) == (1, 0, 2)
    for sizes, processes, length in (([1, 2], 3, None), ([1, -1], 2, None), ([1, 2], 2, 4), ([1.0, 2], 2, None),
                                     ([True, 2], 2, None)):  # fmt: skip
        with pytest.raises(BadValueError, match="a part for each process"):
            check_sizes(sizes, processes, length)


@pytest.mark.parametrize("sizes", [(5, 4), (1, 0, 8), (0, 0, 7), (2, 2, 2, 1)])
def test_every_window_is_computed_once_by_the_process_that_has_its_middle(sizes):
    length = sum(sizes)
    owner = [each for each, size in enumerate(sizes) for _ in range(size)]
    for window, stride, dilation, padding in itertools.product((1, 2, 3, 5), (1, 2, 3), (1, 2), ((0, 0), (1, 2))):
        reach = dilation * (window - 1) + 1
        firsts = range(-padding[0], length + padding[1] - reach + 1, stride)
        if not firsts:
            with pytest.raises(BadValueError, match="No window fits"):
                windows(sizes, window=window, stride=stride, padding=padding, dilation=dilation)
            continue
        found = windows(sizes, window=window, stride=stride, padding=padding, dilation=dilation)
        middles = [min(max(first + (reach - 1) // 2, 0), length - 1) for first in firsts]
        for process in range(len(sizes)):
            mine = [first for first, middle in zip(firsts, middles, strict=True) if owner[middle] == process]
            assert found.sizes[process] == len(mine)
            if mine:
                seen = range(mine[0], mine[-1] + reach)
                inside = [each for each in seen if 0 <= each < length]
                begin, end = found.wanted[process]
                assert list(range(begin, end)) == inside
                assert found.padding[process] == (
                    sum(each < 0 for each in seen), sum(each >= length for each in seen)
                )  # fmt: skip


def test_a_window_of_one_part_fetches_nothing_and_others_half_of_themselves():
    patches = windows((8, 4, 12), window=4, stride=4)
    assert exchanged((8, 4, 12), patches.wanted) == 0
    for window in (3, 5, 7):
        strips = windows((8, 4, 12), window=window, padding=(window // 2,) * 2)
        assert strips.sizes == (8, 4, 12)
        # To either side of two boundaries.
        assert exchanged((8, 4, 12), strips.wanted) == 2 * 2 * (window // 2)
    # A strip may reach over a part.
    assert windows((4, 1, 4), window=5, padding=(2, 2)).wanted == ((0, 6), (2, 7), (3, 9))
