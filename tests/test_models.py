"""The paper's networks: their sizes, which decide its communication table, and how they may be run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from ternfed.models import build, cnn, mlp, resnet18

MEGABIT = 2**20
NETWORKS: list[tuple[Callable[[], nn.Sequential], tuple[int, ...]]] = [
    (mlp, (1, 28, 28)),
    (cnn, (3, 32, 32)),
    (resnet18, (3, 32, 32)),
]
over_networks = pytest.mark.parametrize(("make", "shape"), NETWORKS, ids=["mlp", "cnn", "resnet18"])


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def weights(model: nn.Module) -> list[Tensor]:
    """Every Linear and Conv weight, in the order of the layers."""
    return [layer.weight for layer in model.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]


def test_the_mlp_has_three_weight_matrices_and_nothing_else() -> None:
    shapes = [tuple(parameter.shape) for parameter in mlp().parameters()]
    assert shapes == [(30, 784), (20, 30), (10, 20)]
    assert parameters(mlp()) == 784 * 30 + 30 * 20 + 20 * 10 == 24_320
    assert sum(weight.numel() for weight in weights(mlp())[1:-1]) == 600


def test_the_cnn_reproduces_both_uploads_of_the_papers_table() -> None:
    """5 clients × 100 rounds; the 2-bit part is convolutions 2 to 5 and their BatchNorm's affine parameters."""
    model = cnn()
    narrow = sum(
        parameter.numel()
        for name, parameter in model.named_parameters()
        if name.startswith(("conv", "norm")) and not name.startswith("conv1")
    )
    total = parameters(model)
    assert (total, narrow) == (1_061_460, 978_304)
    assert round(500 * 32 * total / MEGABIT, 2) == 16196.59
    assert round(500 * (32 * (total - narrow) + 2 * narrow) / MEGABIT, 2) == 2201.84


def test_the_cnn_has_biases_on_its_first_convolution_and_its_linear_layers_only() -> None:
    biased = {
        name
        for name, layer in cnn().named_children()
        if isinstance(layer, nn.Linear | nn.Conv2d) and layer.bias is not None
    }
    assert biased == {"conv1", "linear1", "linear2", "linear3"}
    assert [tuple(weight.shape) for weight in weights(cnn())[-3:]] == [(20, 4096), (10, 20), (10, 10)]


def test_resnet18_has_602_112_weights_between_its_first_and_its_last_layer() -> None:
    model = resnet18()
    assert parameters(model) == 607_050
    assert sum(weight.numel() for weight in weights(model)[1:-1]) == 602_112
    assert weights(model)[0].shape == (64, 3, 3, 3)
    assert weights(model)[-1].shape == (10, 64)


def test_resnet18_has_64_channels_throughout_and_three_strided_shortcuts() -> None:
    middle = weights(resnet18())[1:-1]
    assert {tuple(weight.shape[:2]) for weight in middle} == {(64, 64)}
    assert sorted(weight.shape[-1] for weight in middle) == [1] * 3 + [3] * 16
    sizes: list[int] = []
    model = resnet18().eval()
    for name in ("stage1", "stage2", "stage3", "stage4"):
        model.get_submodule(name).register_forward_hook(lambda _layer, _input, output: sizes.append(output.shape[-1]))
    model(torch.zeros(1, 3, 32, 32))
    assert sizes == [32, 16, 8, 4]


def test_the_mlp_takes_images_and_rows_alike() -> None:
    model = mlp()
    images = torch.randn(4, 1, 28, 28)
    assert torch.equal(model(images), model(images.reshape(4, 784)))


def test_without_an_activation_the_mlp_is_one_linear_map() -> None:
    model = mlp(activation="none").double()
    first, second = torch.randn(2, 5, 784, dtype=torch.float64)
    # Sums of 784 products in float64: rounding stays near 1e-15, ten orders below what a ReLU would change.
    torch.testing.assert_close(model(first + second), model(first) + model(second), rtol=0, atol=1e-12)
    bent = mlp().double()
    assert (bent(first + second) - bent(first) - bent(second)).abs().max() > 1e-3


def test_both_activations_share_one_state_dict() -> None:
    mlp(activation="none").load_state_dict(mlp().state_dict())


