"""`simgpu fit`: whether a model, a batch and an optimizer fit on a GPU, and what would make them fit."""
