"""Tracing: labels that are right, adversaries that would give wrong ones, and parallel devices that are not there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from wavetank.errors import BadValueError
from wavetank.serving.profiling.operations import Operation
from wavetank.serving.profiling.tracing import RequestSizes, Trace, scaled, trace

torch = pytest.importorskip("torch", reason="torch is not installed")

from wavetank.serving.profiling.decoder import Decoder  # noqa: E402
from wavetank.serving.profiling.models import DecoderConfig, from_zoo  # noqa: E402
from wavetank.serving.profiling.profiled import Variant, traced  # noqa: E402

SMALL = DecoderConfig(name="small", layers=2, hidden=64, heads=4, kv_heads=2, head_dim=16, ffn=96, vocab=100)


def hidden(sizes: RequestSizes) -> tuple[Any, ...]:
    return (torch.empty(sizes.tokens, 48, device="meta"),)


def of(function: Callable[..., Any], inputs: Callable[[RequestSizes], Sequence[Any]] = hidden) -> Trace:
    return trace(function, inputs, weights=[torch.empty(48, 32, device="meta")])


def last(found: Trace) -> Any:
    return found.sequence[-1].arguments["a"]


def small_trace(**change: Any) -> Trace:
    config = replace(SMALL, **change)
    decoder = Decoder(config)
    return trace(decoder, decoder.inputs, weights=decoder.parameters(), numbers=config.numbers)


def test_an_output_inherits_the_label_of_the_input_of_its_size() -> None:
    found = of(lambda x: (x.relu(), x.sum(-1).exp())[1])
    assert last(found) == [{"t": "float32", "d": [{"NUM_TOKS": 1}]}]


def test_views_splits_and_products_of_sizes_are_followed() -> None:
    def model(x: Any) -> Any:
        rows, width = x.shape
        flat = x.view(rows * width)
        again = flat.view(-1, 16).flatten(0, 1).reshape(rows, 3, -1)
        left, right = again.chunk(2, dim=-1)
        return torch.cat((left, right, left), 0).exp()

    found = of(model)
    assert last(found) == [{"t": "float32", "d": [{"NUM_TOKS": 1, "x": 3}, 3, 8]}]
    views = [each for each in found.sequence if each.name == "aten.view.default"]
    assert views[0].arguments["a"][1] == [{"NUM_TOKS": 1, "x": 48}]


def test_operations_in_place_and_resized_tensors_keep_up_with_their_sizes() -> None:
    def model(x: Any) -> Any:
        x.mul_(2).add_(1)
        x.unsqueeze_(0)
        return x.exp()

    found = of(model)
    assert last(found) == [{"t": "float32", "d": [1, {"NUM_TOKS": 1}, 48]}]


def test_a_squared_size_is_rebuilt_as_one() -> None:
    found = of(lambda x: (x @ x.T).view(x.shape[0] * x.shape[0]).exp())
    assert last(found) == [{"t": "float32", "d": [{"NUM_TOKS": 2}]}]


def test_a_float_that_follows_from_a_size_is_left_out_of_the_signature() -> None:
    found = of(lambda x: x * (1 / x.shape[0]))
    assert last(found)[1] == {"any": "float"}
    fixed = of(lambda x: x * 0.5)
    assert last(fixed)[1] == {"f": (0.5).hex()}


def test_an_integer_argument_that_is_a_size_is_a_symbol() -> None:
    found = of(lambda x: torch.narrow(x, 0, 1, x.shape[0] - 1).exp())
    narrow = found.sequence[-2].arguments["a"]
    assert narrow[3] == {"NUM_TOKS": 1, "+": -1}


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        (lambda x: x.exp() if x.shape[0] > 10_500 else x.sin(), "branches"),
        (lambda x: [x.exp() for _ in range(x.shape[0] // 1000)], "branches"),
        (lambda x: x[: x.shape[0] // 2].exp(), "cannot be followed"),
        (lambda x: torch.zeros(len(x) // 3, device="meta").exp(), "cannot be followed"),
        (lambda x: x.exp() if float(x.sum()) > 0 else x, "without its values"),
        (lambda x: x.nonzero().exp(), "without its values"),
        (lambda x: x.view(3, 5), "without its values"),
    ],
)
def test_what_cannot_be_followed_is_an_error_and_no_wrong_profile(model: Any, problem: str) -> None:
    with pytest.raises(BadValueError, match=problem):
        of(model)


def test_a_size_that_only_looks_like_the_requests_is_found_out() -> None:
    sizes = RequestSizes(11, 5, 263, 31, 509)
    with pytest.raises(BadValueError, match="cannot be followed"):
        # A table of 11 rows that is no weight: the first pass takes it for the tokens.
        trace(lambda x: torch.zeros(11, device="meta").exp(), hidden, weights=[], sizes=sizes)


def test_sizes_that_collide_with_the_model_are_an_error_where_they_were_asked_for() -> None:
    sizes = RequestSizes(48, 5, 263, 31, 509)
    with pytest.raises(BadValueError, match="same number"):
        trace(lambda x: x.exp(), hidden, weights=[torch.empty(48, 32, device="meta")], sizes=sizes)


def test_sizes_are_chosen_so_that_a_model_with_the_first_choice_is_traced_too() -> None:
    weight = torch.empty(10_007, 48, device="meta")
    found = trace(lambda x: torch.nn.functional.linear(x, weight), hidden, weights=[weight])
    x, w, *_ = last(found)
    assert x["d"] == [{"NUM_TOKS": 1}, 48]
    assert w == {"t": "float32", "d": [10_007, 48], "w": 1}


def test_a_module_of_torch_is_traced_with_its_own_weights() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(48, 96), torch.nn.ReLU(), torch.nn.Linear(96, 48)).to("meta")
    found = trace(module, hidden)
    assert [each.name for each in found.sequence] == ["aten.linear.default", "aten.relu.default", "aten.linear.default"]
    assert sum(found.counts.values()) == 3


def test_the_order_of_a_tensor_in_memory_is_part_of_its_signature() -> None:
    rows, columns = of(lambda x: x.exp()), of(lambda x: x.T.exp())
    assert last(columns)[0]["o"] == [1, 0]
    assert rows.sequence[-1].signature != columns.sequence[-1].signature
    wide = of(lambda x: (x.sum(-1, keepdim=True).expand(-1, 48)).exp())
    assert last(wide)[0]["e"] == [1]


def test_counts_add_up_to_the_operations_of_one_pass() -> None:
    """Check 4: the sum of the counts is what torch really calls."""
    found = small_trace()
    assert sum(found.counts.values()) == len(found.sequence)
    calls: list[str] = []

    class Count(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            calls.append(str(function))
            return function(*args, **(kwargs or {}))

    decoder = Decoder(SMALL, device="cpu")
    given = (torch.tensor([1, 2, 3]), torch.arange(3), decoder.new_cache(1, 8), torch.tensor([[0, 0, 3, 0]]))
    with torch.inference_mode():
        last_one = torch.tensor([2])
        with Count():
            decoder(*given, last_one)
    assert calls == [each.name for each in found.sequence]


def test_two_models_of_equal_widths_share_all_operations_but_those_of_other_widths() -> None:
    """Check 2: the second costs nothing where hidden and head sizes are equal."""
    first, second = small_trace(), small_trace(ffn=128)
    shared = set(first.counts) & set(second.counts)
    fresh = set(second.counts) - shared
    assert fresh
    assert all("96" not in each.structure for each in fresh)
    assert all("128" in each.structure or "256" in each.structure for each in fresh)
    deep = small_trace(layers=3)
    assert set(deep.counts) == set(first.counts)
    assert sum(deep.counts.values()) > sum(first.counts.values())


def test_another_back_end_or_type_changes_what_it_must() -> None:
    """Check 3: a back end is part of attention alone, a type of everything."""
    plain = set(traced(SMALL, Variant()).counts)
    padded = set(traced(SMALL, Variant(backend="padded")).counts)
    assert {each.kind for each in padded - plain} == {"attention"}
    assert len(padded - plain) == 1
    half = set(traced(SMALL, Variant(dtype="bfloat16")).counts)
    assert not {each for each in half & plain if "linear" in each.name or each.kind == "attention"}


def test_epsilons_do_not_keep_models_apart() -> None:
    assert set(small_trace(epsilon=1e-6).counts) == set(small_trace().counts)


def test_a_deeper_model_is_counted_from_one_layer_and_two() -> None:
    whole = small_trace(layers=5, qk_norm=True)
    assert dict(scaled(small_trace(qk_norm=True), small_trace(layers=1, qk_norm=True), 5).counts) == dict(whole.counts)


def test_devices_that_are_not_there_are_traced_with_the_shapes_of_one_of_them() -> None:
    config = from_zoo("Llama-3.1-70B")
    found = traced(config, Variant(dtype="bfloat16", tensor_parallel=4))
    assert {(each.name, each.devices): count for each, count in found.collectives.items()} == {
        ("all_reduce", 4): 160, ("all_gather", 4): 1,
    }  # fmt: skip
    widths = {tuple(each.arguments["a"][1]["d"]) for each in found.counts if each.name == "aten.linear.default"}
    assert (2 * 28672 // 4, 8192) in widths
    assert (128256 // 4, 8192) in widths
    assert not torch.distributed.is_initialized()


def test_an_operation_can_be_a_key() -> None:
    one = small_trace().sequence[0]
    assert {one: 1}[Operation(one.name, one.structure)] == 1
