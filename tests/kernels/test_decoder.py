"""The reference decoder: held against plain numpy, and its parts against the whole."""

import dataclasses

import numpy as np
import pytest

from wavetank.errors import BadValueError, UnknownNameError
from wavetank.kernels.decoder import (
    Cache,
    DecoderConfig,
    DecoderWeights,
    blank,
    forward,
    joined,
    mixed,
    moved,
    route,
    swiglu,
    taken,
)

torch = pytest.importorskip("torch")

SMALL = {
    "vocabulary": 30, "layers": 3, "width": 12, "heads": 4, "head_width": 6, "latent": 10, "rotary": 4, "hidden": 14,
    "expert_hidden": 8, "window": 64, "dtype": "float64", "bases": (10_000.0, 50.0),
}  # fmt: skip
YARN = {"scaling": "yarn", "factor": 4.0, "original_window": 16}
KINDS = {
    "gqa": {}, "mla": {"attention": "mla"}, "gqa-experts": {"experts": 5},
    "mla-experts": {"attention": "mla", "experts": 5},
    "gqa-yarn": YARN, "mla-yarn": {"attention": "mla", **YARN},
}  # fmt: skip
TOKENS = np.random.default_rng(5).integers(0, 30, 40)


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def made(seed=0, **settings):
    return DecoderWeights.made(DecoderConfig(**{**SMALL, **settings}), seed)


def whole(weights, tokens=TOKENS, **more):
    return forward(weights, tokens, np.arange(len(tokens)), **more)


def close(one, other, within=1e-10):
    return torch.allclose(one, other, atol=within, rtol=0)


def same(one, other, within=1e-10):
    return np.array_equal(one.positions, other.positions) and all(
        close(a, b, within) for x, y in zip(one.layers, other.layers, strict=True) for a, b in zip(x, y, strict=True)
    )


# An independent forward pass: loops over heads and tokens, complex rotation, latents absorbed into queries.


def plainly(weights, tokens):
    config, found = weights.config, {name: each.numpy() for name, each in weights.tensors.items()}
    inner = found["embedding"][tokens]
    for number in range(config.layers):
        layer = {name[2:]: each for name, each in found.items() if name.startswith(f"{number}.")}
        attended = _attention(config, layer, _norm(inner) * layer["attention_norm"], number)
        inner = inner + attended @ layer["out"]
        normed = _norm(inner) * layer["mlp_norm"]
        inner = inner + np.stack([_network(config, layer, row) for row in normed])
    return (_norm(inner) * found["norm"]) @ found["head"]


def _norm(rows):
    return rows / np.sqrt((rows**2).mean(-1, keepdims=True) + 1e-6)


def _turn(config, row, position, number):
    half = len(row) // 2
    turned = (row[:half] + 1j * row[half:]) * np.exp(1j * position * config.frequencies(number))
    return np.r_[turned.real, turned.imag]


def _attention(config, layer, rows, number):
    count, head = len(rows), config.head_width
    stretch = (1 + 0.1 * np.log(config.factor)) ** 2 if config.scaling == "yarn" else 1.0
    out = np.zeros((count, config.heads, head))
    for at in range(count):
        for h in range(config.heads):
            if config.attention == "mla":
                size = head + config.rotary
                query = (rows[at] @ layer["query"])[h * size : (h + 1) * size]
                turned = _turn(config, query[head:], at, number)
                latents = _norm(rows @ layer["latent"]) * layer["latent_norm"]
                absorbed = layer["key"][:, h * head : (h + 1) * head] @ query[:head]
                scores = [
                    latents[key] @ absorbed + _turn(config, rows[key] @ layer["rotary"], key, number) @ turned
                    for key in range(at + 1)
                ]
                values = latents[: at + 1] @ layer["value"][:, h * head : (h + 1) * head]
            else:
                size, own = head, h // (config.heads // config.key_heads)
                query = _turn(config, (rows[at] @ layer["query"])[h * head : (h + 1) * head], at, number)
                mine = slice(own * head, (own + 1) * head)
                scores = [_turn(config, (rows[key] @ layer["key"])[mine], key, number) @ query for key in range(at + 1)]
                values = (rows[: at + 1] @ layer["value"])[:, mine]
            weights = np.exp(np.array(scores) * stretch / np.sqrt(size))
            out[at, h] = weights / weights.sum() @ values
    return out.reshape(count, -1)


def _silu(row, gate, up, down):
    inner = row @ gate
    return (inner / (1 + np.exp(-inner)) * (row @ up)) @ down


