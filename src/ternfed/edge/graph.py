"""A trained network as an ONNX model: traced with its ternary weights left open, BatchNorm folded, the trits put in.

The exporter sees each ternary weight as an input of the graph. So it simplifies everything around them, and leaves the
weights themselves alone; what it would fold into them becomes one gain per output channel.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from ternfed.data.images import normalise
from ternfed.edge.forms import DOMAIN, PRODUCT_FROM, Floats, Piece, product, unpack_function, unpacked
from ternfed.edge.inputs import Inputs, ModelError, call, reason
from ternfed.edge.runtime import session
from ternfed.edge.trained import Trained
from ternfed.files import metadata
from ternfed.quantize.ternary import Ternary

INPUT, OUTPUT = "input", "logits"
EXACT, ROUNDED = 1e-3, 0.1
"""How far logits may lie from PyTorch's, of the largest: float rounding alone; activations rounded to int8."""


def to_onnx(model: Trained, *, normalised: bool = True, product_from: int = PRODUCT_FROM) -> Any:
    """The ONNX model, run once against PyTorch; `ModelError` names the layer that cannot be exported.

    `normalised` puts the normalisation into the graph, which then takes samples as they come. Matrices of at least
    `product_from` weights become 2-bit products.
    """
    wanted = {batch: call(model.network, model.inputs, batch) for batch in (1, 3)}
    proto = _traced(model, normalised)
    graph = proto.graph
    gains = _fold_norms(graph, model.ternary)
    products: list[str] = []
    for name, weight in model.ternary.items():
        gain = gains.get(name)
        users = _linear_users(graph, name)
        if users is not None and weight.codes.numel() >= product_from:
            products.append(name)
            for index, user in enumerate(users):
                label = name if index == 0 else f"{name}.{index}"
                _replace(graph, user.nodes, product(label, weight, gain, user.source, user.bias, user.output))
        else:
            _prepend(graph, unpacked(name, weight, gain))
    _add_domains(proto)
    _tidy(proto, model.ternary)
    for key, value in metadata(_facts(model, normalised, products)).items():
        proto.metadata_props.add(key=key, value=value)
    _check(proto, model.inputs, normalised, wanted, ROUNDED if products else EXACT)
    return proto


def float_onnx(network: nn.Module, inputs: Inputs) -> Any:
    """The network as plain float ONNX, as PyTorch's own exporter makes it: what `bench edge` compares with."""
    with _quiet():
        program = torch.onnx.export(
            network, (inputs.example(2).float(),), dynamo=True, verbose=False, input_names=[INPUT],
            output_names=[OUTPUT], dynamic_shapes=({0: torch.export.Dim("batch")},),
        )  # fmt: skip
    assert program is not None
    proto = program.model_proto  # made anew at each access
    _tidy(proto, {})
    return proto


class _Open(nn.Module):
    """The network with some weights as arguments, and the normalisation in front where it is asked for."""

    def __init__(self, network: nn.Module, names: Sequence[str], inputs: Inputs | None) -> None:
        super().__init__()
        self.network, self.names, self.inputs = network, names, inputs

    def forward(self, samples: Tensor, weights: list[Tensor]) -> Any:
        if self.inputs is not None:
            samples = normalise(samples, self.inputs.mean, self.inputs.std)
        return functional_call(self.network, dict(zip(self.names, weights, strict=True)), (samples,))


def _traced(model: Trained, normalised: bool) -> Any:
    names = list(model.ternary)
    samples = model.inputs.example(2) if normalised else model.inputs.example(2).float()
    opened = _Open(model.network, names, model.inputs if normalised else None).eval()
    weights = [model.weights[name].clone() for name in names]
    try:
        with _quiet():
            program = torch.onnx.export(
                opened, (samples, weights), dynamo=True, verbose=False, input_names=[INPUT, *names],
                output_names=[OUTPUT], dynamic_shapes=({0: torch.export.Dim("batch")}, [None] * len(names)),
            )  # fmt: skip
    except ModuleNotFoundError as error:
        raise ModelError(f"{error.name} is missing; install the extra: pip install 'ternfed[edge]'") from error
    except Exception as error:  # the exporter passes on whatever went wrong in tracing a user's code
        raise ModelError(_culprit(model, error)) from error
    assert program is not None
    proto = program.model_proto
    if len(proto.graph.output) != 1:
        raise ModelError(f"the network returns {len(proto.graph.output)} tensors; one, of logits, is needed")
    return proto


