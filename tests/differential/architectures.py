"""Architectures people train, built small from their configurations with random weights.

In: a name of `ARCHITECTURES`. Out: a function that builds the module in training mode and its arguments, as `steps`
wants them. Never loads weights, never uses a network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

from bench import convolutions, recurrent
from bench import transformers as plain

Inputs = dict[str, Tensor]
Built = tuple[nn.Module, tuple[Any, ...]]

BATCH, LENGTH, WORDS, FIRST_WORD = 3, 16, 48, 3  # ids below the first word are padding, begin and end
IMAGE, CLASSES = 16, 5


def words(*shape: int) -> Tensor:
    return torch.randint(FIRST_WORD, WORDS, shape)


def images(size: int = IMAGE) -> Tensor:
    return torch.randn(BATCH, 3, size, size)


def text() -> Inputs:
    """Sentences to continue, the last one padded."""
    ids = words(BATCH, LENGTH)
    mask = torch.ones_like(ids)
    mask[-1, -3:] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.clone()}


def text_without_padding() -> Inputs:
    ids = words(BATCH, LENGTH)
    return {"input_ids": ids, "labels": ids.clone()}


def text_to_class() -> Inputs:
    return text() | {"labels": torch.randint(0, 2, (BATCH,))}


def text_to_marks() -> Inputs:
    return text() | {"labels": torch.randint(0, 2, (BATCH, LENGTH))}


def text_to_text() -> Inputs:
    return text() | {"labels": words(BATCH, 8)}


def text_and_image() -> Inputs:
    return {name: value for name, value in text().items() if name != "labels"} | {"pixel_values": images()}


def pairs_of_text_and_image() -> Inputs:
    return text_and_image() | {"return_loss": True}


def image() -> Inputs:
    return {"pixel_values": images()}


def image_to_class() -> Inputs:
    return image() | {"labels": torch.randint(0, CLASSES, (BATCH,))}


def image_to_map() -> Inputs:
    return {"pixel_values": images(32), "labels": torch.randint(0, CLASSES, (BATCH, 32, 32))}


def large_image() -> Inputs:
    return {"pixel_values": images(32)}


def sound_to_text() -> Inputs:
    return {"input_features": torch.randn(BATCH, 8, 32), "labels": words(BATCH, 8)}


def wave_to_text() -> Inputs:
    return {"input_values": torch.randn(BATCH, 400), "labels": words(BATCH, 4)}


def series() -> Inputs:
    return {"past_values": torch.randn(BATCH, 32, 3), "future_values": torch.randn(BATCH, 8, 3)}


class Call(nn.Module):
    """Calls a model with the entries of a dict, which is how batches come."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Inputs) -> object:
        return self.model(**inputs)


class FromConfig:
    """A class of `transformers`, what it is called with, and the fields of its configuration."""

    def __init__(self, model: str, inputs: Callable[[], Inputs], *parts: Mapping[str, Any], **fields: Any) -> None:
        self._model = model
        self._inputs = inputs
        self._fields = {name: value for part in (*parts, fields) for name, value in part.items()}

    def __call__(self, **more: Any) -> Built:
        """The model in training mode, `more` fields set, and its arguments."""
        kind = getattr(transformers, self._model)
        return Call(kind(kind.config_class(**(self._fields | more))).train()), (self._inputs(),)


