"""The table `ATTACKS` of each file here is played: what is outside a prediction stays as it is.

Every attack has a process of its own (stage/troupe.py forks it), with a real shell; what is looked
at before and after is in stage/. ISOLATION=real runs the attacks instead of predicting them: each
must change something, else it proves nothing. ISOLATION_LOG=FILE keeps the outcomes.
GPUMEM_MAGIC_PROCESS=fresh predicts all of them in fresh processes, 3 s of a processor each; those
that need what cannot be sent are skipped: where a name is undefined and told (`unsent`), once
nothing has changed; others by their `not_sent`, which says what.
"""

from __future__ import annotations

import faulthandler
import importlib.util
import json
import os
import pickle
import re
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from textwrap import dedent

import pytest

pytest.importorskip("torch")

STAGE = Path(__file__).with_name("stage")
REALLY = os.environ.get("ISOLATION") == "real"
LOG = os.environ.get("ISOLATION_LOG")
FILES = {
    "a.txt": "alpha\nbeta\ngamma\n",
    "data.csv": "x,y\n1,2\n3,4\n5,6\n",
    "sub/c.txt": "inner\n",
    "sub/d.txt": "other\n",
    "counted.py": "calls = []\ntotal = 0\n\ndef call(x):\n    global total\n    total += x\n"
    "    calls.append(x)\n    return total\n",
    "weights.py": "import torch\nSCALE = torch.arange(4.0, device='cuda')\nHOST = torch.ones(2)\n",
}
OF_THE_SHELL = {"get_ipython", "display", "In", "Out", "_", "__", "_oh"}
"""Names that a fresh process has no notebook for."""
PATIENCE = 25
"""Seconds beyond its limit after which an attack's process is ended."""


def pytest_generate_tests(metafunc):
    if "attack" in metafunc.fixturenames and hasattr(metafunc.module, "ATTACKS"):
        table = metafunc.module.ATTACKS
        names = [name.replace(" ", "-") for name in table]
        metafunc.parametrize("attack", list(map(as_cells, table.values())), ids=names)


def as_cells(attack):
    """A row of a table; its cells stand indented there. A mere text is the attack."""
    fields = {"attack": attack} if isinstance(attack, str) else attack
    cells = {
        name: dedent(fields[name]).strip()
        for name in ("setup", "attack", "after")
        if name in fields
    }
    return {**fields, **cells}


class Servers:
    """The process of the servers."""

    def __init__(self, folder):
        command = [sys.executable, str(STAGE / "servers.py"), str(folder)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, **pipes)
        self.addresses = json.loads(self.process.stdout.readline())
        self.record = str(folder / "record")

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


class Troupe:
    """The process that attacks are forked from; a new one, should one of them end it."""

    def __init__(self, servers):
        self.servers = servers
        self.process = None

    def play(self, attack, folder):
        """The outcome: its failures, differences, error, what it said."""
        if self.process is None or self.process.poll() is not None:
            self.start()
        order = self._order(attack, folder)
        print(json.dumps(order), file=self.out, flush=True)
        if select.select([self.answers], [], [], order["seconds"] + PATIENCE)[0]:
            answer = self.answers.readline()
            if answer:
                return json.loads(answer)
        self.process.kill()
        return {"failures": ["it stopped or ended what has nothing to do with it"], "died": True}

    def start(self):
        self.close()
        commands, out = os.pipe()
        answers, into = os.pipe()
        command = [sys.executable, str(STAGE / "troupe.py"), str(commands), str(into)]
        environ = {**os.environ, "PYTHONFAULTHANDLER": ""}
        environ.pop("OMP_NUM_THREADS", None)  # the threads that users' torch has
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, pass_fds=(commands, into), env=environ
        )
        os.close(commands)
        os.close(into)
        self.out, self.answers = open(out, "w"), open(answers)  # noqa: PTH123, SIM115
        assert self.answers.readline(), "the attacks' process does not start"

    def _order(self, attack, folder):
        folders = {name: str(folder / name) for name in ("work", "tmp", "home", "outside")}
        for each in folders.values():
            Path(each).mkdir()
        for name, text in FILES.items():
            path = folder / "work" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        (folder / "work" / "b.bin").write_bytes(bytes(range(256)))
        (folder / "tmp" / "old.tmp").write_text("old")
        (folder / "outside" / "kept.txt").write_text("kept")
        Path(self.servers.record).write_text("")
        limit = attack.get("limit", 30) * (5 if is_fresh(attack) else 1)  # it imports torch
        sent = {key: value for key, value in attack.items() if key not in ("environ", "not_sent")}
        return {
            "attack": {**sent, "limit": limit},
            "folders": folders,
            "record": self.servers.record,
            "names": {**self.servers.addresses, **folders},
            "environ": {
                **{"TMPDIR": folders["tmp"], "HOME": folders["home"]},
                "IPYTHONDIR": str(folder / "ipython"),
                "MPLCONFIGDIR": os.environ.get("MPLCONFIGDIR", str(Path.home() / ".cache/mpl")),
                **attack.get("environ", {}),
            },
            "result": str(folder / "result.json"),
            "really": REALLY,
            "seconds": 6 if REALLY else limit + attack.get("wait", 0) + PATIENCE,
        }

    def close(self):
        if self.process is not None:
            self.out.close()
            self.answers.close()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


