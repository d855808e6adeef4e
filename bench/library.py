"""Four models of the `transformers` library with written-out attention, planned by `bench/plan_quality.py`.

In: nothing. Out: cases as in `bench/architectures.py`. Never runs a kernel. `transformers` is imported where a model is
built, so that the other cases need none.

Masks from positions, padded labels and capped logits are what these have beyond the models in plain PyTorch: how they
fuse decides how much the scores and the logits take.
"""

from __future__ import annotations

import torch
from torch import nn

from bench.architectures import Case
from bench.runnable import Labelled

WIDTHS = {"hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8}
GATED = WIDTHS | {"num_key_value_heads": 4, "intermediate_size": 1408}


def _causal(name: str, **fields: object) -> nn.Module:
    import transformers as library

    kind = getattr(library, name)
    return Labelled(kind(kind.config_class(use_cache=False, attn_implementation="eager", **fields)), "input_ids")


def _case(name: str, summary: str, model: str, globs: tuple[str, str, str], **fields: object) -> Case:
    """In bfloat16, 4 sequences of 1,024 ids; `globs`: blocks, their attention, their feed-forward part."""
    ids = ((4, 1024), torch.int64)
    layers, attention, feed = globs
    parts = (f"model.{layers}.*",), (f"model.{layers}.*.{attention}",), (f"model.{layers}.*.{feed}",)
    return Case(name, summary, torch.bfloat16, lambda: _causal(model, **fields), (ids, ids), *parts)


_LLAMA = ("model.layers", "self_attn", "mlp")
_NEOX = ("gpt_neox.layers", "attention", "mlp")
_CASES = (
    _case("hf_llama", "LlamaForCausalLM, 6 blocks of width 512", "LlamaForCausalLM", _LLAMA, **GATED, vocab_size=8000),
    _case(
        "hf_mistral",
        "MistralForCausalLM, 6 blocks of width 512, sliding window of 256",
        "MistralForCausalLM",
        _LLAMA,
        **GATED,
        vocab_size=32000,
        sliding_window=256,
    ),
    _case(
        "hf_gemma2",
        "Gemma2ForCausalLM, 6 blocks of width 512, scores and logits capped",
        "Gemma2ForCausalLM",
        _LLAMA,
        **GATED,
        vocab_size=32000,
        head_dim=64,
    ),
    _case(
        "hf_neox",
        "GPTNeoXForCausalLM, 6 blocks of width 512",
        "GPTNeoXForCausalLM",
        _NEOX,
        **WIDTHS,
        vocab_size=8000,
        intermediate_size=2048,
    ),
)

LIBRARY: dict[str, Case] = {case.name: case for case in _CASES}
"""The cases by name; read only."""
