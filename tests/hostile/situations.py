"""Situations in which a command cannot do what is asked: no two with one cause at one place.

Each must end in one line that names the problem and what to do about it, with exit status 2 and nothing written.
"""

from __future__ import annotations

from setting import (  # isort: skip
    COMPARE, PROBE, SIMULATE, TEXT, TINY, TRAIN, Situation,
    cut, cut_before, edited, flipped, folder, gone, left_behind, link, parquet, s,
)  # fmt: skip

LAST = "run/checkpoints/step-4"
OLDER = {"run/checkpoints/step-3": gone}


TRAINING = [
    s(f"{TRAIN} --runtime.device cuda:99", "cuda:99"),
    s(f"{TRAIN} --scheme os:system", "not a subclass"),
    s(f"{TRAIN} --tokens.tokenizer folder", "folder", files={"folder": folder}),
    s(f"{TRAIN} --model.positions learned --model.rotary 0.5", "model.rotary 0.5", "rope"),
]

OUTPUT = [
    s(f"train {' '.join(TINY)} --out gone", "gone", files={"gone": link("/nonexistent/place")}),
    s(f"train {' '.join(TINY)} --out /proc/self/new", "cannot write"),
    s(TRAIN, "config.yaml", files={"out/config.yaml": "!!python/object/apply:os.system ['true']\n"}),
    s(TRAIN, "not empty", files={"out/config.yaml": link("nowhere.yaml")}),
    s(f"{SIMULATE} --out out", "out", files={"gone": left_behind}),
]

CONFIG = [
    s(f"{TRAIN} --config c.yaml", "--seed", files={"c.yaml": "seed: 2026-01-01\n"}),
    s(f"{TRAIN} --config c.yaml", "--batch-size", files={"c.yaml": "batch_size: true\n"}),
    s(f"{TRAIN} --config c.yaml", "c.yaml", files={"c.yaml": lambda path: path.write_bytes(b"# " + b"x" * 20_000_000)}),
]

DATA = [
    s("data inspect d.parquet", "empty", files={"d.parquet": parquet(text=["", None, ""])}),
    s("data inspect d.parquet", "d.parquet", files={"d.parquet": lambda p: [parquet(text=["a"] * 99)(p), cut(0.5)(p)]}),  # type: ignore[operator]
    s("data inspect loop", "loop", files={"loop": link("loop")}),
    s("data inspect books", "books", GEONORM_DATA="text.txt"),
    s("data prepare tiny.txt --tokenizer byte", "tiny", files={"tiny.txt": "x"}),
    s(f"{TRAIN} --data d", "d/validation.txt", "empty", files={"d/train.txt": TEXT, "d/validation.txt": ""}),
]

DAMAGED = [
    s("generate run --tokens 2", "checksum", files={f"{LAST}/model.safetensors": flipped, **OLDER}),
    s("generate run --tokens 2", "step-4", files={f"{LAST}/state.json": cut(0.9), **OLDER}),
    s("generate run --tokens 2", "step-4", files={f"{LAST}/state.json": "[" * 50_000, **OLDER}),
    s("generate run --tokens 2", "another model", files={"run/config.yaml": cut_before("model:"), **OLDER}),
    s("generate run --tokens 2", "another model", files={"run/config.yaml": edited(model__width=32), **OLDER}),
    s("generate run --tokens 2", "scheme", files={"run/config.yaml": edited(scheme=7)}),
    s("generate run --tokens 2", "steps", files={"run/config.yaml": edited(steps="many")}),
    s("eval run --data text.txt", "no checkpoint", files={"run/checkpoints": lambda p: [gone(p), p.write_text("x")]}),
    s("export run --to new", "not finished", files={"run/summary.json": gone}),
    s("export run --to new", "environment.json", files={"run/environment.json": gone}),
    s("export run --to new", "metrics.jsonl", files={"run/metrics.jsonl": lambda p: [gone(p), p.mkdir()]}),
    s(f"train {' '.join(TINY)} --out run/checkpoints", "holds no run"),
    s("compare --schemes pre --out run", "holds no comparison"),
]

READING = [
    s("generate text.txt", "text.txt"),
    s("generate model", "no causal language model", files={"model/model.safetensors": gone}),
    s("generate model", "no causal language model", files={"model/config.json": edited(model_type="nothing")}),
    s("generate model", "scheme", files={"model/config.json": edited(scheme="nothing")}),
    s("generate model", "tokenizer", files={"model/tokenizer.json": cut(0.5)}),
    s("generate model", "model", files={"model/model.safetensors": cut(0.5)}),
    s("eval run --tasks q.jsonl", "q.jsonl", files={"q.jsonl": '{"question": 3}\n'}),
    s("eval run --tasks text.txt", "task"),
    s("export run --to model2", "model2 is not empty", files={"model2/mine": "x"}),
    s("export run --to new --layout gpt2", "gpt2"),
    s("probe run --data text.txt --out text.txt", "is a file"),
    s("generate 'no\nsuch\nrun'", "there is no run"),
    s("generate model --tokens 2", "another model", files={"model/config.json": edited(hidden_size=32)}),
    s("generate model --tokens 2", "holds no model.blocks.", files={"model/config.json": edited(num_hidden_layers=3)}),
    s("generate model --tokens 2", "tokenizer", files={"model/tokenizer.json": gone}),
    s("generate model --tokens 2", "tokenizer", files={"model/tokenizer_config.json": "["}),
    s(f"probe model {PROBE}", "another model", files={"model/config.json": edited(vocab_size=3)}),
]

SIMULATIONS = [
    s(f"{SIMULATE} --out sim --causal", "causal False, not True"),
    s(f"{SIMULATE} --out run", "run"),
    s(f"{SIMULATE} --out sim", "config.yaml", files={"sim/config.yaml": "%"}),
    s(f"{SIMULATE} --out out".replace("--dim 4", "--dim 100000000000"), "4 tokens take more than"),
]

REPORTS = [
    s("report empty", "no run directory in empty", files={"empty": folder}),
    s("report run --out folder", "folder", files={"folder": folder}),
    s("report run --out text.txt/page.html", "text.txt"),
    s("report run --out out.html --figures text.txt", "text.txt"),
]

COMPARISONS = [
    s(f"{COMPARE}", "not empty", files={"out/runs/a.txt": "mine"}),
    s("bench ops --out text.txt", "text.txt"),
]

SURROUNDINGS = [
    s(TRAIN, "$RANK", RANK="5", WORLD_SIZE="2", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="29511"),
    s(TRAIN, "$MASTER_PORT", RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="99999"),
    s(TRAIN, "$MASTER_ADDR", RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="not a host", MASTER_PORT="29511"),
    s(TRAIN, "GEONORM_CACHE", GEONORM_CACHE="text.txt"),
    s(TRAIN, "GEONORM_BACKEND", GEONORM_BACKEND="fast"),
    s(f"{TRAIN} --runtime.device cuda", "no GPU", CUDA_VISIBLE_DEVICES=""),
]

SITUATIONS: dict[str, list[Situation]] = {
    "training": TRAINING,
    "where it writes": OUTPUT,
    "files of settings": CONFIG,
    "text": DATA,
    "damaged runs": DAMAGED,
    "reading runs and models": READING,
    "simulations": SIMULATIONS,
    "reports and schemes": REPORTS,
    "comparisons and benchmarks": COMPARISONS,
    "surroundings": SURROUNDINGS,
}
