"""Attacks that make connections: nothing may arrive, and nobody may wait for an answer."""

from __future__ import annotations

SAID = {"says": "not executed"}

ATTACKS = {
    "TCP": {
        "attack": "import socket; s = socket.socket(); s.connect(tuple(tcp)); s.sendall(b'leak')",
        **SAID,
    },
    "TCP by create connection": {
        "attack": """
            import socket
            with socket.create_connection(tcp, timeout=5) as s:
                s.sendall(b'leak')
                s.recv(4)
        """,
        **SAID,
    },
    "TCP by connect ex": "import socket; s = socket.socket(); s.connect_ex(tuple(tcp))",
    "TCP without waiting": """
        import socket, select
        s = socket.socket()
        s.setblocking(False)
        s.connect_ex(tuple(tcp))
        select.select([], [s], [], 0.2)
    """,
    "TCP by the class below": "import _socket; s = _socket.socket(); s.connect(tuple(tcp)); s.send(b'x')",
    "UDP": {
        "attack": """
            import socket
            s = socket.socket(type=socket.SOCK_DGRAM)
            s.sendto(b'leak', tuple(udp))
        """,
        **SAID,
    },
    "UDP connected": """
        import socket
        s = socket.socket(type=socket.SOCK_DGRAM)
        s.connect(tuple(udp))
        s.send(b'leak')
    """,
    "UDP by sendmsg": """
        import socket
        s = socket.socket(type=socket.SOCK_DGRAM)
        s.sendmsg([b'leak'], [], 0, tuple(udp))
    """,
    "unix": {
        "attack": "import socket; s = socket.socket(socket.AF_UNIX); s.connect(unix); s.send(b'leak')",
        **SAID,
    },
    "unix bound": """
        import socket
        s = socket.socket(socket.AF_UNIX)
        s.bind('made.sock')
        s.listen()
    """,
    "unix without a name in the file system": {
        "setup": """
            import socket
            server = socket.socket(socket.AF_UNIX)
            name = f'\\0isolation{id(server)}'
            server.bind(name)
            server.listen()
            server.settimeout(0.3)
        """,
        "attack": "s = socket.socket(socket.AF_UNIX)\ns.connect(name)\ns.send(b'leak')",
        "after": """
            try:
                server.accept()
            except TimeoutError:
                pass
            else:
                raise AssertionError('connected')
        """,
    },
    "http client": {
        "attack": "import http.client; h = http.client.HTTPConnection(*tcp); h.request('GET', '/leak')",
        **SAID,
    },
    "urlopen": {
        "attack": "import urllib.request; urllib.request.urlopen('http://%s:%s/' % tuple(tcp), timeout=9)",
        **SAID,
    },
    "urlretrieve": "import urllib.request as u; u.urlretrieve('http://%s:%s/x' % tuple(tcp), 'a.txt')",
    "requests": {
        "attack": "import requests; requests.post('http://%s:%s/leak' % tuple(tcp), json={'x': 1})",
        "needs": "requests",
        **SAID,
    },
    "httpx": {
        "attack": "import httpx; httpx.get('http://%s:%s/leak' % tuple(tcp))",
        "needs": "httpx",
        **SAID,
    },
    "httpx awaited": {
        "attack": """
            import httpx
            async with httpx.AsyncClient() as client:
                await client.get('http://%s:%s/leak' % tuple(tcp))
        """,
        "needs": "httpx",
    },
    "urllib3": {
        "attack": "import urllib3; urllib3.request('GET', 'http://%s:%s/leak' % tuple(tcp), retries=False)",
        "needs": "urllib3",
    },
    "asyncio streams": """
        import asyncio
        r, w = await asyncio.open_connection(*tcp)
        w.write(b'leak')
        await w.drain()
    """,
    "asyncio streams in a loop of its own": """
        import asyncio
        async def go():
            r, w = await asyncio.open_connection(*tcp)
            w.write(b'leak')
            await w.drain()
        loop = asyncio.new_event_loop()
        loop.run_until_complete(go())
    """,
    "asyncio datagrams": """
        import asyncio
        loop = asyncio.get_running_loop()
        t, _ = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, remote_addr=tuple(udp))
        t.sendto(b'leak')
        await asyncio.sleep(0.05)
    """,
    "tornado": {
        "attack": """
            from tornado.httpclient import AsyncHTTPClient
            await AsyncHTTPClient().fetch('http://%s:%s/leak' % tuple(tcp))
        """,
        "needs": "tornado",
    },
    "zmq": {
        "attack": """
            import zmq, time
            context = zmq.Context()
            s = context.socket(zmq.PUSH)
            s.setsockopt(zmq.LINGER, 0)
            s.connect('tcp://%s:%s' % tuple(tcp))
            time.sleep(0.3)
        """,
        "needs": "zmq",
        "wait": 0.3,
    },
    "zmq over a unix socket": {
        "attack": """
            import zmq, time
            s = zmq.Context().socket(zmq.PUSH)
            s.setsockopt(zmq.LINGER, 0)
            s.connect('ipc://' + unix)
            time.sleep(0.3)
        """,
        "needs": "zmq",
        "wait": 0.3,
    },
    "a connection of multiprocessing": """
        from multiprocessing.connection import Client
        c = Client(unix, family='AF_UNIX')
        c.send('leak')
    """,
    "xmlrpc": "import xmlrpc.client as x; x.ServerProxy('http://%s:%s' % tuple(tcp)).leak(1)",
    "smtp": "import smtplib; smtplib.SMTP(*tcp, timeout=1)",
    "ftp": "import ftplib; f = ftplib.FTP(timeout=1); f.connect(*tcp)",
    "tls": """
        import socket, ssl
        s = ssl.create_default_context().wrap_socket(socket.socket(), server_hostname='localhost')
        s.settimeout(1)
        s.connect(tuple(tcp))
    """,
    "the hub of torch": """
        import torch
        torch.hub.load_state_dict_from_url('http://%s:%s/w.pt' % tuple(tcp))
    """,
    "a store over TCP": """
        import torch.distributed as dist
        from datetime import timedelta
        s = dist.TCPStore(tcp[0], tcp[1], timeout=timedelta(seconds=2))
    """,
    "a process group": {
        "attack": """
            import torch.distributed as dist
            dist.init_process_group('gloo', rank=0, world_size=1, init_method='tcp://127.0.0.1:0')
        """,
        "after": "import torch.distributed as dist\nassert not dist.is_initialized()",
    },
    "a server and its client": {
        "attack": """
            import socket, threading
            server = socket.create_server(('127.0.0.1', 0))
            threading.Thread(target=lambda: server.accept()[0].sendall(b'x'), daemon=True).start()
            client = socket.create_connection(server.getsockname(), timeout=2)
            client.recv(1)
        """,
    },
    "a server that waits": {
        "attack": "import socket; s = socket.create_server(('127.0.0.1', 0)); s.accept()",
        "error": True,
        "options": "--timeout 3",
        "limit": 8,
    },
    "a port taken": {
        "setup": """
            import socket
            with socket.create_server(('127.0.0.1', 0)) as s:
                where = s.getsockname()
        """,
        "attack": "s = socket.create_server(where)\ns.listen()",
        "after": "socket.create_server(where).close()",
    },
    "logs over the network": """
        import logging, logging.handlers
        log = logging.getLogger('net')
        log.addHandler(logging.handlers.SocketHandler(*tcp))
        log.addHandler(logging.handlers.DatagramHandler(*udp))
        log.error('leak')
    """,
    "libc connect": {
        "setup": """
            import ctypes, socket, struct
            libc = ctypes.CDLL(None)
            def address(place):
                return struct.pack('=H', 2) + struct.pack('!H4s8x', place[1], socket.inet_aton(place[0]))
        """,
        "attack": "s = libc.socket(2, 1, 0)\nlibc.connect(s, address(tcp), 16)\nlibc.send(s, b'leak', 4, 0)",
    },
    "libc sendto": {
        "setup": """
            import ctypes, socket, struct
            libc = ctypes.CDLL(None)
            def address(place):
                return struct.pack('=H', 2) + struct.pack('!H4s8x', place[1], socket.inet_aton(place[0]))
        """,
        "attack": "s = libc.socket(2, 2, 0)\nlibc.sendto(s, b'leak', 4, 0, address(udp), 16)",
    },
    "libc unix": {
        "setup": """
            import ctypes, struct
            libc = ctypes.CDLL(None)
            place = struct.pack('=H108s', 1, unix.encode())
        """,
        "attack": "s = libc.socket(1, 1, 0)\nlibc.connect(s, place, len(place))\nlibc.send(s, b'leak', 4, 0)",
    },
    "in a thread": """
        import socket, threading
        def go():
            s = socket.create_connection(tcp)
            s.sendall(b'leak')
        t = threading.Thread(target=go)
        t.start()
        t.join()
    """,
    "a free port": {
        "attack": "import socket\ns = socket.socket(); s.bind(('', 0)); a = s.getsockname()\n"
        "assert a[0] == '0.0.0.0' and 1024 < a[1] < 65536, a",
        "says": "fits: ",
        "real": False,
    },
}  # fmt: skip


def test_nothing_outside_changes(attack, play):
    play(attack)
