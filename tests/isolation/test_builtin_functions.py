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


def test_whoever_has_kept_one_calls_what_stands_in_its_place():
    done = subprocess.run(
        [sys.executable, "-c", CODE], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout == "as it should be\n", done.stderr
