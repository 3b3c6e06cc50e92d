"""The network: nothing is sent, and what was asked over HTTP is answered with an empty object."""

from __future__ import annotations

import functools
import http.client
import io
import socket
import urllib.request
from typing import Any, NoReturn

from gpumem_magic.sources.virtual.dryrun.arrivals import Arrivals
from gpumem_magic.sources.virtual.dryrun.effects import Effects, described

_ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n"
    b"Connection: close\r\n\r\n{}"
)


class _Answering:
    """The socket of an HTTP connection: takes what is sent, and gives the same answer to it all."""

    def sendall(self, data: Any, *flags: int) -> None:
        """It goes nowhere."""

    def send(self, data: Any, *flags: int) -> int:
        """It goes nowhere."""
        return len(data)

    def makefile(self, *args: Any, **kwargs: Any) -> io.BytesIO:
        """The answer."""
        return io.BytesIO(_ANSWER)

    def settimeout(self, seconds: Any) -> None:
        """It answers at once."""

    def setsockopt(self, *option: Any) -> None:
        """There is nothing to set."""

    def close(self) -> None:
        """There is nothing to close."""

    shutdown = settimeout


def install_network_effects(effects: Effects, arrivals: Arrivals) -> None:
    """Replace what connects, from the clients that users know down to the socket."""
    for name in ("connect", "connect_ex"):
        effects.put(socket.socket, name, _connecting(effects))
    effects.put(socket.socket, "sendto", _sending(effects))
    for name in ("getaddrinfo", "gethostbyname", "gethostbyname_ex", "gethostbyaddr"):
        effects.replace(socket, name, functools.partial(_looking_up, effects))
    effects.replace(urllib.request.OpenerDirector, "open", functools.partial(_opening_url, effects))
    for connection in (http.client.HTTPConnection, http.client.HTTPSConnection):
        effects.put(connection, "connect", _connect)
    effects.replace(
        http.client.HTTPConnection, "putrequest", functools.partial(_requesting, effects)
    )
    arrivals.expect("urllib3.connection", lambda module: _install_urllib3(effects, module))
    arrivals.expect("requests.sessions", lambda module: _install_requests(effects, module))
    arrivals.expect("smtplib", lambda module: _install_smtp(effects, module))


def _install_urllib3(effects: Effects, module: Any) -> None:
    for name in ("HTTPConnection", "HTTPSConnection"):
        effects.put(getattr(module, name), "connect", _connect)


def _install_requests(effects: Effects, module: Any) -> None:
    def make(original: Any) -> Any:
        def request(session: Any, method: Any, url: Any, *args: Any, **kwargs: Any) -> Any:
            with effects.parts_of(described(f"requests.{str(method).lower()}", (url,))):
                return original(session, method, url, *args, **kwargs)

        return request

    effects.replace(module.Session, "request", make)


def _install_smtp(effects: Effects, module: Any) -> None:
    def connected(server: Any, host: Any = "localhost", *args: Any, **kwargs: Any) -> Any:
        effects.tell(described("smtplib.SMTP", (host,)))
        server.sock = _Answering()
        return 220, b""

    effects.put(module.SMTP, "connect", connected)
    for name, answer in (
        *(("getreply", (250, b"ok")), ("send", None), ("starttls", (220, b"ok"))),
        *(("login", (235, b"ok")), ("sendmail", {}), ("send_message", {})),
        *(("quit", (221, b"ok")), ("__exit__", None)),
    ):
        effects.put(module.SMTP, name, functools.partial(_answer, answer))


def _answer(answer: Any, *args: Any, **kwargs: Any) -> Any:
    return answer


def _connect(connection: Any) -> None:
    connection.sock = _Answering()
    connection.is_verified = True  # urllib3 would warn


def _requesting(effects: Effects, original: Any) -> Any:
    def putrequest(connection: Any, method: str, url: str, *args: Any, **kwargs: Any) -> None:
        secure = isinstance(connection, http.client.HTTPSConnection)
        address = f"http{'s' * secure}://{connection.host}{url}"
        effects.tell(f"{method} {url if '://' in url else address}")
        original(connection, method, url, *args, **kwargs)

    return putrequest


def _opening_url(effects: Effects, original: Any) -> Any:
    def open(opener: Any, fullurl: Any, *args: Any, **kwargs: Any) -> Any:
        url = str(getattr(fullurl, "full_url", fullurl))
        if url.startswith(("file:", "data:")):
            return original(opener, fullurl, *args, **kwargs)
        with effects.parts_of(described("urllib.request.urlopen", (url,))):
            return original(opener, fullurl, *args, **kwargs)

    return open


def _connecting(effects: Effects) -> Any:
    def connect(self: socket.socket, address: Any) -> NoReturn:
        effects.tell(described("socket.connect", (address,)))
        raise no_connection(address)

    return connect


def _sending(effects: Effects) -> Any:
    def sendto(self: socket.socket, data: Any, *args: Any) -> int:
        effects.tell(described("socket.sendto", (args[-1],)))
        return len(data)

    return sendto


def _looking_up(effects: Effects, original: Any) -> Any:
    here = socket.gethostname()

    def look_up(host: Any, *args: Any, **kwargs: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if name in (None, "", "localhost", here) or name.replace(".", "").isdigit() or ":" in name:
            return original(host, *args, **kwargs)
        effects.tell(f"connection to {name}")
        raise no_connection(name)

    return look_up


def no_connection(address: Any) -> ConnectionError:
    """What code gets that would connect to `address`."""
    shown = ":".join(map(str, address[:2])) if isinstance(address, tuple) else address
    return ConnectionError(f"a dry run makes no connections (here: to {shown})")
