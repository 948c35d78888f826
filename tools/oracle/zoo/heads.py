"""Heads of the transformers library's architectures for other tasks, and architectures in odd sizes.

Small configurations and inputs that fit them, as in `architectures`, whose table they join.
"""

from __future__ import annotations

import torch

from tools.oracle.zoo.architectures import (
    ABSENT,
    BATCH,
    IMAGE,
    PAIR,
    SOUND,
    TEXT,
    _class,
    _config_of,
    _model,
    image,
    other,
    sound,
    text,
    text_inputs,
    tokens,
)
from tools.oracle.zoo.architectures import ARCHITECTURES as TABLE

ODD = {"hidden_size": 72, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 12, "intermediate_size": 200}
LENGTH = 37


def labelled(name: str, model: str, labels, sizes=TEXT | ODD, **settings) -> None:
    """A model that reads tokens, and what `labels()` gives beside them."""

    def make(padded):
        inputs = text_inputs(padded, LENGTH, labels=False)
        return _model(model, _config_of(model), sizes | settings), inputs | labels()

    TABLE[name] = make


def each_token() -> dict:
    """A label of each token, a few of which do not count."""
    labels = torch.randint(5, (BATCH, LENGTH))
    labels[:, -4:] = -100
    return {"labels": labels}


def span() -> dict:
    """Where an answer begins and ends."""
    return {"start_positions": torch.tensor([3, 5, 0]), "end_positions": torch.tensor([7, 30, 2])}


def one_of_five() -> dict:
    """A label of each sequence."""
    return {"labels": torch.randint(5, (BATCH,))}


FIVE = {"num_labels": 5}
labelled("bert_tokens", "BertForTokenClassification", each_token, **FIVE)
labelled("deberta_v2_tokens", "DebertaV2ForTokenClassification", each_token, **FIVE, relative_attention=True)
labelled("llama_tokens", "LlamaForTokenClassification", each_token, **FIVE)
labelled("t5_tokens", "T5ForTokenClassification", each_token, PAIR | {"d_kv": 16, "d_ff": 90, "num_layers": 2}, **FIVE)
labelled("roberta_answers", "RobertaForQuestionAnswering", span, pad_token_id=1)
labelled("qwen2_answers", "Qwen2ForQuestionAnswering", span)
labelled(
    "xlnet_answers", "XLNetForQuestionAnsweringSimple", span, d_inner=144, d_head=12, max_position_embeddings=ABSENT
)
labelled("gemma2_classifier", "Gemma2ForSequenceClassification", one_of_five, **FIVE, sliding_window=16)
labelled("modernbert_classifier", "ModernBertForSequenceClassification", one_of_five, **FIVE, local_attention=16)
labelled("albert_regression", "AlbertForSequenceClassification", lambda: {"labels": torch.rand(BATCH)}, num_labels=1)
labelled(
    "electra_pretraining", "ElectraForPreTraining", lambda: {"labels": torch.randint(2, (BATCH, LENGTH))},
    embedding_size=40,
)  # fmt: skip
labelled(
    "bert_pretraining", "BertForPreTraining",
    lambda: {"labels": tokens(LENGTH), "next_sentence_label": torch.randint(2, (BATCH,))}, tie_word_embeddings=False,
)  # fmt: skip
text("roc_bert", "RoCBertForMaskedLM", length=LENGTH, **ODD, pronunciation_vocab_size=50, shape_vocab_size=60)
text("opt_odd", "OPTForCausalLM", length=LENGTH, hidden_size=72, num_attention_heads=6, ffn_dim=100,
     word_embed_proj_dim=40, do_layer_norm_before=False)  # fmt: skip
text("gpt_neox_parallel", "GPTNeoXForCausalLM", length=1, **ODD, use_parallel_residual=False, rotary_pct=0.5)
text("lfm2_moe", "Lfm2MoeForCausalLM", length=LENGTH, layer_types=["conv", "full_attention"], conv_L_cache=3,
     num_experts=4, num_experts_per_tok=2, moe_intermediate_size=40, num_dense_layers=1)  # fmt: skip
