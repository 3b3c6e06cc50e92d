"""Who holds the memory, as text and HTML, from hand-made values with exact bytes."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace

import pytest

from gpumem_magic.renderers.inventory import FREE
from gpumem_magic.renderers.terminal import width
from gpumem_magic.units import GIB, MIB
from gpumem_magic.values.findings import Level
from gpumem_magic.values.inventory import (
    Breakdown,
    Breakdowns,
    Freed,
    FreeMemory,
    HolderKind,
    Holding,
    Inventory,
    Process,
    Recovery,
)
from gpumem_magic.values.recording import Category, Device

T4 = Device("Tesla T4", 0, 15095 * MIB, (7, 5), virtual=False)
STEP = "gradients after the last step"
HOLDINGS = (
    Holding(
        HolderKind.EXCEPTION,
        "sys.last_value: step(batch).activations",
        4096 * MIB,
        96,
        Category.ACTIVATION,
        cell=6,
        line=4,
        also=("InteractiveTB.tb",),
        unneeded="the error of In[6] is over",
    ),
    Holding(
        HolderKind.VARIABLE,
        "model.encoder.layers[0..11]",
        2048 * MIB,
        148,
        Category.PARAMETER,
        dtype="float32",
        cell=3,
        line=2,
    ),
    Holding(
        HolderKind.OPTIMIZER,
        "optimizer.state[model.encoder.layers[0..11].self_attn.in_proj_weight]['exp_avg']",
        1024 * MIB,
        296,
        Category.OPTIMIZER_STATE,
        dtype="float32",
        cell=6,
        line=9,
    ),
    Holding(
        HolderKind.VARIABLE,
        "model.encoder.layers[0..11]",
        1024 * MIB,
        148,
        Category.GRADIENT,
        dtype="float32",
        cell=6,
        line=8,
        unneeded=STEP,
    ),
    Holding(
        HolderKind.OUTPUT_HISTORY,
        "Out[5]",
        512 * MIB,
        1,
        Category.OTHER,
        (4096, 32768),
        "float32",
        5,
        1,
        ("_", "_5"),
        "only the output history has it",
    ),
    Holding(
        HolderKind.LIBRARY, "cuBLAS workspace", 16 * MIB, 2, Category.WORKSPACE, newest=(1234, 56)
    ),
    Holding(HolderKind.UNKNOWN, "", 512, 1, Category.OTHER),
)


def view_html(view):
    return view._repr_mimebundle_()["text/html"]


def by_category(holdings):
    sizes = {}
    for holding in holdings:
        sizes[holding.category] = sizes.get(holding.category, 0) + holding.size
    return sizes


def make_inventory():
    allocated = sum(holding.size for holding in HOLDINGS)
    reserved = allocated + 640 * MIB
    others = 2 * GIB
    return Inventory(
        device=T4,
        level=Level(allocated, reserved, reserved + 120 * MIB + others),
        context=120 * MIB,
        others=others,
        processes=(Process(4712, "", None), Process(4711, "/usr/bin/python3.11", 2 * GIB)),
        cached=FreeMemory(640 * MIB, 12 * MIB, 512 * MIB, 600 * MIB),
        holdings=HOLDINGS,
        by_category=by_category(HOLDINGS),
        notes=("One object could not be looked into.",),
    )


def make_blind():
    """A device of which the driver tells nothing."""
    why = "the NVIDIA driver does not answer (Driver Not Loaded)"
    unknown = dict.fromkeys(("device_used", "context", "others"), why)
    whole = make_inventory()
    level = replace(whole.level, device_used=None)
    return replace(
        whole, level=level, context=None, others=None, processes=(), unknown=unknown, notes=()
    )


def make_empty():
    free = FreeMemory(0, 0, 0, 0)
    return Inventory(T4, Level(0, 0, 120 * MIB), 120 * MIB, 0, (), free, (), {}, {}, ())


def make_breakdown():
    names = {"model.encoder.layers[0..11]": 2048, "model.head": 64, "model.a" + ".b" * 40: 1}
    parts = [
        Holding(HolderKind.VARIABLE, name, size * MIB // share, 12, category)
        for name, size in names.items()
        for share, category in (
            (1, Category.PARAMETER),
            (2, Category.GRADIENT),
            (4, Category.BUFFER),
            (8, Category.OTHER),
        )
    ]
    parts[4] = replace(parts[4], also=("tied", "optimizer.param_groups"))
    return Breakdown("model", sum(part.size for part in parts), tuple(parts))


def make_recovery():
    steps = (
        Freed("the last exception", 4096 * MIB, 0, "%debug no longer works for it"),
        Freed("reference cycles", 0, 0),
        Freed("empty_cache()", 0, 4608 * MIB, left="a captured graph keeps its memory"),
    )
    before = make_inventory().level
    after = Level(
        before.allocated - 4096 * MIB,
        before.reserved - 4608 * MIB,
        before.device_used - 4608 * MIB,
    )
    return Recovery(T4, before, after, steps, HOLDINGS[1:])


VIEWS = {
    "inventory": make_inventory,
    "inventory-blind": make_blind,
    "inventory-empty": make_empty,
    "breakdown": make_breakdown,
    "breakdowns": lambda: Breakdowns((make_breakdown(), Breakdown("n", 0, ()))),
    "recovery": make_recovery,
    "recovery-nothing": lambda: replace(
        make_recovery(), after=make_recovery().before, steps=(), holdings=()
    ),
}


@pytest.fixture(params=sorted(VIEWS))
def view(request):
    """Each answer in turn."""
    return VIEWS[request.param]()


@pytest.mark.parametrize("name", sorted(VIEWS))
def test_golden(name, same_as_golden):
    view = VIEWS[name]()
    same_as_golden(f"{name}.txt", view.text() + "\n")
    same_as_golden(f"{name}.html", view_html(view).replace("><", ">\n<") + "\n")


def test_every_line_fits_80_columns_and_none_ends_in_blanks(view):
    for line in view.text().splitlines():
        assert width(line) <= 80, line
        assert line == line.rstrip()


def test_the_parts_add_up_to_the_device():
    rows = make_inventory().text().split("\n\n")[-1].splitlines()[1:]
    shown = [row for row in rows if row.startswith("  ") and row[2] != " "][:5]
    names = [row[2:30].strip() for row in shown]
    parts = ["allocated", "reserved but unused", "context", "other processes", "free"]
    assert names == parts
    sizes = [float(row[30:42].split()[0]) * (1024 if "GiB" in row else 1) for row in shown]
    assert abs(sum(sizes) - 15095) < 20  # GiB are printed with two decimals


def test_of_what_is_not_needed_it_says_the_bytes_and_the_command():
    rows = make_inventory().text().split("\n\n")[3].splitlines()
    assert rows[0].startswith("No longer needed, and what lets go of it")
    assert [re.split(r" {2,}", row.strip()) for row in rows if row[2] == "%"] == [
        ["%gpucheck --free", "4.59 GiB"],
        ["%gpucheck --free --all", "1.00 GiB"],
        ["%gpucheck --free --outputs", "512.0 MiB"],
    ]


def test_many_holdings_are_cut_with_their_sum():
    one = HOLDINGS[1]
    many = replace(make_inventory(), holdings=(one,) * 300)
    assert "  ... and 288 smaller, together 576.00 GiB" in many.text()
    page = view_html(many)
    assert "288 smaller, together 576.00 GiB; the first 100 here, all in .holdings" in page
    seen, _, folded = page.partition("<details")
    assert "Who holds most" in seen
    assert seen.count('scope="row"') == 3
    assert "All 300 holders" in folded
    assert "Who holds most" not in many.text()
    assert page.count('scope="row"') < 150


def test_nothing_of_the_users_gets_into_a_page_unescaped(view):
    evil = "<script>\x1b[31m"
    holding = replace(HOLDINGS[0], name=evil, also=(evil,), unneeded=evil, dtype=evil)
    if isinstance(view, Inventory | Recovery):
        view = replace(view, holdings=(holding,))
    elif isinstance(view, Breakdown):
        view = replace(view, name=evil, parts=(holding,))
    for text in (view.text(), view_html(view)):
        assert "\x1b" not in text
    assert "<script>" not in view_html(view)


@pytest.mark.parametrize("suffix", ["json", "csv", "html", "txt"])
def test_every_form_is_saved(view, tmp_path, suffix):
    path = tmp_path / f"x.{suffix}"
    view.save(path)
    text = path.read_text()
    if suffix == "json":
        data = json.loads(text)
        assert data == json.loads(json.dumps(view.to_dict()))
        assert (data["format"], data["what"]) == (1, type(view).__name__.lower())
    elif suffix == "csv":
        rows = list(csv.DictReader(text.splitlines()))
        assert sum(int(row["size"]) for row in rows) == sum(sizes(view))
    else:
        assert ("<html" in text) == (suffix == "html")


def sizes(view):
    if isinstance(view, Inventory | Recovery):
        return [holding.size for holding in view.holdings]
    breakdowns = view.breakdowns if isinstance(view, Breakdowns) else (view,)
    return [part.size for breakdown in breakdowns for part in breakdown.parts]


def test_plain_values_are_exact():
    data = make_inventory().to_dict()
    assert sum(holding["size"] for holding in data["holdings"]) == data["level"]["allocated"]
    assert data["by_category"]["parameter"] == 2048 * MIB
    assert data["holdings"][0]["kind"] == "exception"


def test_another_suffix_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"\.json, \.html, \.txt, \.csv"):
        make_inventory().save(tmp_path / "x.png")


def test_it_is_shown_as_text_and_as_html(view):
    bundle = view._repr_mimebundle_()
    assert bundle == {"text/plain": view.text(), "text/html": view_html(view)}
    assert str(view) == view.text()


def test_what_no_option_lets_go_of_has_its_statement_and_the_rest_of_the_kind_none():
    old = replace(HOLDINGS[2], unneeded="no name leads to it, only optimizer", cure="del optimizer")
    kept = replace(HOLDINGS[0], name="kept: f().x", unneeded=None)  # an error in a variable
    whole = replace(make_inventory(), holdings=(old, kept))
    rows = whole.text().split("\n\n")[3].splitlines()
    commands = [re.split(r" {2,}", row.strip())[0] for row in rows[1:] if row[2] != " "]
    assert commands == ["del optimizer", FREE]
    assert "reserved but unused" in rows[-1]


def test_what_ones_own_names_hold_comes_first():
    head = make_inventory().text().split("\n\n")[0]
    assert "Held by your own names: model 2.00 GiB, optimizer 1.00 GiB." in head


def test_gradients_are_told_from_the_model_that_has_them():
    assert "model.encoder.layers[0..11] gradients " in make_inventory().text()


def test_of_many_ways_to_a_thing_it_names_three():
    ways = tuple(f"outputs[{n}].grad_fn" for n in range(6))
    whole = replace(make_inventory(), holdings=(replace(HOLDINGS[0], also=ways),))
    assert "outputs[1].grad_fn, outputs[2].grad_fn, 3 more" in " ".join(whole.text().split())


def test_where_nothing_is_known_of_births_it_says_how_to_learn_it():
    unborn = tuple(replace(h, cell=None, line=None, newest=None) for h in HOLDINGS)
    whole = replace(make_inventory(), holdings=unborn)
    for text in (" ".join(whole.text().split()), view_html(whole)):
        assert "%gpumem --on for all" in text
        assert "%gpumem --on" not in make_inventory().text()
    assert "made in" not in whole.text()
