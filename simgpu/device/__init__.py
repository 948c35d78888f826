"""The GPU that is simulated: its specification, memory, streams, and the state of CUDA libraries on it."""
