from __future__ import annotations

import io
import random
import socket
import sys
import threading
import warnings
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gpumem_magic.sources.virtual.catalog import lookup
from gpumem_magic.sources.virtual.gpu import VirtualGPU


def test_generators_are_not_advanced(lend, run):
    space = run("def count():\n    yield 1\n    yield 2\nit = count()\npairs = zip(it, 'ab')", {})
    with lend(space):
        with pytest.raises(NotImplementedError, match="cannot advance the generator `it`"):
            next(space["it"])
        with pytest.raises(NotImplementedError, match="generator"):
            list(space["pairs"])
    assert next(space["it"]) == 1


def test_iterators_over_containers_are_copied_at_their_place(lend):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        steps = iter([1, 2, 3])
        next(steps)
        with lend(space := {"steps": steps}):
            assert list(space["steps"]) == [2, 3]
    assert next(steps) == 2


def test_loaders_samplers_and_datasets(lend):
    data = TensorDataset(torch.arange(6.0))
    loader = DataLoader(data, batch_size=2, shuffle=True, generator=torch.Generator())
    steps = iter(loader)
    space = {"loader": loader, "data": data, "steps": steps}
    state = loader.generator.get_state().clone()
    with lend(space) as found:
        assert space["loader"].dataset is space["data"] is not data
        assert len(list(space["loader"])) == 3
        with pytest.raises(NotImplementedError, match="iterator of a DataLoader `steps`"):
            next(space["steps"])
        assert found.notes == ()
    assert torch.equal(loader.generator.get_state(), state)
    assert len(list(steps)) == 3


def test_random_generators_draw_the_same_and_do_not_move_yours(lend):
    makers = {
        "python": (random.Random(1), lambda g: g.random()),
        "numpy": (np.random.default_rng(1), lambda g: g.random()),
        "old": (np.random.RandomState(1), lambda g: g.rand()),
        "torch": (torch.Generator().manual_seed(1), lambda g: torch.rand(1, generator=g).item()),
    }
    space = {name: generator for name, (generator, _) in makers.items()}
    with lend(space) as found:
        dry = {name: draw(space[name]) for name, (_, draw) in makers.items()}
        assert found.notes == ()
    assert {name: draw(space[name]) for name, (_, draw) in makers.items()} == dry


def test_locks_are_new_and_locked_as_yours(lend):
    lock, taken = threading.Lock(), threading.Lock()
    taken.acquire()
    space = {"lock": lock, "taken": taken, "again": threading.RLock(), "on": threading.Event()}
    with lend(space) as found:
        assert space["taken"].locked()
        space["lock"].acquire()
        space["again"].acquire()
        space["on"].set()
        assert found.notes == ()
    assert not lock.locked()
    assert not space["on"].is_set()


def test_weak_references_lead_to_the_copies(lend):
    model = nn.Linear(1, 1)
    space = {
        "weak": weakref.ref(model),
        "model": model,
        "proxies": weakref.WeakSet([model]),
        "table": weakref.WeakKeyDictionary({model: [1]}),
        "values": weakref.WeakValueDictionary(a=model),
    }
    with lend(space) as found:
        copied = space["model"]
        assert space["weak"]() is copied is not model
        assert list(space["proxies"]) == [copied]
        assert space["table"][copied] == [1]
        assert space["values"]["a"] is copied
        assert found.notes == ()


def test_weak_references_to_what_others_hold_are_not_dead(lend):
    holder = [nn.Linear(1, 1)]
    with lend(space := {"weak": weakref.ref(holder[0])}):
        assert space["weak"]() is not None


