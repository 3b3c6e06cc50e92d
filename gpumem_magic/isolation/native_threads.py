"""Pools of threads that native libraries keep: a forked process has none of these threads, and a
library that does not know of the fork waits for them without end.

The C library's `fork` tells those that asked for it (pthread_atfork), glibc's `_Fork` tells none.
"""

from __future__ import annotations

import ctypes
import io
import os
import re

_POOLS = re.compile(rb"/.*/lib[^/\n]*(?:openblas|blis|gomp|omp5?|mkl_rt)[^/\n]*\.so[^/\n]*")
_SETTERS = (
    "omp_set_num_threads",
    "openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "scipy_openblas_set_num_threads64_",
    "bli_thread_set_num_threads",
    "MKL_Set_Num_Threads",
)


def compute_with_one_thread() -> None:
    """From now on the libraries that are loaded compute in the thread that calls them."""
    os.putenv("TOKENIZERS_PARALLELISM", "false")  # their handler of a fork would set as much
    try:
        with io.FileIO("/proc/self/maps") as file:
            maps = file.readall()
    except OSError:
        return
    for path in {os.fsdecode(path) for path in _POOLS.findall(maps)}:
        try:
            library = ctypes.CDLL(path)
        except OSError:  # it was removed after it had been loaded
            continue
        for name in _SETTERS:
            if hasattr(library, name):
                getattr(library, name)(1)
