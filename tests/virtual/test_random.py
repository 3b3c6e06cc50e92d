"""Random numbers of the device: generators, seeds, states."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.usefixtures("gpu")


def test_seeds_reach_the_device():
    torch.manual_seed(3)
    first = torch.rand(3, device="cuda")
    torch.manual_seed(3)
    assert torch.equal(torch.rand(3, device="cuda"), first)
    for seed in (torch.cuda.manual_seed, torch.cuda.manual_seed_all):
        seed(5)
        first = torch.randn(3, device="cuda")
        seed(5)
        assert torch.equal(torch.randn(3, device="cuda"), first)


def test_drawing_on_the_device_leaves_the_hosts_numbers_alone():
    before = torch.get_rng_state()
    torch.rand(3, device="cuda")
    torch.nn.functional.dropout(torch.ones(9, device="cuda"))
    torch.randperm(9, device="cuda")
    assert torch.equal(torch.get_rng_state(), before)


def test_states_of_the_device():
    state = torch.cuda.get_rng_state()
    first = torch.rand(2, device="cuda")
    torch.cuda.set_rng_state(state)
    assert torch.equal(torch.rand(2, device="cuda"), first)
    assert len(torch.cuda.get_rng_state_all()) == 1
    with torch.random.fork_rng():
        torch.rand(9, device="cuda")
    torch.cuda.set_rng_state(state)
    assert torch.equal(torch.rand(2, device="cuda"), first)


def test_a_state_of_a_real_card_is_gone_on_from():
    of_card = torch.tensor([5, 128]).view(torch.uint8)
    torch.cuda.set_rng_state(of_card)
    first = torch.rand(3, device="cuda")
    torch.cuda.set_rng_state(of_card)
    assert torch.equal(torch.rand(3, device="cuda"), first)
    assert torch.cuda.initial_seed() == 5


def test_generators_of_the_device():
    generator = torch.Generator(device="cuda").manual_seed(1)
    assert generator.device == torch.device("cuda", 0)
    assert isinstance(generator, torch.Generator)
    first = [torch.randn(3, device="cuda", generator=generator)]
    first.append(torch.randint(0, 99, (3,), device="cuda", generator=generator))
    first.append(torch.empty(3, device="cuda").uniform_(generator=generator))
    other = torch.Generator("cuda")
    other.manual_seed(1)
    assert torch.equal(torch.randn(3, device="cuda", generator=other), first[0])
    twin = other.clone_state()
    assert twin.device.type == "cuda"
    assert torch.equal(torch.randint(0, 99, (3,), device="cuda", generator=twin), first[1])


MISPLACED = {
    "host generator": lambda host, cuda: torch.randn(3, generator=host, device="cuda"),
    "device generator": lambda host, cuda: torch.randn(3, generator=cuda),
    "permutation": lambda host, cuda: torch.randperm(3, generator=cuda),
    "in place": lambda host, cuda: torch.empty(3, device="cuda").normal_(generator=host),
}


@pytest.mark.parametrize("draw", MISPLACED.values(), ids=MISPLACED)
def test_generators_of_another_device_are_refused_as_by_cuda(draw):
    with pytest.raises(RuntimeError, match=r"Expected a '\w+' device type for generator"):
        draw(torch.Generator(), torch.Generator("cuda"))


def test_generators_of_the_host_are_what_they_were():
    assert type(torch.Generator()) is torch._C.Generator
    assert isinstance(torch.default_generator, torch.Generator)
    generator = torch.Generator().manual_seed(2)
    assert torch.equal(
        torch.rand(2, generator=generator),
        torch.rand(2, generator=torch.Generator("cpu").manual_seed(2)),
    )
