"""Types whose objects a cell cannot change, or which are one of a kind: shared without a word."""

from __future__ import annotations

import datetime
import decimal
import fractions
import logging
import pathlib
import re
import types
import uuid
import weakref
from contextvars import ContextVar
from typing import Final

import numpy as np
import torch

ATOMS: Final = frozenset(
    (
        *(type(None), type(...), type(NotImplemented), object),
        *(bool, int, float, complex, str, bytes, range, slice),
        *(datetime.date, datetime.datetime, datetime.time, datetime.timedelta, datetime.timezone),
        *(decimal.Decimal, fractions.Fraction, uuid.UUID, re.Pattern, re.Match),
        *(types.CodeType, types.FrameType, types.TracebackType, types.MappingProxyType),
        *(
            types.GenericAlias,
            types.UnionType,
            types.GetSetDescriptorType,
            types.WrapperDescriptorType,
        ),
        *(types.MemberDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType),
        *(property, staticmethod, classmethod, ContextVar),
        *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.qscheme, torch.Size),
        *(torch.finfo, torch.iinfo),
        *(np.bool_, np.float16, np.float32, np.float64, np.int8, np.int16, np.int32, np.int64),
        *(np.uint8, np.uint16, np.uint32, np.uint64, np.complex64, np.complex128, np.ufunc),
    )
)
"""Exact types. Properties and the like hang on classes, where their functions are looked at."""

_STREAMS: Final = ("Stream", "Event", "_CudaStreamBase", "_CudaEventBase")

FAMILIES: Final = (
    *(pathlib.PurePath, logging.Logger, logging.Handler, np.generic, np.dtype, weakref.finalize),
    *(str, bytes, int, float, complex),
    *(getattr(torch._C, name) for name in _STREAMS if hasattr(torch._C, name)),
)
"""Types whose subclasses, too, are shared."""

SHARED_PACKAGES: Final = frozenset(
    ("IPython", "ipykernel", "traitlets", "zmq", "tornado", "jupyter_client", "comm")
)
"""The notebook's own machinery."""

OUTSIDE_PACKAGES: Final = frozenset(
    (
        "ipywidgets",
        "matplotlib",
        "PIL",
        "multiprocessing",
        "subprocess",
        "concurrent",
        "asyncio",
        "socket",
    )
)
"""Packages whose objects are tied to something outside of Python: shared, and the user is told."""
