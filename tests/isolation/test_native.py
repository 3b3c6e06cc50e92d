"""Attacks by C, C++ and Rust: libraries that write themselves, and the C library by ctypes."""

from __future__ import annotations

LIBC = "import ctypes, os; libc = ctypes.CDLL(None, use_errno=True)"
OLD_DATABASE = """
    import sqlite3
    db = sqlite3.connect('old.db')
    db.execute('create table t(x)')
    db.execute('insert into t values (1)')
    db.commit()
"""

ATTACKS = {
    "torch save": """
        import torch
        torch.save({'w': torch.ones(3)}, 'a.txt')
        torch.save(torch.ones(3, device='cuda'), 'w.pt', _use_new_zipfile_serialization=False)
    """,
    "torch save and load": """
        import torch
        torch.save({'w': torch.arange(5.0)}, 'w.pt')
        assert torch.load('w.pt')['w'].shape == (5,)
    """,
    "torch save into an old buffer": {
        "setup": "import io, torch; b = io.BytesIO(b'old')",
        "attack": "torch.save(torch.ones(3), b)",
    },
    "torch load of a file that is there": {
        "setup": "import torch; torch.save(torch.arange(3.0), 'w.pt')",
        "attack": "w = torch.load('w.pt', mmap=True); w.zero_()",
        "after": "assert torch.load('w.pt').tolist() == [0, 1, 2]",
    },
    "PyTorchFileWriter": """
        import torch
        w = torch._C.PyTorchFileWriter('a.txt')
        w.write_record('x', b'abc', 3)
        w.write_end_of_file()
    """,
    "torch script": {
        "setup": "import torch; net = torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2))",
        "attack": "net.save('net.pt')\ntorch.jit.save(net, 'a.txt')",
    },
    "torch package": """
        import torch, torch.package
        with torch.package.PackageExporter('p.pt') as out:
            out.save_pickle('m', 'x.pkl', [1, 2])
    """,
    "torch shared file": """
        import torch
        x = torch.from_file('b.bin', shared=True, size=16, dtype=torch.uint8)
        x.fill_(7)
    """,
    "torch shared file of before": {
        "setup": """
            import torch
            x = torch.from_file('b.bin', shared=True, size=16, dtype=torch.uint8)
            x[0] = 1
        """,
        "attack": "x.fill_(7)\nx.numpy()[:] = 8",
    },
    "torch shared memory of before": {
        "setup": "import torch; x = torch.ones(1000).share_memory_()",
        "attack": "x.zero_()\nx.numpy()[:] = 5",
        "after": "assert x.sum() == 1000",
    },
    "torch shared memory": {
        "attack": """
            import torch
            x = torch.ones(1000).share_memory_(); x.zero_()
            assert x.is_shared() and not torch.ones(1).is_shared() and x.sum() == 0
            m = torch.nn.Linear(2, 2); m.share_memory()
            assert m.weight.is_shared() and torch.UntypedStorage._new_shared(8).is_shared()
        """,
        "says": "Fits",
    },
    "torch profiler": """
        import torch
        with torch.profiler.profile() as p:
            torch.ones(3) + 1
        p.export_chrome_trace('trace.json')
    """,
    "a store in a file": """
        import torch.distributed as dist
        store = dist.FileStore('store', 1)
        store.set('x', '1')
    """,
    "numpy tofile": "import numpy as np; np.ones(3).tofile('a.txt')",
    "numpy tofile of an old file": {
        "setup": "import numpy as np; f = open('b.bin', 'r+b')",
        "attack": "np.ones(3).tofile(f)",
    },
    "numpy memory map": """
        import numpy as np
        m = np.memmap('b.bin', np.uint8, 'r+')
        m[:] = 0
        m.flush()
    """,
    "numpy memory map of before": {
        "setup": "import numpy as np; m = np.memmap('b.bin', np.uint8, 'r+')",
        "attack": "m[:] = 0; m.flush()",
        "after": "assert m[255] == 255\nm[0] = 9\nm.flush()\nassert open('b.bin', 'rb').read(1) == b'\\t'",
    },
    "numpy archive": "import numpy as np; np.savez_compressed('n.npz', a=np.ones(3)); np.ones(2).dump('d')",
    "sqlite old connection": {
        "setup": OLD_DATABASE,
        "attack": """
            db.execute('insert into t values (2)'); db.commit()
            raise ValueError(f"{db.execute('select sum(x) from t').fetchone()[0]} in all")
        """,
        "after": "assert db.execute('select count(*) from t').fetchone() == (1,)",
        "error": "3 in all",
    },
    "sqlite old connection deep in an object": {
        "setup": OLD_DATABASE
        + "\n    class Store: pass\n    store = Store(); store.db = db; del db",
        "attack": """
            store.db.executemany('insert into t values (?)', [(2,), (3,)]); store.db.commit()
            assert store.db.execute('select sum(x) from t').fetchone() == (6,)
            assert sqlite3.connect('old.db').execute('select sum(x) from t').fetchone() == (6,)
        """,
        "after": "assert store.db.execute('select sum(x) from t').fetchone() == (1,)",
    },
    "sqlite transaction left open": {
        "setup": OLD_DATABASE + "\n    change = db.execute('insert into t values (2)')",
        "attack": "db.rollback(); db.execute('drop table t'); db.close()",
        "after": """
            db.commit()
            assert db.execute('select sum(x) from t').fetchone() == (3,)
        """,
    },
    "sqlite new connection": {
        "setup": OLD_DATABASE,
        "attack": """
            new = sqlite3.connect('old.db')
            new.execute('delete from t')
            new.commit()
            assert new.execute('select count(*) from t').fetchone() == (0,)
        """,
        "after": "assert db.execute('select count(*) from t').fetchone() == (1,)",
    },
    "sqlite new file": """
        import sqlite3
        db = sqlite3.connect('new.db')
        db.execute('create table t(x)')
        db.commit()
    """,
    "sqlite in memory": {
        "setup": "import sqlite3; db = sqlite3.connect(':memory:'); c = db.execute('create table t(x)')",
        "attack": "db.execute('insert into t values (2)'); c.execute('create table u(y)')",
        "after": "assert db.execute('select count(*) from t').fetchone() == (0,)",
    },
    "sqlite shared in memory": {
        "setup": """
            import sqlite3
            where = 'file:shared?mode=memory&cache=shared'
            db = sqlite3.connect(where, uri=True)
            c = db.execute('create table t(x)')
        """,
        "attack": """
            other = sqlite3.connect(where, uri=True)
            other.execute('insert into t values (2)')
            other.commit()
        """,
        "after": "assert db.execute('select count(*) from t').fetchone() == (0,)",
    },
    "sqlite backup and attach": {
        "setup": OLD_DATABASE,
        "attack": """
            db.execute("attach 'more.db' as more")
            db.execute('create table more.t as select * from t')
            db.commit()
            db.backup(sqlite3.connect('copy.db'))
        """,
    },
    "compressed files": """
        import bz2, gzip, lzma
        for kind, name in ((bz2, 'a.txt'), (gzip, 'g.gz'), (lzma, 'x.xz')):
            with kind.open(name, 'wb') as f:
                f.write(b'x')
    """,
    "pictures": """
        import PIL.Image, numpy as np
        PIL.Image.fromarray(np.zeros((4, 4), np.uint8)).save('p.png')
    """,
    "the history of readline": "import readline; readline.write_history_file('a.txt')",
    "a dump of tracebacks": {
        "setup": "import faulthandler; f = open('a.txt', 'a')",
        "attack": "faulthandler.dump_traceback(f)",
    },
    "a dump of tracebacks later": {
        "setup": "import faulthandler; f = open('a.txt', 'a')",
        "attack": "faulthandler.dump_traceback_later(0.3, file=f)",
        "wait": 0.6,
    },
    "profiles and traces": """
        import cProfile, marshal, tracemalloc, py_compile
        p = cProfile.Profile()
        p.dump_stats('a.txt')
        marshal.dump([1], open('m.bin', 'wb'))
        tracemalloc.start()
        tracemalloc.take_snapshot().dump('t.bin')
        py_compile.compile('counted.py')
    """,
    "tables of pandas": {
        "attack": "import pandas; pandas.DataFrame({'x': [1]}).to_csv('a.txt')",
        "needs": "pandas",
    },
    "tensors of safetensors": {
        "attack": """
            import torch, safetensors.torch
            safetensors.torch.save_file({'x': torch.ones(3)}, 'a.txt')
        """,
        "needs": "safetensors",
    },
    "a tokenizer": {
        "attack": """
            import tokenizers
            tokenizers.Tokenizer(tokenizers.models.BPE()).save('a.txt')
        """,
        "needs": "tokenizers",
    },
    "arrays of h5py": {
        "attack": "import h5py; h5py.File('a.h5', 'w')['x'] = [1, 2]",
        "needs": "h5py",
    },
    "libc open and write": {
        "setup": LIBC,
        "attack": "f = libc.open(b'a.txt', os.O_WRONLY | os.O_TRUNC); libc.write(f, b'gone', 4)",
    },
    "libc stream": {
        "setup": LIBC + "; libc.fopen.restype = ctypes.c_void_p; call = ctypes.c_void_p",
        "attack": """
            f = call(libc.fopen(b'new.txt', b'w'))
            if f.value:
                libc.fputs(b'new', f)
                libc.fclose(f)
        """,
    },
    "libc unlink": {"setup": LIBC, "attack": "libc.unlink(b'a.txt'); libc.rmdir(b'sub')"},
    "libc rename": {"setup": LIBC, "attack": "libc.rename(b'a.txt', b'z.txt')"},
    "libc mode and times": {
        "setup": LIBC,
        "attack": "libc.chmod(b'a.txt', 0o600); libc.utimes(b'b.bin', None)",
    },
    "libc owner": {"setup": LIBC, "attack": "libc.chown(b'a.txt', 1234, 1234)"},
    "libc folders and links": {
        "setup": LIBC,
        "attack": "libc.mkdir(b'made', 0o755); libc.symlink(b'a.txt', b's'); libc.link(b'a.txt', b'l')",
    },
    "libc truncate": {"setup": LIBC, "attack": "libc.truncate(b'a.txt', ctypes.c_long(1))"},
    "libc system": {"setup": LIBC, "attack": "libc.system(b'touch new.txt; rm a.txt')"},
    "system call by number": {
        "setup": LIBC,
        "attack": "libc.syscall(87, b'a.txt')  # unlink on x86-64",
    },
    "libc prints": {"setup": LIBC, "attack": "libc.puts(b'said by C'); libc.fflush(None)"},
    "libc writes to standard streams": {
        "setup": LIBC,
        "attack": "libc.write(1, b'out', 3); libc.write(2, b'err', 3)",
    },
    "libc environment": {
        "setup": LIBC + "\nlibc.getenv.restype = ctypes.c_char_p",
        "attack": "libc.setenv(b'OF_C', b'1', 1)",
        "after": "assert libc.getenv(b'OF_C') is None",
    },
    "libc folder and mask": {"setup": LIBC, "attack": "libc.chdir(b'sub'); libc.umask(0)"},
    "libc descriptors": {
        "setup": LIBC + "\nf, g = open('a.txt'), open('data.csv')",
        "attack": "libc.dup2(f.fileno(), g.fileno()); libc.close(f.fileno())",
        "after": "assert f.read(5) == 'alpha' and g.read(3) == 'x,y'",
    },
    "libc moves an offset": {
        "setup": LIBC + "\nf = open('a.txt')",
        "attack": "libc.lseek(f.fileno(), ctypes.c_long(3), 0)",
        "after": "assert f.read(5) == 'alpha'",
    },
    "libc shared memory": {
        "setup": LIBC,
        "attack": "libc.shm_open(b'/isolation_c', os.O_CREAT | os.O_RDWR, 0o600)",
    },
    "memory set": {
        "setup": """
            import ctypes, torch, numpy as np
            x, n, b = torch.ones(8), np.ones(8), bytearray(b'safe')
        """,
        "attack": """
            ctypes.memset(x.data_ptr(), 1, 32)
            ctypes.memset(n.ctypes.data, 1, 64)
            (ctypes.c_char * 4).from_buffer(b)[:] = b'gone'
        """,
        "after": "assert x.sum() == 8 and n.sum() == 8 and b == b'safe'",
    },
    "memory set on a shared map": {
        "setup": """
            import ctypes, mmap
            f = open('b.bin', 'r+b')
            m = mmap.mmap(f.fileno(), 0)
            at = ctypes.addressof(ctypes.c_char.from_buffer(m))
        """,
        "attack": "ctypes.memset(at, 1, 64)",
        "not_sent": "memory by its address",
    },
    "an integer of Python": {
        "setup": "import ctypes; number = 123456789012",
        "attack": "ctypes.c_uint32.from_address(id(number) + 24).value = 5",
        "after": "assert number == 123456789012",
    },
}


def test_nothing_outside_changes(attack, play):
    play(attack)
