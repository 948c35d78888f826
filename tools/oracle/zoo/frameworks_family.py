"""Frameworks around PyTorch, and PyTorch's own techniques, on small models."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from tools.oracle.workloads import trainer
from tools.oracle.zoo import training

LIBRARIES = ("transformers", "accelerate")
LOOPS = (training, trainer)
MODELS: dict[str, Callable] = {}
ELSEWHERE = {"peft", "lightning"}  # heavy libraries, of which a model's name tells


def exists(model: str, dtype: str, padded: bool, cudnn: bool) -> bool:
    """Whether there is such a run: each is its own dtype."""
    return dtype == "fp32" and not padded and not cudnn


def definition(model: str) -> str:
    """The source of a model."""
    make = MODELS[model]
    function = make.func if isinstance(make, partial) else make
    return inspect.getsource(function) + repr(getattr(make, "keywords", None))


def run(stage, entry) -> None:
    """The whole of it."""
    torch.manual_seed(0)
    MODELS[entry.model](stage)


def technique(function):
    """Registers a function of `stage` by its name."""
    MODELS[function.__name__] = function
    return function


# Trainer

for _name, _settings in {
    "trainer_fp32": {},
    "trainer_bf16": {"bf16": True},
    "trainer_fp16": {"fp16": True},
    "trainer_accumulate": {"batch": 2, "accumulate": 3},
    "trainer_checkpointing": {
        "gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False},
    },
    "trainer_checkpointing_reentrant": {
        "gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}, "bf16": True,
    },
    "trainer_adafactor": {"optim": "adafactor"},
    "trainer_by_length": {"train_sampling_strategy": "group_by_length"},
    "trainer_fused": {"optim": "adamw_torch_fused", "bf16": True},
    "trainer_sgd": {"optim": "sgd", "max_grad_norm": 0.0},
    "trainer_rmsprop": {"optim": "rmsprop", "fp16": True, "max_grad_norm": 0.5},
    "trainer_smoothing": {"label_smoothing_factor": 0.1, "weight_decay": 0.01, "warmup_steps": 2},
}.items():  # fmt: skip
    MODELS[_name] = partial(trainer.train, **_settings)


@technique
def trainer_moves_the_model(stage):
    """The model is on the host when Trainer gets it."""
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    config = BertConfig(
        vocab_size=1000, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, max_steps=3, per_device_train_batch_size=4, save_strategy="no", report_to="none",
            log_level="error", disable_tqdm=True, dataloader_pin_memory=True, logging_steps=1,
        )  # fmt: skip
        data = trainer.Sentences(24, 32)
        Trainer(model=BertForSequenceClassification(config), args=arguments, train_dataset=data).train()
    stage("end")


# accelerate


def _mlp(width: int = 96) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * width, width), nn.LayerNorm(width)
    )


def _accelerated(stage, precision="no", accumulate=1):
    from accelerate import Accelerator

    accelerator = Accelerator(mixed_precision=precision, gradient_accumulation_steps=accumulate)
    data = torch.utils.data.TensorDataset(torch.randn(24, 96), torch.randn(24, 96))
    model = _mlp()
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer)
    parts = accelerator.prepare(model, optimizer, torch.utils.data.DataLoader(data, 6), schedule)
    model, optimizer, loader, schedule = parts
    stage("model")
    for number, (x, y) in enumerate(loader):
        with accelerator.accumulate(model):
            loss = F.mse_loss(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        stage(f"step {number}")


MODELS["accelerate_fp32"] = _accelerated
MODELS["accelerate_bf16"] = partial(_accelerated, precision="bf16")
MODELS["accelerate_fp16"] = partial(_accelerated, precision="fp16", accumulate=2)


# Adapters


def _adapted(stage, **settings):
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=512, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=144,
        num_key_value_heads=2, max_position_embeddings=128,
    )  # fmt: skip
    wanted = LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", **settings)
    model = get_peft_model(LlamaForCausalLM(config), wanted)
    ids = torch.randint(10, 512, (3, 40))
    training.two_steps(stage, model, {"input_ids": ids, "labels": ids}, "bf16")


MODELS["peft_lora"] = partial(_adapted, lora_dropout=0.1)
MODELS["peft_dora"] = partial(_adapted, use_dora=True)
MODELS["peft_rslora"] = partial(_adapted, use_rslora=True, bias="lora_only")


# Lightning


def _lightning(stage, precision):
    import lightning
    from lightning.pytorch.callbacks import Callback

    class Stages(Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, index):
            stage(f"step {index}")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = _mlp()

        def training_step(self, batch, index):
            x, y = batch
            return F.mse_loss(self.model(x), y)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    data = torch.utils.data.TensorDataset(torch.randn(24, 96), torch.randn(24, 96))
    with tempfile.TemporaryDirectory() as folder:
        lightning.Trainer(
            accelerator="gpu", devices=1, max_epochs=1, precision=precision, logger=False, callbacks=[Stages()],
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
            gradient_clip_val=1.0, default_root_dir=folder,
        ).fit(Module(), torch.utils.data.DataLoader(data, 6))  # fmt: skip
    stage("end")


MODELS["lightning_fp32"] = partial(_lightning, precision="32-true")
MODELS["lightning_bf16"] = partial(_lightning, precision="bf16-mixed")
MODELS["lightning_fp16"] = partial(_lightning, precision="16-mixed")


# PyTorch's own


@technique
def per_sample_gradients(stage):
    """functorch: vmap of grad of a functional call."""
    _per_sample_gradients(stage)


@technique
def per_sample_gradients_in_one_thread(stage):
    """The same without autograd's own thread, which has a workspace of cuBLAS of its own."""
    with torch.autograd.set_multithreading_enabled(False):
        _per_sample_gradients(stage)


