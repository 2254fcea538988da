"""Where a conversion begins, and what its result is: a run of ours, or a model of transformers."""

from __future__ import annotations

import copy
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import CheckpointError, ConfigError
from ...nn.config import DecoderConfig
from ...nn.decoder import Decoder
from ...schemes import Morph, Pre, Scheme, Site, parse, settle, stored
from ...settings import to_dict
from ..config import TrainConfig
from ..open import Opened, open_model, open_run, read_run_settings, read_settings, run_of
from ..runs.provenance import FILE, FOLDER, read_parts, read_sources
from ..runs.run import read_object, write_json, write_settings
from ..scale.checkpoint import Saver, read_and_verify, restore_optimizers, saved_steps
from ..scale.storage import kind_of, read_state, read_tensors
from ..scale.world import ALONE
from ..shapes import Model
from ..tasks.use import Scorer, first_token, window
from ..train.loop import Loop
from .config import ConvertConfig

OF_RUN = ("step", "sha256", "state_sha256", "optimizer")
"""What of a checkpoint's state the saver writes itself."""
BEGUN = "conversion.json"
"""What is known before the first step, in the folder of the way."""
SCHEDULE: dict[str, Any] = {"schedule": "cosine", "warmup": 0.05, "warmup_steps": None, "floor": 0.1}
"""Of the rate on a way."""
KEPT = ("metrics.jsonl", "trace.jsonl", "norms.jsonl", "tokenizer.json")
"""Files of the run on its way that are those of the result too."""


class Origin(ABC):
    """A trained Pre-Norm model."""

    name: str
    source: Scheme
    settings: TrainConfig
    """Of the run that trains it on its way, but for what the command says."""
    checkpoint: dict[str, Any] | None = None
    """Of a run, what it begins with: the step, and the sha256 of the files of its weights."""

    def __init__(self, config: ConvertConfig) -> None:
        self.config, self.target = config, parse(config.to)
        self.original: Any = None
        self.loop: Any = None

    @abstractmethod
    def build(self, loop: Any, shape: DecoderConfig) -> Any:
        """The model that is trained, and `original` beside it, which is not."""

    @abstractmethod
    def begin(self, loop: Loop) -> None:
        """Gives the model of a loop at step 0 what it begins with."""

    @abstractmethod
    def save(self, loop: Loop, way: Path, out: Path) -> None:
        """Writes the result of a loop that has come to its end, which is in its model and optimizers."""

    def steps(self, batch_size: int, context: int) -> int:
        return max(1, round(self.config.tokens / (batch_size * context)))

    def moving(self, steps: int) -> int:
        """Steps of the gradual way."""
        return max(1, round(self.config.share * steps))

    def rule(self, steps: int) -> str:
        """The scheme that the run trains under."""
        c = self.config
        return str(Morph(self.source, self.target, self.moving(steps), c.course) if c.way == "gradual" else self.target)

    def shared(self, way: Path, steps: int, batch_size: int) -> dict[str, Any]:
        """Settings of the run on its way that follow from the command."""
        c = self.config
        return {
            "scheme": self.rule(steps), "steps": steps, "batch_size": batch_size, "seed": c.seed, "out": str(way),
            "evaluation": c.evaluation, "checkpoint": c.checkpoint, "runtime": c.runtime,
        }  # fmt: skip


