"""Attacks through what is open already: a forked child shares descriptors and their offsets."""

from __future__ import annotations

ATTACKS = {
    "a file half read": {
        "setup": "f = open('a.txt')\nfirst = f.readline()",
        "attack": "rest = f.read()\nassert rest == 'beta\\ngamma\\n'",
        "after": "assert f.read() == 'beta\\ngamma\\n'",
    },
    "a binary file half read": {
        "setup": "f = open('b.bin', 'rb')\nfirst = f.read(10)",
        "attack": "assert f.read(2) == bytes([10, 11])\nf.seek(200)",
        "after": "assert f.read(1) == bytes([10])",
    },
    "a file without a buffer": {
        "setup": "f = open('b.bin', 'rb', buffering=0)\nfirst = f.read(10)",
        "attack": "assert f.read(2) == bytes([10, 11])",
        "after": "assert f.read(1) == bytes([10])",
    },
    "a descriptor above the limit": {
        "setup": """
            import os, resource
            r, w = os.pipe()
            f = os.dup2(w, 300)
            most = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (128, most[1]))
        """,
        "attack": """
            try:
                n = os.write(f, b'more')
            except OSError:
                pass
        """,
        "after": """
            n = os.write(f, b'end')
            assert os.read(r, 10) == b'end'
            resource.setrlimit(resource.RLIMIT_NOFILE, most)
        """,
        "not_sent": "a descriptor",
    },
    "a descriptor half read": {
        "setup": "import os; f = os.open('a.txt', os.O_RDONLY); first = os.read(f, 3)",
        "attack": "assert os.read(f, 2) == b'ha'\nos.lseek(f, 0, os.SEEK_END)",
        "after": "assert os.read(f, 2) == b'ha'",
        "not_sent": "a descriptor",
    },
    "a file for reading and writing": {
        "setup": "f = open('a.txt', 'r+'); first = f.readline()",
        "attack": "f.seek(0); f.write('gone'); f.flush(); f.truncate()",
        "after": "assert f.readline() == 'beta\\n'",
    },
    "a file for appending": {
        "setup": "f = open('a.txt', 'a')",
        "attack": "f.write('more'); f.flush()",
        "after": "f.write('end'); f.close()\nassert open('a.txt').read() == 'alpha\\nbeta\\ngamma\\nend'",
    },
    "a file for writing": {
        "setup": "f = open('w.txt', 'w'); f.write('one'); f.flush()",
        "attack": "f.write('two'); f.close()",
        "after": "f.write('three'); f.close()\nassert open('w.txt').read() == 'onethree'",
    },
    "a buffer not flushed": {
        "setup": "f = open('w.txt', 'w'); n = f.write('one')",
        "attack": "f.write('two'); f.flush()",
        "after": "f.close()\nassert open('w.txt').read() == 'one'",
    },
    "a binary buffer not flushed": {
        "setup": "f = open('w.bin', 'wb'); n = f.write(b'one')",
        "attack": "x = 1\ndel f",
        "after": "f.close()\nassert open('w.bin').read() == 'one'",
    },
    "a buffer flushed by an exit": {
        "setup": "f = open('w.txt', 'w'); n = f.write('one')",
        "attack": "import sys; sys.exit()",
        "after": "f.close()\nassert open('w.txt').read() == 'one'",
        "error": True,
    },
    "a pipe": {
        "setup": "import os; r, w = os.pipe(); n = os.write(w, b'waiting')",
        "attack": "os.read(r, 4); os.write(w, b'more')",
        "after": "assert os.read(r, 100) == b'waiting'",
    },
    "a pipe closed": {
        "setup": "import os; r, w = os.pipe(); n = os.write(w, b'waiting')",
        "attack": "os.close(r); os.close(w)",
        "after": "assert os.read(r, 100) == b'waiting'",
    },
    "a connection of multiprocessing": {
        "setup": "import multiprocessing; a, b = multiprocessing.Pipe(); b.send([1])",
        "attack": "a.recv(); a.send([2])",
        "after": "assert a.recv() == [1] and not b.poll()",
    },
    "a connected socket": {
        "setup": "import socket; s = socket.create_connection(tcp); s.send(b'hi'); x = s.recv(2)",
        "attack": "s.sendall(b'leak')",
        "after": "s.send(b'on')\nassert s.recv(9) == b'on'",
    },
    "a connected socket by its number": {
        "setup": "import os, socket; s = socket.create_connection(tcp); s.send(b'hi'); x = s.recv(2)",
        "attack": "os.write(s.fileno(), b'leak')",
        "after": "s.send(b'on')\nassert s.recv(9) == b'on'",
    },
    "a file over a socket": {
        "setup": "import socket; s = socket.create_connection(tcp); f = s.makefile('rw')",
        "attack": "f.write('leak\\n'); f.flush(); f.readline()",
    },
    "a socket shut down": {
        "setup": "import socket; s = socket.create_connection(tcp); s.send(b'hi'); x = s.recv(2)",
        "attack": "s.shutdown(socket.SHUT_RDWR); s.close()",
        "after": "s.send(b'on')\nassert s.recv(9) == b'on'",
    },
    "a socket's answer waiting": {
        "setup": """
            import socket, time
            s = socket.create_connection(tcp)
            s.send(b'answer')
            time.sleep(0.1)
        """,
        "attack": "s.recv(6)",
        "after": "assert s.recv(9) == b'answer'",
    },
    "a socket's modes": {
        "setup": "import socket; s = socket.create_connection(tcp)",
        "attack": "s.setblocking(False); s.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)",
        "after": "assert s.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0",
    },
    "a unix socket": {
        "setup": "import socket; s = socket.socket(socket.AF_UNIX); s.connect(unix)",
        "attack": "s.sendall(b'leak')",
        "after": "s.send(b'on')\nassert s.recv(9) == b'on'",
    },
    "a UDP socket": {
        "setup": """
            import socket
            s, t = (socket.socket(type=socket.SOCK_DGRAM) for _ in range(2))
            s.connect(tuple(udp))
        """,
        "attack": "s.send(b'leak'); t.sendto(b'leak', tuple(udp))",
    },
    "a pair of sockets": {
        "setup": "import socket; a, b = socket.socketpair(); n = a.send(b'hi')",
        "attack": "b.recv(2); a.send(b'leak')",
        "after": "assert b.recv(9) == b'hi'",
    },
    "a descriptor sent through a socket": {
        "setup": "import os, socket; a, b = socket.socketpair(); f = open('a.txt', 'a')",
        "attack": "socket.send_fds(a, [b'x'], [f.fileno()])",
    },
    "a listening socket": {
        "setup": """
            import socket
            s = socket.create_server(('127.0.0.1', 0))
            c = socket.create_connection(s.getsockname())
        """,
        "attack": "d, _ = s.accept(); d.sendall(b'leak')",
        "after": "d, _ = s.accept()\nd.sendall(b'on')\nassert c.recv(9) == b'on'",
    },
    "http kept alive": {
        "setup": """
            import http.client
            h = http.client.HTTPConnection(*tcp)
            h.request('GET', '/before')
            x = h.getresponse().read()
        """,
        "attack": "h.request('GET', '/leak'); h.getresponse().read()",
        "after": "h.request('GET', '/on')\nassert h.getresponse().read() == b'ok'",
    },
    "requests kept alive": {
        "setup": "import requests; r = requests.Session(); x = r.get('http://%s:%s/before' % tuple(tcp))",
        "attack": "r.post('http://%s:%s/leak' % tuple(tcp), data='x' * 5)",
        "after": "assert r.get('http://%s:%s/on' % tuple(tcp)).text == 'ok'",
        "needs": "requests",
    },
    "httpx kept alive": {
        "setup": "import httpx; c = httpx.Client(); x = c.get('http://%s:%s/before' % tuple(tcp))",
        "attack": "c.get('http://%s:%s/leak' % tuple(tcp))",
        "after": "assert c.get('http://%s:%s/on' % tuple(tcp)).text == 'ok'",
        "needs": "httpx",
    },
    "urllib3 kept alive": {
        "setup": "import urllib3; p = urllib3.PoolManager(); u = 'http://%s:%s' % tuple(tcp)\n"
        "x = p.request('GET', u)",
        "attack": "p.request('GET', u + '/leak')",
        "needs": "urllib3",
    },
    "a shared memory map": {
        "setup": "import mmap; f = open('b.bin', 'r+b'); m = mmap.mmap(f.fileno(), 0)",
        "attack": "m[0:4] = b'gone'; m.seek(9); m.resize(100); m.flush()",
        "after": "assert m[0:4] == bytes(range(4))\nm[0] = 7\nassert open('b.bin', 'rb').read(1) == b'\\7'",
    },
    "anonymous shared memory": {
        "setup": "import mmap; m = mmap.mmap(-1, 4096)",
        "attack": "m[0:4] = b'gone'",
        "after": "assert m[0:4] == bytes(4)",
    },
    "a copied descriptor": {
        "setup": "import os; f = open('a.txt', 'r+'); g = os.dup(f.fileno())",
        "attack": "os.write(g, b'gone'); os.ftruncate(g, 2); os.close(g)",
        "after": "assert os.read(g, 5) == b'alpha'",
    },
    "one descriptor over another": {
        "setup": "import os; f, g = open('a.txt'), open('data.csv')",
        "attack": "os.dup2(f.fileno(), g.fileno()); os.closerange(f.fileno(), f.fileno() + 1)",
        "after": "assert g.read(3) == 'x,y' and f.read(5) == 'alpha'",
    },
    "all descriptors closed": {
        "setup": "f = open('a.txt')",
        "attack": "import os; os.closerange(3, 4096)",
        "after": "assert f.read(5) == 'alpha'",
        "error": None,  # the answer's own, where it is a pipe
    },
    "flags of a descriptor": {
        "setup": "import fcntl, os; r, w = os.pipe(); f = open('a.txt', 'a')",
        "attack": "os.set_blocking(r, False); fcntl.fcntl(f, fcntl.F_SETFL, 0)",
        "after": "assert os.get_blocking(r)",
    },
    "a lock on a file": {
        "setup": "import fcntl; f = open('a.txt', 'r+'); fcntl.flock(f, fcntl.LOCK_EX)",
        "attack": "fcntl.flock(f, fcntl.LOCK_UN)",
        "after": """
            try:
                fcntl.flock(open('a.txt'), fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                pass
            else:
                raise AssertionError('unlocked')
        """,
    },
    "a lock by lockf": {
        "setup": """
            import fcntl, os, subprocess, sys
            path = os.environ['IPYTHONDIR'] + '/locked'
            f = open(path, 'w')
            fcntl.lockf(f, fcntl.LOCK_EX)
        """,
        "attack": "fcntl.lockf(f, fcntl.LOCK_UN); open(path).close()",
        "after": """
            code = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'w'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
            assert subprocess.run([sys.executable, '-c', code, path], capture_output=True).returncode
        """,
    },
    "epoll": {
        "setup": """
            import os, select
            r, w = os.pipe()
            e = select.epoll()
            e.register(r, select.EPOLLIN)
            n = os.write(w, b'x')
        """,
        "attack": "e.unregister(r); e.poll(0)",
        "after": "assert e.poll(0) == [(r, select.EPOLLIN)]",
    },
    "selectors": {
        "setup": """
            import os, selectors
            r, w = os.pipe()
            s = selectors.DefaultSelector()
            k = s.register(r, selectors.EVENT_READ)
            n = os.write(w, b'x')
        """,
        "attack": "s.unregister(r); s.close()",
        "after": "assert len(s.select(0)) == 1",
    },
    "an event's descriptor": {
        "setup": "import os; e = os.eventfd(3)",
        "attack": "os.eventfd_read(e)",
        "after": "assert os.eventfd_read(e) == 3",
    },
    "memory with a descriptor": {
        "setup": "import os; f = os.memfd_create('m'); n = os.write(f, b'kept')",
        "attack": "os.pwrite(f, b'gone', 0); os.ftruncate(f, 1)",
        "after": "assert os.pread(f, 9, 0) == b'kept'",
    },
    "writing at a place": {
        "setup": "import os; f = os.open('a.txt', os.O_RDWR)",
        "attack": "os.pwrite(f, b'gone', 2); os.posix_fallocate(f, 0, 99)",
        "after": "assert os.pread(f, 9, 0) == b'alpha\\nbet'",
    },
    "a terminal": {
        "setup": "import os, pty; a, b = pty.openpty()",
        "attack": "os.write(b, b'leak')",
        "after": "os.write(b, b'on')\nassert os.read(a, 9) == b'on'",
    },
    "a folder half read": {
        "setup": "import os; [open(f'many{n}', 'w').close() for n in range(900)]\n"
        "s = os.scandir(); x = next(s).name",
        "attack": "assert len(list(s)) > 100",
        "after": "assert len({x, *(entry.name for entry in s)}) == len(os.listdir())",
    },
    "a job's streams": {
        "setup": """
            import subprocess
            p = subprocess.Popen(['cat'], stdin=-1, stdout=-1, bufsize=0)
            n = p.stdin.write(b'one')
        """,
        "attack": "p.stdout.read(3); p.stdin.write(b'two'); p.stdin.close()",
        "after": "assert p.stdout.read(3) == b'one'\np.stdin.close(); p.stdout.close(); p.wait()",
        "wait": 0.1,
    },
    "standard input": {
        "setup": "import sys",
        "attack": "import os; os.read(0, 4)",
        "after": "assert sys.stdin.readline() == 'line one\\n'",
        "error": None,
    },
    "standard input by Python": {
        "setup": "import sys",
        "attack": "sys.stdin.readline()",
        "after": "assert sys.stdin.readline() == 'line one\\n'",
        "error": True,
    },
    "standard output by its number": "import os; os.write(1, b'out'); os.write(2, b'err')",
    "the original streams": """
        import sys
        sys.__stdout__.write('out'); sys.__stdout__.flush()
        print('err', file=sys.__stderr__, flush=True)
    """,
    "standard output closed": "import os, sys; os.close(1); os.close(2); sys.__stdout__.close()",
    "a compressed file being written": {
        "setup": "import gzip; g = gzip.open('g.gz', 'wt'); n = g.write('one')",
        "attack": "g.write('two'); g.close()",
        "after": "g.close()\nassert gzip.open('g.gz', 'rt').read() == 'one'",
    },
    "an archive being written": {
        "setup": "import zipfile; z = zipfile.ZipFile('z.zip', 'w'); z.writestr('one', '1')",
        "attack": "z.writestr('two', '2'); z.close()",
        "after": "z.close()\nassert zipfile.ZipFile('z.zip').namelist() == ['one']",
    },
    "an archive being read": {
        "setup": "import zipfile\nwith zipfile.ZipFile('z.zip', 'w') as z:\n    z.writestr('one', 'x' * 99)\n"
        "m = zipfile.ZipFile('z.zip').open('one'); n = m.read(9)",
        "attack": "assert len(m.read()) == 90",
        "after": "assert len(m.read()) == 90",
    },
    "a database of dbm": {
        "setup": "import dbm.dumb; d = dbm.dumb.open('d', 'c'); d['x'] = '1'; d.sync()",
        "attack": "d['x'] = '2'; d['y'] = '3'; d.sync()",
        "after": "assert d['x'] == b'1' and 'y' not in d",
    },
    "a csv writer": {
        "setup": "import csv; f = open('out.csv', 'w', newline=''); c = csv.writer(f); n = c.writerow([1])",
        "attack": "c.writerow([2]); f.flush()",
        "after": "n = c.writerow([3])\nf.close()\nassert open('out.csv').read() == '1\\n3\\n'.replace('\\n', '\\r\\n')"
        " or open('out.csv', newline='').read() == '1\\r\\n3\\r\\n'",
    },
    "a log that is read by its name": {
        "setup": "f = open('log.txt', 'a'); n = f.write('one\\n'); f.flush()",
        "attack": """
            f.write('two\\n'); f.flush()
            assert open('log.txt').read() == 'one\\ntwo\\n'
            open('log.txt', 'a').write('three\\n')
            f.close()
            assert open('log.txt').read().split() == ['one', 'two', 'three']
        """,
        "after": "assert open('log.txt').read() == 'one\\n'; f.close()",
    },
    "an open file that gets another name": {
        "setup": "import os; f = open('log.txt', 'w+'); n = f.write('one'); f.flush()",
        "attack": """
            f.write('two'); f.flush()
            os.replace('log.txt', 'old.txt')
            assert open('old.txt').read() == 'onetwo' and not os.path.exists('log.txt')
            open('log.txt', 'w').write('new'); f.write('more'); f.flush()
            assert open('log.txt').read() == 'new'
        """,
        "after": "assert open('log.txt').read() == 'one'; f.close()",
    },
    "an open file in a folder that is removed": {
        "setup": "import os, shutil; f = open('sub/log', 'w'); n = f.write('one'); f.flush()",
        "attack": """
            assert sorted(os.listdir('sub')) == ['c.txt', 'd.txt', 'log']
            shutil.rmtree('sub'); os.mkdir('sub')
            assert os.listdir('sub') == []
        """,
        "after": "assert open('sub/log').read() == 'one'; f.close()",
    },
    "an archive that is opened again": {
        "setup": "import zipfile; z = zipfile.ZipFile('z.zip', 'w'); z.writestr('one', '1')",
        "attack": """
            z.writestr('two', '2'); z.close()
            assert zipfile.ZipFile('z.zip').namelist() == ['one', 'two']
        """,
        "after": "z.close(); assert zipfile.ZipFile('z.zip').namelist() == ['one']",
    },
}  # fmt: skip


def test_nothing_outside_changes(attack, play):
    play(attack)
