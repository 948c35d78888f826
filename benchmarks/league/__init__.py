"""The league table: estimators that need no GPU, on the same training steps, against PyTorch's host code."""
