"""Attacks on plain objects: containers, instances, iterators half used, random numbers."""

from __future__ import annotations


def used(made: str, left: str, attack: str = "next(i)\nx = list(i)", first: str = "n = next(i)"):
    """An iterator `i` of which the setup took something; `left`: what a real cell still finds."""
    return {"setup": f"{made}\n{first}", "attack": attack, "after": f"assert {left}"}


ATTACKS = {
    "a list": {
        "setup": "a = [3, 1, [2]]; b = a",
        "attack": "a.append(4); a.sort(key=str); a[0] = None; b[-1] = 0; del a[1]",
        "after": "assert a == [3, 1, [2]] and b is a",
    },
    "a list in itself": {
        "setup": "a = [1]; a.append(a)",
        "attack": "a[1].clear()",
        "after": "assert a[1] is a and a[0] == 1",
    },
    "a dict": {
        "setup": "d = {'x': {'y': [1]}}",
        "attack": "d['x']['y'].append(2); d.update(z=1); d.popitem(); d['x'].clear()",
        "after": "assert d == {'x': {'y': [1]}}",
    },
    "an ordered dict and a counter": {
        "setup": "from collections import *; o = OrderedDict(a=1, b=2); c = Counter('aab')",
        "attack": "o.move_to_end('a'); c.update('bbb'); c.subtract('a')",
        "after": "assert list(o) == ['a', 'b'] and c['b'] == 1",
    },
    "a default dict": {
        "setup": "from collections import defaultdict; d = defaultdict(list)",
        "attack": "d['x'].append(1); d['y']; d.default_factory = None",
        "after": "assert not d and d['z'] == []",
    },
    "a chain of maps": {
        "setup": "from collections import ChainMap; a = {}; c = ChainMap(a, {'x': 1})",
        "attack": "c['x'] = 2; c.maps.reverse()",
        "after": "assert a == {} and c['x'] == 1",
    },
    "a set": {
        "setup": "s = {1, 2}; t = s",
        "attack": "s.add(3); t.discard(1); s |= {9}; s.pop()",
        "after": "assert s == {1, 2} and t is s",
    },
    "a deque": {
        "setup": "from collections import deque; d = deque([1, 2, 3], maxlen=3)",
        "attack": "d.append(4); d.rotate(); d.popleft()",
        "after": "assert list(d) == [1, 2, 3]",
    },
    "a heap": {
        "setup": "import heapq; h = [1, 5, 3]",
        "attack": "heapq.heappush(h, 0); heapq.heappop(h)",
        "after": "assert h == [1, 5, 3]",
    },
    "bytes that change": {
        "setup": "import array; b = bytearray(b'abc'); m = memoryview(b); a = array.array('i', [1, 2])",
        "attack": "b[0] = 0; m[1] = 0; a.append(3); a[0] = 9; m.release()",
        "after": "assert m.tobytes() == b'abc' and a.tolist() == [1, 2]",
    },
    "packed bytes": {
        "setup": "import struct, ctypes; b = bytearray(8); c = (ctypes.c_int * 2)(1, 2)",
        "attack": "struct.pack_into('q', b, 0, -1); c[0] = 9; ctypes.memset(c, 0, 8)",
        "after": "assert b == bytes(8) and list(c) == [1, 2]",
    },
    "text and bytes in memory": {
        "setup": "import io; b, s = io.BytesIO(b'abc'), io.StringIO('abc'); n = b.read(1), s.read(1)",
        "attack": "b.read(); s.write('x'); b.truncate(0); s.close()",
        "after": "assert b.read() == b'bc' and s.read() == 'bc'",
    },
    "arrays of numpy": {
        "setup": "import numpy as np; a = np.arange(6.0); v = a[::2]; o = np.array([[1], None], object)",
        "attack": "a += 1; v[:] = 0; np.add.at(a, [0], 5); o[0].append(2); a.setflags(write=False)\na.shape = 2, 3",
        "after": "assert a.tolist() == [0, 1, 2, 3, 4, 5] and o[0] == [1]\na[0] = 3\nassert v[0] == 3",
    },
    "an array sorted and resized": {
        "setup": "import numpy as np; a = np.array([3, 1, 2]); r = np.array([1, 2])",
        "attack": "a.sort(); a.partition(1); r.resize((9,), refcheck=False); np.random.shuffle(a)",
        "after": "assert a.tolist() == [3, 1, 2] and r.shape == (2,)",
    },
    "an instance": {
        "setup": """
            class Thing:
                count = 0
                def __init__(self):
                    self.values = [1]
                def add(self):
                    Thing.count += 1
                    self.values.append(2)
                    self.late = True
            thing = Thing()
        """,
        "attack": "thing.add(); Thing.new = 1; thing.__class__ = type('Other', (Thing,), {})",
        "after": "assert Thing.count == 0 and thing.values == [1] and type(thing) is Thing",
    },
    "slots and data": {
        "setup": """
            from dataclasses import dataclass, field
            @dataclass
            class Data:
                n: int = 1
                many: list = field(default_factory=list)
            class Slots:
                __slots__ = ('x',)
            data, slots = Data(), Slots()
            slots.x = [1]
        """,
        "attack": "data.n = 2; data.many.append(1); slots.x.append(2); Data.__init__.__defaults__ = (9, [])",
        "after": "assert data == Data() and slots.x == [1]",
    },
    "a frozen instance": {
        "setup": "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass D:\n    n: int\nd = D(1)",
        "attack": "object.__setattr__(d, 'n', 2)",
        "after": "assert d.n == 1",
    },
    "a property with a side": {
        "setup": """
            seen = []
            class P:
                @property
                def x(self):
                    seen.append('read')
                    return 1
                @x.setter
                def x(self, value):
                    seen.append(value)
            p = P()
        """,
        "attack": "p.x; p.x = 3",
        "after": "assert seen == []",
    },
    "a closure": {
        "setup": """
            def counter():
                n = 0
                def step():
                    nonlocal n
                    n += 1
                    return n
                return step
            step = counter()
            x = step()
        """,
        "attack": "step(); step()",
        "after": "assert step() == 2",
    },
    "a default that changes": {
        "setup": "def f(x, seen=[]):\n    seen.append(x)\n    return len(seen)\nx = f(1)",
        "attack": "f(2); f.count = 1; f.__defaults__ = ([],)",
        "after": "assert f(3) == 2 and not hasattr(f, 'count')",
    },
    "a function rewritten": {
        "setup": "def f(): return 1\ndef g(): return 2",
        "attack": "f.__code__ = g.__code__; f.__name__ = 'h'",
        "after": "assert f() == 1 and f.__name__ == 'f'",
    },
    "global names": {
        "setup": "n, total = 1, [0]\ndef step():\n    global n\n    n += 1\n    total[0] += n",
        "attack": "step(); step(); globals()['m'] = 3; del total",
        "after": "assert n == 1 and total == [0] and 'm' not in globals()",
    },
    "the last exception": {
        "setup": "held = None\ntry:\n    1 / 0\nexcept Exception as e:\n    held = e",
        "attack": "held.add_note('x'); held.args = (1,); held.__traceback__ = None",
        "after": "assert held.__traceback__ and not hasattr(held, '__notes__')",
    },
    "types of enum and typing": {
        "setup": "import enum\nclass E(enum.Enum):\n    A = 1",
        "attack": "E._member_map_['B'] = 2; E._value2member_map_[2] = 5; E.A.extra = 1",
        "after": "assert len(E) == 1 and not hasattr(E.A, 'extra')",
    },
    "a generator": used("i = (n * n for n in range(5))", "list(i) == [1, 4, 9, 16]"),
    "a generator that is sent to": used(
        "def g():\n    x = []\n    while True:\n        x.append((yield len(x)))\ni = g()",
        "i.send(1) == 1",
        attack="i.send(1); i.send(2); i.throw(ValueError) if 0 else 0",
    ),
    "an iterator of a list": used("i = iter([1, 2, 3])", "list(i) == [2, 3]"),
    "iterators of other things": {
        "setup": "d = {1: 2, 3: 4}; i = [iter(d), iter({5, 6}), iter('ab'), reversed([1, 2]), iter(d.items())]\n"
        "n = [next(each) for each in i]",
        "attack": "x = [list(each) for each in i]",
        "after": "assert [len(list(each)) for each in i] == [1, 1, 1, 1, 1]",
    },
    "zip": used("i = zip([1, 2, 3], 'abc')", "list(i) == [(2, 'b'), (3, 'c')]"),
    "map and filter": used("i = map(str, filter(None, [1, 0, 2]))", "list(i) == ['2']", attack="list(i)"),
    "enumerate": used("i = enumerate('abc')", "list(i) == [(1, 'b'), (2, 'c')]"),
    "count": used("import itertools\ni = itertools.count(5)", "next(i) == 6", attack="next(i); next(i)"),
    "cycle and chain": used(
        "from itertools import *\ni = chain([1, 2], cycle([3, 4]))",
        "list(islice(i, 4)) == [2, 3, 4, 3]",
        attack="x = list(islice(i, 5))",
    ),
    "tee and groupby": used(
        "from itertools import *\ni, j = tee(range(4)); g = groupby('aabb')",
        "list(i) == [1, 2, 3] and list(j) == [0, 1, 2, 3] and len(list(g)) == 2",
        attack="list(i); next(j); next(g)",
    ),
    "an iterator by a call": used("v = [3, 2, 1, 0]\ni = iter(v.pop, 3)", "list(i) == [1, 2]"),
    "matches of a pattern": used("import re\ni = re.finditer('.', 'abc')", "len(list(i)) == 2"),
    "lines of a file": used("i = open('a.txt')", "list(i) == ['beta\\n', 'gamma\\n']"),
    "rows of a table": used(
        "import csv\nf = open('data.csv')\ni = csv.reader(f)",
        "list(i) == [['1', '2'], ['3', '4'], ['5', '6']]",
    ),
    "rows of a table by name": used(
        "import csv\nf = open('data.csv')\ni = csv.DictReader(f)", "[r['x'] for r in i] == ['3', '5']"
    ),
    "files of a folder": used(
        "import glob, os, pathlib\ni = pathlib.Path('.').rglob('*.txt'); w = os.walk('.'); n = next(w)",
        "len(list(i)) == 2 and len(list(w)) == 1",
        attack="list(i); list(w)",
    ),
    "a loader of data": {
        "setup": """
            import torch
            data = torch.utils.data.TensorDataset(torch.arange(8.0))
            i = iter(torch.utils.data.DataLoader(data, 2))
            n = next(i)
        """,
        "attack": "x = next(i)[0].cuda(); rest = list(i)",
        "after": "assert [b[0].tolist() for b in i] == [[2, 3], [4, 5], [6, 7]]",
    },
    "a loader that shuffles": {
        "setup": """
            import torch
            data = torch.utils.data.TensorDataset(torch.arange(8.0))
            g = torch.Generator().manual_seed(1)
            loader = torch.utils.data.DataLoader(data, 2, shuffle=True, generator=g)
        """,
        "attack": "x = [b.cuda() for b, in loader]",
        "after": "assert sorted(sum((b.tolist() for b, in loader), [])) == list(range(8))",
    },
    "a loader with state": {
        "setup": """
            import torch
            class Stream(torch.utils.data.IterableDataset):
                read = 0
                def __iter__(self):
                    for n in range(4):
                        self.read += 1
                        yield float(n)
            stream = Stream()
            loader = torch.utils.data.DataLoader(stream, 2)
        """,
        "attack": "x = [b.cuda() for b in loader]",
        "after": "assert stream.read == 0",
    },
    "random": "import random; random.seed(3); random.random(); random.shuffle([1, 2, 3])",
    "random drawn": "import random; x = random.random(), random.gauss(0, 1)",
    "random of numpy": "import numpy as np; np.random.seed(3); np.random.rand(3)",
    "random of numpy drawn": "import numpy as np; x = np.random.randn(3)",
    "random of torch": "import torch; torch.manual_seed(3); torch.rand(3)",
    "random of torch drawn": "import torch; x = torch.randn(3); y = torch.randperm(5)",
    "random of the device": "import torch; x = torch.randn(3, device='cuda'); y = torch.nn.Dropout()(x)",
    "seeds of the device": "import torch; torch.cuda.manual_seed_all(3); torch.cuda.set_rng_state("
    "torch.zeros(16, dtype=torch.uint8))",
    "random states set": {
        "setup": "import random, torch, numpy as np\n"
        "states = random.getstate(), np.random.get_state(), torch.get_rng_state()\n"
        "x = random.random(), np.random.rand(), torch.rand(1)",
        "attack": "random.setstate(states[0]); np.random.set_state(states[1]); torch.set_rng_state(states[2])",
    },
    "sources of random numbers": {
        "setup": "import random, torch, numpy as np\n"
        "r, g, n, o = random.Random(1), torch.Generator(), np.random.default_rng(1), np.random.RandomState(1)",
        "attack": "r.random(); torch.rand(2, generator=g); n.normal(); o.rand(); g.manual_seed(9)",
        "after": "assert r.random() == random.Random(1).random()\n"
        "assert n.normal() == np.random.default_rng(1).normal()",
    },
    "a source of the device": {
        "setup": "import torch; g = torch.Generator(device='cuda').manual_seed(1)\n"
        "first = torch.rand(2, device='cuda', generator=torch.Generator(device='cuda').manual_seed(1))",
        "attack": "torch.rand(2, device='cuda', generator=g); g.seed()",
        "after": "assert torch.rand(2, device='cuda', generator=g).tolist() == first.tolist()",
    },
    "a fork of random states": {
        "setup": "import torch; c = torch.random.fork_rng(devices=[]); c.__enter__()",
        "attack": "torch.rand(2); c.__exit__(None, None, None)",
    },
    "a loader with workers half way": {
        "setup": """
            import torch
            data, how = torch.arange(7.0), {"multiprocessing_context": "fork"}
            i = iter(torch.utils.data.DataLoader(data, 2, num_workers=1, **how))
            n = next(i)
        """,
        "attack": "x = [b.cuda() for b in i]; assert [len(b) for b in x] == [2, 2, 1]",
        "after": "assert [b.tolist() for b in i] == [[2, 3], [4, 5], [6]]; i._shutdown_workers()",
        "says": "fits: ",
        "not_sent": "a loader's workers",
    },
}  # fmt: skip


def test_nothing_outside_changes(attack, play):
    play(attack)
