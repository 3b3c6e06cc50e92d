"""PyTorch's caching allocator, as arithmetic: no tensors, no torch."""
