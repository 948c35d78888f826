"""Architectures and shapes that were drawn after the rules were written: other heads, odd sizes, checkpointing.

The sizes of a model are drawn by its name: heads, key-value heads, the size of a head, layers, words, batch, length and
how attention is computed. They join the table of `architectures`.
"""

from __future__ import annotations

import random

import torch

from tools.oracle.zoo.architectures import ABSENT, IMAGE, PAIR, SOUND, TEXT, UNPADDED, _class, _config_of, _model
from tools.oracle.zoo.heads import TABLE

PREFIX = "drawn_"


class Draw:
    """The sizes that a name draws."""

    def __init__(self, name: str):
        rng = random.Random(name)
        self.batch, self.length = rng.choice((1, 2, 4, 5, 7)), rng.randrange(13, 72)
        self.heads, self.head = rng.choice((1, 3, 5, 6, 7, 9)), rng.choice((8, 10, 12, 20, 24, 36))
        self.key_heads = rng.choice([one for one in range(1, self.heads + 1) if self.heads % one == 0])
        self.layers, self.words = rng.choice((1, 2, 2, 3)), rng.randrange(300, 1100)
        self.inner = rng.randrange(33, 333)
        self.attention = rng.choice(("eager", "sdpa", "sdpa"))
        self.checkpointing = rng.random() < 0.3

    @property
    def width(self) -> int:
        """The hidden size."""
        return self.heads * self.head

    def text(self) -> dict:
        """Sizes by the names that most configurations of one stack use."""
        return TEXT | {
            "vocab_size": self.words, "hidden_size": self.width, "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads, "num_key_value_heads": self.key_heads, "head_dim": self.head,
            "intermediate_size": self.inner, "attn_implementation": self.attention,
        }  # fmt: skip

    def pair(self) -> dict:
        """Sizes by the names of configurations of two stacks."""
        return PAIR | {
            "vocab_size": self.words, "d_model": self.width, "encoder_layers": self.layers, "decoder_layers": 2,
            "encoder_attention_heads": self.heads, "decoder_attention_heads": self.heads,
            "encoder_ffn_dim": self.inner, "decoder_ffn_dim": self.inner + 5, "attn_implementation": self.attention,
        }  # fmt: skip

    def sight(self) -> dict:
        """Sizes of a model that reads images."""
        return IMAGE | {
            "hidden_size": self.width, "num_hidden_layers": self.layers, "num_attention_heads": self.heads,
            "intermediate_size": self.inner, "attn_implementation": self.attention,
        }  # fmt: skip

    def sound(self) -> dict:
        """Sizes of a model that reads the waveform."""
        return SOUND | {
            "hidden_size": 4 * self.width, "num_hidden_layers": self.layers, "num_attention_heads": self.heads,
            "intermediate_size": self.inner, "attn_implementation": self.attention,
        }  # fmt: skip

    def tokens(self, *shape: int) -> torch.Tensor:
        """Tokens of this shape, the special ones left out; of batch × length without one."""
        return torch.randint(10, self.words, shape or (self.batch, self.length))

    def read(self, padded: bool) -> dict:
        """Tokens, and a mask whose rows are shorter from one to the next."""
        inputs = {"input_ids": self.tokens()}
        if padded:
            kept = self.length - torch.arange(self.batch)[:, None] % 6
            inputs["attention_mask"] = (torch.arange(self.length) < kept).long()
        return inputs

    def classes(self, *shape: int, of: int = 5) -> torch.Tensor:
        """Labels of this shape; one for each of the batch without one."""
        return torch.randint(of, shape or (self.batch,))

    def built(self, model: str, sizes: dict):
        """The model of these sizes, with checkpointing where that was drawn and the model has it."""
        if not _class(model)._supports_sdpa:
            sizes = sizes | {"attn_implementation": "eager"}
        made = _model(model, _config_of(model), sizes)
        if self.checkpointing and made.supports_gradient_checkpointing:
            made.gradient_checkpointing_enable()
        return made


def themselves(draw: Draw, inputs: dict) -> dict:
    """The tokens are their own labels."""
    return {"labels": inputs["input_ids"].clone()}


def nothing(draw: Draw, inputs: dict) -> dict:
    """No labels: the loss is made of the first result."""
    return {}


def of_sequence(draw: Draw, inputs: dict) -> dict:
    """A label of each sequence."""
    return {"labels": draw.classes()}


def of_tokens(draw: Draw, inputs: dict) -> dict:
    """A label of each token, of which some do not count."""
    labels = draw.classes(draw.batch, draw.length)
    labels[:, ::7] = -100
    return {"labels": labels}


