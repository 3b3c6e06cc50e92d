"""One attack: a fresh shell, the setup, a picture of everything, the prediction, a second one."""

from __future__ import annotations

import ast
import gc
import os
import re
import signal
import sys
import tempfile
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import libraries
import places
import process
import torch
from digest import Digest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config

REAL_CELL = """
import torch
gpu_values = torch.ones(3, device="cuda")
assert gpu_values.sum().item() == 3
assert (gpu_values + torch.arange(3, device="cuda")).tolist() == [1, 2, 3]
del gpu_values
"""
OWN_NAMES = {"In", "_ih", "_i", "_ii", "_iii", "gpu_report"}
SLIPS = ("NameError", "SyntaxError", "IndentationError", "AttributeError", "TypeError")
SLIPS += ("ModuleNotFoundError", "ImportError", "UnboundLocalError", "AssertionError")
MOST_DIFFERENCES = 12


@dataclass(frozen=True)
class Attack:
    """A cell to be predicted, and what is to be true afterwards.

    setup: a cell that is really run before. attack: the predicted cell. after: a cell really run
    afterwards. options: of %%gpucheck. says: text that the prediction shows. error: it is to end
    with an error; a text: one that says so; None: it may. wait: seconds until the second picture.
    limit: seconds that the prediction may take. repeat: predictions. interrupt: seconds until
    Ctrl-C. needs: modules that it needs. by_function: `predict` outside of any cell instead of the
    magic. real: False where nothing tells it from another cell when it is really run.
    """

    attack: str
    setup: str = ""
    after: str = ""
    options: str = ""
    says: str = ""
    error: bool | str | None = False
    wait: float = 0.0
    limit: float = 30.0
    repeat: int = 1
    interrupt: float = 0.0
    needs: str = ""
    by_function: bool = False
    real: bool = True


@dataclass
class Outcome:
    """What went wrong, and what the prediction said; `real`: of the attack run as it is."""

    failures: list[str] = field(default_factory=list)
    differences: dict[str, list[Any]] = field(default_factory=dict)
    seconds: float = 0.0
    said: str = ""
    error: str | None = None


@dataclass(frozen=True)
class Stage:
    """Where it happens: the folders by name, the servers' record, the names given to the cells."""

    folders: dict[str, str]
    record: str
    names: dict[str, Any]


def new_shell() -> InteractiveShell:
    """A fresh shell with the extension."""
    config = Config()
    config.HistoryManager.hist_file = ":memory:"
    shell = InteractiveShell.instance(config=config)
    with suppress(ValueError):
        shell.colors = "nocolor"
    shell.display_formatter.active_types = ["text/plain"]  # nobody looks at the figures
    run(shell, "%load_ext gpumem_magic\n%gpumem --device T4")
    return shell


def run(shell: InteractiveShell, cell: str):
    """A cell as typed; the result and all that was shown."""
    with capture_output() as shown:
        result = shell.run_cell(cell, store_history=True)
    texts = [output.data.get("text/plain", "") for output in shown.outputs]
    return result, "\n".join([shown.stdout, shown.stderr, *texts])


def perform(attack: Attack, stage: Stage, really: bool) -> Outcome:
    """Play the attack; really: run it instead of predicting it, to see that it does something."""
    outcome = Outcome()
    shell = new_shell()
    shell.user_ns.update(stage.names)
    result, text = run(shell, attack.setup or "pass")
    if not result.success:
        outcome.failures.append(f"flaw of the test: its setup fails\n{text}")
        return outcome
    del result
    before = _take(shell, stage, first=True)
    _predict(attack, shell, outcome, really)
    time.sleep(attack.wait)
    shell.user_ns.pop("gpu_report", None)
    typed = 0 if attack.by_function else attack.repeat
    after = partial(_take, shell, stage, first=False)
    outcome.differences = _differences(before, after, typed)
    if really:
        result, text = run(shell, attack.after)
        outcome.differences |= {} if result.success else {"after": ["true", text]}
        outcome.differences = _attacked(before, outcome.differences)
        return outcome
    outcome.failures += [
        f"changed: {name}: {was} -> {now}" for name, (was, now) in outcome.differences.items()
    ][:MOST_DIFFERENCES]
    for cell in (attack.after, REAL_CELL):
        result, text = run(shell, cell)
        if not result.success:
            outcome.failures.append(f"the next real cell fails:\n{cell}\n{text}")
    return outcome


