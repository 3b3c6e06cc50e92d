"""Some of the attacks of the other files where predictions use a fresh process."""

from __future__ import annotations

from . import (
    test_captured,
    test_files,
    test_modules,
    test_native,
    test_network,
    test_objects,
    test_process_state,
    test_processes,
    test_resources,
    test_tensors,
    test_threads,
)

TABLES = {
    module.__name__.rpartition("_")[2]: module.ATTACKS
    for module in (
        *(test_captured, test_files, test_modules, test_native, test_network, test_objects),
        *(test_process_state, test_processes, test_resources, test_tensors, test_threads),
    )
}
EVERY = 12
NOT_SENT = {
    *("native sqlite backup and attach", "native libc stream", "native libc folder and mask"),
    *("network libc connect", "objects a generator", "objects lines of a file"),
    *("processes a queue with a thread", "threads queues"),
}
"""They need a connection, a library, an iterator or a queue, which cannot be sent to a process."""

TOO_LONG = {"resources ten in a row"}
"""A fresh process takes seconds."""


def fresh(attack):
    fields = {"attack": attack} if isinstance(attack, str) else attack
    return {**fields, "environ": {"GPUMEM_MAGIC_PROCESS": "fresh"}}


ATTACKS = {
    f"{table} {name}": fresh(attack)
    for table, attacks in TABLES.items()
    for name, attack in list(attacks.items())[::EVERY]
    if f"{table} {name}" not in NOT_SENT | TOO_LONG
}


def test_nothing_outside_changes(attack, play):
    play(attack)
