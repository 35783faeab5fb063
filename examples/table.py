"""A table through scikit-learn: rows that belong to no class.

Where the inputs are columns of numbers there need be no network at all: `GaussianDensityClassifier` is the density as a
scikit-learn estimator. It classifies, and `score_samples` says how much of the training data lies near a row.

The table is scikit-learn's wine data, 13 measurements of wines from three growers. The classifier only ever sees two of
them. Rows of the third are put into one of the two classes with confidence all the same; the density tells that they
belong to neither. What is too low is decided by rows that were not fitted to: the p-value of a row is the share of
held-out rows with a density at most as high.

    python examples/table.py
"""

from typing import Any

import numpy as np
from sklearn.datasets import load_wine
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ddu.sklearn import GaussianDensityClassifier

wine: Any = load_wine()
seen = wine.target < 2
names = wine.target_names[wine.target]
stranger = wine.data[~seen]
fitted, held_out, y, y_held_out = train_test_split(
    wine.data[seen], names[seen], test_size=0.5, random_state=0, stratify=wine.target[seen]
)

# A pipeline and a search, as with any other estimator; labels are words
search = GridSearchCV(
    make_pipeline(StandardScaler(), GaussianDensityClassifier()),
    {"gaussiandensityclassifier__covariance": ["full", "shared", "diagonal"]},
    cv=5,
)
search.fit(fitted, y)
print(f"chosen: {search.best_params_}, accuracy on held-out rows {search.score(held_out, y_held_out):.1%}")

calibration, test = held_out[::2], held_out[1::2]
known = np.sort(search.score_samples(calibration))


def p_values(rows: np.ndarray) -> np.ndarray:
    """(k + 1) / (n + 1) for k of n held-out rows with a density at most as high."""
    return (np.searchsorted(known, search.score_samples(rows), side="right") + 1) / (len(known) + 1)


confidence = search.predict_proba(stranger).max(1)
print(f"rows of the third grower: median confidence {np.median(confidence):.1%}")
unknown = -search.score_samples(np.concatenate([test, stranger]))
is_stranger = np.arange(len(unknown)) >= len(test)
print(f"AUROC of the density, third grower against test rows: {roc_auc_score(is_stranger, unknown):.3f}")
rate = 0.05
for title, rows in {"test rows": test, "third grower": stranger}.items():
    print(f"{title:>14}: {(p_values(rows) <= rate).mean():.1%} flagged at a false-alarm rate of {rate:.0%}")
