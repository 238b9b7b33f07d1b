"""Any module becomes a ternary one: prepare, train, freeze."""

import copy

import pytest
import torch
from torch import Tensor, nn

from ternfed.models import mlp, resnet18
from ternfed.quantize.choice import NoTernaryLayersError
from ternfed.quantize.layers import freeze, parameter_groups, ternarize_, ternary_weights
from ternfed.quantize.ternary import TTQ, TWN, NonFiniteError, Quantizer


class Net(nn.Module):
    """A user's own model: convolutions, a linear head, a layer inside a container."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3)
        self.body = nn.Sequential(nn.ReLU(), nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.ReLU())
        self.neck = nn.Linear(6, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.relu(self.neck(self.body(self.stem(x)).mean((2, 3)))))
        return out


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net()


@pytest.fixture
def images() -> Tensor:
    return torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def train(model: nn.Module, images: Tensor, steps: int = 5, lr: float = 0.05) -> list[float]:
    optimizer = torch.optim.Adam(parameter_groups(model, lr))
    labels = torch.arange(len(images)) % 3
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return losses


class TestPrepare:
    def test_all_linear_and_conv_weights_but_the_first_and_last_become_ternary(self, net: Net) -> None:
        assert list(ternary_weights(ternarize_(net))) == ["body.1.weight", "neck.weight"]

    def test_a_predicate_chooses_instead(self, net: Net) -> None:
        ternarize_(net, where=lambda name, module: isinstance(module, nn.Linear))
        assert list(ternary_weights(net)) == ["neck.weight", "head.weight"]

    def test_a_bare_layer_can_be_prepared(self) -> None:
        layer = ternarize_(nn.Linear(4, 2), where=lambda name, module: True)
        assert list(ternary_weights(layer)) == ["weight"]
        assert type(freeze(layer)) is nn.Linear

    def test_a_model_without_such_layers_is_an_error(self) -> None:
        with pytest.raises(NoTernaryLayersError, match="Sequential has no layer to make ternary"):
            ternarize_(nn.Sequential(nn.ReLU()))
        with pytest.raises(NoTernaryLayersError, match="it has 2 layers, and the first, the last"):
            ternarize_(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))

    def test_a_predicate_that_chooses_nothing_is_an_error(self, net: Net) -> None:
        with pytest.raises(NoTernaryLayersError, match="the predicate chose none of its 4"):
            ternarize_(net, where=lambda name, module: False)

    def test_preparing_twice_is_an_error(self, net: Net) -> None:
        with pytest.raises(ValueError, match=r"body\.1\.weight is parametrized already"):
            ternarize_(ternarize_(net))

    def test_shared_weights_are_an_error(self, net: Net) -> None:
        net.body[1].weight = net.stem.weight  # type: ignore[assignment]
        with pytest.raises(ValueError, match=r"stem\.weight and body\.1\.weight are one shared parameter"):
            ternarize_(net, where=lambda name, module: True)

    def test_a_weight_that_is_not_finite_is_named_and_the_model_left_as_it_was(self, net: Net) -> None:
        net.neck.weight.data[0, 0] = torch.nan
        with pytest.raises(NonFiniteError, match=r"neck\.weight"):
            ternarize_(net)
        assert type(net.body[1]) is nn.Conv2d


class TestTrain:
    @pytest.mark.parametrize("quantizer", [Quantizer(), TTQ, TWN])
    def test_learns_with_a_torch_optimizer(self, net: Net, images: Tensor, quantizer: Quantizer) -> None:
        losses = train(ternarize_(net, quantizer), images, steps=60)
        assert losses[-1] < 0.5 * losses[0]

    def test_forward_uses_ternary_weights_all_the_time(self, net: Net, images: Tensor) -> None:
        ternarize_(net)
        train(net, images)
        assert net.body[1].weight.unique().numel() <= 3  # type: ignore[operator, union-attr]

    def test_a_submodule_called_on_its_own_is_ternary_too(self, net: Net) -> None:
        ternarize_(net)
        inputs = torch.randn(2, 6)
        expected = nn.functional.linear(inputs, ternary_weights(net)["neck.weight"].dense(), net.neck.bias)
        assert torch.equal(net.neck(inputs), expected)

    def test_an_error_inside_forward_leaves_no_stale_weights(self, net: Net, images: Tensor) -> None:
        ternarize_(net)
        with pytest.raises(RuntimeError):
            net(images[:, :, :2])
        net.neck.parametrizations.weight.original.data.neg_()  # type: ignore[union-attr, operator]
        assert torch.equal(net.neck.weight, ternary_weights(net)["neck.weight"].dense())

    def test_groups_give_each_kind_its_own_rate_and_cover_every_parameter_once(self, net: Net) -> None:
        ternarize_(net)
        groups = parameter_groups(net, 0.1, latents=24, factors=0.5, weight_decay=1e-4)
        assert {g["name"]: g["lr"] for g in groups} == pytest.approx({"latents": 2.4, "factors": 0.05, "others": 0.1})
        assert all(g["weight_decay"] == 1e-4 for g in groups)
        grouped = [id(p) for g in groups for p in g["params"]]
        assert sorted(grouped) == sorted(id(p) for p in net.parameters())

    def test_scales_without_factors_have_no_factor_group(self, net: Net) -> None:
        assert [g["name"] for g in parameter_groups(ternarize_(net, TWN), 0.1)] == ["latents", "others"]

    def test_groups_of_an_unprepared_model_are_an_error(self, net: Net) -> None:
        with pytest.raises(NoTernaryLayersError, match="ternarize_"):
            parameter_groups(net, 0.1)


class TestFreeze:
    def test_is_a_plain_module_with_exactly_scale_times_code(self, net: Net, images: Tensor) -> None:
        original = list(net.state_dict())
        ternarize_(net)
        train(net, images)
        plain = freeze(net)
        assert list(plain.state_dict()) == original  # in their order, by which Flower apps send arrays
        assert [type(m) for m in plain.modules()] == [type(m) for m in Net().modules()]
        for name, ternary in ternary_weights(net).items():
            assert torch.equal(plain.state_dict()[name], ternary.dense())

    def test_computes_what_the_prepared_model_computes(self, net: Net, images: Tensor) -> None:
        ternarize_(net)
        train(net, images)
        net.eval()
        assert torch.equal(freeze(net)(images), net(images))

    def test_leaves_the_prepared_model_trainable(self, net: Net, images: Tensor) -> None:
        ternarize_(net)
        freeze(net)
        train(net, images)
        assert ternary_weights(net)

    def test_an_unprepared_model_is_an_error(self, net: Net) -> None:
        with pytest.raises(NoTernaryLayersError, match="no ternary layer"):
            freeze(net)

    def test_diverged_weights_are_named(self, net: Net) -> None:
        ternarize_(net)
        net.neck.parametrizations.weight.original.data[0, 0] = torch.inf  # type: ignore[union-attr, operator]
        with pytest.raises(NonFiniteError, match=r"neck\.weight"):
            freeze(net)


class TestState:
    def test_state_dict_round_trips(self, net: Net, images: Tensor) -> None:
        ternarize_(net)
        train(net, images)
        other = ternarize_(Net())
        other.load_state_dict(net.state_dict())
        assert torch.equal(other.eval()(images), net.eval()(images))

    def test_deepcopy_is_independent_of_the_original(self, net: Net, images: Tensor) -> None:
        ternarize_(net)
        twin = copy.deepcopy(net)
        before = net.eval()(images)
        train(twin.train(), images, steps=20)
        assert torch.equal(net.eval()(images), before)
        assert not torch.equal(twin.eval()(images), before)


@pytest.mark.parametrize(("model", "ternary"), [(mlp(), 600), (resnet18(), 602_112)])
def test_the_papers_models_have_the_papers_ternary_weights(model: nn.Module, ternary: int) -> None:
    weights = ternary_weights(ternarize_(model))
    assert sum(weight.codes.numel() for weight in weights.values()) == ternary


def test_autocast_computes_with_rounded_ternary_weights_and_spares_layers_that_leave_it() -> None:
    class Excluding(nn.Module):
        """Its middle layer computes in full precision whatever surrounds it."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.inner, self.outer, self.last = (nn.Linear(4, 4, bias=False) for _ in range(4))

        def forward(self, batch: Tensor) -> Tensor:
            batch = self.inner(self.first(batch))
            with torch.autocast("cpu", enabled=False):
                batch = self.outer(batch.float())
            last: Tensor = self.last(batch)
            return last

    model, seen = ternarize_(Excluding()), {}
    for name in ("inner", "outer"):
        model.get_submodule(name).register_forward_hook(lambda layer, _i, _o, n=name: seen.update({n: layer.weight}))
    with torch.autocast("cpu", torch.bfloat16):
        model(torch.randn(3, 4)).sum().backward()
    dense = {name: ternary.dense() for name, ternary in ternary_weights(model).items()}
    assert torch.equal(seen["inner"], dense["inner.weight"].bfloat16())
    assert torch.equal(seen["outer"], dense["outer.weight"])
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters())
