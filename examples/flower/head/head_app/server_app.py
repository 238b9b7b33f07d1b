"""A ServerApp with a stock strategy. One line of it is ternfed's."""

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from head_app.task import accuracy, head_of, make_tuned
from ternfed import TernaryStrategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    model = make_tuned()
    nodes = int(context.run_config["min-nodes"])
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=nodes, min_available_nodes=nodes)
    strategy = TernaryStrategy(strategy)  # the one line

    def evaluate(_: int, arrays: ArrayRecord) -> MetricRecord:
        head_of(model).load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord({"accuracy": accuracy(model)})

    strategy.start(
        grid,
        ArrayRecord(torch_state_dict=head_of(model).state_dict()),
        num_rounds=int(context.run_config["num-server-rounds"]),
        evaluate_fn=evaluate,
    )