def _network(config, layer, row):
    if "router" not in layer:
        return _silu(row, layer["gate"], layer["up"], layer["down"])
    shares = np.exp(row @ layer["router"])
    best = sorted(range(len(shares)), key=lambda expert: -shares[expert])[: config.chosen]
    return sum(
        shares[e] / shares[best].sum() * _silu(row, layer["gate"][e], layer["up"][e], layer["down"][e]) for e in best
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_decoder_is_what_plain_numpy_computes(kind):
    weights = made(**KINDS[kind])
    assert np.allclose(whole(weights, TOKENS[:12]).logits.numpy(), plainly(weights, TOKENS[:12]), atol=1e-10)


def test_one_group_a_head_is_multi_head_attention():
    weights = made(key_heads=4)
    assert np.allclose(whole(weights, TOKENS[:9]).logits.numpy(), plainly(weights, TOKENS[:9]), atol=1e-10)
    # Two groups of equal heads are as many heads whose keys and values are given twice.
    grouped = made(key_heads=2)
    tensors = dict(grouped.tensors)
    for layer in range(3):
        for name in ("key", "value"):
            each = tensors[f"{layer}.{name}"].reshape(12, 2, 6)
            tensors[f"{layer}.{name}"] = each.repeat_interleave(2, 1).reshape(12, 24)
    single = DecoderWeights(dataclasses.replace(grouped.config, key_heads=4), tensors)
    assert close(whole(single).logits, whole(grouped).logits)


@pytest.mark.parametrize("kind", KINDS)
def test_step_by_step_is_what_one_call_gives(kind):
    weights = made(**KINDS[kind])
    at_once, cache, found = whole(weights), None, []
    for start, end in ((0, 1), (1, 17), (17, 18), (18, 40)):
        got = forward(weights, TOKENS[start:end], np.arange(start, end), cache)
        cache = got.cache
        found.append(got.logits)
    assert close(torch.cat(found), at_once.logits)
    assert same(cache, at_once.cache)


@pytest.mark.parametrize("kind", KINDS)
def test_all_rows_computed_again_are_a_full_pass_whatever_was_there(kind):
    weights = made(**KINDS[kind])
    other = whole(weights, TOKENS[::-1].copy()).cache
    again = forward(weights, TOKENS, np.arange(40), other, rows=np.arange(40))
    assert close(again.logits, whole(weights).logits)
    # In any order, in a blank cache too.
    order = np.random.default_rng(1).permutation(40)
    filled = forward(weights, TOKENS[order], order, blank(weights.config, 40), rows=order)
    assert close(filled.logits, whole(weights).logits[order]) and same(filled.cache, whole(weights).cache)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_are_right_already_are_reused_without_error(kind):
    weights, rows = made(**KINDS[kind]), np.array([39, 3, 20])
    full = whole(weights)
    got = forward(weights, TOKENS[rows], rows, full.cache, rows=rows)
    assert close(got.logits, full.logits[rows]) and same(got.cache, full.cache)


def test_a_row_that_was_not_computed_again_is_attended_to_as_it_is():
    weights = made()
    full = whole(weights)
    strange = Cache(
        full.cache.positions, tuple(type(each)(*(part.clone() for part in each)) for each in full.cache.layers)
    )
    strange.layers[1].still[:, 5] += 1.0
    got = forward(weights, TOKENS[10:], np.arange(10, 40), strange, rows=np.arange(10, 40))
    assert not close(got.logits, full.logits[10:], 1e-3)
    assert torch.equal(got.cache.layers[1].still[:, 5], strange.layers[1].still[:, 5])
    before = forward(weights, TOKENS[:5], np.arange(5), strange, rows=np.arange(5))
    assert close(before.logits, full.logits[:5])


@pytest.mark.parametrize("kind", KINDS)
def test_moved_rows_of_the_first_layer_are_those_computed_there(kind):
    weights = made(**KINDS[kind])
    at = np.arange(40) + 20
    there = forward(weights, TOKENS, at).cache
    here = moved(weights.config, whole(weights).cache, at)
    assert np.array_equal(here.positions, at)
    # Nothing stands before either, so that all layers agree; with other frequencies than a layer's own they would not.
    assert same(here, there)
    back = moved(weights.config, here, np.arange(40))
    assert same(back, whole(weights).cache)
    other = dataclasses.replace(weights.config, bases=(10_000.0,))
    assert not same(moved(other, whole(weights).cache, at), there, 1e-3)


@pytest.mark.parametrize("kind", ["gqa", "mla"])
def test_behind_another_opening_only_the_first_layer_is_exact(kind):
    weights = made(**KINDS[kind])
    changed = np.r_[(TOKENS[:8] + 1) % 30, TOKENS[8:]]
    one, other = whole(weights).cache, whole(weights, changed).cache
    tails = [taken(each, slice(8, None)) for each in (one, other)]
    assert all(close(a, b) for a, b in zip(tails[0].layers[0], tails[1].layers[0], strict=True))
    assert not close(tails[0].layers[1].still, tails[1].layers[1].still, 1e-3)


def test_reused_rows_and_new_ones_make_one_prompt():
    weights = made(attention="mla")
    prompt = np.r_[TOKENS[:10], [7, 7, 7], TOKENS[10:30]]
    old = whole(weights).cache
    reused = [taken(old, slice(0, 10)), moved(weights.config, taken(old, slice(10, 30)), np.arange(13, 33))]
    together = joined([reused[0], blank(weights.config, 3), reused[1]])
    rows = np.r_[10:13, 32]
    got = forward(weights, prompt[rows], rows, together, rows=rows)
    assert got.cache.positions.tolist() == list(range(33))
    assert all(torch.isfinite(part).all() for layer in got.cache.layers for part in layer)
    full = whole(weights, prompt)
    assert close(got.logits[:3], full.logits[10:13])
    assert not close(got.logits[3], full.logits[32])


def test_sequences_of_a_batch_are_computed_as_alone():
    weights = made(experts=5, attention="mla")
    several = np.stack([TOKENS[:20], TOKENS[20:]])
    got = forward(weights, several, np.arange(20))
    for number, tokens in enumerate(several):
        assert close(got.logits[number], whole(weights, tokens).logits)
    following = forward(weights, several[:, :1], [20], got.cache)
    assert close(following.logits[1], forward(weights, several[1, :1], [20], whole(weights, several[1]).cache).logits)


def test_experts_that_are_all_chosen_are_a_dense_sum():
    weights = made(experts=5, chosen=5)
    layer, rows = weights.layer(1), torch.from_numpy(np.random.default_rng(2).normal(size=(7, 12)))
    routing = route(rows, layer["router"], 5)
    shares = (rows @ layer["router"]).softmax(-1)
    dense = sum(
        shares[:, e, None] * swiglu(rows, layer["gate"][e], layer["up"][e], layer["down"][e]) for e in range(5)
    )  # fmt: skip
    assert close(mixed(layer, rows, routing), dense)


def test_routing_is_returned_with_gates_of_one_together_and_ties_go_to_the_lower_number():
    got = whole(made(experts=5)).routing
    assert got[0] is None
    assert got[1].experts.shape == got[1].gates.shape == (40, 2)
    assert close(got[1].gates.sum(-1), torch.ones(40, dtype=torch.float64))
    assert torch.all(got[1].gates[:, 0] >= got[1].gates[:, 1])
    tied = route(torch.ones(1, 12), torch.zeros(12, 5), 3)
    assert tied.experts.tolist() == [[0, 1, 2]]


def test_all_tokens_may_go_to_one_expert_and_none_at_all_may_come():
    weights = made(experts=5, chosen=1)
    layer, rows = weights.layer(1), torch.ones(4, 12, dtype=torch.float64)
    routing = route(rows, layer["router"], 1)
    expert = int(routing.experts[0, 0])
    assert len(set(routing.experts.flatten().tolist())) == 1
    assert close(
        mixed(layer, rows, routing), swiglu(rows, layer["gate"][expert], layer["up"][expert], layer["down"][expert])
    )
    assert forward(weights, TOKENS[:0], np.arange(0)).logits.shape == (0, 30)


@pytest.mark.parametrize("kind", ["gqa", "mla"])
def test_attention_and_queries_are_returned_when_wanted(kind):
    weights = made(**KINDS[kind])
    got = whole(weights, queries=True, attention=True)
    assert len(got.attention) == len(got.queries) == 3
    assert got.attention[0].shape == (4, 40, 40) and got.queries[0].shape == (4, 40, 10 if kind == "mla" else 6)
    assert close(got.attention[1].sum(-1), torch.ones(4, 40, dtype=torch.float64))
    assert float(got.attention[1].triu(1).abs().max()) == 0.0
    if kind == "gqa":
        keys = got.cache.layers[2].turned.repeat_interleave(2, 0)
        scores = (got.queries[2] @ keys.mT / 6**0.5).masked_fill(torch.ones(40, 40).triu(1).bool(), -torch.inf)
        assert close(scores.softmax(-1), got.attention[2])
    assert whole(weights).attention == whole(weights).queries == ()


def test_weights_follow_from_their_seed_and_their_type():
    one, other = made(3), made(3)
    assert all(torch.equal(one.tensors[name], other.tensors[name]) for name in one.tensors)
    assert not torch.equal(one.tensors["head"], made(4).tensors["head"])
    halved = one.cast("float32")
    assert halved.config.dtype == "float32"
    assert close(whole(halved).logits.double(), whole(one).logits, 1e-4)


def test_the_first_layers_are_a_decoder_of_their_own():
    weights = made(experts=5)
    assert same(whole(weights.first(2)).cache, whole(weights).cache._replace(layers=whole(weights).cache.layers[:2]))


def test_bytes_of_a_row_are_those_of_its_arrays():
    for kind, numbers in (("gqa", 2 * 2 * 6), ("mla", 10 + 4)):
        weights = made(**KINDS[kind])
        cache = whole(weights).cache
        held = sum(part.numel() * part.element_size() for layer in cache.layers for part in layer)
        assert held == 40 * weights.config.row_bytes == 40 * 3 * numbers * 8


@pytest.mark.parametrize(
    "wrong",
    [
        {"key_heads": 3}, {"key_heads": 0}, {"heads": 0}, {"head_width": 5}, {"attention": "mla", "rotary": 3},
        {"experts": 2, "chosen": 3}, {"factor": float("nan")}, {"factor": 0.5}, {"bases": ()}, {"bases": ("x",)},
        {"bases": (0.5,)}, {"heads": 4.0}, {"heads": True}, {"window": 0}, {"layers": 0}, {"bases": 10_000.0},
    ],
)  # fmt: skip
def test_sizes_that_make_no_decoder_are_refused(wrong):
    with pytest.raises(BadValueError):
        DecoderConfig(**{**SMALL, **wrong})


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"dtype": "float16"}, "number format named 'float16'"),
        ({"scaling": "dynamic"}, "scaling rule named 'dynamic'"),
        ({"attention": "mqa"}, "kind of attention named 'mqa'"),
    ],
)  # fmt: skip
def test_rules_that_are_not_known_are_refused(wrong, says):
    with pytest.raises(UnknownNameError, match=says):
        DecoderConfig(**{**SMALL, **wrong})


