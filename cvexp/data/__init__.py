"""Stage data: from a source's name to three splits of images with labels, and a report on them.

The decoding rule, the same in every loader and on every machine. Pillow opens a file, then:
1. the first frame of an animation; decoded in full, so that a truncated file is found;
2. turned upright by its EXIF orientation;
3. 16-bit grey is divided by 257 (65535 becomes 255); 32-bit whole numbers are cut to 16 bits first;
   floating-point pixels are refused: nothing declares their range;
4. transparency, from an alpha channel or a palette, is laid over white;
5. everything else (palette, CMYK, YCbCr, LAB, one bit) by Pillow's own conversion to 8-bit RGB,
   grey repeated over the channels; colour profiles are not applied;
6. with data.channels=1, to grey by ITU-R 601 (0.299 R + 0.587 G + 0.114 B).
Then data.resize brings it to (size, size), bicubic with antialiasing: `crop` fills the square and
cuts the middle out, `squash` changes the aspect ratio, `pad` fits it in and leaves black.
"""

from cvexp.data.images import Data, Split
from cvexp.data.sources import cifar10, cifar100, digits, folder, table, torchvision
from cvexp.data.store import Arrays, Form

__all__ = [
    "Arrays",
    "Data",
    "Form",
    "Split",
    "cifar10",
    "cifar100",
    "digits",
    "folder",
    "table",
    "torchvision",
]
