"""Markdown rows from run folders: accuracy over seeds, bytes, Strategy I, for docs/results.md.

python benchmarks/results_table.py results/mnist/*/seed-* results/cifar-*
"""

import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from ternfed.runs import read_run

HEADINGS = (
    "data",
    "model",
    "clients",
    "algorithm",
    "rounds × epochs",
    "seeds",
    "accuracy (%)",
    "up, MB",
    "down, MB",
    "bits a weight up",
    "Strategy I",
)


def main(folders: list[str]) -> None:
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for folder in folders:
        run = read_run(Path(folder))
        if run.summary is None:
            sys.exit(f"{folder}: the run is not finished")
        same = {key: value for key, value in run.settings.items() if key not in ("seed", "name")}
        groups[json.dumps(same)].append(run.summary)
    print("| " + " | ".join(HEADINGS) + " |")
    print("|" + "---|" * len(HEADINGS))
    for rows in groups.values():
        print(row(rows))


def row(rows: list[dict[str, Any]]) -> str:
    settings = rows[0]["settings"]
    data, model, federation = settings["data"], settings["model"], settings["federation"]
    algorithm = settings["algorithm"]["name"] + (
        f" ({settings['algorithm']['preset']})" if "preset" in settings["algorithm"] else ""
    )
    accuracies = [100 * r["accuracy"] for r in rows]
    spread = f" ± {statistics.stdev(accuracies):.2f}" if len(rows) > 1 else ""
    split = f"N_c = {data['classes_per_client']}" if "classes_per_client" in data else data["partition"].upper()
    activation = " linear" if model.get("activation") == "none" else ""
    one = [r["strategy_one"] for r in rows]
    cells = (
        f"{data['dataset']}, {split}",
        model["name"] + activation,
        f"{federation['clients']}, λ = {federation['participation']:g}",
        algorithm,
        f"{federation['rounds']} × {settings['training']['epochs']}",
        str(len(rows)),
        f"{statistics.mean(accuracies):.2f}{spread}",
        f"{statistics.mean(r['bytes_up'] for r in rows) / 1e6:.2f}",
        f"{statistics.mean(r['bytes_down'] for r in rows) / 1e6:.2f}",
        f"{statistics.mean(r['bits_per_weight_up'] for r in rows):.3f}",
        "–" if one[0] is None else f"{statistics.mean(one):g} of {federation['rounds']}",
    )
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main(sys.argv[1:])
