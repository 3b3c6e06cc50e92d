"""Attacks through loggers: handlers of every kind, made before and in the cell."""

from __future__ import annotations


def handler(made: str, more: str = "") -> str:
    """The setup of a logger `log` with one handler `h`."""
    return (
        "import logging, logging.handlers\n"
        f"h = {made}\n"
        "log = logging.getLogger('mine')\nlog.addHandler(h)\nlog.setLevel('INFO')\n"
        f"log.info('before')\n{more}"
    )


TOLD = "log.info('leak')\nlog.error('leak %s', 5)"
NOT_IN_LOG = "log.info('after')\nassert 'leak' not in open('l.log').read()"

ATTACKS = {
    "a file": {
        "setup": handler("logging.FileHandler('l.log')"),
        "attack": TOLD,
        "after": NOT_IN_LOG + "\nassert open('l.log').read() == 'before\\nafter\\n'",
    },
    "a file opened late": {
        "setup": handler("logging.FileHandler('l.log', delay=True)").replace("log.info('before')", ""),
        "attack": TOLD,
        "after": NOT_IN_LOG,
    },
    "a file that rolls over": {
        "setup": handler("logging.handlers.RotatingFileHandler('l.log', maxBytes=20, backupCount=3)"),
        "attack": TOLD + "\nh.doRollover()",
        "after": NOT_IN_LOG,
    },
    "a file that rolls over by time": {
        "setup": handler("logging.handlers.TimedRotatingFileHandler('l.log', 'H')"),
        "attack": TOLD + "\nh.doRollover()",
        "after": NOT_IN_LOG,
    },
    "a file that is watched": {
        "setup": handler("logging.handlers.WatchedFileHandler('l.log')"),
        "attack": TOLD,
        "after": NOT_IN_LOG,
    },
    "a stream": {
        "setup": handler("logging.StreamHandler(open('l.log', 'w'))"),
        "attack": TOLD,
        "after": NOT_IN_LOG,
    },
    "the error stream": {
        "setup": "import sys\n" + handler("logging.StreamHandler(sys.__stderr__)"),
        "attack": TOLD,
    },
    "text in memory": {
        "setup": "import io\ns = io.StringIO()\n" + handler("logging.StreamHandler(s)"),
        "attack": TOLD,
        "after": "assert s.getvalue() == 'before\\n'",
    },
    "a buffer": {
        "setup": handler(
            "logging.handlers.MemoryHandler(9, target=logging.FileHandler('l.log'))",
            "n = len(h.buffer)",
        ),
        "attack": TOLD,
        "after": "assert len(h.buffer) == n\nh.flush()\nassert open('l.log').read() == 'before\\n'",
    },
    "a buffer flushed": {
        "setup": handler("logging.handlers.MemoryHandler(9, target=logging.FileHandler('l.log'))"),
        "attack": "h.flush(); h.close()",
        "after": "h.flush()\nassert open('l.log').read() == 'before\\n'",
    },
    "a queue": {
        "setup": "import queue\nq = queue.Queue()\n" + handler("logging.handlers.QueueHandler(q)"),
        "attack": TOLD,
        "after": "assert q.qsize() == 1",
    },
    "a queue with a listener": {
        "setup": "import queue\nq = queue.Queue()\n"
        + handler(
            "logging.handlers.QueueHandler(q)",
            "live_listener = logging.handlers.QueueListener(q, logging.FileHandler('l.log'))\n"
            "live_listener.start()\nimport time\ntime.sleep(0.1)",
        ),
        "attack": TOLD,
        "after": "log.info('after')\nlive_listener.stop()\n"
        "assert open('l.log').read() == 'before\\nafter\\n'",
        "wait": 0.1,
    },
    "a listener stopped": {
        "setup": "import queue\nq = queue.Queue()\n"
        + handler(
            "logging.handlers.QueueHandler(q)",
            "live_listener = logging.handlers.QueueListener(q, logging.FileHandler('l.log'))\n"
            "live_listener.start()\nimport time\ntime.sleep(0.1)",
        ),
        "attack": "q.put_nowait(live_listener._sentinel)",
        "after": "log.info('after')\nlive_listener.stop()\n"
        "assert open('l.log').read() == 'before\\nafter\\n'",
        "wait": 0.1,
    },
    "a socket": {"setup": handler("logging.handlers.SocketHandler(*tcp)"), "attack": TOLD},
    "datagrams": {"setup": handler("logging.handlers.DatagramHandler(*udp)"), "attack": TOLD},
    "the log of the system": {
        "setup": handler("logging.handlers.SysLogHandler(tuple(udp))"),
        "attack": TOLD,
    },
    "the log of the system by a unix socket": {
        "setup": "import socket\n"
        + handler("logging.handlers.SysLogHandler(unix, socktype=socket.SOCK_STREAM)"),
        "attack": TOLD,
    },
    "http": {
        "setup": handler("logging.handlers.HTTPHandler('%s:%s' % tuple(tcp), '/log')"),
        "attack": TOLD,
    },
    "a list": {
        "setup": "seen = []\nimport logging\nclass Kept(logging.Handler):\n"
        "    def emit(self, record):\n        seen.append(record.getMessage())\n" + handler("Kept()"),
        "attack": TOLD,
        "after": "assert seen == ['before']",
    },
    "a file through many loggers": {
        "setup": handler("logging.FileHandler('l.log')", "logging.getLogger('mine.a.b').info('x')"),
        "attack": "logging.getLogger('mine.a.b').info('leak')\nlogging.getLogger('mine.c').info('leak')",
        "after": NOT_IN_LOG,
    },
    "the root": {
        "setup": "import logging; logging.root.addHandler(logging.FileHandler('l.log'))",
        "attack": "logging.warning('leak'); logging.getLogger('other').error('leak')",
        "after": "assert open('l.log').read() == ''",
    },
    "a module of the user": {
        "setup": """
            from pathlib import Path
            text = "import logging\\nlog = logging.getLogger(__name__)\\n"
            text += "log.addHandler(logging.FileHandler('l.log'))\\ndef f(): log.error('leak')"
            x = Path('noisy.py').write_text(text)
            import noisy
        """,
        "attack": "noisy.f()",
        "after": "assert open('l.log').read() == ''",
    },
    "a module of the user first imported": {
        "setup": """
            from pathlib import Path
            text = "import logging\\nlog = logging.getLogger(__name__)\\n"
            text += "log.addHandler(logging.FileHandler('l.log'))\\ndef f(): log.error('real')"
            x = Path('noisy.py').write_text(text)
        """,
        "attack": "import noisy; noisy.f()",
        "after": "import noisy; noisy.f()\nassert open('l.log').read() == 'real\\n'",
    },
    "basic configuration": "import logging; logging.basicConfig(filename='l.log', force=True); logging.error('x')",
    "a handler of the cell": """
        import logging
        log = logging.getLogger('fresh')
        log.addHandler(logging.FileHandler('l.log'))
        log.error('leak')
        assert 'leak' in open('l.log').read()
    """,
    "a handler of the cell on an old logger": {
        "setup": handler("logging.NullHandler()"),
        "attack": "log.addHandler(logging.FileHandler('l.log')); log.error('leak')",
        "after": "assert log.handlers == [h]",
    },
    "a configuration": {
        "setup": handler("logging.FileHandler('l.log')"),
        "attack": """
            import logging.config
            logging.config.dictConfig({'version': 1, 'loggers': {'mine': {'level': 'ERROR'}}})
        """,
        "after": "log.info('after')\nassert open('l.log').read() == 'before\\nafter\\n'",
    },
    "levels": {
        "setup": handler("logging.FileHandler('l.log')"),
        "attack": "log.setLevel(50); h.setLevel(50); logging.disable(50); log.disabled = True",
        "after": "log.info('after')\nassert open('l.log').read() == 'before\\nafter\\n'",
    },
    "filters and formats": {
        "setup": handler("logging.FileHandler('l.log')"),
        "attack": "log.addFilter(lambda r: False); h.setFormatter(logging.Formatter('%(name)s')); "
        "log.propagate = False",
        "after": "log.info('after')\nassert open('l.log').read() == 'before\\nafter\\n'",
    },
    "a handler taken off": {
        "setup": handler("logging.FileHandler('l.log')"),
        "attack": "log.removeHandler(h); h.close(); log.handlers.clear()",
        "after": "log.info('after')\nassert open('l.log').read() == 'before\\nafter\\n'",
    },
    "the end of all": {
        "setup": handler("logging.FileHandler('l.log')"),
        "attack": "logging.shutdown()",
        "after": "log.info('after')\nassert open('l.log').read() == 'before\\nafter\\n'",
    },
    "classes and factories": """
        import logging
        logging.setLoggerClass(type('Mine', (logging.Logger,), {}))
        logging.setLogRecordFactory(print)
        logging.addLevelName(15, 'MINE')
        logging.raiseExceptions = False
        logging.captureWarnings(True)
    """,
    "the lock of a handler": {
        "setup": handler("logging.FileHandler('l.log')"),
        "attack": "h.acquire(); logging._acquireLock() if hasattr(logging, '_acquireLock') else 0",
        "after": "import threading\nt = threading.Thread(target=log.info, args=('after',), daemon=True)\n"
        "t.start()\nt.join(5)\nassert open('l.log').read() == 'before\\nafter\\n'",
    },
    "the lock of a handler held by a thread": {
        "setup": handler("logging.FileHandler('l.log')")
        + """
import threading
go, ready = threading.Event(), threading.Event()
def hold():
    with h.lock:
        ready.set()
        go.wait()
live_thread = threading.Thread(target=hold, daemon=True)
live_thread.start()
x = ready.wait()
""",
        "attack": TOLD,
        "after": "go.set()\nlive_thread.join()\nlog.info('after')\n"
        "assert open('l.log').read() == 'before\\nafter\\n'",
        "error": None,
        "options": "--timeout 6",
        "limit": 25,
        "real": False,
    },
    "warnings into a file": {
        "setup": "import logging, warnings; logging.captureWarnings(True)\n"
        "logging.getLogger('py.warnings').addHandler(logging.FileHandler('l.log'))",
        "attack": "warnings.warn('leak')",
        "after": "assert open('l.log').read() == ''",
    },
}  # fmt: skip


def test_nothing_outside_changes(attack, play):
    play(attack)
