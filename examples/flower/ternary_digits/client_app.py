"""A ClientApp with an ordinary training loop. ternfed adds three lines: the mod, `ternarize_` and `freeze`."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from ternary_digits.task import make_model, part_of
from ternfed import freeze, parameter_groups, ternarize_, ternary_mod

app = ClientApp(mods=[ternary_mod(make_model)])


@app.train()
def train(message: Message, context: Context) -> Message:
    model = make_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    ternarize_(model)  # the inner layers train ternary weights
    inputs, labels = part_of(int(context.node_config["partition-id"]), int(context.node_config["num-partitions"]))
    optimizer = torch.optim.SGD(parameter_groups(model, 0.1))
    for _ in range(int(context.run_config["local-epochs"])):
        for batch in torch.randperm(len(labels)).split(32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs[batch]), labels[batch]).backward()
            optimizer.step()
    arrays = ArrayRecord(torch_state_dict=freeze(model).state_dict())
    return Message(
        RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": len(labels)})}), reply_to=message
    )
