"""Runs cells on a virtual card in a fresh notebook, and asks for advice on them."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from IPython.utils.capture import capture_output

UNLIMITED = "64TiB"


class Notebook:
    """One shell with the extension loaded."""

    def __init__(self, shell, card):
        self.shell = shell
        shell.display_formatter.active_types = ["text/plain"]  # nobody looks at the figures
        self.run(f"%load_ext gpumem_magic\n%gpumem --device {card}")

    def run(self, cell, stays=True):
        """stays: it is one of the notebook's cells from here on."""
        with capture_output() as shown:
            result = self.shell.run_cell(cell, store_history=stays)
        texts = [output.data.get("text/plain", "") for output in shown.outputs]
        return result, shown.stdout + shown.stderr + "".join(texts)

    def set_up(self, example, *, mended=False):
        """Run what came before the cell; mended: and what the change is, where that is a cell."""
        if not mended:
            self.source.share(example.machine)
        if example.setup:
            result, text = self.run(example.setup)
            assert result.success, text
        for cell in example.earlier:
            self.run(cell)
        if mended and example.first:
            result, text = self.run(example.first)
            assert result.success, text

    @property
    def source(self):
        return self.shell.magics_manager.registry["GpuMemMagics"].monitor.source

    def measure(self, cell):
        """The report of the cell, run live; the cell may fail, but only for want of memory."""
        result, text = self.run(f"%%gpumem -q -o _measured\n{cell}")
        report = self.shell.user_ns["_measured"]
        assert result.success or report.error, text
        return report

    def assess(self, cell, *rules, **options):
        """What dry runs say of the cell and of its changes, by these rules or else by all; nothing
        of the notebook changes."""
        from gpumem_magic.advice import RULES
        from gpumem_magic.assess import Question, assess
        from gpumem_magic.dryrun import Scenario
        from gpumem_magic.sources import ACTIVE, Active
        from gpumem_magic.values.recording import Cell

        monitor = self.shell.magics_manager.registry["GpuMemMagics"].monitor
        found = ACTIVE.set(Active(monitor.source, recording=False))
        cells = monitor.files.cells()
        try:
            typed = monitor.files.with_code(Cell(cell, "<assessed cell>"))
            scenario = Scenario(typed, self.shell.user_ns, cells=cells, **options)
            others = {rule.name for rule in RULES} - set(rules or (rule.name for rule in RULES))
            return assess(Question(scenario, monitor.files.python, ignore=frozenset(others)))
        finally:
            ACTIVE.reset(found)


@pytest.fixture
def notebook(new_shell):
    """`with notebook("T4") as one`: a fresh notebook on that card."""

    @contextmanager
    def notebook(card="T4"):
        with new_shell() as shell:
            yield Notebook(shell, card)

    return notebook
