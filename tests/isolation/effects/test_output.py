"""What code prints in a dry run is in the result, and reaches nobody else."""

from __future__ import annotations

import io
import logging
import sys

import pytest

from .forked import run_cell


def test_all_that_is_printed_is_kept_in_order():
    cell = """
        import ctypes, os, sys
        print("one")
        print("two", file=sys.stderr)
        sys.stdout.buffer.write("drei ö\\n".encode())
        sys.stdout.flush()
        sys.stdout.writelines(["four\\n"])
        os.write(1, b"five\\n")
        os.write(sys.stdout.fileno(), b"six\\n")
        print("seven", file=sys.__stdout__, flush=True)
        sys.stdout.close()
        print("eight", end="", flush=True)
        ctypes.CDLL(None).puts(b" and nine")
    """
    after = run_cell(cell)
    assert after.error is None
    expected = "one\ntwo\ndrei ö\nfour\nfive\nsix\nseven\neight and nine\n"
    assert after.output == expected


def test_warnings_and_logging_are_kept():
    # GIVEN a handler that holds the stream that was there when it was made
    logger = logging.getLogger("test_output")
    logger.handlers[:] = [logging.StreamHandler(sys.stderr)]
    cell = """
        import warnings
        warnings.simplefilter("always")
        warnings.showwarning = show
        logger.error("logged")
        warnings.warn("warned")
    """

    def show(message, category, *place):  # as Python does, where pytest does not keep them
        print(f"{category.__name__}: {message}", file=sys.stderr)

    try:
        after = run_cell(cell, names={"logger": logger, "show": show})
    finally:
        logger.handlers.clear()
    assert after.output == "logged\nUserWarning: warned\n"


def test_a_line_that_is_rewritten_leaves_its_last_state():
    after = run_cell("print('50 %\\r100 %\\r\\nend\\r')")
    assert after.output == "100 %\nend\n"


def test_no_more_than_a_mebibyte_is_kept():
    after = run_cell("for _ in range(3):\n    print('x' * (1 << 19))")
    assert after.output.startswith("x" * (1 << 19) + "\n")
    assert len(after.output) < (1 << 20) + 100
    assert after.output.endswith(f"... and {(1 << 19) + 3:,} more characters\n")


def test_redirections_of_the_cell_work():
    cell = """
        import contextlib, io
        with contextlib.redirect_stdout(io.StringIO()) as text:
            print("hidden")
        x = text.getvalue()
        print("shown")
    """
    after = run_cell(cell)
    assert (after.x, after.output) == ("hidden\n", "shown\n")


def test_what_is_displayed_is_kept_as_plain_text(shell, capsys):
    cell = """
        import sys
        from IPython.display import clear_output, display, HTML
        class Rich:
            def __repr__(self):
                return "rich"
            def _repr_html_(self):
                return "<b>rich</b>"
        display(Rich(), 3)
        sys.displayhook([1, 2])
        clear_output()
    """
    after = run_cell(cell)
    assert (after.error, after.output) == (None, "rich\n3\n[1, 2]\n")
    assert capsys.readouterr() == ("", "")


def test_a_kernel_sends_nothing_and_its_streams_keep_what_they_get():
    iostream = pytest.importorskip("ipykernel.iostream")
    session = pytest.importorskip("jupyter_client.session").Session()
    cell = """
        stream.write("kept\\n")
        stream.flush()
        print("logged", file=stream)
        session.send(None, "comm_open", {"data": {}})
        session.send(None, "stream", {"name": "stdout", "text": "sent\\n"})
        session.send(None, session.msg("display_data", {"data": {"text/plain": "shown"}}))
    """
    stream = iostream.OutStream.__new__(iostream.OutStream)  # as one that a library has kept
    after = run_cell(cell, names={"stream": stream, "session": session})
    assert (after.error, after.output) == (None, "kept\nlogged\nsent\nshown\n")


def test_a_stream_that_is_not_a_file_is_replaced_too(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert run_cell("print(1)").output == "1\n"
    assert sys.stdout.getvalue() == ""