def _attacked(before: dict[str, str], differences: dict) -> dict:
    """The differences without those that any cell makes: its own new names, its last value."""
    there = before["names"].split()
    return {
        name: change
        for name, change in differences.items()
        if not name.startswith(("names", "name _", "name Out", "shell stored"))
        and (not name.startswith("name ") or re.split(r"[ .\[]", name[5:])[0] in there)
    }


def _predict(attack: Attack, shell: InteractiveShell, outcome: Outcome, really: bool) -> None:
    for _ in range(attack.repeat):
        interrupted: list[float] = []
        if attack.interrupt:
            _interrupt_in(attack.interrupt, interrupted)
        started = time.monotonic()
        result, text = _ask(attack, shell, really)
        ended = time.monotonic()
        outcome.seconds = ended - started
        outcome.said += text
        if really:
            outcome.failures += _slips(result)
        else:
            outcome.failures += _flaws(attack, shell, result, outcome)
            if interrupted and ended - interrupted[0] > 0.5:
                outcome.failures.append(f"interrupted only after {ended - interrupted[0]:.2f} s")
        del result
    gc.collect()


def _slips(result) -> list[str]:
    """What shows that an attack is written wrongly, when it is really run."""
    error = result.error_before_exec or result.error_in_exec
    said = f"{type(error).__name__}: {error}"
    return [f"flaw of the test: {said}"] if said.startswith(SLIPS) else []


def _ask(attack: Attack, shell: InteractiveShell, really: bool):
    if really:
        return run(shell, attack.attack)
    if not attack.by_function:
        options = f"%%gpucheck {attack.options} -o gpu_report"
        return run(shell, f"{options}\n{attack.attack}")
    from gpumem_magic import predict

    with capture_output() as shown:
        report = shell.user_ns["gpu_report"] = predict(attack.attack, shell.user_ns, "T4")
    return None, "\n".join([shown.stdout, shown.stderr, str(report)])


def _interrupt_in(seconds: float, when: list[float]) -> None:
    def interrupt():
        when.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(seconds, interrupt)
    timer.daemon = True
    timer.start()


def _flaws(attack: Attack, shell: InteractiveShell, result, outcome: Outcome) -> list[str]:
    """What is wrong with the prediction itself."""
    found = []
    said, report = outcome.said, shell.user_ns.get("gpu_report")
    raised = None if result is None else result.error_before_exec or result.error_in_exec
    reports = getattr(report, "reports", None) or [getattr(report, "report", report)]
    errors = [each.error for each in reports if getattr(each, "error", None)]
    error = outcome.error = f"{type(raised).__name__}: {raised}" if raised else "".join(errors)
    wanted = KeyboardInterrupt if attack.interrupt else UsageError
    if raised is not None and not isinstance(raised, wanted):
        found.append(f"raised {error}")
    elif report is None and raised is None:
        found.append(f"neither report nor error: {said}")
    if "defect of gpumem_magic" in said or "/gpumem_magic/" in said:
        found.append(f"an error of ours: {said}")
    if outcome.seconds > attack.limit:
        found.append(f"took {outcome.seconds:.1f} s")
    if attack.error and not error:
        found.append(f"ended without an error: {said}")
    if isinstance(attack.error, str) and attack.error not in error + said:
        found.append(f"{attack.error!r} is not in its error {error!r}: {said}")
    if error.startswith(SLIPS) and attack.error is False:
        found.append(f"the attack did not happen: {error}")
    if raised is not None and attack.error is False and not attack.interrupt:
        found.append(f"refused: {error}")
    if attack.interrupt and not isinstance(raised, KeyboardInterrupt):
        found.append(f"no KeyboardInterrupt but {error}")
    if attack.says.lower() not in said.lower():
        found.append(f"{attack.says!r} is not said: {said}")
    return found


