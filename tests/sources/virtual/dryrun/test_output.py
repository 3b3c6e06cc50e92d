"""What code prints within a dry run is in the result, and reaches nobody else."""

from __future__ import annotations

import io
import logging
import sys
import threading
import warnings

import pytest

from gpumem_magic.sources.virtual.dryrun.output import captured_output


def test_all_that_is_printed_is_kept_in_order_and_shown_nowhere(capsys):
    with captured_output() as captured:
        print("one")
        print("two", file=sys.stderr)
        sys.stdout.buffer.write("drei ö\n".encode())
        sys.stdout.writelines(["four\n"])
        assert captured.text == "one\ntwo\ndrei ö\nfour\n"
    assert captured.text == "one\ntwo\ndrei ö\nfour\n"
    assert capsys.readouterr() == ("", "")


def test_streams_are_back_afterwards_also_after_an_interrupt():
    before = sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__, sys.displayhook
    with pytest.raises(KeyboardInterrupt), captured_output():
        raise KeyboardInterrupt
    assert (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__, sys.displayhook) == before


def test_warnings_and_logging_are_kept(monkeypatch):
    # GIVEN a handler that holds the stream that was there when it was made
    handler = logging.StreamHandler(sys.stderr)
    logger = logging.getLogger("test_output")
    monkeypatch.setattr(logger, "handlers", [handler])
    stream = handler.stream

    def show(*warning):  # as Python does, where pytest does not keep warnings to itself
        sys.stderr.write(warnings.formatwarning(*warning[:4]))

    monkeypatch.setattr(warnings, "showwarning", show)
    with captured_output() as captured, warnings.catch_warnings():
        warnings.simplefilter("always")
        logger.error("logged")
        warnings.warn("warned", stacklevel=1)
    assert "logged\n" in captured.text
    assert "UserWarning: warned" in captured.text
    assert handler.stream is stream


def test_a_progress_bar_leaves_its_last_state():
    tqdm = pytest.importorskip("tqdm").tqdm
    with captured_output() as captured:
        for _ in tqdm(range(3), mininterval=0):
            pass
        print("50 %\r100 %\r\nend\r")
    bar, rewritten, end, *_ = captured.text.splitlines()
    assert "3/3" in bar
    assert "\r" not in captured.text
    assert (rewritten, end) == ("100 %", "end")


def test_no_more_than_a_mebibyte_is_kept():
    with captured_output() as captured:
        for _ in range(3):
            print("x" * (1 << 19))
    assert captured.text.startswith("x" * (1 << 19) + "\n")
    assert len(captured.text) < (1 << 20) + 100
    assert captured.text.endswith(f"... and {(1 << 19) + 3:,} more characters\n")


def test_threads_that_ran_before_print_where_they_did(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    go, done = threading.Event(), threading.Event()

    def speak():
        go.wait(10)
        print("bystander")
        done.set()

    thread = threading.Thread(target=speak)
    thread.start()
    with captured_output() as captured:
        go.set()
        done.wait(10)
        new = threading.Thread(target=print, args=["of the cell"])
        new.start()
        new.join()
    thread.join()
    assert (stream.getvalue(), captured.text) == ("bystander\n", "of the cell\n")


def test_what_is_displayed_is_kept_as_plain_text(shell, capsys):
    from IPython.display import clear_output, display

    class Rich:
        def __repr__(self):
            return "rich"

        def _repr_html_(self):
            return "<b>rich</b>"

    with captured_output() as captured:
        display(Rich(), 3)
        sys.displayhook([1, 2])
        clear_output()
    assert captured.text == "rich\n3\n[1, 2]\n"
    assert capsys.readouterr() == ("", "")
    # AND the publisher is the class's own again
    assert "publish" not in vars(shell.display_pub)
    display(4)
    assert capsys.readouterr().out == "4\n"


def test_a_kernel_sends_nothing_and_its_streams_keep_what_they_get():
    iostream = pytest.importorskip("ipykernel.iostream")
    session = pytest.importorskip("jupyter_client.session").Session

    class Socket:
        def __init__(self):
            self.sent = []

        def send_multipart(self, parts, *args, **kwargs):
            self.sent.append(parts)

        closed = False

    stream = iostream.OutStream.__new__(iostream.OutStream)  # as one that a library has kept
    before = dict(vars(iostream.OutStream)), dict(vars(session))
    socket, sender = Socket(), session()
    with captured_output() as captured:
        stream.write("kept\n")
        stream.flush()
        sender.send(socket, "comm_open", {"data": {}})
        sender.send(socket, "display_data", {"data": {}})
        assert socket.sent == []
    assert captured.text == "kept\n"
    assert (dict(vars(iostream.OutStream)), dict(vars(session))) == before
