"""Operators on paths that few programs take: one element, no tolerance, cards before Ampere. The oracle's events."""

import pytest

from tools.oracle.cases import Case, here, on_simulated

CASES = [
    (
        "H100",
        "x = torch.ones(1, device='cuda')\ny = x.any()\n",
        "S2097152 a4 a1 a1 f1 f4 f1",
    ),
    (
        "H100",
        "x = torch.ones(1, 1, device='cuda')\ny = x.all(dim=0)\n",
        "S2097152 a4 a1 a1 f1 f4 f1",
    ),
    (
        "H100",
        "a, b = torch.ones(2, 700, device='cuda')\ny = torch.isclose(a, b, 0.0, 0.0, equal_nan=True)\n",
        "S2097152 a5600 a700 a700 a700 f700 f700 f5600 f700",
    ),
    (
        "H100",
        "a, b = torch.ones(2, 700, device='cuda')\ny = torch.isclose(a, b, equal_nan=True)\n",
        "S2097152 a5600 a700 a700 a700 f700 f700 a2800 a2800 a2800 f2800 f2800 a2800 a2800 f2800 a2800 "
        "a700 a700 a700 f700 f700 f2800 a700 f700 f700 f2800 f2800 f5600 f700",
    ),
    (
        "H100",
        "x = torch.ones(1, 1, device='cuda', requires_grad=True)\nx.cumprod(0).backward()\n",
        "S2097152 a4 a4 a1023 f1023 a4 a4 f4 f4 f4 f4",
    ),
    (
        "H100",
        "p = torch.ones(50, 4, 20, device='cuda', requires_grad=True)\n"
        "t = torch.ones(4, 7, dtype=torch.int64, device='cuda')\n"
        "F.ctc_loss(p, t, [50] * 4, [7, 5, 6, 7]).backward()\n",
        "S2097152 a16000 a224 a32 a32 a32 a12000 a16 f32 f32 f32 a16 a16 f16 a16 a4 f16 a4 a16 a16 f16 "
        "f16 a32 a32 a32 a12000 a16000 f12000 f32 f32 f32 f16 f16 f12000 f4 f4 f16000 f16000 f224",
    ),
    (
        "H100",
        "p = torch.ones(50, 4, 20, device='cuda', requires_grad=True)\n"
        "t = torch.ones(4, 7, dtype=torch.int64, device='cuda')\n"
        "F.ctc_loss(p, t, [50] * 4, [7, 5, 6, 7], reduction='sum').backward()\n",
        "S2097152 a16000 a224 a32 a32 a32 a12000 a16 f32 f32 f32 a4 a4 a32 a32 a32 a12000 a16000 f12000 "
        "f32 f32 f32 f16 f12000 f4 f4 f16000 f16000 f224",
    ),
    (
        "H100",
        "x = torch.ones(3000, 20, 500, device='cuda').permute(2, 0, 1)\ny = x.sum((0, 2))\n",
        "S121634816 a120000000 S2097152 a12000 f120000000 f12000",
    ),
    (
        "H100",
        "x = torch.ones(3, 20000, 50, device='cuda').permute(1, 2, 0)\ny = x.sum(0)\n",
        "S12582912 a12000000 S2097152 a600 f12000000 f600",
    ),
    (
        "H100",
        "x = torch.ones(40, 50, 60, 70, device='cuda').permute(3, 1, 0, 2)\ny = x.sum((0, 2))\n",
        "S35651584 a33600000 S2097152 a12000 f33600000 f12000",
    ),
    (
        "H100",
        "x = torch.ones(6, 1, 70000, device='cuda').expand(6, 5, 70000).permute(2, 0, 1)\ny = x.sum(0)\n",
        "S20971520 a1680000 S2097152 a120 a263040 a8 f8 f263040 f1680000 f120",
    ),
    (
        "H100",
        "m = nn.MultiheadAttention(64, 4, batch_first=True, device='cuda').eval()\n"
        "x = torch.ones(2, 10, 64, device='cuda')\n"
        "with torch.no_grad():\n"
        "    y = m(x, x, x, need_weights=True)\n",
        "S2097152 a49152 a768 a16384 a256 a5120 a15360 S33554432 a33554432 a15360 f15360 a3200 a5120 "
        "a5120 f5120 a800 f3200 f15360 f49152 f768 f16384 f256 f5120 f800 f5120",
    ),
    (
        "H100",
        "m = nn.MultiheadAttention(64, 4, batch_first=True, device='cuda').eval()\n"
        "x = torch.ones(2, 10, 64, device='cuda')\n"
        "k = torch.zeros(2, 10, dtype=torch.bool, device='cuda')\n"
        "with torch.no_grad():\n"
        "    y = m(x, x, x, key_padding_mask=k, need_weights=False)\n",
        "S2097152 a49152 a768 a16384 a256 a5120 a20 a80 a15360 S33554432 a33554432 a15360 f15360 a3200 "
        "a20 a3200 f3200 f20 f3200 a5120 a5120 f5120 f15360 f80 f49152 f768 f16384 f256 f5120 f20 f5120",
    ),
    (
        "H100",
        "m = nn.MultiheadAttention(64, 4, batch_first=True, device='cuda').eval()\n"
        "x = torch.ones(2, 10, 64, device='cuda')\n"
        "with torch.no_grad():\n"
        "    y = m(x, x, x, need_weights=True, average_attn_weights=False)\n",
        "S2097152 a49152 a768 a16384 a256 a5120 a15360 S33554432 a33554432 a15360 f15360 a3200 a5120 "
        "a5120 f5120 f15360 f49152 f768 f16384 f256 f5120 f3200 f5120",
    ),
    (
        "H100",
        "x = torch.ones(500, device='cuda')\ny = torch.isin(x, x[:3], invert=True)\n",
        "S2097152 a2000 a500 a1500 a500 f500 f1500 f2000 f500",
    ),
    (
        "T4",
        "x = torch.ones(30000, device='cuda')\ny = x.topk(5)\n",
        "S2097152 a120000 a20 a40 a4 a8 a8 a15360 a1024 a120 a120 a1279 f1279 a1279 f1279 f120 f120 f1024 "
        "f15360 f8 f8 f4 f120000 f20 f40",
    ),
    (
        "T4",
        "x = torch.ones(3000, dtype=torch.int32, device='cuda')\n"
        "w = torch.ones(40, 8, device='cuda', requires_grad=True)\n"
        "F.embedding(x, w, scale_grad_by_freq=True).sum().backward()\n",
        "S2097152 a12000 a1280 a96000 a4 f96000 a4 a96000 a12000 a12000 a12000 a1 f1 f12000 a12000 a1279 "
        "f1279 a1279 f1279 a1280 a12000 a8 a12000 a1279 f1279 f12000 a160 a160 a1023 f1023 a8 a1360 a1360 "
        "f1360 f1360 f8 f160 f160 f8 f12000 f12000 f12000 f12000 f96000 f4 f4 f12000 f1280 f1280",
    ),
    (
        "T4",
        "x = torch.ones(3000, dtype=torch.int64, device='cuda')\n"
        "w = torch.ones(40, 8, device='cuda', requires_grad=True)\n"
        "F.embedding(x, w, scale_grad_by_freq=True).sum().backward()\n",
        "S2097152 a24000 a1280 a96000 a4 f96000 a4 a96000 a24000 a24000 a24000 a4607 f4607 f24000 a24000 "
        "a1279 f1279 a1279 f1279 a1280 a24000 a8 a24000 a1279 f1279 f24000 a320 a320 a1279 f1279 a8 a2720 "
        "a2720 f2720 f2720 f8 f320 f320 f8 f24000 f24000 f24000 f24000 f96000 f4 f4 f24000 f1280 f1280",
    ),
    (
        "H100",
        "x = torch.ones((), device='cuda', requires_grad=True)\nx.cumprod(0).backward()\n",
        "S2097152 a4 a4 a4 a4 f4 f4 f4 f4",
    ),
    (
        "H100",
        "q, k, v = (torch.ones(32, 8, 48, 16, device='cuda', requires_grad=True) for _ in range(3))\n"
        "F.scaled_dot_product_attention(q, k, v).sum().backward()\n",
        "S2097152 a786432 a786432 S2097152 a786432 a786432 a65536 a4 a96 a4 f4 f96 a4 S2097152 a786432 "
        "a786432 S2097152 a786432 a786432 S2097152 a786432 a49152 a49152 f49152 f786432 S20971520 "
        "a4198400 f49152 f4198400 f786432 f65536 f786432 a786432 f786432 a786432 f786432 a786432 f786432 "
        "f4 f4 f786432 f786432 f786432 f786432 f786432 f786432",
    ),
    (
        "H100",
        "x = torch.ones(2, 3, 9, 8, device='cuda').transpose(2, 3)\ny = F.unfold(x, 3)\n",
        "S2097152 a1728 a1728 a1728 a9072 f1728 f1728 f1728 f9072",
    ),
    (
        "H100",
        "x = torch.ones(5, 300, device='cuda')\ny = x.mode(0)\n",
        "S2097152 a6000 a1200 a2400 a6000 f6000 f6000 f1200 f2400",
    ),
    (
        "H100",
        "x = torch.ones(300, 5, device='cuda')\ny = x.mode(0)\n",
        "S2097152 a6000 a20 a40 a6000 f6000 f6000 f20 f40",
    ),
    (
        "H100",
        "x = torch.ones(300, 5, device='cuda').t()\ny = x.mode(1)\n",
        "S2097152 a6000 a20 a40 a6000 f6000 f6000 f20 f40",
    ),
    (
        "H100",
        "x = torch.ones(1, device='cuda')\ny = x.unique_consecutive(return_inverse=True, return_counts=True)\n",
        "S2097152 a4 a8 a4 a1023 f1023 f4 a4 a8 a8 a1023 f1023 f8 f4 f8 f8 f4",
    ),
    (
        "H100",
        "x = torch.ones(0, device='cuda')\ny = x.unique_consecutive(return_inverse=True, return_counts=True)\n",
        "",
    ),
    (
        "H100",
        "x = torch.ones(2, 3, 8, 8, device='cuda')\n"
        "y, i = F.max_pool2d(x, 2, return_indices=True)\n"
        "z = F.max_unpool2d(y.transpose(2, 3), i.transpose(2, 3), 2)\n",
        "S2097152 a1536 a384 a768 a384 a768 a1536 f768 f384 f1536 f384 f768 f1536",
    ),
    (
        "T4",
        "x = torch.ones(3841, dtype=torch.bool, device='cuda')\ny = x.cumsum(0)\n",
        "S2097152 a3841 a30728 a30728 a1279 f1279 f30728 f3841 f30728",
    ),
    (
        "T4",
        "m = torch.ones(3841, dtype=torch.bool, device='cuda')\n"
        "x = torch.ones(3841, device='cuda')\n"
        "x.masked_scatter_(m, torch.ones(3841, device='cuda'))\n",
        "S2097152 a3841 a15364 a15364 a30728 a1279 f1279 f30728 f15364 f3841 f15364",
    ),
    (
        "H100",
        "x = torch.ones(2, 3, 4, device='cuda')\ny = x.mode(0)\n",
        "S2097152 a96 a48 a96 a96 f96 f96 f48 f96",
    ),
    (
        "H100",
        "x = torch.ones(4, 5, 6, device='cuda')\ny = x.mode(1)\n",
        "S2097152 a480 a96 a192 a480 f480 f480 f96 f192",
    ),
    (
        "H100",
        "x = torch.ones(3841, dtype=torch.int64, device='cuda')\ny = x.unique(return_inverse=True)\n",
        "S2097152 a30728 a30728 a30728 a30728 a79871 f79871 f30728 a30728 a30728 a1023 f1023 f30728 a30728 a8 "
        "a1023 f1023 f8 f30728 f30728 f30728 f30728 f30728",
    ),
    (
        "H100",
        "m = nn.MultiheadAttention(64, 1, batch_first=True, device='cuda').eval()\n"
        "x = torch.ones(2, 10, 64, device='cuda')\n"
        "with torch.no_grad():\n"
        "    y = m(x, x, x, need_weights=True)\n",
        "S2097152 a49152 a768 a16384 a256 a5120 a5120 a15360 S33554432 a33554432 f5120 a15360 f15360 a5120 "
        "a800 f5120 a800 f800 a5120 a5120 f5120 a5120 f5120 a800 f800 f15360 f49152 f768 f16384 f256 f5120 "
        "f800 f5120",
    ),
    (
        "H100",
        "x = torch.ones(2, 256, 20, 27, device='cuda', dtype=torch.float16)\n"
        "y = F.conv2d(x, torch.ones(256, 1, 3, 3, device='cuda', dtype=torch.float16), stride=2, groups=256)\n",
        "S2097152 a552960 a4608 a119808 f4608 f552960 f119808",
    ),
    (
        "H100",
        "x = torch.ones(2, 256, 20, 28, device='cuda', dtype=torch.float16)\n"
        "y = F.conv2d(x, torch.ones(256, 1, 3, 3, device='cuda', dtype=torch.float16), stride=2, groups=256)\n",
        "S2097152 a573440 a4608 a119808 f4608 f573440 f119808",
    ),
    (
        "H100",
        "x = torch.ones(2, 3, 8, 9, device='cuda')\n"
        "y = torch.empty(0, device='cuda')\n"
        "torch.ops.aten.im2col.out(x, [3, 3], [1, 1], [0, 0], [1, 1], out=y)\n",
        "S2097152 a1728 a9072 f1728 f9072",
    ),
    (
        "H100",
        "p = torch.ones(50, 4, 20, device='cuda', requires_grad=True)\n"
        "t = torch.ones(4, 7, dtype=torch.int64, device='cuda')\n"
        "F.ctc_loss(p, t, [50] * 4, [7, 5, 6, 7], reduction='none').sum().backward()\n",
        "S2097152 a16000 a224 a32 a32 a32 a12000 a16 f32 f32 f32 a4 a4 a32 a32 a32 a12000 a16000 f12000 f32 "
        "f32 f32 f16 f12000 f4 f4 f16000 f16000 f224",
    ),
    (
        "A100-80GB",
        "x = torch.ones(3841, dtype=torch.int64, device='cuda')\ny = x.unique(return_inverse=True)\n",
        "S2097152 a30728 a30728 a30728 a30728 a80895 f80895 f30728 a30728 a30728 a1023 f1023 f30728 a30728 a8 "
        "a1023 f1023 f8 f30728 f30728 f30728 f30728 f30728",
    ),
    (
        "RTX 5090",
        "x = torch.ones(3841, dtype=torch.int64, device='cuda')\ny = x.unique(return_inverse=True)\n",
        "S2097152 a30728 a30728 a30728 a30728 a79871 f79871 f30728 a30728 a30728 a1023 f1023 f30728 a30728 a8 "
        "a1023 f1023 f8 f30728 f30728 f30728 f30728 f30728",
    ),
    (
        "T4",
        "x = torch.ones(3841, dtype=torch.int64, device='cuda')\ny = x.unique(return_inverse=True)\n",
        "S2097152 a30728 a30728 a30728 a30728 a80895 f80895 f30728 a30728 a30728 a1023 f1023 f30728 a30728 a8 "
        "a1023 f1023 f8 f30728 f30728 f30728 f30728 f30728",
    ),
    (
        "T4",
        "q, k, v = (torch.ones(32, 8, 48, 16, device='cuda', requires_grad=True) for _ in range(3))\n"
        "F.scaled_dot_product_attention(q, k, v).sum().backward()\n",
        "S2097152 a786432 a786432 S2097152 a786432 a786432 a65536 a4 a96 a4 f4 f96 a4 S2097152 a786432 "
        "a786432 S2097152 a786432 a786432 S2097152 a786432 a49152 a49152 f49152 f786432 S20971520 a4198400 "
        "f49152 f4198400 f786432 f65536 f786432 a786432 f786432 a786432 f786432 a786432 f786432 f4 f4 f786432 "
        "f786432 f786432 f786432 f786432 f786432",
    ),
    (
        "T4",
        "q, k, v = (torch.ones(32, 8, 48, 80, device='cuda', requires_grad=True) for _ in range(3))\n"
        "F.scaled_dot_product_attention(q, k, v).sum().backward()\n",
        "S20971520 a3932160 a3932160 a3932160 a3932160 S2097152 a65536 a4 a320 a4 f4 f320 a4 a3932160 "
        "S20971520 a3932160 a3932160 a3932160 a3932160 a49152 a49152 f49152 f3932160 a8396800 f49152 f8396800 "
        "f3932160 f65536 f3932160 a3932160 f3932160 a3932160 f3932160 a3932160 f3932160 f4 f4 f3932160 "
        "f3932160 f3932160 f3932160 f3932160 f3932160",
    ),
    (
        "A100-80GB",
        "q, k, v = (torch.ones(32, 8, 48, 160, device='cuda', requires_grad=True) for _ in range(3))\n"
        "F.scaled_dot_product_attention(q, k, v).sum().backward()\n",
        "S20971520 a7864320 a7864320 S20971520 a7864320 a7864320 S2097152 a65536 a4 a960 a4 f4 f960 a4 "
        "S20971520 a7864320 a7864320 S20971520 a7864320 a7864320 S20971520 a7864320 a49152 a49152 f49152 "
        "f7864320 S27262976 a25178112 f49152 f25178112 f7864320 f65536 f7864320 a7864320 f7864320 a7864320 "
        "f7864320 a7864320 f7864320 f4 f4 f7864320 f7864320 f7864320 f7864320 f7864320 f7864320",
    ),
    (
        "A100-80GB",
        "m = nn.MultiheadAttention(64, 4, batch_first=True, device='cuda').eval()\n"
        "x = torch.ones(2, 1, 64, device='cuda')\n"
        "with torch.no_grad():\n"
        "    y = m(x, x, x, need_weights=True)\n",
        "S2097152 a49152 a768 a16384 a256 a512 a1536 S20971520 a8519680 a1536 f1536 a32 a512 a8 f32 f1536 "
        "f49152 f768 f16384 f256 f512 f8 f512",
    ),
    (
        "A100-80GB",
        "from torch.nn.attention import SDPBackend, sdpa_kernel\n"
        "q = torch.zeros(1, 1024, 2, 64, device='cuda', dtype=torch.bfloat16, requires_grad=True)\n"
        "k, v = (torch.zeros(1, 1, 2, 64, device='cuda', dtype=torch.bfloat16, requires_grad=True) for _ in 'kv')\n"
        "with sdpa_kernel(SDPBackend.FLASH_ATTENTION):\n"
        "    y = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)\n"
        "y.backward(torch.ones_like(y))\n",
        "S2097152 a262144 a256 a256 a262144 a8192 a16 a8 a262144 a262144 a262144 a262144 a256 a256 S2097152 "
        "a524288 S33554432 a33554432 a262144 a262144 a1048576 a4 f4 f1048576 a1048576 a4 f4 f1048576 f262144 "
        "f262144 f33554432 f524288 f262144 f262144 f8192 f16 f8 f262144 f256 f256 f256 f256 f262144 f262144 "
        "f262144",
    ),
    (
        "H100",
        "x = torch.randn(300, 200, device='cuda').t()\ny = x.median()\n",
        "S2097152 a240000 a240000 a240000 a480000 a480000 S2097152 a741119 f741119 f480000 f480000 f240000 a1 "
        "a4 f1 f240000 f240000 f4",
    ),
    (
        "H100",
        "w = torch.zeros(528, 32, device='cuda', requires_grad=True)\n"
        "i = torch.zeros(20000, dtype=torch.long, device='cuda')\n"
        "y = F.embedding(i, w)\n"
        "y.backward(torch.ones_like(y))\n",
        "S2097152 a67584 a160000 S20971520 a2560000 a2560000 a160000 a160000 a160000 a329727 f329727 f160000 "
        "a67584 a160000 a8 a160000 a1279 f1279 f160000 a4224 a4224 a1279 f1279 a8 a20224 a323584 f323584 "
        "f20224 f8 f4224 f4224 f8 f160000 f160000 f160000 f2560000 f160000 f67584 f67584 f2560000",
    ),
    (
        "H100",
        "w = torch.zeros(527, 32, device='cuda', requires_grad=True)\n"
        "i = torch.zeros(20000, dtype=torch.long, device='cuda')\n"
        "y = F.embedding(i, w)\n"
        "y.backward(torch.ones_like(y))\n",
        "S2097152 a67456 a160000 S20971520 a2560000 a2560000 a160000 a160000 a160000 a329727 f329727 f160000 "
        "a67456 a160000 a8 a160000 a1279 f1279 f160000 a4216 a4216 a1279 f1279 a8 a20216 a20216 f20216 f20216 "
        "f8 f4216 f4216 f8 f160000 f160000 f160000 f2560000 f160000 f67456 f67456 f2560000",
    ),
    (
        "H100",
        "import torch.distributions as td\n"
        "a, b = torch.ones(2, 300, 7, device='cuda', requires_grad=True)\n"
        "for made in (td.Beta(a, b, False), td.Dirichlet(a, False), td.Gamma(a, b, False)):\n"
        "    made.rsample().sum().backward()\n",
        "S2097152 a16800 a16800 a16800 a8400 f8400 a4 a4 a16800 a8400 a16800 a16800 a8400 f16800 a16800 f8400 "
        "a16800 f16800 f8400 f16800 f16800 f16800 a16800 f16800 f4 f4 a8400 a1200 f1200 a4 a4 a1200 a8400 "
        "a8400 a1200 f8400 a8400 f1200 a8400 f8400 f1200 f8400 f8400 a4 a16800 f4 f8400 f16800 f4 f4 a8400 "
        "a8400 a4 f8400 a4 a8400 a8400 a8400 a8400 f8400 f8400 f8400 a8400 a8400 a8400 f8400 f8400 f8400 "
        "a16800 f8400 f8400 f16800 f4 f4 f16800 f16800 f16800",
    ),
    (
        "A100-80GB",
        "import torch.distributions as td\n"
        "a = torch.ones(300, 7, device='cuda')\n"
        "x = td.Poisson(a, False).sample()\n"
        "y = td.Binomial(10, a, validate_args=False).sample()\n"
        "z = torch._sample_dirichlet(torch.ones(2, 400000, device='cuda'))\n",
        "S2097152 a8400 a8400 a4 a8400 f4 S20971520 a3200000 a3200000 a8 a392 a8 f8 f392 f8 f3200000 f8400 "
        "f8400 f8400 f3200000",
    ),
    (
        "H100",
        "y = torch.unique(torch.ones(98305, dtype=torch.int64, device='cuda'), return_inverse=True)\n",
        "S2097152 a786440 a786440 S2097152 a786440 a786440 S20971520 a1612799 f1612799 f786440 a786440 "
        "S2097152 a786440 a1279 f1279 f786440 a786440 a8 a1023 f1023 f8 f786440 f786440 f786440 f786440 "
        "f786440",
    ),
    (
        "H100",
        "x = torch.ones(2, 4, 9, 9, device='cuda', requires_grad=True)\n"
        "w = torch.ones(4, 3, 3, 3, device='cuda', requires_grad=True)\n"
        "F.conv_transpose2d(x, w, dilation=2, output_padding=1).sum().backward()\n",
        "S2097152 a2592 a432 a4704 a8748 S33554432 a33554432 f8748 a4 f4704 a4 a4704 a2592 a8748 S33554432 "
        "a33554432 f8748 f4704 a432 a4704 a8748 f8748 f4704 f4 f4 f2592 f2592 f432 f432",
    ),
    (
        "H100",
        "x = torch.ones(2, 512, 14, 14, device='cuda', dtype=torch.half, requires_grad=True)\n"
        "w = torch.ones(512, 1, 3, 3, device='cuda', dtype=torch.half, requires_grad=True)\n"
        "F.conv2d(x, w, stride=2, groups=512).sum().backward()\n",
        "S2097152 a401408 a9216 a73728 a2 f73728 a2 a401408 a73728 f73728 a73728 a9216 f73728 f2 f2 f401408 "
        "f401408 f9216 f9216",
    ),
    (
        "H100",
        "x = torch.ones(2, 256, 28, 28, device='cuda', dtype=torch.half, requires_grad=True)\n"
        "w = torch.ones(256, 1, 3, 3, device='cuda', dtype=torch.half, requires_grad=True)\n"
        "F.conv2d(x, w, stride=2, groups=256).sum().backward()\n",
        "S2097152 a802816 a4608 a173056 a2 f173056 a2 a802816 a173056 f173056 a173056 a4608 f173056 f2 f2 "
        "f802816 f802816 f4608 f4608",
    ),
    (
        "H100",
        "x = torch.ones(2, 256, 27, 27, device='cuda', dtype=torch.half, requires_grad=True)\n"
        "w = torch.ones(256, 1, 3, 3, device='cuda', dtype=torch.half, requires_grad=True)\n"
        "F.conv2d(x, w, stride=2, groups=256).sum().backward()\n",
        "S2097152 a746496 a4608 a173056 a2 f173056 a2 a173056 a4608 a746496 f173056 f2 f2 f746496 f746496 f4608 f4608",
    ),
    (
        "H100",
        "x = torch.ones(3000000, device='cuda')\ny = torch.histc(x, 50)\n",
        "S12582912 a12000000 S2097152 a200 a4 a4 a2936 a4 f4 f2936 f4 f4 f12000000 f200",
    ),
    (
        "H100",
        "x = torch.arange(400000, device='cuda')\ny = torch.searchsorted(x, x[:7], sorter=x)\n",
        "S20971520 a3200000 S2097152 a8 a8 a784 a4 f4 f784 f8 f8 a56 f3200000 f56",
    ),
    (
        "H100",
        "x = torch.zeros(2, 1100, 8, device='cuda')\n"
        "m = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, device='cuda').eval()\n"
        "mask = torch.zeros(2, 1100, dtype=torch.bool, device='cuda')\n"
        "with torch.no_grad(): y = m(x, src_key_padding_mask=mask)\n",
        "S2097152 a70400 a768 a96 a256 a32 a512 a64 a512 a32 a32 a32 a32 a32 a2200 a8800 a211200 S33554432 "
        "a33554432 a211200 f211200 S20971520 a19360000 a2200 S20971520 a19360000 S20971520 a19360000 "
        "S20971520 a19360000 f19360000 f19360000 f19360000 f2200 f19360000 a70400 a70400 f70400 f211200 "
        "a70400 a8800 a8800 f8800 f8800 f70400 a140800 a70400 f140800 a70400 a8800 a8800 f8800 f8800 f70400 "
        "f70400 f8800 f70400 f768 f96 f256 f32 f512 f64 f512 f32 f32 f32 f32 f32 f2200 f70400",
    ),
    (
        "H100",
        "x = torch.zeros(2, 1100, 8, device='cuda')\n"
        "m = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, device='cuda').eval()\n"
        "mask = torch.zeros(1100, 1100, dtype=torch.bool, device='cuda')\n"
        "with torch.no_grad(): y = m(x, src_mask=mask)\n",
        "S2097152 a70400 a768 a96 a256 a32 a512 a64 a512 a32 a32 a32 a32 a32 S20971520 a1210000 a4840000 "
        "a211200 S33554432 a33554432 a211200 f211200 S20971520 a19360000 a4840000 S20971520 a19360000 "
        "S20971520 a19360000 S20971520 a19360000 f19360000 f19360000 f19360000 f4840000 f19360000 a70400 "
        "a70400 f70400 f211200 a70400 a8800 a8800 f8800 f8800 f70400 a140800 a70400 f140800 a70400 a8800 "
        "a8800 f8800 f8800 f70400 f70400 f4840000 f70400 f768 f96 f256 f32 f512 f64 f512 f32 f32 f32 f32 f32 "
        "f1210000 f70400",
    ),
    (
        "H100",
        "x = torch.zeros(2, 1100, 8, device='cuda')\n"
        "m = nn.MultiheadAttention(8, 2, batch_first=True, device='cuda').eval()\n"
        "mask = torch.zeros(2, 1100, dtype=torch.bool, device='cuda')\n"
        "with torch.no_grad(): y = m(x, x, x, key_padding_mask=mask, need_weights=True)\n",
        "S2097152 a70400 a768 a96 a256 a32 a2200 a8800 a211200 S33554432 a33554432 a211200 f211200 S20971520 "
        "a19360000 a2200 S20971520 a19360000 S20971520 a19360000 S20971520 a19360000 f19360000 f19360000 "
        "f19360000 f2200 a70400 a70400 f70400 a9680000 f19360000 f211200 f8800 f70400 f768 f96 f256 f32 f2200 "
        "f9680000 f70400",
    ),
    (
        "H100",
        "x = torch.ones(1, 8, 8, 1, 50, device='cuda').expand(1, 8, 8, 700, 50).permute(1, 4, 2, 3, 0)\n"
        "y = x.sum((0, 2, 3, 4))\n",
        "S2097152 a12800 a200 S20971520 a1120000 a8 f8 f1120000 f12800 f200",
    ),
    (
        "H100",
        "x = torch.ones(1, 3000, 50, 1, device='cuda').expand(1, 3000, 50, 3).permute(1, 2, 3, 0)\n"
        "y = x.sum((0, 2, 3))\n",
        "S2097152 a600000 a200 a230400 a8 f8 f230400 f600000 f200",
    ),
    (
        "A100-80GB",
        "x = torch.ones(700, 1, 2, 1, 1, device='cuda').expand(700, 1, 2, 8, 50).permute(2, 1, 4, 3, 0)\n"
        "y = x.sum((1, 2, 3, 4))\n",
        "S2097152 a5600 a8 a280 a8 f8 f280 f5600 f8",
    ),
    (
        "H100",
        "p = torch.zeros(20, 3, 5, device='cuda', requires_grad=True)\n"
        "t = torch.ones(31, dtype=torch.int32)\n"
        "ends = torch.tensor([20] * 3, dtype=torch.int32), torch.tensor([21, 4, 6], dtype=torch.int32)\n"
        "F.ctc_loss(p, t, *ends).backward()\n",
        "S2097152 a1200 a248 a24 a24 a24 a10320 a12 f24 f24 f24 a12 a12 f12 a12 a4 f12 a4 a12 a12 f12 f12 a24 "
        "a24 a24 a10320 a1200 f10320 f24 f24 f24 f12 f248 f12 f10320 f4 f4 f1200 f1200",
    ),
    (
        "A100-80GB",
        "w = torch.ones(50, 4, device='cuda', requires_grad=True)\n"
        "i = torch.ones(73000, dtype=torch.int64, device='cuda')\n"
        "F.embedding(i, w, scale_grad_by_freq=True).sum().backward()\n",
        "S2097152 a800 a584000 S20971520 a1168000 a4 a144 a4 f4 f144 f1168000 a4 a1168000 a584000 a584000 "
        "S2097152 a584000 a23039 f23039 f584000 a584000 a2047 f2047 a2047 f2047 a800 a584000 a8 a584000 a2047 "
        "f2047 f584000 a400 a400 a1279 f1279 a8 a58800 a58800 f58800 f58800 f8 f400 f400 f8 f584000 f584000 "
        "f584000 f584000 f1168000 f4 f4 f800 f800 f584000",
    ),
    (
        "H100",
        "xs = [torch.ones(n, n, device='cuda', dtype=torch.bfloat16) for n in (20, 19)]\n"
        "y = torch._foreach_norm(xs, 0)\n",
        "S2097152 a800 a722 a8 a2 a2 f8 f722 f800 f2 f2",
    ),
    (
        "H100",
        "x = torch.zeros(5, 9, device='cuda', dtype=torch.int64)\n"
        "w = torch.zeros(20, 4, device='cuda')\n"
        "y = F.embedding(x, w, max_norm=1.0)\n",
        "S2097152 a360 a320 a360 a360 a360 a360 f360 f360 a360 a8 a1023 f1023 f8 f360 f360 f360 a720 f360 f320 f720",
    ),
    (
        "H100",
        "x = torch.zeros(5000, device='cuda', dtype=torch.int64)\n"
        "w = torch.zeros(20, 4, device='cuda')\n"
        "y = F.embedding(x, w, max_norm=1.0)\n",
        "S2097152 a40000 a320 a40000 a40000 a40000 a40000 a99327 f99327 f40000 f40000 a40000 a8 a1023 "
        "f1023 f8 f40000 f40000 f40000 a80000 f40000 f320 f80000",
    ),
    (
        "H100",
        "x = torch.zeros(50, device='cuda', dtype=torch.uint8)\ny = torch.bincount(x)\n",
        "S2097152 a50 a1 a1 a8 f1 f1 f50 f8",
    ),
    (
        "H100",
        "x = torch.zeros(50, device='cuda', dtype=torch.int64)\ny = torch.bincount(x)\n",
        "S2097152 a400 a8 a8 a8 f8 f8 f400 f8",
    ),
    (
        "H100",
        "x = torch.zeros(300, 40, device='cuda', dtype=torch.int64).t()[0]\ny = torch.bincount(x)\n",
        "S2097152 a96000 a8 a8 a2400 f2400 a8 f8 f8 f96000 f8",
    ),
    (
        "B200",
        "w = torch.zeros(50, 4, device='cuda', requires_grad=True)\n"
        "i = torch.zeros(1000000, device='cuda', dtype=torch.int64)\n"
        "F.embedding(i, w).sum().backward()\n",
        "S2097152 a800 S20971520 a8000000 S16777216 a16000000 a4 a1956 a4 f4 f1956 f16000000 a4 "
        "a16000000 a8000000 S20971520 a8000000 a8000000 a225791 f225791 f8000000 a800 a8000000 a8 "
        "S20971520 a8000000 a4351 f4351 f8000000 a400 a400 a1279 f1279 a8 a800400 a800400 f800400 "
        "f800400 f8 f400 f400 f8 f8000000 f8000000 f8000000 f16000000 f4 f4 f800 f800 f8000000",
    ),
]


@pytest.mark.parametrize(("gpu", "code", "events"), CASES)
def test_events_are_the_oracle_s(gpu, code, events):
    assert on_simulated([code], gpu) == here("rare_paths", [Case(gpu, code, events, None)])
