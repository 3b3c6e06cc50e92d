"""The state of this process that a cell could change: what Python, and what the system, keep."""

from __future__ import annotations

import array
import asyncio
import atexit
import concurrent.futures.thread
import decimal
import faulthandler
import fcntl
import gc
import importlib
import locale
import logging
import multiprocessing
import multiprocessing.process
import os
import resource
import signal
import stat
import sys
import termios
import threading
import time
import warnings
import weakref
from contextlib import suppress
from pathlib import Path

from digest import Digest, hashed

LIMITS = [name for name in dir(resource) if name.startswith("RLIMIT_")]
SYS_OBJECTS = ("stdin", "stdout", "stderr", "displayhook", "excepthook", "unraisablehook")
SYS_OBJECTS += ("breakpointhook", "__stdout__", "__stderr__", "ps1", "ps2")
SYS_LISTS = ("argv", "path", "meta_path", "path_hooks", "warnoptions", "orig_argv")
SYS_CALLS = ("getrecursionlimit", "getswitchinterval", "gettrace", "getprofile", "getdlopenflags")
SYS_CALLS += ("get_asyncgen_hooks", "get_int_max_str_digits", "get_coroutine_origin_tracking_depth")


def descendants(of: int) -> dict[int, str]:
    """The processes below a process, by number, with their names and states."""
    parents: dict[int, int] = {}
    names: dict[int, str] = {}
    for folder in filter(str.isdecimal, os.listdir("/proc")):  # noqa: PTH208
        with suppress(OSError):
            text = Path(f"/proc/{folder}/stat").read_text()
            name, _, rest = text.partition("(")[2].rpartition(")")
            parents[int(folder)] = int(rest.split()[1])
            names[int(folder)] = f"{name} {'Z' if rest.split()[0] == 'Z' else 'alive'}"
    found: dict[int, str] = {}
    for process in names:
        above = process
        while above in parents and above != of:
            above = parents[above]
        if above == of and process != of:
            found[process] = names[process]
    return found


def look_at_process() -> dict[str, str]:
    """Everything that is not an object of the user's, as flat facts."""
    found: dict[str, object] = {}
    for look in (_descriptors, _threads, _signals, _system, _sys, _gc, _python, _logging):
        found |= look()
    return {f"process {name}": str(value) for name, value in found.items()}


def _descriptors() -> dict[str, object]:
    found: dict[str, object] = {}
    for number in sorted(map(int, os.listdir("/proc/self/fd"))):  # noqa: PTH208
        with suppress(OSError):  # the one that lists
            said = [str(Path(f"/proc/self/fd/{number}").readlink())]
            if "/mpl-data/" in said[0]:  # matplotlib keeps the fonts open that it drew reports with
                continue
            kind = os.fstat(number).st_mode
            info = Path(f"/proc/self/fdinfo/{number}").read_text().split("\n")
            said += [line for line in info if line.startswith(("pos:", "flags:"))]
            readable = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE != os.O_WRONLY
            if readable and (stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)):
                said.append(f"unread {_unread(number)}")
            found[f"descriptor {number}"] = " ".join(said)
    return found


def _unread(number: int) -> int | str:
    size = array.array("i", [0])
    try:
        fcntl.ioctl(number, termios.FIONREAD, size)
    except OSError as error:
        return type(error).__name__
    return size[0]


def _threads() -> dict[str, object]:
    tasks = {*os.listdir("/proc/self/task")}  # noqa: PTH208
    live = [thread for thread in threading.enumerate() if thread.name == "live"]
    time.sleep(0.001)
    tasks &= {*os.listdir("/proc/self/task")}  # noqa: PTH208 - without what was just ending
    return {
        "threads": sorted(thread.name for thread in threading.enumerate() if thread not in live),
        "system threads": len(tasks - {str(thread.native_id) for thread in live}),
        "children": descendants(os.getpid()),
        "parent": (os.getppid(), _state_of(os.getppid())),
        "trace of threads": (threading._trace_hook, threading._profile_hook),
        "excepthook of threads": _name(threading.excepthook),
        "stack size of threads": threading.stack_size(),
        "pool threads": len(concurrent.futures.thread._threads_queues),
        "process counter": multiprocessing.process._process_counter.__reduce__(),
        "process children": sorted(p.name for p in multiprocessing.process._children),
        "start method": multiprocessing.get_start_method(allow_none=True),
    }


