"""Choosing what to label: the samples that the network has seen nothing like.

Labels cost time. A learner begins with two labels per class, and asks for ten more in each round: the samples of the
pool that are least like what it has seen. Then a fresh network is trained on all labels so far.

Here the labels are known and looked up. With a person in their place, `learner.propose(10)` says which samples to look
at, and `learner.teach(indices, labels)` takes the answers; `learner.save` keeps everything in between. The same is done
with samples at random, which is what the choice has to be better than.

    python examples/choosing_what_to_label.py
"""

import numpy as np
from torch import nn

import ddu
from ddu.active import ActiveLearner, by_recipe

digits, test = ddu.data.load("digits"), ddu.data.load("digits", "test")
first = np.concatenate([np.flatnonzero(digits.labels == label)[:2] for label in range(10)])
rest = np.setdiff1d(np.arange(len(digits)), first)
labelled, pool = digits.subset(first), digits.subset(rest)

print("accuracy by the number of labels")
for acquisition in ("epistemic", "random"):
    learner = ActiveLearner(
        model_factory=lambda: nn.Sequential(
            nn.Flatten(), ddu.create_model("resffn2_64", num_classes=10, in_features=64)
        ),
        detector=ddu.DDU,
        pool=pool,
        labelled=labelled,
        oracle=lambda indices: pool.labels[indices],
        acquisition=acquisition,
        test=test,
        trainer=by_recipe("quick", epochs=30),
        per_round=10,
    )
    curve = {record.labels: f"{record.accuracy:.1%}" for record in learner.run(until=60)}
    print(f"{acquisition:>10}", curve)
