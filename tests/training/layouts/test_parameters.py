"""Buckets hold the published numbers of parameters, in any form of experts."""

import pytest

from wavetank.errors import BadValueError
from wavetank.platforms import model
from wavetank.training.layouts.parameters import MATRIX, buckets


def counted(name, **options):
    return sum(each.times * sum(t.size for t in each.tensors) for each in buckets(model(name), **options))


@pytest.mark.parametrize("name", ["Llama-3.1-70B", "DeepSeek-V3", "GPT-OSS-120B"])
@pytest.mark.parametrize("experts", ["fused", "separate", "flat"])
def test_all_parameters_are_there(name, experts):
    assert counted(name, experts=experts) == model(name).parameters


def test_blocks_are_rows_of_the_last_dimension_or_whole_matrices():
    layer = {each.name: each for each in buckets(model("GPT-OSS-120B"), block_rows=16)[1].tensors}
    assert layer["experts gate up"].shape == (128, 2880, 5760)
    assert layer["experts gate up"].block == 16 * 5760
    assert layer["block norm"].block == 16
    whole = {each.name: each for each in buckets(model("GPT-OSS-120B"), block_rows=MATRIX)[1].tensors}
    assert whole["experts gate up"].block == 2880 * 5760
    assert whole["block norm"].block == 2880


def test_dense_layers_stand_beside_those_with_experts():
    assert [(each.name, each.times) for each in buckets(model("DeepSeek-V3"))] == [
        ("embedding", 1), ("layer", 3), ("layer with experts", 58), ("head", 1),
    ]  # fmt: skip
    assert len(buckets(model("Llama-3.1-70B"))) == 3


def test_negative_rows_and_other_forms_are_refused():
    with pytest.raises(BadValueError, match="A block has rows"):
        buckets(model("DeepSeek-V3"), block_rows=-1)
    with pytest.raises(BadValueError, match="no such form"):
        buckets(model("DeepSeek-V3"), experts="sparse")
