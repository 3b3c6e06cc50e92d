"""What a dry run prints and displays is kept as text, and shown nowhere."""

from __future__ import annotations

import contextlib
import ctypes
import io
import logging
import os
import sys
from collections.abc import Callable
from typing import Any

from gpumem_magic.sources.stacks.callsite import shell_in_use

_LIMIT = 1 << 20


class _Stream(io.TextIOWrapper):
    """Standard output or error. Like a notebook's own, it stays open."""

    def __init__(self, descriptor: int, name: str) -> None:
        raw = io.BufferedWriter(io.FileIO(descriptor, "w", closefd=False))
        super().__init__(raw, "utf-8", "replace", line_buffering=True)
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    def close(self) -> None:
        self.flush()


def capture(output: int) -> Callable[[], str]:
    """From here on stdout, stderr, display(), warnings and logging go to a file.

    output: its descriptor, open for reading and writing, to which 1 and 2 lead already, so that
    what C code prints is there, too. Gives what returns the text so far, at most 1 MiB of it.
    """
    _flush_c()
    start = os.fstat(output).st_size
    streams = stream, errors = _Stream(output, "<stdout>"), _Stream(output, "<stderr>")
    new = {"stdout": stream, "__stdout__": stream, "stderr": errors, "__stderr__": errors}
    _capture_logging({id(getattr(sys, name)): one for name, one in new.items()})
    for name, one in new.items():
        setattr(sys, name, one)
    _capture_kernel_streams(stream)
    _capture_displays(stream)

    def text() -> str:
        try:
            for one in streams:
                one.flush()
            _flush_c()
            size = os.fstat(output).st_size - start
            return _shown(os.pread(output, min(size, _LIMIT), start), size)
        except (OSError, ValueError):  # the cell has closed all descriptors or streams
            return ""

    return text


def _flush_c() -> None:
    """C code's own buffers: nothing else writes them out in a process that ends at once."""
    with contextlib.suppress(AttributeError, OSError, TypeError):  # Windows has no such library
        ctypes.CDLL(None).fflush(None)


def _shown(data: bytes, size: int) -> str:
    """What a terminal would show: of a line rewritten by carriage returns, the last state."""
    lines = data.decode(errors="replace").replace("\r\n", "\n").split("\n")
    text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines)
    if size > len(data):
        text += f"\n... and {size - len(data):,} more characters\n"
    return text


def _show(stream: _Stream, data: Any) -> None:
    """Keep the plain text of something displayed, on lines of its own."""
    text = str(data.get("text/plain") or "") if isinstance(data, dict) else str(data)
    if text:
        stream.write(text if text.endswith("\n") else text + "\n")


def _capture_logging(streams: dict[int, _Stream]) -> None:
    """Handlers hold the streams that were there when they were made."""
    for reference in list(logging._handlerList):  # type: ignore[attr-defined]
        handler = reference()
        stream = vars(handler).get("stream") if handler is not None else None
        if stream is not None and id(stream) in streams:
            handler.stream = streams[id(stream)]


def _capture_kernel_streams(stream: _Stream) -> None:
    """A kernel's streams also for who has kept a reference; and what it would send past them."""
    kernels = getattr(sys.modules.get("ipykernel.iostream"), "OutStream", None)
    if kernels is not None:
        kernels.write = lambda self, text: stream.write(text)
        kernels.flush = lambda self: stream.flush()
    session = getattr(sys.modules.get("jupyter_client.session"), "Session", None)
    if session is None:
        return

    def send(
        self: Any, socket: Any, message: Any, content: Any = None, *args: Any, **kw: Any
    ) -> Any:
        if not isinstance(message, dict):
            message = self.msg(message, content or {})
        content = message["content"]
        if message["header"]["msg_type"] in ("display_data", "execute_result"):
            _show(stream, content.get("data", {}))
        elif message["header"]["msg_type"] == "stream":
            stream.write(content.get("text", ""))
        return message

    session.send = send


def _capture_displays(stream: _Stream) -> None:
    """display() and the value of a last expression."""
    shell = shell_in_use()

    def show(value: Any) -> None:
        if value is not None:
            _show(stream, shell.display_formatter.format(value)[0] if shell else repr(value))

    sys.displayhook = show
    publisher = getattr(shell, "display_pub", None)
    if publisher is not None:
        publisher.publish = lambda data, *args, **kwargs: _show(stream, data)
        publisher.clear_output = lambda *args, **kwargs: None
