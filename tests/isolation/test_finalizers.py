"""Attacks by what happens at the end of objects: a copy that dies must not take the user's files."""

from __future__ import annotations

KEEPER = """
    import os
    class Keeper:
        def __init__(self, path):
            self.path = path
        def __del__(self, remove=os.remove):
            remove(self.path)
    keeper = Keeper('a.txt')
"""

ATTACKS = {
    "del of the user's object": {"setup": KEEPER, "attack": "del keeper"},
    "the user's object replaced": {"setup": KEEPER, "attack": "keeper = None"},
    "the user's object changed": {"setup": KEEPER, "attack": "keeper.path = 'b.bin'; x = [keeper]"},
    "the user's object only there": {
        "setup": KEEPER,
        "attack": "import torch; x = torch.ones(3, device='cuda')",
        "real": False,
    },
    "an object of the cell": {"setup": KEEPER, "attack": "Keeper('b.bin')"},
    "an object that the cell leaves": {"setup": KEEPER, "attack": "other = Keeper('b.bin')", "real": False},
    "a class of the cell": """
        import os
        class Gone:
            def __del__(self, remove=os.remove):
                remove('a.txt')
        gone = Gone()
        del gone
    """,
    "a circle": {
        "setup": KEEPER + "    keeper.itself = keeper\n",
        "attack": "import gc; del keeper; gc.collect()",
    },
    "in a container": {
        "setup": KEEPER + "    kept = {'x': [keeper]}; del keeper\n",
        "attack": "kept.clear()",
        "after": "assert kept['x'][0].path == 'a.txt'",
    },
    "in an attribute of a module": {
        "setup": KEEPER + "    import counted; counted.keeper = keeper; del keeper\n",
        "attack": "del counted.keeper",
        "after": "assert counted.keeper.path == 'a.txt'",
        "not_sent": "what was added to a module, which is imported anew",
    },
    "in the history": {
        "setup": KEEPER + "    Out[77] = keeper; del keeper\n",
        "attack": "Out.clear()\n%reset -f out",
        "after": "assert Out[77].path == 'a.txt'",
    },
    "a named temporary file of before dropped": {
        "setup": "import os, tempfile; f = tempfile.NamedTemporaryFile(); name = f.name",
        "attack": "del f",
        "after": "assert os.path.exists(name)\nf.close()\nassert not os.path.exists(name)",
    },
    "a named temporary file of before closed": {
        "setup": "import os, tempfile; f = tempfile.NamedTemporaryFile(); name = f.name",
        "attack": "f.write(b'x'); f.close()",
        "after": "assert os.path.exists(name)\nn = f.write(b'y')\nf.flush()\n"
        "assert open(name).read() == 'y'",
    },
    "a named temporary file of before only there": {
        "setup": "import os, tempfile; f = tempfile.NamedTemporaryFile(); name = f.name",
        "attack": "import torch; x = torch.ones(3, device='cuda')",
        "after": "assert os.path.exists(name)",
        "real": False,
    },
    "a temporary folder of before dropped": {
        "setup": "import os, tempfile; d = tempfile.TemporaryDirectory(); name = d.name",
        "attack": "del d",
        "after": "assert os.path.isdir(name)\nd.cleanup()\nassert not os.path.isdir(name)",
    },
    "a temporary folder of before cleaned": {
        "setup": "import os, tempfile; d = tempfile.TemporaryDirectory(); name = d.name",
        "attack": "d.cleanup()",
        "after": "assert os.path.isdir(name)",
    },
    "a temporary folder of before in a with": {
        "setup": """
            import os, tempfile
            d = tempfile.TemporaryDirectory()
            open(d.name + '/x', 'w').close()
        """,
        "attack": "with d as name: open(name + '/y', 'w').close()",
        "after": "assert os.listdir(d.name) == ['x']",
    },
    "temporary things of the cell": {
        "attack": """
            import tempfile
            f, d = tempfile.NamedTemporaryFile(), tempfile.TemporaryDirectory()
            f.write(b'x')
            with tempfile.TemporaryDirectory() as e, tempfile.SpooledTemporaryFile() as g:
                open(e + '/x', 'w').close()
                g.write(b'x' * 99)
        """,
    },
    "finalize of before": {
        "setup": """
            import os, weakref
            class Thing: pass
            thing = Thing()
            end = weakref.finalize(thing, os.remove, 'a.txt')
        """,
        "attack": "del thing",
        "after": "assert end.alive",
    },
    "finalize of before called": {
        "setup": """
            import os, weakref
            class Thing: pass
            thing = Thing()
            end = weakref.finalize(thing, os.remove, 'a.txt')
        """,
        "attack": "end()",
        "after": "assert end.alive\nend()\nassert not os.path.exists('a.txt')",
    },
    "finalize of before detached": {
        "setup": """
            import os, weakref
            class Thing: pass
            thing = Thing()
            end = weakref.finalize(thing, os.remove, 'a.txt')
        """,
        "attack": "end.detach()",
        "after": "del thing\nassert not os.path.exists('a.txt')",
    },
    "finalize of the cell": {
        "setup": "import os, weakref\nclass Thing: pass\nthing = Thing()",
        "attack": "weakref.finalize(thing, os.remove, 'a.txt')\n"
        "weakref.finalize(Thing(), os.remove, 'b.bin')",
    },
    "finalize of a tensor": {
        "setup": "import os, torch, weakref; x = torch.ones(3, device='cuda')\n"
        "end = weakref.finalize(x, os.remove, 'a.txt')",
        "attack": "del x",
        "after": "assert end.alive and x.sum() == 3",
    },
    "a callback of a weak reference": {
        "setup": """
            import os, weakref
            class Thing: pass
            thing, seen = Thing(), []
            ref = weakref.ref(thing, lambda _: seen.append(1) or os.remove('a.txt'))
        """,
        "attack": "thing = 0",
        "after": "assert seen == [] and ref() is thing",
    },
    "a dictionary with weak values": {
        "setup": """
            import weakref
            class Thing: pass
            thing = Thing()
            live = weakref.WeakValueDictionary(x=thing)
            known = weakref.WeakKeyDictionary({thing: 1})
        """,
        "attack": "del thing",
        "after": "assert live['x'] is thing and known[thing] == 1",
    },
    "at exit": "import atexit, os; atexit.register(os.remove, 'a.txt')",
    "at exit of before run": {
        "setup": "import atexit, os; x = atexit.register(os.remove, 'a.txt')",
        "attack": "atexit._run_exitfuncs()",
    },
    "at exit of before forgotten": {
        "setup": "import atexit\ndef end(): pass\nx = atexit.register(end)",
        "attack": "atexit.unregister(end)\natexit._clear()",
    },
    "a generator closed": {
        "setup": """
            import os
            def steps():
                try:
                    yield 1
                    yield 2
                finally:
                    os.remove('a.txt')
            g = steps()
            n = next(g)
        """,
        "attack": "g.close()",
        "after": "assert next(g) == 2",
    },
    "a generator dropped": {
        "setup": """
            import os
            def steps():
                try:
                    yield 1
                finally:
                    os.remove('a.txt')
            g = steps()
            n = next(g)
        """,
        "attack": "del g",
        "after": "assert os.path.exists('a.txt') and g.gi_frame is not None",
    },
    "a context entered before": {
        "setup": """
            import contextlib, os
            @contextlib.contextmanager
            def place():
                yield 5
                os.remove('a.txt')
            c = place()
            n = c.__enter__()
        """,
        "attack": "c.__exit__(None, None, None)",
        "after": "assert c.__exit__(None, None, None) is False\nassert not os.path.exists('a.txt')",
    },
    "a file being written dropped": {
        "setup": "f = open('w.txt', 'w'); n = f.write('one')",
        "attack": "del f",
        "after": "f.close()\nassert open('w.txt').read() == 'one'",
    },
    "an archive being written dropped": {
        "setup": "import zipfile; z = zipfile.ZipFile('z.zip', 'w'); z.writestr('one', '1')",
        "attack": "del z",
        "after": "z.writestr('two', '2'); z.close()\n"
        "assert zipfile.ZipFile('z.zip').namelist() == ['one', 'two']",
    },
    "a database dropped": {
        "setup": "import sqlite3; db = sqlite3.connect('n.db'); c = db.execute('create table t(x)')\n"
        "c = db.execute('insert into t values (1)')",
        "attack": "del c, db",
        "after": "db.commit()\nassert db.execute('select x from t').fetchall() == [(1,)]",
    },
    "a socket dropped": {
        "setup": "import socket; s = socket.create_connection(tcp); s.send(b'hi'); x = s.recv(2)",
        "attack": "del s",
        "after": "s.send(b'on')\nassert s.recv(9) == b'on'",
        "wait": 0.1,
    },
    "an executor dropped": {
        "setup": "from concurrent.futures import ThreadPoolExecutor\n"
        "live_pool = ThreadPoolExecutor(1); x = live_pool.submit(int, '3').result()",
        "attack": "del live_pool",
        "after": "assert live_pool.submit(int, '4').result() == 4",
    },
    "the end of multiprocessing": """
        import multiprocessing.util as u, os
        u.Finalize(None, os.remove, ('a.txt',), exitpriority=1)
        u._run_finalizers()
    """,
    "shared memory dropped": {
        "setup": "from multiprocessing.shared_memory import SharedMemory\n"
        "m = SharedMemory(create=True, size=8); name = m.name",
        "attack": "del m",
        "after": "assert SharedMemory(name).size >= 8\nm.close(); m.unlink()",
    },
    "an asynchronous generator dropped": {
        "setup": """
            import os
            async def steps():
                try:
                    yield 1
                finally:
                    os.remove('a.txt')
            g = steps()
            n = await g.__anext__()
        """,
        "attack": "await g.aclose()",
        "after": "assert os.path.exists('a.txt')\nawait g.aclose()",
    },
    "names of the environment dropped": {
        "setup": "import os; os.environ['KEPT'] = '1'",
        "attack": "del os.environ['KEPT']; os.environ.clear()",
        "after": "assert os.environ['KEPT'] == '1'",
    },
    "everything dropped": {
        "setup": KEEPER,
        "attack": "globals().clear()",
        "after": "assert keeper.path == 'a.txt'",
        "error": None,
    },
    "a stream and a handler that nothing else holds": {
        "setup": """
            import io, os, signal, sys
            user = os.getpid()
            class Removing(io.StringIO):
                def __call__(self, *args): pass
                def __del__(self):
                    if os.getpid() != user:
                        os.remove('a.txt')
            live_stream, sys.__stdout__ = sys.__stdout__, Removing()
            before = signal.signal(signal.SIGALRM, Removing())
        """,
        "attack": "x = 1",
        "after": "sys.__stdout__ = live_stream; signal.signal(signal.SIGALRM, before)",
        "real": False,
    },
}  # fmt: skip


def test_nothing_outside_changes(attack, play):
    play(attack)
