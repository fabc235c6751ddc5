"""A small model trained by DeepSpeed on CPUs, with gradients and the optimizer's state divided (ZeRO, stage 2)."""

import deepspeed
import torch
import torch.distributed as dist

CONFIG = {
    "train_micro_batch_size_per_gpu": 8,
    "zero_optimization": {"stage": 2},
    "zero_allow_untested_optimizer": True,
    "zero_force_ds_cpu_optimizer": False,
}


def main():
    deepspeed.init_distributed(dist_backend="gloo")
    rank = dist.get_rank()
    assert dist.get_world_size() == 2
    torch.manual_seed(1)
    inputs = torch.randn(2, 8, 16)
    targets = inputs[:, :, :2].sum(2, keepdim=True).sin()
    network = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    engine, *_ = deepspeed.initialize(model=network, optimizer=optimizer, config=CONFIG)
    for _ in range(6):
        loss = torch.nn.functional.mse_loss(engine(inputs[rank]), targets[rank])
        engine.backward(loss)
        engine.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        if rank == 0:
            print(f"loss {total.item() / 2:.5f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
