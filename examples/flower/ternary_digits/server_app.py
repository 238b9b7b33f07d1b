"""A ServerApp with a stock strategy. ternfed adds one line: the strategy around it."""

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from ternary_digits.task import accuracy, make_model
from ternfed import TernaryStrategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    model = make_model()
    nodes = int(context.run_config["min-nodes"])
    stock = FedAvg(fraction_evaluate=0.0, min_train_nodes=nodes, min_available_nodes=nodes)
    strategy = TernaryStrategy(stock, model)

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        model.load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord({"accuracy": accuracy(model)})

    strategy.start(
        grid,
        ArrayRecord(torch_state_dict=model.state_dict()),
        num_rounds=int(context.run_config["num-server-rounds"]),
        evaluate_fn=evaluate,
    )
    float32 = sum(tensor.numel() * 4 for tensor in model.state_dict().values())
    rounds = int(context.run_config["num-server-rounds"])
    print(f"down {strategy.bytes_down} bytes, up {strategy.bytes_up}; as float32 {float32 * nodes * rounds} each way")
