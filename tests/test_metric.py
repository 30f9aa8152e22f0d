"""Metrics named for their averaging, against scikit-learn."""

import warnings

import numpy as np
import pytest
import torch
from sklearn import metrics

from cvexp.metric import Confusion, by_class, recall


@pytest.mark.parametrize("present", [4, 3])
def test_against_scikit_learn(present: int) -> None:
    """Imbalanced, in batches of any size; with a class that has no image too."""
    rng = np.random.default_rng(0)
    labels = np.minimum(rng.geometric(0.5, 300) - 1, present - 1)
    logits = torch.from_numpy(rng.normal(size=(300, 4)) + 2 * np.eye(4)[labels])
    counts = Confusion()
    for part in np.array_split(np.arange(300), [7, 100, 299]):
        counts.add(logits[part], torch.from_numpy(labels[part]))
    answers = logits.argmax(1).numpy()
    found = by_class(counts.read())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an answer that is no class of the truth
        balanced = metrics.balanced_accuracy_score(labels, answers)
    assert found["balanced_accuracy"] == pytest.approx(balanced, abs=1e-12)
    f1 = metrics.f1_score(labels, answers, average="macro")
    assert found["macro_f1"] == pytest.approx(f1, abs=1e-12)
    each = recall(counts.read())
    truth = metrics.recall_score(labels, answers, average=None, labels=range(present))
    assert each[:present] == pytest.approx(list(truth), abs=1e-12)
    assert each[present:] == [None] * (4 - present)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_counts_are_exact_under_mixed_precision(dtype: torch.dtype) -> None:
    """Evaluation runs under autocast, and bfloat16 has no whole numbers above 256 but the even."""
    counts = Confusion()
    labels = torch.tensor([0] * 2049 + [1] * 301)
    with torch.autocast("cpu", dtype):
        counts.add(torch.eye(2)[labels], labels)
    assert counts.read().diag().tolist() == [2049, 301]