def _culprit(model: Trained, error: BaseException) -> str:
    """Which layer cannot be exported, found by exporting each alone, the innermost first."""
    calls: dict[str, tuple[nn.Module, tuple[Any, ...]]] = {}

    def note(name: str) -> Any:
        def hook(module: nn.Module, arguments: tuple[Any, ...]) -> None:
            calls.setdefault(name, (module, arguments))

        return hook

    hooks = [
        module.register_forward_pre_hook(note(name))
        for name, module in model.network.named_modules()
        if name and not isinstance(module, nn.Sequential)
    ]
    try:
        with torch.no_grad():
            model.network(normalise(model.inputs.example(2), model.inputs.mean, model.inputs.std))
    finally:
        for handle in hooks:
            handle.remove()
    tried: set[str] = set()
    for name, (module, arguments) in sorted(calls.items(), key=lambda item: -item[0].count(".")):
        kind = f"{type(module).__qualname__} {module.extra_repr()} {[getattr(a, 'shape', a) for a in arguments]}"
        if list(module.children()) == [] and kind in tried:
            continue
        tried.add(kind)
        try:
            batch = [{0: torch.export.Dim("batch")} if _is_batch(each) else None for each in arguments]
            with _quiet():
                torch.onnx.export(module, arguments, dynamo=True, verbose=False, dynamic_shapes=tuple(batch))
        except Exception as alone:
            return f"layer {name} ({type(module).__name__}) cannot be exported: {reason(alone)}"
    return f"{type(model.network).__name__} cannot be exported: {reason(error)}"


def _is_batch(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0 and len(value) == 2


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter logs and warns about itself; errors are raised all the same."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _fold_norms(graph: Any, ternary: Mapping[str, Ternary]) -> dict[str, Floats]:
    """Remove each BatchNorm behind a layer with a ternary weight: y = g·(W·x + b - μ) + β, g = γ / √(σ² + ε).

    Returns g by the weight's name, one per output channel; the rest becomes the layer's bias.
    """
    gains: dict[str, Floats] = {}
    for norm in [node for node in graph.node if node.op_type == "BatchNormalization"]:
        layer = next((node for node in graph.node if norm.input[0] in node.output), None)
        if layer is None or layer.op_type not in ("Conv", "Gemm") or len(_users(graph, layer.output[0])) != 1:
            continue
        name = layer.input[1]
        constants = _constants(graph, [*norm.input[1:], *layer.input[2:]])
        own = name in ternary and len(_users(graph, name)) == 1 and _plain_gemm(layer)
        if not own or constants is None:
            continue
        scale, shift, mean, variance, *bias = (value.astype(np.float64) for value in constants)
        epsilon = next((a.f for a in norm.attribute if a.name == "epsilon"), 1e-5)
        gain = scale / np.sqrt(variance + epsilon)
        moved = shift + gain * ((bias[0] if bias else 0) - mean)
        gains[name] = gain.astype(np.float32)
        layer.input[:] = [*layer.input[:2], _add_constant(graph, f"{name}/bias", moved.astype(np.float32))]
        layer.output[0] = norm.output[0]
        graph.node.remove(norm)
    return gains


class _Linear:
    """The nodes of one use of a weight: output = source · weightᵀ + bias."""

    def __init__(self, nodes: list[Any], source: str, bias: str, output: str) -> None:
        self.nodes, self.source, self.bias, self.output = nodes, source, bias, output


def _linear_users(graph: Any, name: str) -> list[_Linear] | None:
    """The uses of a weight if all are products with its transpose; None if one is something else."""
    found: list[_Linear] = []
    for node in _users(graph, name):
        if node.op_type == "Gemm" and node.input[1] == name and node.input[0] != name and _plain_gemm(node):
            found.append(_Linear([node], node.input[0], "".join(node.input[2:]), node.output[0]))
        elif node.op_type == "Transpose" and _is_swap(node):
            for user in _users(graph, node.output[0]):
                if user.op_type != "MatMul" or user.input[1] != node.output[0]:
                    return None
                found.append(_Linear([user, node], user.input[0], "", user.output[0]))
        else:
            return None
    return found or None


def _plain_gemm(node: Any) -> bool:
    """Whether it is x · Wᵀ + b; a Conv always is."""
    settings = {a.name: a.f if a.name in ("alpha", "beta") else a.i for a in node.attribute}
    wanted = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 1}
    return node.op_type == "Conv" or {**wanted, "transB": 0, **settings} == wanted


