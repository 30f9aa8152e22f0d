"""The LightningModule's own promises."""

import pytest
import torch

from cvexp import freeze, scheduler
from cvexp.accumulation import fixed
from cvexp.loader import Batch, Order
from cvexp.loss import cross_entropy
from cvexp.metric import Tally
from cvexp.mix import keep
from cvexp.module import Classifier
from cvexp.optimizer import Optimization
from cvexp.scheduler import Horizon
from tests.test_model import timm

BATCH = Batch(torch.zeros(4, 3, 32, 32, dtype=torch.uint8), torch.arange(4), torch.arange(4))


def classifier(seed: int = 0, class_weights: list[float] | None = None) -> Classifier:
    network = timm("test_efficientnet")
    network.replace_head(10)
    plan = freeze.most(network, stages=1, norm="eval")
    order, classes = Order(8, 4, seed=0), [str(i) for i in range(10)]
    return Classifier(
        plan,
        lambda plan: Optimization(torch.optim.SGD(plan.trainable.values()), None),
        scheduler.constant,
        Horizon(2, [2]),
        fixed(batches=1, keep_batch=False),
        cross_entropy(label_smoothing=0.0),
        keep,
        seed,
        order,
        [f"{i}.png" for i in range(8)],
        classes,
        class_weights,
        None,
    )


def test_a_steps_randomness_is_a_function_of_seed_and_batch() -> None:
    """Whatever was drawn before, a step's dropout is the same."""

    def drawn(seed: int, batch: int, before: int) -> torch.Tensor:
        torch.rand(before)
        classifier(seed).on_train_batch_start(BATCH, batch)
        return torch.rand(3)

    assert torch.equal(drawn(0, 5, before=0), drawn(0, 5, before=100))
    assert not torch.equal(drawn(0, 5, before=0), drawn(0, 6, before=0))
    assert not torch.equal(drawn(0, 5, before=0), drawn(1, 5, before=0))


def test_images_are_normalised_as_the_weights_ask() -> None:
    module = classifier()
    seen = []
    module.network.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    module.eval()(images)
    network = timm("test_efficientnet")
    mean, std = (torch.tensor(values)[:, None, None] for values in (network.mean, network.std))
    assert torch.allclose(seen[0], (images / 255 - mean) / std, atol=1e-6)


def test_frozen_modules_stay_in_eval_whenever_train_is_called() -> None:
    module = classifier()
    for mode in (True, False, True):
        module.train(mode)
        for name, inner in module.network.named_modules():
            frozen = any(f"{name}.".startswith(f"{f}.") for f in module.plan.frozen)
            assert inner.training == (mode and not frozen), name


def test_tally_is_micro_over_batches_of_any_size() -> None:
    """A short last batch counts by its images, not as one batch of many."""
    tally, logits, labels = Tally(), torch.randn(10, 3), torch.randint(0, 3, (10,))
    for part in (slice(0, 7), slice(7, 10)):
        loss = torch.nn.functional.cross_entropy(logits[part], labels[part])
        tally.add(loss, logits[part], labels[part])
    loss, correct, images = tally.read()
    whole = torch.nn.functional.cross_entropy(logits, labels)
    assert loss / images == pytest.approx(float(whole))
    assert (correct, images) == (float((logits.argmax(1) == labels).sum()), 10)


def test_a_users_own_function_may_return_a_plain_optimizer() -> None:
    module = classifier()
    own = torch.optim.SGD(module.plan.trainable.values())
    module._make_optimizer = lambda plan: own
    assert module.make_optimizer()[0] == Optimization(own, None)


def test_a_checkpoint_keeps_the_label_space() -> None:
    checkpoint: dict[str, object] = {}
    classifier().on_save_checkpoint(checkpoint)
    assert checkpoint["classes"] == [str(i) for i in range(10)]