def _per_sample_gradients(stage):
    model = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 5)).to("cuda")
    parameters = {name: value.detach() for name, value in model.named_parameters()}
    x, y = torch.randn(16, 20).cuda(), torch.randn(16, 5).cuda()

    def loss(parameters, x, y):
        return F.mse_loss(torch.func.functional_call(model, parameters, (x,)), y)

    gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(parameters, x, y)
    stage("gradients")
    del gradients
    torch.func.jvp(lambda x: model(x).sum(), (x,), (torch.ones_like(x),))
    stage("jvp")
    torch.func.vmap(torch.func.jacrev(lambda x: model(x)))(x)
    stage("jacobian")


@technique
def ensemble(stage):
    """torch.func.stack_module_state and vmap over models."""
    models = [nn.Linear(20, 10).to("cuda") for _ in range(4)]
    parameters, buffers = torch.func.stack_module_state(models)
    x = torch.randn(8, 20).cuda()
    out = torch.func.vmap(lambda p, b: torch.func.functional_call(models[0], (p, b), (x,)))(parameters, buffers)
    stage("forward")
    out.sum().backward()
    stage("backward")


@technique
def moving_average(stage):
    """torch.optim.swa_utils: EMA and SWA, then batch norm's statistics anew."""
    model = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 8)).cuda()
    ema = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.99))
    swa = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.05)
    for step in range(3):
        model(torch.randn(16, 32).cuda()).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        ema.update_parameters(model)
        swa.update_parameters(model)
        schedule.step()
        stage(f"step {step}")
    torch.optim.swa_utils.update_bn([torch.randn(16, 32) for _ in range(2)], ema, device="cuda")
    stage("statistics")


@technique
def scaled_gradients(stage):
    """GradScaler with unscale_ and clipping."""
    model = _mlp().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda", growth_interval=2)
    for step in range(4):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(torch.randn(6, 96).cuda()).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        del loss
        scaler.get_scale()
        stage(f"step {step}")


