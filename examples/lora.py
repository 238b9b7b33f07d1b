"""A part of a large model: a transformer that reads digits learns to read them lying on their side, by adapters alone.

python examples/lora.py [ROUNDS]

The transformer is trained first, in one place, and saved. Then each of ten clients trains low-rank adapters beside its
linear layers (Hu et al.: LoRA, ICLR 2022), and only these travel, ternary; the rest stays as it is in the file. The
adapters of `peft` have such names too: the same two patterns serve them.
"""

import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from ternfed import federate, from_arrays, load
from ternfed.data.images import normalise

WIDTH, HEADS, RANK = 64, 4, 8


class Block(nn.Module):
    """Attention, then a small network, each added to what came in."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.inward, self.outward = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.inward(self.norm1(x)).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.outward(nn.functional.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2))
        return x + self.down(self.up(self.norm2(x)).relu())


class Reader(nn.Module):
    """(N, 1, 8, 8) digits, row by row, ─▶ ten classes."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.places = nn.Linear(8, WIDTH), nn.Parameter(0.1 * torch.randn(8, WIDTH))
        self.blocks = nn.Sequential(Block(), Block(), Block())
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.head(self.blocks(self.rows(images.squeeze(1)) + self.places).mean(1))
        return scores


class Adapted(nn.Module):
    """A linear layer that stays, and beside it the product of two narrow matrices, which is nothing at first."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer
        self.lora_a = nn.Parameter(torch.randn(RANK, layer.in_features) / RANK)
        self.lora_b = nn.Parameter(torch.zeros(layer.out_features, RANK))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out + x @ self.lora_a.T @ self.lora_b.T


def adapt(module: nn.Module) -> nn.Module:
    """Put adapters beside all linear layers inside a module."""
    for name, child in module.named_children():
        setattr(module, name, Adapted(child) if isinstance(child, nn.Linear) else adapt(child))
    return module


def train(model: nn.Module, inputs: Tensor, labels: Tensor, steps: int) -> None:
    """In one place, in full precision."""
    optimizer = torch.optim.Adam(model.parameters(), 0.002)
    for _ in range(steps):
        chosen = torch.randint(len(inputs), (64,))
        loss = nn.functional.cross_entropy(model(inputs[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main(rounds: int = 10) -> None:
    torch.manual_seed(0)
    digits, model = load("digits"), Reader()
    train(model, normalise(digits.train.inputs, digits.mean, digits.std), digits.train.labels, steps=300)
    whole = 4 * sum(parameter.numel() for parameter in model.parameters())
    adapted = adapt(model)

    turned = [samples.inputs.rot90(1, (2, 3)) for samples in (digits.train, digits.test)]
    data = from_arrays("turned", turned[0], digits.train.labels, turned[1], digits.test.labels)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "reader.safetensors"
        save_file(adapted.state_dict(), file)
        settings = ("federation.clients=10", f"federation.rounds={rounds}", "training.optimizer=adam",
                    "training.rate=0.005", "training.schedule=cosine", "training.batch=16")  # fmt: skip
        sent = 0
        for record in federate(
            adapted, data, *settings, f"model.weights={file}", 'model.trainable=["*.lora_*"]',
            'model.ternary=["*.lora_*"]',
        ):  # fmt: skip
            sent += record.bytes_up
            print(f"round {record.round}: {record.measure.text(record.score)}, {sent:,} bytes sent up")
    print(f"the whole model in float32, from every client in every round: {10 * rounds * whole:,} bytes")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
