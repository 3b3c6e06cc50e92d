from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from gpumem_magic.sources.cuda.regions import STEP, STEPPED
from gpumem_magic.sources.objects.labels import (
    OwnerWatch,
    Workspace,
    label_owners,
    label_workspaces,
    lt_workspace_size,
    workspace_sizes,
)
from gpumem_magic.sources.objects.owners import Owned
from gpumem_magic.values.recording import Action, Category, Events, Label, LiveBlocks, Phase

torch = pytest.importorskip("torch")

CUBLAS = 8_519_680
MIB = 1 << 20
NONE = LiveBlocks(*(np.array([], np.int64) for _ in range(3)))


def allocations(*rows):
    """Events that allocate (address, requested, phase), one after the other."""
    address, requested, phase = (np.array(column) for column in zip(*rows, strict=True))
    count = len(rows)
    return Events(
        np.full(count, Action.ALLOC, np.int8),
        address.astype(np.int64),
        requested.astype(np.int64),
        requested.astype(np.int64),
        np.full(count, -1, np.int32),
        phase.astype(np.int8),
        np.zeros(count),
    )


def owned(address, name="x"):
    return Owned(address, Category.PARAMETER, name, (2,), "float32", False)


def test_owners_on_other_devices_are_left_out():
    events = allocations((512, 100, Phase.FORWARD))
    initial = LiveBlocks(np.array([4096]), np.array([512]), np.array([100]))
    labels = label_owners([(1, (owned(512), owned(4096, "y"), owned(9999, "z")))], events, initial)
    assert labels == (
        Label(1, 512, Category.PARAMETER, "x", (2,), "float32"),
        Label(1, 4096, Category.PARAMETER, "y", (2,), "float32"),
    )


def test_workspaces_are_what_nobody_owns_and_stays():
    events = allocations(
        (512, CUBLAS, Phase.FORWARD),
        (1024, CUBLAS, Phase.BACKWARD),
        (2048, CUBLAS, Phase.BACKWARD),  # gone at the end
        (3072, CUBLAS, Phase.OPTIMIZER),
        (4096, CUBLAS, Phase.FORWARD),  # a tensor of the same size
        (8192, 1 << 20, Phase.FORWARD),
    )
    initial = LiveBlocks(np.array([99]), np.array([CUBLAS]), np.array([CUBLAS]))
    labels = (Label(6, 4096, None, "x"),)
    alive = frozenset({99, 512, 1024, 3072, 4096, 8192})
    found, workspaces = label_workspaces(labels, events, initial, alive, {})
    assert [(label.address, label.position) for label in found] == [(99, 0), (512, 1), (1024, 2)]
    assert {label.name for label in found} == {"cuBLAS workspace"}
    assert workspaces == {a: Workspace("cuBLAS workspace", CUBLAS) for a in (99, 512, 1024)}


def test_cublaslts_workspace_follows_that_of_cublas_in_the_same_call():
    events = allocations(
        (512, MIB, Phase.FORWARD),
        (1024, CUBLAS, Phase.FORWARD),
        (2048, MIB, Phase.FORWARD),
        (4096, MIB, Phase.FORWARD),
    )
    found, workspaces = label_workspaces((), events, NONE, frozenset({512, 1024, 2048, 4096}), {})
    names = [(label.address, label.name) for label in found]
    assert names == [(1024, "cuBLAS workspace"), (2048, "cuBLASLt workspace")]
    # WHEN the next cell begins with these blocks, one of them replaced by another
    initial = LiveBlocks(
        *(np.array(column) for column in ([1024, 2048, 8192], [0] * 3, [CUBLAS, MIB, MIB]))
    )
    again, _ = label_workspaces((), allocations((9, 9, 0)), initial, frozenset({1024}), workspaces)
    assert [(label.address, label.position) for label in again] == [(1024, 0), (2048, 0)]
    initial = LiveBlocks(*(np.array(column) for column in ([1024, 2048], [0] * 2, [CUBLAS, 700])))
    again, _ = label_workspaces((), allocations((9, 9, 0)), initial, frozenset({1024}), workspaces)
    assert [label.address for label in again] == [1024]


@pytest.mark.parametrize(("config", "size"), [("", MIB), ("4096", 4 * MIB), ("x", MIB)])
def test_sizes_of_cublaslts_workspaces(config, size):
    assert lt_workspace_size(config) == size


@pytest.mark.parametrize(
    ("config", "sizes"),
    [
        ("", (8_519_680, 33_554_432)),
        (":4096:2:16:8", (8_519_680,)),
        (":16:8", (131_072,)),
        ("nonsense", (8_519_680, 33_554_432)),
        (":16:x", (8_519_680, 33_554_432)),
    ],
)
def test_sizes_of_workspaces(config, sizes):
    assert workspace_sizes(config) == sizes


