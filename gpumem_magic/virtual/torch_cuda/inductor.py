"""torch.compile in a dry run: inductor plans for the card, and the kernels of its plan do nothing.
Only for a process that ends with the dry run: nothing is put back."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import inspect
import os
import types
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import torch
from torch.utils import _pytree

from gpumem_magic.virtual.devices import HOST, is_cuda
from gpumem_magic.virtual.torch_cuda import tensor_methods
from gpumem_magic.virtual.torch_cuda.compiled import (
    answer_compiler,
    guard_card,
    guard_with_modes,
    key_of,
    leave_on,
    torch_alone,
)
from gpumem_magic.virtual.tracker import Tracker
from gpumem_magic.virtual.workspaces.layouts import Layout, kernel_format

_CARD = torch.device("cuda", 0)
_BACKENDS = ("inductor", "_TorchCompileInductorWrapper")
PLANNED = (
    "torch.compile: planned by inductor, without what compiling and autotuning take themselves, "
    "and without pools of CUDA graphs"
)
AS_WRITTEN = "torch.compile: runs eagerly in a dry run; compiled code may take less memory"


_MOST_NODES = 2200
"""Of a forward graph that is planned: AOTAutograd and inductor take some 10 to 20 ms for each node
(12 layers of GPT-2 have 1,255, and 1,651 in the backward graph; a ResNet-50 has 2,146)."""

_MOST_IN_ALL = 3000
"""Nodes of forward graphs. What is compiled later, or is larger, runs as it is written."""

_OF_A_CALL = 3.5
"""Nodes that AOTAutograd makes of a call in dynamo's graph, at least (GPT-2; 8 of ResNet-50)."""


class _NotPlannedError(Exception):
    """Nothing that a graph works on is on the card, or it is too large."""


class _Kernel:
    """A kernel that does nothing: what it writes to is there already."""

    def run(self, *args: Any, **kwargs: Any) -> None:
        """Launch it."""


