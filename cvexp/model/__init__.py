"""Stage model: a network of timm or torchvision by name, its weights, its stages and its head."""

from cvexp.model.names import efficientnet_lite0, timm, torchvision
from cvexp.model.network import Network

__all__ = ["Network", "efficientnet_lite0", "timm", "torchvision"]