@pytest.fixture(scope="session")
def _servers(tmp_path_factory):
    servers = Servers(tmp_path_factory.mktemp("servers"))
    yield servers
    servers.close()


@pytest.fixture(scope="session")
def _troupe(_servers):
    troupe = Troupe(_servers)
    troupe.start()
    yield troupe
    troupe.close()


@pytest.fixture
def _folder():
    """With a short path: sockets of multiprocessing lie below it, and may have 107 characters."""
    with tempfile.TemporaryDirectory(prefix="play-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture
def play(_troupe, _folder, request):
    """Play an attack; fails with everything that was not as it should be."""

    def play(attack):
        for module in attack.get("needs", "").split():
            if importlib.util.find_spec(module) is None:
                pytest.skip(f"{module} is not installed")
        if is_fresh(attack) and "not_sent" in attack:
            pytest.skip(f"{attack['not_sent']} cannot be sent to another process")
        outcome = _troupe.play(attack, _folder)
        if LOG:
            with Path(LOG).open("a") as log:
                print(json.dumps({"name": request.node.name, **outcome}), file=log)
        if REALLY:
            for left in Path("/dev/shm").glob("isolation_*"):
                left.unlink()
            changes = outcome.get("died") or outcome["differences"] or not attack.get("real", True)
            assert changes, f"it changes nothing: {outcome}"
            flaws = [flaw for flaw in outcome["failures"] if flaw.startswith("flaw of the test")]
            assert not flaws, flaws
        elif outcome["failures"]:
            if name := unsent(attack, outcome):
                pytest.skip(f"{name} cannot be sent to another process")
            pytest.fail("\n".join([attack["attack"], "", *outcome["failures"]]), pytrace=False)

    return play


def is_fresh(attack):
    """Whether a fresh process predicts it."""
    return {**os.environ, **attack.get("environ", {})}.get("GPUMEM_MAGIC_PROCESS") == "fresh"


def unsent(attack, outcome):
    """The name for whose lack an attack did not happen in a fresh process, where nothing changed:
    open files, connections, iterators, locks, the notebook's shell. It has to be told, but for the
    shell."""
    harmless = ("the attack did not happen", "ended without", "refused")
    missing = re.match("NameError: name '(\\w+)' is not defined", outcome.get("error") or "")
    if not is_fresh(attack) or not missing:
        return ""
    told = re.findall(
        r"cannot be sent to its process: ([\w, ]+)", " ".join(outcome["said"].split())
    )
    sent_never = OF_THE_SHELL.union(*(names.split(", ") for names in told))
    others = [f for f in outcome["failures"] if not f.startswith(harmless) and "is not " not in f]
    return missing[1] if missing[1] in sent_never and not others else ""


@pytest.fixture
def in_child():
    """Calls `function(pipe)` in a forked child: its result, or the number of the signal that ended
    it; what it raises is raised here. pipe: the descriptor that the child has to keep."""
    return _in_child


def _in_child(function):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        _answer(function, write)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        if not select.select([pipe], [], [], 60)[0]:
            os.kill(child, signal.SIGKILL)
        told = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status < 0:
        return -status
    result, error = pickle.loads(told)
    if error is not None:
        raise error
    return result


def _answer(function, write):
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(50)
    faulthandler.disable()  # some are to die of a signal
    try:
        answer = function(write), None
    except BaseException as error:
        answer = None, AssertionError(f"{type(error).__name__}: {error}")
    try:
        os.write(write, pickle.dumps(answer))
    finally:
        os._exit(0)
