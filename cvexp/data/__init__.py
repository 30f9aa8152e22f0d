"""Stage data: from a source's name to three splits of decoded images with labels.

Decoding rule: every image is (H, W, 3) uint8 RGB. Grey is repeated over the channels.
Resizing rule: Pillow's bicubic to (size, size), with its antialiasing when it shrinks.
"""

from cvexp.data.images import Data, Split
from cvexp.data.sources import cifar10, cifar100, digits

__all__ = ["Data", "Split", "cifar10", "cifar100", "digits"]