class RunOrigin(Origin):
    """A run of ours."""

    checkpoint: dict[str, Any]

    def __init__(self, config: ConvertConfig, path: Path, way: Path) -> None:
        super().__init__(config)
        c, self.path, self.name = config, path, str(path)
        own = read_run_settings(path)
        self.checkpoint = self.find_checkpoint(read_object(way / BEGUN).get("checkpoint"))
        if c.context is not None:
            raise ConfigError("--context is for Hugging Face models; a run is trained in windows of its own context")
        if own.objective not in ("causal", "mlm"):
            raise ConfigError(f"{path} learns to {own.objective}: convert needs a model of tokens in one stack")
        self.source = parse(stored(own.scheme, read_sources(path), str(path)))
        if not isinstance(self.source, Pre):
            raise ConfigError(f"{path} is not Pre-Norm but {self.source}: convert begins with a Pre-Norm model")
        shape = own.decoder(own.scheme)
        batch = c.batch_size or own.batch_size
        steps = self.steps(batch, shape.context)
        self.settings = TrainConfig(
            preset=own.preset,
            objective=own.objective,
            model=own.model,
            **self.shared(way, steps, batch),
            lr=own.lr if c.lr is None else c.lr,
            data=c.data or own.data,
            optim=replace(own.optim, **SCHEDULE),
            tokens=replace(own.tokens, tokenizer=str(path / "tokenizer.json")),
        )
        made = Decoder(replace(shape, scheme=self.settings.scheme))  # ConfigError without a way
        for _, residual in made.residuals():
            if why := residual.scheme.about.fresh:
                raise ConfigError(f"{self.target} is for models trained from the start: {why}")

    def find_checkpoint(self, begun: dict[str, Any] | None) -> dict[str, Any]:
        """That which a conversion has begun with, else the newest: the run may have trained on since. CheckpointError
        where there is none, or where one that it still learns from is gone."""
        steps = saved_steps(self.path / "checkpoints")
        if not steps:
            raise CheckpointError(f"{self.path} holds no checkpoint yet; let it train first")
        if begun and begun["step"] in steps and begun == self.describe(begun["step"]):
            return begun
        if begun and self.config.distill:
            raise CheckpointError(
                f"{self.path} no longer has the checkpoint of step {begun['step']} that this conversion learns from: "
                "put it back, or begin anew with another --out"
            )
        return self.describe(steps[-1])

    def describe(self, step: int) -> dict[str, Any]:
        sums = read_state(self.path / "checkpoints" / f"step-{step}")["sha256"]
        return {"step": step, "sha256": {name: found for name, found in sums.items() if kind_of(name) == "model"}}

    def build(self, loop: Any, shape: DecoderConfig) -> Any:
        self.original = open_run(self.path, loop.device, self.checkpoint["step"]).model
        return Decoder(shape)

    def begin(self, loop: Loop) -> None:
        folder = self.path / "checkpoints" / f"step-{self.checkpoint['step']}"
        state = read_and_verify(folder, ALONE, everything=True)
        model, optimizers = loop.model, loop.optimizers
        with torch.no_grad():
            weights = self.original.state_dict()
            for name, own in model.state_dict().items():
                if name in weights and weights[name].shape == own.shape:
                    own.copy_(weights[name])
        known = dict(model.named_parameters())
        found = read_tensors(folder, [name for name in state["sha256"] if kind_of(name) == "optimizer"])
        moments = {
            f"optimizer.{key}": tensor.to(known[name].device)
            for key, tensor in found.items()
            if (name := key.rpartition(".")[0]) in known
        }
        scalars = {name: values for name, values in state["optimizer"].items() if name in known}
        restore_optimizers(model, optimizers, moments, scalars)
        if self.config.way == "match":
            from .fit import divide_state, fit

            divide_state(optimizers, fit(model, self.original, loop.batches.at(0)[0].to(loop.device)))

    def save(self, loop: Loop, way: Path, out: Path) -> None:
        model, last = loop.model, way / "checkpoints" / f"step-{self.settings.steps}"
        if self.config.way == "gradual":
            settle(model)
        kept = {id(p) for p in model.parameters()}
        for optimizer in loop.optimizers:
            for parameter in [p for p in optimizer.state if id(p) not in kept]:
                del optimizer.state[parameter]
        for name in KEPT:
            if (way / name).exists():
                shutil.copyfile(way / name, out / name)
        write_json(out / FILE, [*read_parts(self.path), *read_parts(way)])  # what both have seen is not held out
        if (way / FOLDER).is_dir():
            shutil.copytree(way / FOLDER, out / FOLDER, dirs_exist_ok=True)
        progress = {key: value for key, value in read_state(last).items() if key not in OF_RUN}
        saver = Saver(out / "checkpoints", keep=1)
        saver.save(self.settings.steps, model, loop.optimizers, {**progress, "scheme": str(self.target)})
        saver.wait()
        saver.close()
        config = replace(self.settings, scheme=str(self.target), out=str(out))
        write_settings(out / "config.yaml", to_dict(config))


