"""What the process that jobs are forked from imports; nothing else imports it.

A signal to all of a sweep's processes must not end it: its jobs would be seen as gone.
"""

import importlib
import signal

import hydra._internal.callbacks
import pydantic.type_adapter
import sklearn.datasets
import sklearn.metrics
import sklearn.model_selection
import timm
import torch.utils.tensorboard

import cvexp.augmentation.operation
import cvexp.child
import cvexp.cli
import cvexp.debug
import cvexp.early_stopping
import cvexp.run
import cvexp.tracker
from cvexp.signals import ASKING

__all__ = ["cvexp", "hydra", "pydantic", "sklearn", "timm", "torch"]

importlib.import_module("albumentations")  # after what keeps it from asking the network
for number in ASKING:
    signal.signal(number, signal.SIG_IGN)
