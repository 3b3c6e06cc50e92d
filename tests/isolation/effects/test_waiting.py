"""Waiting takes no time, and what never comes is said."""

from __future__ import annotations

import asyncio
import select
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpumem_magic.isolation.waits.clock import Clock
from gpumem_magic.isolation.waits.event_loop import run_coroutine
from gpumem_magic.predict import predict

from .forked import run_cell, waiting


def run(cell, **names):
    return run_cell(cell, waiting, names=names)


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("import time; time.sleep(1_000_000); x = 1", 1),
        ("import time; a = time.time(); time.sleep(1000); x = time.time() - a > 999", True),
        ("import asyncio; x = asyncio.run(asyncio.sleep(1000, 'slept'))", "slept"),
        ("from threading import Event; x = Event().wait(1000)", False),
        ("from threading import Semaphore; s = Semaphore(0); x = s.acquire(timeout=1000)", False),
        ("from threading import Condition\nc = Condition()\nwith c: x = c.wait(1000)", False),
        (
            "from threading import Condition\nc = Condition()\n"
            "with c: x = c.wait_for(lambda: False, 1000)",
            False,
        ),
        ("import queue\ntry: queue.Queue().get(timeout=1000)\nexcept queue.Empty: x = 1", 1),
        ("import queue\ntry: queue.SimpleQueue().get(timeout=1000)\nexcept queue.Empty: x = 1", 1),
        (
            "from concurrent.futures import Future, wait\nx = len(wait([Future()], 1000).not_done)",
            1,
        ),
        ("import os, select\nr, w = os.pipe()\nx = select.select([r], [], [], 1000)", ([], [], [])),
        (
            "import selectors, os\ns = selectors.DefaultSelector()\n"
            "s.register(os.pipe()[0], 1)\nx = s.select(1000)",
            [],
        ),
        ("import multiprocessing as m; a, b = m.Pipe(); x = a.poll(1000)", False),
        ("import multiprocessing as m; s = m.Semaphore(0); x = s.acquire(timeout=1000)", False),
        ("import multiprocessing as m; x = m.Event().wait(1000)", False),
        (
            "import time\nend = time.monotonic() + 1000\nx = 0\n"
            "while time.monotonic() < end:\n    time.sleep(100)\n    x += 1",
            10,
        ),
        (
            "from threading import Timer\nx = []\nt = Timer(1000, x.append, [1])\n"
            "t.start()\nt.join()",
            [1],
        ),
        ("from threading import Timer\nimport time\nx = Timer(1000, print).start()", None),
        ("from threading import Lock\nl = Lock()\nl.acquire(); x = l.acquire(timeout=1000)", False),
        (
            "import _queue\ntry: _queue.SimpleQueue().get(timeout=1000)\n"
            "except _queue.Empty: x = 1",
            1,
        ),
        (
            "import os, select\np = select.poll()\np.register(os.pipe()[0], 1)\n"
            "x = p.poll(1000_000)",
            [],
        ),
        (
            "import os, select\np = select.epoll()\np.register(os.pipe()[0], 1)\nx = p.poll(1000)",
            [],
        ),
        (
            "import socket\na, b = socket.socketpair()\na.settimeout(1000)\n"
            "try: a.recv(1)\nexcept TimeoutError as e: x = str(e)",
            "timed out",
        ),
        ("import signal\nx = signal.sigtimedwait([signal.SIGUSR1], 1000)", None),
    ],
)
def test_time_passes_when_nobody_does_anything(cell, expected):
    after = run(cell)
    assert (after.error, after.x) == (None, expected)
    assert after.seconds < 100
    assert after.told == []


def test_a_name_that_was_bound_to_sleep_is_it_too():
    from time import sleep

    assert run("sleep(1000); x = 1", sleep=sleep).x == 1


@pytest.mark.parametrize(
    "wait",
    [
        *("event.wait()", "queue.get()", "future.result()", "thread.join()"),
        *("select.select([pipe], [], [])", "list(as_completed([future]))"),
        *("lock.acquire()", "pair[0].recv(1)", "os.read(pipe, 1)"),
    ],
)
def test_what_only_another_thread_could_end_is_said(wait):
    cell = f"""
        import os, select, socket, threading
        from concurrent.futures import Future, as_completed
        from queue import Queue
        lock, pair = threading.Lock(), socket.socketpair()
        lock.acquire()
        event, queue, future, pipe = threading.Event(), Queue(), Future(), os.pipe()[0]
        thread = threading.Thread(target=event.wait, daemon=True)
        thread.start()
        {wait}
    """
    after = run(cell)
    assert after.error.startswith("NotImplementedError: ")
    assert "waits for something that nobody does: only threads" in after.error
    assert after.lines == [10]


