"""Stage loader: batches of uint8 images in an order that is a pure function of (seed, epoch).

Every engine gives the same batches: the same images, in the same order, with the same augmentation.
Normalisation is the module's, once a batch on the device.
"""

from cvexp.loader.batches import Batch, Batches, Loaders, Order
from cvexp.loader.pipeline import dali
from cvexp.loader.resident import device
from cvexp.loader.workers import albumentations

__all__ = ["Batch", "Batches", "Loaders", "Order", "albumentations", "dali", "device"]
