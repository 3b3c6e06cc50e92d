"""Attacks on files, through Python's own functions."""

from __future__ import annotations

ATTACKS = {
    "open to write": """
        with open('a.txt', 'w') as f:
            f.write('lost')
    """,
    "open a new file": """
        with open('new.txt', 'w') as f:
            f.write('new')
    """,
    "what is written can be read": """
        from pathlib import Path
        Path('log.txt').write_text('x' * 5)
        Path('a.txt').write_text('mine')
        assert open('log.txt').read() == 'xxxxx'
        assert open('a.txt').read() == 'mine'
    """,
    "append": "open('a.txt', 'a').write('more')",
    "read and write": """
        with open('b.bin', 'r+b') as f:
            f.seek(7)
            f.write(b'??')
    """,
    "exclusive creation": "open('x.txt', 'x').close()",
    "a file outside of the working folder": "open(outside + '/kept.txt', 'w').write('gone')",
    "a file in the home folder": """
        import os
        open(os.path.expanduser('~/.settings'), 'w').write('x')
    """,
    "a file of the temporary folder": "open(tmp + '/old.tmp', 'a').write('x')",
    "os open and write": """
        import os
        f = os.open('a.txt', os.O_WRONLY)
        os.write(f, b'XX')
        os.close(f)
    """,
    "os open truncating": """
        import os
        os.close(os.open('a.txt', os.O_RDWR | os.O_TRUNC))
    """,
    "os open at a folder": """
        import os
        d = os.open('sub', os.O_RDONLY)
        f = os.open('c.txt', os.O_WRONLY | os.O_TRUNC, dir_fd=d)
        os.write(f, b'x')
    """,
    "os open of a new file without a name": {
        "attack": """
            import os
            f = os.open('.', os.O_TMPFILE | os.O_RDWR)
            os.write(f, b'x')
            os.link(f'/proc/self/fd/{f}', 'named.txt', follow_symlinks=True)
        """,
    },
    "truncate": """
        import os
        os.truncate('a.txt', 2)
    """,
    "remove": """
        import os
        os.remove('a.txt')
        assert not os.path.exists('a.txt')
    """,
    "unlink at a folder": """
        import os
        d = os.open('sub', os.O_RDONLY)
        os.unlink('c.txt', dir_fd=d)
    """,
    "path unlink": """
        from pathlib import Path
        for p in Path('sub').glob('*'):
            p.unlink()
    """,
    "rename": """
        import os
        os.rename('a.txt', 'z.txt')
    """,
    "replace": """
        import os
        os.replace('a.txt', 'sub/c.txt')
    """,
    "path rename of a folder": """
        from pathlib import Path
        Path('sub').rename('other')
    """,
    "make and remove folders": """
        import os
        os.makedirs('p/q/r')
        os.mkdir('s')
        os.rmdir('s')
    """,
    "remove a tree": """
        import shutil
        shutil.rmtree('sub')
    """,
    "copy": """
        import shutil
        shutil.copy('a.txt', 'sub/c.txt')
        shutil.copytree('sub', 'copied')
    """,
    "move": """
        import shutil
        shutil.move('a.txt', outside)
    """,
    "hard link": """
        import os
        os.link('a.txt', 'linked.txt')
    """,
    "write through a hard link that was there": {
        "setup": "import os; os.link('a.txt', 'linked.txt')",
        "attack": "open('linked.txt', 'a').write('x')",
    },
    "symbolic link": """
        import os
        os.symlink('a.txt', 'symbolic.txt')
    """,
    "write through a symbolic link that was there": {
        "setup": "import os; os.symlink(outside + '/kept.txt', 'symbolic.txt')",
        "attack": "open('symbolic.txt', 'w').write('x')",
    },
    "mode": """
        import os
        os.chmod('a.txt', 0o600)
        os.chmod('sub', 0o700)
    """,
    "mode of an open file": """
        import os
        f = open('a.txt')
        os.fchmod(f.fileno(), 0o640)
    """,
    "owner": """
        import os
        os.chown('a.txt', 12345, 12345)
    """,
    "times": """
        import os
        os.utime('a.txt', (1, 1))
    """,
    "times of an open file": """
        import os
        f = open('a.txt')
        os.utime(f.fileno(), (1, 1))
    """,
    "touch": """
        from pathlib import Path
        Path('a.txt').touch()
        Path('t.txt').touch()
    """,
    "a pipe with a name": """
        import os
        os.mkfifo('fifo')
    """,
    "temporary file kept": """
        import tempfile
        f = tempfile.NamedTemporaryFile(delete=False)
        f.write(b'x')
    """,
    "temporary folder kept": """
        import tempfile
        d = tempfile.mkdtemp()
        open(d + '/x', 'w').close()
    """,
    "temporary file in a folder of the user": """
        import tempfile
        n, f = tempfile.mkstemp(dir='sub')
    """,
    "zip": """
        import zipfile
        with zipfile.ZipFile('z.zip', 'w') as z:
            z.write('a.txt')
    """,
    "unpack over files": {
        "setup": """
            import shutil
            archive = shutil.make_archive('packed', 'zip', 'sub')
        """,
        "attack": "import shutil; shutil.unpack_archive(archive, '.')",
    },
    "a memory map written": """
        import mmap
        f = open('b.bin', 'r+b')
        m = mmap.mmap(f.fileno(), 0)
        m[:4] = b'XXXX'
        m.flush()
    """,
    "numpy save": """
        import numpy as np
        np.save('n.npy', np.ones(3))
        np.savetxt('a.txt', np.ones(3))
    """,
    "json and pickle": """
        import json, pickle
        with open('j.json', 'w') as f:
            json.dump([1], f)
        pickle.dump([1], open('p.pkl', 'wb'))
        assert json.load(open('j.json')) == [1]
    """,
    "shelve": """
        import shelve
        with shelve.open('shelf') as s:
            s['x'] = 1
    """,
    "in place with fileinput": """
        import fileinput
        for line in fileinput.input('a.txt', inplace=True):
            print(line.upper())
    """,
    "send a file into a file": """
        import os
        a, b = open('a.txt', 'rb'), open('b.bin', 'r+b')
        os.sendfile(b.fileno(), a.fileno(), 0, 4)
    """,
    "copy a range": """
        import os
        a, b = open('a.txt', 'rb'), open('b.bin', 'r+b')
        os.copy_file_range(a.fileno(), b.fileno(), 4)
    """,
    "write through proc": """
        f = open('a.txt')
        open(f'/proc/self/fd/{f.fileno()}', 'w').write('gone')
    """,
    "write through dev fd": """
        f = open('a.txt')
        open(f'/dev/fd/{f.fileno()}', 'a').write('gone')
    """,
    "into shared memory": "open('/dev/shm/isolation_attack', 'w').write('x')",
    "with an opener": """
        import os
        open('a.txt', 'w', opener=lambda path, flags: os.open(path, flags)).write('x')
    """,
    "bytes as a path": """
        import os
        os.remove(b'a.txt')
        open(b'n.txt', 'wb').write(b'x')
    """,
    "a path through folders": "open('sub/../../work/a.txt', 'a').write('x')",
    "by predict": {"attack": "open('a.txt', 'w').write('lost')", "by_function": True},
    "by fit": {
        "attack": """
            import torch
            n = 4
            open('a.txt', 'w').write('lost')
            x = torch.ones(n, 1 << 20, device='cuda')
        """,
        "options": "--fit n",
    },
    "by advise": {
        "attack": """
            import torch
            x = torch.ones(1 << 20, device='cuda').double()
            open('a.txt', 'w').write(str(x.mean().item()))
            open('l.txt', 'a').write('x')
        """,
        "options": "--advise",
    },
    "for several cards": {
        "attack": "import os; os.remove('a.txt'); open('b.bin', 'ab').write(b'x')",
        "options": "--gpu T4,L4,A100-40GB",
    },
    "threads that write into the same folders": {
        "setup": "import os; names = [f'd{n}/e/f' for n in range(100)]\nfor n in names: os.makedirs(n)",
        "attack": """
            import sys, threading
            sys.setswitchinterval(1e-6)
            failed, gate = [], threading.Barrier(4)
            def write(own):
                for name in names:
                    gate.wait()
                    try:
                        open(f'{name}/{own}', 'w').close()
                    except OSError as error:
                        failed.append(error)
            threads = [threading.Thread(target=write, args=(own,)) for own in range(4)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
            assert not failed, failed[:3]
        """,
        "says": "fits: ",
    },
    "errors that are caught": {
        "attack": """
            import os
            def fails(kind, call, *paths):
                try:
                    call(*paths)
                except OSError as error:
                    assert type(error) is kind, (call, error)
            fails(IsADirectoryError, os.remove, 'sub')
            fails(IsADirectoryError, os.rename, 'a.txt', 'sub')
            fails(NotADirectoryError, os.rename, 'sub', 'a.txt')
            fails(NotADirectoryError, os.rmdir, 'a.txt')
            fails(OSError, os.rmdir, 'sub')
        """,
        "says": "fits: ",
        "real": False,
    },
    "a replaced open": {
        "setup": "from unittest import mock\nlive_p = mock.patch('builtins.open', mock.mock_open()); live_p.start()",
        "attack": "open('a.txt', 'w').write('x'); live_p.stop()\n"
        "with open('a.txt', 'a') as f: f.write('x')",
        "after": "live_p.stop()",
        "error": None,
        "not_sent": "a mock",
    },
}


def test_nothing_outside_changes(attack, play):
    play(attack)
