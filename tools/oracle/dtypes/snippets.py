"""Lines as people write them, in each of nine dtypes, and what the oracle says of each: an error, or the result.

`python -m tools.oracle.dtypes.snippets` asks it and the simulated GPU, prints where they differ, and keeps the oracle's
answers in tests/data/oracle_dtype_snippets.json.gz for tests/oracle/test_dtypes_refused.py. What depends on values,
which the oracle has not, is no part of the list.
"""

import gzip
import json

from tools.oracle import cases, run

GPU = "H100"
KEPT = run.ROOT / "tests" / "data" / "oracle_dtype_snippets.json.gz"
DTYPES = ("float16", "bfloat16", "float64", "int64", "int16", "uint8", "bool", "complex64", "complex32")
HEAD = """o = lambda *s: torch.ones(s, device='cuda').to(torch.{dtype})
d, i, j = torch.{dtype}, torch.zeros(3, 2, device='cuda').long(), torch.tensor([0, 1], device='cuda')
"""
PRODUCTS = """o(3, 4) @ o(4)|o(4) @ o(4)|torch.mv(o(0, 4), o(4))|torch.mv(o(3, 0), o(0))
torch.addmv(o(3), o(3, 4), o(4))|torch.dot(o(3), o(3))|torch.vdot(o(3), o(3))|torch.ger(o(3), o(4))
torch.mm(o(3, 4), o(4, 5))|torch.mm(o(3, 0), o(0, 5))|torch.bmm(o(2, 3, 4), o(2, 4, 5))
torch.addbmm(o(3, 5), o(2, 3, 4), o(2, 4, 5))|F.linear(o(3, 4), o(5, 4), o(5))
torch.baddbmm(o(2, 3, 5), o(2, 3, 4), o(2, 4, 5))|F.linear(o(3, 4), o(5, 4))
torch.einsum('ij,jk->ik', o(2, 3), o(3, 2))|torch.matmul(o(2, 3, 4), o(4, 2))|torch.kron(o(2, 2), o(2, 2))
torch.linalg.solve_triangular(o(3, 3), o(3, 2), upper=True)
torch.linalg.solve_triangular(o(3, 3), o(3, 0), upper=True)|torch.linalg.cross(o(4, 3), o(4, 3))|torch.cov(o(3, 4))
torch.cdist(o(2, 3, 4), o(2, 5, 4))|torch.cdist(o(3, 4), o(5, 4), p=1)|torch.cdist(o(0, 4), o(5, 4), p=1)
torch.cdist(o(3, 4).float(), o(5, 4))|torch.pdist(o(3, 4))|F.pairwise_distance(o(3, 4), o(3, 4))"""
ELEMENTS = """o(3, 4).clamp(o(4), o(4))|o(3, 4).clamp(min=o(4))|o(3, 4).clamp(max=o(4))|o(3).clamp(0, 1)
o(3).cumsum(0)|o(3).cumsum(0, dtype=torch.bool)|o(3).cumprod(0, dtype=torch.bool)
torch.cumsum(o(), 0, dtype=torch.bool)|o(3).cumprod(0)|o(3).cumsum_(0)|o(3).logcumsumexp(0)
torch.searchsorted(o(3, 4), o(3, 2))|torch.searchsorted(o(4), 2)
torch.searchsorted(o(4), o(3, 2), sorter=torch.arange(4, device='cuda'))|torch.bucketize(o(3), o(4))
torch.polar(o(3), o(3))|torch.polar(o(0), o(0))|o(3).mode()|o().mode()|o(0, 3).mode(1)|o(5).unfold(0, 2, 1)
torch.var_mean(o(5))|torch.std(o(5))|torch.linalg.vector_norm(o(5))|torch.lerp(o(3), o(3), 0.5)|torch.tril(o(3, 3))
torch.addcmul(o(3), o(3), o(3))|torch.topk(o(5), 2)|torch.sort(o(5))|torch.median(o(5))|torch.quantile(o(5), 0.5)
torch.histc(o(5))|torch.kthvalue(o(5), 2)|torch.renorm(o(3, 4), 2, 0, 1.0)|torch.diff(o(5))|torch.prod(o(5))
torch.nansum(o(5))|torch.logsumexp(o(5), 0)|torch.aminmax(o(5))|torch.trapezoid(o(5))|torch.bernoulli(o(3))"""
INDICES = """torch.index_reduce(o(3, 2), 0, j, o(2, 2), 'mean')
torch.index_reduce(o(), 0, torch.tensor([0]).cuda(), o(), 'prod')|o(3, 2).scatter_reduce(0, i, o(3, 2), 'sum')
o(3, 2).scatter_reduce(0, i, o(3, 2), 'prod')|o(3, 2).scatter_add(0, i, o(3, 2))
o(3, 2).scatter_reduce(0, i, o(3, 2), 'mean')|o(3, 2).scatter_reduce(0, i, o(3, 2), 'amin')|o(3, 2).scatter(0, i, 1)
o(3, 2).scatter_reduce(0, i, o(3, 2), 'prod', include_self=False)|o(3, 2).scatter_reduce_(0, i, o(3, 2), 'amax')
o(3, 2).scatter_reduce(0, i, o(3, 2), 'sum', include_self=False)|o(3, 2).scatter(0, i, o(3, 2), reduce='add')
o(3, 2).scatter(0, i, 2, reduce='multiply')|o(3, 2).scatter(0, i, 2, reduce='add')
o(3, 2).scatter_(0, i, 2, reduce='add')|o(3, 2).scatter_(0, i, o(3, 2), reduce='multiply')
o(3, 2).scatter(0, i, o(3, 2))|o(3, 2).index_add(0, j, o(2, 2))|o(3, 2).index_reduce_(0, j, o(2, 2), 'amin')"""
MADE = """torch.triu_indices(3, 3, dtype=d, device='cuda')|torch.tril_indices(3, 3, dtype=d, device='cuda')
torch.linspace(0, 1, 5, dtype=d, device='cuda')|torch.logspace(0, 1, 5, dtype=d, device='cuda')
torch.rand(3, dtype=d, device='cuda')|torch.linspace(0, 1, 1, dtype=d, device='cuda')
torch.linspace(0, 1, 0, dtype=d, device='cuda')|torch.arange(5, dtype=d, device='cuda')
torch.randint(0, 2, (3,), dtype=d, device='cuda')|torch.eye(3, dtype=d, device='cuda')
torch.randn(3, dtype=d, device='cuda')|torch.randperm(5, dtype=d, device='cuda')
torch.randint(2, (3,), dtype=d, device='cuda')|torch.randint_like(o(3), 0, 2)
torch.randint(0, 3, (3,), dtype=d, device='cuda')|torch.randint(0, 300, (3,), dtype=d, device='cuda')
o(3).random_(0, 2)|torch.randint(-1, 2, (3,), dtype=d, device='cuda')
torch.randint(0, 70000, (3,), dtype=d, device='cuda')|o(3).random_()|torch.randint(0, 0, (3,), dtype=d, device='cuda')
torch.randint_like(o(0), 2)|o(3).random_(300)|o(3).random_(-1, 2)"""
LAYERS = """F.unfold(o(1, 2, 4, 4), 2)|F.unfold(o(0, 2, 4, 4), 2)|F.fold(o(1, 8, 9), (4, 4), 2)
F.group_norm(o(2, 4, 3), 2)|F.binary_cross_entropy(o(3), o(3))|F.group_norm(o(0, 4, 3), 2)|F.mse_loss(o(3), o(3))
F.l1_loss(o(3), o(3))|F.gelu(o(4))|F.binary_cross_entropy_with_logits(o(3), o(3))|F.rms_norm(o(3, 4), (4,))
F.dropout(o(4))|F.softmax(o(3, 4), -1)|F.scaled_dot_product_attention(o(1, 2, 4, 8), o(1, 2, 4, 8), o(1, 2, 4, 8))
F.log_softmax(o(3, 4), -1)|F.max_pool2d(o(1, 1, 4, 4), 2)|F.interpolate(o(1, 1, 4, 4), scale_factor=2)
F.interpolate(o(1, 1, 4, 4), scale_factor=2, mode='bilinear')|F.avg_pool2d(o(1, 1, 4, 4), 2)
F.adaptive_avg_pool2d(o(1, 1, 4, 4), 2)|F.grid_sample(o(1, 1, 4, 4), o(1, 2, 2, 2))
F.pad(o(1, 1, 4, 4), (1, 1, 1, 1), mode='reflect')|F.embedding(j, o(3, 2))|F.nll_loss(o(3, 4), i[:, 0])
F.cross_entropy(o(3, 4), o(3, 4))"""
CONVOLUTIONS = """F.conv1d(o(2, 4, 9), o(4, 4, 3))|F.conv1d(o(2, 4, 9), o(4, 1, 3), groups=4)
F.conv2d(o(2, 4, 9, 9), o(4, 4, 3, 3))|F.conv1d(o(2, 4, 9), o(4, 4, 3), dilation=2)
F.conv2d(o(2, 4, 9, 9), o(4, 4, 1, 1))|F.conv2d(o(0, 4, 9, 9), o(4, 4, 3, 3))
F.conv2d(o(2, 4, 9, 9), o(4, 1, 3, 3), groups=4)|F.conv2d(o(2, 4, 9, 9), o(4, 2, 3, 3), groups=2)
F.conv2d(o(2, 4, 9, 9), o(4, 4, 3, 3), dilation=2, padding=1)|F.conv3d(o(2, 4, 5, 5, 5), o(4, 4, 3, 3, 3))
F.conv3d(o(2, 4, 5, 5, 5), o(4, 1, 3, 3, 3), groups=4)|F.conv3d(o(2, 4, 5, 5, 5), o(4, 4, 2, 2, 2), dilation=2)
F.conv_transpose1d(o(2, 4, 9), o(4, 4, 3))|F.conv_transpose2d(o(2, 4, 9, 9), o(4, 4, 3, 3))
F.conv_transpose2d(o(2, 4, 9, 9), o(4, 4, 3, 3), dilation=2)
F.conv_transpose2d(o(2, 4, 9, 9), o(4, 1, 3, 3), groups=4)|F.conv_transpose3d(o(2, 4, 5, 5, 5), o(4, 4, 3, 3, 3))"""


