"""Functions of C that were redirected, in a process of its own: nothing puts them back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

CODE = """
import functools, os, threading, time
from gpumem_magic.isolation.builtin_functions import redirect

def often():
    for _ in range(3000):  # until the interpreter has specialized the calls
        time.monotonic(), os.stat("/"), os.getpid()

def by_default(clock=time.monotonic):
    return clock()

often()
kept = [time.monotonic], functools.partial(os.stat, "/")
asked = []

def negated(original):
    return lambda: -original()

def listed(original):
    def stat(*args, **kwargs):
        asked.append(args)
        return original(*args, **kwargs)
    return stat

redirect(time.monotonic, negated)
redirect(os.getpid, negated)
redirect(os.stat, listed)
assert time.monotonic() < 0 and by_default() < 0 and kept[0][0]() < 0 and os.getpid() < 0
kept[1]()
os.stat(path="/"), list(map(os.stat, ["/tmp"]))
assert asked == [("/",), (), ("/tmp",)], asked
try:
    os.stat()
except TypeError as error:
    assert str(error) == "stat() missing required argument 'path' (pos 1)", error
assert (os.stat.__name__, os.stat.__module__, repr(os.stat)) == ("stat", "posix", "<built-in function stat>")
threads = [threading.Thread(target=often) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(asked) == 4 + 4 * 3000
print("as it should be")
"""


def check(code):
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout == "as it should be\n", done.stderr


def test_whoever_has_kept_one_calls_what_stands_in_its_place():
    check(CODE)


def test_classes_of_c_take_other_methods_too():
    code = """
import io, sqlite3, threading
from gpumem_magic.isolation.builtin_functions import set_in_class

lock, lines = threading.Lock(), []

def often():
    for _ in range(3000):
        with lock:
            pass

def listed(owner, name):
    original = getattr(owner, name)
    def call(*args):
        lines.append(name)
        return original(*args)
    set_in_class(owner, name, call)

often()
listed(type(lock), "__enter__")
often()
assert lines == ["__enter__"] * 3000
lines.clear()
listed(io.FileIO, "__init__")
class Raw(io.FileIO):
    pass
open("/dev/null").close(), Raw("/dev/null").close()
assert lines == ["__init__"] * 2
try:
    io.FileIO.__init__ = print
except TypeError:
    pass
else:
    raise AssertionError("it was changed for good")
try:
    set_in_class(object(), "x", 1)
except AttributeError:
    print("as it should be")
"""
    check(code)


def test_a_collection_of_garbage_may_call_one_at_any_moment():
    code = """
import gc, os, time
from gpumem_magic.isolation.builtin_functions import redirect

functions = [getattr(time, f"{name}{end}") for end in ("", "_ns")
             for name in ("time", "monotonic", "perf_counter", "process_time", "thread_time")]
gc.callbacks.append(lambda *phase: [function() for function in functions])
for count, function in enumerate(functions):
    gc.collect()
    gc.set_threshold(1 + count)
    redirect(function, lambda original: lambda: -original())
    gc.set_threshold(700)
assert all(function() < 0 for function in functions)
print("as it should be")
"""
    check(code)
