"""What is read at sampled places is what they were sampled by."""

from __future__ import annotations

import pytest
import torch

from gpumem_magic import predict

SAMPLED = """
labels = torch.randn(90000, device='cuda').long()
objects, background = torch.zeros_like(labels), torch.zeros_like(labels)
few = torch.where(labels >= 1)[0]
many = torch.where(labels == 0)[0]
objects[few[torch.randperm(len(few), device='cuda')[:20]]] = 1
background[many[torch.randperm(len(many), device='cuda')[:70]]] = 1
places = torch.where(objects | background)[0]
"""


def found(source):
    report = predict(f"{SAMPLED}{source}", {"torch": torch}, gpu="T4")
    assert report.error is None, report.error
    return int(report.output)


def test_objects_are_as_many_as_were_sampled():
    assert found("print(len(places))") == 90
    assert found("print(len(torch.where(labels[places] > 0)[0]))") == 20


@pytest.mark.parametrize(
    "source",
    [
        "labels[places] = 3",
        "labels = torch.randn(90000, device='cuda').long()",
        "places = places + 1",
    ],
)
def test_else_all_places_may_be_of_objects(source):
    assert found(f"{source}\nprint(len(torch.where(labels[places] > 0)[0]))") == 90


def test_what_was_there_before_is_no_part_of_the_background():
    source = "background[few] = 1\nplaces = torch.where(objects | background)[0]\n"
    assert found(f"{source}print(len(torch.where(labels[places] > 0)[0]))") > 20
