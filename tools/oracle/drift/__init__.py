"""What another version of PyTorch does otherwise than the simulated GPU expects, sorted by cause.

`python -m tools.oracle drift --torch X` asks two things of a version whose oracle is built. `names` compares what the
simulated GPU uses of torch: private names, signatures of functions that it replaces, operators. `workloads` runs the
stored workloads on both sides and sorts their first differences. `causes` has the sorts; `command` prints and stores.
"""
