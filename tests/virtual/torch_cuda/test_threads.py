"""Threads of user code use the card as well, and only as long as it is on."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gpumem_magic.virtual.catalog import lookup
from gpumem_magic.virtual.gpu import VirtualGPU


def test_threads_make_move_and_train(gpu):
    def work(seed):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 1)).to("cuda")
        net(torch.ones(4, 8, device="cuda")).sum().backward()
        return net[0].weight.grad

    with ThreadPoolExecutor(3) as pool:
        gradients = list(pool.map(work, range(6)))
    assert all(gradient.is_cuda for gradient in gradients)


def test_blocks_of_many_threads_are_all_counted(gpu, allocated):
    def work(results):
        for _ in range(40):
            x = torch.ones(1000, device="cuda")
            results.append((x * 2).sum() + 0)

    kept = [[] for _ in range(4)]
    threads = [threading.Thread(target=work, args=(results,)) for results in kept]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(results) for results in kept] == [40] * 4
    assert allocated() == 4 * 40 * 512
    kept.clear()
    assert allocated() == 0


def test_a_thread_that_outlives_the_card_is_a_thread_of_the_host():
    begun, goes_on, results = threading.Event(), threading.Event(), []

    def work():
        results.append(torch.ones(3, device="cuda").is_cuda)
        begun.set()
        goes_on.wait(60)
        results.append((torch.ones(3) + 1).tolist())

    with VirtualGPU(lookup("T4")) as gpu:
        thread = threading.Thread(target=work)
        thread.start()
        begun.wait(60)
    goes_on.set()
    thread.join()
    assert results == [True, [2, 2, 2]]
    assert gpu.allocator.allocated == 0


def test_loaders_with_workers_and_pinned_memory(gpu):
    data = TensorDataset(torch.arange(20.0).reshape(20, 1), torch.arange(20))
    seen = []
    for inputs, labels in DataLoader(data, batch_size=5, num_workers=2, pin_memory=True):
        assert inputs.is_pinned()
        assert not inputs.is_cuda
        seen += (inputs.to("cuda", non_blocking=True)[:, 0] + labels.cuda()).tolist()
    assert seen == [2.0 * number for number in range(20)]


def test_a_threads_traceback_has_frames_of_the_user_alone(gpu, capsys):
    def fail():
        raise ValueError("of the user")

    thread = threading.Thread(target=fail)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading, "excepthook", threading.__excepthook__)
        thread.start()
        thread.join()
    told = capsys.readouterr().err
    assert "of the user" in told
    assert "gpumem_magic" not in told


class Batch:
    """What user code may put into a queue."""

    def __init__(self, images):
        self.images = images


def test_a_queue_refuses_what_another_process_cannot_have(gpu):
    queue = torch.multiprocessing.get_context("spawn").Queue()
    there = torch.ones(3, device="cuda")
    for value in (
        {"weights": [there]},
        Batch(there),
        [Batch({"a": (there,)})],
        nn.Linear(1, 1).cuda(),
    ):
        with pytest.raises(NotImplementedError, match="cannot be shared with another process"):
            queue.put(value)
    with pytest.raises(NotImplementedError, match="cannot be shared with another process"):
        torch.multiprocessing.SimpleQueue().put(there)
    queue.put({"weights": [1.0]})
    assert queue.get() == {"weights": [1.0]}
    queue.close()
    queue.join_thread()


USES = {
    "a tensor": lambda: torch.ones(3, device="cuda"),
    "waiting": torch.cuda.synchronize,
    "its properties": lambda: torch.cuda.get_device_properties(0),
    "its number": torch.cuda.current_device,
}


@pytest.mark.parametrize("use", USES)
def test_a_forked_process_cannot_use_the_card(gpu, use):
    kept = torch.ones(3, device="cuda")
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            told = f"{torch.cuda._is_in_bad_fork()} {USES[use]()}"
        except RuntimeError as error:
            told = str(error)
        os.write(writing, told.encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 100).startswith(b"Cannot re-initialize CUDA in forked subprocess")
    os.close(reading)
    os.close(writing)
    assert not torch.cuda._is_in_bad_fork()
    assert (kept + 1).is_cuda
