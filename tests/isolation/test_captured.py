"""Attacks through references to functions that were taken before, wherever they may be kept."""

from __future__ import annotations

ATTACKS = {
    "waiting kept by a library, as a default argument": {
        "setup": "import sched",
        "attack": """
            todo = sched.scheduler()
            todo.enter(1000, 1, print, ("late",))
            todo.run()
        """,
        "limit": 20,
    },
    "waiting and clocks kept": {
        "setup": """
            import select, time
            from functools import partial
            now, wait = [time.monotonic, time.perf_counter_ns], partial(time.sleep, 1000)
            look = {"look": select.select}
        """,
        "attack": """
            before = now[0](), now[1]()
            wait()
            look["look"]([], [], [], 1000)
            assert 2000 <= now[0]() - before[0] < 2010
            assert 2000e9 <= now[1]() - before[1] < 2010e9
        """,
        "limit": 20,
    },
    "what is kept finds what it wrote": {
        "setup": """
            import os
            from functools import partial
            def note(text, path="n.txt", how=open):
                with how(path, "a") as file:
                    file.write(text)
            ways = [os.rename, os.remove, os.listdir]
            read = partial(open, "kept.txt")
        """,
        "attack": """
            note("one")
            note("two")
            ways[0]("n.txt", "kept.txt")
            ways[1]("a.txt")
            assert read().read() == "onetwo"
            assert not {"a.txt", "n.txt"} & {*ways[2](".")}
        """,
    },
    "a list of functions": {"setup": "import os; do = [os.remove]", "attack": "do[0]('a.txt')"},
    "a dict in a tuple": {
        "setup": "import os; do = ({'wipe': os.unlink},)",
        "attack": "do[0]['wipe']('a.txt')",
    },
    "partial": {
        "setup": "import os, functools; wipe = functools.partial(os.remove, 'a.txt')",
        "attack": "wipe()",
    },
    "partial of a partial": {
        "setup": """
            import os, functools
            wipe = functools.partial(functools.partial(os.rename, 'a.txt'), 'z.txt')
        """,
        "attack": "wipe()",
    },
    "closure": {
        "setup": """
            def make():
                from os import remove
                def wipe(path):
                    remove(path)
                return wipe
            wipe = make()
        """,
        "attack": "wipe('a.txt')",
    },
    "default argument": {
        "setup": """
            import shutil
            def wipe(path, how=shutil.rmtree, *, then=open):
                how(path)
                then('a.txt', 'w').close()
        """,
        "attack": "wipe('sub')",
    },
    "class attribute": {
        "setup": """
            import os
            class Files:
                wipe = staticmethod(os.remove)
        """,
        "attack": "Files.wipe('a.txt'); Files().wipe('b.bin')",
    },
    "instance attribute": {
        "setup": """
            import os
            class Files:
                def __init__(self):
                    self.wipe = os.remove
            files = Files()
        """,
        "attack": "files.wipe('a.txt')",
    },
    "slots": {
        "setup": """
            import os
            class Files:
                __slots__ = ('wipe',)
            files = Files()
            files.wipe = os.remove
        """,
        "attack": "files.wipe('a.txt')",
    },
    "property": {
        "setup": """
            from os import remove
            class Files:
                @property
                def wiped(self, how=remove):
                    return how('a.txt')
        """,
        "attack": "Files().wiped",
    },
    "getattr hook": {
        "setup": """
            import os
            class Any:
                def __getattr__(self, name, place=vars(os)):
                    return place[name]
            any_of = Any()
        """,
        "attack": "any_of.remove('a.txt')",
    },
    "bound method of a path": {
        "setup": "from pathlib import Path; wipe = Path('a.txt').unlink",
        "attack": "wipe()",
    },
    "bound method of an open file": {
        "setup": "f = open('a.txt', 'r+'); say, cut = f.write, f.truncate",
        "attack": "cut(); say('gone'); f.flush()",
        "after": "assert f.read() == 'alpha\\nbeta\\ngamma\\n'",
    },
    "a module of the user": {
        "setup": """
            from pathlib import Path
            text = 'from os import remove as wipe\\ndef clean(): wipe("a.txt")'
            Path('cleaner.py').write_text(text)
            import cleaner
        """,
        "attack": "cleaner.clean(); cleaner.wipe('b.bin')",
    },
    "a method caller": {
        "setup": """
            import operator
            from pathlib import Path
            wipe = operator.methodcaller('unlink')
        """,
        "attack": "wipe(Path('a.txt'))",
    },
    "single dispatch": {
        "setup": """
            import functools, os
            @functools.singledispatch
            def do(x): pass
            do.register(str, os.remove)
        """,
        "attack": "do('a.txt')",
    },
    "a cache around it": {
        "setup": "import functools, os; wipe = functools.lru_cache(os.remove)",
        "attack": "wipe('a.txt')",
    },
    "map that waits": {
        "setup": "import os; todo = map(os.remove, ['a.txt', 'b.bin'])",
        "attack": "list(todo)",
        "after": "assert next(todo) is None\nimport os\nassert not os.path.exists('a.txt')",
    },
    "a generator that waits": {
        "setup": """
            import os
            def steps(how=os.remove):
                yield 1
                how('a.txt')
                yield 2
            steps_of = steps()
            next(steps_of)
        """,
        "attack": "next(steps_of)",
        "after": "assert next(steps_of) == 2",
    },
    "the key of a sort": {
        "setup": "from os import remove as rank",
        "attack": "sorted(['a.txt', 'b.bin'], key=lambda path: rank(path) or path)",
    },
    "an exit stack": {
        "setup": """
            import contextlib, os
            stack = contextlib.ExitStack()
            stack.callback(os.remove, 'a.txt')
        """,
        "attack": "stack.close()",
    },
    "decorated": {
        "setup": """
            import functools, os
            def cleaning(f, how=os.remove):
                @functools.wraps(f)
                def inner(*args):
                    how('a.txt')
                    return f(*args)
                return inner
            @cleaning
            def train(): return 1
        """,
        "attack": "train()",
    },
    "pickle that calls": {
        "setup": """
            import os, pickle
            class Bomb:
                def __reduce__(self):
                    return os.remove, ('a.txt',)
            data = pickle.dumps(Bomb())
        """,
        "attack": "import pickle; pickle.loads(data)",
    },
    "code from text": 'exec(\'import os; os.remove("a.txt")\'); eval(\'open("b.bin", "w")\').close()',
    "names put together": """
        import importlib
        os = importlib.import_module('o' + 's')
        getattr(os, 're' + 'move')('a.txt')
        vars(os)['unl' + 'ink']('b.bin')
    """,
    "posix": "import posix; posix.remove('a.txt')",
    "sys modules": "import sys; sys.modules['os'].remove('a.txt')",
    "through another module": "import tempfile; tempfile._os.unlink('a.txt')",
    "subclasses": """
        found = [k for k in object.__subclasses__() if k.__name__ == '_wrap_close']
        found[0].__init__.__globals__['remove']('a.txt')
    """,
    "gc": """
        import gc
        names = [d for d in gc.get_objects() if type(d) is dict and 'unlink' in d and 'rmdir' in d]
        names[0]['unlink']('a.txt')
    """,
    "open kept": {"setup": "keep = open", "attack": "keep('a.txt', 'w').write('gone')"},
    "io and its parts": """
        import io, _io
        io.open('a.txt', 'w').close()
        io.FileIO('b.bin', 'w').close()
        _io.FileIO('n.bin', 'x').close()
    """,
    "codecs": "import codecs; codecs.open('a.txt', 'w', 'utf-8').write('x')",
    "print into a file": {
        "setup": "f = open('a.txt', 'a', buffering=1)",
        "attack": "print('more', file=f)\nprint('and', file=f, flush=True)",
    },
    "subprocess kept": {
        "setup": "from subprocess import run as call, Popen as Job",
        "attack": "call(['touch', 'new.txt']); Job(['touch', 'newer.txt']).wait()",
    },
    "a socket class kept": {
        "setup": "from socket import socket as S; connect = S.connect",
        "attack": "s = S(); connect(s, tuple(tcp)); s.send(b'hello')",
    },
    "a function built from code": {
        "setup": """
            import types, os
            def f(path): return go(path)
            wipe = types.FunctionType(f.__code__, {'go': os.remove})
        """,
        "attack": "wipe('a.txt')",
    },
    "a metaclass": {
        "setup": """
            import os
            class Meta(type):
                def __call__(cls, path, how=os.remove):
                    return how(path)
            class Wipe(metaclass=Meta): pass
        """,
        "attack": "Wipe('a.txt')",
    },
    "thread local": {
        "setup": "import os, threading; here = threading.local(); here.wipe = os.remove",
        "attack": "here.wipe('a.txt')",
    },
    "a context variable": {
        "setup": "import contextvars, os; wipe = contextvars.ContextVar('wipe', default=os.remove)",
        "attack": "wipe.get()('a.txt'); wipe.set(None)",
        "after": "assert wipe.get() is os.remove",
    },
    "a weak callback": {
        "setup": """
            import os, weakref
            class Thing: pass
            thing = Thing()
            watch = weakref.ref(thing, lambda _, how=os.remove: how('a.txt'))
        """,
        "attack": "del thing",
        "after": "assert watch() is thing",
    },
    "a loop's callback": {
        "setup": """
            import asyncio, os
            loop = asyncio.new_event_loop()
            handle = loop.call_soon(os.remove, 'a.txt')
        """,
        "attack": "loop.run_until_complete(asyncio.sleep(0))",
    },
    "a signal's handler": {
        "setup": """
            import os, signal
            previous = signal.signal(signal.SIGUSR2, lambda *_, how=os.remove: how('a.txt'))
        """,
        "attack": "signal.raise_signal(signal.SIGUSR2)\nos.kill(os.getpid(), signal.SIGUSR2)",
    },
}


def test_nothing_outside_changes(attack, play):
    play(attack)
