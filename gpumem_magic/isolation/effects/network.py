"""The network: nothing is sent, and what was asked over HTTP is answered with an empty object."""

from __future__ import annotations

import asyncio.selector_events
import errno
import functools
import http.client
import io
import itertools
import os
import socket
import ssl
import urllib.request
import weakref
from typing import Any, NoReturn

from gpumem_magic.isolation.arrivals import Arrivals
from gpumem_magic.isolation.telling import Effects, described

_ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n"
    b"Connection: close\r\n\r\n{}"
)


_NAMES = {"": "0.0.0.0", "localhost": "127.0.0.1"}, {"": "::", "localhost": "::1"}
"""Addresses for names, of IPv4 and of IPv6."""

_FIRST_PORT = 49152
"""Of those that systems give to who asks for any."""


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
    """Replace what connects, from the clients that users know down to the socket.

    Connections from before the fork have dead sockets: requests on them are answered like others.
    """
    _install_sockets(effects)
    for name in ("getaddrinfo", "gethostbyname", "gethostbyname_ex", "gethostbyaddr"):
        effects.wrap(socket, name, functools.partial(_looking_up, effects))
    effects.wrap(urllib.request.OpenerDirector, "open", functools.partial(_opening_url, effects))
    for connection in (http.client.HTTPConnection, http.client.HTTPSConnection):
        effects.put(connection, "connect", _connect)
    effects.wrap(http.client.HTTPConnection, "putrequest", functools.partial(_requesting, effects))
    arrivals.expect("urllib3.connection", lambda module: _install_urllib3(effects, module))
    arrivals.expect("requests.sessions", lambda module: _install_requests(effects, module))
    for package in ("httpcore", "httpcore2"):  # below httpx, which has been renamed
        arrivals.expect(package, lambda module: _install_httpcore(effects, module))
    arrivals.expect("aiohttp.connector", lambda module: _install_aiohttp(effects, module))
    arrivals.expect("smtplib", lambda module: _install_smtp(effects, module))


def _install_sockets(effects: Effects) -> None:
    """Only pairs that the cell makes send: all others lead outside, or did before the fork."""
    pairs: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def socketpair(original: Any, *args: Any, **kwargs: Any) -> Any:
        ends = original(*args, **kwargs)
        pairs.update(ends)
        return ends

    effects.wrap(socket, "socketpair", socketpair)
    effects.put(socket.socket, "connect", functools.partial(_connecting, effects))
    effects.put(socket.socket, "connect_ex", functools.partial(_connecting_quietly, effects))
    for owner in (socket.socket, ssl.SSLSocket):
        for name in ("send", "sendall", "sendto", "sendmsg", "write"):
            effects.wrap(owner, name, functools.partial(_sending, effects, pairs, name))
    _install_addresses(effects)
    effects.put(socket.socket, "listen", _listening(effects))

    def write_to_self(original: Any, loop: Any) -> None:
        with effects.silence():  # also the notebook's own loop, whose pair is dead
            original(loop)

    loops = asyncio.selector_events.BaseSelectorEventLoop
    effects.wrap(loops, "_write_to_self", write_to_self)


def _listening(effects: Effects) -> Any:
    others: list[socket.socket] = []

    def listen(self: socket.socket, backlog: int = 128) -> None:
        """Nobody connects: instead of it there is one end of a pair, whose other end is silent."""
        effects.blocked(described("socket.listen", (backlog,)))
        end, other = socket.socketpair()
        others.append(other)
        os.dup2(end.detach(), self.fileno())

    return listen


def _install_addresses(effects: Effects) -> None:
    """A socket that the cell binds has the address that it asked for, or a port that seems free."""
    bound: weakref.WeakKeyDictionary[socket.socket, Any] = weakref.WeakKeyDictionary()
    ports = itertools.count(_FIRST_PORT)

    def bind(self: socket.socket, address: Any) -> None:
        if isinstance(address, tuple):
            names = _NAMES[self.family == socket.AF_INET6]
            address = (names.get(address[0], address[0]), address[1] or next(ports), *address[2:])
        bound[self] = address

    def getsockname(original: Any, self: socket.socket) -> Any:
        return bound[self] if self in bound else original(self)

    effects.put(socket.socket, "bind", bind)
    effects.wrap(socket.socket, "getsockname", getsockname)


def _install_urllib3(effects: Effects, module: Any) -> None:
    for name in ("HTTPConnection", "HTTPSConnection"):
        effects.put(getattr(module, name), "connect", _connect)


def _install_requests(effects: Effects, module: Any) -> None:
    def request(
        original: Any, session: Any, method: Any, url: Any, *args: Any, **kwargs: Any
    ) -> Any:
        effects.blocked(described(f"requests.{str(method).lower()}", (url,)))
        with effects.silence():
            return original(session, method, url, *args, **kwargs)

    effects.wrap(module.Session, "request", request)


