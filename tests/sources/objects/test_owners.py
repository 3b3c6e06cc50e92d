"""Owners of storages, on plain CPU tensors: locate() says that all of them are on the device."""

import collections
import copy
import dataclasses
import gc
import types
import warnings
import weakref

import pytest

from gpumem_magic.sources.objects.owners import Owned, scan, scan_all
from gpumem_magic.values.recording import Category

torch = pytest.importorskip("torch")
pytest.importorskip("torch._dynamo")  # the first optimizer would import it, which changes torch
nn = torch.nn


def locate(tensor):
    return tensor.untyped_storage().data_ptr() or None


def look(optimizers=(), **names):
    return scan(names, optimizers, locate)


def names_of(optimizers=(), **names):
    return {owned.name for owned in look(optimizers, **names)}


def owner_of(tensor, optimizers=(), **names):
    """The one owner of the tensor's storage: (category, name)."""
    found = [o for o in look(optimizers, **names) if o.address == locate(tensor)]
    assert len(found) == 1
    return found[0].category, found[0].name


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(4, 12)
        self.register_buffer("mask", torch.ones(4, 4), persistent=False)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = Attention()
        self.weight = nn.Parameter(torch.ones(4))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.heads = nn.ModuleDict({"a b": nn.Linear(4, 2, bias=False)})
        self.norm = nn.BatchNorm1d(4, affine=False, track_running_stats=True)
        self.memory = [torch.zeros(3), torch.zeros(3)]
        self.plain = torch.zeros(5)

    def forward(self, x):
        return self.heads["a b"](self.layers[0].attn.qkv(x)[:, :4])


def test_everything_a_module_holds_is_named_as_one_types_it():
    model = Net()

    found = {owned.name: owned.category for owned in look(model=model)}

    per_layer = {
        "attn.qkv.weight": Category.PARAMETER,
        "attn.qkv.bias": Category.PARAMETER,
        "weight": Category.PARAMETER,
        "attn.mask": Category.BUFFER,
    }
    assert found == {
        **{f"model.layers[{i}].{name}": kind for i in (0, 1) for name, kind in per_layer.items()},
        "model.heads['a b'].weight": Category.PARAMETER,
        "model.norm.running_mean": Category.BUFFER,
        "model.norm.running_var": Category.BUFFER,
        "model.norm.num_batches_tracked": Category.BUFFER,
        "model.memory[0]": None,
        "model.memory[1]": None,
        "model.plain": None,
    }


def test_names_can_be_typed_and_lead_to_the_storage():
    model = Net()
    model(torch.ones(1, 4)).sum().backward()
    optimizer = torch.optim.Adam(model.parameters())
    optimizer.step()
    model.add_module("0", nn.Linear(2, 2))
    model.register_buffer("odd key", torch.ones(7))
    names = {
        **{"model": model, "optimizer": optimizer},
        "outputs": [torch.ones(2), {"x": (torch.ones(2),)}],
        "unordered": {torch.ones(3)},
        "odd": {1: torch.ones(2), None: torch.ones(2), ("k", 1): torch.ones(2)},
        "thing": types.SimpleNamespace(**{"for": torch.ones(2), "b": torch.ones(2)}),
    }

    found = scan(names, [], locate)

    assert len(found) == 38
    for owned in found:
        tensor = eval(owned.name, dict(names))
        assert locate(tensor) == owned.address, owned.name
        assert tuple(tensor.shape) == owned.shape


def test_sequential_and_parameter_containers_are_indexed():
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Sequential(nn.Linear(2, 2, bias=False)))
    named = nn.Sequential(collections.OrderedDict(first=nn.Linear(2, 2, bias=False)))
    several = nn.ParameterList([nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))])
    table = nn.ParameterDict({"k": nn.Parameter(torch.ones(1))})

    assert names_of(model=model) == {"model[0].weight", "model[1][0].weight"}
    assert names_of(named=named) == {"named.first.weight"}
    assert names_of(several=several) == {"several[0]", "several[1]"}
    assert names_of(table=table) == {"table['k']"}


def test_the_plain_and_shortest_variable_names_a_model():
    model = nn.Linear(2, 2, bias=False)
    trainer = types.SimpleNamespace(model=model)

    assert names_of(trainer=trainer) == {"trainer.model.weight"}
    assert names_of(trainer=trainer, model=model) == {"model.weight"}
    assert names_of(the_model=model, net=model, t=trainer) == {"net.weight"}
    assert names_of(wrapped=nn.DataParallel(model), model=model) == {"model.weight"}


def test_a_loop_variable_names_no_layer():
    model = Net()
    layer = model.layers[1]

    names = names_of(layer=layer, model=model, p=layer.weight, params=list(model.parameters()))

    assert "model.layers[1].weight" in names
    assert not {name for name in names if not name.startswith("model.")}


