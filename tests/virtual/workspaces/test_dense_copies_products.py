"""Copies of matrices that cuBLAS cannot read as they lie."""

from __future__ import annotations

import pytest
import torch

from gpumem_magic.virtual.workspaces.dense_copies import product_copies

CUBLAS = 8_519_680


def _matrix(rows, columns, down, along):
    return torch.empty_strided((rows, columns), (down, along))


@pytest.mark.parametrize(
    ("down", "along", "is_copied"),
    [
        (6, 1, False),  # dense
        (1, 4, False),  # transposed
        (9, 1, False),  # some columns of a wider one
        (1, 8, False),
        (12, 2, True),  # every second column
        (0, 0, True),  # one number
        (1, 0, True),  # one column, repeated
        (0, 1, True),  # one row, repeated
    ],
)
def test_which_matrices_are_copied(down, along, is_copied):
    matrix, other = _matrix(4, 6, down, along), torch.empty(6, 3)
    copies = [4 * 6 * 4] if is_copied else []
    assert product_copies("mm", (matrix, other)) == copies
    assert product_copies("addmm", (torch.empty(3), matrix, other)) == copies
    assert product_copies("mv", (matrix, torch.empty(6))) == copies


def test_the_second_matrix_is_copied_first():
    first, second = _matrix(4, 6, 12, 2), _matrix(6, 3, 0, 0)
    assert product_copies("mm", (first, second)) == [6 * 3 * 4, 4 * 6 * 4]


@pytest.mark.parametrize(
    ("columns", "copies"),
    [(5, [2 * 6 * 5 * 4, 2 * 4 * 6 * 4]), (1, [2 * 4 * 6 * 4, 2 * 6 * 4])],
)
def test_batches_are_copied_in_the_order_of_their_result(columns, copies):
    # GIVEN batches of which every second element is taken
    first = torch.empty(2, 4, 12)[:, :, ::2]
    second = torch.empty(2, 12, 2 * columns)[:, ::2, ::2]
    # THEN both are copied; a result of one column is not transposed
    assert product_copies("bmm", (first, second)) == copies
    assert product_copies("baddbmm", (torch.empty(1), first, second)) == copies


@pytest.mark.parametrize("swapped", [False, True])
def test_batches_with_dense_rows_or_columns_are_read_as_they_lie(swapped):
    first, second = torch.empty(2, 9, 4, 6)[:, 0], torch.empty(6, 2, 5).transpose(0, 1)
    if swapped:
        first, second = second.transpose(1, 2), first.transpose(1, 2)
    assert product_copies("bmm", (first, second)) == []


def test_a_batch_that_is_one_number_is_copied():
    one = torch.ones(()).expand(2, 4, 6)
    assert product_copies("bmm", (one, torch.empty(2, 6, 5))) == [2 * 4 * 6 * 4]


def test_one_number_as_a_vector_is_copied_before_the_matrix():
    vector = torch.ones(()).expand(6)
    assert product_copies("mv", (torch.empty(4, 6), vector)) == [6 * 4]
    assert product_copies("addmv", (torch.empty(4), _matrix(4, 6, 12, 2), vector)) == [24, 96]


def test_the_gradient_of_a_sum_is_copied_for_both_products(gpu, blocks):
    x = torch.ones(64, 32, device="cuda", requires_grad=True)
    weight = torch.ones(32, 16, device="cuda", requires_grad=True)
    loss = (x @ weight).sum()
    blocks()
    # WHEN its gradient, 64 x 16 times the same number, goes backward
    loss.backward()
    # THEN a copy is made for each product, after its result
    made = 64 * 16 * 4
    assert blocks() == [
        4,
        *(32 * 16 * 4, made, CUBLAS, -made),
        *(64 * 32 * 4, made, -made),
        -4,
    ]