class ModelOrigin(Origin):
    """A model of transformers of a family that `hf.apply` knows, in fp32."""

    def __init__(self, config: ConvertConfig, opened: Opened, tokenizer: str, way: Path) -> None:
        from ...hf.apply import check_model
        from ...hf.convert import check_pre_norm, source_of

        super().__init__(config)
        c, self.opened, self.name = config, opened, opened.name
        check_model(opened.model)
        check_pre_norm(opened.model)
        self.source = source_of(opened.model)
        if not opened.causal:
            raise ConfigError(f"{opened.name} predicts {opened.predicts}: convert needs a model of the next token")
        if c.data is None:
            raise ConfigError("--data is missing: what to train on is known of runs alone")
        vocabulary = opened.model.get_input_embeddings().weight.shape[0]
        if len(opened.tokenizer) > vocabulary:
            raise ConfigError(
                f"the tokenizer of {opened.name} has {len(opened.tokenizer)} ids, its model {vocabulary}: they do not "
                "belong together"
            )
        context, batch = window(opened, c.context), c.batch_size or 4
        untraced = replace(c.evaluation, trace_tokens=0)
        self.settings = TrainConfig(
            # what the loop asks of a shape: how many tokens there are, and how many it reads
            model=Model(vocab_size=vocabulary, context=context, positions="none"),
            **(self.shared(way, self.steps(batch, context), batch) | {"evaluation": untraced}),
            lr=1e-4 if c.lr is None else c.lr,
            data=c.data,
            optim=replace(TrainConfig().optim, **SCHEDULE),
            tokens=replace(TrainConfig().tokens, tokenizer=tokenizer),
        )
        self.conversion: Any = None

    def build(self, loop: Any, shape: DecoderConfig) -> Any:
        from ...hf.convert import convert

        c, model = self.config, self.opened.model
        first = first_token(self.opened.tokenizer)
        self.original = Adapted(copy.deepcopy(model), first).to(loop.device).eval()
        probe = loop.batches.at(0)[0] if c.way == "match" else None
        self.conversion = convert(model, self.target, c.way, self.moving(self.settings.steps), c.course, probe)
        return Adapted(model, first).train()

    def begin(self, loop: Loop) -> None:
        """What was loaded is in its model already; there is no optimizer state."""

    def save(self, loop: Loop, way: Path, out: Path) -> None:
        from ...hf.export import note_data

        model = self.conversion.finish()
        note_data(model, loop.text.sha256)
        model.save_pretrained(out)
        self.opened.tokenizer.save_pretrained(out)
        shutil.copyfile(way / "metrics.jsonl", out / "metrics.jsonl")


class Adapted(Scorer):
    """A model of transformers in the place of a decoder in the training loop."""

    @property
    def config(self) -> Any:
        return self.model.config

    @property
    def all_blocks(self) -> list[nn.Module]:
        from ...sites.anatomy import blocks_of
        from ...sites.watch import stacks_of

        return [block for stack, base in stacks_of(self.model) for block in blocks_of(self.model, stack, base)]

    def weights(self) -> Iterator[tuple[str, Tensor, Scheme, Site]]:
        """What decays, as a matrix that no optimizer treats apart."""
        from ...hf.training import decay_parameter_names

        known = dict(self.model.named_parameters())
        for name in decay_parameter_names(self.model):
            if name in known:
                yield "head", known[name], Pre(), Site(0, "exit", 1)

    def constrain(self) -> None:
        """No scheme that `apply` takes has constraints."""

    def parameter_count(self) -> int:
        return sum(p.numel() for p in self.parameters())

    def matmul_parameter_count(self) -> int:
        return sum(p.numel() for p in self.parameters() if p.dim() == 2)


def find_origin(config: ConvertConfig, way: Path) -> Origin:
    """GeonormError, one line, for whatever cannot be converted; nothing is written."""
    name = run_of(config.model, config.scheme)
    if isinstance(read_settings(name), TrainConfig):
        return RunOrigin(config, Path(name), way)
    opened = open_model(name, torch.device("cpu"), dtype="float32")
    from transformers.utils import cached_file

    file = cached_file(name, "tokenizer.json", _raise_exceptions_for_missing_entries=False)
    if file is None:
        raise ConfigError(f"{name} has no tokenizer.json, the file of a fast tokenizer, with which text is read here")
    return ModelOrigin(config, opened, str(file), way)
