"""What the process that jobs are forked from imports; nothing else imports it.

A signal to all of a sweep's processes must not end it: its jobs would be seen as gone.
"""

import signal

import hydra._internal.callbacks
import sklearn.datasets
import timm
import torch.utils.tensorboard

import cvexp.launcher
import cvexp.run
from cvexp.signals import ASKING

__all__ = ["cvexp", "hydra", "sklearn", "timm", "torch"]

for number in ASKING:
    signal.signal(number, signal.SIG_IGN)