def _checkpointed(stage, reentrant):
    from torch.utils.checkpoint import checkpoint, checkpoint_sequential

    blocks = nn.ModuleList([_mlp() for _ in range(4)]).cuda()
    x = torch.randn(16, 96, device="cuda", requires_grad=True)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        y = x
        for block in blocks:
            y = checkpoint(block, y, use_reentrant=reentrant)
    stage("forward")
    y.float().sum().backward()
    stage("backward")
    checkpoint_sequential(nn.Sequential(*blocks), 2, x, use_reentrant=reentrant).sum().backward()
    stage("sequential")


MODELS["checkpoint"] = partial(_checkpointed, reentrant=False)
MODELS["checkpoint_reentrant"] = partial(_checkpointed, reentrant=True)


@technique
def lazy_modules(stage):
    """Modules that learn their sizes from the first input."""
    model = nn.Sequential(nn.LazyLinear(32), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(5)).to("cuda")
    stage("model")
    model(torch.randn(8, 20).cuda()).sum().backward()
    stage("backward")
    torch.optim.AdamW(model.parameters()).step()
    stage("step")


@technique
def sparse_embedding(stage):
    """An embedding with sparse gradients and SparseAdam."""
    table = nn.Embedding(1000, 32, sparse=True).to("cuda")
    optimizer = torch.optim.SparseAdam(list(table.parameters()))
    for step in range(2):
        table(torch.randint(1000, (8, 12)).cuda()).sum().backward()
        stage(f"backward {step}")
        optimizer.step()
        optimizer.zero_grad()
        stage(f"step {step}")


@technique
def lbfgs(stage):
    """LBFGS, which looks at its gradients' values."""
    model = nn.Linear(20, 5).to("cuda")
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    x, y = torch.randn(16, 20).cuda(), torch.randn(16, 5).cuda()

    def closure():
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        return loss

    optimizer.step(closure)
    stage("step")


@technique
def ctc(stage):
    """CTC loss of known lengths."""
    scores = torch.randn(50, 4, 20, device="cuda", requires_grad=True)
    lengths = torch.tensor([50, 40, 45, 30]), torch.tensor([10, 8, 9, 5])
    F.ctc_loss(scores.log_softmax(-1), torch.randint(1, 20, (4, 10)).cuda(), *lengths).backward()
    stage("backward")


@technique
def jagged(stage):
    """A jagged nested tensor through a linear layer."""
    parts = [torch.randn(n, 16, device="cuda") for n in (3, 7, 5)]
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged)
    model = nn.Linear(16, 8).cuda()
    model(nested).values().sum().backward()
    stage("backward")


@technique
def compiled(stage):
    """torch.compile, which runs eagerly on the simulated GPU, with a backend that does so too."""
    model = torch.compile(_mlp().cuda(), backend="eager")
    model(torch.randn(8, 96).cuda()).sum().backward()
    stage("backward")


@technique
def transformer_masks(stage):
    """nn.TransformerEncoder and nn.Transformer with every kind of mask, in training and in evaluation."""
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2).cuda()
    whole = nn.Transformer(32, 4, 1, 1, 64, batch_first=True).cuda()
    x = torch.randn(3, 10, 32).cuda()
    causal = nn.Transformer.generate_square_subsequent_mask(10, device="cuda")
    padding = torch.arange(10) >= torch.tensor([[10], [7], [4]])
    for number, mask in enumerate((causal, causal < 0, causal.cpu().cuda(), torch.zeros(10, 10).cuda())):
        encoder(x, mask=mask).sum().backward()
        encoder(x, mask=mask, is_causal=number == 0).sum().backward()
        whole(x, x, src_mask=mask, tgt_mask=mask).sum().backward()
        stage(f"mask {number}")
    encoder(x, src_key_padding_mask=padding.cuda()).sum().backward()
    encoder(x, mask=causal < 0, src_key_padding_mask=padding.cuda()).sum().backward()
    whole(x, x, tgt_mask=causal, tgt_is_causal=True, src_key_padding_mask=padding.cuda()).sum().backward()
    stage("padding")
    with torch.no_grad():
        encoder.eval()(x, mask=causal)
        whole.eval()(x, x, tgt_mask=causal)
    stage("evaluation")