def test_self_of_a_running_function_names_only_what_nothing_else_does():
    model = Net()
    loader = types.SimpleNamespace(memory=[torch.ones(2)])

    assert names_of(self=model) == {n.replace("model", "self", 1) for n in names_of(model=model)}
    assert names_of(self=model.layers[0], model=model) == names_of(model=model)
    assert names_of(self=loader) == {"self.memory[0]"}


def test_gradients_are_named_after_their_parameters():
    model = nn.Linear(2, 2, bias=False)
    leaf = torch.ones(2, requires_grad=True)
    hidden = leaf * 2
    hidden.retain_grad()
    (model(hidden).sum()).backward()
    gradient = model.weight.grad

    assert owner_of(gradient, model=model) == (Category.GRADIENT, "model.weight.grad")
    assert owner_of(gradient, g=gradient) == (None, "g")
    assert owner_of(gradient, g=gradient, model=model)[1] == "model.weight.grad"
    assert owner_of(leaf.grad, x=leaf) == (Category.GRADIENT, "x.grad")
    assert owner_of(hidden.grad, h=hidden) == (Category.GRADIENT, "h.grad")
    assert owner_of(gradient, ps=[model.weight], model=model)[1] == "model.weight.grad"


def test_a_leaf_that_requires_gradients_is_a_parameter():
    w, frozen = torch.ones(2, requires_grad=True), nn.Parameter(torch.ones(2), requires_grad=False)

    assert owner_of(w, w=w) == (Category.PARAMETER, "w")
    assert owner_of(frozen, fs=[frozen]) == (Category.PARAMETER, "fs[0]")


@pytest.mark.parametrize(
    ("make", "states"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), set()),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), {"momentum_buffer"}),
        (torch.optim.Adam, {"exp_avg", "exp_avg_sq"}),
        (lambda p: torch.optim.Adam(p, foreach=True), {"exp_avg", "exp_avg_sq"}),
        (lambda p: torch.optim.AdamW(p, amsgrad=True), {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}),
        (lambda p: torch.optim.Adam(p, fused=True), {"exp_avg", "exp_avg_sq"}),
    ],
)
def test_states_are_named_after_their_parameters(make, states):
    model = nn.Linear(2, 2, bias=False)
    optimizer = make(model.parameters())
    model.weight.grad = torch.ones(2, 2)
    optimizer.step()

    def on_device(tensor):  # as on CUDA, where `step` counts on the host
        return None if tensor.dim() == 0 else locate(tensor)

    found = scan({"model": model, "optimizer": optimizer}, [optimizer], on_device)

    assert {o.name for o in found if o.category is Category.OPTIMIZER_STATE} == {
        f"optimizer.state[model.weight][{state!r}]" for state in states
    }
    assert len(found) == 2 + len(states)


def test_states_in_lists():
    model = nn.Linear(2, 2, bias=False)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure():
        optimizer.zero_grad()
        loss = (model(torch.ones(1, 2)) ** 2).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    optimizer.step(closure)
    state = optimizer.state[model.weight]

    assert owner_of(state["d"], model=model, o=optimizer) == (
        Category.OPTIMIZER_STATE,
        "o.state[model.weight]['d']",
    )
    assert owner_of(state["old_dirs"][0], model=model, o=optimizer) == (
        Category.OPTIMIZER_STATE,
        "o.state[model.weight]['old_dirs'][0]",
    )


def test_a_model_without_a_name_is_known_by_its_optimizer():
    model = nn.Linear(2, 2, bias=False)
    adam = torch.optim.Adam(model.parameters())
    model.weight.grad = torch.ones(2, 2)
    adam.step()
    state = adam.state[model.weight]["exp_avg"]
    parameter = "{}.param_groups[0]['params'][0]"

    for shown, names in (("<Adam>", {}), ("o", {"o": adam})):
        place = parameter.format(shown)
        assert owner_of(model.weight, [adam], **names) == (Category.PARAMETER, place)
        assert owner_of(model.weight.grad, [adam], **names) == (Category.GRADIENT, f"{place}.grad")
        assert owner_of(state, [adam], **names) == (
            Category.OPTIMIZER_STATE,
            f"{shown}.state[{place}]['exp_avg']",
        )
    assert owner_of(state, [adam], model=model)[1] == "<Adam>.state[model.weight]['exp_avg']"


def test_wrapped_optimizers_and_what_else_they_hold():
    model = nn.Linear(2, 2, bias=False)

    class Wrapper(torch.optim.Optimizer):
        def __init__(self, optimizer):
            self.optimizer = optimizer
            self.scratch = [torch.ones(3)]

        @property
        def state(self):
            raise AssertionError("a property was read")

    wrapper = Wrapper(torch.optim.Adagrad(model.parameters()))
    inner = wrapper.optimizer.state[model.weight]["sum"]

    assert owner_of(inner, model=model, o=wrapper) == (
        Category.OPTIMIZER_STATE,
        "o.optimizer.state[model.weight]['sum']",
    )
    assert owner_of(wrapper.scratch[0], o=wrapper) == (Category.OPTIMIZER_STATE, "o.scratch[0]")


