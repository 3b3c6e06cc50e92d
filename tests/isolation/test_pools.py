"""Attacks through pools of processes, whose work a prediction does in its own process."""

from __future__ import annotations

OLD_POOL = """
    import multiprocessing, os
    live_pool = multiprocessing.get_context('fork').Pool(1)
    x = live_pool.apply(os.getpid)
"""
ATTACKS = {
    "a pool": """
        import multiprocessing, os
        with multiprocessing.get_context('fork').Pool(2) as pool:
            pool.map(os.mkdir, ['m1', 'm2'])
    """,
    "the work of a pool": """
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor
        def begin(x):
            global factor
            factor = x
        def work(i):
            open(f'made{i}', 'w').write('x')
            return i * factor
        with multiprocessing.Pool(3, begin, (5,)) as pool:
            assert pool.map(work, range(3)) == [*pool.imap(work, range(3))] == [0, 5, 10]
            assert pool.starmap(divmod, [(7, 2)]) == [(3, 1)]
        with ProcessPoolExecutor(2, initializer=begin, initargs=(3,)) as pool:
            assert [*pool.map(work, range(3), chunksize=2)] == [0, 3, 6]
            assert isinstance(pool.submit(divmod, 1, 0).exception(), ZeroDivisionError)
        assert len(open('made2').read()) == 1
    """,
    "the work of the copy that pickles more": {
        "attack": """
            import multiprocess
            factor = 5
            def work(i):
                for j in range(1):
                    open(f'made{i}', 'w').write('x')
                return i * factor
            with multiprocess.Pool(3) as pool, multiprocess.Manager() as manager:
                assert pool.map(work, range(3)) == [*pool.imap(work, range(3))] == [0, 5, 10]
                assert manager.dict(a=1)['a'] == 1
                assert len({worker.pid for worker in pool._pool}) == 1
            with multiprocess.get_context('spawn').Pool(2) as pool:
                pool.starmap(divmod, [(7, 2)])
            assert len(open('made2').read()) == 1
        """,
        "says": "counted with it: multiprocess.Pool",
        "needs": "multiprocess",
    },
    "the copy that pickles more, loaded before": {
        "setup": "import multiprocess.pool",
        "attack": """
            import os
            with multiprocess.Pool(2) as pool:
                pool.map(os.mkdir, ['m1', 'm2'])
        """,
        "says": "counted with it: multiprocess.Pool",
        "needs": "multiprocess",
    },
    "a pool of before of the copy": {
        "setup": OLD_POOL.replace("multiprocessing", "multiprocess"),
        "attack": "live_pool.apply_async(os.mkdir, ('made',)).wait(2)",
        "after": "assert live_pool.apply(os.getpid) == x\nlive_pool.terminate()",
        "wait": 0.2,
        "needs": "multiprocess",
    },
    "the work of datasets": {
        "setup": "import datasets\nrows = datasets.Dataset.from_dict({'x': [*range(8)]})",
        "attack": """
            mapped = rows.map(lambda row: {'y': row['x'] * 2}, num_proc=2)
            assert mapped[3]['y'] == 6
            mapped.save_to_disk('saved', num_proc=2)
            assert datasets.load_from_disk('saved')[5]['y'] == 10
        """,
        "needs": "datasets",
    },
    "the work of joblib": {
        "setup": """
            from joblib import Parallel, delayed
            parallel = Parallel(n_jobs=2)
        """,
        "attack": """
            import os
            assert Parallel(n_jobs=2)(delayed(abs)(i) for i in (-1, 2)) == [1, 2]
            with parallel:
                parallel(delayed(os.mkdir)(name) for name in ('m1', 'm2'))
            assert os.path.isdir('m2')
        """,
        "needs": "joblib",
    },
    "a pool of before": {
        "setup": OLD_POOL,
        "attack": "live_pool.apply_async(os.mkdir, ('made',)).wait(2)",
        "after": "assert live_pool.apply(os.getpid) == x\nlive_pool.terminate()",
        "wait": 0.2,
    },
    "a pool of before ended": {
        "setup": OLD_POOL,
        "attack": "live_pool.terminate()",
        "after": "assert live_pool.apply(os.getpid) == x\nlive_pool.terminate()",
    },
    "an executor of processes": """
        import multiprocessing, os
        from concurrent.futures import ProcessPoolExecutor
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context('fork')) as pool:
            pool.submit(os.mkdir, 'made')
    """,
    "an executor of before": {
        "setup": """
            import multiprocessing, os
            from concurrent.futures import ProcessPoolExecutor
            live_pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context('fork'))
            x = live_pool.submit(os.getpid).result()
        """,
        "attack": "live_pool.submit(os.mkdir, 'made')",
        "after": "assert live_pool.submit(os.getpid).result() == x\nlive_pool.shutdown()",
        "wait": 0.2,
    },
    "the objects of a manager": """
        import multiprocessing
        from multiprocessing.managers import BaseManager
        class Mine(BaseManager): pass
        class Sum:
            def add(self, a, b): return a + b
        Mine.register('Sum', Sum)
        with multiprocessing.Manager() as manager:
            d, q = manager.dict(a=1), manager.Queue()
            with manager.Lock(), manager.Pool(2) as pool:
                pool.map(q.put, [1, 2])
            assert [d['a'], q.get(), q.get()] == [1, 1, 2]
            assert manager.Value('i', 5).value == 5
        with Mine() as manager:
            assert manager.Sum().add(1, 2) == 3
    """,
}  # fmt: skip


def test_nothing_outside_changes(attack, play):
    play(attack)