image("poolformer_wide", "PoolFormerForImageClassification", size=47, hidden_sizes=[8, 12, 20, 28], depths=[1, 2, 1, 1])
image("regnet", "RegNetForImageClassification", size=45, embedding_size=12, hidden_sizes=[16, 24, 32, 40],
      depths=[1, 1, 2, 1], groups_width=8, num_hidden_layers=ABSENT)  # fmt: skip
image("bit", "BitForImageClassification", size=39, embedding_size=16, hidden_sizes=[16, 32, 32, 64], depths=[1] * 4,
      num_groups=4, num_hidden_layers=ABSENT)  # fmt: skip
image("glpn", "GLPNForDepthEstimation", size=64, labels=False, hidden_sizes=[8, 16, 24, 32], depths=[1] * 4,
      num_attention_heads=[1, 1, 2, 4], decoder_hidden_size=16)  # fmt: skip
sound("wav2vec2_frames", "Wav2Vec2ForAudioFrameClassification", num_labels=3)
sound("wavlm_xvector", "WavLMForXVector", labels=True, num_labels=10, tdnn_dim=(24, 24), tdnn_kernel=(3, 1),
      tdnn_dilation=(1, 2), xvector_output_dim=16, classifier_proj_size=20)  # fmt: skip


@other("bert_choice", padded=True)
def _bert_choice(padded):
    inputs = {"input_ids": torch.randint(10, 500, (BATCH, 4, 21)), "labels": torch.randint(4, (BATCH,))}
    if padded:
        inputs["attention_mask"] = (torch.arange(21) < torch.tensor([[[21]], [[9]], [[12]]])).long().repeat(1, 4, 1)
    return _model("BertForMultipleChoice", "BertConfig", TEXT | ODD), inputs


@other("vit_masked")
def _vit_masked(padded):
    config = _class("ViTConfig")(**IMAGE, encoder_stride=8)
    inputs = {"pixel_values": torch.randn(BATCH, 3, 32, 32), "bool_masked_pos": torch.rand(BATCH, 16) > 0.5}
    return _class("ViTForMaskedImageModeling")(config), inputs


@other("dpt_segmentation")
def _dpt_segmentation(padded):
    config = _class("DPTConfig")(
        **(IMAGE | {"num_hidden_layers": 4, "num_labels": 6}), backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[8, 16, 16, 24], fusion_hidden_size=16, reassemble_factors=[4, 2, 1, 0.5], is_hybrid=False,
    )  # fmt: skip
    inputs = {"pixel_values": torch.randn(BATCH, 3, 32, 32), "labels": torch.randint(6, (BATCH, 32, 32))}
    return _class("DPTForSemanticSegmentation")(config), inputs


@other("whisper_classifier")
def _whisper_classifier(padded):
    config = _class("WhisperConfig")(**PAIR, num_mel_bins=16, max_source_positions=50, num_labels=7)
    inputs = {"input_features": torch.randn(BATCH, 16, 100), "labels": torch.randint(7, (BATCH,))}
    return _class("WhisperForAudioClassification")(config), inputs


@other("hubert_ctc", padded=True)
def _hubert_ctc(padded):
    labels = torch.randint(1, 32, (BATCH, 9))
    labels[1, 5:] = -100
    inputs = {"input_values": torch.randn(BATCH, 2100), "labels": labels}
    if padded:
        inputs["attention_mask"] = (torch.arange(2100) < torch.tensor([[2100], [1500], [1800]])).long()
    return _class("HubertForCTC")(_class("HubertConfig")(**SOUND, ctc_zero_infinity=True)), inputs


@other("patchtsmixer")
def _patchtsmixer(padded):
    config = _class("PatchTSMixerConfig")(
        context_length=36, patch_length=6, patch_stride=6, num_input_channels=3, d_model=24, num_layers=2,
        prediction_length=7,
    )  # fmt: skip
    inputs = {"past_values": torch.randn(BATCH, 36, 3), "future_values": torch.randn(BATCH, 7, 3)}
    return _class("PatchTSMixerForPrediction")(config), inputs
