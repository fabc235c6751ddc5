"""A small model trained by two workers of Ray Train, which makes their group by torch's Gloo."""

import os
import tempfile

import ray
import ray.train
import ray.train.torch


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
    losses = []
    for _ in range(6):
        loss = torch.nn.functional.mse_loss(network(inputs[rank]), targets[rank])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(total.item() / 2)
    ray.train.report({"losses": losses})  # what workers print reaches the program in parts


def main():
    ray.init(num_cpus=4, include_dashboard=False, runtime_env={"env_vars": dict(os.environ)})
    with tempfile.TemporaryDirectory() as folder:
        trainer = ray.train.torch.TorchTrainer(
            train,
            torch_config=ray.train.torch.TorchConfig(backend="gloo"),
            scaling_config=ray.train.ScalingConfig(num_workers=2, use_gpu=False),
            run_config=ray.train.RunConfig(storage_path=folder),
        )
        for loss in trainer.fit().metrics["losses"]:
            print(f"loss {loss:.5f}")
    ray.shutdown()


if __name__ == "__main__":
    main()
