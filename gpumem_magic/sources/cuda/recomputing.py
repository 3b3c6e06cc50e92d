"""Checkpoints that compute again while the allocator's history is on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

_LOST_UNTIL = 2, 12
"""Before this release of PyTorch, a free that is recorded with its stack loses the error that is
under way: a checkpoint ends by one, as soon as it has what it needs, in the midst of an operator
whose results are freed then. Its backward pass ends in a SystemError (seen with 2.11)."""


class Recomputing:
    """Tells when checkpoints begin to compute again (True), and when they have (False)."""

    def __init__(self, tell: Callable[[bool], None]) -> None:
        self._tell = tell
        self._depth = 0
        self._hook: Any = None

    def watch(self) -> None:
        """Begin, where PyTorch needs it and knows such checkpoints."""
        module = sys.modules.get("torch.utils.checkpoint")
        hook = getattr(module, "_recomputation_hook", None)
        version = sys.modules["torch"].__version__.split(".")
        is_old = tuple(map(int, version[:2])) < _LOST_UNTIL
        if self._hook is None and hook is not None and is_old:
            self._hook = hook
            vars(module)[hook.__name__] = self._telling(hook)

    def unwatch(self) -> None:
        """End."""
        if self._hook is not None:
            vars(sys.modules["torch.utils.checkpoint"])[self._hook.__name__] = self._hook
            self._hook = None

    def _telling(self, hook: Any) -> type:
        recomputing = self

        class Telling(hook):  # type: ignore[misc]
            def __enter__(self) -> Any:
                recomputing._go(1)
                return super().__enter__()

            def __exit__(self, *error: Any) -> None:
                super().__exit__(*error)
                recomputing._go(-1)

        return Telling

    def _go(self, deeper: int) -> None:
        """One checkpoint may compute another again."""
        outermost = self._depth + deeper == max(deeper, 0)
        self._depth += deeper
        if outermost:
            self._tell(deeper > 0)