def _state_of(process: int) -> str:
    with suppress(OSError):
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        return "stopped" if state == "T" else "there"
    return "gone"


def _signals() -> dict[str, object]:
    wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)
    handlers = {f"signal {n}": _name(signal.getsignal(n)) for n in signal.valid_signals()}
    timers = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
    running = [seconds > 0 for timer in timers for seconds in signal.getitimer(timer)]
    return {
        **handlers,
        "signal wakeup": wakeup,
        "signal mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "timers running": running,
        "signals pending": sorted(signal.sigpending()),
    }


def _system() -> dict[str, object]:
    mask = os.umask(0)
    os.umask(mask)
    return {
        "folder": str(Path.cwd()),
        "umask": oct(mask),
        "group": (os.getpgid(0), os.getsid(0)),
        "priority": os.getpriority(os.PRIO_PROCESS, 0),
        "processors": sorted(os.sched_getaffinity(0)),
        "oom score": Path("/proc/self/oom_score_adj").read_text(),
        "name": Path("/proc/self/comm").read_text(),
        "landlock and privileges": [
            line
            for line in Path("/proc/self/status").read_text().split("\n")
            if line.startswith(("NoNewPrivs", "Seccomp:", "Cap"))
        ],
        **{f"limit {name}": resource.getrlimit(getattr(resource, name)) for name in LIMITS},
        **{f"environ {name}": value for name, value in os.environ.items()},
        "environ of the system": sorted(os.environb.items()),
        "time zone": (time.tzname, time.timezone),
        "locale": locale.setlocale(locale.LC_ALL),
        "faulthandler": faulthandler.is_enabled(),
    }


def _sys() -> dict[str, object]:
    objects = {f"sys.{name}": _name(getattr(sys, name, None)) for name in SYS_OBJECTS}
    lists = {f"sys.{name}": list(map(_name, getattr(sys, name, ()))) for name in SYS_LISTS}
    calls = {f"sys.{name}": getattr(sys, name)() for name in SYS_CALLS if hasattr(sys, name)}
    flags = {"sys.dont_write_bytecode": sys.dont_write_bytecode}
    tracebacks = {"sys.tracebacklimit": getattr(sys, "tracebacklimit", "none")}
    modules = {f"module {name}": f"{id(module):x}" for name, module in sys.modules.items()}
    return {**objects, **lists, **calls, **flags, **tracebacks, **modules}


def _gc() -> dict[str, object]:
    return {
        "gc": (gc.isenabled(), gc.get_threshold(), gc.get_debug()),
        "gc callbacks": list(map(_name, gc.callbacks)),
        "functions at exit": atexit._ncallbacks(),
        "finalizers": len(weakref.finalize._registry),
    }


def _python() -> dict[str, object]:
    context = decimal.getcontext()
    settings = (context.prec, context.rounding, context.Emin, context.Emax, context.capitals)
    return {
        "decimal": (id(context), *settings, dict(context.flags), dict(context.traps)),
        "warnings": [str(each) for each in warnings.filters],
        "warnings shown by": (_name(warnings.showwarning), _name(warnings.formatwarning)),
        "warnings shown once": len(warnings.onceregistry),
        "event loop policy": _name(asyncio.events._event_loop_policy),
        "event loop": asyncio._get_running_loop(),
        "importers": (len(sys.path_importer_cache) > 0, _name(importlib.import_module)),
    }


def _logging() -> dict[str, object]:
    found: dict[str, object] = {
        "logging disabled": logging.root.manager.disable,
        "logging classes": (_name(logging.getLoggerClass()), _name(logging.getLogRecordFactory())),
        "logging raises": logging.raiseExceptions,
        "logging levels": dict(logging._levelToName),
        "logging handlers": len(logging._handlerList),
    }
    loggers = {"root": logging.root, **logging.root.manager.loggerDict}
    for name, logger in loggers.items():
        if isinstance(logger, logging.Logger):
            state = Digest("nowhere")
            facts = (logger.level, logger.propagate, logger.disabled)
            found[f"logger {name}"] = (*facts, list(map(_name, logger.handlers)), logger.filters)
            for index, handler in enumerate(logger.handlers):
                state.add(f"handler {index}", handler)
            found[f"logger {name} handlers"] = hashed(repr(state.found).encode())
    return found


def _name(value: object) -> str:
    if isinstance(value, str | int | type(None)):
        return repr(value)
    return f"{getattr(value, '__qualname__', type(value).__qualname__)} {id(value):x}"
