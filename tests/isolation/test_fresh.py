"""A spread of the attacks of the other files where predictions use a fresh process; all of them
take half an hour of a processor: GPUMEM_MAGIC_PROCESS=fresh pytest tests/isolation."""

from __future__ import annotations

from . import (
    test_captured,
    test_descriptors,
    test_files,
    test_finalizers,
    test_loggers,
    test_modules,
    test_native,
    test_network,
    test_objects,
    test_process_state,
    test_processes,
    test_resources,
    test_shell,
    test_tensors,
    test_threads,
)

TABLES = {
    module.__name__.rpartition("_")[2]: module.ATTACKS
    for module in (
        *(test_captured, test_descriptors, test_finalizers, test_loggers, test_shell, test_files),
        *(test_modules, test_native, test_network, test_objects),
        *(test_process_state, test_processes, test_resources, test_tensors, test_threads),
    )
}
EVERY = 60
ALWAYS = {
    *("descriptors all descriptors closed", "finalizers shared memory dropped"),
    "modules a cache of the notebook",
}
"""What only this way could do."""

TOO_LONG = {"resources ten in a row", "files by fit", "tensors by fit"}
"""A fresh process takes seconds."""


def fresh(attack):
    fields = {"attack": attack} if isinstance(attack, str) else attack
    return {**fields, "environ": {"GPUMEM_MAGIC_PROCESS": "fresh"}}


def imported(code):
    """A call into a module whose import does this, in each process anew."""
    setup = f"""
        from pathlib import Path
        Path('anew.py').write_text({code!r} + chr(10) + 'def call(): pass')
        import sys, types
        anew = sys.modules['anew'] = types.ModuleType('anew')
        exec('def call(): pass', vars(anew))
        from anew import call
    """
    return fresh({"setup": setup, "attack": "call()", "real": False})


ATTACKS = {
    f"{table} {name}": fresh(attack)
    for table, attacks in TABLES.items()
    for place, (name, attack) in enumerate(attacks.items())
    if f"{table} {name}" in ALWAYS or (place % EVERY == 0 and f"{table} {name}" not in TOO_LONG)
} | {
    "names with an underscore, and pickled ones": fresh(
        {
            "setup": "_step = [3]\nclass Thing: pass",
            "attack": "import pickle; _step.remove(3); x = pickle.loads(pickle.dumps(Thing()))",
            "says": "fits: ",
        }
    ),
    "an object that ends the process as it is sent": fresh(
        {
            "setup": """
                kept = [1]
                class Ending:
                    def __reduce__(self):
                        raise SystemExit(2)
                ending = Ending()
                view = memoryview(bytearray(b'a'))
            """,
            "attack": "kept.append(2)",
            "says": "sent to its process: ending,\n      view.",
        }
    ),
    "an import that writes": imported("open('a.txt', 'w').write('gone')"),
    "an import that starts a process": imported("import os; os.system('touch new')"),
    "an import that connects": {
        **imported("import socket; socket.create_connection(('127.0.0.1', 9))"),
        "error": "NameError",
        "says": "call (ConnectionRefusedError",
    },
    "objects that stand for others": fresh(
        {
            "setup": """
                import multiprocessing, weakref
                from unittest.mock import MagicMock
                kept = [1]
                class Standing:
                    @property
                    def __class__(self): return int
                    def __reduce_ex__(self, protocol): return kept.append(0) or (int, ())
                class Ending:
                    def __setstate__(self, state): raise SystemExit(2)
                standing, mocked, old = Standing(), MagicMock(), Ending()
                proxy, ended = weakref.proxy(old), Ending()
                ended.x = 1
                manager = multiprocessing.Manager()
                shared = manager.dict(a=1)
                pair = [kept, kept]
            """,
            "attack": """
                assert not {'standing', 'mocked', 'proxy', 'ended', 'shared'} & {*globals()}
                assert pair[0] is pair[1] is kept
                kept.append(2)
            """,
            "after": "assert kept == [1] and shared['a'] == 1\nmanager.shutdown()",
            "says": "ended (SystemExit: 2), shared (Conn",
        }
    ),
    "modules of modules": fresh(
        {
            "setup": "import xml.dom.minidom, concurrent.futures as futures\nkept = []",
            "attack": "kept.append(xml.dom.minidom.parseString('<a/>')); futures.thread",
        }
    ),
    "an object that writes as it arrives": fresh(
        {
            "setup": """
                class Arriving:
                    kept = 1
                    def __setstate__(self, state):
                        open('a.txt', 'w').write('gone')
                arriving = Arriving()
                arriving.kept = 2
            """,
            "attack": "arriving.kept = 3",
        }
    ),
}


def test_nothing_outside_changes(attack, play):
    play(attack)
