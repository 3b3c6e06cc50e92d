"""What operators take on a CUDA device beside their results."""