def test_tensor_learning_rates_and_schedulers():
    model, rate = nn.Linear(2, 2, bias=False), torch.tensor(0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    kept = optimizer.param_groups[0]["lr"]

    assert owner_of(kept, o=optimizer) == (
        Category.OPTIMIZER_STATE,
        "o.param_groups[0]['lr']",
    )
    assert look(scheduler=scheduler) == []


def test_a_loss_scaler_holds_buffers():
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(1))

    assert {(o.category, o.name) for o in look(scaler=scaler)} == {
        (Category.BUFFER, "scaler._scale"),
        (Category.BUFFER, "scaler._growth_tracker"),
    }


def test_a_moving_average_is_a_model_of_its_own():
    model = nn.Linear(2, 2, bias=False)
    ema = torch.optim.swa_utils.AveragedModel(model)

    assert names_of(model=model, ema=ema) == {
        *("model.weight", "ema.module.weight", "ema.n_averaged"),
    }


def test_tied_weights_have_one_owner():
    model = nn.Module()
    model.embedding, model.head = nn.Embedding(3, 2), nn.Linear(2, 3, bias=False)
    model.head.weight = model.embedding.weight

    assert names_of(model=model) == {"model.embedding.weight"}


def test_the_whole_tensor_names_the_storage_of_its_slices():
    whole = torch.ones(10)
    part, same = whole[:2], whole.view(2, 5)

    assert owner_of(whole, a=part, whole=whole)[1] == "whole"
    assert owner_of(whole, part=part)[1] == "part"
    assert owner_of(whole, same=same, part=part) == (None, "same")
    model = nn.Linear(2, 2, bias=False)
    assert owner_of(model.weight, w=model.weight.data, model=model)[1] == "model.weight"


def test_shape_dtype_and_graph():
    x = torch.ones(2, 3, dtype=torch.bfloat16)
    y = x.requires_grad_() * 2

    assert look(x=torch.ones(0)) == []
    assert look(y=y) == [Owned(locate(y), None, "y", (2, 3), "bfloat16", True)]
    assert look(z=y.detach()) == [Owned(locate(y), None, "z", (2, 3), "bfloat16", False)]


@dataclasses.dataclass
class Batch:
    ids: object
    mask: object = None


@dataclasses.dataclass(slots=True)
class Slotted:
    __private: object = None
    shown: object = None


Pair = collections.namedtuple("Pair", "left right")


class Answer(collections.OrderedDict):
    """Like the outputs of transformers: an item and an attribute for each field."""

    def __init__(self, logits):
        super().__init__(logits=logits)
        self.__dict__["logits"] = logits

    def __getitem__(self, key):
        raise AssertionError("user code ran")


class Encoding(collections.UserDict):
    pass


T = torch.ones(4)


