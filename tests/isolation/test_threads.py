"""Attacks by threads, timers, tasks and executors: they may act later, and the user's go on."""

from __future__ import annotations

COUNTER = """
    import threading, time
    live_counts, live_times, live_stop, live_total = [], [], threading.Event(), 0
    def count():
        global live_total
        while not live_stop.is_set():
            live_total += 1
            live_counts.append(live_total)
            live_times.append(time.monotonic())
            time.sleep(0.001)
    live_thread = threading.Thread(target=count, daemon=True)
    live_thread.start()
"""
COUNTED = """
    n = len(live_counts)
    time.sleep(0.1)
    assert len(live_counts) > n
    live_stop.set()
    live_thread.join()
    assert live_counts == list(range(1, len(live_counts) + 1)) and live_total == len(live_counts)
"""
CONSUMER = """
    import queue, threading
    q, live_seen = queue.Queue(), []
    def work():
        while (item := q.get()) is not None:
            live_seen.append(item)
            open(f'got-{item}', 'w').close()
            q.task_done()
    live_thread = threading.Thread(target=work, daemon=True)
    live_thread.start()
    q.put('one')
    q.join()
"""
CONSUMED = "q.put('two')\nq.join()\nassert live_seen == ['one', 'two']\nq.put(None)"

ATTACKS = {
    "a thread": """
        import threading
        t = threading.Thread(target=lambda: open('new.txt', 'w').write('x'))
        t.start()
        t.join()
    """,
    "a thread that acts later": {
        "attack": """
            import threading, time
            def go():
                for n in range(40):
                    time.sleep(0.01)
                    open('a.txt', 'a').write('x')
            threading.Thread(target=go).start()
        """,
        "wait": 0.5,
    },
    "a daemon thread that works on the namespace": {
        "setup": "things = []",
        "attack": """
            import threading, time
            def go():
                while True:
                    things.append(1)
                    time.sleep(0.01)
            threading.Thread(target=go, daemon=True).start()
        """,
        "wait": 0.3,
    },
    "a thread below threading": {
        "attack": "import _thread; _thread.start_new_thread(open, ('new.txt', 'w'))",
        "wait": 0.2,
    },
    "a timer": {
        "attack": "import os, threading; threading.Timer(0.3, os.remove, ('a.txt',)).start()",
        "wait": 0.6,
    },
    "a thread of before started": {
        "setup": "import os, threading; t = threading.Thread(target=os.remove, args=('a.txt',))",
        "attack": "t.start(); t.join()",
        "after": "t.start(); t.join()\nassert not os.path.exists('a.txt')",
    },
    "a timer of before cancelled": {
        "setup": "import threading; t = threading.Timer(3600, open, ('fired', 'x')); t.start()",
        "attack": "t.cancel()",
        "after": "assert t.is_alive() and not t.finished.is_set(); t.cancel(); t.join()",
    },
    "a timer of before fires meanwhile": {
        "setup": """
            import threading
            live_fired, live_total = [], 0
            def fire():
                global live_total
                live_total += 1
                live_fired.append(live_total)
            live_timers = [threading.Timer(n / 50, fire) for n in range(1, 40)]
            for live_timer in live_timers:
                live_timer.name = 'live'
                live_timer.start()
        """,
        "attack": "import time\nend = time.monotonic() + 0.5\nwhile time.monotonic() < end: pass",
        "after": "for t in live_timers: t.join()\n"
        "assert live_fired == list(range(1, 40)) and live_total == 39",
        "options": "--timeout 5",
        "real": False,
    },
    "a thread of the user goes on": {
        "setup": COUNTER,
        "attack": "x = sum(n * n for n in range(300_000))",
        "after": COUNTED,
        "real": False,
    },
    "a thread of the user during a training": {
        "setup": COUNTER,
        "attack": """
            import torch
            net = torch.nn.Linear(256, 256).cuda()
            opt = torch.optim.Adam(net.parameters())
            for step in range(50):
                net(torch.ones(8, 256, device='cuda')).sum().backward()
                opt.step()
        """,
        "after": COUNTED,
        "real": False,
    },
    "a thread of the user is stopped": {
        "setup": COUNTER,
        "attack": "live_stop.set(); live_counts.clear(); live_total = 0",
        "after": COUNTED,
    },
    "a thread of the user computes on the device": {
        "setup": """
            import threading, torch
            live_sums, live_stop = [], threading.Event()
            def compute():
                while not live_stop.is_set():
                    live_sums.append(torch.arange(1000.0).mul(2).sum().item())
            live_thread = threading.Thread(target=compute, daemon=True)
            live_thread.start()
        """,
        "attack": "x = torch.ones(1000, device='cuda')\nfor n in range(300): x = x * 2 + 1",
        "after": "live_stop.set(); live_thread.join()\nassert set(live_sums) == {999000.0}",
        "real": False,
    },
    "a consumer of the user": {
        "setup": CONSUMER,
        "attack": "q.put('leak'); q.join()",
        "after": CONSUMED,
        "wait": 0.2,
        "options": "--timeout 4",
        "limit": 12,
        "error": None,
    },
    "a consumer of the user fed without waiting": {
        "setup": CONSUMER,
        "attack": "q.put('leak')",
        "after": CONSUMED,
        "wait": 0.2,
    },
    "a consumer of the user ended": {
        "setup": CONSUMER,
        "attack": "q.put(None)",
        "after": CONSUMED,
        "wait": 0.2,
    },
    "an executor of before": {
        "setup": """
            from concurrent.futures import ThreadPoolExecutor
            live_pool = ThreadPoolExecutor(1)
            x = live_pool.submit(int, '3').result()
        """,
        "attack": "live_pool.submit(open, 'new.txt', 'w')",
        "after": "assert live_pool.submit(int, '4').result() == 4",
        "wait": 0.2,
    },
    "an executor of before asked for a result": {
        "setup": """
            from concurrent.futures import ThreadPoolExecutor
            live_pool = ThreadPoolExecutor(1)
            x = live_pool.submit(int, '3').result()
        """,
        "attack": "assert live_pool.submit(int, '5').result() == 5",
        "after": "assert live_pool.submit(int, '4').result() == 4",
        "real": False,
    },
    "an executor of before shut down": {
        "setup": """
            from concurrent.futures import ThreadPoolExecutor
            live_pool = ThreadPoolExecutor(1)
            x = live_pool.submit(int, '3').result()
        """,
        "attack": "live_pool.shutdown()",
        "after": "assert live_pool.submit(int, '4').result() == 4",
    },
    "an executor of the cell": {
        "attack": """
            from concurrent.futures import ThreadPoolExecutor
            pool = ThreadPoolExecutor(2)
            x = pool.submit(open, 'new.txt', 'w').result()
            y = list(pool.map(lambda n: n + 1, range(5)))
            assert y[4] == 5
        """,
        "wait": 0.1,
    },
    "a future of before": {
        "setup": """
            from concurrent.futures import Future
            f, done = Future(), []
            f.add_done_callback(lambda f: done.append(f.result()))
        """,
        "attack": "f.set_result(5)",
        "after": "assert not f.done() and done == []\nf.set_result(6)\nassert done == [6]",
    },
    "events and conditions": {
        "setup": """
            import threading
            e, c, s = threading.Event(), threading.Condition(), threading.Semaphore(2)
            b, waiting = threading.Barrier(2), []
        """,
        "attack": "e.set(); s.acquire(); b.abort(); c.acquire()",
        "after": "assert not e.is_set() and s._value == 2 and not b.broken and c.acquire(False)",
    },
    "an event that a thread awaits": {
        "setup": """
            import threading
            e = threading.Event()
            def wait():
                e.wait()
                open('woken', 'w').close()
            live_thread = threading.Thread(target=wait, daemon=True)
            live_thread.start()
        """,
        "attack": "e.set()",
        "after": "e.set(); live_thread.join()\nimport os\nassert os.path.exists('woken')",
        "wait": 0.2,
    },
    "locks": {
        "setup": """
            import threading
            free, held, again = threading.Lock(), threading.Lock(), threading.RLock()
            x = held.acquire(), again.acquire()
        """,
        "attack": "free.acquire(); held.release(); again.release()",
        "after": "assert not free.locked() and held.locked()\nagain.release()",
    },
    "a lock in a with of a thread": {
        "setup": """
            import threading
            lock, go = threading.Lock(), threading.Event()
            def hold():
                with lock:
                    go.wait()
            live_thread = threading.Thread(target=hold, daemon=True)
            live_thread.start()
            while not lock.locked(): pass
        """,
        "attack": "x = lock.acquire(timeout=0.2)\ny = lock.locked()",
        "after": "go.set(); live_thread.join()\nassert lock.acquire(timeout=2)",
        "real": False,
    },
    "queues": {
        "setup": """
            import queue
            q, p, l, s = queue.Queue(), queue.PriorityQueue(), queue.LifoQueue(), queue.SimpleQueue()
            for each in (q, p, l, s):
                each.put(3), each.put(1)
        """,
        "attack": "for each in (q, p, l, s): each.get(); each.put(9)",
        "after": "assert (q.get(), p.get(), l.get(), s.get()) == (3, 1, 1, 3)",
    },
    "a scheduler of before": {
        "setup": """
            import os, sched
            s = sched.scheduler()
            x = s.enter(0, 1, os.remove, ('a.txt',))
        """,
        "attack": "s.run()",
        "after": "assert len(s.queue) == 1",
    },
    "a loop of before": {
        "setup": """
            import asyncio
            loop = asyncio.new_event_loop()
            async def go():
                await asyncio.sleep(0)
                open('new.txt', 'w').close()
                return 7
            task = loop.create_task(go())
        """,
        "attack": "assert loop.run_until_complete(task) == 7",
        "after": "assert not task.done()\nassert loop.run_until_complete(task) == 7",
    },
    "a loop of before closed": {
        "setup": "import asyncio; loop = asyncio.new_event_loop(); f = loop.create_future()",
        "attack": "f.set_result(1); loop.call_soon(print); loop.close()",
        "after": "assert not f.done()\nloop.call_soon(f.set_result, 2)\n"
        "assert loop.run_until_complete(f) == 2",
    },
    "a loop in a thread": {
        "setup": """
            import asyncio, threading
            live_loop = asyncio.new_event_loop()
            live_thread = threading.Thread(target=live_loop.run_forever, daemon=True)
            live_thread.start()
            async def go(name):
                open(name, 'w').close()
        """,
        "attack": "f = asyncio.run_coroutine_threadsafe(go('leak'), live_loop)",
        "after": "asyncio.run_coroutine_threadsafe(go('real'), live_loop).result(5)",
        "wait": 0.2,
    },
    "a task of the cell": {
        "attack": """
            import asyncio
            async def later():
                await asyncio.sleep(0.1)
                open('late.txt', 'w').close()
            task = asyncio.get_running_loop().create_task(later())
            await asyncio.sleep(0)
        """,
        "after": "import asyncio\nawait asyncio.sleep(0.3)\nimport os\n"
        "assert not os.path.exists('late.txt')",
    },
    "asyncio run": """
        import asyncio
        async def go():
            await asyncio.gather(asyncio.sleep(0), asyncio.to_thread(open, 'new.txt', 'w'))
        loop = asyncio.new_event_loop()
        loop.run_until_complete(go())
    """,
    "awaited": """
        import asyncio
        await asyncio.sleep(0)
        open('new.txt', 'w').close()
    """,
    "a coroutine of before": {
        "setup": """
            async def go():
                open('new.txt', 'w').close()
                return 7
            c = go()
        """,
        "attack": "x = await c",
        "after": "assert await c == 7",
    },
    "a semaphore of asyncio": {
        "setup": "import asyncio; s, q = asyncio.Semaphore(2), asyncio.Queue(); q.put_nowait(1)",
        "attack": "await s.acquire()\nawait q.get()\nawait q.put(9)",
        "after": "assert s._value == 2 and q.get_nowait() == 1",
    },
    "hooks of threads": """
        import threading
        threading.excepthook = print
        threading.setprofile(lambda *_: None)
        threading.stack_size(1 << 20)
    """,
    "a thread that raises": {
        "attack": "import threading; t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()",
        "real": False,
    },
    "many threads": {
        "attack": """
            import threading, time
            for n in range(50):
                threading.Thread(target=time.sleep, args=(5,), daemon=True).start()
        """,
    },
    "threads that compute on the device": """
        import threading, torch
        def go():
            x = torch.ones(100, device='cuda') * 2
            open('new.txt', 'a').write('x')
        threads = [threading.Thread(target=go) for n in range(3)]
        for t in threads: t.start()
        for t in threads: t.join()
    """,
    "an alarm": {
        "setup": "import signal; rang = []; x = signal.signal(signal.SIGALRM, lambda *_: rang.append(1))",
        "attack": "signal.setitimer(signal.ITIMER_REAL, 0.2)",
        "after": "assert rang == []",
        "wait": 0.4,
    },
    "an alarm of before": {
        "setup": """
            import signal
            live_rang = []
            x = signal.signal(signal.SIGALRM, lambda *_: live_rang.append(1))
            x = signal.setitimer(signal.ITIMER_REAL, 1.5)
        """,
        "attack": "signal.setitimer(signal.ITIMER_REAL, 0)",
        "after": "import time\nfor n in range(30): time.sleep(0.1)\nassert live_rang == [1]",
    },
}  # fmt: skip


def test_nothing_outside_changes(attack, play):
    play(attack)