def span(draw: Draw, inputs: dict) -> dict:
    """Where an answer begins and ends."""
    places = torch.randint(draw.length, (2, draw.batch))
    return {"start_positions": places.min(0).values, "end_positions": places.max(0).values}


def sentence(draw: Draw, inputs: dict) -> dict:
    """Whether one sentence follows the other."""
    return {"labels": draw.classes(of=2)}


def reads(name: str, model: str, labels=themselves, form: str = "text", fixed: dict | None = None, **settings) -> None:
    """A model that reads tokens. `fixed`: what of the draw is not drawn."""

    def make(padded):
        draw = Draw(name)
        vars(draw).update(fixed or {})
        sizes = getattr(draw, form)() | {"num_labels": 2 if labels is span else 5} | settings
        inputs = draw.read(padded)
        inputs["input_ids"][:, -1] = sizes["eos_token_id"]
        return draw.built(model, sizes), inputs | labels(draw, inputs)

    TABLE[PREFIX + name] = make


def chooses(name: str, model: str, **settings) -> None:
    """A model that chooses one of three texts."""

    def make(padded):
        draw = Draw(name)
        inputs = {"input_ids": draw.tokens(draw.batch, 3, draw.length), "labels": draw.classes(of=3)}
        if padded:
            kept = draw.length - torch.arange(3 * draw.batch).view(draw.batch, 3, 1) % 5
            inputs["attention_mask"] = (torch.arange(draw.length) < kept).long()
        return draw.built(model, draw.text() | settings), inputs

    TABLE[PREFIX + name] = make


def sees(name: str, model: str, height: int = 40, width: int | None = None, labels: bool = True, **settings) -> None:
    """A model that reads images of height × width."""

    def make(padded):
        draw = Draw(name)
        inputs = {"pixel_values": torch.randn(draw.batch, 3, height, width or height)}
        if labels:
            inputs["labels"] = draw.classes()
        return draw.built(model, draw.sight() | {"image_size": height, "num_labels": 5} | settings), inputs

    TABLE[PREFIX + name] = make
    UNPADDED.add(PREFIX + name)


def hears(name: str, model: str, labels=of_sequence, **settings) -> None:
    """A model that reads the waveform."""

    def make(padded):
        draw = Draw(name)
        samples = 1500 + 17 * draw.length
        inputs = {"input_values": torch.randn(draw.batch, samples)}
        if padded:
            kept = samples - 100 * (torch.arange(draw.batch)[:, None] % 4)
            inputs["attention_mask"] = (torch.arange(samples) < kept).long()
        sizes = draw.sound() | {"num_labels": 5, "vocab_size": 40} | settings
        return draw.built(model, sizes), inputs | labels(draw, inputs)

    TABLE[PREFIX + name] = make


def letters(draw: Draw, inputs: dict) -> dict:
    """What is said, for CTC: fewer letters in each second row."""
    labels = torch.randint(1, 40, (draw.batch, 11))
    labels[1::2, 6:] = -100
    return {"labels": labels}


def made(name: str, padded: bool = False):
    """Registers a function of (draw, padded) that makes the model and its inputs itself."""

    def register(make):
        def drawn(padded):
            return make(Draw(name), padded)

        TABLE[PREFIX + name] = drawn
        if not padded:
            UNPADDED.add(PREFIX + name)
        return make

    return register


# Decoders

EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "num_local_experts": 5}
ONE_BY_ONE = EXPERTS | {"experts_implementation": "eager"}  # grouped products want rows of 16 bytes
TWO_LAYERS = {"layers": 2}
reads("afmoe", "AfmoeForCausalLM", fixed=TWO_LAYERS, **EXPERTS, sliding_window=8, global_attn_every_n_layers=2)
reads("bitnet", "BitNetForCausalLM")
reads("cwm", "CwmForCausalLM", fixed=TWO_LAYERS, sliding_window=9, layer_types=["sliding_attention", "full_attention"])
reads("dots1", "Dots1ForCausalLM", **EXPERTS, n_routed_experts=4, n_shared_experts=1)
reads("doge", "DogeForCausalLM", keep_window_size=16)
reads("flex_olmo", "FlexOlmoForCausalLM", **EXPERTS)
reads("falcon_h1", "FalconH1ForCausalLM", fixed={"head": 12}, mamba_d_ssm=48, mamba_n_heads=6, mamba_d_head=8,
      mamba_d_state=5, mamba_chunk_size=8)  # fmt: skip