@pytest.mark.parametrize(
    ("thing", "name"),
    [
        ([[T]], "v[0][0]"),
        ((1, T), "v[1]"),
        ({"input_ids": T}, "v['input_ids']"),
        ({3: {None: T}}, "v[3][None]"),
        (collections.defaultdict(list, a=[T]), "v['a'][0]"),
        (collections.deque([0, T]), "v[1]"),
        (types.MappingProxyType({}), None),
        ({T}, "list(v)[0]"),
        (frozenset([T]), "list(v)[0]"),
        (Batch(T), "v.ids"),
        (Batch(1, [T]), "v.mask[0]"),
        (Slotted(shown=T), "v.shown"),
        (Slotted(T), "v._Slotted__private"),
        (Pair(0, T), "v.right"),
        (Answer(T), "v.logits"),
        (Encoding(ids=T), "v['ids']"),
        (types.SimpleNamespace(key_cache=[0, 1, T]), "v.key_cache[2]"),
        (torch.distributions.Normal(T, T), "v.loc"),
        (torch.utils.data.TensorDataset(T), "v.tensors[0]"),
        (torch.nn.utils.rnn.PackedSequence(T, torch.ones(1, dtype=torch.int64)), "v.data"),
        ([*range(300), *[T] * 3, *range(300)], None),
        ([*range(300), T], "v[300]"),
        ([*({"a": [i]} for i in range(300)), {"a": [T]}], "v[300]['a'][0]"),
        ([*range(200), T], "v[200]"),
        (lambda: T, None),
        (Batch, None),
        (types.ModuleType("m"), None),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else value,
)
def test_containers(thing, name):
    found = {owned.name for owned in look(v=thing) if owned.address == locate(T)}

    assert found == ({name} if name else set())


def test_the_shortest_path_wins():
    x = torch.ones(2)

    assert names_of(a=[[x]], long_name=[x]) == {"long_name[0]"}
    assert names_of(xs=[x], x=x) == {"x"}
    assert names_of(b=x, aa=x) == {"b"}


def test_only_the_shells_own_underscores_are_left_out():
    shells = ("_", "__", "___", "_i", "_ii", "_iii", "_i12", "_12", "Out", "In", "_oh", "_dh")
    users = ("_hidden", "__x", "_x1", "out", "_ix", "_1x")

    found = look(**{name: torch.ones(1) for name in (*shells, *users)})

    assert {owned.name for owned in found} == set(users)


def test_what_only_the_output_history_has_is_named_there():
    a, b, c = torch.ones(1), torch.ones(2), torch.ones(3)

    found = look(_oh={1: a, 2: (b, 5), 3: "text", 4: c}, _=c, c=c)

    assert {owned.name for owned in found} == {"Out[1]", "Out[2][0]", "c"}


class Hostile:
    def __init__(self, inside):
        self.inside = inside

    def fail(self, *args):
        raise RuntimeError("user code ran")

    __repr__ = __eq__ = __bool__ = __len__ = __iter__ = __getattr__ = __hash__ = fail
    __class__ = property(fail)
    value = property(fail)


def test_objects_that_raise_at_every_touch():
    hostile = Hostile(torch.ones(2))

    assert names_of(bad=hostile, worse=[hostile, Hostile([torch.ones(1)])]) == {
        *("bad.inside", "worse[1].inside[0]"),
    }


class Raising(dict):
    """A class whose lookup of anything raises, items and attributes included."""

    def __getattribute__(self, name):
        raise RuntimeError("user code ran")


def test_what_cannot_be_read_hides_nothing_else():
    broken = nn.Module()
    broken.__dict__["_parameters"] = 5
    loop = []
    loop.append(loop)

    assert names_of(a=broken, b=Raising(x=torch.ones(1)), c=loop, d=torch.ones(1)) == {
        *("b['x']", "d"),
    }


@pytest.mark.parametrize(
    "rows",
    [
        [{"ids": [i, i], "text": "t"} for i in range(1000)],
        {i: (i, [i]) for i in range(1000)},
        [[{"n": i}] * 100 for i in range(1000)],
    ],
    ids=["list", "dict", "large records"],
)
def test_records_of_numbers_and_texts_are_not_looked_into(rows):
    found = scan_all({"rows": types.SimpleNamespace(rows=rows), "x": T}, (), locate)

    assert [owned.name for owned in found.owned] == ["x"]
    assert found.objects < 10


def test_depth_and_number_are_bounded():
    deep = torch.ones(1)
    for _ in range(30):
        deep = [deep]
    # GIVEN more objects than are read WHEN a module comes last THEN it is read all the same
    crowd = [[0] for _ in range(50_000)]
    holder = types.SimpleNamespace(crowd=crowd, model=nn.Linear(2, 2, bias=False))

    assert names_of(deep=deep) == set()
    assert names_of(holder=holder) == {"holder.model.weight"}


def test_sparse_tensors_are_named_by_their_parts():
    embedding = nn.Embedding(5, 3, sparse=True)
    embedding(torch.tensor([1, 2])).sum().backward()

    found = {owned.name: owned for owned in look(e=embedding)}

    assert found["e.weight.grad._values()"].shape == (2, 3)
    assert found["e.weight.grad._values()"].category is Category.GRADIENT
    assert "e.weight.grad._indices()" in found


def test_nothing_on_the_host_is_reported():
    model = nn.Linear(2, 2)

    assert scan({"model": model, "x": torch.ones(2)}, [], lambda tensor: None) == []


def test_looking_changes_nothing_and_keeps_nothing():
    """No warning (as for `.grad` of a non-leaf), no garbage collection, nothing kept alive."""
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    names = {"model": copy.deepcopy(model), "x": model(torch.ones(1, 4)), "bad": Hostile([1])}
    collections_before = gc.get_stats()[0]["collections"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = scan(names, [optimizer], locate)
    watched = weakref.ref(names["model"]), weakref.ref(names["x"])
    assert gc.isenabled()
    assert gc.get_stats()[0]["collections"] - collections_before <= 1
    names.clear()

    assert found
    assert [reference() for reference in watched] == [None, None]


def test_a_function_mode_is_not_asked():
    class Forbid(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            raise AssertionError(f"{func} went through the mode")

    model, x = nn.Linear(2, 2, bias=False), torch.ones(2, requires_grad=True)
    with Forbid():
        found = scan({"model": model, "x": x, "y": [x]}, [], locate)

    assert {owned.name for owned in found} == {"model.weight", "x"}
