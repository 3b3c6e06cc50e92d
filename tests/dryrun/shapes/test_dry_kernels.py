"""What a dry run makes in place of results."""

import pytest

from gpumem_magic import predict


@pytest.mark.parametrize("n", [64, 1024])
def test_zeros_of_the_formulas_of_tangents_take_no_memory(n):
    report = predict(f'import torch\nz = torch._efficientzerotensor(({n}, {n}), device="cuda")', {})
    assert report.error is None
    assert report.peak.allocated == 0
