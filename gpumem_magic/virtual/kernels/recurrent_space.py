"""The workspace and the reserve of cuDNN's recurrent layers (cudnnGetRNNTempSpaceSizes), whose
sizes it does not publish."""

from __future__ import annotations

from dataclasses import dataclass

from gpumem_magic.units import MIB
from gpumem_magic.virtual.workspaces.recurrent_weights import Layout

_KEPT = {1: 1, 3: 6, 4: 5}
"""Values that the reserve has of a unit and step, by the number of gates."""

_FIXED = 256
"""Bytes at the begin of a reserve."""

_STREAM = 8 * MIB
"""Bytes for each layer and direction, which may run beside each other."""


@dataclass(frozen=True, slots=True)
class Space:
    """What one call asks for.

    batch: sequences; steps: of the longest; places: steps of all sequences that are not padding;
    is_measured: by what an H200 gave out (cuDNN 9.19, 4,766 calls), for Hopper and later; else the
    least that the formulas for training cannot do without.
    """

    layout: Layout
    batch: int
    steps: int
    places: int
    trains: bool
    is_random: bool
    is_measured: bool

    def workspace(self, itemsize: int) -> int:
        """Bytes, for values of so many each. Of those measured, the median is 0.7 % larger, one in
        ten over 28 %: cuDNN splits large batches of narrow layers in ways that follow no formula
        known outside of it."""
        layout = self.layout
        if not self.is_measured:
            return self._assumed * itemsize * layout.gates
        state = self._state
        forward = layout.inputs + (layout.gates + 2 * layout.directions - 1) * state
        backward = 3 * layout.directions * layout.inputs + 3 * state
        values = self.places * (max(forward, backward) if self.trains else forward)
        states = (layout.gates + 1) * self.batch * state * layout.layers
        streams = _STREAM * layout.layers * layout.directions
        return streams + itemsize * (layout.numel + values + states)

    def reserve(self, itemsize: int) -> int:
        """Bytes that backward needs: the gates of all layers, the states they lead to, what goes
        from layer to layer, and what dropout has left of that."""
        layout = self.layout
        if not self.is_measured:
            return self._assumed * itemsize * layout.layers * (layout.gates + 2)
        unit = self.places * self._state * itemsize
        projection = (
            self.places
            * layout.directions
            * itemsize
            * (layout.projected and layout.hidden + layout.projected)
        )
        between = layout.layers - 1
        passed_on = (layout.projected or layout.hidden) * layout.directions
        mask = _padded(-(-self.steps * self.batch * passed_on // 8)) * layout.directions
        return (
            _FIXED
            + _padded(layout.layers * (unit * _KEPT[layout.gates] + projection))
            + _padded(between * unit)
            + (between * mask if self.is_random else 0)
        )

    @property
    def _state(self) -> int:
        """Values of one step of one sequence."""
        return self.layout.hidden * self.layout.directions

    @property
    def _assumed(self) -> int:
        return self.steps * self.batch * self._state


def _padded(size: int) -> int:
    return -(-size // 32) * 32
