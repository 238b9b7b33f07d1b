"""The same as lora.py with the adapters of `peft`: the patterns that say what is trained, and what is ternary, stay.

python examples/lora_peft.py [ROUNDS]     needs `pip install peft`
"""

import sys

import torch
from lora import RANK, Reader, train

from ternfed import federate, from_arrays, load
from ternfed.data.images import normalise

try:
    from peft import LoraConfig, get_peft_model
except ImportError:
    sys.exit("examples/lora_peft.py: needs `pip install peft`; examples/lora.py does the same without it")


def main(rounds: int = 10) -> None:
    torch.manual_seed(0)
    digits, model = load("digits"), Reader()
    train(model, normalise(digits.train.inputs, digits.mean, digits.std), digits.train.labels, steps=300)
    adapted = get_peft_model(model, LoraConfig(r=RANK, lora_alpha=RANK, target_modules="all-linear"))

    turned = [samples.inputs.rot90(1, (2, 3)) for samples in (digits.train, digits.test)]
    data = from_arrays("turned", turned[0], digits.train.labels, turned[1], digits.test.labels)
    settings = ("federation.clients=10", f"federation.rounds={rounds}", "training.optimizer=adam",
                "training.rate=0.005", "training.schedule=cosine", "training.batch=16")  # fmt: skip
    sent = 0
    for record in federate(adapted, data, *settings, 'model.trainable=["*.lora_*"]', 'model.ternary=["*.lora_*"]'):
        sent += record.bytes_up
        print(f"round {record.round}: {record.measure.text(record.score)}, {sent:,} bytes sent up")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
