"""A small model trained by Lightning, with DDP on two processes that it starts itself."""

import lightning
import torch
import torch.distributed as dist


class Network(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))

    def training_step(self, batch, _):
        inputs, targets = batch
        loss = torch.nn.functional.mse_loss(self.layers(inputs), targets)
        total = self.all_gather(loss.detach()).mean()
        if self.global_rank == 0:
            print(f"loss {total.item():.5f}", flush=True)
        return loss

    def on_train_end(self):
        assert dist.get_world_size() == 2
        flat = torch.cat([each.detach().flatten() for each in self.parameters()])
        both = self.all_gather(flat)
        assert torch.equal(both[0], both[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main():
    lightning.seed_everything(1)
    inputs = torch.randn(64, 16)
    data = torch.utils.data.TensorDataset(inputs, inputs[:, :2].sum(1, keepdim=True).sin())
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Network(), torch.utils.data.DataLoader(data, batch_size=8))


if __name__ == "__main__":
    main()
