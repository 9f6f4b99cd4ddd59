"""A script of Lightning for torchrun, which test_torchrun.py starts unchanged, also as a cell."""

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset


class Net(lightning.LightningModule):
    """A linear model."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
        x, y = batch
        return torch.nn.functional.mse_loss(self.layer(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


torch.manual_seed(0)
rows = torch.randn(64, 8)
targets = rows @ torch.randn(8, 1)
net = Net()
loader = DataLoader(TensorDataset(rows, targets), batch_size=8)
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
trainer = lightning.Trainer(accelerator="cpu", devices=2, max_epochs=3, **quiet)
trainer.fit(net, loader)
if trainer.is_global_zero:
    print(f"{trainer.world_size} processes, {trainer.num_training_batches} batches")
print("weights", net.layer.weight.detach().flatten().tolist())
torch.distributed.destroy_process_group()
