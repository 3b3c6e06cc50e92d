"""The IPython extension: %gpumem, %gpucheck and all that loading it puts into the shell."""

from __future__ import annotations

from inspect import cleandoc
from typing import Any

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_cell_magic, line_magic, magics_class, no_var_expand

from gpumem_magic.magics import completion, gpucheck, gpumem
from gpumem_magic.magics.display import tell, warn
from gpumem_magic.magics.mark import CellHooks
from gpumem_magic.magics.monitor import Monitor
from gpumem_magic.magics.settings import GpuMem
from gpumem_magic.magics.tracebacks import CleanTracebacks

EVENTS = ("pre_execute", "post_execute", "pre_run_cell", "post_run_cell")

_FIRST = "{} must be the first line of the cell; move what is above it below"


@magics_class
class GpuMemMagics(Magics):
    """The magics of one shell, and what they work with."""

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell)
        self.settings = GpuMem(parent=shell)
        self.monitor = Monitor(shell, self.settings)
        self.hooks = CellHooks(self.monitor)
        self.tracebacks = CleanTracebacks(shell, self.monitor.faults)

    @no_var_expand  # the text is Python code, or was pasted from elsewhere
    @line_cell_magic
    def gpumem(self, line: str, cell: str | None = None) -> Any:
        """Show where the GPU memory of a cell or a statement goes: by line, by kind, and why.

        %%gpumem [options]            on the first line of a cell: measure this cell
        %gpumem [options] STATEMENT   measure one statement
        %gpumem                       the device, its memory now, what to type next
        """
        return gpumem.run_gpumem(self.monitor, line, cell)

    @no_var_expand  # the text is Python code, or was pasted from elsewhere
    @line_cell_magic
    def gpucheck(self, line: str, cell: str | None = None) -> None:
        """Show who holds the GPU memory and what can go; or predict code without running it.

        %gpucheck                      where the memory is, who holds it, what is not needed
        %gpucheck NAME...              what these variables hold, by part and kind
        %gpucheck --free               let go of what no name needs, after an error too
        %gpucheck --explain "TEXT"     what an out-of-memory error says, number by number
        %gpucheck --advise             what would save memory in the last cell, measured
        %gpucheck --apply N            put the cell changed by advice N into the notebook
        %gpucheck --explain RULE       what a rule means, with examples; --rules lists them
        %%gpucheck [options]           on the first line of a cell: predict this cell
        %gpucheck [options] STATEMENT  predict one statement

        A line of nothing but your variables and their attributes (model, optimizer.state) asks
        what these hold. Any other code is a statement, and so is a lone name behind --gpu or
        another option of predictions.

        A prediction computes nothing and needs no GPU: the code runs on a copy of your variables,
        its operators only say how much memory they take. Variables, models, random numbers and the
        device stay as they are. Files and the network are not touched where that can be told.
        """
        gpucheck.run_gpucheck(self.monitor, line, cell)

    @no_var_expand
    @line_magic("%gpumem")  # type: ignore[arg-type]
    def gpumem_below(self, line: str) -> None:
        """Say where `%%gpumem` belongs: anywhere else IPython takes it for this magic."""
        raise UsageError(_FIRST.format("%%gpumem"))

    @no_var_expand
    @line_magic("%gpucheck")  # type: ignore[arg-type]
    def gpucheck_below(self, line: str) -> None:
        """Say where `%%gpucheck` belongs, as `gpumem_below`."""
        raise UsageError(_FIRST.format("%%gpucheck"))


gpumem.OPTIONS.others["gpucheck"] = gpucheck.OPTIONS
gpucheck.OPTIONS.others["gpumem"] = gpumem.OPTIONS
for _magic, _of in ((GpuMemMagics.gpumem, gpumem), (GpuMemMagics.gpucheck, gpucheck)):
    _magic.__doc__ = f"{cleandoc(_magic.__doc__ or '')}\n\n{_of.OPTIONS.describe()}"


def load(shell: InteractiveShell) -> None:
    """Put the extension into the shell; a second time changes nothing."""
    if GpuMemMagics.__name__ in shell.magics_manager.registry:
        return
    magics = GpuMemMagics(shell)  # enters itself into the shell's configurables
    try:
        magics.monitor.open()
    except BaseException:
        shell.configurables.remove(magics)  # type: ignore[arg-type]
        raise
    shell.register_magics(magics)
    shell.configurables.append(magics.settings)  # type: ignore[arg-type]
    shell.input_transformers_cleanup.append(magics.hooks.transform)
    shell.input_transformers_post.append(magics.hooks.remember)
    for event in EVENTS:
        shell.events.register(event, getattr(magics.hooks, event))
    completion.install(shell)
    magics.tracebacks.install()
    magics.hooks.join_running_cell()
    announce(magics.monitor)


def unload(shell: InteractiveShell) -> None:
    """Take everything out of the shell that `load` put in, and restore what the device replaced."""
    magics = shell.magics_manager.registry.pop(GpuMemMagics.__name__, None)
    if magics is None:
        return
    completion.remove(shell)
    magics.tracebacks.remove()
    for event in EVENTS:
        shell.events.unregister(event, getattr(magics.hooks, event))
    shell.input_transformers_post.remove(magics.hooks.remember)
    shell.input_transformers_cleanup.remove(magics.hooks.transform)
    shell.configurables[:] = [c for c in shell.configurables if c not in (magics, magics.settings)]
    for kind, names in magics.magics.items():
        for name in names:
            del shell.magics_manager.magics[kind][name]
    magics.monitor.unload()


def announce(monitor: Monitor) -> None:
    """One line on loading: only where something is not as the user would expect."""
    if monitor.source is None:
        warn(monitor.why_off)
    elif monitor.source.device.virtual:
        device = monitor.source.device
        tell(
            f'gpumem_magic: no GPU here, so device="cuda" is a virtual {device.name}; '
            "%gpumem tells more"
        )
