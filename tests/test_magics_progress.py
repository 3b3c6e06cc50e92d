"""The line that follows a long cell: late, slow, harmless, and gone when the cell has ended."""

from __future__ import annotations

import contextvars
import threading
import time

from gpumem_magic.magics import display
from gpumem_magic.magics.display import Progress, level_line
from gpumem_magic.values.findings import Level

MIB = 1 << 20


class Publisher:
    def __init__(self):
        self.sent = []
        self.published = threading.Event()

    def publish(self, data, *, transient, update):
        self.sent.append((data["text/plain"], transient["display_id"], update, cell.get(None)))
        self.published.set()


cell = contextvars.ContextVar("cell")


def levels(*allocated):
    left = list(allocated)
    return level_line(lambda: Level(left.pop(0) if len(left) > 1 else left[0], 20 * MIB, None))


def test_a_short_cell_shows_nothing():
    publisher = Publisher()
    line = Progress(levels(MIB), publisher, 0.25)
    line.start()
    line.stop()
    assert publisher.sent == []


def test_a_long_cell_updates_one_output_which_is_empty_in_the_end(monkeypatch):
    monkeypatch.setattr(display, "DELAY", 0.01)
    monkeypatch.setattr(display, "SHORTEST", 0.01)
    publisher = Publisher()
    cell.set("the cell")
    line = Progress(levels(3 * MIB, MIB), publisher, 0)
    line.start()
    while len(publisher.sent) < 3:
        time.sleep(0.005)
    line.stop()
    texts, ids, updates, cells = zip(*publisher.sent, strict=True)
    assert "3.00 MiB allocated" in texts[0]
    assert "1.00 MiB allocated, 3.00 MiB at the most so far" in texts[1]
    assert texts[-1] == ""
    assert len(set(ids)) == 1
    assert updates == (False, *[True] * (len(updates) - 1))
    assert set(cells) == {"the cell"}  # outputs answer to the message that the cell came with


def test_it_never_updates_more_than_four_times_a_second():
    assert display.SHORTEST == 0.25
    assert Progress(levels(0), Publisher(), 0.01)._interval == 0.25


def test_a_device_that_cannot_be_read_ends_the_line_not_the_cell(monkeypatch):
    monkeypatch.setattr(display, "DELAY", 0.0)
    asked = threading.Event()

    def broken(seconds):
        asked.set()
        raise RuntimeError("no reading")

    publisher = Publisher()
    line = Progress(broken, publisher, 0.25)
    line.start()
    assert asked.wait(60)
    line.stop()
    assert publisher.sent == []


def test_a_publisher_that_hangs_does_not_hold_the_cell(monkeypatch):
    monkeypatch.setattr(display, "DELAY", 0.0)
    monkeypatch.setattr(display, "PATIENCE", 0.05)
    release = threading.Event()
    reached = threading.Event()

    class Hanging(Publisher):
        def publish(self, data, *, transient, update):
            if data["text/plain"]:
                reached.set()
                release.wait(60)
            super().publish(data, transient=transient, update=update)

    publisher = Hanging()
    line = Progress(levels(MIB), publisher, 0.25)
    line.start()
    assert reached.wait(60)
    line.stop()
    assert not release.is_set()
    release.set()
    line._thread.join(60)