def test_files(lend, tmp_path):
    path = tmp_path / "log.txt"
    path.write_text("one\ntwo\n")
    with path.open() as reading, path.open("rb") as raw, (tmp_path / "new").open("w") as writing:
        reading.readline()
        raw.read(2)
        memory = io.StringIO("abc")
        space = {"r": reading, "b": raw, "w": writing, "memory": memory, "out": sys.stdout}
        with lend(space) as found:
            assert space["r"].read() == "two\n"
            assert space["b"].read(1) == b"e"
            space["w"].write("gone")
            space["memory"].read()
            assert space["out"] is sys.stdout
            space["w"].close()
            assert any("w is left out" in note for note in found.notes)
        assert reading.readline() == "two\n"
        assert raw.read(1) == b"e"
        assert memory.read() == "abc"
        writing.write("kept")
    assert (tmp_path / "new").read_text() == "kept"


def test_arrays(lend):
    small, large = np.arange(4.0), np.zeros(9 * 2**20)
    objects = np.array([[1], "a"], dtype=object)
    space = {"small": small, "large": large, "objects": objects}
    with lend(space) as found:
        space["small"][0] = 9
        space["objects"][0].append(2)
        with pytest.raises(ValueError, match="read-only"):
            space["large"][0] = 1
        assert space["large"].base is large
        assert ["large" in note for note in found.notes] == [True]
    assert small[0] == 0
    assert objects[0] == [1]
    large[0] = 1


def test_what_cannot_be_copied_is_shared_and_named_by_its_path(lend):
    ours, theirs = socket.socketpair()
    with ours, theirs, lend(space := {"held": {"link": [ours]}, "items": [1]}) as found:
        assert space["held"]["link"][0] is ours
        assert space["held"]["link"] is not None
        assert len(found.notes) == 1
        assert found.notes[0].startswith("held['link'][0] (socket) cannot be copied")


def test_a_cache_starts_empty_and_yours_is_not_added_to(lend, run):
    code = (
        "import functools\n@functools.lru_cache(maxsize=3)\ndef twice(x): return [x, x]\ntwice(1)"
    )
    space = run(code, {})
    with lend(space) as found:
        space["twice"](2)
        assert space["twice"].cache_parameters() == {"maxsize": 3, "typed": False}
        assert any("lru_cache" in note for note in found.notes)
    assert space["twice"].cache_info().currsize == 1


def test_scripted_modules_have_our_tensors(lend):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    before = [p.detach().clone() for p in model.parameters()]
    space = {"model": model, "optimizer": optimizer, "data": torch.randn(4, 2)}
    expected = model(space["data"])
    buffers = [b.clone() for b in model.buffers()]
    with lend(space) as found:
        assert found.notes == ()
        assert torch.equal(space["model"](space["data"]), expected)
        first = space["optimizer"].param_groups[0]["params"][0]
        assert first is next(space["model"].parameters())
        space["model"](space["data"]).pow(2).sum().backward()
        space["optimizer"].step()
        assert not torch.equal(next(space["model"].parameters()), before[0])
    assert all(map(torch.equal, model.parameters(), before))
    assert all(map(torch.equal, model.buffers(), buffers))


def test_a_loss_scaler_in_the_middle_of_a_step_knows_the_copied_optimizer(lend):
    layer = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(layer(torch.ones(1, 1)).sum()).backward()
    scaler.unscale_(optimizer)
    with lend(space := {"scaler": scaler, "optimizer": optimizer}):
        with pytest.raises(RuntimeError, match="already been called"):
            space["scaler"].unscale_(space["optimizer"])
        space["scaler"].step(space["optimizer"])
        space["scaler"].update()
    scaler.step(optimizer)


def test_generators_of_a_virtual_card(lend):
    with VirtualGPU(lookup("T4")):
        generator = torch.Generator("cuda").manual_seed(3)
        state = generator.get_state().clone()
        with lend(space := {"generator": generator}):
            copied = space["generator"]
            assert copied is not generator
            assert copied.device.type == "cuda"
            torch.rand(2, generator=copied, device="cuda")
            assert not torch.equal(copied.get_state(), state)
        assert torch.equal(generator.get_state(), state)
