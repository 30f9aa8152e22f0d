"""Stage accumulation: how many batches make one optimizer step."""

from itertools import pairwise
from typing import Annotated, NamedTuple

from annotated_types import Ge, Len

from cvexp.config import UsageError

Count = Annotated[int, Ge(1)]


class Accumulation(NamedTuple):
    """How many batches a step takes, from which epoch on.

    Args:
        counts: (first epoch, from 0; batches), in order; the first begins at 0.
        parts: into which loader.batch_size is split.
    """

    counts: tuple[tuple[int, int], ...]
    parts: int = 1

    def at(self, epoch: int) -> int:
        """Return the batches of a step in this epoch (from 0)."""
        return [batches for first, batches in self.counts if first <= epoch][-1]

    def batch_size(self, asked: int, drop_last: bool) -> int:
        """Return the images of a batch where a step's batches were asked for.

        Raises:
            UsageError: no equal parts, or a rest that one batch would not see and its parts would.
        """
        if asked % self.parts:
            fits = asked - asked % self.parts + self.parts
            raise UsageError(
                f"accumulation.keep_batch=true cannot split loader.batch_size={asked} into "
                f"{self.parts} equal batches; try loader.batch_size={fits}"
            )
        if self.parts > 1 and drop_last:
            raise UsageError(
                "accumulation.keep_batch=true with loader.drop_last=true would leave out other "
                "images than the whole batch does; type loader.drop_last=false"
            )
        return asked // self.parts

    def check(self, batches_per_epoch: int, max_epochs: int) -> None:
        """Say before epoch 0 what would be ignored.

        Raises:
            UsageError: a step takes more batches than an epoch has, or a count is never reached.
        """
        for _, batches in self.counts:
            if batches > batches_per_epoch:
                raise UsageError(
                    f"accumulation.batches={batches} is more than the {batches_per_epoch} batches "
                    "of an epoch; try accumulation=x1 or a smaller loader.batch_size"
                )
        if (last := self.counts[-1][0]) >= max_epochs:
            raise UsageError(
                f"accumulation.after_epochs: what is to begin after {last} epochs never would in "
                f"trainer.max_epochs={max_epochs}; try trainer.max_epochs={last + 1}"
            )


def fixed(*, batches: Count, keep_batch: bool) -> Accumulation:
    """Return the same number of batches for every step; an epoch's last step may have fewer.

    With keep_batch loader.batch_size is a step's, split into that many batches.
    """
    return Accumulation(((0, batches),), batches if keep_batch else 1)


def ramp(
    *, after_epochs: Annotated[list[Count], Len(1)], batches: Annotated[list[Count], Len(2)]
) -> Accumulation:
    """Return another number of batches after each of these epochs.

    Source: Smith et al. 2017, arXiv 1711.00489 (a larger batch instead of a smaller rate).

    Raises:
        UsageError: epochs that do not rise, or another number of counts than one more than epochs.
    """
    if any(later <= earlier for earlier, later in pairwise(after_epochs)):
        raise UsageError(
            f"accumulation.after_epochs={after_epochs} must rise; "
            f"try accumulation.after_epochs={sorted(set(after_epochs))}"
        )
    if len(batches) != len(after_epochs) + 1:
        raise UsageError(
            f"accumulation.batches={batches} must have one more than "
            f"accumulation.after_epochs={after_epochs}: the first counts from the start"
        )
    return Accumulation(tuple(zip([0, *after_epochs], batches, strict=True)))


def window_weight(images: int, window_images: int, batches: int) -> float:
    """Return the factor on a batch's mean loss that makes a step the mean over its window's images.

    Lightning divides each loss by `batches`, in the last short window of an epoch too, where the
    gradient would come out too small (Lightning#19987), and lets an image in a short batch weigh
    more than one in a full batch.

    Args:
        images: of this batch.
        window_images: of all batches in its window.
        batches: what Lightning divides by.
    """
    return images * batches / window_images
