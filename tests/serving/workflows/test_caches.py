"""What devices keep: least recently used out first, counted against a list that is kept by hand."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.serving.workflows.caches import Caches
from wavetank.serving.workflows.interface import Device, Stage

SIZES = {"a": 1.0, "b": 2.0, "c": 3.0}


def caches(weights: float = 4.0, cache: float = 10.0) -> Caches:
    device = Device(name="d", weights_bytes=weights, cache_bytes=cache, load_bytes_per_s=1.0,
                    prefill_per_s={}, decode_per_s={})  # fmt: skip
    return Caches(device, SIZES, {"a": 1.0, "b": 1.0, "c": 2.0})


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["", "p", "q"]), st.integers(1, 6)), max_size=30))
@settings(deadline=None)
def test_models_and_prefixes_go_as_in_a_list_kept_by_hand(uses):
    found = caches()
    models: list[str] = []
    prefixes: list[tuple[str, str, int]] = []
    for model, prefix, tokens in uses:
        stage = Stage(model=model, prompt_tokens=tokens + 1, output_tokens=1, prefix=prefix, prefix_tokens=tokens)
        there = [each for each in prefixes if each[:2] == (model, prefix)] if prefix else []
        expected_reused = min(tokens, there[0][2]) if there else 0
        loaded, gone = model not in models, []
        models = [each for each in models if each != model]
        while sum(SIZES[each] for each in [*models, model]) > 4.0:
            gone.append(models.pop(0))
        models.append(model)
        prefixes = [each for each in prefixes if each[0] not in gone]
        if prefix:
            kept = max([tokens, *(each[2] for each in there)])
            prefixes = [each for each in prefixes if each[:2] != (model, prefix)]
            weight = {"a": 1, "b": 1, "c": 2}
            if kept * weight[model] <= 10:
                while sum(each[2] * weight[each[0]] for each in prefixes) + kept * weight[model] > 10:
                    prefixes.pop(0)
                prefixes.append((model, prefix, kept))
        used = found.use(stage)
        assert (used.loaded, used.reused_tokens, list(used.evicted)) == (loaded, expected_reused, gone)
        assert list(found.models) == models
        assert [(*key, value) for key, value in found.prefixes.items()] == prefixes


def test_a_copy_is_its_own():
    one = caches()
    one.use(Stage(model="a", prompt_tokens=2, output_tokens=1, prefix="p", prefix_tokens=1))
    other = one.copy()
    other.use(Stage(model="c", prompt_tokens=2, output_tokens=1))
    assert (list(one.models), list(other.models)) == (["a"], ["a", "c"])
