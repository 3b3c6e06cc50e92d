"""Warnings that C++ raises below the façade name the user's line, for filters too."""

from __future__ import annotations

import inspect
import warnings

import pytest
import torch

from gpumem_magic.virtual.catalog import lookup
from gpumem_magic.virtual.gpu import VirtualGPU

HERE = __name__


def copied(device):
    return torch.tensor(torch.ones(2, device=device))


def varied(device):
    return torch.ones(1, device=device).var()


@pytest.mark.parametrize("warns", [copied, varied])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_warning_of_cpp_is_of_the_users_line(gpu, warns, device):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        warns(device)
    line = inspect.getsourcelines(warns)[1] + 1
    assert [(one.filename, one.lineno) for one in told] == [(__file__, line)]
    assert "__warningregistry__" not in vars(inspect.getmodule(VirtualGPU))


@pytest.mark.parametrize("module", [HERE, "gpumem_magic"])
def test_filters_by_module_see_the_users(gpu, module):
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.filterwarnings("error", module=module)
        if module == HERE:
            with pytest.raises(UserWarning):
                copied("cuda")
        else:
            with pytest.warns(UserWarning, match="copy construct"):
                copied("cuda")


def test_each_line_warns_once(gpu):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        for _ in range(2):
            copied("cuda")
        torch.tensor(torch.ones(2))
        last = inspect.currentframe().f_lineno - 1
    assert [one.lineno for one in told] == [inspect.getsourcelines(copied)[1] + 1, last]


def test_what_shows_warnings_is_back_when_the_card_is_off():
    before = warnings.warn, warnings._showwarnmsg
    with VirtualGPU(lookup("T4")):
        assert warnings.warn is not before[0]
        assert (warnings.warn.__name__, warnings.warn.__module__) == ("warn", "_warnings")
    assert (warnings.warn, warnings._showwarnmsg) == before
