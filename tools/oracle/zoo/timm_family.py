"""timm's models at real size."""

from __future__ import annotations

import inspect

import torch

from tools.oracle.zoo import training, vision

LIBRARIES = ("timm",)
LOOPS = (training, vision)
NAMES = """
resnet34 resnet50d seresnet50 ecaresnet50t resnest14d res2net50_26w_4s skresnet18 resnetv2_50 nfnet_l0 gernet_s
regnety_008 densenet121 dpn68 dla34 hrnet_w18_small vovnet39a cspresnet50 darknet53 efficientnet_b0
tf_efficientnetv2_s mobilenetv3_large_100 mobilenetv4_conv_small ghostnet_100 mnasnet_100 fbnetc_100 hardcorenas_a
lcnet_100 tinynet_a repvgg_a2 mobileone_s1 xception41 inception_v4 vgg11 convnext_atto convnextv2_atto edgenext_small
fastvit_t8 repvit_m1 rdnet_tiny vit_tiny_patch16_224 vit_small_patch32_224 vit_relpos_small_patch16_224
vit_srelpos_small_patch16_224 deit3_small_patch16_224 beitv2_base_patch16_224 eva02_tiny_patch14_224 cait_xxs24_224
xcit_nano_12_p16_224 crossvit_tiny_240 coat_lite_tiny convit_tiny levit_128s pit_ti_224 poolformer_s12 caformer_s18
pvt_v2_b0 swin_tiny_patch4_window7_224 swinv2_tiny_window8_256 twins_svt_small tnt_s_patch16_224 visformer_tiny
mixer_s32_224 gmlp_s16_224 resmlp_12_224 maxvit_rmlp_pico_rw_256 coatnet_pico_rw_224 efficientformer_l1
efficientformerv2_s0 mobilevit_xs mobilevitv2_050 focalnet_tiny_srf davit_tiny hiera_tiny_224 sequencer2d_s nest_tiny
volo_d1_224 tiny_vit_5m_224 inception_next_tiny starnet_s1 efficientvit_b0 efficientvit_m0 sehalonet33ts
eca_botnext26ts_256 haloregnetz_b lambda_resnet26t bat_resnext26ts gcresnet33ts
"""
MODELS = dict.fromkeys(NAMES.split(), 8)  # and the batch
BATCH = {"beitv2_base_patch16_224": 4, "tnt_s_patch16_224": 4, "swinv2_tiny_window8_256": 4, "inception_v4": 4}
# Drawn after the rules were written: (batch, height, width), odd ones where the model takes any.
ODD = {
    "resnet26d": (3, 97, 131), "mixnet_s": (3, 113, 75), "rexnet_100": (2, 99, 99),
    "ese_vovnet19b_dw": (3, 87, 121), "regnetx_004": (5, 65, 97), "ghostnetv2_100": (2, 111, 95),
    "hgnetv2_b0": (3, 101, 67), "repghostnet_050": (3, 99, 77), "nf_regnet_b0": (2, 93, 117),
    "cs3darknet_focus_s": (3, 94, 122), "halonet26t": (2, 256, 256), "mambaout_femto": (2, 91, 109),
    "fasternet_t0": (3, 100, 132), "swiftformer_xs": (2, 97, 130), "shvit_s1": (2, 113, 129),
    "selecsls42b": (1, 131, 103), "legacy_xception": (2, 101, 99), "mobilenet_edgetpu_v2_xs": (3, 77, 119),
    "semnasnet_075": (3, 89, 71), "spnasnet_100": (1, 123, 85), "test_byobnet": (7, 61, 83),
    "test_convnext": (5, 65, 99), "test_convnext2": (3, 77, 51), "test_efficientnet": (7, 81, 63),
    "test_efficientnet_gn": (5, 71, 65), "test_efficientnet_ln": (3, 75, 91), "test_efficientnet_evos": (3, 67, 85),
    "test_mambaout": (5, 73, 59), "test_nfnet": (3, 95, 61), "test_resnet": (7, 55, 77),
    "test_vit": (5, 160, 160), "test_vit2": (3, 160, 160), "test_vit3": (7, 160, 160),
}  # fmt: skip
MODELS |= {name: batch for name, (batch, *_) in ODD.items()}


def exists(model: str, dtype: str, padded: bool, cudnn: bool) -> bool:
    """Whether there is such a run."""
    return not padded


def definition(model: str) -> str:
    """The source of a model."""
    return f"{model} {BATCH.get(model, MODELS[model])} {ODD.get(model)} {inspect.getsource(run)}"


def run(stage, entry) -> None:
    """Two steps and an evaluation."""
    vision.without_operators()
    import timm

    torch.manual_seed(0)
    model = timm.create_model(entry.model)
    channels, *size = model.pretrained_cfg["input_size"]
    size = ODD[entry.model][1:] if entry.model in ODD else size
    images = torch.randn(BATCH.get(entry.model, MODELS[entry.model]), channels, *size)
    training.two_steps(stage, vision.ByName(model), {"images": images}, entry.dtype, cudnn=entry.cudnn)
