"""A small model of transformers, trained by its Trainer on CPUs."""

import sys
import tempfile

import torch
import torch.distributed as dist
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

COUNT, LENGTH = 64, 12


class Told(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **more):
        if state.is_world_process_zero and "loss" in logs:
            print(f"loss {float(logs['loss']):.5f}", flush=True)


def main():
    torch.manual_seed(1)
    words = torch.randint(0, 50, (COUNT, LENGTH))
    data = [{"input_ids": row, "labels": row[0] % 2} for row in words]
    config = BertConfig(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
    model = BertForSequenceClassification(config)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            num_train_epochs=2,
            per_device_train_batch_size=8,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            seed=1,
        )
        trainer = Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data, callbacks=[Told()])
        trainer.train()
        assert dist.get_world_size() == 2
        evaluated = trainer.evaluate()["eval_loss"]
    if dist.get_rank() == 0:
        print(f"evaluated: loss {evaluated:.5f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
