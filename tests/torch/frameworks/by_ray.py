"""A small model trained by two workers of Ray Train, which makes their group by torch's Gloo."""

import os
import pathlib
import tempfile

import ray
import ray.train
import ray.train.torch

LOSSES = "BY_RAY_LOSSES"  # the file for them


def train():
    import torch  # pylint: disable=import-outside-toplevel
    import torch.distributed as dist  # pylint: disable=import-outside-toplevel

    torch.manual_seed(1)
    rank = dist.get_rank()
    assert dist.get_world_size() == 2
    inputs = torch.randn(2, 8, 16)
    targets = inputs[:, :, :2].sum(2, keepdim=True).sin()
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    network = ray.train.torch.prepare_model(model)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    losses = ""
    for _ in range(6):
        loss = torch.nn.functional.mse_loss(network(inputs[rank]), targets[rank])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses += f"loss {total.item() / 2:.5f}\n"
    if rank == 0:  # what workers print reaches the program in parts
        pathlib.Path(os.environ[LOSSES]).write_text(losses, encoding="utf-8")


def main():
    with tempfile.TemporaryDirectory() as folder:
        losses = pathlib.Path(folder) / "losses"
        environment = {**os.environ, LOSSES: str(losses)}
        ray.init(num_cpus=4, include_dashboard=False, runtime_env={"env_vars": environment})
        trainer = ray.train.torch.TorchTrainer(
            train,
            torch_config=ray.train.torch.TorchConfig(backend="gloo"),
            scaling_config=ray.train.ScalingConfig(num_workers=2, use_gpu=False),
            run_config=ray.train.RunConfig(storage_path=folder),
        )
        trainer.fit()
        print(losses.read_text(encoding="utf-8"))
    ray.shutdown()


if __name__ == "__main__":
    main()
