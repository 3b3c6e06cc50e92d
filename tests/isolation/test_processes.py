"""Attacks by processes: new ones, those of before, and signals to the user's own."""

from __future__ import annotations

SAID = {"says": "not executed"}
VICTIM = "import os, subprocess; p = subprocess.Popen(['sleep', '60']); me = os.getpid()"
ALIVE = "assert p.poll() is None\np.kill()\np.wait()"

ATTACKS = {
    "run": {"attack": "import subprocess; subprocess.run(['touch', 'new.txt'])", **SAID},
    "run in a shell": {
        "attack": "import subprocess; subprocess.run('rm a.txt; echo x > b.bin', shell=True)",
        **SAID,
    },
    "a job not waited for": "import subprocess; p = subprocess.Popen(['sleep', '60'])",
    "a job that acts later": {
        "attack": "import subprocess; p = subprocess.Popen('sleep 0.3; touch late', shell=True)",
        "wait": 0.6,
    },
    "a job of its own session": {
        "attack": """
            import subprocess
            p = subprocess.Popen('sleep 0.3; touch late', shell=True, start_new_session=True)
        """,
        "wait": 0.6,
    },
    "output of a job": "import subprocess; subprocess.check_output(['touch', 'new.txt'])",
    "a handler of children that end": {
        "setup": """
            import signal
            heard = []
            signal.signal(signal.SIGCHLD, lambda *_: heard.append(1))
        """,
        "attack": "import subprocess; subprocess.run(['true'])",
        "wait": 0.3,
    },
    "a loop that hears of children that end": {
        "setup": """
            import os, signal
            r, w = os.pipe()
            os.set_blocking(w, False)
            signal.set_wakeup_fd(w)
            signal.signal(signal.SIGCHLD, lambda *_: None)
        """,
        "attack": "import subprocess; subprocess.run(['true'])",
        "wait": 0.3,
    },
    "os system": {"attack": "import os; os.system('touch new.txt')", **SAID},
    "os system in the background": {
        "attack": "import os; os.system('(sleep 0.3; touch late) &')",
        "wait": 0.6,
    },
    "popen": {"attack": "import os; os.popen('touch new.txt').read()", **SAID},
    "fork": """
        import os
        if os.fork() == 0:
            open('new.txt', 'w').write('x')
            os._exit(0)
        os.wait()
    """,
    "fork that goes on": {
        "attack": """
            import os, time
            if os.fork() == 0:
                time.sleep(0.3)
                open('late.txt', 'w').write('x')
                os._exit(0)
        """,
        "wait": 0.6,
    },
    "a daemon": {
        "attack": """
            import os, time
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    for n in range(30):
                        time.sleep(0.02)
                        open(outside + '/kept.txt', 'a').write('x')
                os._exit(0)
        """,
        "wait": 0.6,
    },
    "fork of a terminal": """
        import os
        pid, f = os.forkpty()
        if pid == 0:
            open('new.txt', 'w').write('x')
            os._exit(0)
    """,
    "spawn": """
        import os
        os.waitpid(os.posix_spawn('/bin/touch', ['touch', 'new.txt'], os.environ), 0)
        os.spawnlp(os.P_WAIT, 'touch', 'touch', 'newer.txt')
    """,
    "exec": "import os; os.execvp('touch', ['touch', 'new.txt'])",
    "a process": """
        import multiprocessing
        def go():
            open('new.txt', 'w').write('x')
        p = multiprocessing.get_context('fork').Process(target=go)
        p.start()
        p.join()
    """,
    "a process not joined": """
        import multiprocessing, time
        p = multiprocessing.get_context('fork').Process(target=time.sleep, args=(60,))
        p.start()
    """,
    "a spawned process": """
        import multiprocessing, os
        p = multiprocessing.get_context('spawn').Process(target=os.mkdir, args=('made',))
        p.start()
        p.join(5)
    """,
    "a queue of before": {
        "setup": """
            import multiprocessing
            q = multiprocessing.get_context('fork').SimpleQueue()
            q.put('one')
        """,
        "attack": "q.get(); q.put('leak'); q.put('leak')",
        "after": "assert q.get() == 'one' and q.empty()",
    },
    "a queue with a thread": {
        "setup": """
            import multiprocessing, time
            q = multiprocessing.get_context('fork').Queue()
            q.put('one')
            time.sleep(0.1)
        """,
        "attack": "q.get(timeout=2); q.put('leak'); q.close()",
        "after": "assert q.get(timeout=2) == 'one' and q.empty()",
        "wait": 0.1,
    },
    "values and arrays": {
        "setup": """
            import multiprocessing
            v, a = multiprocessing.Value('i', 3), multiprocessing.Array('d', [1, 2])
        """,
        "attack": "v.value = 9\na[0] = 9",
        "after": "assert v.value == 3 and a[:] == [1, 2]",
    },
    "locks between processes": {
        "setup": """
            import multiprocessing
            lock, s, e = multiprocessing.Lock(), multiprocessing.Semaphore(2), multiprocessing.Event()
        """,
        "attack": "lock.acquire(); s.acquire(); e.set()",
        "after": "assert lock.acquire(False) and s.get_value() == 2 and not e.is_set()",
    },
    "shared memory of before": {
        "setup": """
            from multiprocessing.shared_memory import SharedMemory
            m = SharedMemory(create=True, size=64)
            m.buf[0] = 5
        """,
        "attack": "m.buf[0] = 9\nSharedMemory(m.name).buf[1] = 9",
        "after": "assert m.buf[0] == 5 and m.buf[1] == 0\nm.close(); m.unlink()",
    },
    "shared memory unlinked": {
        "setup": """
            from multiprocessing.shared_memory import SharedMemory
            m = SharedMemory(create=True, size=64)
        """,
        "attack": "m.close(); m.unlink()",
        "after": "again = SharedMemory(m.name)\nassert again.buf[0] == 0\nagain.close(); m.close(); m.unlink()",
    },
    "shared memory left": """
        from multiprocessing.shared_memory import SharedMemory
        m = SharedMemory(create=True, size=64, name='isolation_left')
        m.buf[0] = 1
    """,
    "a manager": {
        "setup": """
            import multiprocessing
            live_manager = multiprocessing.get_context('fork').Manager()
            things = live_manager.list([1])
        """,
        "attack": "things.append(2)",
        "after": "assert things[:] == [1]\nlive_manager.shutdown()",
        "not_sent": "a manager's proxy",
    },
    "the user's job ended": {"setup": VICTIM, "attack": "p.terminate(); p.wait(timeout=2)", "after": ALIVE},
    "the user's job killed": {
        "setup": VICTIM,
        "attack": "import signal; os.kill(p.pid, signal.SIGKILL)",
        "after": ALIVE,
        **SAID,
    },
    "the user's job by a descriptor": {
        "setup": VICTIM,
        "attack": "import signal; signal.pidfd_send_signal(os.pidfd_open(p.pid), signal.SIGTERM)",
        "after": ALIVE,
    },
    "an ended job waited for": {
        "setup": "import subprocess, time; p = subprocess.Popen(['false']); time.sleep(0.2)",
        "attack": "p.poll(); p.wait()",
        "after": "assert p.wait() == 1",
    },
    "a signal to the user's process": {
        "setup": VICTIM,
        "attack": "import signal; os.kill(me, signal.SIGTERM)",
        "after": ALIVE,
        **SAID,
    },
    "a signal to the parent": "import os, signal; os.kill(os.getppid(), signal.SIGKILL)",
    "a stop of the parent": "import os, signal; os.kill(os.getppid(), signal.SIGSTOP)",
    "a signal to the group": "import os, signal; os.killpg(0, signal.SIGTERM); os.kill(0, signal.SIGHUP)",
    "an interrupt of the user": {
        "setup": VICTIM,
        "attack": "import signal; os.kill(me, signal.SIGINT)",
        "after": ALIVE,
    },
    "a signal by libc": {
        "setup": VICTIM,
        "attack": "import ctypes; ctypes.CDLL(None).kill(me, 9); ctypes.CDLL(None).kill(p.pid, 9)",
        "after": ALIVE,
    },
    "a signal by a program": {"setup": VICTIM, "attack": "os.system(f'kill -9 {me} {p.pid}')", "after": ALIVE},
    "the user's priority": {
        "setup": VICTIM,
        "attack": "os.setpriority(os.PRIO_PROCESS, me, 19)",
        "after": ALIVE,
    },
    "the user's processors": {
        "setup": VICTIM,
        "attack": "os.sched_setaffinity(me, [min(os.sched_getaffinity(0))])",
        "after": ALIVE,
    },
    "the user's limits": {
        "setup": VICTIM,
        "attack": "import resource; resource.prlimit(me, resource.RLIMIT_CORE, (0, 0))\n"
        "resource.prlimit(me, resource.RLIMIT_NOFILE, (999, 999))",
        "after": ALIVE,
    },
    "the user's score": {
        "setup": VICTIM,
        "attack": "open(f'/proc/{me}/oom_score_adj', 'w').write('77')",
        "after": ALIVE,
    },
    "the user's memory": {
        "setup": "import ctypes, os; b = bytearray(b'safe'); me = os.getpid()\n"
        "at = ctypes.addressof((ctypes.c_char * 4).from_buffer(b))",
        "attack": "f = open(f'/proc/{me}/mem', 'r+b', buffering=0)\nf.seek(at)\nf.write(b'gone')",
        "after": "assert b == b'safe'",
    },
    "the user's memory by libc": {
        "setup": "import ctypes, os; b = bytearray(b'safe'); me = os.getpid()\n"
        "at = ctypes.addressof((ctypes.c_char * 4).from_buffer(b))\n"
        "class Part(ctypes.Structure):\n    _fields_ = [('at', ctypes.c_void_p), ('n', ctypes.c_size_t)]",
        "attack": """
            new = ctypes.create_string_buffer(b'gone')
            parts = Part(ctypes.addressof(new), 4), Part(at, 4)
            go = ctypes.CDLL(None).process_vm_writev
            go(me, ctypes.byref(parts[0]), 1, ctypes.byref(parts[1]), 1, 0)
        """,
        "after": "assert b == b'safe'",
    },
    "a file open in the user's process": {
        "setup": "import os; f = open('a.txt'); me = os.getpid()",
        "attack": "open(f'/proc/{me}/fd/{f.fileno()}', 'w').write('gone')",
    },
    "a file under the user's root": {
        "setup": "import os; me = os.getpid()",
        "attack": "open(f'/proc/{me}/cwd/a.txt', 'w').write('gone')",
    },
    "the user's group and session": "import os; os.setpgid(0, 0); os.setsid() if 0 else None; os.nice(3)",
    "asyncio jobs": """
        import asyncio
        p = await asyncio.create_subprocess_exec('touch', 'new.txt')
        await p.wait()
    """,
    "a terminal's job": "import pty; pty.spawn(['touch', 'new.txt'])",
    "libc fork": """
        import ctypes, os
        if ctypes.PyDLL(None).fork() == 0:
            open('new.txt', 'w').write('x')
            os._exit(0)
    """,
    "libc exec": {
        "setup": "import ctypes; words = (ctypes.c_char_p * 3)(b'touch', b'new.txt', None)",
        "attack": "ctypes.CDLL(None).execv(b'/usr/bin/touch', words)",
    },
    "workers of a loader": """
        import torch
        data = torch.utils.data.TensorDataset(torch.arange(8.0))
        for x, in torch.utils.data.DataLoader(data, 2, num_workers=1):
            y = x.to('cuda') * 2
        open('new.txt', 'w').write('x')
    """,
    "workers of a package's loader": """
        import torch
        from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter
        data = torch.utils.data.TensorDataset(torch.arange(8.0))
        loader = torch.utils.data.DataLoader(data, 2, num_workers=1, timeout=5)
        found = [x.tolist() for x, in _MultiProcessingDataLoaderIter(loader)]
        assert found == [[0, 1], [2, 3], [4, 5], [6, 7]]
        open('new.txt', 'w').write('x')
    """,
    "workers of before": {
        "setup": """
            import torch
            data = torch.utils.data.TensorDataset(torch.arange(8.0))
            live_loader = torch.utils.data.DataLoader(data, 2, num_workers=1, persistent_workers=True)
            live_batches = iter(live_loader)
            x = next(live_batches)
        """,
        "attack": "y = next(live_batches)[0].to('cuda') * 2\nopen('new.txt', 'w').write('x')",
        "after": "assert [b[0].tolist() for b in live_batches] == [[2, 3], [4, 5], [6, 7]]\n"
        "live_batches._shutdown_workers()",
        "limit": 20,
    },
    "torch processes": """
        import os
        import torch.multiprocessing as mp
        p = mp.get_context('fork').Process(target=os.mkdir, args=('made',))
        p.start()
        p.join(5)
    """,
    "an exit": {"attack": "import os; os._exit(0)", "error": True},
    "an abort": {"attack": "import os; os.abort()", "error": True},
    "an exit by libc": {"attack": "import ctypes; ctypes.CDLL(None).exit(3)", "error": True},
    "a segmentation fault": {"attack": "import ctypes; ctypes.string_at(0)", "error": True},
    "killed by the system": {
        "attack": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "limit": 12,
    },
    "stopped": {
        "attack": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
        "options": "--timeout 3",
        "limit": 12,
    },
    "a signal that ends it": {"attack": "import signal; signal.raise_signal(signal.SIGTERM)", "limit": 12},
    "sys exit": {"attack": "import sys; sys.exit(2)", "error": True},
    "system exit raised": {"attack": "raise SystemExit('over')", "error": True},
    "exit of the notebook": {
        "setup": "exits = []; get_ipython().ask_exit = lambda: exits.append(1)",
        "attack": "exit()\nquit()",
    },
    "asking whether a process is there": {
        "attack": "import os; os.kill(os.getppid(), 0); os.kill(os.getpid(), 0)",
        "says": "fits: ",
        "real": False,
    },
}  # fmt: skip


def test_nothing_outside_changes(attack, play):
    play(attack)