def _take(shell: InteractiveShell, stage: Stage, first: bool) -> dict[str, Any]:
    """A picture of everything; the question to the device is a cell, so it comes outermost."""
    found: dict[str, Any] = libraries.ask_device(shell) if first else {}
    gc.collect()
    found |= places.look_at_servers(stage.record)
    digest = Digest(stage.folders["work"])
    for name, value in list(shell.user_ns.items()):
        if _counts(name, shell):
            digest.add(name, value)
    found |= {f"name {path}": said for path, said in digest.found.items()}
    found["names"] = " ".join(name for name in shell.user_ns if _counts(name, shell))
    found |= libraries.look_at_shell(shell)
    found |= libraries.look_at_libraries(stage.folders["work"])
    found |= process.look_at_process()
    found |= places.look_at_folders(stage.folders, stage.folders["tmp"])
    found |= places.look_at_shared_memory()
    return found if first else found | libraries.ask_device(shell)


def _counts(name: str, shell: InteractiveShell) -> bool:
    """Whether a name of the namespace may not change; `live_...` are changed by the setup's."""
    if name in OWN_NAMES or name.startswith("live_") or (name[:2] == "_i" and name[2:].isdigit()):
        return False
    return name not in shell.user_ns_hidden or name in ("_", "__", "___", "_oh", "Out", "_dh")


def _differences(before: dict[str, Any], take, typed: int) -> dict[str, list[Any]]:
    """What lies otherwise; what others do on this machine, and what takes a moment to end, not.

    typed: cells that were typed meanwhile.
    """
    ours = {os.getpid(), *process.descendants(os.getpid())}
    for patience in (0.1, 0.3, 0.6, 0):
        found = {
            name: change
            for name, change in _changes(before, take()).items()
            if not _expected(name, *change, typed)
            and not (name.startswith("shared memory ") and places.is_of_others(name[14:], ours))
        }
        settling = ("shared memory", "process system threads", "process children", "process desc")
        if not found or not all(name.startswith(settling) for name in found) or not patience:
            break
        time.sleep(patience)
    return found


def _changes(before: dict[str, Any], after: dict[str, Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for name in (*after, *(name for name in before if name not in after)):
        was, now = before.get(name), after.get(name)
        if isinstance(was, dict) and isinstance(now, dict) and was != now:
            found |= {f"{name}.{key}": change for key, change in _changes(was, now).items()}
        elif was != now:
            found[name] = [was, now]
    return found


def _expected(name: str, before: str | None, after: str | None, typed: int) -> bool:
    """What a typed cell adds to the shell; and what we import late."""
    if name == "shell count":
        return int(after) - int(before) == typed
    if name == "shell typed":
        old, new = ast.literal_eval(before), ast.literal_eval(after)
        return new[: len(old)] == old and len(new) - len(old) == typed
    return name.startswith("process module gpumem_magic.") and before is None


def perform_safely(attack: Attack, stage: Stage, really: bool) -> Outcome:
    """`perform`; errors of the harness are told as such."""
    torch.cuda._is_in_bad_fork = lambda: False  # a CUDA build knows that this process was forked
    try:
        return perform(attack, stage, really)
    except BaseException:
        sys.setrecursionlimit(10_000)
        said = traceback.format_exc()
        return Outcome([f"flaw of the harness, or worse:\n{said}"], {"worse": ["", said]})


def warm_up() -> None:
    """Import what the first prediction imports, so that later ones import only the attack's."""
    from gpumem_magic import predict

    for code in ("x = torch.ones(9, device='cuda'); print(x)", "torch.ones(1 << 40).cuda()", "1/0"):
        str(predict(f"import torch\n{code}", {}, "T4"))
    torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
    tempfile._get_candidate_names()
    shell = new_shell()
    check = "%%gpucheck\nimport torch\ntorch.ones(9, device='cuda')"
    for cell in (check, REAL_CELL, "1 / 0", "1 +"):
        run(shell, cell)
    InteractiveShell.clear_instance()
    gc.collect()
    gc.freeze()  # else each collection in each attack's process would copy all of its memory
