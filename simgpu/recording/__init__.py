"""What a workload did to a GPU's memory and how long it took, kept in a small file."""
