"""Attacks through what was made before the prediction and has a life of its own: workers, servers,
stores, archives, handlers that wait for a fork or the end of a process."""

from __future__ import annotations

ATTACKS = {
    "a handler before a fork": {
        "setup": """
            import os
            told = []
            live_on = True
            os.register_at_fork(before=lambda: live_on and told.append('before'))
        """,
        "attack": "x = 1",
        "after": "live_on = False",
        "real": False,
    },
    "a handler after a fork": {
        "setup": """
            import os
            told = []
            live_on = True
            os.register_at_fork(after_in_parent=lambda: live_on and told.append('after'))
        """,
        "attack": "x = 1",
        "after": "live_on = False",
        "real": False,
    },
    "a handler in a forked process": {
        "setup": """
            import os
            def note():
                with open(outside + '/kept.txt', 'a') as f:
                    f.write('forked')
            os.register_at_fork(after_in_child=note)
        """,
        "attack": "x = 1",
        "real": False,
    },
    "a handler in a forked process that sends": {
        "setup": """
            import os, socket
            s = socket.create_connection(tcp)
            os.register_at_fork(after_in_child=lambda: s.send(b'leak'))
        """,
        "attack": "x = 1",
        "real": False,
    },
    "a handler in a forked process that starts a thread": {
        "setup": """
            import os, threading
            def note():
                with open('n', 'a') as f:
                    f.write('forked')
            os.register_at_fork(after_in_child=lambda: threading.Thread(target=note).start())
        """,
        "attack": "x = 1",
        "real": False,
        "wait": 0.2,
    },
    "a job stopped and fed": {
        "setup": """
            import subprocess
            p = subprocess.Popen(['cat'], stdin=-1, stdout=-1)
        """,
        "attack": """
            import signal
            p.send_signal(signal.SIGSTOP)
            try:
                p.communicate(b'text', timeout=1)
            except subprocess.TimeoutExpired:
                pass
        """,
        "after": "assert p.communicate(b'own', timeout=9)[0] == b'own'",
        "error": None,
    },
    "a job left by with": {
        "setup": "import subprocess; p = subprocess.Popen(['cat'], stdin=-1, stdout=-1)",
        "attack": "p.__exit__(None, None, None)",
        "after": "assert p.communicate(b'own', timeout=9)[0] == b'own'",
        "error": None,
    },
    "a pool of threads": {
        "setup": """
            from multiprocessing.pool import ThreadPool
            told, live_pool = [], ThreadPool(2)
        """,
        "attack": "live_pool.map_async(told.append, [1, 2]).wait(1)",
        "after": "assert not told; live_pool.map(told.append, [3]); assert told == [3]; live_pool.terminate()",
        "error": None,
        "wait": 0.1,
    },
    "a pool of threads that is asked for results": {
        "setup": """
            from multiprocessing.pool import ThreadPool
            live_pool = ThreadPool(2)
        """,
        "attack": "assert live_pool.map(abs, [-1, 2]) == [1, 2]; live_pool.terminate()",
        "after": "assert live_pool.map(abs, [-3]) == [3]; live_pool.terminate()",
        "real": False,
        "not_sent": "a pool",
    },
    "a barrier and a condition": {
        "setup": """
            import multiprocessing
            b, c = multiprocessing.Barrier(2), multiprocessing.Condition()
            q = multiprocessing.get_context('fork').JoinableQueue()
        """,
        "attack": "b.abort(); c.acquire(); c.notify_all(); q.put(1)",
        "after": "assert not b.broken and c.acquire(False); assert q.empty(); q.join()",
        "wait": 0.1,
    },
    "a manager of shared memory": {
        "setup": """
            from multiprocessing.managers import SharedMemoryManager
            live_manager = SharedMemoryManager(ctx=__import__('multiprocessing').get_context('fork'))
            live_manager.start()
            things = live_manager.ShareableList([1, 'a'])
        """,
        "attack": "things[0] = 7; live_manager.shutdown()",
        "after": "assert things[0] == 1; live_manager.shutdown()",
        "error": None,
    },
    "a queue of tensors": {
        "setup": """
            import torch, torch.multiprocessing as mp, time
            q = mp.get_context('fork').SimpleQueue()
            t = torch.ones(3)
            q.put(t)
        """,
        "attack": "u = q.get(); u.fill_(9); t.fill_(8); q.put(torch.zeros(3))",
        "after": "assert q.get().tolist() == [1, 1, 1] and q.empty()",
        "error": None,
    },
    "a store over TCP of before": {
        "setup": """
            import torch.distributed as dist
            from datetime import timedelta
            store = dist.TCPStore('127.0.0.1', 0, 1, True, timedelta(seconds=5))
            store.set('a', '1')
        """,
        "attack": "store.set('a', '2'); store.add('n', 1); store.delete_key('a')",
        "after": "assert store.get('a') == b'1'",
        "error": None,
    },
    "a process group of before": {
        "setup": """
            import torch, torch.distributed as dist
            store = dist.FileStore(outside + '/store', 1)
            dist.init_process_group('gloo', store=store, rank=0, world_size=1)
        """,
        "attack": "dist.all_reduce(torch.ones(3)); store.set('x', 'y'); dist.destroy_process_group()",
        "after": "assert dist.is_initialized(); dist.all_reduce(torch.ones(3)); dist.destroy_process_group()",
        "error": None,
    },
    "a socket of zmq of before": {
        "setup": """
            import zmq
            live_context = zmq.Context()
            a, b = live_context.socket(zmq.PAIR), live_context.socket(zmq.PAIR)
            a.bind('inproc://isolation'); b.connect('inproc://isolation')
            c, d = live_context.socket(zmq.PUSH), live_context.socket(zmq.PULL)
            port = d.bind_to_random_port('tcp://127.0.0.1')
            c.connect(f'tcp://127.0.0.1:{port}')
            c.send(b'one')
            got = d.recv()
        """,
        "attack": "a.send(b'leak', zmq.NOBLOCK); c.send(b'leak', zmq.NOBLOCK)",
        "after": """
            assert not b.poll(100) and not d.poll(100)
            a.send(b'own'); c.send(b'own')
            assert b.recv() == d.recv() == b'own'
            for each in (a, b, c, d):
                each.close(0)
            live_context.term()
        """,
        "needs": "zmq",
        "error": None,
    },
    "a shelf of before": {
        "setup": "import shelve; s = shelve.open('shelf', writeback=True); s['x'] = [1]; s.sync()",
        "attack": "s['x'].append(2); s['y'] = 3; s.sync(); s.close()",
        "after": "assert s['x'] == [1] and 'y' not in s; s.close()",
        "error": None,
    },
    "a database of gnu": {
        "setup": "import dbm; d = dbm.open('keys', 'c'); d['x'] = '1'",
        "attack": "d['x'] = '2'; d['y'] = '3'; d.close()",
        "after": "assert d['x'] == b'1' and d.get('y') is None; d.close()",
        "error": None,
    },
    "two connections of one database": {
        "setup": """
            import sqlite3
            c = sqlite3.connect('d.db'); e = sqlite3.connect('d.db')
            x = c.executescript('create table t (x); insert into t values (1)')
            y = e.execute('select * from t').fetchall()
        """,
        "attack": """
            c.execute('begin exclusive'); c.execute('delete from t'); c.commit()
            e.execute('vacuum'); e.backup(c)
        """,
        "after": "e.execute('insert into t values (2)'); e.commit(); assert len(c.execute('select * from t').fetchall()) == 2",
        "error": None,
    },
    "an archive that grows": {
        "setup": """
            import tarfile, zipfile
            zipfile.ZipFile('z.zip', 'w').close()
            tarfile.open('t.tar', 'w').close()
            z, t = zipfile.ZipFile('z.zip', 'a'), tarfile.open('t.tar', 'a')
        """,
        "attack": """
            z.writestr('leak', 'x'); z.close(); t.add('a.txt'); t.close()
            zipfile.ZipFile('z.zip', 'a').writestr('leak', 'x'); tarfile.open('t.tar', 'a').add('a.txt')
        """,
        "after": "z.close(); t.close(); assert not zipfile.ZipFile('z.zip').namelist()",
    },
    "temporary files without a name": {
        "setup": """
            import tempfile
            f, g = tempfile.TemporaryFile('w+'), tempfile.SpooledTemporaryFile(4, 'w+')
            n = f.write('kept'), g.write('kept longer')
            f.flush(), g.flush()
        """,
        "attack": "f.seek(0); f.write('gone'); f.truncate(); g.seek(0); g.write('gone'); g.truncate(); g.flush()",
        "after": "assert f.tell() == 4; n = f.seek(0), g.seek(0); assert (f.read(), g.read()) == ('kept', 'kept longer')",
    },
    "mail by a logger": {
        "setup": """
            import logging, logging.handlers
            log = logging.getLogger('mails')
            log.addHandler(logging.handlers.SMTPHandler(tuple(tcp), 'a@b', ['c@d'], 'leak', timeout=1))
        """,
        "attack": "log.error('leak')",
    },
    "a pair with a thread at the other end": {
        "setup": """
            import socket, threading
            a, b = socket.socketpair()
            live_got = []
            live_thread = threading.Thread(target=lambda: live_got.append(b.recv(9)), daemon=True, name='live')
            live_thread.start()
        """,
        "attack": "a.send(b'leak'); a.shutdown(socket.SHUT_RDWR)",
        "after": "assert not live_got; n = a.send(b'own'); live_thread.join(); assert live_got == [b'own']",
    },
    "a server in a thread": {
        "setup": """
            import http.server, threading
            live_asked = []
            class Answer(http.server.BaseHTTPRequestHandler):
                def do_GET(self):
                    live_asked.append(self.path)
                    self.send_response(200); self.end_headers()
                def log_message(self, *args):
                    pass
            live_server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Answer)
            live_thread = threading.Thread(target=live_server.serve_forever, daemon=True, name='live')
            live_thread.start()
        """,
        "attack": """
            import urllib.request
            try:
                urllib.request.urlopen('http://127.0.0.1:%d/leak' % live_server.server_port, timeout=2)
            except OSError:
                pass
            live_server.socket.close()
        """,
        "after": """
            import urllib.request
            n = urllib.request.urlopen('http://127.0.0.1:%d/own' % live_server.server_port, timeout=9).status
            assert live_asked == ['/own']
            live_server.shutdown(); live_server.server_close()
        """,
        "error": None,
    },
    "a store of joblib": {
        "setup": """
            import joblib
            m = joblib.Memory('cache', verbose=0)
            f = m.cache(abs)
            n = f(-3)
        """,
        "attack": "f(-4); m.clear(warn=False); joblib.dump([1], 'n')",
        "needs": "joblib",
        "error": None,
    },
    "a summary of before": {
        "setup": """
            import os
            from torch.utils.tensorboard import SummaryWriter
            w = SummaryWriter('runs'); w.add_scalar('a', 1, 1); w.flush()
        """,
        "attack": "w.add_scalar('a', 2, 2); w.flush(); w.close()",
        "needs": "tensorboard",
        "error": None,
    },
    "a table mapped into memory": {
        "setup": """
            import pyarrow as pa
            f = pa.memory_map('b.bin', 'r+')
        """,
        "attack": "f.seek(0); f.write(b'gone'); f.flush(); f.close()",
        "needs": "pyarrow",
        "error": None,
    },
    "a lock of a file by a library": {
        "setup": "import filelock; lock = filelock.FileLock('l'); n = lock.acquire()",
        "attack": "lock.release(force=True)",
        "after": "assert lock.is_locked; lock.release()",
        "needs": "filelock",
        "error": None,
    },
    "a program in a terminal": {
        "setup": """
            import pty, os, time
            pid, live_f = pty.fork()
            if pid == 0:
                os.execv('/bin/cat', ['cat'])
            time.sleep(0.1)
        """,
        "attack": "os.write(live_f, b'\\3leak\\n'); os.close(live_f)",
        "after": """
            import select, signal
            assert not select.select([live_f], [], [], 0.2)[0]
            os.kill(pid, signal.SIGKILL)
            n = os.waitpid(pid, 0)
            os.close(live_f)
        """,
        "error": None,
    },
    "reports of faults into a file": {
        "setup": """
            import faulthandler, signal, os
            f = open(outside + '/faults', 'w')
            faulthandler.enable(f); faulthandler.register(signal.SIGUSR2, f)
            me = os.getpid()
        """,
        "attack": "import ctypes; os.kill(os.getpid(), signal.SIGUSR2); faulthandler.dump_traceback(f); ctypes.string_at(0)",
        "after": "faulthandler.unregister(signal.SIGUSR2); faulthandler.disable(); f.close()",
        "error": True,
    },
    "functions at the end of a process": {
        "setup": """
            import atexit, threading, weakref
            def note():
                with open(outside + '/kept.txt', 'a') as f:
                    f.write('ended')
            n = atexit.register(note), threading._register_atexit(note)
        """,
        "attack": "import ctypes; ctypes.CDLL(None).exit(0)",
        "after": "atexit.unregister(note); threading._threading_atexits.clear()",
        "error": True,
    },
    "functions of C at the end": {
        "setup": """
            import ctypes, os
            libc = ctypes.CDLL(None)
            path = (outside + '/kept.txt').encode()
            note = ctypes.CFUNCTYPE(None)(lambda: libc.unlink(path) and None)
            live_on = True
        """,
        "attack": "libc.atexit(note) if hasattr(libc, 'atexit') else libc.__cxa_atexit(note, None, None); libc.exit(0)",
        "error": True,
        "real": False,
    },
    "streams of C of before": {
        "setup": """
            import ctypes
            libc = ctypes.CDLL(None)
            libc.fopen.restype = ctypes.c_void_p
            s = ctypes.c_void_p(libc.fopen(b'c.txt', b'w'))
            n = libc.fputs(b'one', s)
        """,
        "attack": "libc.fputs(b'two', s); libc.fflush(s); libc.fflush(None); libc.fclose(s); libc.exit(0)",
        "after": "n = libc.fclose(s); assert open('c.txt').read() == 'one'",
        "error": True,
    },
    "an answer without end": {
        "attack": """
            import os
            piece = b'x' * (1 << 20)
            while True:
                for number in range(3, 60):
                    try:
                        os.write(number, piece)
                    except OSError:
                        pass
        """,
        "error": "the dry run",
        "real": False,
        "wait": 5,  # the system clears its memory away beside
        "options": "--timeout 20",
        "limit": 60,
    },
}  # fmt: skip


def test_nothing_outside_changes(attack, play):
    play(attack)
