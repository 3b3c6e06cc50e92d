"""No connection is made, however it is asked for, and nothing is sent on those from before."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import smtplib
import socket
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from .forked import network, run_cell, waiting


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # connections are kept alive

    def do_GET(self):
        self.server.asked.append(self.path)
        self.send_response(200)
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"real")

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    """The address of a server on this machine, which notes what it is asked for in `asked`."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.asked, server.daemon_threads = [], True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def run(cell, **names):
    return run_cell(cell, network, waiting, names=names)


def test_http_is_answered_with_an_empty_object(server):
    cell = """
        import http.client, urllib.request
        with urllib.request.urlopen(url) as response:
            assert (response.status, response.read()) == (200, b"{}")
        connection = http.client.HTTPConnection(*address)
        connection.request("POST", "/path", body=b"x" * 100)
        assert connection.getresponse().read() == b"{}"
        secure = http.client.HTTPSConnection("example.com")
        secure.request("GET", "/")
        assert secure.getresponse().status == 200
    """
    host, port = server.server_address
    url = f"http://{host}:{port}/path"
    after = run(cell, url=url, address=(host, port))
    assert after.error is None
    assert after.told == [
        f"urllib.request.urlopen('{url}') (line 3)",
        f"POST http://{host}/path (line 6)",
        "GET https://example.com/ (line 9)",
    ]
    assert server.asked == []


def test_requests_is_answered_whether_it_was_loaded_or_not(server):
    requests = pytest.importorskip("requests")
    cell = """
        response = requests.get("http://localhost:1/path", timeout=1)
        assert (response.status_code, response.content, response.json()) == (200, b"{}", {})
        with requests.Session() as session:
            assert session.post("https://example.com", json={"a": 1}).ok
    """
    told = ["requests.get('http://localhost:1/path')", "requests.post('https://example.com')"]
    after = run(cell, requests=requests)
    assert (after.error, [text.partition(" (")[0] for text in after.told]) == (None, told)
    # AND in a process where the code itself imports it
    code = f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from forked import network, run_cell
        for name in [n for n in sys.modules if n.split(".")[0] in ("requests", "urllib3")]:
            del sys.modules[name]
        cell = "import requests\\nx = requests.get('https://example.com').json()"
        after = run_cell(cell, network)
        print(after.x, after.told)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == """{} ["requests.get('https://example.com') (line 2)"]"""


def test_connections_from_before_are_answered_as_new_ones(server):
    requests = pytest.importorskip("requests")
    host, port = server.server_address
    url = f"http://{host}:{port}"
    connection = http.client.HTTPConnection(host, port)
    connection.request("GET", "/1")
    assert connection.getresponse().read() == b"real"
    with requests.Session() as session, contextlib.closing(connection):
        assert session.get(f"{url}/2").text == "real"
        cell = """
            x = [session.get(url + "/3").text, session.get(url + "/4").text]
            for _ in range(2):
                connection.request("GET", "/5")
                x.append(connection.getresponse().read().decode())
        """
        after = run(cell, session=session, connection=connection, url=url)
        assert (after.error, after.x) == (None, ["{}"] * 4)
        assert [text.partition("(")[0] for text in after.told] == [
            "requests.get",
            f"GET http://{host}/5 ",
        ]
        # AND outside they go on
        assert session.get(f"{url}/6").text == "real"
        connection.request("GET", "/7")
        assert connection.getresponse().read() == b"real"
    assert server.asked == ["/1", "/2", "/6", "/7"]


def test_sockets_say_that_a_dry_run_makes_no_connections(server):
    cell = """
        import asyncio, errno, socket
        x = []
        def attempt(connect):
            try:
                connect()
            except ConnectionRefusedError as error:
                x.append(str(error))
        attempt(lambda: socket.create_connection(address))
        x.append(errno.errorcode[socket.socket().connect_ex(address)])
        attempt(lambda: socket.create_connection(("example.com", 80)))
        attempt(lambda: socket.socket(socket.AF_UNIX).connect("/run/docker.sock"))
        async def main():
            await asyncio.open_connection(*address)
        attempt(lambda: asyncio.run(main()))
    """
    address = server.server_address
    after = run(cell, address=address)
    here = f"a dry run makes no connections (here: to {address[0]}:{address[1]})"
    assert after.error is None
    assert after.x == [
        *(here, "ECONNREFUSED", "a dry run makes no connections (here: to example.com)"),
        *("a dry run makes no connections (here: to /run/docker.sock)", here),
    ]
    assert f"socket.connect(('{address[0]}', {address[1]}))" in " ".join(after.told).replace(
        "...", f"('{address[0]}', {address[1]})"
    )