def snippets() -> list[str]:
    """All of them; convolutions with cuDNN and without."""
    plain = [
        line for text in (PRODUCTS, ELEMENTS, INDICES, MADE, LAYERS) for line in text.replace("\n", "|").split("|")
    ]
    lines = [f"tell({line})" for line in plain]
    for line in CONVOLUTIONS.replace("\n", "|").split("|"):
        lines += [f"with torch.backends.cudnn.flags(enabled={on}): tell({line})" for on in (True, False)]
    return [HEAD.format(dtype=dtype) + line for dtype in DTYPES for line in lines]


def said(case: cases.Case) -> list[str | None]:
    """What is compared: what was raised, or what the result is. A refused call's events before the error are not."""
    return [case.error, case.told]


def main() -> None:
    """The command line."""
    codes = snippets()
    theirs, ours = cases.on_oracle(codes, GPU), cases.on_simulated(codes, GPU)
    agreed = []
    for wanted, got in zip(theirs, ours, strict=True):
        if said(wanted) == said(got):
            agreed.append([wanted.code, *said(wanted)])
        else:
            print(wanted.code.splitlines()[-1], wanted.code.split("torch.")[1].split(")")[0], said(wanted), said(got))
    print(f"{len(agreed)} of {len(codes)} agree")
    KEPT.write_bytes(gzip.compress(json.dumps({"torch": run.DEFAULT_VERSION, "agreed": agreed}).encode(), mtime=0))


if __name__ == "__main__":
    main()
