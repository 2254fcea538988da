"""Training with transformers' Trainer, accelerate and PEFT: as they train any model, decay and constraints included."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import geonorm
from geonorm import hf, names
from geonorm.hf.export import hf_name
from geonorm.lab.config import Optim
from geonorm.lab.train import optim
from geonorm.models import Decoder

from ..rows import each


def texts(count: int = 16) -> list[dict[str, Any]]:
    rows = torch.randint(1, 61, (count, 9), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": row, "labels": row} for row in rows]


def trainer(model: Any, folder: Path, kind: Any = hf.Trainer, **settings: Any) -> Any:
    settings = {"max_steps": 4, "save_steps": 2, "weight_decay": 0.1, "learning_rate": 1e-2, **settings}
    more = {key: settings.pop(key) for key in ("callbacks", "optimizer_cls_and_kwargs") if key in settings}
    data = settings.pop("data", None) or texts()
    arguments = transformers.TrainingArguments(
        folder,
        per_device_train_batch_size=settings.pop("batch", 2),
        use_cpu=True,
        report_to=[],
        logging_strategy="no",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        seed=3,
        **settings,
    )
    return kind(model=model, args=arguments, train_dataset=data, **more)


def weights(model: Any) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def equal(one: Any, other: Any) -> bool:
    one, other = weights(one), weights(other)
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def off_the_sphere(model: Any) -> float:
    """The largest departure from 1 of the length of a row of q, head and embedding and of a column of down."""
    block = model.model.blocks[1]
    rows = (block.attn.branch.q.weight, model.lm_head.weight, model.get_input_embeddings().weight)
    lengths = [w.norm(dim=-1) for w in rows] + [block.mlp.branch.down.weight.norm(dim=0)]
    return max((length - 1).abs().max().item() for length in lengths)


@pytest.mark.parametrize("scheme", ["geonorm", "ngpt"])
def test_a_run_of_trainer_resumes_where_it_stopped(scheme: str, build: Any, tmp_path: Path) -> None:
    whole = build(scheme)
    start = weights(whole)
    trainer(whole, tmp_path).train()
    assert not torch.equal(whole.lm_head.weight, start["lm_head.weight"])
    again = build(scheme)
    with torch.no_grad():
        again.lm_head.weight.zero_()  # everything comes from the checkpoint
    trainer(again, tmp_path / "again").train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert equal(whole, again)
    saved = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint-4")
    assert equal(whole, saved)


@pytest.mark.parametrize("kind", ["ours", "theirs with the callback"])
def test_constraints_hold_after_every_step_of_trainer(kind: str, build: Any, tmp_path: Path) -> None:
    seen: list[float] = []

    class Look(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *state: Any, model: Any, **more: Any) -> None:
            seen.append(off_the_sphere(model))

    model = build("ngpt")
    with torch.no_grad():
        model.lm_head.weight.mul_(2)
    if kind == "ours":
        trainer(model, tmp_path, callbacks=[Look()]).train()
    else:
        callbacks = [hf.ConstrainCallback(), Look()]
        trainer(model, tmp_path, transformers.Trainer, callbacks=callbacks, weight_decay=0.0).train()
    assert len(seen) == 4 and max(seen) < 1e-5
    assert off_the_sphere(hf.GeoNormForCausalLM.from_pretrained(tmp_path / "checkpoint-2")) < 1e-5


def test_constraints_hold_in_a_model_of_ones_own() -> None:
    layer = torch.nn.Linear(8, 8)
    layer.role = "up"  # type: ignore[assignment]
    model = torch.nn.Sequential(geonorm.Residual(layer, "ngpt", geonorm.Site(0, "mlp", 1), dim=8))
    hf.ConstrainCallback.constrain(model)
    assert layer.weight.norm(dim=1).sub(1).abs().max() < 1e-6


@each("applied", [False, True])
def test_trainer_shifts_labels_under_label_smoothing(
    applied: bool, build: Any, tiny_model: Any, tmp_path: Path
) -> None:
    """It knows the models whose labels are to be shifted by the names of their classes."""
    model = copy.deepcopy(tiny_model("llama")[0]) if applied else build("pre")
    if applied:
        hf.apply(model, "geonorm")
    stock = trainer(model, tmp_path, transformers.Trainer, label_smoothing_factor=0.1)
    batch = {key: value[None] for key, value in texts()[0].items()}
    smoothed = stock.label_smoother(model(**batch), batch["labels"], shift_labels=True)
    torch.testing.assert_close(stock.compute_loss(model, dict(batch)), smoothed)


def test_a_scheme_that_counts_steps_counts_those_of_trainer(build: Any, tmp_path: Path) -> None:
    model = build("prores(pre, steps=2)")
    trainer(model, tmp_path).train()
    assert {int(p) for name, p in model.state_dict().items() if name.endswith(".done")} == {4}


def test_saving_warns_of_what_the_stock_trainer_left_out(build: Any, tmp_path: Path) -> None:
    """Weights off the sphere; steps that nobody counted, in a model that trains."""
    for scheme, message in (
        ("ngpt", r"weights \(\w+\) are not where ngpt keeps them: train with geonorm.hf.ConstrainCallback"),
        ("prores(pre, steps=2)", "has counted no step: train with geonorm.hf.ConstrainCallback"),
    ):
        model = build(scheme).train()
        with pytest.warns(UserWarning, match=message):
            trainer(model, tmp_path / "stock", transformers.Trainer, weight_decay=0.0, learning_rate=0.1).train()
        trainer(build(scheme), tmp_path / "ours").train()  # warnings are errors
    model.eval().save_pretrained(tmp_path / "not trained on")


@each("scheme", [*names(), "geonorm(learn=affine)", "mix(ngpt, geonorm)"])
def test_what_decays_is_what_our_own_optimizer_decays(scheme: str) -> None:
    shape: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48, "vocab_size": 61}
    for fields in (
        {"qk_norm": "head", "norm": "layer", "bias": True, "positions": "learned"},
        {"norm": "dyt", "block": "parallel", "tie_word_embeddings": True},
    ):
        config = hf.GeoNormConfig(scheme=scheme, **shape, **fields)
        decoder, model = Decoder(config.shape()), hf.GeoNormForCausalLM(config)
        decayed = {id(p) for p in optim.build_optimizers(decoder, Optim(), 1e-3)[0].param_groups[0]["params"]}
        expected = {hf_name(name) for name, p in decoder.named_parameters() if id(p) in decayed}
        assert set(hf.Trainer.get_decay_parameter_names(None, model)) == expected


PEFT = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # PEFT's own


@PEFT
@pytest.mark.parametrize(("scheme", "targets"), [("geonorm", ["branch.q", "branch.v"]), ("ngpt", "all-linear")])
def test_lora_trains_saves_loads_and_merges(scheme: str, targets: Any, build: Any, ids: Any, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="LoRA needs PEFT")
    config = peft.LoraConfig(r=2, task_type="CAUSAL_LM", target_modules=targets)
    tuned = peft.get_peft_model(build(scheme), config)
    before = tuned(ids).logits
    changed = {name.split(".")[-4] for name, p in tuned.named_parameters() if p.requires_grad and "lora_A" in name}
    assert changed == ({"q", "v"} if targets != "all-linear" else {"q", "k", "v", "o", "gate", "up", "down"})
    frozen = {name: p.clone() for name, p in tuned.named_parameters() if not p.requires_grad}
    trainer(tuned, tmp_path, learning_rate=0.1, save_strategy="no").train()
    after = tuned.eval()(ids).logits
    assert not torch.allclose(after, before, atol=1e-3)
    assert all(torch.allclose(p, frozen[name], atol=1e-6) for name, p in tuned.named_parameters() if name in frozen)
    tuned.save_pretrained(tmp_path / "adapter")
    merged = peft.PeftModel.from_pretrained(build(scheme), tmp_path / "adapter").merge_and_unload()
    assert type(merged) is hf.GeoNormForCausalLM
    torch.testing.assert_close(merged(ids).logits, after, rtol=1e-4, atol=1e-5)


@PEFT
def test_lora_on_a_model_under_a_scheme(ids: Any, tmp_path: Path) -> None:
    """By the last names of the stock family; merged, the scheme is undone and the weights stay."""
    peft = pytest.importorskip("peft", reason="LoRA needs PEFT")

    def applied() -> Any:
        torch.manual_seed(0)
        shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=61, **shape))
        hf.apply(model, "geonorm")
        return model.eval()

    tuned = peft.get_peft_model(applied(), peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
    before = tuned(ids).logits
    assert sum(name.endswith("lora_A") for name, _ in tuned.named_modules()) == 4
    trainer(tuned, tmp_path / "run", learning_rate=0.1, save_strategy="no").train()
    after = tuned.eval()(ids).logits
    assert not torch.allclose(after, before, atol=1e-3)
    tuned.save_pretrained(tmp_path)
    merged = peft.PeftModel.from_pretrained(applied(), tmp_path).merge_and_unload()
    torch.testing.assert_close(merged(ids).logits, after, rtol=1e-4, atol=1e-5)
    query = merged.model.layers[0].residuals.attn.branch.chains[0].steps[0].q_proj.weight.clone()
    hf.restore(merged)
    assert type(merged) is transformers.LlamaForCausalLM and torch.equal(
        merged.model.layers[0].self_attn.q_proj.weight, query
    )
