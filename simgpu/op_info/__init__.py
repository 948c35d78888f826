"""The record of each operator (`OpSpec`), its arguments by name, and overloads that run one code."""
