"""Models from the command line: Python objects, configurations, adapters, optimizers."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from rematpass.errors import OptionError
from rematpass.sources.lora import add_lora
from rematpass.sources.source import Sizes, load_source
from rematpass.sources.training_state import Optimizer
from rematpass.sources.values import read_value, split_pairs

MODULE = """
import torch
from torch import nn

def build(batch=2, width=8):
    return nn.Linear(width, 1), (torch.empty(batch, width),), {}, torch.sum

def only_model():
    return nn.Linear(1, 1)

def needs_numbers():
    return nn.Linear(int(torch.ones(1)), 1), torch.ones(1, 1)

value = 3
"""
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
    "max_position_embeddings": 64,
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tiny_models.py").write_text(MODULE)
    (tmp_path / "broken_models.py").write_text("1 +")
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("place", ["tiny_models", "tiny_models.py"])
def test_a_callable_builds_on_meta_with_sizes_and_keywords(folder, place):
    source = load_source(f"{place}:build", Sizes(batch=5), {"width": "16"})
    assert source.model.weight.device.type == "meta"
    assert [tuple(a.shape) for a in source.args] == [(5, 16)]
    assert source.loss is torch.sum


def test_a_callable_may_build_real_tensors(folder):
    source = load_source("tiny_models.py:needs_numbers", Sizes(), {}, is_real=True)
    assert source.model.weight.device.type == "cpu"
    assert len(source.args) == 1


@pytest.mark.parametrize(
    ("text", "sizes", "settings", "words"),
    [
        ("tiny_models", Sizes(), {}, "is not taken. Try: my_module:build_model"),
        ("tiny_models:nothing", Sizes(), {}, "no callable 'nothing'. It has: build, only_model, needs_numbers"),
        ("tiny_models:value", Sizes(), {}, "no callable 'value'"),
        ("nowhere:build", Sizes(), {}, "nowhere cannot be imported: ModuleNotFoundError"),
        ("nowhere.py:build", Sizes(), {}, "there is no file nowhere.py"),
        ("broken_models.py:build", Sizes(), {}, "cannot be imported: SyntaxError"),
        ("tiny_models:build", Sizes(sequence=3), {}, "does not take sequence"),
        ("tiny_models:build", Sizes(), {"depth": "3"}, "does not take depth"),
        ("tiny_models:only_model", Sizes(), {}, "Try: return (model, args)"),
        ("tiny_models:needs_numbers", Sizes(), {}, "Try: --real"),
        ("hf:lama", Sizes(), {}, "Did you mean llama"),
        ("hf:bert-base-uncased", Sizes(), {}, "Did you mean bert?"),
        ("hf:meta-llama/Llama-3.1-8B", Sizes(), {}, "Did you mean llama?"),
        ("hf:config.json", Sizes(), {"hidden": "3"}, "Did you mean hidden_act or hidden_size"),
        ("hf:config.json", Sizes(sequence=65), {}, "longer than max_position_embeddings=64"),
        ("hf:vit", Sizes(sequence=65), {}, "takes pictures"),
        ("hf:config.json", Sizes(), {"vocab_size": "many"}, "vocab_size"),
    ],
)
def test_what_is_refused_says_why(folder, text, sizes, settings, words):
    with pytest.raises(OptionError) as error:
        load_source(text, sizes, settings)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [("{", "cannot be read"), ("[]", "model_type is None"), ('{"model_type": "remote_code"}', "'remote_code'")],
)
def test_a_damaged_or_foreign_configuration_is_refused(folder, content, words):
    (folder / "config.json").write_text(content)
    with pytest.raises(OptionError, match=words):
        load_source("hf:config.json", Sizes(), {})


@pytest.mark.parametrize("place", ["hf:config.json", "hf:."])
def test_a_configuration_makes_the_model_it_names_as_it_is_trained(folder, place):
    source = load_source(place, Sizes(batch=3, sequence=16), {"num_hidden_layers": "1"})
    assert type(source.model).__name__ == "LlamaForCausalLM"
    assert (len(source.model.model.layers), source.model.config.use_cache, source.model.training) == (1, False, True)
    assert {name: tuple(t.shape) for name, t in source.kwargs.items()} == {"input_ids": (3, 16), "labels": (3, 16)}
    assert {p.device.type for p in source.model.parameters()} == {"meta"}
    assert source.words.endswith(", 3 x 16 tokens, model.config.use_cache=False")
    assert source.loss is None  # compiled as it is, it returns logits, too


@pytest.mark.parametrize("sizes", [{"batch": 0}, {"sequence": -1}])
def test_sizes_are_at_least_one(sizes):
    with pytest.raises(OptionError, match="at least 1"):
        Sizes(**sizes)


def test_values_are_read_without_running_them():
    assert [read_value(text) for text in ("1e-5", "None", "null", "__import__('os')")][:3] == [1e-5, None, None]
    assert read_value("__import__('os')") == "__import__('os')"
    with pytest.raises(OptionError, match="twice"):
        split_pairs(["a=1", "a=2"])
    with pytest.raises(OptionError, match="key=value"):
        split_pairs(["a"])


def test_lora_trains_adapters_only_and_computes_their_sum():
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    base = model[0]
    assert add_lora(model, 2) == 1
    assert sorted(n for n, p in model.named_parameters() if p.requires_grad) == ["0.down.weight", "0.up.weight"]
    x = torch.ones(2, 4)
    wanted = base(x) + x @ model[0].down.weight.T @ model[0].up.weight.T
    assert torch.allclose(model[0](x), wanted)
    with pytest.raises(OptionError, match="at least 1"):
        add_lora(model, 0)
    with pytest.raises(OptionError, match="no linear layers"):
        add_lora(nn.ReLU(), 1)


@pytest.mark.parametrize(
    ("optimizer", "state_bytes"),
    [
        (Optimizer("none"), 0),
        (Optimizer("sgd"), 0),
        (Optimizer("sgd-momentum"), 4 * 110),
        (Optimizer("adamw"), 8 * 110),
        (Optimizer("adamw", "bf16"), 4 * 110),
        (Optimizer("adamw", "int8", has_master_weights=True), 2 * 110 + 4 * 110),
        (Optimizer("adafactor"), 4 * (10 + 10 + 10)),
    ],
)
def test_optimizer_states(optimizer, state_bytes):
    assert optimizer.state_bytes([(10, 10), (10,)]) == state_bytes


def test_adamw_is_what_torch_allocates():
    model = nn.Linear(5, 7)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 5)).sum().backward()
    optimizer.step()
    real = sum(t.nbytes for state in optimizer.state.values() for name, t in state.items() if name != "step")
    assert Optimizer("adamw").state_bytes(p.shape for p in model.parameters()) == real


def test_an_unknown_optimizer_is_refused():
    with pytest.raises(OptionError, match="adamw"):
        Optimizer("adam")
