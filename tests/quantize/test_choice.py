"""Which weights can be ternary, and how they are named."""

import pytest
import torch
from torch import Tensor, nn

from ternfed.quantize.choice import Choice, NoMatch, NoTernaryLayersError, matching, ternary_names, untrained
from ternfed.quantize.layers import freeze, parameter_groups, ternarize_, ternary_weights


class Reader(nn.Module):
    """Token ids ─▶ classes, the head declared first; embedding and head may share their weights."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.head = nn.Linear(8, 12, bias=False)
        self.embed = nn.Embedding(12, 8)
        self.place = nn.Embedding(16, 8)
        self.shift = nn.Parameter(torch.randn(1, 8))
        self.memory = nn.LSTM(8, 8, num_layers=2, batch_first=True)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.LayerNorm(8)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.place(torch.arange(tokens.shape[1])) + self.shift
        x = x + self.memory(x)[0]
        x = self.norm(x + self.attention(x, x, x, need_weights=False)[0])
        out: Tensor = self.head(x.mean(1))
        return out


TOKENS = torch.randint(12, (6, 5), generator=torch.Generator().manual_seed(1))
INNER = (
    *(f"memory.weight_{part}_l{layer}" for layer in range(2) for part in ("ih", "hh")),
    "attention.in_proj_weight",
    "attention.out_proj.weight",
)


class TestInner:
    def test_first_and_last_go_by_use_where_a_sample_is_at_hand(self) -> None:
        assert ternary_names(Reader(), sample=TOKENS) == INNER

    def test_and_by_registration_where_there_is_none(self) -> None:
        model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 3), nn.Linear(3, 2))
        assert ternary_names(model) == ("1.weight",)
        assert "head.weight" not in ternary_names(Reader())

    def test_a_sample_that_the_model_cannot_take_is_as_good_as_none(self) -> None:
        model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 3), nn.Linear(3, 2))
        assert ternary_names(model, sample=torch.zeros(1, 5)) == ("1.weight",)

    def test_the_trial_leaves_the_model_and_the_random_numbers_alone(self) -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 2))
        before, source = model[1].state_dict(), torch.get_rng_state()
        ternary_names(model, sample=torch.randn(1, 4, generator=torch.Generator()))
        assert torch.equal(torch.get_rng_state(), source)
        assert all(torch.equal(tensor, before[name]) for name, tensor in model[1].state_dict().items())
        assert model.training
        assert not any(module._forward_pre_hooks for module in model.modules())

    def test_a_shared_module_that_is_used_first_and_last_stays_float(self) -> None:
        layer = nn.Linear(4, 4)
        model = nn.Sequential(layer, nn.Linear(4, 4), layer)
        assert ternary_names(model, sample=torch.zeros(1, 4)) == ("1.weight",)

    def test_tied_weights_stay_float_with_the_first_or_last_layer_that_has_them(self) -> None:
        assert ternary_names(Reader(tied=True), sample=TOKENS) == INNER


@pytest.mark.parametrize(
    ("layer", "names"),
    [
        (nn.Conv1d(4, 4, 3, groups=2), ["layer.weight"]),
        (nn.Conv3d(2, 4, 3), ["layer.weight"]),
        (nn.ConvTranspose2d(2, 4, 3), ["layer.weight"]),
        (nn.Embedding(5, 4), ["layer.weight"]),
        (nn.GRU(4, 6), ["layer.weight_ih_l0", "layer.weight_hh_l0"]),
        (nn.LSTM(4, 6, proj_size=2), ["layer.weight_ih_l0", "layer.weight_hh_l0", "layer.weight_hr_l0"]),
        (nn.MultiheadAttention(4, 2), ["layer.in_proj_weight", "layer.out_proj.weight"]),
        (nn.MultiheadAttention(4, 2, kdim=3),
         ["layer.q_proj_weight", "layer.k_proj_weight", "layer.v_proj_weight", "layer.out_proj.weight"]),
    ],
    ids=str,
)  # fmt: skip
def test_every_matrix_and_kernel_can_be_ternary(layer: nn.Module, names: list[str]) -> None:
    model = nn.ModuleDict({"layer": layer, "norm": nn.LayerNorm(4)})
    assert list(ternary_names(model, "all")) == names
    assert list(ternary_names(model, ["layer"])) == names


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (["memory"], INNER[:4]),
        (["memory.*_l0"], ("memory.weight_ih_l0", "memory.weight_hh_l0")),
        (["*.weight", "!head", "!*embed*", "!place"], ("attention.out_proj.weight",)),
        (["shift"], ("shift",)),
        (["!memory", "!attention"], ("shift", "head.weight", "embed.weight", "place.weight")),
        ("attention", INNER[4:]),
    ],
)
def test_patterns_name_modules_or_parameters(patterns: Choice, names: tuple[str, ...]) -> None:
    assert ternary_names(Reader(), patterns) == names


def test_a_shared_tensor_is_found_by_any_of_its_names() -> None:
    model = Reader(tied=True)
    assert ternary_names(model, ["head"]) == ternary_names(model, ["embed"]) == ("head.weight",)
    assert "head.weight" not in ternary_names(model, ["!embed"])


@pytest.mark.parametrize(
    ("patterns", "sentence"),
    [
        (["memry.*"], r"^memry\.\*: matches no layer and no parameter; did you mean memory"),
        (["memory", "!hed"], r"^!hed: matches no layer and no parameter; did you mean head\?$"),
        (["zzz"], r"^zzz: matches no layer and no parameter; there is shift, head, embed, place, memory"),
        (["norm"], r"^norm: matches only norm\.weight, norm\.bias; what is ternary has at least two dimensions$"),
    ],
)
def test_a_pattern_that_chooses_nothing_is_one_sentence(patterns: list[str], sentence: str) -> None:
    with pytest.raises(NoMatch, match=sentence):
        ternary_names(Reader(), patterns)


def test_patterns_that_leave_nothing_over_are_an_error() -> None:
    with pytest.raises(NoTernaryLayersError, match="the patterns leave nothing over"):
        ternary_names(Reader(), ["memory", "!memory"])


def test_what_is_not_trained_is_everything_that_no_pattern_names() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2))
    statistics = ("1.running_mean", "1.running_var", "1.num_batches_tracked")
    assert untrained(model, ["2"]) == ("0.weight", "0.bias", "1.weight", "1.bias", *statistics)
    assert untrained(model, ["!0"]) == ("0.weight", "0.bias")
    with pytest.raises(NoMatch, match=r"\*running\*: leaves no parameter to be trained"):
        untrained(model, ["*running*"])


def test_patterns_choose_in_the_order_of_the_tensors() -> None:
    names = {name: (name,) for name in ("a.x", "b.x", "c.y")}
    assert matching(["c", "a"], names) == ("a.x", "c.y")


def test_a_prepared_reader_learns_and_is_frozen_to_trits() -> None:
    """LSTM and attention take their weights anew at each call, so a user's own loop trains them ternary."""
    torch.manual_seed(0)
    model = ternarize_(Reader(), sample=TOKENS)
    assert tuple(ternary_weights(model)) == INNER
    optimizer = torch.optim.Adam(parameter_groups(model, 0.02))
    started = {name: weight.codes.clone() for name, weight in ternary_weights(model).items()}
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(TOKENS), TOKENS[:, 0])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]
    assert all(not torch.equal(weight.codes, started[name]) for name, weight in ternary_weights(model).items())
    plain = freeze(model)
    assert type(plain.memory) is nn.LSTM
    assert all(plain.get_parameter(name).unique().numel() <= 3 for name in INNER)
    torch.testing.assert_close(plain.eval()(TOKENS), model.eval()(TOKENS))
