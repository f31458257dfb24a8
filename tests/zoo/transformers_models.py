"""Models of `transformers`, from tiny random configurations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from tests.vision import transformers
from tests.zoo.entry import Calls, Draw, Entry, normal, padding, tokens

VOCABULARY, LENGTH = 100, 12
SMALL: Mapping[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
TEXT: Mapping[str, Any] = {"vocab_size": VOCABULARY, "max_position_embeddings": 32, **SMALL}
DECODER: Mapping[str, Any] = {**TEXT, "num_key_value_heads": 2, "use_cache": False}


def _module(model: str, config: str, names: tuple[str, ...], field: str, **settings: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        library = transformers()
        made = getattr(library, config)(**settings)
        return Calls(getattr(library, model)(made), names, field)

    return make


def _ids() -> dict[str, Draw]:
    return {"input_ids": tokens(VOCABULARY, LENGTH)}


def _masked() -> dict[str, Draw]:
    return {**_ids(), "attention_mask": padding(LENGTH)}


def _classifier(name: str, family: str, **settings: Any) -> Entry:
    make = _module(
        f"{family}ForSequenceClassification",
        f"{family}Config",
        ("input_ids", "attention_mask"),
        "logits",
        num_labels=3,
        **settings,
    )
    return Entry(name, make, _masked(), untold=True)


def _language_model(name: str, family: str, head: str = "ForCausalLM", **settings: Any) -> Entry:
    make = _module(f"{family}{head}", f"{family}Config", ("input_ids", "attention_mask"), "logits", **settings)
    return Entry(name, make, _masked(), untold=True)


def _images(name: str, family: str, size: int, head: str = "ForImageClassification", **settings: Any) -> Entry:
    make = _module(f"{family}{head}", f"{family}Config", ("pixel_values",), "logits", num_labels=3, **settings)
    return Entry(name, make, {"pixel_values": normal(3, size, size)})


def _pooled(name: str, model: str, config: str, input_name: str, draw: Draw, field: str, **settings: Any) -> Entry:
    return Entry(name, _module(model, config, (input_name,), field, **settings), {input_name: draw}, "mse")


T5: Mapping[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    "use_cache": False,
    "decoder_start_token_id": 0,
    "attn_implementation": "eager",
}
WAV2VEC2: Mapping[str, Any] = {
    **SMALL,
    "conv_dim": (16, 16),
    "conv_stride": (4, 4),
    "conv_kernel": (8, 4),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4,
    "mask_time_prob": 0.0,
    "apply_spec_augment": False,
}

ENCODERS = (
    _classifier("bert", "Bert", **TEXT),
    _classifier("roberta", "Roberta", **TEXT, pad_token_id=1),
    _classifier("albert", "Albert", **TEXT, embedding_size=16),
    _classifier(
        "deberta_v2",
        "DebertaV2",
        **TEXT,
        relative_attention=True,
        pos_att_type=["c2p", "p2c"],
        position_buckets=8,
        share_att_key=True,
        norm_rel_ebd="layer_norm",
    ),
    _classifier(
        "distilbert",
        "DistilBert",
        vocab_size=VOCABULARY,
        max_position_embeddings=32,
        dim=32,
        n_layers=2,
        n_heads=4,
        hidden_dim=64,
    ),
    _language_model("bert_masked_lm", "Bert", "ForMaskedLM", **TEXT),
    _classifier("electra", "Electra", **TEXT, embedding_size=16),
    _classifier("mpnet", "MPNet", **TEXT),
)
DECODERS = (
    _language_model(
        "gpt2",
        "GPT2",
        "LMHeadModel",
        vocab_size=VOCABULARY,
        n_positions=32,
        n_embd=32,
        n_layer=2,
        n_head=4,
        use_cache=False,
    ),
    _language_model(
        "opt",
        "OPT",
        vocab_size=VOCABULARY,
        max_position_embeddings=32,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        ffn_dim=64,
        word_embed_proj_dim=32,
        use_cache=False,
    ),
    _language_model("mistral", "Mistral", **DECODER, sliding_window=8),
    _language_model("qwen2", "Qwen2", **DECODER),
    _language_model("gemma", "Gemma", **DECODER, head_dim=8),
    _language_model("llama", "Llama", **DECODER),
    _language_model("gpt_neox", "GPTNeoX", **TEXT, use_cache=False),
    _language_model("phi", "Phi", **DECODER),
    _language_model("bloom", "Bloom", vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4, use_cache=False),
    _language_model("qwen3", "Qwen3", **DECODER, head_dim=8),
)
OTHERS = (
    Entry(
        "t5",
        _module("T5ForConditionalGeneration", "T5Config", ("input_ids", "decoder_input_ids"), "logits", **T5),
        {"input_ids": tokens(VOCABULARY, LENGTH), "decoder_input_ids": tokens(VOCABULARY, 8)},
    ),
    Entry(
        "t5_encoder",
        _module("T5EncoderModel", "T5Config", ("input_ids",), "last_hidden_state", **T5),
        _ids(),
        "mse",
    ),
    _images("deit", "DeiT", 16, image_size=16, patch_size=4, **SMALL),
    _images("hf_vit", "ViT", 16, image_size=16, patch_size=4, **SMALL),
    _images(
        "mobilevit",
        "MobileViT",
        32,
        image_size=32,
        hidden_sizes=[16, 24, 32],
        neck_hidden_sizes=[8, 8, 16, 16, 24, 32, 64],
        num_attention_heads=4,
        output_stride=32,
    ),
    _pooled(
        "clip_vision",
        "CLIPVisionModel",
        "CLIPVisionConfig",
        "pixel_values",
        normal(3, 16, 16),
        "pooler_output",
        image_size=16,
        patch_size=4,
        **SMALL,
    ),
    _pooled(
        "wav2vec2", "Wav2Vec2Model", "Wav2Vec2Config", "input_values", normal(400), "last_hidden_state", **WAV2VEC2
    ),
    _images(
        "segformer",
        "Segformer",
        32,
        num_encoder_blocks=2,
        depths=[1, 1],
        sr_ratios=[2, 1],
        hidden_sizes=[16, 32],
        patch_sizes=[7, 3],
        strides=[4, 2],
        num_attention_heads=[2, 4],
        mlp_ratios=[2, 2],
    ),
    _images(
        "beit",
        "Beit",
        16,
        image_size=16,
        patch_size=4,
        use_relative_position_bias=True,
        attn_implementation="eager",
        **SMALL,
    ),
)
ENTRIES = (*ENCODERS, *DECODERS, *OTHERS)
