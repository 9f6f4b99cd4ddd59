"""A script for ``accelerate launch``, which test_torchrun.py starts unchanged, also as a cell."""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
rows = torch.randn(64, 8)
targets = rows @ torch.randn(8, 1)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(rows, targets), batch_size=8)

accelerator = Accelerator()
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for _ in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        accelerator.backward(torch.nn.functional.mse_loss(model(x), y))
        optimizer.step()
accelerator.print(f"{accelerator.num_processes} processes, {len(loader)} batches")
print("weights", accelerator.unwrap_model(model).weight.detach().flatten().tolist())
accelerator.end_training()
