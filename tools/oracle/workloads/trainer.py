"""Training a small BERT with `transformers.Trainer`, and the ways of saving memory that it offers."""

import tempfile
from functools import partial

import torch
from torch.utils.data import Dataset


class Sentences(Dataset):
    """`count` sentences of random tokens on the CPU, each with the label 0."""

    def __init__(self, count, length):
        self.tokens = torch.randint(100, 1000, (count, length))

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "labels": torch.tensor(0)}


def train(stage, batch=4, steps=3, length=128, accumulate=1, **settings):
    """Steps of Trainer with these TrainingArguments; each step is a stage."""
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

    class Stages(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            stage(f"step {state.global_step}")

    config = BertConfig(
        vocab_size=1000,
        hidden_size=256,
        num_hidden_layers=3,
        num_attention_heads=8,
        intermediate_size=1024,
        attn_implementation="eager",
    )
    model = BertForSequenceClassification(config).to("cuda")
    stage("model")
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            num_train_epochs=1,
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=accumulate,
            save_strategy="no",
            report_to="none",
            log_level="error",
            disable_tqdm=True,
            **settings,
        )
        sentences = Sentences(batch * accumulate * steps, length)
        trainer = Trainer(model=model, args=arguments, train_dataset=sentences, callbacks=[Stages()])
        trainer.train()
    stage("end")


WORKLOADS = {
    "trainer": train,
    "trainer_accumulate": partial(train, batch=1, accumulate=4),
    "trainer_checkpointing": partial(train, gradient_checkpointing=True),
    "trainer_fp16": partial(train, fp16=True),
    "trainer_fp16_for_loop": partial(train, fp16=True, optim="adamw_torch"),
    "trainer_bf16": partial(train, bf16=True),
    "trainer_adafactor": partial(train, optim="adafactor"),
    "trainer_all": partial(train, batch=1, accumulate=4, gradient_checkpointing=True, fp16=True, optim="adafactor"),
}
