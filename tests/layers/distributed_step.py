"""One process of two that train a spectrally normalised network together; run by test_spectral.py.

python distributed_step.py <folder> <rank>
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddu.layers import SpectralConv2d, SpectralLinear, spectral_sigma

folder, rank = Path(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
torch.manual_seed(rank)  # other weights and other data in each process
network = nn.Sequential(
    SpectralConv2d(2, 3, 3, padding=1, coeff=0.5), nn.Flatten(), SpectralLinear(3 * 6 * 6, 2, coeff=0.5)
)
parallel = DistributedDataParallel(network)
optimiser = torch.optim.SGD(parallel.parameters(), lr=0.1)
for _ in range(5):
    optimiser.zero_grad()
    parallel(torch.randn(4, 2, 6, 6)).square().sum().backward()
    optimiser.step()
torch.save({**network.state_dict(), "sigma": spectral_sigma(network[0])}, folder / f"{rank}.pt")
dist.destroy_process_group()