def test_httpx_is_answered_as_others_are(server):
    httpx = pytest.importorskip("httpx")
    url = "http://{}:{}/".format(*server.server_address)
    with httpx.Client() as client:
        assert client.get(f"{url}1").text == "real"
        cell = """
            import asyncio
            x = [get(url).json() for get in (client.get, httpx.get)]
            x.append(httpx.post("https://example.com/a?b=1", content=iter([b"c"])).text)
            with httpx.stream("GET", url) as response:
                x.append(response.read())
            async def put():
                async with httpx.AsyncClient() as client:
                    x.append((await client.put(url, json={})).status_code)
            asyncio.run(put())
        """
        after = run(cell, client=client, httpx=httpx, url=url)
        assert (after.error, after.x) == (None, [{}, {}, "{}", b"{}", 200])
        assert after.told[0] == f"httpx.get('{url}') (line 3)"
        assert after.told[1] == "httpx.post('https://example.com/a?b=1') (line 4)"
        assert client.get(f"{url}2").text == "real"
    assert server.asked == ["/1", "/2"]


def test_aiohttp_is_answered_as_others_are():
    pytest.importorskip("aiohttp")
    cell = """
        import aiohttp, asyncio
        async def post():
            async with aiohttp.ClientSession() as session:
                async with session.post("https://example.com/a", data=b"x") as response:
                    return response.status, await response.json()
        x = [*asyncio.run(post())]
    """
    after = run(cell)
    assert (after.error, after.x) == (None, [200, {}])
    assert after.told == ["aiohttp.post('https://example.com/a') (line 5)"]


def test_what_is_sent_goes_nowhere_but_between_pairs_of_the_cell():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        receiver.setblocking(False)
        old, other = socket.socketpair()
        other.setblocking(False)
        cell = """
            import socket
            x = [old.send(b"12"), old.sendall(b"12"), old.sendmsg([b"1", b"23"])]
            x.append(old.makefile("wb").write(b"1"))
            x.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"1234", address))
            one, two = socket.socketpair()
            one.sendall(b"new")
            x.append(two.recv(10))
        """
        with old, other:
            after = run(cell, old=old, address=receiver.getsockname())
            assert (after.error, after.x) == (None, [2, None, 3, 1, 4, b"new"])
            for end in (other, receiver):
                with pytest.raises(BlockingIOError):
                    end.recv(1)
        told = [text.partition("(")[0] for text in after.told]
        assert told == [f"socket.{name}" for name in "send sendall sendmsg send sendto".split()]


def test_nobody_can_connect_to_a_server_of_the_cell():
    cell = """
        import http.server, threading
        server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        x = server.socket.getsockname()[1]
    """
    after = run(cell)
    assert after.error is None
    assert after.x > 1024
    assert [text.partition("(")[0] for text in after.told] == ["socket.listen"]


def test_mail_is_not_sent():
    cell = """
        with smtplib.SMTP("mail.example.com", 25) as mail:
            mail.starttls()
            mail.login("me", "secret")
            x = mail.sendmail("me@example.com", ["you@example.com"], "text")
    """
    after = run(cell, smtplib=smtplib)
    assert (after.error, after.x) == (None, {})
    assert [text.partition("(")[0] for text in after.told] == ["smtplib.SMTP", "SMTP.sendmail"]


def test_local_files_are_opened_by_url(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    cell = "import urllib.request\nx = urllib.request.urlopen(url).read()"
    after = run(cell, url=(tmp_path / "a.txt").as_uri())
    assert (after.x, after.told) == (b"a", [])
