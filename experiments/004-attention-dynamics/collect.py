"""Keeps what the simulations found: summaries, both tables, figures, and what they ran on.

python experiments/004-attention-dynamics/collect.py runs/004-attention-dynamics
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from geonorm.report import write_figures
from geonorm.report.simulation import markdown

HERE = Path(__file__).parent

if __name__ == "__main__":
    tables = []
    for folder in sorted(path for path in Path(sys.argv[1]).iterdir() if (path / "summary.json").exists()):
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        (HERE / f"{folder.name}.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
        tables.append(f"## {folder.name}\n\n{markdown(summary)}")
        shutil.copy(folder / "environment.json", HERE / "environment.json")
        for figure in write_figures([folder], HERE / "figures" / folder.name):
            if figure.suffix == ".svg":  # several MB together; the command writes them
                figure.unlink()
    (HERE / "tables.md").write_text("\n".join(tables), encoding="utf-8")
