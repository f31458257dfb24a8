"""An own PyTorch model, trained on a device of the farm, and back in PyTorch: `python -m examples.own_model`."""

import torch

import pockfarm

x = torch.rand(256, 1, 8, 8)
y = (x[:, :, :4].mean((1, 2, 3)) > x[:, :, 4:].mean((1, 2, 3))).long()
net = torch.nn.Sequential(torch.nn.Conv2d(1, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(288, 2))
with pockfarm.Client() as client:
    job = client.submit_finetune_job(net, (x, y), example_inputs=x[:16], epochs=5, learning_rate=0.05)
    print(job.url)
    trained = job.result()
net.load_state_dict(trained)
print(f"right {(net(x).argmax(1) == y).float().mean():.0%}, loss {trained.losses[0]:.3f}, {trained.losses[-1]:.3f}")
