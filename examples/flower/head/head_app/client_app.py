"""A ClientApp with an ordinary training function. One line of it is ternfed's."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from head_app.task import head_of, make_tuned, part_of, train
from ternfed import ternary_mod

app = ClientApp(mods=[ternary_mod])  # was: ClientApp()


@app.train()
def fit(message: Message, context: Context) -> Message:
    model = make_tuned()
    head_of(model).load_state_dict(message.content["arrays"].to_torch_state_dict())
    inputs, labels = part_of(int(context.node_config["partition-id"]), int(context.node_config["num-partitions"]))
    loss = train(model, inputs, labels, int(context.run_config["local-epochs"]))
    metrics = MetricRecord({"num-examples": len(labels), "train_loss": loss})
    arrays = ArrayRecord(torch_state_dict=head_of(model).state_dict())
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
