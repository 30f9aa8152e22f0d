"""Stage accumulation: how many batches make one optimizer step."""

from typing import Annotated

from annotated_types import Ge

from cvexp.config import UsageError


def fixed(batches_per_epoch: int, /, *, batches: Annotated[int, Ge(1)]) -> int:
    """Return the same number of batches for every step; the last window of an epoch may be shorter.

    Raises:
        UsageError: an epoch has fewer batches than one step would take.
    """
    if batches > batches_per_epoch:
        raise UsageError(
            f"accumulation.batches={batches} is more than the {batches_per_epoch} batches of an "
            f"epoch; try accumulation=x1 or a smaller loader.batch_size"
        )
    return batches


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