reads("granitemoehybrid", "GraniteMoeHybridForCausalLM", fixed={"layers": 2, "heads": 6, "head": 12, "key_heads": 3},
      **EXPERTS, layer_types=["linear_attention", "full_attention"], shared_intermediate_size=40, mamba_n_heads=9,
      mamba_d_head=16, mamba_d_state=7, mamba_chunk_size=8, mamba_n_groups=1)  # fmt: skip
reads("granitemoeshared", "GraniteMoeSharedForCausalLM", **ONE_BY_ONE, shared_intermediate_size=31)
reads("hunyuan_v1_moe", "HunYuanMoEV1ForCausalLM", **ONE_BY_ONE | {"moe_topk": 2})
reads("jetmoe", "JetMoeForCausalLM", fixed={"heads": 6, "key_heads": 3, "head": 10}, **EXPERTS, kv_channels=10)
reads("minimax_m2", "MiniMaxM2ForCausalLM", **ONE_BY_ONE)
reads("modernbert_decoder", "ModernBertDecoderForCausalLM", local_attention=12, cls_token_id=1, sep_token_id=2)
reads("olmo_hybrid", "OlmoHybridForCausalLM", fixed=TWO_LAYERS, layer_types=["linear_attention", "full_attention"],
      linear_num_key_heads=3, linear_num_value_heads=3, linear_key_head_dim=12, linear_value_head_dim=20)  # fmt: skip
reads("qwen3_5", "Qwen3_5ForCausalLM", fixed={"layers": 2, "head": 20},
      layer_types=["linear_attention", "full_attention"], linear_num_key_heads=3, linear_num_value_heads=6,
      linear_key_head_dim=12, linear_value_head_dim=20)  # fmt: skip
reads("solar_open", "SolarOpenForCausalLM", **EXPERTS, n_routed_experts=4, n_shared_experts=1)
LATENT = {"q_lora_rank": 21, "kv_lora_rank": 13, "qk_rope_head_dim": 6, "qk_nope_head_dim": 10, "v_head_dim": 12,
          "head_dim": 6, "num_key_value_heads": 5}  # fmt: skip
reads("youtu", "YoutuForCausalLM", fixed={"heads": 5}, **LATENT, qk_head_dim=16)
reads("minicpm3", "MiniCPM3ForCausalLM", fixed={"heads": 5}, **LATENT)
reads("glm4_moe_lite", "Glm4MoeLiteForCausalLM", fixed={"heads": 5, "layers": 2}, **LATENT, **EXPERTS,
      n_routed_experts=4, first_k_dense_replace=1, n_group=1, topk_group=1, n_shared_experts=1)  # fmt: skip
reads("ministral3", "Ministral3ForCausalLM", sliding_window=11)
reads("jais2", "Jais2ForCausalLM")
reads("hrm_text", "HrmTextForCausalLM")
reads("granite_swa", "GraniteSWAForCausalLM", sliding_window=7)
reads("doge_classifier", "DogeForSequenceClassification", of_sequence)
reads("gemma3n", "Gemma3nForCausalLM", fixed={"layers": 2, "heads": 6, "head": 20, "key_heads": 3},
      layer_types=["sliding_attention", "full_attention"], sliding_window=8, hidden_size_per_layer_input=12,
      vocab_size_per_layer_input=300, laurel_rank=5, num_kv_shared_layers=0, activation_sparsity_pattern=[0.5, 0.0],
      altup_num_inputs=3, intermediate_size=[99, 99])  # fmt: skip
reads("phi_tokens", "PhiForTokenClassification", of_tokens)
reads("falcon_answers", "FalconForQuestionAnswering", span, multi_query=False, head_dim=ABSENT)
reads("bloom_tokens", "BloomForTokenClassification", of_tokens)
reads("gptj_answers", "GPTJForQuestionAnswering", span, rotary_dim=6)
reads("gpt_neo_tokens", "GPTNeoForTokenClassification", of_tokens, fixed=TWO_LAYERS,
      attention_types=[[["global", "local"], 1]], window_size=9)  # fmt: skip
reads("mpt_answers", "MptForQuestionAnswering", span, d_model=60, n_heads=5, n_layers=2, max_seq_len=128)
reads("opt_answers", "OPTForQuestionAnswering", span, ffn_dim=77, word_embed_proj_dim=50)
reads("stablelm_classifier", "StableLmForSequenceClassification", of_sequence, fixed={"head": 24})
reads("diffllama_answers", "DiffLlamaForQuestionAnswering", span, fixed={"heads": 6, "key_heads": 2, "head": 12})
reads("mixtral_tokens", "MixtralForTokenClassification", of_tokens, **EXPERTS, output_router_logits=True)
reads("qwen3_moe_answers", "Qwen3MoeForQuestionAnswering", span, **ONE_BY_ONE)
reads("glm_classifier", "GlmForSequenceClassification", of_sequence)
reads("xlm_answers", "XLMForQuestionAnsweringSimple", span, emb_dim=60, n_layers=2, n_heads=5, n_words=1100)
reads("flaubert_tokens", "FlaubertForTokenClassification", of_tokens, emb_dim=60, n_layers=2, n_heads=5, n_words=1100)
reads("ctrl_classifier", "CTRLForSequenceClassification", of_sequence, dff=70)

