"""No connection is made, however it is asked for."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import socket
import subprocess
import sys
import textwrap
import threading
import urllib.request

import pytest

from gpumem_magic.sources.virtual.dryrun.side_effects import without_side_effects


@pytest.fixture
def server():
    """The address of a server on this machine that must not be reached."""
    reached = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.2)

        def serve():
            while not closing.is_set():
                with contextlib.suppress(TimeoutError):
                    connection, _ = listening.accept()
                    reached.append(True)
                    connection.close()

        closing, thread = threading.Event(), threading.Thread(target=serve)
        thread.start()
        yield listening.getsockname()
        closing.set()
        thread.join()
    assert reached == []


def test_http_is_answered_with_an_empty_object(server):
    url, told = "http://{}:{}/path".format(*server), []
    with without_side_effects(told.append):
        with urllib.request.urlopen(url) as response:
            assert (response.status, response.read()) == (200, b"{}")
        connection = http.client.HTTPConnection(*server)
        connection.request("POST", "/path", body=b"x" * 100)
        assert connection.getresponse().read() == b"{}"
        secure = http.client.HTTPSConnection("example.com")
        secure.request("GET", "/")
        assert secure.getresponse().status == 200
    assert told == [
        f"urllib.request.urlopen('{url}')",
        f"POST http://{server[0]}/path",
        "GET https://example.com/",
    ]


def test_requests_is_answered_whether_it_was_loaded_or_not(server):
    requests = pytest.importorskip("requests")
    url, told = "http://{}:{}/path".format(*server), []
    with without_side_effects(told.append):
        response = requests.get(url, timeout=1)
        assert (response.status_code, response.content, response.json()) == (200, b"{}", {})
        with requests.Session() as session:
            assert session.post("https://example.com", json={"a": 1}).ok
    assert told == [f"requests.get('{url}')", "requests.post('https://example.com')"]
    # AND in a process where the code itself imports it
    code = """
        import sys
        from gpumem_magic.sources.virtual.dryrun.side_effects import without_side_effects
        for name in [n for n in sys.modules if n.split(".")[0] in ("requests", "urllib3")]:
            del sys.modules[name]
        told = []
        with without_side_effects(told.append):
            import requests
            print(requests.get("https://example.com").json(), told)
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == """{} ["requests.get('https://example.com')"]"""


def test_sockets_say_that_a_dry_run_makes_no_connections(server):
    told = []
    with without_side_effects(told.append):
        with pytest.raises(ConnectionError, match="a dry run makes no connections"):
            socket.create_connection(server)
        with pytest.raises(ConnectionError, match="no connections"), socket.socket() as one:
            one.connect_ex(server)
        with pytest.raises(ConnectionError, match=r"example\.com"):
            socket.create_connection(("example.com", 80))

        async def connect():
            await asyncio.open_connection(*server)

        with pytest.raises(ConnectionError, match="no connections"):
            asyncio.run(connect())
    assert f"socket.connect({server!r})" in told
    assert "connect" not in vars(socket.socket)


def test_mail_is_not_sent():
    import smtplib

    told = []
    with without_side_effects(told.append), smtplib.SMTP("mail.example.com", 25) as mail:
        mail.starttls()
        mail.login("me", "secret")
        assert mail.sendmail("me@example.com", ["you@example.com"], "text") == {}
    assert told == ["smtplib.SMTP('mail.example.com')"]


def test_local_files_are_opened_by_url(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    told = []
    with without_side_effects(told.append):
        assert urllib.request.urlopen((tmp_path / "a.txt").as_uri()).read() == b"a"
    assert told == []
