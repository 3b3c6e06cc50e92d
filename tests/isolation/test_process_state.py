"""Attacks on what a process has once: sys, environment, folder, signals, locale, warnings, gc."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

ATTACKS = {
    "arguments": "import sys; sys.argv[:] = ['x']; sys.argv.append('y')",
    "output replaced": {
        "attack": "import io, sys; sys.stdout = sys.stderr = io.StringIO(); print('hidden')",
        "after": "print('seen')",
        "real": False,
    },
    "the original output": "import io, sys; sys.__stdout__ = sys.__stderr__ = io.StringIO()",
    "input replaced": "import io, sys; sys.stdin = io.StringIO('x')",
    "output redirected": {
        "setup": "import contextlib, io; s = io.StringIO(); r = contextlib.redirect_stdout(s)",
        "attack": "r.__enter__(); print('leak')",
        "after": "assert s.getvalue() == ''",
    },
    "hooks": """
        import sys
        sys.displayhook = sys.excepthook = sys.unraisablehook = sys.breakpointhook = print
    """,
    "a trace": "import sys, threading; sys.settrace(lambda *_: None); threading.settrace(print)",
    "a profile": "import sys; sys.setprofile(lambda *_: None)",
    "an audit hook": {
        "setup": "import sys; seen = []",
        "attack": "sys.addaudithook(lambda *event: seen.append(event[0]))",
        "after": "x = open('a.txt').read()\nassert seen == []",
    },
    "an audit hook of before": {
        "setup": "import sys; seen = []; on = [True]\n"
        "sys.addaudithook(lambda e, a: seen.append(1) if on and e == 'mine' else None)",
        "attack": "sys.audit('mine'); on.clear()",
        "after": "assert seen == [] and on == [True]",
    },
    "the limit of recursion": "import sys; sys.setrecursionlimit(5000)",
    "the switch interval": "import sys; sys.setswitchinterval(0.5)",
    "digits of integers": {
        "attack": "import sys; sys.set_int_max_str_digits(9999)",
    },
    "flags for bytecode": "import sys; sys.dont_write_bytecode = not sys.dont_write_bytecode",
    "prompts and tracebacks": "import sys; sys.ps1 = '>'; sys.tracebacklimit = 0",
    "hooks of asynchronous generators": "import sys; sys.set_asyncgen_hooks(print, print)",
    "tracking of coroutines": "import sys; sys.set_coroutine_origin_tracking_depth(5)",
    "flags of libraries": "import os, sys; sys.setdlopenflags(os.RTLD_NOW | os.RTLD_GLOBAL)",
    "a name in the environment": """
        import os
        os.environ['ISOLATION_NEW'] = '1'
        os.environ['PATH'] += ':/nowhere'
        os.environ.pop('HOME')
        assert os.environ['ISOLATION_NEW'] == '1'
    """,
    "the environment below": {
        "setup": "import os, subprocess",
        "attack": "os.putenv('ISOLATION_NEW', '1'); os.unsetenv('HOME')",
        "after": "assert 'ISOLATION_NEW' not in subprocess.check_output(['env'], text=True)",
    },
    "the environment replaced": "import os; os.environ = {}; os.environb.clear()",
    "settings of the allocator": {
        "attack": "import os; os.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'expandable_segments:True'",
    },
    "the folder": {
        "attack": "import os; os.chdir('sub'); open('c.txt').read()",
        "after": "assert open('sub/c.txt').read() == 'inner\\n'",
    },
    "the folder by a descriptor": "import os; os.fchdir(os.open('sub', os.O_RDONLY))",
    "the folder for a while": {
        "setup": "import contextlib; c = contextlib.chdir('sub')",
        "attack": "c.__enter__()",
    },
    "the mask": "import os; os.umask(0o777)",
    "handlers of signals": """
        import signal
        signal.signal(signal.SIGUSR2, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    """,
    "interrupts ignored by libc": "import ctypes; ctypes.CDLL(None).signal(12, 1)",
    "the mask of signals": "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])",
    "the wakeup of signals": {
        "setup": "import os; r, w = os.pipe(); os.set_blocking(w, False)",
        "attack": "import signal; signal.set_wakeup_fd(w)",
    },
    "the locale": {
        "attack": "import locale; locale.setlocale(locale.LC_ALL, 'POSIX'); "
        "locale.setlocale(locale.LC_CTYPE, 'C.UTF-8')",
        "setup": "import locale; x = locale.setlocale(locale.LC_ALL, 'C.UTF-8')",
    },
    "filters of warnings": """
        import warnings
        warnings.simplefilter('error')
        warnings.filterwarnings('ignore', 'x')
        warnings.showwarning = print
    """,
    "warnings reset": "import warnings; warnings.resetwarnings()",
    "warnings caught from before": {
        "setup": "import warnings; c = warnings.catch_warnings(record=True); seen = c.__enter__()",
        "attack": "warnings.warn('leak'); c.__exit__(None, None, None)",
        "after": "assert seen == []",
    },
    "gc": "import gc; gc.disable(); gc.set_threshold(1, 2, 3); gc.callbacks.append(print)",
    "gc and what it tells": "import gc; gc.set_debug(gc.DEBUG_UNCOLLECTABLE)",
    "decimals": "import decimal; decimal.getcontext().prec = 5; decimal.setcontext(decimal.Context(3))",
    "the time zone": {
        "attack": "import os, time; os.environ['TZ'] = 'Asia/Tokyo'; time.tzset()",
    },
    "limits": """
        import resource
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_NOFILE, (999, 999))
    """,
    "priority and processors": "import os; os.nice(5); os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])",
    "groups of processes": "import os; os.setpgid(0, 0) if os.getpgrp() != os.getpid() else os.setsid()",
    "the session": {"attack": "import os; os.setsid()", "real": False},
    "the user": {"attack": "import os; os.setegid(65534); os.seteuid(65534)"},
    "tracebacks of faults": "import faulthandler; faulthandler.enable(); faulthandler.unregister(10)",
    "traces of memory": {
        "attack": "import tracemalloc; tracemalloc.start()",
        "after": "import tracemalloc\nassert not tracemalloc.is_tracing()",
    },
    "time-outs of sockets": {
        "attack": "import socket; socket.setdefaulttimeout(3)",
        "after": "import socket\nassert socket.getdefaulttimeout() is None",
    },
    "temporary folders": "import tempfile; tempfile.tempdir = outside",
    "the start of processes": """
        import multiprocessing
        multiprocessing.set_start_method('spawn', force=True)
    """,
    "loops": """
        import asyncio
        asyncio.set_event_loop(asyncio.new_event_loop())
        asyncio.set_event_loop_policy(asyncio.DefaultEventLoopPolicy())
    """,
    "the name of the process": "import ctypes; ctypes.CDLL(None).prctl(15, b'renamed', 0, 0, 0)",
    "no new privileges": "import ctypes; ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)",
    "errors of numpy": {
        "attack": "import numpy as np; np.seterr(all='raise'); np.set_printoptions(precision=1)",
        "after": "import numpy as np\nassert str(np.array([0.123])) == '[0.123]'",
    },
    "MIME types": {
        "attack": "import mimetypes; mimetypes.add_type('x/mine', '.mine')",
        "after": "import mimetypes\nassert mimetypes.guess_type('a.mine')[0] is None",
    },
    "rounding of floats": {
        "setup": "import ctypes; libm = ctypes.CDLL('libm.so.6')",
        "attack": "libm.fesetround(0x800)",
        "after": "assert libm.fegetround() == 0",
    },
    "denormal numbers": "import torch; torch.set_flush_denormal(True)",
    "the errno of C": {
        "setup": "import ctypes; x = ctypes.set_errno(3)",
        "attack": "ctypes.set_errno(9)",
        "after": "assert ctypes.get_errno() == 3",
    },
}  # fmt: skip


def test_nothing_outside_changes(attack, play):
    play(attack)


def test_the_first_prediction_of_a_process_leaves_its_environment():
    code = """
        import os
        from gpumem_magic.predict import predict
        before = dict(os.environ)
        predict("import torch", {}, gpu="T4")
        print(sorted(before.items() ^ os.environ.items()))
    """
    environ = {k: v for k, v in os.environ.items() if k != "TORCHINDUCTOR_CACHE_DIR"}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    assert subprocess.check_output(command, env=environ, text=True).strip() == "[]"
