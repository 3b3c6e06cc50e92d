"""Attacks on IPython: its history, magics, settings, shell commands, displays."""

from __future__ import annotations

ATTACKS = {
    "the last value": {
        "setup": "[1, 2]",
        "attack": "_.append(3)\n5",
        "after": "assert _ == [1, 2]",
    },
    "outputs and inputs": {
        "setup": "7",
        "attack": "Out[2] = 'gone'; Out.clear(); In.clear(); _oh[99] = 1",
        "after": "assert Out[2] == 7 and len(In) > 2",
    },
    "an expression at the end": {"attack": "6 * 7", "real": False},
    "the folder": {"attack": "%cd sub", "after": "assert open('sub/c.txt').read() == 'inner\\n'"},
    "folders on a stack": {
        "setup": "%cd -q sub\n%cd -q ..\n%pushd sub",
        "attack": """
            import os
            here = os.getcwd()
            assert get_ipython().run_line_magic('dirs', '') == [os.path.dirname(here)]
            %popd
            %pushd sub
            assert os.getcwd() == here and open('c.txt').read() == 'inner\\n'
            %popd
            %cd sub
            %cd -
            assert os.getcwd() == os.path.dirname(here)
        """,
        "after": "assert open('c.txt').read() == 'inner\\n'\n%popd\nassert open('sub/c.txt')",
    },
    "a folder by a name that it has": {
        "setup": "%bookmark before sub",
        "attack": "%bookmark mine sub\n%cd -b mine\n%cd -q ..\n%cd -b before\nopen('c.txt').read()",
        "after": "%cd -b before\nassert open('c.txt').read() == 'inner\\n'",
    },
    "a name removed by a magic": {
        "setup": "x, y = [1], [2]",
        "attack": "%xdel x\n%reset_selective -f ^y$\nassert not {'x', 'y'} & {*globals()}",
    },
    "the environment": "%env ISOLATION_NEW=1\n%set_env ISOLATION_NEWER=2",
    "a file by a magic": "%%writefile new.txt\nleak",
    "a file by a magic after code": "get_ipython().run_cell_magic('writefile', 'a.txt', 'leak')",
    "a command": {"attack": "!touch new.txt; rm a.txt", "says": "not executed"},
    "a command whose output is kept": "x = !touch new.txt; ls",
    "a command that tells of the card": {
        "attack": """
            used = !nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits
            int(used[0])
        """,
        "real": False,
        "says": "not executed",
    },
    "commands in their own cell": "%%bash\ntouch new.txt",
    "a script in the background": {
        "attack": "%%script --bg bash\nsleep 0.2; touch late.txt",
        "wait": 0.5,
    },
    "commands by functions": "get_ipython().system('touch new.txt'); get_ipython().getoutput('touch n2')",
    "an alias": "%alias mine touch %l\n%mine new.txt",
    "an alias of the shell": "%mkdir made\n%rm a.txt",
    "an install": {"attack": "%pip --version", "real": False, "error": None},
    "names by the shell": {
        "setup": "ip = get_ipython(); x = 1",
        "attack": "ip.user_ns['x'] = 2; ip.push({'y': 3}); ip.drop_by_id({'x': 2}); ip.ex('z = 1')",
        "after": "assert x == 1 and 'y' not in globals() and 'z' not in globals()",
    },
    "a cell by the shell": {
        "setup": "ip = get_ipython()",
        "attack": "ip.run_cell('y = 1; open(\"new.txt\", \"w\").close()')",
        "after": "assert 'y' not in globals()",
    },
    "a cell by the shell in the history": {
        "setup": "ip = get_ipython()",
        "attack": "ip.run_cell('y = 1', store_history=True)\nip.history_manager.store_inputs(99, 'x')",
    },
    "displays": {
        "setup": "from IPython.display import display, HTML; d = display(HTML('one'), display_id='d')",
        "attack": "display(HTML('leak')); d.update(HTML('two')); clear = __import__('IPython').display\n"
        "clear.clear_output()",
        "real": False,
    },
    "the next input": "get_ipython().set_next_input('leak')",
    "a payload": "get_ipython().payload_manager.write_payload({'source': 'x', 'text': 'leak'})",
    "events": """
        ip = get_ipython()
        ip.events.register('post_run_cell', lambda *_: open('new.txt', 'w').close())
        ip.events.callbacks['pre_run_cell'].clear()
    """,
    "magics": {
        "attack": """
            from IPython.core.magic import register_line_magic
            @register_line_magic
            def mine(line):
                return 1
            %mine
        """,
        "not_sent": "the shell",
    },
    "a magic replaced": {
        "setup": "ip = get_ipython()",
        "attack": "ip.register_magic_function(lambda line, cell=None: None, 'line_cell', 'gpucheck')",
        "after": "r = ip.find_cell_magic('gpucheck')\nassert r.__module__.startswith('gpumem_magic')",
    },
    "extensions": "%load_ext autoreload\n%autoreload 2",
    "our own extension": "%unload_ext gpumem_magic",
    "our own extension again": {"attack": "%reload_ext gpumem_magic", "real": False},
    "our own settings": {
        "setup": "m = get_ipython().magics_manager.registry['GpuMemMagics']; s = m.monitor.settings",
        "attack": "%config GpuMem.interval = 0.7\n%config GpuMem.plot = False",
        "after": "assert s.interval != 0.7 and s.plot",
    },
    "our own card": {
        "attack": "%gpumem --device A100-40GB",
        "error": None,
    },
    "our own measuring": {"attack": "%gpumem --on", "real": False, "error": None},
    "a prediction in a prediction": {
        "setup": "x = [1]",
        "attack": "%%gpucheck\nx.append(2)\nopen('new.txt', 'w').close()",
        "real": False,
        "error": None,
    },
    "a prediction by the function": """
        from gpumem_magic import predict
        predict('open("new.txt", "w").close()', {}, 'T4')
        open('newer.txt', 'w').close()
    """,
    "a measured cell": {
        "setup": "x = [1]",
        "attack": "%%gpumem --save report.json\nimport torch\ny = torch.ones(9, device='cuda'); x.append(2)",
        "after": "assert x == [1]",
        "error": None,
    },
    "settings of the shell": """
        ip = get_ipython()
        %config InteractiveShell.ast_node_interactivity = 'all'
        %precision 3
        %xmode Plain
        %pdb on
        ip.autoawait = not ip.autoawait
    """,
    "settings of figures": {"attack": "%matplotlib agg\n%config InlineBackend.figure_format = 'svg'", "error": None},
    "names reset": {
        "setup": "x = 1",
        "attack": "%reset -f",
        "after": "assert x == 1",
        "error": None,
    },
    "names selected and deleted": {
        "setup": "x = y = [1]",
        "attack": "%reset_selective -f x\n%xdel y",
        "after": "assert x is y",
    },
    "names stored": {
        "attack": "x = 5\n%load_ext storemagic\n%store x",
        "after": "x = 'real'\n%load_ext storemagic\n%store -r\nassert x == 'real'",
        "error": None,
    },
    "history into files": "%history -f h.txt\n%save -f s.py 1",
    "a log of the session": "%logstart -o session.log\nx = 1",
    "a macro": "%macro -q mine 1",
    "a script": {
        "setup": "from pathlib import Path; n = Path('s.py').write_text('y = 5; open(\"new.txt\", \"w\").close()')",
        "attack": "%run s.py",
        "after": "assert 'y' not in globals()",
    },
    "output captured": "%%capture out\nprint('x')\nopen('new.txt', 'w').close()",
    "time": "%time open('new.txt', 'w').close()\n%timeit -n1 -r1 open('a.txt', 'a').write('x')",
    "time of a cell": "%%time\nx = 1\nopen('new.txt', 'w').close()",
    "profiled": "%prun -q -D prof.dat x = 1",
    "transformers": """
        import ast
        ip = get_ipython()
        ip.input_transformers_cleanup.append(lambda lines: lines)
        ip.input_transformers_post.clear()
        ip.ast_transformers.append(ast.NodeTransformer())
    """,
    "handlers of errors": """
        ip = get_ipython()
        ip.set_custom_exc((ValueError,), lambda *_: None)
        ip.showtraceback = print
    """,
    "formatters": """
        ip = get_ipython()
        ip.display_formatter.formatters['text/plain'].for_type(int, lambda *_: 'leak')
    """,
    "the shell's own functions": {
        "setup": "ip = get_ipython(); run = ip.run_cell",
        "attack": "ip.run_cell = ip.run_line_magic = ip.system = print; type(ip).mine = 1",
        "after": "assert ip.run_cell == run and not hasattr(type(ip), 'mine')",
    },
    "no shell any more": {
        "attack": "from IPython.core.interactiveshell import InteractiveShell as S; S.clear_instance()",
        "after": "assert get_ipython() is get_ipython().instance()",
    },
    "hidden names": "get_ipython().user_ns_hidden['mine'] = 1; get_ipython().user_ns_hidden.pop('exit')",
    "hooks of the shell": {
        "setup": "ip = get_ipython(); n = str(ip.hooks)",
        "attack": "ip.set_hook('editor', print); ip.hooks.clear()",
        "after": "assert str(ip.hooks) == n",
    },
    "output that floods": {"attack": "for n in range(20000): print('x' * 50)", "real": False},
}  # fmt: skip


def test_nothing_outside_changes(attack, play):
    play(attack)