def _install_httpcore(effects: Effects, module: Any) -> None:
    def answer(request: Any) -> Any:
        url, port = request.url, f":{request.url.port}" if request.url.port else ""
        text = f"{url.scheme.decode()}://{url.host.decode()}{port}{url.target.decode()}"
        effects.blocked(described(f"httpx.{request.method.decode().lower()}", (text,)))
        return module.Response(200, headers={"Content-Type": "application/json"}, content=b"{}")

    def handle(pool: Any, request: Any) -> Any:
        for _ in request.stream:  # it may be a generator of the cell's
            pass
        return answer(request)

    async def handle_async(pool: Any, request: Any) -> Any:
        async for _ in request.stream:
            pass
        return answer(request)

    effects.put(module.ConnectionPool, "handle_request", handle)
    effects.put(module.AsyncConnectionPool, "handle_async_request", handle_async)


def _install_aiohttp(effects: Effects, module: Any) -> None:
    async def connect(connector: Any, request: Any, *others: Any) -> Any:
        text = described(f"aiohttp.{request.method.lower()}", (str(request.url),))
        effects.blocked(text)
        protocol = connector._factory()
        protocol.connection_made(_AnsweringTransport(protocol))
        return protocol

    effects.put(module.TCPConnector, "_create_connection", connect)


class _AnsweringTransport(asyncio.Transport):
    """As `_Answering`, of a connection of asyncio."""

    def __init__(self, protocol: Any) -> None:
        super().__init__()
        self._protocol, self._answer = protocol, _ANSWER

    def write(self, data: Any) -> None:
        """It goes nowhere."""
        if self._answer:
            loop = asyncio.get_running_loop()
            loop.call_soon(self._protocol.data_received, self._answer)
        self._answer = b""

    def is_closing(self) -> bool:
        """It stays."""
        return False

    def close(self) -> None:
        """There is nothing to close."""

    abort = close


def _install_smtp(effects: Effects, module: Any) -> None:
    def connected(server: Any, host: Any = "localhost", *args: Any, **kwargs: Any) -> Any:
        effects.blocked(described("smtplib.SMTP", (host,)))
        server.sock = _Answering()
        return 220, b""

    effects.put(module.SMTP, "connect", connected)
    for name, answer in (
        *(("getreply", (250, b"ok")), ("send", None), ("starttls", (220, b"ok"))),
        *(("login", (235, b"ok")), ("quit", (221, b"ok")), ("__exit__", None)),
    ):
        effects.put(module.SMTP, name, _answering(answer))
    for name in ("sendmail", "send_message"):
        effects.skip(module.SMTP, name, f"SMTP.{name}", {})


def _answering(answer: Any) -> Any:
    return lambda *args, **kwargs: answer


def _connect(connection: Any) -> None:
    connection.sock = _Answering()
    connection.is_verified = True  # urllib3 would warn


def _requesting(
    effects: Effects,
    original: Any,
    connection: Any,
    method: str,
    url: str,
    *args: Any,
    **kwargs: Any,
) -> None:
    secure = isinstance(connection, http.client.HTTPSConnection)
    address = f"http{'s' * secure}://{connection.host}{url}"
    effects.blocked(f"{method} {url if '://' in url else address}")
    if connection.sock is not None:
        _connect(connection)
    original(connection, method, url, *args, **kwargs)


def _opening_url(
    effects: Effects, original: Any, opener: Any, fullurl: Any, *args: Any, **kwargs: Any
) -> Any:
    url = str(getattr(fullurl, "full_url", fullurl))
    if url.startswith(("file:", "data:")):
        return original(opener, fullurl, *args, **kwargs)
    effects.blocked(described("urllib.request.urlopen", (url,)))
    with effects.silence():
        return original(opener, fullurl, *args, **kwargs)


def _connecting(effects: Effects, self: socket.socket, address: Any) -> NoReturn:
    effects.blocked(described("socket.connect", (address,)))
    raise no_connection(address)


def _connecting_quietly(effects: Effects, self: socket.socket, address: Any) -> int:
    effects.blocked(described("socket.connect_ex", (address,)))
    return errno.ECONNREFUSED


def _sending(
    effects: Effects,
    pairs: Any,
    name: str,
    original: Any,
    self: socket.socket,
    data: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    if self in pairs:
        return original(self, data, *args, **kwargs)
    address = args[-1:] if name == "sendto" else args[2:3] if name == "sendmsg" else ()
    effects.blocked(described(f"socket.{name}", address or (...,)))
    if name == "sendall":
        return None
    return sum(memoryview(part).nbytes for part in (data if name == "sendmsg" else (data,)))


def _looking_up(effects: Effects, original: Any, host: Any, *args: Any, **kwargs: Any) -> Any:
    if is_here(host):
        return original(host, *args, **kwargs)
    name = host.decode() if isinstance(host, bytes) else host
    effects.blocked(f"connection to {name}")
    raise no_connection(name)


def is_here(host: Any) -> bool:
    """Whether nobody has to be asked for the address of `host`: this machine, or an address."""
    name = host.decode() if isinstance(host, bytes) else host
    if name in (None, "", "localhost", socket.gethostname()):
        return True
    return str(name).replace(".", "").isdigit() or ":" in name


def no_connection(address: Any) -> ConnectionRefusedError:
    """What code gets that would connect to `address`."""
    shown = ":".join(map(str, address[:2])) if isinstance(address, tuple) else address
    return ConnectionRefusedError(f"a dry run makes no connections (here: to {shown})")