def _is_swap(node: Any) -> bool:
    order = next((list(a.ints) for a in node.attribute if a.name == "perm"), [1, 0])
    return order == [1, 0]


def _users(graph: Any, name: str) -> list[Any]:
    return [node for node in graph.node if name in node.input]


def _constants(graph: Any, names: Sequence[str]) -> list[NDArray[Any]] | None:
    """The values of constant tensors, None if one is not constant."""
    from onnx import numpy_helper

    known = {each.name: each for each in graph.initializer}
    return [numpy_helper.to_array(known[name]) for name in names] if all(name in known for name in names) else None


def _add_constant(graph: Any, name: str, value: NDArray[Any]) -> str:
    from onnx import numpy_helper

    if name not in {each.name for each in graph.initializer}:
        graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
    return name


def _prepend(graph: Any, piece: Piece) -> None:
    for name, value in piece.constants.items():
        _add_constant(graph, name, value)
    nodes = [*piece.nodes, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)


def _replace(graph: Any, old: list[Any], piece: Piece) -> None:
    """Put the piece where the first of the old nodes stands; the others go where nothing uses them any more."""
    for name, value in piece.constants.items():
        _add_constant(graph, name, value)
    place = next(index for index, node in enumerate(graph.node) if node is old[0] or node == old[0])
    nodes = [*graph.node[:place], *piece.nodes, *graph.node[place + 1 :]]
    del graph.node[:]
    graph.node.extend(nodes)
    for node in old[1:]:
        if not _users(graph, node.output[0]) and node in graph.node:
            graph.node.remove(node)


def _add_domains(proto: Any) -> None:
    """What nodes outside ONNX's own set need: their domain, and the function that unpacks."""
    from onnx import helper

    domains = {node.domain for node in proto.graph.node} - {""}
    if DOMAIN in domains:
        opset = next(each.version for each in proto.opset_import if each.domain == "")
        proto.functions.append(unpack_function(opset))
    proto.opset_import.extend(helper.make_opsetid(domain, 1) for domain in sorted(domains))


def _tidy(proto: Any, ternary: Mapping[str, Ternary]) -> None:
    """Leave out what the runtime does not need: weights as inputs, unused constants, traces of the exporter."""
    graph = proto.graph
    used = {name for node in graph.node for name in node.input}
    for value in [value for value in graph.input if value.name in ternary]:
        graph.input.remove(value)
    for constant in [constant for constant in graph.initializer if constant.name not in used]:
        graph.initializer.remove(constant)
    for each in (*graph.node, *graph.input, *graph.output, *graph.initializer):
        each.doc_string = ""
        del each.metadata_props[:]
    for node in graph.node:
        node.name = ""
    for notes in (graph.value_info, graph.metadata_props, proto.metadata_props):
        del notes[:]
    graph.name, graph.doc_string = "network", ""
    proto.producer_name, proto.producer_version = "ternfed", ""


def _facts(model: Trained, normalised: bool, products: list[str]) -> dict[str, Any]:
    return {**model.facts(), "normalisation": "inside" if normalised else "outside", "products": products}


def _check(proto: Any, inputs: Inputs, normalised: bool, wanted: Mapping[int, Tensor], tolerance: float) -> None:
    """Run the file and compare with PyTorch's logits by batch: nothing is written that does not do what it should."""
    from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidGraph, NotImplemented, RuntimeException

    try:
        opened = session(proto.SerializeToString())
        for batch, logits in wanted.items():
            samples = inputs.example(batch)
            if not normalised:
                samples = normalise(samples, inputs.mean, inputs.std)
            (found,) = opened.run([OUTPUT], {INPUT: samples.numpy()})
            if found.shape != tuple(logits.shape):
                raise ModelError(f"onnxruntime returns the shape {found.shape}, PyTorch {tuple(logits.shape)}")
            off = float(np.abs(found - logits.numpy()).max()) / max(float(logits.abs().max()), 1e-6)
            if not off <= tolerance:
                raise ModelError(f"onnxruntime and PyTorch disagree by {off:.1%} of the largest logit at batch {batch}")
    except (Fail, InvalidGraph, NotImplemented, RuntimeException) as error:
        raise ModelError(f"onnxruntime cannot run the exported network: {reason(error)}") from error