# Small enough that activations outweigh weights: there must be something to recompute.
SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
NAMED = {"vocab_size": WORDS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
TEXT = {**SIZES, **NAMED, "max_position_embeddings": 32}
SHARED_KEYS = {**TEXT, "num_key_value_heads": 2}
WINDOW = {**SHARED_KEYS, "head_dim": 4, "sliding_window": 8}
PATCHES = {**SIZES, "image_size": IMAGE, "patch_size": 4}
VISION = {**PATCHES, "num_labels": CLASSES}
DROPOUT = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
SCAN = {**NAMED, "hidden_size": 16, "state_size": 4, "num_hidden_layers": 2}
T5 = {**NAMED, "d_model": 16, "d_ff": 24, "d_kv": 4, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}
HEADS = {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24}
BOTH = {**NAMED, **HEADS, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "decoder_start_token_id": 1}

# fmt: off
LIBRARY: dict[str, FromConfig] = {
    "albert": FromConfig("AlbertForMaskedLM", text, TEXT, DROPOUT, embedding_size=8),
    "bamba": FromConfig(
        "BambaForCausalLM", text, SHARED_KEYS, mamba_d_state=4, mamba_n_groups=2, mamba_n_heads=8, mamba_d_head=4,
        mamba_chunk_size=4, attn_layer_indices=[1]),
    "bart": FromConfig("BartForConditionalGeneration", text_to_text, BOTH, attention_dropout=0.1),
    "bert": FromConfig("BertForMaskedLM", text, TEXT),
    "bert-classifier": FromConfig("BertForSequenceClassification", text_to_class, TEXT),
    "bloom": FromConfig(
        "BloomForCausalLM", text, NAMED, hidden_size=16, n_layer=2, n_head=4, hidden_dropout=0.1,
        attention_dropout=0.1),
    "clip": FromConfig("CLIPModel", text_and_image, text_config=TEXT, vision_config=PATCHES, projection_dim=8),
    "convnext": FromConfig(
        "ConvNextForImageClassification", image_to_class, hidden_sizes=[8, 16], depths=[2, 2], num_stages=2,
        num_labels=CLASSES, drop_path_rate=0.1),
    "deberta": FromConfig(
        "DebertaV2ForSequenceClassification", text_to_class, TEXT, relative_attention=True, position_buckets=8,
        pos_att_type=["p2c", "c2p"]),
    "deepseek-v3": FromConfig(
        "DeepseekV3ForCausalLM", text, TEXT, n_routed_experts=4, num_experts_per_tok=2, n_group=2, topk_group=1,
        moe_intermediate_size=12, q_lora_rank=8, kv_lora_rank=8, qk_rope_head_dim=4, qk_nope_head_dim=4, v_head_dim=4,
        first_k_dense_replace=1, num_key_value_heads=4),
    "dinov2": FromConfig("Dinov2ForImageClassification", image_to_class, VISION, drop_path_rate=0.1),
    "electra": FromConfig("ElectraForPreTraining", text_to_marks, TEXT, embedding_size=8),
    "falcon-mamba": FromConfig("FalconMambaForCausalLM", text, SCAN),
    "gemma2": FromConfig("Gemma2ForCausalLM", text, WINDOW, attention_dropout=0.1),
    "gemma3": FromConfig("Gemma3ForCausalLM", text, WINDOW),
    "gpt2": FromConfig("GPT2LMHeadModel", text, NAMED, n_embd=16, n_layer=2, n_head=4, n_positions=32),
    "gpt-neox": FromConfig("GPTNeoXForCausalLM", text, TEXT, hidden_dropout=0.1),
    "gpt-oss": FromConfig("GptOssForCausalLM", text, WINDOW, num_local_experts=4, num_experts_per_tok=2),
    "jamba": FromConfig(
        "JambaForCausalLM", text, SHARED_KEYS, num_experts=4, attn_layer_period=2, attn_layer_offset=1,
        expert_layer_period=2, expert_layer_offset=1, mamba_d_state=4, use_mamba_kernels=False),
    "llama": FromConfig("LlamaForCausalLM", text, SHARED_KEYS, attention_dropout=0.1),
    "longformer": FromConfig("LongformerForMaskedLM", text, TEXT, attention_window=4),
    "mamba": FromConfig("MambaForCausalLM", text, SCAN),
    "mamba2": FromConfig("Mamba2ForCausalLM", text, SCAN, num_heads=8, head_dim=4, n_groups=2, chunk_size=4),
    "mistral": FromConfig("MistralForCausalLM", text, WINDOW),
    "mixtral": FromConfig("MixtralForCausalLM", text, SHARED_KEYS, num_local_experts=4),
    "modernbert": FromConfig("ModernBertForMaskedLM", text, TEXT, attention_dropout=0.1),
    "olmoe": FromConfig("OlmoeForCausalLM", text, SHARED_KEYS, num_experts=4, num_experts_per_tok=2),
    "opt": FromConfig("OPTForCausalLM", text, TEXT, ffn_dim=24, word_embed_proj_dim=16),
    "patchtst": FromConfig(
        "PatchTSTForPrediction", series, num_input_channels=3, context_length=32, patch_length=4, patch_stride=4,
        prediction_length=8, d_model=16, num_attention_heads=2, num_hidden_layers=2, ffn_dim=24),
    "phi3": FromConfig("Phi3ForCausalLM", text, SHARED_KEYS, resid_pdrop=0.1),
    "qwen2-moe": FromConfig(
        "Qwen2MoeForCausalLM", text, SHARED_KEYS, EXPERTS, shared_expert_intermediate_size=12,
        output_router_logits=True),
    "qwen3": FromConfig("Qwen3ForCausalLM", text, SHARED_KEYS, head_dim=4),
    "qwen3-moe": FromConfig("Qwen3MoeForCausalLM", text, SHARED_KEYS, EXPERTS, head_dim=4),
    "qwen3-next": FromConfig(
        "Qwen3NextForCausalLM", text, SHARED_KEYS, EXPERTS, head_dim=4, shared_expert_intermediate_size=12,
        linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=4, linear_value_head_dim=4,
        layer_types=["linear_attention", "full_attention"]),
    "recurrent-gemma": FromConfig(
        "RecurrentGemmaForCausalLM", text, TEXT, num_key_value_heads=2, lru_width=16, attention_window_size=8,
        block_types=["recurrent", "attention"]),
    "rwkv": FromConfig("RwkvForCausalLM", text, SCAN, attention_hidden_size=16, intermediate_size=24),
    "sam": FromConfig(
        "SamModel", large_image,
        vision_config=SIZES | {
            "image_size": 32, "patch_size": 8, "window_size": 2, "global_attn_indexes": [1], "mlp_dim": 24,
            "output_channels": 8, "num_pos_feats": 4},
        prompt_encoder_config={"hidden_size": 8, "image_size": 32, "patch_size": 8},
        mask_decoder_config={"hidden_size": 8, "mlp_dim": 16, "num_hidden_layers": 1, "num_attention_heads": 2}),
    "segformer": FromConfig(
        "SegformerForSemanticSegmentation", image_to_map, num_labels=CLASSES, hidden_sizes=[8, 16], depths=[1, 1],
        num_encoder_blocks=2, sr_ratios=[2, 1], patch_sizes=[7, 3], strides=[4, 2], num_attention_heads=[1, 2],
        mlp_ratios=[2, 2], decoder_hidden_size=16),
    "siglip": FromConfig(
        "SiglipModel", pairs_of_text_and_image, text_config=TEXT | {"projection_size": 16}, vision_config=PATCHES),
    "swin": FromConfig(
        "SwinForImageClassification", image_to_class, image_size=IMAGE, patch_size=2, embed_dim=8, depths=[2, 2],
        num_heads=[2, 4], window_size=4, num_labels=CLASSES, drop_path_rate=0.1),
    "switch": FromConfig(
        "SwitchTransformersForConditionalGeneration", text_to_text, T5, num_decoder_layers=2, num_experts=4,
        expert_capacity=8),
    "t5": FromConfig("T5ForConditionalGeneration", text_to_text, T5),
    "vit": FromConfig("ViTForImageClassification", image_to_class, VISION, DROPOUT),
    "vit-mae": FromConfig(
        "ViTMAEForPreTraining", image, PATCHES, decoder_hidden_size=16, decoder_num_attention_heads=4,
        decoder_num_hidden_layers=1, decoder_intermediate_size=24),
    "wav2vec2": FromConfig(
        "Wav2Vec2ForCTC", wave_to_text, TEXT, conv_dim=(8, 8), conv_stride=(5, 4), conv_kernel=(10, 4),
        num_feat_extract_layers=2, num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, layerdrop=0.0,
        apply_spec_augment=False),
    "whisper": FromConfig(
        "WhisperForConditionalGeneration", sound_to_text, BOTH, num_mel_bins=8, max_source_positions=16,
        max_target_positions=16, dropout=0.1),
    "xlnet": FromConfig("XLNetLMHeadModel", text_without_padding, NAMED, d_model=16, n_layer=2, n_head=4, d_inner=24),
    "zamba2": FromConfig(
        "Zamba2ForCausalLM", text, SHARED_KEYS, mamba_d_state=4, mamba_ngroups=2, n_mamba_heads=8, mamba_headdim=4,
        chunk_size=4, num_mem_blocks=1, layers_block_type=["mamba", "hybrid"], use_mem_rope=True),
}
# fmt: on


class Recurrent(nn.Module):
    """Embedding, one of torch's own recurrent modules, and a head."""

    def __init__(self, cell: type[nn.RNNBase]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 16)
        self.layers = cell(16, 16, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(32, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        hidden, _ = self.layers(functional.dropout(self.embedding(ids[:, :-1]), 0.1))
        return functional.cross_entropy(self.head(hidden).flatten(0, 1), ids[:, 1:].flatten())


def unrolled() -> Built:
    model = recurrent.RecurrentLM(WORDS, width=16, layers=2, steps=6)
    for parameter in (*model.weights, *model.biases):
        nn.init.uniform_(parameter, -0.5, 0.5)
    return model, (words(24, 6), words(24))


def residual() -> Built:
    return convolutions.ResNet((1, 1)), (torch.randn(16, 3, 32, 32), torch.randint(0, CLASSES, (16,)))


def with_skips() -> Built:
    return convolutions.UNet(width=8, factors=(1, 2)), (images(), images())


def two_sided() -> Built:
    return plain.EncoderDecoder(WORDS, layers=1, width=64), (words(16, 12), words(16, 8), words(16, 8))


OWN: dict[str, Callable[[], Built]] = {
    "encoder-decoder": two_sided,
    "gru": lambda: (Recurrent(nn.GRU), (words(12, 7),)),
    "lstm": lambda: (Recurrent(nn.LSTM), (words(12, 7),)),
    "resnet": residual,
    "unet": with_skips,
    "unrolled-lstm": unrolled,
}
ARCHITECTURES: dict[str, Callable[..., Built]] = {**LIBRARY, **OWN}
