"""One rank of N: torch.distributed on one simulated GPU, which answers as one of many."""