def test_sizes_and_classes_are_options() -> None:
    assert mlp(inputs=64)(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
    assert mlp(hidden=(), classes=3)(torch.zeros(2, 784)).shape == (2, 3)
    assert resnet18(classes=7, channels_in=1, width=8)(torch.zeros(2, 1, 28, 28)).shape == (2, 7)
    assert cnn(classes=7)(torch.zeros(2, 3, 32, 32)).shape == (2, 7)


@pytest.mark.parametrize("size", [8, 17, 28, 33])
def test_the_convolutional_networks_can_be_built_for_other_image_sizes(size: int) -> None:
    images = torch.zeros(2, 1, size, size)
    assert cnn(channels=1, size=size)(images).shape == (2, 10)
    assert resnet18(channels_in=1, width=4)(images).shape == (2, 10)


def test_an_image_of_another_size_is_an_error_that_names_both_sizes() -> None:
    with pytest.raises(ValueError, match=r"takes 4096 numbers per example but 2304 arrive"):
        cnn()(torch.zeros(2, 3, 28, 28))
    with pytest.raises(ValueError, match=r"takes 784 numbers per example but 64 arrive"):
        mlp()(torch.zeros(2, 64))


def test_impossible_options_are_errors_that_say_what_is_allowed() -> None:
    with pytest.raises(ValueError, match=r"activation is 'tanh'; allowed are 'relu' and 'none'"):
        mlp(activation="tanh")
    with pytest.raises(ValueError, match=r"size is 7; .* at least 8"):
        cnn(size=7)


def test_a_network_can_be_built_by_its_name() -> None:
    torch.manual_seed(0)
    named = build("mlp", inputs=64, hidden=[5])
    torch.manual_seed(0)
    direct = mlp(inputs=64, hidden=[5])
    assert all(torch.equal(a, b) for a, b in zip(named.parameters(), direct.parameters(), strict=True))
    assert parameters(build("cnn")) == 1_061_460
    assert parameters(build("resnet18")) == 607_050


def test_an_unknown_name_or_option_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"model is 'vgg'; allowed are 'mlp', .* and 'chartransformer'"):
        build("vgg")
    with pytest.raises(ValueError, match=r"mlp has no option depth; allowed are activation, inputs, hidden, classes"):
        build("mlp", depth=3)


@over_networks
def test_every_parameter_receives_a_gradient(make: Callable[[], nn.Sequential], shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model = make()
    torch.autograd.backward(nn.functional.cross_entropy(model(torch.randn(4, *shape)), torch.arange(4)))
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@over_networks
def test_many_models_under_vmap_train_and_count_as_each_does_alone(
    make: Callable[[], nn.Sequential], shape: tuple[int, ...]
) -> None:
    """Outputs, and BatchNorm's running statistics in training mode, for three models with a batch each."""
    torch.manual_seed(0)
    models = [make().double() for _ in range(3)]
    batches = torch.randn(3, 4, *shape, dtype=torch.float64)
    skeleton = make().double()
    state, buffers = stack_module_state(models)

    together = vmap(lambda s, b, x: functional_call(skeleton, (s, b), (x,)))(state, buffers, batches)
    alone = torch.stack([model(batch) for model, batch in zip(models, batches, strict=True)])

    # The same float64 sums in another order; the longest has 4,096 terms of order one.
    torch.testing.assert_close(together, alone, rtol=1e-9, atol=1e-9)
    for name, stacked in buffers.items():
        each = torch.stack([dict(model.named_buffers())[name] for model in models])
        torch.testing.assert_close(stacked, each, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("make", [cnn, resnet18])
def test_channels_last_stays_channels_last_and_changes_only_rounding(make: Callable[[], nn.Sequential]) -> None:
    torch.manual_seed(0)
    model = make().double().eval()
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    plain = model(images)
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    layouts: list[bool] = []
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            layer.register_forward_hook(
                lambda _layer, _input, output: layouts.append(output.is_contiguous(memory_format=torch.channels_last))
            )
    last = model(images.to(memory_format=torch.channels_last))
    assert layouts
    assert all(layouts)
    torch.testing.assert_close(last, plain, rtol=1e-9, atol=1e-9)


def test_resnet18_with_groupnorm_has_as_many_parameters_and_no_statistics() -> None:
    model = resnet18(norm="group")
    assert parameters(model) == parameters(resnet18())
    assert not list(model.buffers())
    assert {name for name, _ in model.named_parameters()} == {name for name, _ in resnet18().named_parameters()}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [({"norm": "layer"}, "norm is 'layer'"), ({"norm": "group", "width": 9}, "width is 9; a multiple of 2 is needed")],
)
def test_another_normalisation_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        build("resnet18", **options)
