"""Makes one simulated GPU act as one rank of N for torch.distributed."""
