"""What a dry run prints and displays is kept as text, and shown nowhere."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any

from gpumem_magic.sources.virtual.dryrun.effects import Bystanders
from gpumem_magic.sources.virtual.patches import Patches

_LIMIT = 1 << 20
_MESSAGES = frozenset(
    {
        *("stream", "display_data", "update_display_data", "execute_result", "clear_output"),
        *("error", "comm_open", "comm_msg", "comm_close"),
    }
)


class Captured:
    """Text so far, at most 1 MiB of it."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._room = _LIMIT
        self._dropped = 0

    def write(self, text: str) -> int:
        """Keep `text`, as far as there is room."""
        kept = text[: self._room]
        if kept:
            self._parts.append(kept)
            self._room -= len(kept)
        self._dropped += len(text) - len(kept)
        return len(text)

    def show(self, data: Any) -> None:
        """Keep the plain text of something displayed, on lines of its own."""
        text = str(data.get("text/plain") or "") if isinstance(data, dict) else str(data)
        if text:
            self.write(text if text.endswith("\n") else text + "\n")

    @property
    def text(self) -> str:
        """What a terminal would show: of a line rewritten by carriage returns, the last state."""
        lines = "".join(self._parts).replace("\r\n", "\n").split("\n")
        text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines)
        if self._dropped:
            text += f"\n... and {self._dropped:,} more characters\n"
        return text


class _Bytes(io.RawIOBase):
    """`sys.stdout.buffer`, for what is written as bytes."""

    def __init__(self, write: Callable[[str], int]) -> None:
        self._write = write

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._write(bytes(data).decode(errors="replace"))
        return len(data)


class _Stream(io.TextIOBase):
    """Stands for stdout or stderr; bystanders still reach the one that it stands for."""

    encoding, errors, closed = "utf-8", "replace", False

    def __init__(self, captured: Captured, original: Any, bystanders: Bystanders) -> None:
        self._captured = captured
        self._original = original
        self._bystanders = bystanders
        self.name = getattr(original, "name", "<captured>")
        self.buffer = _Bytes(self.write)

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        if self._bystanders.running and self._original is not None:
            return int(self._original.write(text) or 0)
        return self._captured.write(text)

    def flush(self) -> None:
        if self._bystanders.running and self._original is not None:
            self._original.flush()

    def close(self) -> None:
        """Like a notebook's own, it stays open."""


@contextlib.contextmanager
def captured_output() -> Iterator[Captured]:
    """Within, stdout, stderr, display(), warnings and logging go to the result, and nowhere else.

    What C code prints on its own does not.
    """
    captured, bystanders, patches = Captured(), Bystanders(), Patches()
    try:
        streams: dict[int, Any] = {}
        for name in ("stdout", "stderr", "__stdout__", "__stderr__"):
            original = getattr(sys, name)
            streams[id(original)] = _Stream(captured, original, bystanders)
            patches.set(sys, name, streams[id(original)])
        _capture_logging(patches, streams)
        _capture_kernel_streams(patches, captured, bystanders)
        _capture_displays(patches, captured, bystanders)
        yield captured
    finally:
        patches.restore()


def _capture_logging(patches: Patches, streams: dict[int, Any]) -> None:
    """Handlers hold the streams that were there when they were made."""
    for reference in list(logging._handlerList):  # type: ignore[attr-defined]
        handler = reference()
        stream = vars(handler).get("stream") if handler is not None else None
        if stream is not None and id(stream) in streams:
            patches.set(handler, "stream", streams[id(stream)])


def _capture_kernel_streams(patches: Patches, captured: Captured, bystanders: Bystanders) -> None:
    """A kernel's streams also for who has kept a reference, and what it would send past them."""
    stream = getattr(sys.modules.get("ipykernel.iostream"), "OutStream", None)
    if stream is not None:
        write_to_kernel, flush_to_kernel = stream.write, stream.flush

        def write(self: Any, text: str) -> Any:
            return write_to_kernel(self, text) if bystanders.running else captured.write(text)

        def flush(self: Any) -> None:
            if bystanders.running:
                flush_to_kernel(self)

        patches.set(stream, "write", write)
        patches.set(stream, "flush", flush)
    session = getattr(sys.modules.get("jupyter_client.session"), "Session", None)
    if session is not None:
        send_to_frontend = session.send

        def send(self: Any, stream: Any, message: Any, *args: Any, **kwargs: Any) -> Any:
            kind = message if isinstance(message, str) else message["header"]["msg_type"]
            if bystanders.running or kind not in _MESSAGES:
                return send_to_frontend(self, stream, message, *args, **kwargs)
            return message if isinstance(message, dict) else self.msg(message)

        patches.set(session, "send", send)


def _capture_displays(patches: Patches, captured: Captured, bystanders: Bystanders) -> None:
    """display() and the value of a last expression."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None

    def show(value: Any) -> None:
        if value is not None:
            formatted = shell.display_formatter.format(value)[0] if shell else repr(value)
            captured.show(formatted)

    patches.set(sys, "displayhook", show)
    publisher = getattr(shell, "display_pub", None)
    if publisher is not None:
        publish_outside, clear_outside = publisher.publish, publisher.clear_output

        def publish(data: Any, *args: Any, **kwargs: Any) -> None:
            if bystanders.running:
                publish_outside(data, *args, **kwargs)
            else:
                captured.show(data)

        def clear_output(*args: Any, **kwargs: Any) -> None:
            if bystanders.running:
                clear_outside(*args, **kwargs)

        patches.set(publisher, "publish", publish)
        patches.set(publisher, "clear_output", clear_output)
