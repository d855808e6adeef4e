"""A model of transformers, from its configuration alone.

In: a config.json or a model type, overrides, sizes. Out: `Source` with random weights on the meta device. Never asks
the network, never reads weights.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..errors import OptionError
from .source import Sizes, Source
from .values import read_value

# Which head a model type is trained with, in this order.
_HEADS = (
    "AutoModelForMaskedLM",
    "AutoModelForCausalLM",
    "AutoModelForImageClassification",
    "AutoModelForAudioClassification",
    "AutoModelForSequenceClassification",
    "AutoModel",
)
_DEFAULT_LOSS = "ForCausalLM"
# A cache, which would be returned, makes another graph; checkpointing is what a plan takes the place of.
_SWITCHED_OFF = ("use_cache", "gradient_checkpointing")
_DEFAULT_BATCH = 1
_DEFAULT_SEQUENCE = 2048
_TOKEN_LABELS = ("CausalLM", "Seq2SeqLM", "MaskedLM", "LMHeadModel", "ConditionalGeneration")


def load_config(text: str, sizes: Sizes, settings: Mapping[str, str]) -> Source:
    """The model of a configuration, as it is trained: with labels, without a cache. All that it returns counts.

    What is set for that is in its words: who wants to follow the plan sets it, too.

    Args:
        text: path of a config.json (or of a folder with one), or a model type of transformers such as "llama".
        sizes: batch and sequence; 1 and what the model takes at most, but 2,048 tokens, where not given.
        settings: fields of the configuration and their values.

    Raises:
        OptionError: transformers is missing, no such file or type, a field that the configuration does not have, or a
            model that takes neither tokens nor pictures.
    """
    transformers = _import_transformers()
    config = _find_config(transformers, text, settings)
    switched = [name for name in _SWITCHED_OFF if getattr(config, name, False)]
    for name in switched:
        setattr(config, name, False)
    settings_made = [f"config.{name}=False" for name in switched]
    if getattr(config, "is_encoder_decoder", False) and getattr(config, "decoder_start_token_id", 0) is None:
        config.decoder_start_token_id = 0  # which token is of no matter here
    model = _build(transformers, config)
    model.train()
    if getattr(model, "loss_type", "") is None and _has_token_labels(model):
        model.loss_type = _DEFAULT_LOSS  # what it falls back to, but with a warning that breaks the graph
        settings_made.append(f"loss_type={_DEFAULT_LOSS!r}")
    kwargs, words = _make_arguments(model, config, sizes)
    name, made = type(model).__name__, "".join(f", model.{setting}" for setting in settings_made)
    longest = _longest(config) if "input_ids" in kwargs else None
    return Source(model, (), kwargs, None, f"{name} of hf:{text}, {words}{made}", longest)


def _import_transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise OptionError('hf: needs transformers, which is missing. Try: pip install "transformers>=5"') from error
    return transformers


def _find_config(transformers: Any, text: str, settings: Mapping[str, str]) -> Any:
    path = Path(text)
    path = path / "config.json" if path.is_dir() else path
    types = list(transformers.CONFIG_MAPPING)
    if path.is_file():
        return _make_config(transformers, _read_fields(transformers, path), settings)
    if text in types:
        return _make_config(transformers, {"model_type": text}, settings)
    inside = sorted((name for name in types if name in text.lower()), key=len)  # names of checkpoints begin with a type
    near = inside[-1:] or difflib.get_close_matches(text, types, n=3)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    raise OptionError(
        f"hf:{text}: there is no such file, and transformers {transformers.__version__} has no such model type.{hint} "
        "The network is not asked. Try: download its config.json and give the path"
    )


def _read_fields(transformers: Any, path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise OptionError(f"hf:{path} cannot be read: {error}") from error
    kind = found.get("model_type") if isinstance(found, dict) else None
    if kind in transformers.CONFIG_MAPPING:
        return dict(found)
    version = transformers.__version__
    raise OptionError(
        f"hf:{path}: model_type is {kind!r}, which transformers {version} does not have; code from the network is not "
        "run. Try: build the model in a module and name that (my_module:build_model)"
    )


def _make_config(transformers: Any, fields: Mapping[str, Any], settings: Mapping[str, str]) -> Any:
    """The configuration, overrides in it from the start: other fields are worked out from them."""
    kind = transformers.CONFIG_MAPPING[fields["model_type"]]
    for name, text in settings.items():
        if name not in fields and not hasattr(kind(), name):
            near = difflib.get_close_matches(name, list(kind().to_dict()), n=3)
            hint = f" Did you mean {' or '.join(near)}?" if near else ""
            raise OptionError(f"{name}={text}: a {fields['model_type']} configuration has no such field.{hint}")
    given = {name: read_value(text) for name, text in settings.items()}
    try:
        return kind(**{name: value for name, value in {**fields, **given}.items() if name != "model_type"})
    except Exception as error:  # each version of transformers checks fields with other classes of errors
        raise OptionError(f"a {fields['model_type']} configuration does not take {given}: {error}") from error


def _build(transformers: Any, config: Any) -> Any:
    both = ("AutoModelForSeq2SeqLM",) if getattr(config, "is_encoder_decoder", False) else ()
    heads = (getattr(transformers, name) for name in (*both, *_HEADS))
    named = (getattr(transformers, name, None) for name in config.architectures or ())
    fitting = (head.from_config for head in heads if type(config) in head._model_mapping)
    make = next((maker for maker in (*named, *fitting) if maker is not None), None)
    if make is None:
        raise OptionError(f"transformers has no model for a {type(config).__name__}")
    try:
        with torch.device("meta"):
            return make(config)
    except Exception as error:  # whatever the model makes of impossible figures
        raise OptionError(f"the configuration makes no model: {type(error).__name__}: {error}") from error


def _make_arguments(model: Any, config: Any, sizes: Sizes) -> tuple[dict[str, Any], str]:
    main = getattr(model, "main_input_name", "input_ids")
    batch = sizes.batch or _DEFAULT_BATCH
    with torch.device("meta"):
        if main == "input_ids":
            return _token_arguments(model, config, batch, sizes.sequence)
        if main == "pixel_values":
            return _picture_arguments(model, config, batch, sizes.sequence)
    raise OptionError(
        f"{type(model).__name__} takes {main}, which is not made here. Try: a module that builds model and arguments"
    )


def _token_arguments(model: Any, config: Any, batch: int, sequence: int | None) -> tuple[dict[str, Any], str]:
    longest = _longest(config)
    length = sequence or min(_DEFAULT_SEQUENCE, longest or _DEFAULT_SEQUENCE)
    if longest is not None and length > longest:
        raise OptionError(
            f"--sequence {length} is longer than max_position_embeddings={longest}. "
            f"Try: --set max_position_embeddings={length}"
        )
    tokens = torch.zeros((batch, length), dtype=torch.long)
    labels = tokens if _has_token_labels(model) else torch.zeros((batch,), dtype=torch.long)
    found = {"input_ids": tokens}
    if _takes(model, "labels"):
        found["labels"] = labels
    return found, f"{batch} x {length} tokens"


def _longest(config: Any) -> int | None:
    found = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    return found if isinstance(found, int) else None


def _picture_arguments(model: Any, config: Any, batch: int, sequence: int | None) -> tuple[dict[str, Any], str]:
    if sequence is not None:
        raise OptionError(f"{type(model).__name__} takes pictures, no --sequence. Try: --set image_size=...")
    size = getattr(config, "image_size", None) or 224
    height, width = (size, size) if isinstance(size, int) else size
    channels = getattr(config, "num_channels", None) or 3
    found = {"pixel_values": torch.zeros((batch, channels, height, width))}
    if _takes(model, "labels"):
        found["labels"] = torch.zeros((batch,), dtype=torch.long)
    return found, f"{batch} pictures of {height} x {width}"


def _takes(model: Any, name: str) -> bool:
    import inspect

    return name in inspect.signature(model.forward).parameters


def _has_token_labels(model: Any) -> bool:
    return any(mark in type(model).__name__ for mark in _TOKEN_LABELS)
