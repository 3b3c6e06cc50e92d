"""What is told of a growth: how much it is, what holds it, and where it was made."""

from __future__ import annotations

from gpumem_magic.advice.rules.growth_cures import named
from gpumem_magic.units import format_bytes
from gpumem_magic.values.findings import Growth, Unit


def told(together: list[Growth], build: str = "") -> str:
    """The evidence: "Memory grew by 14 MiB in each of 23 passes: outputs holds 322 MiB ...".

    build: what holds it, where the trace cannot say.
    """
    growth = max(together, key=lambda one: one.passes)
    made = _made(together)
    if growth.unit is not Unit.PASS:
        return _told_of_others(growth, made)
    since = f" since pass {growth.first}" if growth.first > 1 else ""
    passes = f"each of {growth.passes} passes" if growth.passes > 1 else f"1 of {growth.ran} passes"
    grew = f"Memory grew by {format_bytes(sum(one.each for one in together))} in {passes}{since}"
    size = format_bytes(sum(one.size for one in together))
    holder = " and ".join(named(one) for one in together if one.holder) or build
    if not holder:
        what = "activations" if all(one.graph for one in together) else "results"
        return f"{grew}: {size} of {what}{f' of {made}' if made else ''} stayed."
    graph = ", with their autograd graphs" if growth.graph else ""
    where = f", made in {made}" if made else ""
    holds = "holds" if len(together) == 1 else "hold"
    return f"{grew}: {holder} {holds} {size}{where}{graph}."


def entries(together: list[Growth]) -> str:
    """The evidence, of what no loop made: "experts[*] holds 48 MiB in 3 entries"."""
    growth, made = together[0], _made(together)
    entries = f" in {growth.passes} entries" if growth.passes > 1 else ""
    where = f", made in {made}" if made else ""
    return f"{named(growth)} holds {format_bytes(growth.size)}{entries}{where}."


def _made(together: list[Growth]) -> str:
    """Where it was made: "line 3", "In[2] lines 3 and 4"; "" where that is not known."""
    cell = together[0].cell
    lines = sorted({one.line for one in together if one.line})
    if not lines:
        return ""
    word = "line" if len(lines) == 1 else "lines"
    *others, last = map(str, lines)
    listed = f"{', '.join(others)} and {last}" if others else last
    return f"{f'{cell} ' if cell else ''}{word} {listed}"


def _told_of_others(growth: Growth, made: str) -> str:
    """The evidence for calls inside each other, and for modules."""
    each, size = format_bytes(growth.each), format_bytes(growth.size)
    if growth.unit is Unit.CALL:
        return (
            f"{growth.holder} calls itself ({made}): {growth.passes} calls were under way, which "
            f"hold {each} each, {size} in all."
        )
    where = f", made in {made}" if made else ""
    return f"{growth.passes} modules keep {each} each: {growth.holder} holds {size}{where}."
