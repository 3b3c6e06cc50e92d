"""The user's settings: `%config GpuMem` lists them, a configuration file may set them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from traitlets import Bool, CFloat, TraitError, Unicode, observe, validate
from traitlets.config import Configurable

from gpumem_magic.devices import check_device
from gpumem_magic.magics.option_values import rules


class GpuMem(Configurable):
    """Settings of %gpumem and %%gpumem."""

    device = Unicode(
        "auto",
        help="The device to measure: auto, cuda:1, T4, A100-80GB, 24GiB, off. "
        "auto is the GPU of this machine, or else a virtual Tesla T4.",
    ).tag(config=True)
    every_cell = Bool(
        False, help="Measure every cell and show one line below it, as %gpumem --on does."
    ).tag(config=True)
    plot = Bool(True, help="Show the timeline figure in the Report.").tag(config=True)
    progress = Bool(
        True, help="Show a line that follows the memory while a cell runs longer than a second."
    ).tag(config=True)
    interval = CFloat(
        0.25,
        min=0.0,
        help="Seconds between two updates of the progress line; less than 0.25 counts as 0.25.",
    ).tag(config=True)

    ignore = Unicode(
        "", help="Rules that give no advice, with commas; %gpucheck --rules lists them."
    ).tag(config=True)

    @property
    def ignored(self) -> tuple[str, ...]:
        """The rules of `ignore`."""
        return rules(self.ignore)

    def on_device(self, choose: Callable[[str], None]) -> None:
        """Have `choose` called with the new name whenever `device` is set to another."""
        self._choose: Callable[[str], None] | None = choose

    @validate("device", "ignore")
    def _known(self, proposal: dict[str, Any]) -> str:
        check = check_device if proposal["trait"].name == "device" else rules
        value: str = proposal["value"]
        try:
            check(value)
        except (ValueError, ImportError) as error:
            raise TraitError(str(error)) from None
        return value

    @observe("device")
    def _device_changed(self, change: dict[str, str]) -> None:
        choose = getattr(self, "_choose", None)
        if choose is None:
            return
        try:
            choose(change["new"])
        except BaseException:
            self._choose = None
            self.device = change["old"]
            self._choose = choose
            raise
