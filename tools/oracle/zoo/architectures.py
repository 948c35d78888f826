"""Small configurations of the transformers library's architectures, and inputs that fit them.

Each is a function of `padded` that gives (model, inputs), both on the host.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

BATCH, LENGTH, WORDS = 3, 40, 512
ABSENT = "absent"  # stands for a setting that a configuration refuses
ARCHITECTURES: dict[str, Callable] = {}
UNPADDED: set[str] = set()  # those that know no padding mask

# What a small text model is made of, by the names that most configurations use. Others ignore what they do not know.
TEXT = {
    "vocab_size": WORDS, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 144, "head_dim": 16, "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
PAIR = {
    "vocab_size": WORDS, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 144, "decoder_ffn_dim": 144, "max_position_embeddings": 128,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2,
}  # fmt: skip
IMAGE = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 144, "image_size": 32,
    "patch_size": 8, "num_labels": 10,
}  # fmt: skip
SOUND = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 144,
    "conv_dim": (32, 32, 32), "conv_kernel": (10, 3, 3), "conv_stride": (5, 2, 2), "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4, "vocab_size": 32, "pad_token_id": 0,
    "mask_time_prob": 0.0,
}  # fmt: skip


def tokens(length: int = LENGTH, words: int = WORDS) -> torch.Tensor:
    """Random tokens, the special ones left out."""
    return torch.randint(10, words, (BATCH, length))


def text_inputs(padded: bool, length: int = LENGTH, labels: bool = True) -> dict:
    """Tokens with themselves as labels, and a mask of which a few last places are padding."""
    ids = tokens(length)
    inputs = {"input_ids": ids}
    if labels:
        inputs["labels"] = ids.clone()
    if padded:
        mask = torch.ones(BATCH, length, dtype=torch.long)
        mask[0, length - 7 :] = mask[2, length - 3 :] = 0
        inputs["attention_mask"] = mask
    return inputs


def _class(name: str):
    import transformers

    return getattr(transformers, name)


def _model(name: str, config_name: str, settings: dict):
    return _class(name)(_class(config_name)(**{key: value for key, value in settings.items() if value != ABSENT}))


def _config_of(name: str) -> str:
    return _class(name).config_class.__name__


def text(name: str, model: str, labels: bool = True, length: int = LENGTH, **settings) -> None:
    """An encoder or a decoder that reads tokens."""

    def make(padded):
        return _model(model, _config_of(model), TEXT | settings), text_inputs(padded, length, labels)

    ARCHITECTURES[name] = make


def pair(name: str, model: str, length: int = LENGTH, **settings) -> None:
    """An encoder and a decoder."""

    def make(padded):
        return _model(model, _config_of(model), PAIR | settings), text_inputs(padded, length)

    ARCHITECTURES[name] = make


def image(name: str, model: str, size: int = 32, labels: bool = True, **settings) -> None:
    """A model that reads images."""

    def make(padded):
        inputs = {"pixel_values": torch.randn(BATCH, 3, size, size)}
        if labels:
            inputs["labels"] = torch.randint(10, (BATCH,))
        return _model(model, _config_of(model), IMAGE | {"image_size": size} | settings), inputs

    ARCHITECTURES[name] = make
    UNPADDED.add(name)


def sound(name: str, model: str, samples: int = 2000, labels: bool = False, **settings) -> None:
    """A model that reads the waveform."""

    def make(padded):
        inputs = {"input_values": torch.randn(BATCH, samples)}
        if labels:
            inputs["labels"] = torch.randint(10, (BATCH,))
        if padded:
            mask = torch.ones(BATCH, samples, dtype=torch.long)
            mask[0, samples - 500 :] = 0
            inputs["attention_mask"] = mask
        return _model(model, _config_of(model), SOUND | settings), inputs

    ARCHITECTURES[name] = make


def other(name: str, padded: bool = False):
    """Registers a function of `padded` that makes the model and its inputs itself."""

    def register(make):
        ARCHITECTURES[name] = make
        if not padded:
            UNPADDED.add(name)
        return make

    return register


# Encoders

for _name, _model_name, _settings in (
    ("bert", "BertForMaskedLM", {}),
    ("bert_eager", "BertForMaskedLM", {"attn_implementation": "eager"}),
    ("roberta", "RobertaForMaskedLM", {"pad_token_id": 1}),
    ("roberta_prelayernorm", "RobertaPreLayerNormForMaskedLM", {"pad_token_id": 1}),
    ("xlm_roberta", "XLMRobertaForMaskedLM", {"pad_token_id": 1}),
    ("xlm_roberta_xl", "XLMRobertaXLForMaskedLM", {"pad_token_id": 1}),
    ("camembert", "CamembertForMaskedLM", {"pad_token_id": 1}),
    ("electra", "ElectraForMaskedLM", {"embedding_size": 48}),
    ("albert", "AlbertForMaskedLM", {"embedding_size": 48}),
    ("distilbert", "DistilBertForMaskedLM", {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 144}),
    ("mpnet", "MPNetForMaskedLM", {"pad_token_id": 1}),
    ("deberta", "DebertaForMaskedLM", {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}),
    ("deberta_v2", "DebertaV2ForMaskedLM", {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}),
    ("mobilebert", "MobileBertForMaskedLM", {"embedding_size": 32, "intra_bottleneck_size": 32}),
    ("squeezebert", "SqueezeBertForMaskedLM", {"embedding_size": 64}),
    ("convbert", "ConvBertForMaskedLM", {"embedding_size": 48}),
    ("fnet", "FNetForMaskedLM", {}),
    ("funnel", "FunnelForMaskedLM", {"block_sizes": [1, 1], "d_head": 16, "d_inner": 144, "num_hidden_layers": ABSENT}),
    ("ernie", "ErnieForMaskedLM", {}),
    ("modernbert", "ModernBertForMaskedLM", {"local_attention": 16, "cls_token_id": 1, "sep_token_id": 2}),
    ("nomic_bert", "NomicBertForMaskedLM", {}),
    ("eurobert", "EuroBertForMaskedLM", {}),
    ("megatron_bert", "MegatronBertForMaskedLM", {}),
    ("rembert", "RemBertForMaskedLM", {"input_embedding_size": 48, "output_embedding_size": 56}),
    ("roformer", "RoFormerForMaskedLM", {"embedding_size": 48}),
    ("nystromformer", "NystromformerForMaskedLM", {"num_landmarks": 8, "segment_means_seq_len": 40}),
    ("yoso", "YosoForMaskedLM", {"use_expectation": True}),
    ("mra", "MraForMaskedLM", {}),
    ("xmod", "XmodForMaskedLM", {"default_language": "en_XX", "pad_token_id": 1}),
    ("esm", "EsmForMaskedLM", {"mask_token_id": 3, "position_embedding_type": "rotary"}),
    ("ibert", "IBertForMaskedLM", {"pad_token_id": 1}),
    ("layoutlm", "LayoutLMForMaskedLM", {}),
    ("lilt", "LiltModel", {"pad_token_id": 1, "hidden_size": 96}),
    ("canine", "CanineModel", {"num_hash_buckets": 128, "local_transformer_stride": 16}),
    ("longformer", "LongformerForMaskedLM", {"attention_window": 8, "pad_token_id": 1}),
    ("big_bird", "BigBirdForMaskedLM", {"attention_type": "original_full"}),
    ("big_bird_sparse", "BigBirdForMaskedLM", {"block_size": 8, "num_random_blocks": 1}),
    ("flaubert", "FlaubertWithLMHeadModel", {"emb_dim": 64, "n_layers": 2, "n_heads": 4, "n_words": WORDS}),
    ("xlm", "XLMWithLMHeadModel", {"emb_dim": 64, "n_layers": 2, "n_heads": 4, "n_words": WORDS}),
    ("splinter", "SplinterModel", {}),
    ("markuplm", "MarkupLMModel", {}),
    ("data2vec_text", "Data2VecTextForMaskedLM", {"pad_token_id": 1}),
    ("mega_bert_generation", "BertGenerationDecoder", {"is_decoder": True}),
):
    _labels = not _model_name.endswith("Model")
    _length = 128 if _name == "big_bird_sparse" else LENGTH
    text(_name, _model_name, labels=_labels or "LMHead" in _model_name, length=_length, **_settings)

# Classifiers on top of encoders and decoders


def _classifier(name: str, model: str, **settings) -> None:
    def make(padded):
        inputs = text_inputs(padded, labels=False) | {"labels": torch.randint(3, (BATCH,))}
        return _model(model, _config_of(model), TEXT | {"num_labels": 3} | settings), inputs

    ARCHITECTURES[name] = make


_classifier("bert_classifier", "BertForSequenceClassification")
_classifier("gpt2_classifier", "GPT2ForSequenceClassification")
_classifier("llama_classifier", "LlamaForSequenceClassification")
_classifier("deberta_v2_classifier", "DebertaV2ForSequenceClassification")

# Decoders

for _name, _model_name, _settings in (
    ("gpt2", "GPT2LMHeadModel", {}),
    ("gpt2_eager", "GPT2LMHeadModel", {"attn_implementation": "eager"}),
    ("gpt_neo", "GPTNeoForCausalLM", {"attention_types": [[["global", "local"], 1]], "window_size": 16}),
    ("gpt_neox", "GPTNeoXForCausalLM", {}),
    ("gpt_neox_japanese", "GPTNeoXJapaneseForCausalLM", {}),
    ("gptj", "GPTJForCausalLM", {"rotary_dim": 8}),
    ("gpt_bigcode", "GPTBigCodeForCausalLM", {}),
    ("openai_gpt", "OpenAIGPTLMHeadModel", {}),
    ("codegen", "CodeGenForCausalLM", {"rotary_dim": 8}),
    ("opt", "OPTForCausalLM", {"ffn_dim": 144, "word_embed_proj_dim": 64, "pad_token_id": 1}),
    ("bloom", "BloomForCausalLM", {}),
    ("falcon", "FalconForCausalLM", {"multi_query": True, "head_dim": ABSENT}),
    ("mpt", "MptForCausalLM", {"d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 128}),
    ("ctrl", "CTRLLMHeadModel", {"dff": 144}),
    ("biogpt", "BioGptForCausalLM", {"pad_token_id": 1}),
    ("xglm", "XGLMForCausalLM", {"d_model": 64, "num_layers": 2, "attention_heads": 4, "ffn_dim": 144}),
    ("llama", "LlamaForCausalLM", {}),
    ("llama_eager", "LlamaForCausalLM", {"attn_implementation": "eager"}),
    ("mistral", "MistralForCausalLM", {"sliding_window": 16}),
    ("ministral", "MinistralForCausalLM", {"sliding_window": 16}),
    ("qwen2", "Qwen2ForCausalLM", {}),
    ("qwen3", "Qwen3ForCausalLM", {}),
    ("gemma", "GemmaForCausalLM", {}),
    ("gemma2", "Gemma2ForCausalLM", {"sliding_window": 16}),
    ("gemma3", "Gemma3ForCausalLM", {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}),
    ("phi", "PhiForCausalLM", {}),
    ("phi3", "Phi3ForCausalLM", {}),
    ("stablelm", "StableLmForCausalLM", {}),
    ("starcoder2", "Starcoder2ForCausalLM", {}),
    ("olmo", "OlmoForCausalLM", {}),
    ("olmo2", "Olmo2ForCausalLM", {}),
    ("olmo3", "Olmo3ForCausalLM", {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}),
    ("cohere", "CohereForCausalLM", {}),
    ("cohere2", "Cohere2ForCausalLM", {"sliding_window": 16}),
    ("granite", "GraniteForCausalLM", {}),
    ("glm", "GlmForCausalLM", {}),
    ("glm4", "Glm4ForCausalLM", {}),
    ("nemotron", "NemotronForCausalLM", {}),
    ("persimmon", "PersimmonForCausalLM", {}),
    ("helium", "HeliumForCausalLM", {}),
    ("smollm3", "SmolLM3ForCausalLM", {}),
    ("exaone4", "Exaone4ForCausalLM", {"sliding_window": 16, "sliding_window_pattern": 2}),
    ("ernie4_5", "Ernie4_5ForCausalLM", {}),
    ("seed_oss", "SeedOssForCausalLM", {}),
    ("apertus", "ApertusForCausalLM", {}),
    ("arcee", "ArceeForCausalLM", {}),
    ("hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM", {}),
    ("lfm2", "Lfm2ForCausalLM", {"layer_types": ["conv", "full_attention"], "conv_L_cache": 3, "full_attn_idxs": [1]}),
    ("diffllama", "DiffLlamaForCausalLM", {}),
    ("nanochat", "NanoChatForCausalLM", {}),
    ("vaultgemma", "VaultGemmaForCausalLM", {"sliding_window": 16}),
    ("mamba", "MambaForCausalLM", {"state_size": 8, "use_mambapy": False}),
    ("mamba2", "Mamba2ForCausalLM", {"state_size": 8, "num_heads": 8, "n_groups": 2, "chunk_size": 16}),
    ("falcon_mamba", "FalconMambaForCausalLM", {"state_size": 8, "use_mambapy": False}),
    ("recurrent_gemma", "RecurrentGemmaForCausalLM", {
        "lru_width": 64, "attention_window_size": 16, "num_hidden_layers": 3,
    }),
    ("rwkv", "RwkvForCausalLM", {"context_length": 64}),
    ("xlnet", "XLNetLMHeadModel", {"d_inner": 144, "d_head": 16, "max_position_embeddings": ABSENT}),
    ("reformer", "ReformerModelWithLMHead", {
        "attention_head_size": 16, "attn_layers": ["local", "lsh"], "axial_pos_shape": [8, 16],
        "axial_pos_embds_dim": [32, 32], "local_attn_chunk_length": 8, "lsh_attn_chunk_length": 8, "num_buckets": 4,
        "feed_forward_size": 144, "is_decoder": True, "hash_seed": 1,
    }),
    ("bamba", "BambaForCausalLM", {
        "attn_layer_indices": [1], "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_chunk_size": 16,
        "mamba_n_groups": 1, "mamba_expand": 2,
    }),
    ("zamba2", "Zamba2ForCausalLM", {
        "mamba_d_state": 8, "n_mamba_heads": 8, "mamba_ngroups": 1, "chunk_size": 16, "layers_block_type":
        ["mamba", "hybrid"], "adapter_rank": 8, "mamba_headdim": 16, "mamba_expand": 2, "hybrid_layer_ids": [1],
    }),
    ("qwen3_next", "Qwen3NextForCausalLM", {
        "layer_types": ["linear_attention", "full_attention"], "linear_num_value_heads": 4, "linear_num_key_heads": 2,
        "linear_key_head_dim": 16, "linear_value_head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 48, "shared_expert_intermediate_size": 48,
    }),
    ("minimax", "MiniMaxForCausalLM", {
        "layer_types": ["linear_attention", "full_attention"], "num_local_experts": 4, "block_size": 16,
    }),
):  # fmt: skip
    text(_name, _model_name, length=128 if _name == "reformer" else LENGTH, **_settings)

# Mixtures of experts, in each of their implementations

EXPERTS = ("eager", "grouped_mm", "batched_mm")
for _name, _model_name, _settings in (
    ("mixtral", "MixtralForCausalLM", {"num_local_experts": 4}),
    ("qwen2_moe", "Qwen2MoeForCausalLM", {
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "shared_expert_intermediate_size": 48,
    }),
    ("qwen3_moe", "Qwen3MoeForCausalLM", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}),
    ("gpt_oss", "GptOssForCausalLM", {
        "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention"],
    }),
    ("deepseek_v2", "DeepseekV2ForCausalLM", {
        "q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16,
        "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "first_k_dense_replace": 1,
        "n_group": 1, "topk_group": 1, "head_dim": 8, "num_key_value_heads": 4,
    }),
    ("deepseek_v3", "DeepseekV3ForCausalLM", {
        "q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16,
        "n_routed_experts": 8, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 48,
        "first_k_dense_replace": 1, "head_dim": 8, "num_key_value_heads": 4,
    }),
    ("olmoe", "OlmoeForCausalLM", {"num_experts": 4, "num_experts_per_tok": 2}),
    ("phimoe", "PhimoeForCausalLM", {"num_local_experts": 4}),
    ("granitemoe", "GraniteMoeForCausalLM", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    ("ernie4_5_moe", "Ernie4_5_MoeForCausalLM", {
        "moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 48, "moe_layer_start_index": 1,
    }),
    ("glm4_moe", "Glm4MoeForCausalLM", {
        "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "first_k_dense_replace": 1,
    }),
    ("jamba", "JambaForCausalLM", {
        "num_experts": 4, "num_experts_per_tok": 2, "attn_layer_period": 2, "attn_layer_offset": 1,
        "expert_layer_period": 2, "expert_layer_offset": 1, "mamba_d_state": 8, "mamba_dt_rank": 8,
        "use_mamba_kernels": False,
    }),
):  # fmt: skip
    for _how in EXPERTS:
        text(f"{_name}_{_how}", _model_name, **_settings, experts_implementation=_how)

# Encoders with a decoder

for _name, _model_name, _settings in (
    ("bart", "BartForConditionalGeneration", {}),
    ("bart_eager", "BartForConditionalGeneration", {"attn_implementation": "eager"}),
    ("mbart", "MBartForConditionalGeneration", {}),
    ("pegasus", "PegasusForConditionalGeneration", {}),
    ("pegasus_x", "PegasusXForConditionalGeneration", {"block_size": 8, "num_global_tokens": 4}),
    ("bigbird_pegasus", "BigBirdPegasusForConditionalGeneration", {"attention_type": "original_full"}),
    ("marian", "MarianMTModel", {"decoder_vocab_size": WORDS}),
    ("blenderbot", "BlenderbotForConditionalGeneration", {}),
    ("blenderbot_small", "BlenderbotSmallForConditionalGeneration", {}),
    ("m2m_100", "M2M100ForConditionalGeneration", {"pad_token_id": 1}),
    ("plbart", "PLBartForConditionalGeneration", {}),
    ("led", "LEDForConditionalGeneration", {
        "attention_window": 8, "max_encoder_position_embeddings": 128, "max_decoder_position_embeddings": 128,
    }),
    ("mvp", "MvpForConditionalGeneration", {}),
    ("nllb_moe", "NllbMoeForConditionalGeneration", {
        "num_experts": 4, "expert_capacity": 16, "encoder_sparse_step": 2, "decoder_sparse_step": 2, "pad_token_id": 1,
    }),
    ("fsmt", "FSMTForConditionalGeneration", {
        "src_vocab_size": WORDS, "tgt_vocab_size": WORDS, "langs": ["en", "de"], "max_position_embeddings": 128,
    }),
    ("prophetnet", "ProphetNetForConditionalGeneration", {
        "hidden_size": 64, "num_encoder_layers": 2, "num_decoder_layers": 2, "num_encoder_attention_heads": 4,
        "num_decoder_attention_heads": 4, "ngram": 2, "num_buckets": 8, "relative_max_distance": 16,
        "d_model": ABSENT, "encoder_layers": ABSENT,
        "decoder_layers": ABSENT, "encoder_attention_heads": ABSENT, "decoder_attention_heads": ABSENT,
    }),
):  # fmt: skip
    pair(_name, _model_name, **_settings)

_T5 = {
    "d_model": 64, "d_kv": 16, "d_ff": 144, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4,
    "num_attention_heads": 4,
}  # fmt: skip
for _name, _model_name, _settings in (
    ("t5", "T5ForConditionalGeneration", {}),
    ("flan_t5", "T5ForConditionalGeneration", {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    ("mt5", "MT5ForConditionalGeneration", {}),
    ("umt5", "UMT5ForConditionalGeneration", {}),
    ("longt5", "LongT5ForConditionalGeneration", {"local_radius": 8}),
    ("longt5_global", "LongT5ForConditionalGeneration", {
        "local_radius": 8, "encoder_attention_type": "transient-global", "global_block_size": 8,
    }),
    ("switch_transformers", "SwitchTransformersForConditionalGeneration", {
        "num_experts": 4, "expert_capacity": 16, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1,
    }),
):  # fmt: skip
    pair(_name, _model_name, **_T5, **_settings)


@other("t5gemma", padded=True)
def _t5gemma(padded):
    part = TEXT | {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}
    config = _class("T5GemmaConfig")(encoder=part, decoder=part | {"cross_attention_hidden_size": 64}, vocab_size=WORDS)
    config.decoder.bos_token_id = config.bos_token_id = 1
    return _class("T5GemmaForConditionalGeneration")(config), text_inputs(padded)


@other("encoder_decoder", padded=True)
def _encoder_decoder(padded):
    bert = _class("BertConfig")(**TEXT)
    config = _class("EncoderDecoderConfig").from_encoder_decoder_configs(bert, _class("BertConfig")(**TEXT))
    config.decoder_start_token_id, config.pad_token_id = 1, 0
    return _class("EncoderDecoderModel")(config), text_inputs(padded)


# Vision

for _name, _model_name, _settings in (
    ("vit", "ViTForImageClassification", {}),
    ("deit", "DeiTForImageClassification", {}),
    ("beit", "BeitForImageClassification", {"use_relative_position_bias": True}),
    ("data2vec_vision", "Data2VecVisionForImageClassification", {"use_relative_position_bias": True}),
    ("dinov2", "Dinov2ForImageClassification", {}),
    ("dinov2_with_registers", "Dinov2WithRegistersForImageClassification", {}),
    ("dinov3_vit", "DINOv3ViTModel", {}),
    ("ijepa", "IJepaForImageClassification", {}),
    ("vit_mae", "ViTMAEForPreTraining", {
        "decoder_hidden_size": 48, "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 4,
        "decoder_intermediate_size": 96,
    }),
    ("vit_msn", "ViTMSNForImageClassification", {}),
    ("yolos", "YolosModel", {"image_size": [32, 32], "num_detection_tokens": 5}),
    ("swin", "SwinForImageClassification", {
        "embed_dim": 24, "depths": [2, 2], "num_heads": [2, 4], "window_size": 2, "patch_size": 4,
        "num_attention_heads": ABSENT, "hidden_size": ABSENT, "num_hidden_layers": ABSENT,
    }),
    ("swinv2", "Swinv2ForImageClassification", {
        "embed_dim": 24, "depths": [2, 2], "num_heads": [2, 4], "window_size": 2, "patch_size": 4,
        "num_attention_heads": ABSENT, "hidden_size": ABSENT, "num_hidden_layers": ABSENT,
    }),
    ("hiera", "HieraForImageClassification", {
        "embed_dim": 24, "depths": [1, 1, 1], "num_heads": [1, 2, 4], "image_size": [64, 64], "patch_kernel": [7, 7],
        "patch_stride": [4, 4], "patch_padding": [3, 3], "query_stride": [2, 2], "masked_unit_size": [8, 8],
        "masked_unit_attention": [True, True, False], "num_query_pool": 2, "embed_dim_multiplier": 2.0,
        "patch_size": ABSENT, "num_attention_heads": ABSENT, "hidden_size": ABSENT, "num_hidden_layers": ABSENT,
    }),
    ("convnext", "ConvNextForImageClassification", {"hidden_sizes": [16, 32], "depths": [1, 2], "num_stages": 2}),
    ("convnextv2", "ConvNextV2ForImageClassification", {"hidden_sizes": [16, 32], "depths": [1, 2], "num_stages": 2}),
    ("resnet", "ResNetForImageClassification", {
        "embedding_size": 16, "hidden_sizes": [32, 64], "depths": [1, 2],
    }),
    ("mobilenet_v1", "MobileNetV1ForImageClassification", {"depth_multiplier": 0.25}),
    ("mobilenet_v2", "MobileNetV2ForImageClassification", {"depth_multiplier": 0.5}),
    ("efficientnet", "EfficientNetForImageClassification", {
        "in_channels": [32, 16], "out_channels": [16, 24], "kernel_sizes": [3, 5], "strides": [1, 2],
        "num_block_repeats": [1, 2], "expand_ratios": [1, 4], "depthwise_padding": [], "hidden_dim": 1280,
        "width_coefficient": 1.0, "depth_coefficient": 1.0, "num_hidden_layers": 2,
    }),
    ("mobilevit", "MobileViTForImageClassification", {
        "hidden_sizes": [24, 32, 40], "neck_hidden_sizes": [8, 8, 16, 24, 32, 40, 64], "patch_size": 2,
    }),
    ("mobilevitv2", "MobileViTV2ForImageClassification", {"width_multiplier": 0.25, "patch_size": 2}),
    ("poolformer", "PoolFormerForImageClassification", {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}),
    ("pvt", "PvtForImageClassification", {
        "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 2, 4],
    }),
    ("pvt_v2", "PvtV2ForImageClassification", {
        "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 2, 4],
    }),
    ("segformer", "SegformerForImageClassification", {
        "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 2, 4],
        "decoder_hidden_size": 32,
    }),
    ("cvt", "CvtForImageClassification", {
        "embed_dim": [16, 32, 48], "num_heads": [1, 2, 3], "depth": [1, 2, 3], "hidden_size": ABSENT,
    }),
    ("levit", "LevitForImageClassification", {
        "hidden_sizes": [32, 48, 64], "depths": [1, 1, 1], "num_attention_heads": [2, 3, 4], "key_dim": [8, 8, 8],
        "patch_size": 16,
    }),
    ("focalnet", "FocalNetForImageClassification", {"embed_dim": 16, "depths": [1, 1], "focal_levels": [2, 2],
        "focal_windows": [3, 3], "hidden_sizes": [16, 32], "patch_size": 4}),
    ("swiftformer", "SwiftFormerForImageClassification", {"depths": [1, 1, 1, 1], "embed_dims": [8, 16, 24, 32]}),
    ("textnet", "TextNetForImageClassification", {}),
):  # fmt: skip
    _size = {"hiera": 64, "mobilevit": 64, "mobilevitv2": 64, "levit": 128, "mobilenet_v1": 64}.get(_name, 32)
    image(_name, _model_name, size=_size, labels=not _model_name.endswith(("Model", "PreTraining")), **_settings)


@other("dpt")
def _dpt(padded):
    config = _class("DPTConfig")(
        **(IMAGE | {"num_hidden_layers": 4}), backbone_out_indices=[0, 1, 2, 3], neck_hidden_sizes=[8, 16, 16, 24],
        fusion_hidden_size=16, reassemble_factors=[4, 2, 1, 0.5], is_hybrid=False,
    )  # fmt: skip
    return _class("DPTForDepthEstimation")(config), {"pixel_values": torch.randn(BATCH, 3, 32, 32)}


@other("segformer_segmentation")
def _segformer(padded):
    config = _class("SegformerConfig")(
        hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1], num_attention_heads=[1, 1, 2, 4], decoder_hidden_size=32,
        num_labels=7,
    )  # fmt: skip
    inputs = {"pixel_values": torch.randn(BATCH, 3, 64, 64), "labels": torch.randint(7, (BATCH, 64, 64))}
    return _class("SegformerForSemanticSegmentation")(config), inputs


@other("vivit")
def _vivit(padded):
    config = _class("VivitConfig")(**IMAGE, num_frames=4, tubelet_size=[2, 8, 8])
    inputs = {"pixel_values": torch.randn(BATCH, 4, 3, 32, 32), "labels": torch.randint(10, (BATCH,))}
    return _class("VivitForVideoClassification")(config), inputs


@other("videomae")
def _videomae(padded):
    config = _class("VideoMAEConfig")(**IMAGE, num_frames=4, tubelet_size=2)
    inputs = {"pixel_values": torch.randn(BATCH, 4, 3, 32, 32), "labels": torch.randint(10, (BATCH,))}
    return _class("VideoMAEForVideoClassification")(config), inputs


@other("timesformer")
def _timesformer(padded):
    config = _class("TimesformerConfig")(**IMAGE, num_frames=4)
    inputs = {"pixel_values": torch.randn(BATCH, 4, 3, 32, 32), "labels": torch.randint(10, (BATCH,))}
    return _class("TimesformerForVideoClassification")(config), inputs


# Audio

for _name, _model_name, _settings in (
    ("wav2vec2", "Wav2Vec2ForSequenceClassification", {}),
    ("wav2vec2_layer_norm", "Wav2Vec2ForSequenceClassification", {
        "feat_extract_norm": "layer", "do_stable_layer_norm": True}),
    ("wav2vec2_conformer", "Wav2Vec2ConformerForSequenceClassification", {"position_embeddings_type": "relative"}),
    ("hubert", "HubertForSequenceClassification", {}),
    ("wavlm", "WavLMForSequenceClassification", {}),
    ("unispeech", "UniSpeechForSequenceClassification", {}),
    ("unispeech_sat", "UniSpeechSatForSequenceClassification", {}),
    ("data2vec_audio", "Data2VecAudioForSequenceClassification", {"conv_pos_kernel_size": 7}),
    ("sew", "SEWForSequenceClassification", {"squeeze_factor": 2}),
    ("sew_d", "SEWDForSequenceClassification", {"squeeze_factor": 2}),
):  # fmt: skip
    sound(_name, _model_name, labels=True, num_labels=10, **_settings)


@other("wav2vec2_ctc", padded=True)
def _wav2vec2_ctc(padded):
    config = _class("Wav2Vec2Config")(**SOUND, ctc_loss_reduction="mean")
    inputs = {"input_values": torch.randn(BATCH, 2000), "labels": torch.randint(1, 32, (BATCH, 12))}
    if padded:
        inputs["attention_mask"] = torch.ones(BATCH, 2000, dtype=torch.long)
    return _class("Wav2Vec2ForCTC")(config), inputs


@other("wav2vec2_bert", padded=True)
def _wav2vec2_bert(padded):
    sizes = SOUND | {"feature_projection_input_dim": 32, "conv_depthwise_kernel_size": 7, "num_labels": 10}
    inputs = {"input_features": torch.randn(BATCH, 50, 32), "labels": torch.randint(10, (BATCH,))}
    if padded:
        inputs["attention_mask"] = (torch.arange(50) < torch.tensor([[50], [30], [44]])).long()
    return _class("Wav2Vec2BertForSequenceClassification")(_class("Wav2Vec2BertConfig")(**sizes)), inputs


@other("whisper")
def _whisper(padded):
    config = _class("WhisperConfig")(
        **PAIR, num_mel_bins=16, max_source_positions=50, max_target_positions=64, suppress_tokens=None,
        begin_suppress_tokens=None,
    )  # fmt: skip
    inputs = {"input_features": torch.randn(BATCH, 16, 100), "labels": tokens(20)}
    return _class("WhisperForConditionalGeneration")(config), inputs


@other("speech_to_text", padded=True)
def _speech_to_text(padded):
    config = _class("Speech2TextConfig")(
        **PAIR, input_feat_per_channel=16, conv_channels=32, max_source_positions=100, max_target_positions=64
    )
    inputs = {"input_features": torch.randn(BATCH, 60, 16), "labels": tokens(20)}
    if padded:
        inputs["attention_mask"] = (torch.arange(60) < torch.tensor([[60], [31], [44]])).long()
    return _class("Speech2TextForConditionalGeneration")(config), inputs


@other("audio_spectrogram")
def _ast(padded):
    config = _class("ASTConfig")(**IMAGE, max_length=64, num_mel_bins=32, frequency_stride=8, time_stride=8)
    inputs = {"input_values": torch.randn(BATCH, 64, 32), "labels": torch.randint(10, (BATCH,))}
    return _class("ASTForAudioClassification")(config), inputs


@other("encodec")
def _encodec(padded):
    config = _class("EncodecConfig")(
        num_filters=4, codebook_size=16, hidden_size=16, codebook_dim=16, num_lstm_layers=1
    )
    return _class("EncodecModel")(config).encoder, {"hidden_states": torch.randn(BATCH, 1, 3200)}


@other("moonshine")
def _moonshine(padded):
    config = _class("MoonshineConfig")(
        **TEXT, encoder_num_hidden_layers=2, decoder_num_hidden_layers=2, encoder_num_attention_heads=4,
        decoder_num_attention_heads=4, decoder_start_token_id=1,
    )  # fmt: skip
    return _class("MoonshineForConditionalGeneration")(config), {
        "input_values": torch.randn(BATCH, 4000),
        "labels": tokens(20),
    }


# Text with images or sound


def _two_towers(name: str, model: str, config: str, loss: bool = True, **more) -> None:
    def make(padded):
        sizes = _class(config)(
            text_config=TEXT | {"projection_dim": 32},
            vision_config=IMAGE | {"projection_dim": 32},
            **({"projection_dim": 32} | more),
        )
        inputs = {"input_ids": tokens(16), "pixel_values": torch.randn(BATCH, 3, 32, 32)}
        inputs["input_ids"][:, -1] = 2
        if loss:
            inputs["return_loss"] = True
        if padded:
            inputs["attention_mask"] = (torch.arange(16) < torch.tensor([[16], [9], [12]])).long()
        return _class(model)(sizes), inputs

    ARCHITECTURES[name] = make


_two_towers("clip", "CLIPModel", "CLIPConfig")
_two_towers("siglip", "SiglipModel", "SiglipConfig")
_two_towers("altclip", "AltCLIPModel", "AltCLIPConfig")
_two_towers("chinese_clip", "ChineseCLIPModel", "ChineseCLIPConfig")
_two_towers("clipseg", "CLIPSegModel", "CLIPSegConfig")
_two_towers("blip", "BlipModel", "BlipConfig")
_two_towers("metaclip_2", "MetaClip2Model", "MetaClip2Config")
_two_towers("owlvit", "OwlViTModel", "OwlViTConfig")


@other("vilt", padded=True)
def _vilt(padded):
    config = _class("ViltConfig")(**(TEXT | IMAGE | {"num_labels": 4}))
    inputs = text_inputs(padded, labels=False) | {"pixel_values": torch.randn(BATCH, 3, 32, 32)}
    return _class("ViltForQuestionAnswering")(config), inputs | {"labels": torch.rand(BATCH, 4)}


@other("llava", padded=True)
def _llava(padded):
    config = _class("LlavaConfig")(
        text_config=_class("LlamaConfig")(**TEXT),
        vision_config=_class("CLIPVisionConfig")(**IMAGE),
        image_token_index=5,
        image_token_id=5,
        vision_feature_layer=-1,
    )
    inputs = text_inputs(padded)
    inputs["input_ids"][:, 2:18] = 5
    return _class("LlavaForConditionalGeneration")(config), inputs | {"pixel_values": torch.randn(BATCH, 3, 32, 32)}


@other("paligemma", padded=True)
def _paligemma(padded):
    config = _class("PaliGemmaConfig")(
        text_config=_class("GemmaConfig")(**TEXT), vision_config=_class("SiglipVisionConfig")(**IMAGE),
        image_token_index=5, image_token_id=5, projection_dim=64,
    )  # fmt: skip
    inputs = text_inputs(padded)
    inputs["input_ids"][:, :16] = 5
    inputs["token_type_ids"] = (inputs["input_ids"] != 5).long()
    return _class("PaliGemmaForConditionalGeneration")(config), inputs | {"pixel_values": torch.randn(BATCH, 3, 32, 32)}


@other("git", padded=True)
def _git(padded):
    config = _class("GitConfig")(vision_config=IMAGE, **TEXT)
    return _class("GitForCausalLM")(config), text_inputs(padded) | {"pixel_values": torch.randn(BATCH, 3, 32, 32)}


@other("vision_encoder_decoder")
def _vision_encoder_decoder(padded):
    config = _class("VisionEncoderDecoderConfig").from_encoder_decoder_configs(
        _class("ViTConfig")(**IMAGE), _class("GPT2Config")(**TEXT)
    )
    config.decoder_start_token_id, config.pad_token_id = 1, 0
    inputs = {"pixel_values": torch.randn(BATCH, 3, 32, 32), "labels": tokens(20)}
    return _class("VisionEncoderDecoderModel")(config), inputs


@other("trocr")
def _trocr(padded):
    config = _class("TrOCRConfig")(**PAIR)
    ids = tokens()
    return _class("TrOCRForCausalLM")(config), {"input_ids": ids, "labels": ids}


@other("lxmert", padded=True)
def _lxmert(padded):
    sizes = TEXT | {"l_layers": 1, "x_layers": 1, "r_layers": 1, "visual_feat_dim": 32}
    inputs = text_inputs(padded, labels=False)
    inputs |= {"visual_feats": torch.randn(BATCH, 9, 32), "visual_pos": torch.rand(BATCH, 9, 4)}
    return _class("LxmertModel")(_class("LxmertConfig")(**sizes)), inputs


@other("visual_bert", padded=True)
def _visual_bert(padded):
    inputs = text_inputs(padded, labels=False) | {"visual_embeds": torch.randn(BATCH, 9, 32)}
    if not padded:
        inputs["attention_mask"] = torch.ones(BATCH, LENGTH, dtype=torch.long)
    config = _class("VisualBertConfig")(**TEXT, visual_embedding_dim=32)
    return _class("VisualBertModel")(config), inputs


# Of other kinds


@other("detr")
def _detr(padded):
    config = _class("DetrConfig")(
        d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=64, decoder_ffn_dim=64, num_queries=6, use_timm_backbone=False, use_pretrained_backbone=False,
        backbone=None, backbone_config=_class("ResNetConfig")(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1],
                                                             out_features=["stage2"]),
    )  # fmt: skip
    return _class("DetrModel")(config), {"pixel_values": torch.randn(BATCH, 3, 64, 64)}


@other("perceiver")
def _perceiver(padded):
    config = _class("PerceiverConfig")(
        num_latents=8, d_latents=32, d_model=24, num_blocks=1, num_self_attends_per_block=2, num_self_attention_heads=4,
        num_cross_attention_heads=2, vocab_size=WORDS, max_position_embeddings=LENGTH,
    )  # fmt: skip
    ids = tokens()
    return _class("PerceiverForMaskedLM")(config), {"inputs": ids, "labels": ids.clone()}


@other("decision_transformer")
def _decision_transformer(padded):
    config = _class("DecisionTransformerConfig")(state_dim=11, act_dim=3, hidden_size=64, n_layer=2, n_head=4)
    inputs = {
        "states": torch.randn(BATCH, 12, 11), "actions": torch.randn(BATCH, 12, 3),
        "rewards": torch.randn(BATCH, 12, 1),
        "returns_to_go": torch.randn(BATCH, 12, 1), "timesteps": torch.arange(12).repeat(BATCH, 1),
        "attention_mask": torch.ones(BATCH, 12, dtype=torch.long),
    }  # fmt: skip
    return _class("DecisionTransformerModel")(config), inputs


@other("patchtst")
def _patchtst(padded):
    config = _class("PatchTSTConfig")(
        num_input_channels=3, context_length=32, patch_length=4, patch_stride=4, d_model=32, num_hidden_layers=2,
        num_attention_heads=4, ffn_dim=64, prediction_length=8,
    )  # fmt: skip
    inputs = {"past_values": torch.randn(BATCH, 32, 3), "future_values": torch.randn(BATCH, 8, 3)}
    return _class("PatchTSTForPrediction")(config), inputs


@other("time_series_transformer")
def _time_series(padded):
    config = _class("TimeSeriesTransformerConfig")(
        prediction_length=6, context_length=12, d_model=32, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64,
        lags_sequence=[1, 2, 3], num_time_features=2,
    )  # fmt: skip
    inputs = {
        "past_values": torch.randn(BATCH, 15), "past_time_features": torch.randn(BATCH, 15, 2),
        "past_observed_mask": torch.ones(BATCH, 15), "future_values": torch.randn(BATCH, 6),
        "future_time_features": torch.randn(BATCH, 6, 2),
    }  # fmt: skip
    return _class("TimeSeriesTransformerForPrediction")(config), inputs


@other("imagegpt")
def _imagegpt(padded):
    config = _class("ImageGPTConfig")(vocab_size=65, n_positions=64, n_embd=64, n_layer=2, n_head=4)
    ids = torch.randint(64, (BATCH, 64))
    return _class("ImageGPTForCausalImageModeling")(config), {"input_ids": ids, "labels": ids}


@other("vits")
def _vits(padded):
    config = _class("VitsConfig")(**{**TEXT, "ffn_dim": 96, "flow_size": 32, "spectrogram_bins": 33, "window_size": 4})
    return _class("VitsModel")(config).text_encoder, {
        "input_ids": tokens(), "padding_mask": torch.ones(BATCH, LENGTH, 1), "attention_mask": None,
    }  # fmt: skip
