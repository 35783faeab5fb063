"""Stream, shard, forget: the density is its moments.

A density is fitted in four ways that all give the same result: at once, batch by batch, from two shards merged, and
with samples added by mistake and forgotten again. Nothing but counts, means and scatter matrices is kept, so the memory
does not grow with the data, and a fit on many machines is one merge away from a fit on one.

    python examples/streaming_density.py
"""

import torch

import ddu

torch.manual_seed(0)
means = 4 * torch.randn(3, 8)
y = torch.arange(3000) % 3
z = means[y] + torch.randn(3000, 8)

at_once = ddu.GaussianDensity().fit(z, y)

streamed = ddu.GaussianDensity()
for batch in torch.randperm(3000).split(64):
    streamed.update(z[batch], y[batch])

left, right = ddu.GaussianDensity().update(z[:1000], y[:1000]), ddu.GaussianDensity().update(z[1000:], y[1000:])
merged = left.merge(right)

mistaken = ddu.GaussianDensity().fit(z, y).update(z[:90] + 50, y[:90])
corrected = mistaken.downdate(z[:90] + 50, y[:90])

points = torch.cat([means, torch.zeros(1, 8)]).double()
print("log-density at the three means, and far from all of them")
for name, density in {"at once": at_once, "streamed": streamed, "merged": merged, "corrected": corrected}.items():
    print(f"{name:>10}", "  ".join(f"{value:10.6f}" for value in density.log_density(points)))
    torch.testing.assert_close(density.log_density(points), at_once.log_density(points), rtol=1e-9, atol=0)
