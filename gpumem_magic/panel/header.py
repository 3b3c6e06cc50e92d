"""The frame of the panel: the device, what is measured, which sections are open and where."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpumem_magic.devices import device_names
from gpumem_magic.panel import controls
from gpumem_magic.panel.controls import STYLE
from gpumem_magic.panel.desk import Desk, Section
from gpumem_magic.panel.front import BETTER
from gpumem_magic.renderers.document import Line, Style

_KEPT = ("Now", "History")
"""The sections of the first column, open from the start; of the others one is open at a time."""
_INSIDE = {"Export": "History"}
"""Sections that have no tab of their own, and in which one they are."""
_BESIDE = "Beside the notebook, in JupyterLab: right-click here, Create New View for Cell Output."


class Header:
    """Settings, a switch for each section, and the two columns in which these stand."""

    def __init__(
        self,
        desk: Desk,
        sections: Sequence[Section],
        opened: Callable[[Section], None],
        close: Callable[[], None],
    ) -> None:
        self._desk, self._opened = desk, opened
        settings = desk.host.settings
        self.device = controls.choice("Device", _names(settings.device), value=settings.device)
        self.every = controls.switch(_every(settings.every_cell), settings.every_cell)
        self.exit = controls.button("Close the panel", "It can be opened again: %gpumem --panel")
        self.switches = {
            section.title: controls.switch("", section.title in _KEPT) for section in sections
        }
        self.style, self.better = controls.html(), controls.html()
        self.style.value = STYLE + controls.told(Line(_BESIDE, Style.FAINT))
        self.better.value = controls.told(Line(BETTER, Style.FAINT))
        self.box = controls.below(
            controls.across(self.device, self.every, self.exit),
            *(self.style, self.better),
            controls.across(*self.switches.values()),
        )
        self._others = [section for section in sections if section.title not in _KEPT]
        kept = [section.box for section in sections if section.title in _KEPT]
        self._second = controls.column(*(section.box for section in self._others))
        self.columns = controls.across(controls.column(*kept), self._second)
        for section in sections:
            self._follow(section)
        desk.on_change_alone(self.device, "value", "Changing the device", self._choose_device)
        desk.on_change(self.every, "value", "Switching the measuring", self._switch_measuring)
        desk.on_click(self.exit, "Closing", close)
        settings.observe(self._settings_changed, names=["device", "every_cell"])

    def is_open(self, section: Section) -> bool:
        """Whether a section is shown."""
        if front := self._desk.front:
            return front.tab == (_INSIDE.get(section.title) or section.title)
        return bool(self.switches[section.title].value)

    def close(self) -> None:
        """Follow the settings no longer."""
        self._desk.host.settings.unobserve(self._settings_changed, names=["device", "every_cell"])

    def _follow(self, section: Section) -> None:
        switch = self.switches[section.title]

        def toggle() -> None:
            if switch.value and section in self._others:
                self._close_all_but(section)
            self._draw(section)
            if switch.value:
                self._opened(section)

        self._draw(section)
        self._desk.on_change(switch, "value", f"Opening {section.title}", toggle)

    def _close_all_but(self, section: Section) -> None:
        for other in self._others:
            if other is not section and self.is_open(other):
                with self._desk.quiet():
                    self.switches[other.title].value = False
                self._draw(other)

    def _draw(self, section: Section) -> None:
        is_open = self.is_open(section)
        self.switches[section.title].description = _titled(section.title, is_open)
        controls.show(section.box, is_open)
        controls.show(self._second, any(map(self.is_open, self._others)))

    def _choose_device(self) -> None:
        settings = self._desk.host.settings
        if self._desk.host.running:
            self._draw_settings()
            raise RuntimeError("a cell is running; choose the device when it has ended")
        try:
            settings.device = self.device.value
        finally:
            self._draw_settings()
        self._desk.follower.use(self._desk.host.source)
        self._desk.changed()
        self._desk.say(f"The device is {settings.device} now.")

    def _switch_measuring(self) -> None:
        self._desk.host.settings.every_cell = self.every.value
        self._draw_settings()

    def _settings_changed(self, _: object) -> None:
        """The user has changed them elsewhere."""
        self._draw_settings()

    def _draw_settings(self) -> None:
        settings = self._desk.host.settings
        with self._desk.quiet():
            if settings.device not in self.device.options:
                self.device.options = _names(settings.device)
            self.device.value = settings.device
            self.every.value = settings.every_cell
            self.every.description = _every(settings.every_cell)


def _names(chosen: str) -> tuple[str, ...]:
    """Every device, and the chosen one where it has another name."""
    return tuple(dict.fromkeys((*device_names(), chosen)))


def _every(on: bool) -> str:
    return f"Measure every cell: {'on' if on else 'off'}"


def _titled(title: str, is_open: bool) -> str:
    sign = "\u25be" if is_open else "\u25b8"
    return f"{sign} {title}"
