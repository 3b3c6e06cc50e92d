"""Operators whose results or steps differ on a CUDA device from those of the CPU."""