def test_threads_that_are_about_to_end_are_waited_for():
    cell = """
        import sys, threading
        sys.setswitchinterval(1e-6)
        for number in range(2000):
            thread = threading.Thread(target=lambda: None)
            thread.start()
            thread.join(1000 if number % 2 else None)
            assert not thread.is_alive()
    """
    assert predict(textwrap.dedent(cell), {}, "1GiB").error is None


def test_time_stands_still_until_all_have_tried_in_vain():
    clock, found = Clock(), []

    def attempt(seconds):
        if seconds:
            time.sleep(0.1)  # as one that was woken, and has to wait for a processor
            found.append(clock.ahead)
        return found

    other = threading.Thread(target=clock.wait, args=(attempt, None))
    other.start()
    clock.wait(lambda seconds: time.sleep(seconds) or found, 1000)
    other.join()
    assert found == [0]


def test_threads_of_the_cell_are_waited_for():
    cell = """
        import time
        from concurrent.futures import ThreadPoolExecutor, as_completed
        from multiprocessing.pool import ThreadPool
        from queue import Queue
        from threading import Barrier, Event, Thread

        def work(n):
            for _ in range(n):
                sum(range(100_000))
            return n

        tasks, results = Queue(maxsize=2), Queue()
        def serve():
            while (task := tasks.get()) is not None:
                time.sleep(10)
                results.put(work(task))
        thread = Thread(target=serve)
        thread.start()
        for task in [1, 2, 3, 4, None]:
            tasks.put(task)
        x = [results.get(timeout=1000) for _ in range(4)]
        thread.join()
        with ThreadPoolExecutor(2) as pool:
            x += pool.map(work, [5, 6])
            x += [f.result() for f in as_completed([pool.submit(work, 7)], timeout=1)]
        with ThreadPool(2) as pool:
            x += pool.map(work, [8, 9])
        barrier = Barrier(3)
        for _ in range(2):
            Thread(target=barrier.wait).start()
        barrier.wait()
        done, stop = Event(), Event()
        def watch():
            while not stop.wait(60):
                pass
        Thread(target=watch, daemon=True).start()
        Thread(target=lambda: (work(200), done.set())).start()
        x.append(done.wait(1000))
        stop.set()
    """
    after = run(cell)
    assert (after.error, after.x) == (None, [1, 2, 3, 4, 5, 6, 7, 8, 9, True])


def test_what_threads_of_the_cell_hold_or_send_is_waited_for():
    cell = """
        import _queue, os, socket, threading, time
        lock, again, queue = threading.Lock(), threading.RLock(), _queue.SimpleQueue()
        (near, far), (read, write), held = socket.socketpair(), os.pipe(), threading.Event()
        lock.acquire()

        def work():
            with again, again:
                held.set()
                time.sleep(1000)
            for do in (lock.release, lambda: queue.put(0), lambda: far.send(b"a")):
                time.sleep(1000)
                do()
            time.sleep(1000)
            os.write(write, b"b")

        thread = threading.Thread(target=work)
        thread.start()
        held.wait()
        with again:
            x = [lock.acquire(False), lock.acquire(timeout=9), lock.acquire()]
        x += [queue.get(), near.recv(1), os.read(read, 9)]
        condition = threading.Condition()

        def wake():
            with condition, condition:
                condition.notify()
                time.sleep(1000)

        threading.Timer(1000, wake).start()
        with condition:
            x.append(condition.wait(2000))
    """
    after = run(cell)
    assert (after.error, after.x) == (None, [False, False, True, 0, b"a", b"b", True])


def test_a_pool_from_before_makes_new_threads():
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(abs, range(10)))
        after = run("x = [*pool.map(abs, [-1, -2]), pool.submit(abs, -3).result()]", pool=pool)
        assert (after.error, after.x) == (None, [1, 2, 3])
        assert list(pool.map(abs, [-4])) == [4]


def test_a_queue_with_a_reader_from_before_wakes_the_cells_own():
    import queue

    tasks = queue.Queue()
    reader = threading.Thread(target=tasks.get)
    reader.start()
    cell = """
        import threading, queue
        results = queue.Queue()
        threading.Thread(target=lambda: results.put(tasks.get())).start()
        while not tasks.not_empty._waiters:
            pass
        tasks.put(1)
        x = results.get()
    """
    try:
        after = run(cell, tasks=tasks)
    finally:
        tasks.put(None)
        reader.join()
    assert (after.error, after.x) == (None, 1)