def test_the_first_moment_of_each_kind_is_always_looked_at():
    watch = OwnerWatch(lambda: {"x": torch.ones(1)}, lambda: 0, lambda tensor: 1)
    for kind in ("a", "a", "b", "a", "b"):
        watch.look(kind, lambda: 7)
    assert [mark for mark, _ in watch.seen] == [7, 7]


def test_every_moment_is_looked_at_where_that_is_little_work():
    events = iter(range(0, 1000, 100))
    watch = OwnerWatch(lambda: {"x": torch.ones(1)}, lambda: next(events), lambda tensor: 1)
    for mark in range(5):
        watch.look("a", lambda mark=mark: mark)
    assert [mark for mark, _ in watch.seen] == [0, 1, 2, 3, 4]


def test_many_objects_are_looked_at_the_more_seldom():
    # GIVEN a look at 10 storages, which is worth 200 events
    names = {f"x{i}": torch.ones(1) for i in range(10)}
    events = iter(range(0, 1200, 100))
    watch = OwnerWatch(lambda: names, lambda: next(events), id)
    for mark in range(12):
        watch.look("a", lambda mark=mark: mark)
    assert [mark for mark, _ in watch.seen] == [0, 4, 6, 8, 10]


def test_names_that_cannot_be_read_are_no_error_of_the_cell():
    def namespaces():
        raise KeyError("gone")

    watch = OwnerWatch(namespaces, lambda: 0)
    watch.look("end", lambda: 0)
    assert watch.seen == []
    assert "KeyError" in watch.failure


def test_a_nested_tensor_has_the_sizes_that_are_numbers():
    rows = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)], layout=torch.jagged)
    watch = OwnerWatch(lambda: {"rows": rows}, lambda: 0)
    watch.read_names()
    facts = watch.names.tensors["rows"]
    assert (watch.failure, facts.shape) == (None, (2, 4))
    assert facts.size >= 5 * 4 * 4


def test_a_sparse_tensor_has_the_size_of_its_parts():
    watch = OwnerWatch(lambda: {"graph": torch.eye(100).to_sparse()}, lambda: 0)
    watch.read_names()
    assert watch.failure is None
    assert watch.names.tensors["graph"].size == 100 * (2 * 8 + 4)


def test_optimizers_are_not_kept():
    watch = OwnerWatch(dict, lambda: 0)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    watch.look("step", lambda: 0, optimizer)
    gone = weakref.ref(optimizer)
    del optimizer
    gc.collect()  # an optimizer refers to itself
    assert gone() is None


def test_a_step_is_looked_at_again_only_where_it_made_states():
    # GIVEN a watch that looks whenever it may
    watch = OwnerWatch(dict, lambda: 1 << 30)
    parameters = [torch.nn.Parameter(torch.ones(1)) for _ in range(2)]
    parameters[0].grad = torch.ones(1)
    optimizer = torch.optim.Adam(parameters)

    def step(number):
        watch.look(STEP, lambda: number, optimizer)
        optimizer.step()
        watch.look(STEPPED, lambda: number + 0.5, optimizer)

    step(1)
    step(2)
    parameters[1].grad = torch.ones(1)
    step(3)
    assert [mark for mark, _ in watch.seen] == [1, 1.5, 2, 3, 3.5]


def test_a_label_that_repeats_the_last_of_its_block_is_left_out():
    # GIVEN a block at 512 that is taken by the first and by the second event, and one that stays
    events = allocations((512, 100, Phase.FORWARD), (512, 100, Phase.FORWARD))
    stays = LiveBlocks(np.array([4096]), np.array([512]), np.array([100]))
    first, renamed = (owned(512), owned(4096, "y")), (owned(512), owned(4096, "z"))
    # WHEN they are looked at again and again
    seen = [(1, first), (1, first), (2, first), (2, renamed), (2, first)]
    labels = label_owners(seen, events, stays)
    # THEN only what is new is told
    told = [(label.position, label.name) for label in labels]
    assert told == [(1, "x"), (1, "y"), (2, "x"), (2, "z"), (2, "y")]


def test_tensors_elsewhere_have_no_address():
    from gpumem_magic.sources.objects.labels import address_of

    assert address_of(torch.ones(2)) is None
    assert address_of(torch.ones(2).to_sparse()) is None
    assert address_of(torch.ones(2, device="meta")) is None


@pytest.mark.parametrize(
    "text",
    [
        "CUDA out of memory. Tried to allocate 2.00 GiB.",
        "MPS backend out of memory (MPS allocated: 8.50 GB, other allocations: 384.00 KB, max "
        "allowed: 9.07 GB). Tried to allocate 1.00 GB on private pool.",
    ],
)
def test_where_memory_ran_out_it_is_looked_who_holds_what_on_any_device(text):
    x = torch.ones(1)
    watch = OwnerWatch(lambda: {"x": x, "y": [x]}, lambda: 0, lambda tensor: 1)
    watch.read_names(RuntimeError(text))
    assert watch.names.holders == {1: frozenset({"x", "y"})}
