"""What letting go gave back, step by step, as text and HTML."""

from __future__ import annotations

from collections.abc import Iterator

from gpumem_magic.inventory import Freed, Recovery
from gpumem_magic.renderers import inventory_wording as wording
from gpumem_magic.renderers import pieces
from gpumem_magic.renderers.columns import WIDTH, fit, left, wrap
from gpumem_magic.renderers.markup import EMPTY, ROOT, Markup, element, join, row, table
from gpumem_magic.renderers.wording import visible
from gpumem_magic.trace.findings import Level
from gpumem_magic.units import format_bytes, format_change

_FAINT = "opacity:0.75;font-size:0.92em"


def headline(recovery: Recovery) -> str:
    """What came back, in one sentence."""
    back = _less(recovery.before.reserved, recovery.after.reserved)
    freed = recovery.freed
    if not freed and not back:
        if wording.remedies(recovery.holdings):
            return "Nothing came back: what is still held needs a command of its own, see below"
        return "Nothing came back: nothing was held that no name needs"
    return f"{format_bytes(freed)} let go, {format_bytes(back)} back to the device"


def recovery_text(recovery: Recovery) -> str:
    """The steps for a terminal of 80 columns."""
    device = wording.device_phrase(recovery.device)
    rows = [fit(device, WIDTH), headline(recovery), ""]
    rows.append(f"{'':40}{'allocated':>13}{'reserved':>13}{'device used':>13}")
    rows.append(_level("before", recovery.before))
    for step in recovery.steps:
        rows += _step(step)
    rows.append(_level("after", recovery.after))
    left_over = list(_left(recovery))
    return "\n".join([*rows, *([""] if left_over else []), *left_over])


def _level(name: str, level: Level) -> str:
    sizes = (level.allocated, level.reserved, level.device_used)
    return left(name, 40) + "".join(f"{format_bytes(size):>13}" for size in sizes)


def _step(step: Freed) -> Iterator[str]:
    changes = (format_change(-step.allocated), format_change(-step.reserved))
    yield (left(f"  {visible(step.what)}", 40) + "".join(f"{c:>13}" for c in changes)).rstrip()
    for text in _remarks(step):
        yield from wrap(f"      {text}", "      ")


def _remarks(step: Freed) -> tuple[str, ...]:
    """What the step cost, and what it could not do."""
    cost = f"what it costs: {visible(step.cost)}" if step.cost else ""
    rest = f"not all: {visible(step.left)}" if step.left else ""
    return tuple(filter(None, (cost, rest)))


def _left(recovery: Recovery) -> Iterator[str]:
    found = wording.remedies(recovery.holdings)
    if found:
        yield "Still held, and what lets go of it"
    for remedy in found:
        yield f"{format_bytes(remedy.size):>12}  {remedy.command}"
        for whose in remedy.whose:
            yield from wrap(f"{'':14}{whose}", " " * 16)


def recovery_html(recovery: Recovery) -> str:
    """The steps as one <div> with inline styles."""
    rows = [_html_level("before", recovery.before)]
    rows += [_html_step(step) for step in recovery.steps]
    rows.append(_html_level("after", recovery.after))
    return element(
        "div",
        element("div", wording.device_phrase(recovery.device), style="opacity:0.75"),
        element("div", headline(recovery), style="font-size:1.3em;font-weight:600"),
        table("Step by step", ("", "allocated", "reserved", "device used"), rows),
        _html_left(recovery),
        style=ROOT,
    )


def _html_level(name: str, level: Level) -> Markup:
    sizes = (level.allocated, level.reserved, level.device_used)
    return row(name, *(element("strong", format_bytes(size)) for size in sizes))


def _html_step(step: Freed) -> Markup:
    remarks = (element("div", text, style=_FAINT) for text in _remarks(step))
    changes = (format_change(-step.allocated), format_change(-step.reserved))
    return row(join(visible(step.what), *remarks), *changes, "", indent=1)


def _html_left(recovery: Recovery) -> Markup:
    rows = []
    for remedy in wording.remedies(recovery.holdings):
        whose = (element("div", text, style=_FAINT) for text in remedy.whose)
        rows.append(row(join(pieces.code(remedy.command), *whose), format_bytes(remedy.size)))
    caption = "Still held, and what lets go of it"
    return table(caption, ("command", "lets go of"), rows) if rows else EMPTY


def _less(whole: int | None, part: int | None) -> int | None:
    return None if whole is None or part is None else whole - part