def awaiting(cell, **names):
    """What top-level await in `cell` comes to, forked while an event loop runs."""
    body = "async def main():\n    global x\n" + "".join(
        f"    {line}\n" for line in ["import asyncio", *cell.splitlines()]
    )
    code = f"{body}\nresult = run_coroutine(main())"

    async def outside():
        return run(code, run_coroutine=run_coroutine, **names)

    return asyncio.run(outside())


def test_a_coroutine_runs_though_the_notebooks_loop_seems_to():
    after = awaiting(
        "await asyncio.sleep(1000)\n"
        "x = await asyncio.gather(*[asyncio.sleep(n, n) for n in (300, 200, 100)])\n"
        "async def late():\n"
        "    await asyncio.sleep(5)\n"
        "    x.append('late')\n"
        "task = asyncio.create_task(late())\n"
        "try:\n"
        "    await asyncio.wait_for(asyncio.Event().wait(), 3)\n"
        "except asyncio.TimeoutError:\n"
        "    x.append('early')\n"
        "await task\n"
        "x.append(await asyncio.to_thread(abs, -1))\n"
        "reader, writer = await asyncio.open_unix_connection('/nowhere')\n"
    )
    assert after.error.startswith("FileNotFoundError")
    assert after.x == [300, 200, 100, "early", "late", 1]
    assert after.seconds < 100


@pytest.mark.parametrize(
    ("cell", "named"),
    [
        ("await asyncio.Event().wait()", "Event.wait"),
        ("await asyncio.Queue().get()", "Queue.get"),
        ("await asyncio.get_running_loop().create_future()", "main"),
    ],
)
def test_what_never_comes_is_named(cell, named):
    after = awaiting(cell)
    assert after.error.startswith("NotImplementedError: `await` waits for something")
    assert named in after.error


def test_the_notebooks_loop_does_not_go_on():
    async def main():
        event = asyncio.Event()
        waiter = asyncio.create_task(event.wait())
        future = asyncio.get_running_loop().create_future()
        await asyncio.sleep(0)
        code = "async def main():\n    await {}\nrun_coroutine(main())"
        names = {"run_coroutine": run_coroutine, "event": event, "future": future, "task": waiter}
        found = [run(code.format(name), **names) for name in ("event.wait()", "future", "task")]
        event.set()
        await waiter
        return found

    for after in asyncio.run(main()):
        assert after.error.startswith("NotImplementedError: `await` waits for something")
        assert "different" in after.error


def test_code_without_await_finds_the_notebooks_loop_running():
    cell = """
        import asyncio
        x = asyncio.create_task(asyncio.sleep(1)).done()
        asyncio.get_running_loop().call_soon_threadsafe(print)
        asyncio.run(asyncio.sleep(1))
    """

    async def outside():
        return run(cell)

    after = asyncio.run(outside())
    assert after.x is False
    assert after.error.startswith("RuntimeError: asyncio.run() cannot be called from a running")


def test_errors_of_the_coroutine_are_its_own():
    after = awaiting("x = 1\nraise NotImplementedError('mine')")
    assert (after.x, after.error) == (1, "NotImplementedError: mine")


@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_locks_of_multiprocessing_are_those_of_this_process(way):
    cell = f"""
        import multiprocessing, queue
        from multiprocessing import sharedctypes

        made = multiprocessing.get_context({way!r})
        lock, again, two = made.Lock(), made.RLock(), made.Semaphore(2)
        one = made.BoundedSemaphore(1)
        x = []
        with lock:
            x.append(lock.acquire(False))
        with again, again:
            x.append(again.acquire(False))
        x += [two.acquire(), two.acquire(), two.acquire(False), two.get_value()]
        again.release()
        for wrong in (again, one, lock):
            try:
                wrong.release()
            except (AssertionError, ValueError) as error:
                x.append(type(error).__name__)
        condition, event = made.Condition(), made.Event()
        event.set()
        with condition:
            condition.notify_all()
            x += [condition.wait(1000), event.wait()]
        made.Barrier(1).wait()
    """
    after = run(cell)
    assert after.error is None
    assert after.x == [
        *(False, True, True, True, False, 0),
        *("AssertionError", "ValueError", "ValueError", False, True),
    ]


@pytest.mark.parametrize(
    "call",
    [
        "time.sleep()",
        "time.sleep('x')",
        "time.sleep(None)",
        "time.sleep(-1)",
        "time.sleep(float('nan'))",
        "time.time(1)",
        "select.select([], [])",
        "select.select([], [], [], 'x')",
        "select.select([], [], [], -1)",
    ],
)
def test_wrong_arguments_are_refused_in_pythons_own_words(call):
    with pytest.raises((TypeError, ValueError)) as error:
        eval(call, {"select": select, "time": time})
    assert run(f"import select, time\n{call}").error == f"{error.type.__name__}: {error.value}"
