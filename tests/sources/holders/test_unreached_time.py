"""What a look says when its time is short."""

from __future__ import annotations

import pytest

from gpumem_magic.magics.shell_places import shell_roots
from gpumem_magic.sources.holders import take_inventory
from gpumem_magic.values.inventory import HolderKind as Kind

RING = "ring = [torch.ones(1 << 18, device='cuda')]\nring.append(ring)\ndel ring"
MANY = "xs = [[i, {}, torch.zeros(1, requires_grad=True)] for i in range(999)]"


@pytest.mark.parametrize("cells", [[RING], [MANY, RING]])
def test_what_there_was_no_time_for_is_said_to_be_unknown(notebook, cells):
    notebook.run(*cells)

    roots = shell_roots(notebook.shell)
    found = take_inventory(notebook.source, notebook.shell.user_ns, roots, seconds=0.0)

    assert found.size_of(Kind.UNKNOWN) == 1 << 20
    assert "not enough time" in found.notes[0]
    assert notebook.inventory().notes == ()


def test_where_nothing_is_unknown_there_is_no_such_note(notebook):
    notebook.run("x = torch.ones(1 << 18, device='cuda')", MANY)

    roots = shell_roots(notebook.shell)
    found = take_inventory(notebook.source, notebook.shell.user_ns, roots, seconds=0.0)

    assert found.size_of(Kind.UNKNOWN) == 0
    assert found.notes == ()
