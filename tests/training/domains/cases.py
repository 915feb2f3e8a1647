"""What processes of the tests do: an operation on parts, held against the same on the whole in one process."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np


def begin(rank: Any) -> Any:
    """A domain of all processes, and the same random numbers in each."""
    import torch

    from wavetank.training.domains import halo, norms, ring  # noqa: F401
    from wavetank.training.domains.exchange import Domain

    torch.set_num_threads(1)
    rank.default_group()
    return Domain(range(rank.size))


def cuts(draws: np.random.Generator, length: int, processes: int) -> tuple[int, ...]:
    """Parts that are uneven, and sometimes empty."""
    at = np.sort(draws.integers(0, length + 1, processes - 1))
    return tuple(np.diff([0, *at, length]).tolist())


def off(function: Any, domain: Any, wholes: Any, layouts: Any, parameters: Any, seed: int) -> float:
    """The largest relative difference of results and gradients on parts from those on wholes.

    ``function(*inputs, *parameters)``; inputs of ``wholes`` are cut as ``layouts`` say (axis, sizes).
    """
    import torch

    from wavetank.training.domains.exchange import total
    from wavetank.training.domains.sharded import ShardTensor

    plain = [each.clone().requires_grad_() for each in wholes]
    weights = [each.clone().requires_grad_() for each in parameters]
    wanted = function(*plain, *weights)
    slope = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    (wanted * slope).sum().backward()
    parts = [
        each.narrow(axis, sum(sizes[: domain.place]), sizes[domain.place]).clone().requires_grad_()
        for each, (axis, sizes) in zip(wholes, layouts, strict=True)
    ]
    shared = [each.clone().requires_grad_() for each in parameters]
    shards = [ShardTensor(part, domain, *layout) for part, layout in zip(parts, layouts, strict=True)]
    found = function(*shards, *shared)
    if isinstance(found, ShardTensor):
        at, own = found.layout.begins()[domain.place], found.layout.sizes[domain.place]
        assert tuple(found.shape) == tuple(wanted.shape), (tuple(found.shape), tuple(wanted.shape))
        mine, slope = wanted.narrow(found.axis, at, own), slope.narrow(found.axis, at, own)
        total((found.part * slope).sum(), domain).backward()
        worst = [_far(found.part, mine, wanted)]
    else:
        (found * slope).sum().backward()
        worst = [_far(found, wanted, wanted)]
    for part, whole, (axis, sizes) in zip(parts, plain, layouts, strict=True):
        own = whole.grad.narrow(axis, sum(sizes[: domain.place]), sizes[domain.place])
        worst.append(_far(part.grad, own, whole.grad))
    worst += [_far(one.grad, other.grad, other.grad) for one, other in zip(shared, weights, strict=True)]
    return max(worst)


def _far(one: Any, other: Any, scale: Any) -> float:
    import torch

    if one.numel() == 0:
        return 0.0
    return float((one - other).abs().max() / torch.clamp(scale.abs().max(), min=1.0))


def convolutions(rank: Any, spatial: int, seed: int) -> list[Any]:
    """Every kernel, stride, dilation and padding of a number of dimensions."""
    import torch
    from torch.nn import functional

    domain, draws = begin(rank), np.random.default_rng(seed)
    function = getattr(functional, f"conv{spatial}d")
    worst = []
    for k, stride, dilation, padding in itertools.product((1, 2, 3, 5, 7), (1, 2), (1, 2), (0, 1, 3, "same")):
        if padding == "same" and stride > 1:
            continue
        torch.manual_seed(int(draws.integers(1 << 30)))
        shape = draws.integers(1, 4, spatial).tolist()
        axis = int(draws.integers(spatial))
        reach = dilation * (k - 1) + 1
        shape = [max(each, reach) for each in shape]
        shape[axis] = int(draws.integers(reach, reach + 9))
        whole = torch.randn(2, 3, *shape, dtype=torch.float64)
        weight = torch.randn(4, 3, *[k] * spatial, dtype=torch.float64)
        bias = torch.randn(4, dtype=torch.float64)
        sizes = cuts(draws, shape[axis], domain.size)

        def convolve(x: Any, w: Any, b: Any, s: int = stride, p: Any = padding, d: int = dilation) -> Any:
            return function(x, w, b, stride=s, padding=p, dilation=d)

        worst.append(off(convolve, domain, [whole], [(2 + axis, sizes)], [weight, bias], len(worst)))
    return [max(worst), len(worst), sum(domain.fallbacks.values())]


def others(rank: Any, seed: int) -> dict[str, float]:
    """Pooling, attention, norms, views and sums: the largest difference of each."""
    import torch
    from torch.nn import functional

    domain, draws = begin(rank), np.random.default_rng(seed)
    torch.manual_seed(seed)
    x = torch.randn(2, 6, 9, 5, dtype=torch.float64)
    weight, bias = torch.randn(6, dtype=torch.float64), torch.randn(6, dtype=torch.float64)
    tokens = [torch.randn(2, 3, n, 4, dtype=torch.float64) for n in (7, 10, 10)]
    lengths = [(2, cuts(draws, 7, domain.size)), *[(2, cuts(draws, 10, domain.size))] * 2]
    causal = [(2, cuts(draws, 10, domain.size))] * 3
    rows = torch.randn(5, 8, dtype=torch.float64)
    scale = [torch.randn(8, dtype=torch.float64) for _ in range(2)]
    found: dict[str, float] = {}

    def put(name: str, function: Any, wholes: Any, layouts: Any, parameters: Any = ()) -> None:
        found[name] = max(found.get(name, 0.0), off(function, domain, wholes, layouts, parameters, len(found)))

    for sizes in (cuts(draws, 9, domain.size), (9, *[0] * (domain.size - 1)), (1, *[0] * (domain.size - 2), 8)):
        at = [(2, sizes)]
        for k, s, p in ((2, 2, 0), (3, 1, 1), (3, 2, 1), (4, 3, 2)):
            put("max pool", lambda x, k=k, s=s, p=p: functional.max_pool2d(x, k, s, p), [x], at)
            put("average pool", lambda x, k=k, s=s, p=p: functional.avg_pool2d(x, k, s, p), [x], at)
        put("max pool, dilated", lambda x: functional.max_pool2d(x, 2, 1, 1, 2), [x], at)
        put("batch norm", lambda x, w, b: functional.batch_norm(x, None, None, w, b, True), [x], at, [weight, bias])
        put("group norm", lambda x, w, b: functional.group_norm(x, 3, w, b), [x], at, [weight, bias])
        put("softmax", lambda x: functional.softmax(x, 2), [x], at)
        put("sum", lambda x: x.sum(), [x], at)
        put("mean of columns", lambda x: x.mean(2, keepdim=True), [x], at)
        put("mean of rows", lambda x: x.mean((1, 3)), [x], at)
        put("transpose", lambda x: (x * 2).transpose(1, 2).permute(0, 3, 1, 2), [x], at)
        put("flatten", lambda x: x.flatten(2).transpose(1, 2).reshape(2, 45, 2, 3), [x], at)
        put("narrow", lambda x: x.narrow(2, 2, 5), [x], at)
        put("mse", lambda x, y: functional.mse_loss(x, y), [x, x.flip(2)], [*at, (3, cuts(draws, 5, domain.size))])
        put("beside each other", lambda x: torch.cat([x, functional.gelu(x) + 1], 1), [x], at)
        put("nobody's", lambda x: torch.cumsum(x, 2), [x], at)
    put("attention", functional.scaled_dot_product_attention, tokens, lengths)
    put("causal attention", lambda *t: functional.scaled_dot_product_attention(*t, is_causal=True, scale=0.3),
        [tokens[1], tokens[2], tokens[1].flip(2)], causal)  # fmt: skip
    put("attention of an empty process", functional.scaled_dot_product_attention, tokens,
        [(2, (0, 7, *[0] * (domain.size - 2))), *[(2, (*[0] * (domain.size - 1), 10))] * 2])  # fmt: skip
    for axis, sizes in ((0, cuts(draws, 5, domain.size)), (1, cuts(draws, 8, domain.size)), (1, (0, 1, 7))):
        if len(sizes) == domain.size:
            put("layer norm", lambda x, w, b: functional.layer_norm(x, (8,), w, b), [rows], [(axis, sizes)], scale)
            put("linear", functional.linear, [rows], [(axis, sizes)], [torch.randn(3, 8, dtype=torch.float64)])
    found["operations without a handler"] = float(set(domain.fallbacks) == {"cumsum", "linear"})
    return found


def written_otherwise(rank: Any, seed: int) -> dict[str, Any]:
    """What is easily taken for something else: arguments by name, numbers before tensors, stretched and other types."""
    import torch
    from torch.nn import functional

    from wavetank.training.domains.ring import nearest
    from wavetank.training.domains.sharded import ShardTensor

    domain, draws = begin(rank), np.random.default_rng(seed)
    torch.manual_seed(seed)
    x = torch.randn(9, 5, dtype=torch.float64)
    wide = [torch.randn(9, 1, dtype=torch.float64), torch.randn(9, 5, dtype=torch.float64)]
    at, again = [(0, cuts(draws, 9, domain.size))], (0, cuts(draws, 9, domain.size))
    found: dict[str, Any] = {
        "numbers first": off(lambda x: (1 - x) * (2 / (x * x + 1)), domain, [x], at, [], seed),
        "by name": off(lambda x, y: torch.add(x, other=y, alpha=2), domain, [x, x.flip(0)], [*at, again], [], seed),
        "clamped by another": off(
            lambda x, y: torch.clamp(x, min=y), domain, [x, x.flip(0)], [*at, again], [], seed
        ),
    }  # fmt: skip
    found["handled"] = dict(domain.fallbacks) == {}
    changed = ShardTensor.from_whole(x, domain, *at[0])
    changed.mul_(3).add_(1)
    found["in place"] = float((changed.full() - (x * 3 + 1)).abs().max())
    found["stretched"] = off(functional.mse_loss, domain, wide, [*at, again], [], seed)
    tokens = [torch.randn(2, n, dim, dtype=torch.float64) for n, dim in ((7, 4), (10, 4), (10, 3))]
    lengths = [(1, cuts(draws, 7, domain.size)), *[(1, cuts(draws, 10, domain.size))] * 2]
    found["values of another size"] = off(functional.scaled_dot_product_attention, domain, tokens, lengths, [], seed)
    domain.fallbacks.clear()
    single = [torch.randn(2, n, 4, requires_grad=True) for n in (7, 10, 10)]
    shards = [
        ShardTensor.from_whole(each, domain, axis, sizes)
        for each, (axis, sizes) in zip(single, lengths, strict=True)
    ]  # fmt: skip
    out = functional.scaled_dot_product_attention(*shards)
    out.square().sum().backward()
    mine = [each.grad.clone() for each in single]
    for each in single:
        each.grad = None
    wanted = functional.scaled_dot_product_attention(*single)
    wanted.square().sum().backward()
    found["single precision"] = max(
        float((out.full() - wanted).abs().max()),
        *(float((one - each.grad).abs().max()) for one, each in zip(mine, single, strict=True)),
    )
    found["single precision is kept and handled"] = out.dtype == torch.float32 and not domain.fallbacks
    places = [torch.randn(n, 3, requires_grad=True) for n in (6, 8)]
    far, numbers = nearest(*(ShardTensor.from_whole(each, domain, 0) for each in places), 2)
    far.sum().backward()
    whole = ((places[0][:, None] - places[1][None]) ** 2).sum(-1).topk(2, largest=False)
    found["neighbours in single precision"] = [
        far.part.dtype == torch.float32, torch.equal(numbers.full(), whole.indices),
        float((far.full() - whole.values).abs().max()), all(each.grad is not None for each in places),
    ]  # fmt: skip
    return found


def neighbours(rank: Any, seed: int) -> list[Any]:
    """Nearest points with many ties; numbers, distances and their gradients."""
    import torch

    from wavetank.training.domains.ring import nearest
    from wavetank.training.domains.sharded import ShardTensor

    domain, draws = begin(rank), np.random.default_rng(seed)
    queries = torch.from_numpy(draws.integers(0, 3, (9, 2)).astype(np.float64))
    points = torch.from_numpy(draws.integers(0, 3, (14, 2)).astype(np.float64))
    k, sizes = 5, [cuts(draws, 9, domain.size), cuts(draws, 14, domain.size)]
    wanted = [
        sorted((sum((a - b) ** 2 for a, b in zip(q, p, strict=True)), i) for i, p in enumerate(points.tolist()))[:k]
        for q in queries.tolist()
    ]
    parts = [each.split(list(size))[domain.place].clone().requires_grad_()
             for each, size in zip((queries, points), sizes, strict=True)]  # fmt: skip
    far, numbers = nearest(*(ShardTensor(p, domain, 0, s) for p, s in zip(parts, sizes, strict=True)), k)
    (far * torch.arange(1.0, k + 1, dtype=torch.float64)).sum().backward()
    grads = [np.zeros((9, 2)), np.zeros((14, 2))]
    for row, near in enumerate(wanted):
        for column, (_, i) in enumerate(near):
            step = 2 * (column + 1) * (queries[row] - points[i]).numpy()
            grads[0][row] += step
            grads[1][i] -= step
    begins = [sum(size[: domain.place]) for size in sizes]
    mine = wanted[begins[0] : begins[0] + sizes[0][domain.place]]
    same = numbers.part.tolist() == [[i for _, i in near] for near in mine]
    same = same and far.part.tolist() == [[d for d, _ in near] for near in mine]
    worst = 0.0
    for part, grad, at in zip(parts, grads, begins, strict=True):
        own = grad[at : at + part.shape[0]]
        worst = max(worst, float(np.abs(part.grad.numpy() - own).max(initial=0.0)))
    return [same, worst]


def turns(rank: Any, seed: int) -> list[Any]:
    """Every uneven cut of a small tensor along one axis, to the other, to whole and back."""
    import torch

    from wavetank.training.domains.sharded import ShardTensor

    domain = begin(rank)
    whole = torch.arange(5 * 4, dtype=torch.float64).reshape(5, 4)

    def compositions(n: int) -> Any:
        return [c for c in itertools.product(range(n + 1), repeat=domain.size) if sum(c) == n]

    wrong = count = 0
    for number, sizes in enumerate(compositions(5)):
        other = compositions(4)[(seed + number) % len(compositions(4))]
        first = ShardTensor.from_whole(whole, domain, 0, sizes)
        second = first.moved(1, other)
        back = second.moved(0, sizes)
        recut = first.moved(0, tuple(reversed(sizes)))
        wrong += not torch.equal(second.full(), whole) or not torch.equal(back.part, first.part)
        wrong += not torch.equal(recut.full(), whole) or not torch.equal(first.full(), whole)
        count += 1
    part = whole.narrow(0, 0, domain.place + 1)
    asked = ShardTensor.from_part(part, domain, 0)
    return [wrong, count, list(asked.layout.sizes)]


def halo_bytes(rank: Any, sizes: list[int], k: int, stride: int, padding: int) -> list[int]:
    """Bytes that a process sends for one convolution, forward and then backward."""
    import torch
    from torch.nn import functional

    from wavetank.training.domains.sharded import ShardTensor

    domain = begin(rank)
    part = torch.randn(2, 3, sizes[domain.place], 5, dtype=torch.float64).requires_grad_()
    out = functional.conv2d(ShardTensor(part, domain, 2, sizes), torch.randn(4, 3, k, 1, dtype=torch.float64),
                            stride=(stride, 1), padding=(padding, 0))  # fmt: skip
    forward = domain.sent_bytes["halo"]
    out.sum().backward()
    return [forward, domain.sent_bytes["halo"] - forward]


def messages(rank: Any) -> list[Any]:
    """How often a process adds with others or sends, for one convolution, one norm and one attention."""
    import torch
    from torch.nn import functional

    from wavetank.training.domains.sharded import ShardTensor

    domain = begin(rank)
    calls = {"adds": 0, "sends": 0}
    add, send = domain.all_reduce, domain.swap

    def counted(name: str, function: Any) -> Any:
        def call(*arguments: Any, **keywords: Any) -> Any:
            calls[name] += 1
            return function(*arguments, **keywords)

        return call

    domain.all_reduce, domain.swap = counted("adds", add), counted("sends", send)
    weight = torch.ones(4, 4, 3, dtype=torch.float64, requires_grad=True)
    bias = torch.ones(4, dtype=torch.float64, requires_grad=True)
    part = torch.ones(1, 4, 5, dtype=torch.float64, requires_grad=True)
    sizes, found = [5] * domain.size, []
    functional.conv1d(ShardTensor(part, domain, 2, sizes), weight, bias, padding=1).part.sum().backward()
    found.append(dict(calls))
    calls.update(adds=0, sends=0)
    token = ShardTensor(part.transpose(1, 2), domain, 1, sizes)
    functional.layer_norm(token, (4,), bias, bias.detach()).part.sum().backward()
    found.append(dict(calls))
    calls.update(adds=0, sends=0)
    functional.scaled_dot_product_attention(token, token, token).part.sum().backward()
    return [*found, dict(calls)]


def two_dimensional(rank: Any, steps: int) -> list[Any]:
    """Two samples, each on two processes: losses of some steps, and those of one process with both."""
    import torch
    import torch.distributed as dist
    from torch.nn import functional

    from wavetank.training.domains.exchange import Domain
    from wavetank.training.domains.network import network
    from wavetank.training.domains.sharded import ShardTensor

    begin(rank)
    domains = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    data = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    which, place = divmod(rank.number, 2)
    domain = Domain([2 * which, 2 * which + 1], domains[which])
    torch.manual_seed(0)
    samples = torch.randn(2, 1, 3, 20, 8, dtype=torch.float64)
    targets = torch.randn(2, 1, 3, 5, 2, dtype=torch.float64)
    model, alone = network(3, 4, 2, 0), network(3, 4, 2, 0)
    rates = [torch.optim.SGD(each.parameters(), lr=0.05) for each in (model, alone)]
    losses, wanted = [], []
    for _ in range(steps):
        for each in rates:
            each.zero_grad()
        sizes = (12, 8)
        part = samples[which].narrow(2, 12 * place, sizes[place])
        loss = functional.mse_loss(model(ShardTensor(part, domain, 2, sizes)), targets[which])
        loss.backward()
        for weight in model.parameters():
            dist.all_reduce(weight.grad, group=data[place])
            weight.grad /= 2
        mean = loss.detach().clone()
        dist.all_reduce(mean, group=data[place])
        losses.append(float(mean / 2))
        both = sum(functional.mse_loss(alone(x), y) for x, y in zip(samples, targets, strict=True)) / 2
        both.backward()
        wanted.append(float(both))
        for each in rates:
            each.step()
    worst = max(float((a - b).abs().max()) for a, b in zip(model.parameters(), alone.parameters(), strict=True))
    return [losses, wanted, worst]


def own_operation(rank: Any) -> list[Any]:
    """An operation that a user registers, and one that nobody has."""
    import torch

    from wavetank.training.domains.sharded import ShardTensor, handles

    domain = begin(rank)
    whole = torch.arange(6, dtype=torch.float64)
    before = ShardTensor.from_whole(whole, domain, 0, [1, *[0] * (domain.size - 2), 5])
    torch.frac(before / 4)
    lost = dict(domain.fallbacks)

    @handles("frac")
    def frac(function: Any, x: Any) -> Any:
        return x.like(function(x.part))

    after = torch.frac(before / 4)
    return [lost, dict(domain.fallbacks), after.full().tolist(), torch.frac(whole / 4).tolist()]


def asked_like_tensors(rank: Any) -> dict[str, Any]:
    """Comparisons, indices and NumPy's names of arguments: what differs from the whole, and what was gathered."""
    import torch

    from wavetank.training.domains.sharded import ShardTensor

    domain = begin(rank)
    whole = torch.randn(7, 4, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    rows = torch.tensor([0, 2, 6])
    asked: dict[str, Any] = {
        "eq": lambda x: x == x * 1, "ne": lambda x: x != x * 2, "lt": lambda x: x < 0, "le": lambda x: x <= 0,
        "gt": lambda x: x > 0.5, "ge": lambda x: x >= x.mean(axis=(0, 1, 2)), "sum": lambda x: x.sum(axis=1),
        "mean": lambda x: torch.mean(x, axis=0, keepdims=True), "slices": lambda x: x[2:6, 1:, :-2],
        "T": lambda x: x[:, 1].T, "number": lambda x: x[:, -1], "both": lambda x: x[1:, 2, 0:0],
        "softmax": lambda x: x.softmax(axis=0),
    }  # fmt: skip
    gathered: dict[str, Any] = {
        "row": lambda x: x[3], "last": lambda x: x[-1, 2], "step": lambda x: x[::2], "mask": lambda x: x[:, rows[:2]],
        "dots": lambda x: x[..., 0], "none": lambda x: x[None], "rows": lambda x: x[rows],
        "matrix": lambda x: x @ x[0].T,
    }  # fmt: skip
    wrong: list[str] = []
    seen: list[list[str]] = []
    for questions in (asked, gathered):
        for axis in (0, 2):
            sizes = cuts(np.random.default_rng(axis), whole.shape[axis], domain.size)
            part = ShardTensor.from_whole(whole, domain, axis, sizes)
            before = domain.fallbacks.copy()
            for name, ask in questions.items():
                found, wanted = ask(part), ask(whole)
                found = found.full() if isinstance(found, ShardTensor) else found
                if found.shape != wanted.shape or not torch.allclose(found, wanted, rtol=1e-12, atol=1e-14):
                    wrong.append(f"{name} along {axis}")
            seen.append(sorted((domain.fallbacks - before).elements()))
    part = ShardTensor.from_whole(whole, domain, 0)
    beyond = 0
    for index in (7, -8, (0, 4), (0, 0, 0, 0)):
        try:
            part[index]
        except IndexError:
            beyond += 1
    return {"wrong": wrong, "kept": seen[:2], "gathered": [len(each) for each in seen[2:]], "beyond": beyond,
            "length": len(part), "rows": sum(1 for _ in part), "member": part in {part: 1}}  # fmt: skip


def refusals(rank: Any) -> list[str]:
    """What is said of views that cut parts, sizes that are wrong and neighbours that there are not."""
    import torch

    from wavetank.errors import BadValueError
    from wavetank.training.domains.exchange import Domain
    from wavetank.training.domains.ring import nearest
    from wavetank.training.domains.sharded import ShardTensor

    domain = begin(rank)
    own = [2, 1, 3][domain.place]
    good = ShardTensor(torch.zeros(4, own, 3), domain, 1, [2, 1, 3])
    points = ShardTensor(torch.zeros(own, 3), domain, 0, [2, 1, 3])
    said = []
    for wrong in (
        lambda: good.reshape(24, 3),
        lambda: good.reshape(4, 2, 9),
        lambda: good.reshape(4, 6, 5),
        lambda: ShardTensor(torch.zeros(4, own, 3), domain, 1, [9, 9, 9]),
        lambda: ShardTensor(torch.zeros(4, own, 3), domain, 1, [2, 1]),
        lambda: ShardTensor(torch.zeros(4, own, 3), domain, 3, [2, 1, 3]),
        lambda: good.moved(2, [1, 1, 2]),
        lambda: good.narrow(1, 4, 3),
        lambda: good.masked_fill_(torch.ones(4, 6, 3, dtype=torch.bool), 1.0),
        lambda: torch.zeros(4, 6, 3).add_(good),
        lambda: nearest(points, points, 7),
        lambda: nearest(points, points, True),
        lambda: nearest(points, good, 1),
        lambda: ShardTensor.from_part(torch.zeros(2), domain, 0, "even"),
        lambda: Domain([0, 0, domain.members[domain.place]]),
    ):
        try:
            wrong()
            said.append("")
        except BadValueError as error:
            said.append(str(error).splitlines()[0])
    return said
