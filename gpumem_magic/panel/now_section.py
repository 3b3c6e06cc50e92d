"""The section on the devices now."""

from __future__ import annotations

from gpumem_magic.panel import controls
from gpumem_magic.panel.desk import Desk
from gpumem_magic.panel.now import now_html
from gpumem_magic.panel.section import Draw, Section


class NowSection(Section):
    """Gauges of every device; follows a running cell."""

    title = "Now"

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self.picture = controls.html()
        self.box = self.framed(self.picture)

    @property
    def pieces(self) -> tuple[Draw, ...]:
        """The gauges."""
        return (self.draw,)

    def draw(self) -> None:
        """Look at the devices and show them."""
        desk = self.desk
        desk.follower.look()
        self.picture.value = now_html(desk.follower.live, self.state.left(), desk.host.why_off)
