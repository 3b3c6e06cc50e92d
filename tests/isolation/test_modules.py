"""Attacks on modules: first imports, caches, counters, registries, names replaced in libraries."""

from __future__ import annotations

CACHED = """
    from pathlib import Path
    text = '''
    import functools, torch
    @functools.lru_cache
    def table(n):
        return torch.arange(float(n), device='cuda')
    KNOWN = {}
    def known(n):
        if n not in KNOWN:
            KNOWN[n] = torch.ones(n, device='cuda')
        return KNOWN[n]
    class Net(torch.nn.Module):
        made = 0
        cache = None
        def __init__(self):
            super().__init__()
            type(self).made += 1
            Net.cache = torch.ones(2, device='cuda')
    REGISTRY = []
    def register(f):
        REGISTRY.append(f)
        return f
    '''
    import textwrap
    x = Path('mine.py').write_text(textwrap.dedent(text))
    import mine
    x = mine.table(2)
"""

ATTACKS = {
    "a module that makes tensors": {
        "attack": "import weights; x = weights.SCALE * 2",
        "after": "import weights\nassert weights.SCALE.tolist() == [0, 1, 2, 3]\n"
        "assert weights.HOST.sum() == 2",
    },
    "names of a module that makes tensors": {
        "attack": "from weights import *\nx = SCALE * 2",
        "after": "from weights import SCALE\nassert SCALE.tolist() == [0, 1, 2, 3]",
    },
    "a module imported by a function": {
        "attack": """
            import importlib
            w = importlib.import_module('weights')
            v = __import__('counted')
            v.call(3)
        """,
        "after": "import weights, counted\nassert weights.SCALE.tolist() == [0, 1, 2, 3]\n"
        "assert counted.total == 0",
    },
    "a package": {
        "setup": """
            from pathlib import Path
            Path('pack').mkdir()
            x = Path('pack/__init__.py').write_text('from . import inner')
            x = Path('pack/inner.py').write_text("import torch; T = torch.ones(2, device='cuda')")
        """,
        "attack": "import pack\nx = pack.inner.T * 2",
        "after": "import pack\nassert pack.inner.T.tolist() == [1, 1]",
    },
    "a module written in the cell": """
        from pathlib import Path
        Path('fresh.py').write_text('x = 1')
        import importlib
        importlib.invalidate_caches()
        import fresh
        assert fresh.x == 1
    """,
    "a file run as a module": "import runpy; x = runpy.run_path('weights.py')['SCALE']",
    "a module of the standard library": "import wave, xml.dom.minidom, colorsys",
    "a module reloaded": {
        "setup": "import counted; x = counted.call(5)",
        "attack": "import importlib; importlib.reload(counted)",
        "after": "assert counted.total == 5 and counted.calls == [5]",
    },
    "a module forgotten": {
        "setup": "import counted; x = counted.call(5)",
        "attack": "import sys; del sys.modules['counted']\nimport counted as again\nagain.call(1)",
        "after": "import counted as again\nassert again is counted and again.total == 5",
    },
    "a module made up": "import sys, types; sys.modules['made_up'] = types.ModuleType('made_up')",
    "counters of a module": {
        "setup": "import counted; x = counted.call(5)",
        "attack": "counted.call(2)\ncounted.call(3)",
        "after": "assert counted.total == 5 and counted.calls == [5]\nassert counted.call(1) == 6",
    },
    "a counter by a name taken from it": {
        "setup": "from counted import call, calls",
        "attack": "call(2); calls.append(9)",
        "after": "assert calls == [] and call(1) == 1",
    },
    "a cache of tensors": {
        "setup": CACHED,
        "attack": "y = mine.table(4) * 2",
        "after": "assert mine.table(4).tolist() == [0, 1, 2, 3] and mine.table(2).tolist() == [0, 1]",
    },
    "a cache emptied": {
        "setup": CACHED,
        "attack": "mine.table.cache_clear()",
        "after": "assert mine.table(2) is x",
    },
    "a dictionary of tensors": {
        "setup": CACHED,
        "attack": "y = mine.known(3) + 1",
        "after": "assert mine.KNOWN == {} and mine.known(3).tolist() == [1, 1, 1]",
    },
    "attributes of a class of a module": {
        "setup": CACHED,
        "attack": "net = mine.Net().cuda()",
        "after": "assert mine.Net.made == 0 and mine.Net.cache is None",
    },
    "a registry of a module": {
        "setup": CACHED,
        "attack": "@mine.register\ndef f(): pass",
        "after": "assert mine.REGISTRY == []",
    },
    "names set in a module": {
        "setup": CACHED,
        "attack": "mine.known = print; mine.new = 1; del mine.Net",
        "after": "assert mine.Net and mine.known(1).tolist() == [1]",
    },
    "a cache of the notebook": {
        "setup": """
            import functools, torch
            @functools.cache
            def mask(n):
                return torch.ones(n, device='cuda').tril()[None] if n > 5 else torch.ones(n, device='cuda')
        """,
        "attack": "x = mask(3) * 2",
        "after": "assert mask.cache_info().currsize == 0 and mask(3).tolist() == [1, 1, 1]",
    },
    "a cached property": {
        "setup": """
            import functools, torch
            class Model:
                @functools.cached_property
                def weight(self):
                    return torch.ones(2, device='cuda')
            model = Model()
        """,
        "attack": "x = model.weight + 1",
        "after": "assert 'weight' not in vars(model) and model.weight.tolist() == [1, 1]",
    },
    "a function of torch replaced": {
        "attack": "import torch; torch.nn.functional.relu = lambda x: x; torch.manual_seed = print",
        "after": "import torch\nassert torch.nn.functional.relu(torch.tensor([-1.0])).item() == 0",
    },
    "a method of tensors": {
        "attack": "import torch; torch.Tensor.twice = lambda self: self * 2; torch.Tensor.sum = None",
        "after": "import torch\nassert not hasattr(torch.Tensor, 'twice')",
    },
    "a method of modules": {
        "attack": "import torch; torch.nn.Linear.forward = lambda self, x: x",
        "after": "import torch\nassert torch.nn.Linear(2, 3)(torch.ones(2)).shape == (3,)",
    },
    "a function of the device": "import torch; torch.cuda.synchronize = torch.cuda.empty_cache = print",
    "builtins": {
        "attack": "import builtins; builtins.print = len; builtins.mine = 1; del builtins.ascii",
        "after": "assert ascii('x')\nprint('x', 'y')",
    },
    "functions of the system": "import os, shutil; os.remove = print; shutil.rmtree = print; os.mine = 1",
    "functions of numpy": "import numpy as np; np.ones = np.zeros; np.random.seed = print",
    "time": {
        "attack": "import time; time.time = lambda: 0; time.sleep = print",
        "after": "import time\nassert time.time() > 1e9",
    },
    "finders of modules": "import sys; sys.meta_path.insert(0, None); sys.path_hooks.clear()",
    "the path of modules": {
        "attack": "import sys; sys.path.insert(0, 'sub'); sys.path.append('/nowhere')",
    },
    "the cache of paths": {
        "setup": "import sys; n = len(sys.path_importer_cache)",
        "attack": "sys.path_importer_cache.clear()",
        "after": "assert len(sys.path_importer_cache) >= n",
    },
    "pickling": {
        "setup": "import copyreg\nclass Thing: pass",
        "attack": "copyreg.pickle(Thing, lambda thing: (Thing, ()))",
        "after": "assert Thing not in copyreg.dispatch_table",
    },
    "codecs": {
        "setup": "import codecs",
        "attack": "codecs.register(lambda n: codecs.lookup('utf-8') if n == 'mine' else None)",
        "after": """
            try:
                codecs.lookup('mine')
            except LookupError:
                pass
            else:
                raise AssertionError('registered')
        """,
    },
    "handlers of errors of codecs": {
        "setup": "import codecs",
        "attack": "codecs.register_error('mine', lambda e: ('?', e.end))",
        "after": """
            try:
                codecs.lookup_error('mine')
            except LookupError:
                pass
            else:
                raise AssertionError('registered')
        """,
    },
    "abstract classes": {
        "setup": "import collections.abc\nclass Thing: pass",
        "attack": "collections.abc.Sized.register(Thing)",
        "after": "assert not issubclass(Thing, collections.abc.Sized)",
    },
    "single dispatch": {
        "setup": "import functools\n@functools.singledispatch\ndef f(x): return 'any'",
        "attack": "f.register(int, lambda x: 'int')\nf(3)",
        "after": "assert f(3) == 'any'",
    },
    "subclasses": {
        "setup": """
            class Base:
                known = []
                def __init_subclass__(cls):
                    Base.known.append(cls)
        """,
        "attack": "class Sub(Base): pass",
        "after": "assert Base.known == [] and Base.__subclasses__() == []",
    },
    "an operator of torch": {
        "setup": "import torch",
        "attack": """
            @torch.library.custom_op('isolation::twice', mutates_args=())
            def twice(x: torch.Tensor) -> torch.Tensor:
                return x * 2
            twice(torch.ones(2))
        """,
        "after": "assert not hasattr(torch.ops.isolation, 'twice')",
    },
    "a library of torch": {
        "setup": "import torch",
        "attack": "lib = torch.library.Library('isolation', 'DEF'); lib.define('f(Tensor x) -> Tensor')",
        "after": "assert not hasattr(torch.ops.isolation, 'f')",
    },
    "a kernel of torch replaced": {
        "setup": "import torch",
        "attack": """
            lib = torch.library.Library('aten', 'IMPL')
            lib.impl('cosh', lambda x: x * 0, 'CPU')
        """,
        "after": "assert torch.cosh(torch.zeros(1)).item() == 1",
    },
    "safe globals": {
        "setup": "import torch\nclass Thing: pass",
        "attack": "torch.serialization.add_safe_globals([Thing])",
    },
    "nodes of trees": {
        "setup": "import torch.utils._pytree as pytree\nclass Thing: pass",
        "attack": "pytree.register_pytree_node(Thing, lambda t: ([], None), lambda c, _: Thing())",
        "after": "assert Thing not in pytree.SUPPORTED_NODES",
    },
    "warnings told once": {
        "setup": "import warnings\nfrom counted import call",
        "attack": "warnings.warn('mine', UserWarning)",
        "after": """
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter('default')
                exec("warnings.warn('mine')", {'warnings': warnings})
            assert len(seen) == 1
        """,
        "real": False,
    },
    "the notebook as a module": {
        "setup": "import __main__; x = 1",
        "attack": "__main__.x = 2; __main__.y = 3",
        "after": "assert x == 1 and 'y' not in globals()",
        "not_sent": "the notebook's module",
    },
    "variables of a context": {
        "setup": "import contextvars; v = contextvars.ContextVar('v', default=1)",
        "attack": "v.set(2)",
        "after": "assert v.get() == 1",
    },
    "json and its defaults": {
        "setup": "import json",
        "attack": "json.JSONEncoder.default = lambda self, x: 'x'; json._default_encoder.indent = 3",
        "after": "assert json.dumps([1]) == '[1]'",
    },
    "the settings of matplotlib": {
        "setup": "import matplotlib; matplotlib.use('agg'); import matplotlib.pyplot as plt",
        "attack": "matplotlib.rcParams['lines.linewidth'] = 9\nplt.style.use('ggplot')\nplt.rc('font', size=3)",
    },
    "figures of before": {
        "setup": "import matplotlib; matplotlib.use('agg'); import matplotlib.pyplot as plt\n"
        "f, a = plt.subplots(); l, = a.plot([1, 2])",
        "attack": "a.plot([3, 4]); l.set_data([0], [0]); a.set_title('gone'); f.add_axes([0, 0, 1, 1])",
        "after": "assert len(a.lines) == 1 and len(f.axes) == 1 and a.get_title() == ''\n"
        "assert l.get_ydata().tolist() == [1, 2]",
    },
    "figures closed": {
        "setup": "import matplotlib; matplotlib.use('agg'); import matplotlib.pyplot as plt\n"
        "f, a = plt.subplots()",
        "attack": "plt.close('all')",
        "after": "assert plt.get_fignums() == [1]",
    },
    "figures of the cell": {
        "setup": "import matplotlib; matplotlib.use('agg'); import matplotlib.pyplot as plt",
        "attack": "plt.plot([1, 2]); plt.savefig('f.png'); plt.figure(); plt.show(); plt.switch_backend('svg')",
        "after": "assert plt.get_fignums() == [] and plt.get_backend() == 'agg'",
    },
    "colours": {
        "setup": "import matplotlib; from matplotlib.colors import ListedColormap",
        "attack": "matplotlib.colormaps.register(ListedColormap(['r', 'b'], name='mine'))",
        "after": "assert 'mine' not in matplotlib.colormaps",
    },
    "functions of the system replaced before": {
        "setup": """
            from unittest import mock
            names = "os.pipe os.read shutil.rmtree shutil.disk_usage"
            live_p = [mock.patch(name) for name in names.split()]
            for each in live_p: each.start()
        """,
        "attack": "import torch; x = torch.ones(1, device='cuda')",
        "after": "for each in live_p: each.stop()",
        "says": "fits: ",
        "real": False,
        "not_sent": "a mock",
    },
}  # fmt: skip


def test_nothing_outside_changes(attack, play):
    play(attack)
