"""A workload's effect on a GPU's memory and its time, stored in a small file."""
