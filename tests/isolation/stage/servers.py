"""Servers for TCP, UDP and unix sockets that write down every connection and every byte.

python servers.py FOLDER: prints their addresses as JSON; writes to FOLDER/record.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import sys
from pathlib import Path

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: keep-alive\r\n\r\nok"
VERBS = (b"GET", b"POST", b"PUT", b"DELETE", b"HEAD")


def main() -> None:
    """Serve until the input ends."""
    folder = Path(sys.argv[1])
    record = os.open(folder / "record", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    chooser = selectors.DefaultSelector()
    chooser.register(0, selectors.EVENT_READ, "input")
    tcp = socket.create_server(("127.0.0.1", 0))
    unix = socket.socket(socket.AF_UNIX)
    unix.bind(str(folder / "unix"))
    unix.listen(64)
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("127.0.0.1", 0))
    for name, server in (("tcp", tcp), ("unix", unix), ("udp", udp)):
        chooser.register(server, selectors.EVENT_READ, name)
    addresses = {"tcp": tcp.getsockname(), "udp": udp.getsockname(), "unix": str(folder / "unix")}
    print(json.dumps(addresses), flush=True)
    while True:
        for key, _ in chooser.select():
            if key.data == "input":
                return
            os.write(record, serve(chooser, key).encode())


def serve(chooser: selectors.BaseSelector, key: selectors.SelectorKey) -> str:
    """Answer what came; what it was. Text comes back as it is, a request gets an `ok`."""
    if key.data == "udp":
        data, sender = key.fileobj.recvfrom(65536)
        key.fileobj.sendto(data, sender)
        return f"udp {data!r}\n"
    if key.data in ("tcp", "unix"):
        connection, _ = key.fileobj.accept()
        chooser.register(connection, selectors.EVENT_READ, f"{key.data} connection")
        return f"{key.data} connected\n"
    try:
        data = key.fileobj.recv(65536)
        key.fileobj.sendall(ANSWER if data.startswith(VERBS) else data)
    except OSError:
        data = b""
    if not data:
        chooser.unregister(key.fileobj)
        key.fileobj.close()
        return f"{key.data} ended\n"
    return f"{key.data} {data!r}\n"


if __name__ == "__main__":
    main()
