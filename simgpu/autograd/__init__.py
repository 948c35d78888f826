"""Where autograd's C++ does something else for a CUDA tensor than for a meta tensor."""
