"""LoRA and IA3 by the names that recipes for other families use, and by PEFT's tables: our models, applied ones."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

peft = pytest.importorskip("peft", reason="adapters need PEFT")
transformers = pytest.importorskip("transformers")

from geonorm import hf  # noqa: E402
from geonorm.errors import ConfigError  # noqa: E402
from geonorm.hf.peft import translate  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # PEFT's own
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
MATRICES = {"q", "k", "v", "o", "gate", "up", "down"}


def adapted(model: Any) -> list[str]:
    """The modules that carry an adapter."""
    marks = (".lora_A", ".ia3_l")
    names = {name.partition(mark)[0] for name, _ in model.named_parameters() for mark in marks if mark in name}
    return sorted(name.removeprefix("base_model.model.") for name in names)


@pytest.mark.parametrize("fields", [{}, {"block": "parallel"}, {"qk_norm": "head"}])
@pytest.mark.parametrize(
    ("targets", "wanted"),
    [
        (["q_proj", "v_proj"], {"q", "v"}),
        (ALL, MATRICES),
        ([*ALL, "lm_head"], MATRICES | {"lm_head"}),
        (["self_attn.q_proj", "mlp.down_proj"], {"q", "down"}),
        (["c_attn", "c_fc"], {"q", "k", "v", "up", "gate"}),
        (["query_key_value", "dense", "dense_4h_to_h"], {"q", "k", "v", "o", "down"}),
        (["query", "value"], {"q", "v"}),
        (["query", "key", "value", "dense"], MATRICES),
        (["branch.q"], {"q"}),
    ],
)
def test_lists_of_copied_recipes(build: Any, fields: Any, targets: list[str], wanted: set[str]) -> None:
    if targets == ["branch.q"] and fields.get("block"):
        pytest.skip("side by side the path is branch.attn.q")
    model = build("geonorm", **fields)
    tuned = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=targets, task_type="CAUSAL_LM"))
    found = adapted(tuned)
    assert {name.rpartition(".")[2] for name in found} == wanted
    inside = [name for name in found if name != "lm_head"]
    assert len(inside) == 2 * len(wanted - {"lm_head"}) and not any(".norms." in name for name in inside)


def test_a_copied_recipe_trains_saves_and_loads(build: Any, ids: Any, tmp_path: Any) -> None:
    """The recipe that hundreds of model cards for Llama have, of which nothing is changed."""
    recipe = peft.LoraConfig(
        r=4, lora_alpha=8, lora_dropout=0.0, bias="none", task_type="CAUSAL_LM", target_modules=ALL
    )  # fmt: skip
    tuned = peft.get_peft_model(build("geonorm"), recipe)
    before = tuned(ids).logits
    optimizer = torch.optim.AdamW([p for p in tuned.parameters() if p.requires_grad], lr=0.05)
    for _ in range(3):
        tuned(ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    after = tuned(ids).logits
    assert not torch.allclose(after, before, atol=1e-3)
    tuned.save_pretrained(tmp_path)
    again = peft.PeftModel.from_pretrained(build("geonorm"), tmp_path)
    torch.testing.assert_close(again(ids).logits, after, rtol=0, atol=1e-6)


@pytest.mark.parametrize("fields", [{}, {"block": "parallel"}, {"qk_norm": "head"}])
@pytest.mark.parametrize("targets", [ALL, ["q_proj", "v_proj"], ["q", "v"], None])
def test_some_layers_alone(build: Any, ids: Any, fields: Any, targets: list[str] | None, tmp_path: Any) -> None:
    """PEFT takes `layers_to_transform` with lists of names only, and saves what it was told."""
    if targets == ["q", "v"] and "qk_norm" in fields:
        pytest.skip("names of norms end so too")
    recipe = peft.LoraConfig(
        r=2, target_modules=targets, layers_to_transform=[1], layers_pattern="layers" if targets == ALL else None,
        init_lora_weights=False, task_type="CAUSAL_LM",
    )  # fmt: skip
    tuned = peft.get_peft_model(build("geonorm", **fields), recipe)
    found = adapted(tuned)
    assert len(found) == len(targets or ["q", "v"]) and all("blocks.1." in name for name in found)
    tuned.save_pretrained(tmp_path)
    again = peft.PeftModel.from_pretrained(build("geonorm", **fields), tmp_path)
    assert torch.equal(again(ids).logits, tuned(ids).logits)


@pytest.mark.filterwarnings("error:The following")
@pytest.mark.parametrize("block", ["sequential", "parallel"])
def test_ranks_of_copied_recipes(build: Any, ids: Any, block: str, tmp_path: Any) -> None:
    ranks = {"q_proj": 2, "model.layers.1.mlp.down_proj": 3}
    recipe = peft.LoraConfig(r=4, target_modules=ALL, rank_pattern=ranks, alpha_pattern={"q_proj": 2})
    tuned = peft.get_peft_model(build("geonorm", block=block), recipe)
    found = {name.partition(".lora_A")[0]: len(p) for name, p in tuned.named_parameters() if ".lora_A" in name}
    assert len(found) == 14 and sorted(found.values()) == [2, 2, 3, *[4] * 11]
    assert all(rank == (2 if name.endswith(".q") else 3) for name, rank in found.items() if rank != 4)
    assert next(name for name, rank in found.items() if rank == 3).partition("blocks.1.")[2].endswith("down")
    tuned.save_pretrained(tmp_path)
    again = peft.PeftModel.from_pretrained(build("geonorm", block=block), tmp_path)
    assert torch.equal(again(ids).logits, tuned(ids).logits)


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.filterwarnings("ignore:`save_projection`:UserWarning")
def test_tuners_that_look_for_matrices_at_once(build: Any, ids: Any, applied: bool, tmp_path: Any) -> None:
    """VeRA counts rows and columns before it puts anything in."""

    def made() -> Any:
        torch.manual_seed(0)
        model = stock("opt") if applied else build("geonorm")
        if applied:
            hf.apply(model, "geonorm")
        return model.eval()

    targets = ["k_proj", "fc1"] if applied else ["q_proj", "v_proj"]
    recipe = peft.VeraConfig(r=2, target_modules=targets)
    tuned = peft.get_peft_model(made(), recipe)
    assert sum("vera_lambda_d" in name for name, _ in tuned.named_parameters()) == 4
    tuned.save_pretrained(tmp_path)
    again = peft.PeftModel.from_pretrained(made(), tmp_path)
    torch.testing.assert_close(again(ids).logits, tuned(ids).logits)


def test_what_means_nothing_here_is_named(build: Any) -> None:
    no = r"target_modules w_zero: no such matrix here; those of a block are q k v o"
    with pytest.raises(ConfigError, match=no) as said:
        peft.get_peft_model(build("pre"), peft.LoraConfig(target_modules=["q_proj", "w_zero"]))
    assert "\n" not in str(said.value)
    assert translate(["attn.branch.q"]) == ["attn.branch.q"] and translate({"q", "v"}) == {"q", "v"}


@pytest.mark.parametrize("block", ["sequential", "parallel"])
def test_a_path_means_its_own_layer(build: Any, block: str) -> None:
    """In lists of what is adapted and of what is left out, beside names and beside paths that are ours."""

    def found(**recipe: Any) -> list[str]:
        tuned = peft.get_peft_model(build("geonorm", block=block), peft.LoraConfig(r=2, **recipe))
        return adapted(tuned)

    inside = "both.branch.attn" if block == "parallel" else "attn.branch"
    q = [f"model.blocks.{layer}.{inside}.q" for layer in (0, 1)]
    assert found(target_modules=["layers.0.self_attn.q_proj"]) == q[:1]
    assert found(target_modules=["layers.0.self_attn.q_proj", "layers.1.self_attn.q_proj"]) == q
    assert found(target_modules=["q_proj"], exclude_modules=["model.layers.0.self_attn.q_proj"]) == q[1:]
    paths = ["layers.1.self_attn.q_proj", "layers.0.self_attn.k_proj"]
    assert found(target_modules=paths, layers_to_transform=[1]) == q[1:]
    mixed = found(target_modules=["transformer.h.0.attn.c_proj", f"blocks.1.{inside}.q", q[0]])
    assert mixed == [f"model.blocks.0.{inside}.o", q[0], q[1]]


@pytest.mark.parametrize("name", ["mlp.experts.3.down_proj", "decoder.self_attn.q_proj", "lstm.q_proj", "mlp.q_proj"])
def test_a_path_that_means_nothing_here_is_named(build: Any, name: str) -> None:
    for field, given in (("target_modules", [name]), ("exclude_modules", [name]), ("rank_pattern", {name: 3})):
        recipe = peft.LoraConfig(**{"target_modules": ["q_proj"], field: given})
        with pytest.raises(ConfigError, match=f"^{field} {name}: no such matrix here"):
            peft.get_peft_model(build("pre"), recipe)


@pytest.mark.parametrize("fields", [{}, {"block": "parallel"}, {"qk_norm": "head"}])
def test_ia3_finds_keys_values_and_what_goes_down(build: Any, ids: Any, fields: Any) -> None:
    model = build("geonorm", **fields)
    before = model(ids).logits
    tuned = peft.get_peft_model(model, peft.IA3Config(task_type="CAUSAL_LM"))
    assert torch.equal(tuned(ids).logits, before)
    found = adapted(tuned)
    assert len(found) == 6 and {name.rpartition(".")[2] for name in found} == {"k", "v", "down"}
    scales = {name: p for name, p in tuned.named_parameters() if ".ia3_l" in name}
    shapes = {name.partition(".ia3_l")[0].rpartition(".")[2]: tuple(p.shape) for name, p in scales.items()}
    assert shapes == {"k": (16, 1), "v": (16, 1), "down": (1, 48)}  # on what k and v give, and on what down is given


def stock(kind: str) -> Any:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "llama": {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2},
        "gpt2": {"n_embd": 32, "n_head": 4, "n_layer": 2},
        "gpt_neox": {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4},
        "bert": {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "is_decoder": True},
        "opt": {"hidden_size": 32, "ffn_dim": 48, "num_attention_heads": 4, "word_embed_proj_dim": 32},
    }
    config = transformers.AutoConfig.for_model(kind, vocab_size=61, **{"num_hidden_layers": 2, **sizes[kind]})
    return transformers.AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize("kind", ["llama", "gpt2", "gpt_neox", "opt", "bert"])
@pytest.mark.parametrize("adapter", ["LoraConfig", "IA3Config"])
@pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False:UserWarning")
def test_an_applied_model_has_the_table_of_its_family(kind: str, adapter: str) -> None:
    """The same matrices as without the scheme: as many, of the same shapes."""
    held = []
    for apply in (False, True):
        model = stock(kind)
        if apply:
            hf.apply(model, "geonorm")
        tuned = peft.get_peft_model(model, getattr(peft, adapter)())
        found = adapted(tuned)
        shapes = sorted(tuple(p.shape) for p in tuned.parameters() if p.requires_grad)
        held.append((len(found), shapes))
    assert held[0] == held[1] and held[0][0] >= 2


@pytest.mark.parametrize(("kind", "targets"), [("llama", ["q_proj", "v_proj"]), ("opt", ["fc1", "fc2", "k_proj"])])
def test_a_copied_list_on_an_applied_model(kind: str, targets: list[str]) -> None:
    """Also where a matrix is a step of a chain now, and its name a number."""
    model = stock(kind)
    hf.apply(model, "geonorm")
    tuned = peft.get_peft_model(model, peft.LoraConfig(target_modules=targets))
    assert len(adapted(tuned)) == 2 * len(targets)
    held = {tuple(p.shape) for name, p in tuned.named_parameters() if "lora_A" in name}
    assert held == ({(8, 32)} if kind == "llama" else {(8, 32), (8, 48)})


@pytest.mark.parametrize("layer", [r"\d+", "1"])
def test_a_pattern_of_stock_names_on_an_applied_model(layer: str) -> None:
    """What a pattern leaves out, too, and one of names as they are now."""
    model = stock("opt")
    hf.apply(model, "geonorm")
    stock_names = rf".*decoder\.layers\.{layer}\.(fc1|fc2|self_attn\.k_proj)"
    tuned = peft.get_peft_model(model, peft.LoraConfig(target_modules=stock_names, exclude_modules=r".*\.fc2"))
    found = adapted(tuned)
    assert len(found) == (2 if layer == "1" else 4) and all("layers.1." in name for name in found) == (layer == "1")
    again = stock("opt")
    hf.apply(again, "geonorm")
    tuned = peft.get_peft_model(again, peft.LoraConfig(target_modules=r".*layers\.1\.residuals\..*k_proj"))
    assert len(adapted(tuned)) == 1


@pytest.mark.parametrize(
    ("kind", "targets"), [("llama", ["q_proj"]), ("llama", ["self_attn.q_proj"]), ("opt", ["fc1", "k_proj"])]
)
@pytest.mark.parametrize("layers", [1, [1]])
def test_some_layers_of_an_applied_model(kind: str, targets: list[str], layers: Any) -> None:
    model = stock(kind)
    hf.apply(model, "geonorm")
    tuned = peft.get_peft_model(model, peft.LoraConfig(target_modules=targets, layers_to_transform=layers))
    found = adapted(tuned)
    assert len(found) == len(targets) and all("layers.1." in name for name in found)


@pytest.mark.filterwarnings(
    "error:You have passed exclude_modules", "ignore:Model has .tie_word_embeddings:UserWarning"
)
@pytest.mark.parametrize("targets", ["all-linear", ["k_proj", "fc1", "fc2", "lm_head"]])
def test_what_is_left_out_and_ranks_by_stock_names_on_an_applied_model(targets: Any, tmp_path: Any) -> None:
    """By the shape of what is trained it is what PEFT does on the stock model, also when it is loaded again."""
    recipe = {
        "r": 4, "target_modules": targets, "exclude_modules": ["fc2"], "task_type": "CAUSAL_LM",
        "rank_pattern": {r"layers\.0\.fc1": 2, "fc1": 3, "k_proj": 5}, "alpha_pattern": {"fc1": 7, "k_proj": 9},
    }  # fmt: skip

    def trained(tuned: Any) -> Any:
        scales = [module.scaling["default"] for module in tuned.modules() if hasattr(module, "lora_A")]
        named = tuned.named_parameters()
        return sorted(scales), sorted((tuple(p.shape), name[-20:]) for name, p in named if "lora_" in name)

    wanted = trained(peft.get_peft_model(stock("opt"), peft.LoraConfig(**recipe)))
    held = []
    for folder in (None, tmp_path):
        model = stock("opt")
        hf.apply(model, "geonorm")
        if folder is None:
            tuned = peft.get_peft_model(model, peft.LoraConfig(**recipe))
            tuned.save_pretrained(tmp_path, save_embedding_layers=False)
        else:
            tuned = peft.PeftModel.from_pretrained(model, folder, is_trainable=True)
        held.append(trained(tuned))
    assert held == [wanted, wanted]


def trained(tuned: Any) -> Any:
    """What an adapter trains, by scale and by shape; in experts its parameters have no place of their own."""
    scales = [module.scaling["default"] for module in tuned.modules() if hasattr(module, "lora_A")]
    return sorted(scales), sorted(tuple(p.shape) for p in tuned.parameters() if p.requires_grad)


@pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys:RuntimeWarning")  # PEFT asks modules alone
@pytest.mark.parametrize(
    ("kind", "recipe"),
    [
        ("mixtral", {"target_modules": ["q_proj", "w1", "w2", "w3"]}),
        ("mixtral", {"target_modules": ["v_proj", "gate"], "rank_pattern": {r".*\.gate\.weight": 3}}),
        ("mixtral", {"target_modules": "all-linear"}),
        ("mixtral", {"target_modules": r".*\.(q_proj|w1|w3)"}),
        ("mixtral", {"target_parameters": ["mlp.experts.down_proj"], "alpha_pattern": {"mlp.experts.down_proj": 3}}),
        ("qwen3_moe", {"target_modules": ["q_proj", "gate_proj", "up_proj", "down_proj"]}),
        ("qwen3_moe", {"target_modules": "all-linear"}),
        ("qwen3_moe", {"target_modules": ["q_proj"], "target_parameters": ["model.layers.0.mlp.experts.gate_up_proj"]}),
    ],
)
def test_experts_and_router_of_an_applied_model(kind: str, recipe: Any, tiny_model: Any, tmp_path: Any) -> None:
    """By scale and shape what PEFT trains of the stock model, also when it is loaded again."""
    model, inputs = tiny_model(kind)
    lora = peft.LoraConfig(r=2, task_type="CAUSAL_LM", **copy.deepcopy(recipe))
    wanted = trained(peft.get_peft_model(copy.deepcopy(model), lora))
    model, again = copy.deepcopy(model), copy.deepcopy(model)
    hf.apply(model, "geonorm")
    tuned = peft.get_peft_model(model, peft.LoraConfig(r=2, task_type="CAUSAL_LM", **recipe)).eval()
    assert trained(tuned) == wanted and len(wanted[1]) >= 4
    with torch.no_grad():
        for p in tuned.parameters():
            p.add_(0.1 * torch.randn_like(p) if p.requires_grad else 0)
    logits = tuned(**inputs).logits
    tuned.save_pretrained(tmp_path, save_embedding_layers=False)
    hf.apply(again, "geonorm")
    tuned = peft.PeftModel.from_pretrained(again, tmp_path, is_trainable=True).eval()
    assert trained(tuned) == wanted
    torch.testing.assert_close(tuned(**inputs).logits, logits)
    torch.testing.assert_close(tuned.merge_and_unload()(**inputs).logits, logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layers", [None, [1]])
def test_a_pattern_without_experts_keeps_its_layers(layers: Any, tiny_model: Any) -> None:
    model = copy.deepcopy(tiny_model("mixtral")[0])
    hf.apply(model, "geonorm")
    names = ["q_proj"] if layers else r".*layers\.1\..*q_proj"
    tuned = peft.get_peft_model(model, peft.LoraConfig(target_modules=names, layers_to_transform=layers))
    assert [name.partition(".residuals")[0] for name in adapted(tuned)] == ["model.layers.1"]


@pytest.mark.parametrize("block", ["sequential", "parallel"])
@pytest.mark.parametrize("layers", [None, [1]])
def test_the_gate_of_other_families_is_that_of_the_mlp(build: Any, block: str, layers: Any) -> None:
    """Attention may have a gate here, which no recipe for Llama means."""
    model = build("geonorm", attn_gate=True, block=block)
    chosen = peft.LoraConfig(
        r=2, target_modules=["gate_proj"], layers_to_transform=layers, rank_pattern={"gate_proj": 3}
    )
    found = adapted(tuned := peft.get_peft_model(model, chosen))
    assert len(found) == (1 if layers else 2) and all("mlp" in name and name.endswith(".gate") for name in found)
    ranks = {value.shape[0] for name, value in tuned.named_parameters() if "lora_A" in name}
    assert ranks == {3}
