"""What data.json says of a source beyond its counts, and what is said of it on the screen."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cvexp.console import warn
from cvexp.data.inspect import Finding
from cvexp.data.labels import SPLITS, show


def shapes(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the sizes and modes of the files."""
    sides = np.array([(f.width, f.height) for f in findings])
    return {
        "width": {"min": int(sides[:, 0].min()), "max": int(sides[:, 0].max())},
        "height": {"min": int(sides[:, 1].min()), "max": int(sides[:, 1].max())},
        "modes": dict(Counter(finding.mode for finding in findings)),
    }


def duplicates(
    parts: dict[str, NDArray[np.int64]], names: Sequence[str], hashes: Sequence[str]
) -> list[list[str]]:
    """Return groups of files with one content in more than one part, as part:name."""
    places: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name, part in parts.items():
        for i in part:
            places[hashes[i]][name].append(f"{name}:{names[i]}")
    return [
        [place for group in found.values() for place in group]
        for found in places.values()
        if len(found) > 1
    ]


def imbalance(counts: NDArray[np.int64]) -> float | None:
    """Return how many times larger the largest class is than the smallest."""
    present = counts[counts > 0]
    return float(present.max() / present.min()) if len(present) else None


def warn_of(
    report: dict[str, Any], counts: dict[str, NDArray[np.int64]], classes: Sequence[str]
) -> None:
    """Say what a person should know before epoch 0."""
    for split in SPLITS:
        lacking = [name for name, n in zip(classes, counts[split], strict=True) if not n]
        if lacking and counts[split].sum():
            shown = ", ".join(map(show, lacking[:10]))
            warn(f"{split} has no image of {shown}: their recall there is n/a")
    if not counts["test"].sum():
        warn("there is no test split: test metrics are n/a")
    for kind, where in (("splits", "split"), ("classes", "class")):
        if groups := report[f"duplicates_across_{kind}"]:
            shown = "; ".join(" = ".join(map(show, group)) for group in groups[:5])
            warn(f"{len(groups)} images lie in more than one {where}: {shown} (all in data.json)")
    if report["dropped"]:
        warn(f"{len(report['dropped'])} files were dropped: listed with their reasons in data.json")
    if names := report.get("empty_classes"):
        warn(f"no image in {', '.join(names[:10])}: not a class of this run")
    ratio = report["imbalance"]
    if ratio is not None and ratio >= 5:
        warn(
            f"the largest class has {ratio:.0f} times the images of the smallest: read "
            "balanced_accuracy, and see data.class_weights=balanced, data.sampler=balanced"
        )
