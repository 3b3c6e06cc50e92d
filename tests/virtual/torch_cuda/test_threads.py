"""Threads of user code use the card as well, and only as long as it is on."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

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
        goes_on.wait(20)
        results.append((torch.ones(3) + 1).tolist())

    with VirtualGPU(lookup("T4")) as gpu:
        thread = threading.Thread(target=work)
        thread.start()
        begun.wait(20)
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
