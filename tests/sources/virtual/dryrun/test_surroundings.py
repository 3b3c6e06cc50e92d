"""Whatever a cell changes around it is as before, bit for bit."""

# Users write what is not written elsewhere here.
# ruff: noqa: PTH109

from __future__ import annotations

import atexit
import builtins
import decimal
import gc
import locale
import logging
import os
import random
import signal
import sys
import threading
import types
import warnings

import numpy as np
import pytest
import torch

from gpumem_magic.sources.virtual.dryrun.surroundings import unchanged_surroundings

ENDINGS = [None, ValueError, KeyboardInterrupt, SystemExit]


@pytest.fixture(params=ENDINGS, ids=str)
def run(request):
    """Runs a function in unchanged surroundings, to its end or to an error."""

    def run(function):
        try:
            with unchanged_surroundings():
                function()
                if request.param is not None:
                    raise request.param
        except BaseException as error:
            if request.param is None or not isinstance(error, request.param):
                raise

    return run


def test_random_numbers_go_on_as_if_none_had_been_drawn(run):
    random.seed(1), np.random.seed(2), torch.manual_seed(3)
    random.gauss(0, 1), np.random.standard_normal()  # each keeps a second number for later

    def states():
        kind, keys, *rest = np.random.get_state()
        return random.getstate(), kind, keys.tolist(), rest, torch.get_rng_state().tolist()

    def draw():
        random.seed(9), np.random.seed(9), torch.manual_seed(9)
        random.gauss(0, 1), np.random.standard_normal(), torch.randn(7)

    before = states()
    run(draw)
    assert states() == before


def test_the_process_is_as_it_was(run, tmp_path, monkeypatch):
    monkeypatch.setenv("KEPT", "1")
    monkeypatch.setenv("DELETED", "1")
    mask = os.umask(0o022)
    os.umask(mask)
    monkeypatch.setattr(sys, "argv", ["a", "b"])

    def state():
        return (
            *(dict(os.environ), os.getcwd(), os.umask(mask), sys.argv, list(sys.argv), sys.path),
            *(list(sys.path), sys.excepthook, sys.getrecursionlimit(), threading.excepthook),
            *(signal.getsignal(signal.SIGTERM), gc.isenabled(), gc.get_threshold()),
            *(decimal.getcontext().prec, dict(decimal.getcontext().flags)),
            *(locale.setlocale(locale.LC_ALL), vars(builtins).get("invented")),
            *(getattr(sys, "last_value", None), sys.getswitchinterval(), sys.gettrace()),
        )

    def change():
        os.environ.update(KEPT="2", ADDED="3")
        del os.environ["DELETED"]
        os.chdir(tmp_path)
        os.umask(0o777)
        sys.argv.append("c")
        sys.path.insert(0, "here")
        sys.path = [*sys.path]
        sys.excepthook = threading.excepthook = sys.last_value = print
        sys.setrecursionlimit(12_345)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        gc.disable()
        gc.set_threshold(1, 2, 3)
        decimal.getcontext().prec = 5
        decimal.Decimal(1) / decimal.Decimal(3)
        locale.setlocale(locale.LC_ALL, "C")
        builtins.invented = 1
        sys.setswitchinterval(0.1)

    before, last = state(), vars(sys).get("last_value", "absent")
    run(change)
    assert state() == before
    assert vars(sys).get("last_value", "absent") is last


def test_warnings_are_shown_as_often_as_they_would_have_been(run):
    # GIVEN a module whose warning has been shown once
    module = types.ModuleType("test_surroundings_module")
    exec("import warnings\ndef warn(): warnings.warn('boo')", vars(module))
    sys.modules[module.__name__] = module
    shown = []
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.resetwarnings()
        patch.setattr(warnings, "showwarning", lambda *args, **kwargs: shown.append(args))
        module.warn()
        filters, content, registry = warnings.filters, list(warnings.filters), None
        registry = {k: v for k, v in module.__warningregistry__.items() if k != "version"}

        def change():
            warnings.simplefilter("always")
            warnings.filterwarnings("error", "else")
            warnings.showwarning = print
            module.__warningregistry__.clear()

        run(change)
        assert warnings.filters is filters
        assert warnings.filters == content
        kept = {k: v for k, v in module.__warningregistry__.items() if k != "version"}
        assert kept == registry
        module.warn()
    del sys.modules[module.__name__]
    assert len(shown) == 1


def test_a_warning_shown_within_is_shown_again_afterwards():
    module = types.ModuleType("test_surroundings_module")
    exec("import warnings\ndef warn(): warnings.warn('boo')", vars(module))
    sys.modules[module.__name__] = module
    shown = []
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.resetwarnings()
        patch.setattr(warnings, "showwarning", lambda *args, **kwargs: shown.append(args))
        with unchanged_surroundings():
            module.warn()
        assert len(shown) == 1
        module.warn()
    del sys.modules[module.__name__]
    assert len(shown) == 2


def test_loggers_are_as_they_were(run):
    logger = logging.getLogger("test_surroundings")
    logger.setLevel(logging.WARNING)

    def state():
        root = logging.getLogger()
        levels = [(x.level, list(x.handlers), x.propagate, x.disabled) for x in (logger, root)]
        return levels, root.manager.disable, logger.isEnabledFor(logging.DEBUG)

    def change():
        logging.basicConfig(level=logging.DEBUG, force=False)
        logging.getLogger().addHandler(logging.NullHandler())
        logging.getLogger().setLevel(logging.DEBUG)
        logger.setLevel(logging.DEBUG)
        logger.propagate = False
        logger.addHandler(logging.NullHandler())
        logging.disable(logging.CRITICAL)

    before = state()
    run(change)
    assert state() == before


def test_what_the_code_registers_for_the_exit_is_forgotten(run):
    before, register = atexit._ncallbacks(), atexit.register
    run(lambda: atexit.register(lambda: None))
    assert atexit._ncallbacks() == before
    assert atexit.register is register


def test_what_a_library_registers_for_the_exit_stays():
    of_library = compile("atexit.register(logging.shutdown)", logging.__file__, "exec")
    before = atexit._ncallbacks()
    with unchanged_surroundings():
        exec(of_library, {"atexit": atexit, "logging": logging})
    assert atexit._ncallbacks() == before + 1
    atexit.unregister(logging.shutdown)
    atexit.register(logging.shutdown)


def test_one_thing_that_cannot_be_put_back_does_not_keep_the_others_from_it(monkeypatch):
    torch.manual_seed(0)
    state = torch.get_rng_state()

    def fail(*args):
        raise OSError("no such folder")

    def change():
        torch.randn(3)
        monkeypatch.setattr(random, "setstate", fail)
        monkeypatch.setattr(gc, "set_threshold", fail)

    with pytest.raises(OSError, match="no such folder"), unchanged_surroundings():
        change()
    assert torch.equal(torch.get_rng_state(), state)
