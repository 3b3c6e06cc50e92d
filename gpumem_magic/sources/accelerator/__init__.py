"""An accelerator that is no CUDA device (MPS, XPU, ...): PyTorch's counters of it, and the storages
that operators make on it."""
