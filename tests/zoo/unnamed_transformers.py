"""Models of `transformers` that no text names, each for something that the named ones do not have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from tests.vision import transformers
from tests.zoo.entry import Calls, Draw, Entry, normal, padding, tokens, uniform

VOCABULARY, LENGTH = 100, 12
SMALL: Mapping[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
TEXT: Mapping[str, Any] = {"vocab_size": VOCABULARY, "max_position_embeddings": 32, **SMALL}
DECODER: Mapping[str, Any] = {**TEXT, "num_key_value_heads": 2}
SMALL_RESNET: Mapping[str, Any] = {
    "model_type": "resnet",
    "hidden_sizes": [16, 24, 32, 40],
    "embedding_size": 16,
    "depths": [1, 1, 1, 1],
    "layer_type": "basic",
    "out_features": ["stage4"],
}
HALVES: Mapping[str, Any] = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
}


def _noisy(model: nn.Module) -> nn.Module:
    """What starts as all zeros or all ones moves a little, so that a gradient that passes there shows."""
    for tensor in model.parameters():
        if bool((tensor == tensor.flatten()[0]).all()):
            tensor.data += 0.05 * torch.randn(tensor.shape)
    return model


def _made(
    model: str, config: str, inputs: Mapping[str, Draw], field: str = "logits", **settings: Any
) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        library = transformers()
        own = getattr(library, config)(**settings)
        own._attn_implementation, own._experts_implementation = "eager", "batched_mm"
        return Calls(_noisy(getattr(library, model)(own)), tuple(inputs), field)

    return make


def _entry(
    name: str, model: str, config: str, inputs: Mapping[str, Draw], field: str = "logits", **settings: Any
) -> Entry:
    return Entry(name, _made(model, config, inputs, field, **settings), inputs, "mse")


IDS: Mapping[str, Draw] = {"input_ids": tokens(VOCABULARY, LENGTH)}
MASKED: Mapping[str, Draw] = {**IDS, "attention_mask": padding(LENGTH)}

TEXTS = (
    # Mixing by Fourier transforms.
    _entry("hf_fnet", "FNetForMaskedLM", "FNetConfig", IDS, **TEXT),
    # Pooled attention over relative positions.
    _entry(
        "funnel",
        "FunnelForMaskedLM",
        "FunnelConfig",
        MASKED,
        vocab_size=VOCABULARY,
        block_sizes=[1, 1],
        d_model=32,
        n_head=4,
        d_head=8,
        d_inner=64,
        num_decoder_layers=1,
    ),
    # State spaces in chunks.
    _entry(
        "mamba2",
        "Mamba2ForCausalLM",
        "Mamba2Config",
        IDS,
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_heads=4,
        head_dim=16,
        n_groups=1,
        state_size=8,
        chunk_size=8,
        num_hidden_layers=2,
        use_cache=False,
    ),
    # Linear attention, a loop over positions.
    _entry(
        "rwkv",
        "RwkvForCausalLM",
        "RwkvConfig",
        IDS,
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        attention_hidden_size=32,
        intermediate_size=64,
        context_length=32,
        use_cache=False,
    ),
    # Experts of a token as one batch of products.
    _entry(
        "mixtral",
        "MixtralForCausalLM",
        "MixtralConfig",
        MASKED,
        **DECODER,
        num_local_experts=4,
        num_experts_per_tok=2,
        use_cache=False,
    ),
    # Latents that look at the text.
    _entry(
        "perceiver_text",
        "PerceiverForMaskedLM",
        "PerceiverConfig",
        {"inputs": tokens(VOCABULARY, LENGTH), "attention_mask": padding(LENGTH)},
        d_latents=32,
        d_model=32,
        num_latents=8,
        num_self_attends_per_block=2,
        num_self_attention_heads=4,
        num_cross_attention_heads=4,
        vocab_size=VOCABULARY,
        max_position_embeddings=LENGTH,
    ),
)
IMAGES = (
    # Convolutions whose weights are standardised when they are used.
    _entry(
        "big_transfer",
        "BitForImageClassification",
        "BitConfig",
        {"pixel_values": normal(3, 32, 32)},
        num_labels=3,
        hidden_sizes=[16, 32],
        depths=[1, 1],
        embedding_size=16,
        num_groups=4,
        layer_type="preactivation",
    ),
    # A pool with a kernel of as many positions as there are channels.
    _entry(
        "hf_efficientnet",
        "EfficientNetForImageClassification",
        "EfficientNetConfig",
        {"pixel_values": normal(3, 32, 32)},
        num_labels=3,
        width_coefficient=1.0,
        depth_coefficient=1.0,
        num_block_repeats=[1] * 7,
        image_size=32,
        hidden_dim=1280,
    ),
    # Queries that find boxes.
    _entry(
        "detr",
        "DetrForObjectDetection",
        "DetrConfig",
        {"pixel_values": normal(3, 64, 64)},
        "pred_boxes",
        **HALVES,
        backbone_config=SMALL_RESNET,
        num_queries=8,
    ),
)
OTHERS = (
    # Images against texts.
    _entry(
        "clip",
        "CLIPModel",
        "CLIPConfig",
        {**MASKED, "pixel_values": normal(3, 16, 16)},
        "logits_per_image",
        text_config={**TEXT, "eos_token_id": 2},
        vision_config={**SMALL, "image_size": 16, "patch_size": 4},
        projection_dim=16,
    ),
    # Sound to text.
    _entry(
        "whisper",
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        {"input_features": normal(16, 32), "decoder_input_ids": tokens(VOCABULARY, 8)},
        **HALVES,
        vocab_size=VOCABULARY,
        num_mel_bins=16,
        max_source_positions=16,
        max_target_positions=16,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        use_cache=False,
    ),
    # A waveform through nearest codes and back.
    _entry(
        "dac",
        "DacModel",
        "DacConfig",
        {"input_values": normal(1, 320)},
        "audio_values",
        encoder_hidden_size=8,
        downsampling_ratios=[2, 4],
        decoder_hidden_size=32,
        n_codebooks=2,
        codebook_size=16,
        codebook_dim=4,
    ),
    # A time series in patches.
    _entry(
        "patch_tst",
        "PatchTSTForPrediction",
        "PatchTSTConfig",
        {"past_values": normal(32, 2)},
        "prediction_outputs",
        num_input_channels=2,
        context_length=32,
        patch_length=8,
        patch_stride=8,
        d_model=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        ffn_dim=64,
        prediction_length=6,
        scaling="std",
    ),
    # A query per point of an image.
    _entry(
        "sam",
        "SamModel",
        "SamConfig",
        {"pixel_values": normal(3, 32, 32), "input_points": uniform(1, 2, 2)},
        "pred_masks",
        vision_config={
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "image_size": 32,
            "patch_size": 8,
            "output_channels": 32,
            "window_size": 2,
            "global_attn_indexes": [1],
            "num_pos_feats": 16,
            "mlp_dim": 64,
        },
        prompt_encoder_config={"hidden_size": 32, "image_size": 32, "patch_size": 8, "mask_input_channels": 4},
        mask_decoder_config={
            "hidden_size": 32,
            "mlp_dim": 64,
            "num_attention_heads": 4,
            "num_hidden_layers": 1,
            "iou_head_hidden_dim": 16,
        },
    ),
)
ENTRIES = (*TEXTS, *IMAGES, *OTHERS)
