"""Will it fit? `simgpu fit`: a model, a batch and an optimizer, on any GPU, and what would make them fit."""
