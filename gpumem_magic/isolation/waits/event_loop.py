"""Coroutines of a cell, whose event loop runs in the notebook only."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Coroutine
from typing import Any

_OTHER_LOOP = re.compile(r"(attached|bound) to a different (event )?loop")


def run_coroutine(coroutine: Coroutine[Any, Any, object]) -> object:
    """What a coroutine returns, in an event loop of its own: the notebook's does not go on.

    Raises NotImplementedError for one that waits for what never comes.
    """
    _leave_loop()
    loop = asyncio.SelectorEventLoop()
    asyncio.set_event_loop(loop)
    task = loop.create_task(coroutine)
    try:
        return loop.run_until_complete(task)
    except NotImplementedError:
        if task.done():
            raise
        raise _never(f"it is in {_awaited(coroutine)}") from None
    except RuntimeError as error:
        if not _OTHER_LOOP.search(str(error)):
            raise
        raise _never(str(error)) from None


def keep_loop() -> None:
    """As in the notebook its loop seems to run, which a fork forgets: tasks can be made for it.

    Where nest_asyncio lets asyncio.run go on with it, there is another one instead.
    """
    if hasattr(asyncio, "_nest_patched"):
        _leave_loop()
        asyncio.set_event_loop(asyncio.SelectorEventLoop())
        return
    for loop in getattr(asyncio.tasks, "_current_tasks", ()):  # Python 3.14 has none
        if loop._thread_id == threading.get_ident():
            asyncio._set_running_loop(loop)


def _leave_loop() -> None:
    """Let this thread believe that no event loop runs in it, and no task."""
    loop = asyncio._get_running_loop()
    if loop is None:
        return
    task = asyncio.current_task(loop)
    if task is not None:
        asyncio.tasks._leave_task(loop, task)
    asyncio._set_running_loop(None)


def _awaited(coroutine: Any) -> str:
    """The innermost coroutine that does not go on."""
    inner = coroutine
    while inner is not None and hasattr(inner, "cr_await"):
        coroutine, inner = inner, inner.cr_await
    return str(coroutine.__qualname__)


def _never(what: str) -> NotImplementedError:
    return NotImplementedError(
        "`await` waits for something that never comes: only tasks that the cell starts run in a "
        f"dry run, not the notebook's own event loop, and nobody answers from outside ({what})"
    )