# Encoders

reads("luke", "LukeForMaskedLM", entity_vocab_size=50, entity_emb_size=24, use_entity_aware_attention=False)
reads("tapas", "TapasForMaskedLM")
reads("gte", "GteForMaskedLM")
reads("jina", "JinaEmbeddingsV3ForMaskedLM", type_vocab_size=2)
reads("esmc", "EsmcForMaskedLM", nothing, d_model=60, n_heads=5, n_layers=2)
reads("layoutlmv3", "LayoutLMv3ForTokenClassification", of_tokens, visual_embed=False, coordinate_size=12,
      shape_size=12, fixed={"heads": 6, "head": 12, "layers": 2})  # fmt: skip
reads("funnel_tokens", "FunnelForTokenClassification", of_tokens, block_sizes=[2, 1], d_head=10, d_inner=77, d_model=50,
      n_head=5, num_decoder_layers=1, num_hidden_layers=ABSENT)  # fmt: skip
reads("longformer_tokens", "LongformerForTokenClassification", of_tokens, fixed={"length": 30}, attention_window=6)
reads("canine_tokens", "CanineForTokenClassification", of_tokens, fixed={"length": 40, "head": 12}, num_hash_buckets=64,
      num_hash_functions=4, local_transformer_stride=8, fixed_width=1)  # fmt: skip
reads("megatron_next", "MegatronBertForNextSentencePrediction", sentence)
reads("mobilebert_tokens", "MobileBertForTokenClassification", of_tokens, embedding_size=28, intra_bottleneck_size=30,
      num_attention_heads=5, true_hidden_size=30)  # fmt: skip
reads(
    "convbert_tokens", "ConvBertForTokenClassification", of_tokens, fixed={"heads": 6}, head_ratio=2, conv_kernel_size=5
)
reads("deberta_answers", "DebertaForQuestionAnswering", span, relative_attention=True, pos_att_type=["c2p"])
reads("ibert_tokens", "IBertForTokenClassification", of_tokens, quant_mode=False)
reads("nystromformer_tokens", "NystromformerForTokenClassification", of_tokens, num_landmarks=6,
      segment_means_seq_len=36, fixed={"length": 36})  # fmt: skip
reads("yoso_answers", "YosoForQuestionAnswering", span, use_expectation=True)
reads("squeezebert_answers", "SqueezeBertForQuestionAnswering", span, fixed={"heads": 6, "head": 12, "inner": 132},
      q_groups=2, embedding_size=72)  # fmt: skip
reads("esm_tokens", "EsmForTokenClassification", of_tokens, mask_token_id=3, position_embedding_type="absolute")
reads("rembert_answers", "RemBertForQuestionAnswering", span, input_embedding_size=33)
chooses("roformer_choice", "RoFormerForMultipleChoice", embedding_size=31)
chooses("xlnet_choice", "XLNetForMultipleChoice", d_inner=77, d_head=10, n_head=5, d_model=50,
        max_position_embeddings=ABSENT, hidden_size=ABSENT, num_attention_heads=ABSENT)  # fmt: skip
chooses("albert_choice", "AlbertForMultipleChoice", embedding_size=27, num_hidden_groups=1)
chooses("big_bird_choice", "BigBirdForMultipleChoice", attention_type="original_full")
chooses("camembert_choice", "CamembertForMultipleChoice")

# Encoders with a decoder

reads("bart_answers", "BartForQuestionAnswering", span, "pair")
reads(
    "mbart_classifier",
    "MBartForSequenceClassification",
    of_sequence,
    "pair",
    problem_type="single_label_classification",
)
reads("plbart_causal", "PLBartForCausalLM", form="pair", fixed=TWO_LAYERS)
reads("pegasus_causal", "PegasusForCausalLM", form="pair", fixed=TWO_LAYERS)
reads("blenderbot", "BlenderbotForConditionalGeneration", form="pair")
reads("led_answers", "LEDForQuestionAnswering", span, "pair", fixed={"length": 30}, attention_window=6,
      max_encoder_position_embeddings=90, max_decoder_position_embeddings=90)  # fmt: skip
