"""Each loss, forward and backward, small and large, as a mean and as a sum."""

from functools import partial

import torch
from torch.nn import functional as F


def classification(stage, rows, classes, dtype=torch.float32):
    """Cross-entropy and its parts, with and without ignored targets, weights and label smoothing."""
    logits = torch.randn(rows, classes, dtype=dtype, device="cuda", requires_grad=True)
    targets = torch.randint(classes, (rows,), device="cuda")
    weight = torch.rand(classes, dtype=dtype, device="cuda")
    stage("inputs")
    for loss in (
        F.cross_entropy,
        partial(F.cross_entropy, reduction="sum"),
        partial(F.cross_entropy, label_smoothing=0.1),
        partial(F.cross_entropy, weight=weight),
        lambda logits, targets: F.nll_loss(F.log_softmax(logits, -1), targets),
        lambda logits, targets: F.multi_margin_loss(logits, targets),
        lambda logits, targets: -F.log_softmax(logits, -1).gather(1, targets[:, None]).mean(),
    ):
        loss(logits, targets).backward()
        logits.grad = None
    stage("losses")


def regression(stage, shape, dtype=torch.float32):
    """Losses between two tensors of one shape."""
    outputs = torch.rand(shape, dtype=dtype, device="cuda", requires_grad=True)
    targets = torch.rand(shape, dtype=dtype, device="cuda")
    stage("inputs")
    for loss in (
        F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss,
        F.binary_cross_entropy_with_logits, F.soft_margin_loss, F.poisson_nll_loss,
        partial(F.kl_div, reduction="batchmean"),
    ):  # fmt: skip
        loss(outputs, targets).backward()
        outputs.grad = None
    for reduction in ("sum", "none"):
        F.mse_loss(outputs, targets, reduction=reduction).sum().backward()
        outputs.grad = None
    stage("losses")


WORKLOADS = {
    "losses_classification_small": partial(classification, rows=64, classes=10),
    "losses_classification_large": partial(classification, rows=2048, classes=50257),
    "losses_classification_bf16": partial(classification, rows=2048, classes=32000, dtype=torch.bfloat16),
    "losses_regression_small": partial(regression, shape=(64, 10)),
    "losses_regression_large": partial(regression, shape=(4096, 1024)),
}
