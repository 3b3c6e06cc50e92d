"""The shell goes on as if the dry run's code had never been there."""

from __future__ import annotations

import sys

import pytest

from gpumem_magic.sources.virtual.dryrun.surroundings import unchanged_surroundings


def state(shell):
    history, hook = shell.history_manager, shell.displayhook
    lists = ("input_hist_parsed", "input_hist_raw", "output_hist", "output_hist_reprs", "dir_hist")
    return {
        "count": shell.execution_count,
        "hidden": dict(shell.user_ns_hidden),
        "history": [type(getattr(history, n))(getattr(history, n)) for n in lists],
        "inputs": [getattr(history, n, None) for n in ("_i", "_ii", "_iii", "_i00")],
        "outputs": (hook._, hook.__, hook.___),
        "events": {event: list(functions) for event, functions in shell.events.callbacks.items()},
        "magics": {kind: dict(m) for kind, m in shell.magics_manager.magics.items()},
        "transformers": (list(shell.ast_transformers), list(shell.input_transformers_cleanup)),
        "publisher": shell.display_pub,
        "traceback": getattr(shell.InteractiveTB, "tb", None),
        "result": shell.last_execution_result,
    }


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_nothing_in_the_shell_changes(shell, error):
    shell.run_cell("40 + 2", store_history=True)
    before = state(shell)

    def change():
        shell.execution_count = 99
        shell.user_ns_hidden["x"] = 1
        shell.displayhook.update_user_ns(7)
        shell.history_manager.store_inputs(99, "lost")
        shell.history_manager.output_hist_reprs[99] = "7"
        shell.events.register("post_run_cell", lambda *args: None)
        shell.register_magic_function(lambda line: None, "line", "invented")
        shell.register_magic_function(lambda line: None, "line", "time")
        shell.ast_transformers.append(object())
        shell.input_transformers_cleanup.append(print)
        try:
            raise RuntimeError
        except RuntimeError:
            shell.InteractiveTB.tb = sys.exc_info()[2]
        shell.display_pub = type(shell.display_pub)()

    try:
        with unchanged_surroundings():
            change()
            if error is not None:
                raise error
    except (ValueError, KeyboardInterrupt):
        pass
    assert state(shell) == before
    # AND the next cell has the next number
    assert shell.run_cell("Out[1]", store_history=True).result == 42
    assert shell.execution_count == before["count"] + 1


def test_the_history_in_the_data_base_is_untouched(shell):
    shell.run_cell("kept = 1", store_history=True)
    manager = shell.history_manager
    with unchanged_surroundings():
        manager.store_inputs(9, "lost = 1")
    manager.writeout_cache()
    assert [line for *_, line in manager.get_tail(9, include_latest=True)] == ["kept = 1"]


def test_what_a_library_registers_on_its_import_stays(shell):
    from IPython.core import pylabtools

    library = pylabtools.getfigs
    with unchanged_surroundings():
        shell.events.register("post_run_cell", library)
    assert library in shell.events.callbacks["post_run_cell"]
    shell.events.unregister("post_run_cell", library)