class Inductor:
    """Plans compiled code for the card. tell: called with a sentence, once for each. written: told
    of tensors whose values are not known from there on. plans: if not, all code runs as it is
    written.

    Dynamo and AOTAutograd trace what are host tensors to torch, with the card's choices of
    operators; then each graph is moved to the card and lowered. The wrapper that inductor writes
    runs on the virtual GPU: it allocates and frees in its own order, and its matrix products are
    seen as ever.
    """

    def __init__(
        self,
        tracker: Tracker,
        tell: Callable[[str], None],
        written: Callable[[torch.Tensor], None],
        *,
        plans: bool = True,
    ) -> None:
        self._tracker = tracker
        self._tell = tell
        self._written = written
        self._told: set[str] = set()
        self._on_card = False
        self._is_ready = self._is_tracing = False
        self._plans = plans
        self._nodes = 0
        self._codes: dict[str, str] = {}
        self._compiled: dict[Hashable, Any] = {}

    def install(self) -> None:
        """Compile for the card from here on: with `install_in`, before a frame is compiled."""
        torch.compile = functools.update_wrapper(functools.partial(self._compile), torch.compile)
        for owner, name in (
            (torch.export, "export"),
            (torch.export.ExportedProgram, "run_decompositions"),
        ):
            setattr(owner, name, self._exporting(inspect.unwrap(getattr(owner, name))))

    def install_in(self, convert_frame: Any) -> None:
        """The same for frames that this module of torch compiles, of earlier cells too."""
        if convert_frame.input_codes.seen:
            torch._dynamo.reset()
        convert = convert_frame.CatchErrorsWrapper.__call__

        def planned(wrapper: Any, *args: Any, **kwargs: Any) -> Any:
            return self._convert(functools.partial(convert, wrapper, *args, **kwargs), wrapper)

        convert_frame.CatchErrorsWrapper.__call__ = planned

    def _mark(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._tell(text)

    def _compile(self, model: Any = None, **options: Any) -> Any:
        if model is None:
            return functools.partial(self._compile, **options)
        if options.get("disable"):
            return model
        if options.get("backend", "inductor") != "inductor":
            self._mark(AS_WRITTEN)
            return model
        # not as one whole graph: a frame that is left as it is written would be an error then
        return torch._dynamo.optimize("inductor", dynamic=options.get("dynamic"))(model)

    def _exporting(self, make: Callable[..., Any]) -> Callable[..., Any]:
        """`make`, which makes a program: what it is traced on are host tensors to torch."""

        @functools.wraps(make)
        def made(*args: Any, **options: Any) -> Any:
            self._on_card = False
            self._prepare()
            with self._tracing():
                program = make(*args, **options)
            if self._on_card:
                _move_graph(program.graph)
                of_host = torch.ops.aten._assert_tensor_metadata.default
                for node in program.graph.find_nodes(op="call_function", target=of_host):
                    program.graph.erase_node(node)
                program.graph_module.recompile()
            return program

        return made

    def _convert(self, convert: Callable[[], Any], wrapper: Any) -> Any:
        """Compile a frame, or leave it as it is written."""
        from torch._dynamo.types import ConvertFrameReturn

        if not self._has_room(0) or _backend_name(wrapper) not in _BACKENDS:
            self._mark(AS_WRITTEN)
            return ConvertFrameReturn()
        self._on_card = False
        try:
            self._prepare()
            with self._tracing():
                return convert()
        except Exception:
            self._mark(AS_WRITTEN)
            return ConvertFrameReturn()

    @contextlib.contextmanager
    def _tracing(self, is_lowering: bool = False) -> Iterator[None]:
        """Within, torch has its modes alone, and tensors that are traced are the card's."""
        from torch._subclasses.fake_tensor import FakeTensor
        from torch._subclasses.functional_tensor import FunctionalTensor

        tracker, storages = self._tracker, self._tracker.storages
        function, traced = tracker.function, storages.traced
        tracker.function, storages.traced = None, (FakeTensor, FunctionalTensor)
        self._is_tracing, before = not is_lowering, self._is_tracing
        methods = _our_methods()
        for name in methods:
            delattr(torch.Tensor, name)
        try:
            with torch_alone(tracker.facade, tracker):
                yield
        finally:
            tracker.function, storages.traced = function, traced
            self._is_tracing = before
            for name, method in methods.items():
                setattr(torch.Tensor, name, method)

    def _prepare(self) -> None:
        """What has to be otherwise where there is neither a card nor Triton."""
        if self._is_ready:
            return
        self._is_ready = True
        import torch._inductor.compile_fx as compiling
        import torch._inductor.scheduler as scheduling
        import torch.utils._triton as triton_here
        from torch._dynamo import trace_rules
        from torch._dynamo.repro import after_aot
        from torch._inductor import config, decomposition
        from torch._inductor.async_compile import AsyncCompile
        from torch._inductor.codecache import PyCodeCache
        from torch._inductor.codegen.wrapper import PythonWrapperCodegen
        from torch._subclasses import fake_tensor
        from torch.nn.attention import flex_attention

        guard_card()
        guard_with_modes()
        leave_on(self._tracker.facade)
        trace_rules.add("gpumem_magic")
        config.compile_threads, config.force_disable_caches = 1, True
        config.size_asserts = False  # a layout that is not the card's is no reason to stop
        config.shape_padding = False  # whether it pays is timed, with kernels
        lower = functools.partial(self._lower, compiling.compile_fx_inner)
        by_inductor = functools.partial(compiling.compile_fx, inner_compile=lower)
        patches: tuple[tuple[Any, str, Any], ...] = (
            (fake_tensor, "init_gpu_context", lambda device: None),
            (decomposition, "is_gpu", lambda kind: True),
            # its own check allows no gradients on a host; dynamo traces torch's functions alone
            (flex_attention, "_validate_device", flex_attention._validate_embed_dim),
            (scheduling, "has_triton", lambda *device: True),
            (triton_here, "triton_hash_with_backend", lambda: ""),
            (after_aot, "_cuda_system_info_comment", lambda: ""),
            (AsyncCompile, "triton", lambda *code, **options: _Kernel()),
            (PyCodeCache, "write", self._keep),
            (PyCodeCache, "load", self._template),
            (PyCodeCache, "load_by_key_path", self._load),
            (
                PythonWrapperCodegen,
                "write_triton_header_once",
                PythonWrapperCodegen.write_get_raw_stream_header_once,
            ),
            (torch._C._dynamo.guards, "_empty_strided_cuda", self._buffer),
            (torch._C, "_cuda_getCurrentRawStream", lambda index: 0),
            (torch._C, "_conv_determine_backend_memory_format", _convolution_format),
            (compiling, "compile_fx", functools.partial(self._trace, by_inductor)),
        )
        for owner, name, value in patches:
            setattr(owner, name, value)
        answer_compiler()
        layer_norm: Any = torch.ops.aten.native_layer_norm.default
        if (by_parts := decomposition.decompositions.get(layer_norm)) is not None:
            decomposition.decompositions[layer_norm] = _with_float_statistics(by_parts)
        self._describe_as_host()
        self._make_on_host()

    def _make_on_host(self) -> None:
        """Let what code makes on the card by its name lie beside what is traced."""
        from torch._subclasses import fake_tensor

        dispatch = fake_tensor.FakeTensorMode.__torch_dispatch__

        def on_host(mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if self._is_tracing and is_cuda((kwargs or {}).get("device")):
                kwargs = {**kwargs, "device": HOST}
            return dispatch(mode, func, types, args, kwargs)

        fake_tensor.FakeTensorMode.__torch_dispatch__ = on_host  # type: ignore[method-assign, assignment]

    def _describe_as_host(self) -> None:
        """Let tensors of the card be traced as the host tensors that they are to torch."""
        from torch._subclasses.meta_utils import MetaTensorDescriber

        describe = MetaTensorDescriber.describe_tensor

        def described(describer: Any, tensor: torch.Tensor, **options: Any) -> Any:
            found = describe(describer, tensor, **options)
            if found.device.type != "cuda":
                return found
            self._on_card = True
            return dataclasses.replace(found, device=HOST)

        MetaTensorDescriber.describe_tensor = described  # type: ignore[method-assign, assignment]

    def _trace(
        self, compile_graph: Any, graph: Any, inputs: Any, *more: Any, **options: Any
    ) -> Any:
        """Have AOTAutograd trace a graph of dynamo's, but one that is sure to be too large."""
        key = None if more else key_of(graph, inputs)
        if key in self._compiled:
            return self._compiled[key]
        calls = sum(node.op.startswith("call") for node in graph.graph.nodes)
        if not self._has_room(int(_OF_A_CALL * calls)):
            raise _NotPlannedError
        _place(graph.graph, HOST)
        compiled = compile_graph(graph, inputs, *more, **options)
        if key is not None:
            self._compiled[key] = compiled
        return compiled

    def _has_room(self, nodes: int) -> bool:
        return self._plans and nodes <= min(_MOST_NODES, _MOST_IN_ALL - self._nodes)

    def _lower(self, compile_inner: Any, graph: Any, inputs: Any, **options: Any) -> Any:
        """Plan one graph, forward or backward, for the card."""
        if not options.get("is_backward"):  # later, the plan of the other half is in use
            nodes = len(graph.graph.nodes)
            if not (self._on_card and self._has_room(nodes)):
                raise _NotPlannedError
            self._nodes += nodes
        with self._tracing(is_lowering=True):
            for part in graph.modules():
                if isinstance(part, torch.fx.GraphModule):
                    _move_graph(part.graph)
            plan = compile_inner(graph, [_moved(each) for each in inputs], **options)
        self._mark(PLANNED)
        return plan

    def _buffer(self, size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
        """What kernels that do nothing write to."""
        made = torch.empty_strided(size, stride, dtype=dtype, device="cuda")
        self._written(made)
        return made

    def _keep(self, code: str, extra: str = "") -> tuple[str, str]:
        key = hashlib.sha256((code + extra).encode()).hexdigest()
        self._codes[key] = code
        return key, os.devnull  # inductor reads the file again

    def _template(self, code: str, extra: str = "", **options: Any) -> types.ModuleType:
        """What stands for a kernel that is chosen from a template's variants: it is never run."""
        module = types.ModuleType("torch._inductor.template")
        module.__dict__.update(key=self._keep(code, extra)[0], __file__=os.devnull)
        return module

    def _load(self, key: str, path: str, *lines: Any, **options: Any) -> types.ModuleType:
        """The module of generated code, which no file is written for."""
        module = types.ModuleType(f"torch._inductor.plan_{key[:12]}")
        module.__dict__.update(__file__=path, key=key)
        exec(compile(self._codes[key], "<inductor>", "exec"), module.__dict__)
        module.__dict__.update(options.get("attrs") or {})
        return module


def _our_methods() -> dict[str, Any]:
    """Methods of tensors (`to`, `cuda`, ...) that stand before torch's own ones, at which dynamo
    would break a graph."""
    return {
        name: method
        for name, method in vars(torch.Tensor).items()
        if hasattr(torch._C.TensorBase, name)
        and getattr(method, "__module__", None) == tensor_methods.__name__
    }


def _backend_name(wrapper: Any) -> str:
    """Of the compiler that a converter of frames calls in the end."""
    while hasattr(wrapper, "_torchdynamo_orig_backend"):
        wrapper = wrapper._torchdynamo_orig_backend
    return str(getattr(wrapper, "__name__", type(wrapper).__name__))


def _with_float_statistics(layer_norm: Callable[..., Any]) -> Callable[..., Any]:
    """Means and deviations as the card has them, float32 for bfloat16 too."""

    def normalized(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        out, *statistics = layer_norm(*args, **kwargs)
        mean, deviation = (
            each.to(torch.promote_types(each.dtype, torch.float32)) for each in statistics
        )
        return out, mean, deviation

    return normalized


def _convolution_format(inputs: Any, weight: Any, backend: Any) -> torch.memory_format:
    """As cuDNN writes its results, which torch's CPU build does not know of."""
    return kernel_format(Layout.of(inputs), Layout.of(weight))


def _move_graph(graph: torch.fx.Graph) -> None:
    for node in graph.nodes:
        for key in ("val", "example_value"):
            if key in node.meta:
                node.meta[key] = _pytree.tree_map(_moved, node.meta[key])
    _place(graph, _CARD)


def _place(graph: torch.fx.Graph, device: torch.device) -> None:
    """Have what a graph makes made there."""

    def placed(argument: Any) -> Any:
        is_device = isinstance(argument, torch.device) or argument in ("cuda", "cuda:0")
        return device if is_device else argument

    for node in graph.nodes:
        node.args = torch.fx.node.map_aggregate(node.args, placed)
        node.kwargs = torch.fx.node.map_aggregate(node.kwargs, placed)


def _moved(value: Any) -> Any:
    """A traced host tensor as one of the card."""
    from torch._subclasses.fake_tensor import FakeTensor

    if not isinstance(value, FakeTensor) or value.device != HOST:
        return value
    with value.fake_mode:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=_CARD)