reads("mt5_answers", "MT5ForQuestionAnswering", span, "pair", d_kv=10, d_ff=70, num_layers=2, num_heads=5,
      feed_forward_proj="gated-gelu")  # fmt: skip
reads("umt5_classifier", "UMT5ForSequenceClassification", nothing, "pair", d_kv=12, d_ff=66, num_layers=2, num_heads=3)
reads("prophetnet", "ProphetNetForConditionalGeneration", form="pair", hidden_size=60, num_encoder_layers=2,
      num_decoder_layers=1, num_encoder_attention_heads=5, num_decoder_attention_heads=3, ngram=3, num_buckets=6,
      relative_max_distance=20, d_model=ABSENT, encoder_layers=ABSENT, decoder_layers=ABSENT,
      encoder_attention_heads=ABSENT, decoder_attention_heads=ABSENT)  # fmt: skip
reads("musicgen_causal", "MusicgenForCausalLM", nothing, num_codebooks=1, ffn_dim=77)

# Images

sees("mlcd", "MLCDVisionModel", labels=False)
sees("aimv2", "Aimv2VisionModel", labels=False)
sees("pixio", "PixioModel", labels=False)
sees("vitdet", "VitDetModel", labels=False, pretrain_image_size=40, window_size=3, window_block_indices=[0],
     use_relative_position_embeddings=True)  # fmt: skip
sees("swin2sr", "Swin2SRForImageSuperResolution", height=24, width=40, labels=False, embed_dim=18, depths=[2, 2],
     num_heads=[2, 3], window_size=4, patch_size=1, upscale=2, hidden_size=ABSENT, num_hidden_layers=ABSENT,
     num_attention_heads=ABSENT)  # fmt: skip
sees("hgnet_v2", "HGNetV2ForImageClassification", height=70, stem_channels=[3, 8, 10], hidden_sizes=[16, 24, 32, 48],
     stage_in_channels=[10, 16, 24, 32], stage_mid_channels=[8, 8, 12, 16], stage_out_channels=[16, 24, 32, 48],
     stage_num_blocks=[1, 1, 2, 1], stage_numb_of_layers=[2, 2, 2, 2], embedding_size=10)  # fmt: skip
sees("dinov3_convnext", "DINOv3ConvNextModel", height=65, labels=False, hidden_sizes=[12, 20, 28, 36],
     depths=[1, 1, 2, 1])  # fmt: skip
sees("deit_teacher", "DeiTForImageClassificationWithTeacher", labels=False)
sees("levit_teacher", "LevitForImageClassificationWithTeacher", height=80, labels=False, hidden_sizes=[30, 42, 54],
     depths=[1, 2, 1], num_attention_heads=[2, 3, 4], key_dim=[6, 6, 6], patch_size=16)  # fmt: skip
sees("swin_masked", "SwinModel", height=48, width=32, labels=False, embed_dim=18, depths=[1, 2], num_heads=[3, 6],
     window_size=3, patch_size=4, hidden_size=ABSENT, num_hidden_layers=ABSENT, num_attention_heads=ABSENT)  # fmt: skip
sees("convnext_wide", "ConvNextForImageClassification", height=37, width=61, hidden_sizes=[20, 28], depths=[2, 1],
     num_stages=2)  # fmt: skip
sees("resnet_basic", "ResNetForImageClassification", height=51, width=33, embedding_size=10, hidden_sizes=[12, 20],
     depths=[2, 1], layer_type="basic")  # fmt: skip
sees("dinov2_odd", "Dinov2ForImageClassification", height=42, patch_size=7, use_swiglu_ffn=True)
sees("superpoint", "SuperPointForKeypointDetection", height=48, width=64, labels=False,
     encoder_hidden_sizes=[8, 8, 12, 12], decoder_hidden_size=16, descriptor_decoder_dim=16)  # fmt: skip

# Sound

hears("wav2vec2_xvector", "Wav2Vec2ForXVector", tdnn_dim=(20, 20), tdnn_kernel=(3, 1), tdnn_dilation=(1, 2),
      xvector_output_dim=14, classifier_proj_size=18)  # fmt: skip
hears("wavlm_ctc", "WavLMForCTC", letters)
hears("sew_ctc", "SEWForCTC", letters, squeeze_factor=2)
hears("conformer_ctc", "Wav2Vec2ConformerForCTC", letters, position_embeddings_type="rotary")
hears("unispeech_frames", "UniSpeechSatForAudioFrameClassification", nothing)
hears("data2vec_ctc", "Data2VecAudioForCTC", letters, conv_pos_kernel_size=5)
