"""The ternary model at the edge: one file that a small device runs without ternfed or PyTorch (docs/edge.md).

model = from_run("runs/mnist")                      # or trained(your_module, Inputs(...))
export(model, "model.onnx")                         # or .tern, .safetensors
opened = open_model("model.onnx")
result = summarise(predict(opened, *samples_for(opened.facts)))
"""

from ternfed.edge.files import Exported, Inspection, Tensorline, export, export_from, inspect
from ternfed.edge.inputs import Inputs, ModelError
from ternfed.edge.predict import (
    Batch,
    Prediction,
    Predictor,
    check_predictions_file,
    open_model,
    predict,
    samples_for,
    summarise,
    write_predictions,
)
from ternfed.edge.trained import (
    Trained,
    digest,
    from_file,
    from_run,
    open_trained,
    trained,
)

__all__ = [
    "Batch",
    "Exported",
    "Inputs",
    "Inspection",
    "ModelError",
    "Prediction",
    "Predictor",
    "Tensorline",
    "Trained",
    "check_predictions_file",
    "digest",
    "export",
    "export_from",
    "from_file",
    "from_run",
    "inspect",
    "open_model",
    "open_trained",
    "predict",
    "samples_for",
    "summarise",
    "trained",
    "write_predictions",
]