def test_the_error_names_the_heads_that_would_divide():
    with pytest.raises(BadValueError, match="allowed: 1, 2, 4"):
        DecoderConfig(**{**SMALL, "key_heads": 3})


@pytest.mark.parametrize(
    ("tokens", "positions", "rows", "says"),
    [
        ([1, 30], [0, 1], None, "no such token"), ([-1], [0], None, "no such token"),
        ([1.0], [0], None, "whole numbers"),
        ([True], [0], None, "whole numbers"), (3, [0], None, "whole numbers"),
        ([1], [64], None, "outside the window"), ([1], [-1], None, "outside the window"),
        ([1], [0.0], None, "whole position"),
        ([1, 2], [0], None, "whole position"), ([1, 2], [4, 4], None, "same position"),
        ([1], [0], [1], "without a gap"),
        ([1, 2], [0, 1], [0, 0], "each once"), ([1], [0], [-1], "each once"), ([1], [0], [0.0], "one row"),
        ([1] * 65, np.arange(65), None, "outside the window"),
    ],
)  # fmt: skip
def test_calls_that_make_no_sense_are_refused(tokens, positions, rows, says):
    with pytest.raises(BadValueError, match=says):
        forward(made(layers=1), tokens, positions, rows=rows)


def test_caches_that_make_no_sense_are_refused():
    weights = made()
    full, short = whole(weights).cache, blank(weights.config, 3)
    with pytest.raises(BadValueError, match="same position"):
        forward(weights, [1], [5], full)
    with pytest.raises(BadValueError, match=r"(?s)blank and not computed.*\[1\]"):
        forward(weights, [1, 2], [0, 2], short, rows=[0, 2])
    with pytest.raises(BadValueError, match="blank row"):
        moved(weights.config, short, np.arange(3))
    with pytest.raises(BadValueError, match="outside the window"):
        moved(weights.config, full, np.arange(40) + 25)
    for other in (made(layers=2), made(attention="mla"), made(key_heads=1), made(dtype="float32")):
        with pytest.raises(BadValueError, match="of another decoder"):
            forward(weights, [1], [40], whole(other).cache)
    with pytest.raises(BadValueError, match="stands outside the window"):
        forward(made(window=30), [1], [0], full._replace(positions=full.positions + 1))


def test_weights_of_other_sizes_are_refused():
    weights = made()
    for config in (DecoderConfig(**{**SMALL, "hidden": 15}), DecoderConfig(**{**SMALL, "layers": 2})):
        with pytest.raises(BadValueError, match="not the weights of this decoder"):
            DecoderWeights(config, weights.tensors)
    with pytest.raises(BadValueError, match="another number format"):
        DecoderWeights(dataclasses.replace(weights.config, dtype="float32"), weights.tensors)
