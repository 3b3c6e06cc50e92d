"""One colour for each kind of memory, apart from all else so that figures and pages share it."""

from __future__ import annotations

from types import MappingProxyType

from gpumem_magic.values.recording import Category

# Paul Tol's "bright" scheme (told apart with every kind of colour vision, on white and on black),
# and two greys of it for the kinds that are seldom large.
COLOURS = MappingProxyType(
    {
        Category.PARAMETER: "#4477AA",
        Category.BUFFER: "#99BBDD",
        Category.GRADIENT: "#CCBB44",
        Category.OPTIMIZER_STATE: "#AA3377",
        Category.ACTIVATION: "#228833",
        Category.INPUT: "#66CCEE",
        Category.TEMPORARY: "#EE6677",
        Category.WORKSPACE: "#AA9988",
        Category.OTHER: "#999999",
    }
)
INK = "#808080"  # 4:1 on white and 5:1 on black
ALLOCATED = "#4477AA"
CACHED = "#99BBDD"
OUTSIDE = "#999999"
FREE = "rgba(128,128,128,0.35)"  # to be seen in the legend, on black too
ALARM = "#EE6677"
GROWN = "#CC6633"  # as text, 4:1 on white and 5:1 on black
SHRUNK = "#2E9E44"
