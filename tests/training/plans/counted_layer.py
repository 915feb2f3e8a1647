"""A layer with experts in torch whose tensors are counted: weights, gradients, Adam's states, what backward keeps."""


def counted_bytes(torch, shape, tokens):
    """Return bytes of all states after one step of AdamW in mixed precision, and of what one pass keeps."""
    half = torch.bfloat16
    torch.manual_seed(0)

    def weight(*size):
        return torch.nn.Parameter((torch.randn(*size) / size[0] ** 0.5).to(half))

    d, f, heads = shape.hidden, shape.ffn, shape.heads
    attention = [weight(d, d) for _ in range(4)]
    experts = [(weight(d, f), weight(d, f), weight(f, d)) for _ in range(shape.experts)]
    weights = attention + [each for expert in experts for each in expert]

    class SwiGlu(torch.autograd.Function):
        """Keeps both inner products and their product, as a fused kernel does."""

        @staticmethod
        def forward(ctx, rows, gate, up, down):
            inner, other = rows @ gate, rows @ up
            product = torch.nn.functional.silu(inner) * other
            ctx.save_for_backward(rows, inner, other, product, gate, up, down)
            return product @ down

        @staticmethod
        def backward(ctx, grad):
            rows, inner, other, product, gate, up, down = ctx.saved_tensors
            sigmoid = torch.sigmoid(inner)
            back = grad @ down.T
            back_other = back * inner * sigmoid
            back_inner = back * other * sigmoid * (1 + inner * (1 - sigmoid))
            into = back_inner @ gate.T + back_other @ up.T
            return into, rows.T @ back_inner, rows.T @ back_other, product.T @ grad

    class Softmax(torch.autograd.Function):
        """Keeps scores and their softmax, 2 bytes each, as the formula has it."""

        @staticmethod
        def forward(ctx, scores):
            out = torch.softmax(scores, -1)
            ctx.save_for_backward(scores, out)
            return out

        @staticmethod
        def backward(ctx, grad):
            _, out = ctx.saved_tensors
            return out * (grad - (grad * out).sum(-1, keepdim=True))

    kept = {}

    def pack(tensor):
        if not any(tensor.untyped_storage().data_ptr() == each.untyped_storage().data_ptr() for each in weights):
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    text = torch.randn(tokens, d).to(half).requires_grad_()
    chosen = torch.stack([torch.randperm(shape.experts)[: shape.per_token] for _ in range(tokens)])
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        q, k, v = ((text @ w).reshape(tokens, heads, d // heads).transpose(0, 1).contiguous() for w in attention[:3])
        share = Softmax.apply(q @ k.transpose(1, 2) * (d // heads) ** -0.5)
        mixed = (share @ v).transpose(0, 1).reshape(tokens, d)
        middle = text + mixed @ attention[3]
        out = middle
        for number, (gate, up, down) in enumerate(experts):
            rows = torch.nonzero((chosen == number).any(1))[:, 0]
            given = torch.index_select(middle, 0, rows)
            out = out.index_add(0, rows, SwiGlu.apply(given, gate, up, down))
    activations = sum(each.untyped_storage().nbytes() for each in kept.values() if each.dtype == half)
    out.float().square().mean().backward()
    masters = [each.detach().float() for each in weights]
    for master, each in zip(masters, weights, strict=True):
        master.grad = each.grad.float()
    adam = torch.optim.AdamW(masters)
    adam.step()
    moments = [value for state in adam.state.values() for value in state.values() if value.numel() > 1]
    owned = [*weights, *(each.grad for each in weights), *masters, *moments]
    return sum(each.numel() * each.element_size() for each in owned), activations
