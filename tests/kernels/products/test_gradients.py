"""Gradients of products: they flow, by products of the same kind, or are refused by name."""

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.kernels.products import profile
from wavetank.kernels.products.product import matmul, plan_of, prepare
from wavetank.kernels.products.schemes import STRASSEN

F = np.ones((4, 4), np.float32)


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch):
    monkeypatch.setattr(profile, "kept", lambda *_: None)
    monkeypatch.setattr(profile, "is_any_kept", lambda *_: False)


def operands(m, k, n):
    rng = np.random.default_rng(0)
    return tuple((rng.random(shape) - 0.5).astype(np.float32) for shape in ((m, k), (k, n)))


WAYS = {
    "default": {}, "scheme": {"scheme": "strassen"}, "scaled": {"scheme": "winograd", "accuracy": "scaled"},
    "threads": {"threads": 1},
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("left", "right"),
    [((3, 4), (4, 5)), ((4,), (4, 5)), ((3, 4), (4,)), ((4,), (4,)), ((2, 3, 4), (4, 5)), ((2, 1, 3, 4), (3, 4, 2))],
)
def test_gradients_flow_to_both_operands_and_again(way, left, right):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    a, b = (torch.rand(shape, dtype=torch.float64, requires_grad=True) for shape in (left, right))
    assert torch.equal(matmul(a, b, **WAYS[way]).detach(), matmul(a.detach(), b.detach(), **WAYS[way]))
    assert torch.autograd.gradcheck(lambda x, y: matmul(x, y, **WAYS[way]), (a, b))
    assert torch.autograd.gradgradcheck(lambda x, y: matmul(x, y, **WAYS[way]), (a, b))


def test_gradients_are_products_of_the_same_kind_and_only_where_wanted():
    torch = pytest.importorskip("torch")
    a, b = operands(60, 70, 80)
    x, w = torch.from_numpy(a), torch.from_numpy(b).requires_grad_()
    chosen = plan_of(60, 70, 80, "fused", STRASSEN, threads=1)
    matmul(x, w, plan=chosen).sum().backward()
    assert x.grad is None
    ones = np.ones((60, 80), np.float32)
    backward = plan_of(70, 60, 80, "fused", STRASSEN, threads=1)
    assert np.array_equal(w.grad.numpy(), matmul(a.T, ones, plan=backward))
    with torch.no_grad():
        assert not matmul(x, w).requires_grad
    prepared = prepare(b, scheme="strassen")
    y = torch.from_numpy(a).requires_grad_()
    matmul(y, prepared).sum().backward()
    assert np.allclose(y.grad.numpy(), ones @ b.T, atol=1e-3)
    z = torch.from_numpy(a).requires_grad_()
    matmul(z, b).sum().backward()
    assert np.allclose(z.grad.numpy(), ones @ b.T, atol=1e-3)


def test_what_would_lose_a_gradient_is_refused():
    torch = pytest.importorskip("torch")
    x = torch.rand(4, 4, requires_grad=True)
    plain = torch.rand(4, 4)
    refused = {
        "no gradients": lambda: matmul(x, plain, out=torch.empty(4, 4)),
        "given tensor": lambda: matmul(plain, plain, out=torch.empty(4, 4, requires_grad=True)),
        "has no gradient": lambda: prepare(x),
        "begins with a tensor": lambda: matmul(F, x),
        "float16 is not": lambda: matmul(plain.half(), plain.half()),
        "bfloat16 is not": lambda: matmul(plain.bfloat16(), plain.bfloat16()),
        "same type": lambda: matmul(plain, plain.double()),
    }
    for says, call in refused.items():
        with pytest.raises(BadValueError, match=says):
            call()
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(plain, torch.ones(4, 4))
        with pytest.raises(BadValueError, match="Forward differentiation"):
            matmul(dual, plain)
        assert torch.allclose(matmul(plain, plain), plain @ plain)


def beside_a_byte(x):
    records = np.zeros(x.shape, [("value", x.dtype), ("byte", np.uint8)])
    records["value"] = x
    return records["value"]


@pytest.mark.parametrize("lie", [lambda x: x[::-1], lambda x: x[:, ::-1], beside_a_byte])
def test_an_array_beside_a_tensor_may_lie_in_memory_as_it_likes(lie):
    torch = pytest.importorskip("torch")
    a, b = operands(3, 4, 5)
    left = torch.from_numpy(a).requires_grad_()
    found = matmul(left, lie(b))
    assert np.allclose(found.detach().numpy(), a @ lie(b))
    found.sum().backward()
    assert np.allclose(left.grad.numpy(), np.ones((3, 5)) @ lie(b).T)


@pytest.mark.parametrize("kind", [">f4", "i8", "f8", "O"])
def test_an_array_of_another_type_beside_a_tensor_is_refused_by_name(kind):
    torch = pytest.importorskip("torch")
    with pytest.raises(BadValueError):
        matmul(torch.ones(4, 4, requires_grad=True), F.astype(kind))


@pytest.mark.parametrize(("left", "right"), [((2, 3, 0), (0, 4)), ((2, 3, 0), (0,)), ((2, 3, 4), (4, 0))])
def test_gradients_of_empty_batches_are_those_of_torch(left, right):
    torch = pytest.importorskip("torch")
    a, b = torch.rand(left, requires_grad=True), torch.rand(right, requires_grad=True)
    found = matmul(a, b)
    assert torch.equal(found, torch.matmul(a, b))
    found.sum().backward()
    assert a.grad.shape == a.shape
    assert not a.grad.any()
    assert b.grad.shape == b.shape
    assert not b.grad.any()


def test_transforms_of_torch_func_differentiate_products():
    torch = pytest.importorskip("torch")
    a, b = (torch.from_numpy(each).double() for each in operands(3, 4, 5))
    weights = torch.rand(3, 5, dtype=torch.float64)

    def loss(product):
        return lambda x, y: (weights * product(x, y) ** 2).sum()

    def twice(product, at):
        once = torch.func.grad(loss(product), at)
        return torch.func.grad(lambda x, y: once(x, y).sum(), at)(a, b)

    for at in (0, 1):
        found, expected = (torch.func.grad(loss(each), at)(a, b) for each in (matmul, torch.matmul))
        assert torch.allclose(found, expected, rtol=1e-12)
        assert torch.allclose(twice(matmul, at), twice(torch.matmul, at), rtol=1e-12)
    with pytest.raises(BadValueError):
        torch.func.jvp(matmul, (a, b), (a, b))
