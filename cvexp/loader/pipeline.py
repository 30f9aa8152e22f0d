"""loader=dali: NVIDIA DALI decodes, augments and batches, on the GPU where there is one."""

from collections import deque
from collections.abc import Iterator
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge
from numpy.typing import NDArray

from cvexp.augmentation import Policy, none
from cvexp.config import needs
from cvexp.data import Data, Split
from cvexp.data.store import Files
from cvexp.loader.batches import Batch, Batches, BatchSize, Key, Loaders, Order, Prefetch, orders


@needs("nvidia.dali", extra="dali")
def dali(
    data: Data,
    policy: Policy,
    seed: int,
    device: torch.device,
    /,
    *,
    batch_size: BatchSize,
    num_threads: Annotated[int, Ge(1)],
    prefetch_batches: Prefetch,
    drop_last: bool,
) -> Loaders:
    """Return loaders whose images a DALI pipeline makes, fed by our order and our draws."""
    batches = {
        name: Batches(
            order,
            _Engine(
                data.splits[name],
                policy if name == "train" else none(),
                seed,
                device,
                num_threads,
                prefetch_batches,
            ),
        )
        for name, order in orders(data, seed, batch_size, drop_last).items()
    }
    does = "decodes and augments" if isinstance(data.train.store, Files) else "augments"
    threads = f"{num_threads} threads"
    return Loaders(**batches, description=f"DALI {does} on {device} with {threads}")


class _Engine:
    """Run one pipeline; it is built at the first batch and serves every epoch."""

    def __init__(
        self,
        split: Split,
        policy: Policy,
        seed: int,
        device: torch.device,
        num_threads: int,
        prefetch_batches: int,
    ) -> None:
        self._split, self._policy, self._seed, self._device = split, policy, seed, device
        self._num_threads, self._prefetch_batches = num_threads, prefetch_batches
        self._pipeline: Any = None
        self._keys: Iterator[Key] = iter(())
        self._ahead: deque[Key] = deque()  # fed to the pipeline, not yet taken from it
        self._in_epoch = False  # until the pipeline has said that its source ended
        # Copies have a stream of their own: on torch's they would wait for the training step.
        self._stream: Any = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch's

    def __call__(self, order: Order) -> Iterator[Batch]:
        if self._pipeline is None:
            self._pipeline = self._build(order.batch_size)
        self._keys = iter(())
        while self._in_epoch:  # one was left before that: Lightning stops at the last batch
            self._run()
        self._keys, self._in_epoch = iter(order), True
        while (images := self._run()) is not None:
            key = self._ahead.popleft()
            labels = torch.from_numpy(self._split.labels[key.indices])
            indices = torch.from_numpy(key.indices)
            yield Batch(images, labels.to(self._device), indices.to(self._device))

    def close(self) -> None:
        """Free the pipeline."""
        self._pipeline, self._in_epoch = None, False
        self._ahead.clear()

    def _run(self) -> torch.Tensor | None:
        """Return the next (B, C, H, W) images, channels last in memory; None at the end."""
        try:
            images = self._pipeline.run(self._stream)[0].as_tensor()
        except StopIteration:
            self._pipeline.reset()
            self._ahead.clear()
            self._in_epoch = False
            return None
        return self._copy(images).permute(0, 3, 1, 2)

    def _copy(self, images: Any) -> torch.Tensor:
        """Return a DALI tensor as torch's: the pipeline uses its own memory again."""
        from nvidia.dali.plugin.pytorch import feed_ndarray

        with torch.cuda.stream(self._stream):
            batch = torch.empty(images.shape(), dtype=torch.uint8, device=self._device)
            feed_ndarray(images, batch, cuda_stream=self._stream)
        if self._stream is not None:
            self._stream.synchronize()
            batch.record_stream(torch.cuda.current_stream(self._device))
        return batch

    def _feed(self) -> list[Any]:
        """Return what the pipeline takes for one batch: images, then each operation's values."""
        key = next(self._keys)  # StopIteration ends the pipeline's epoch
        drawn = self._policy.draw(self._seed, key.epoch, key.draws, self._split.size)
        images = self._encoded(key) if self._decodes else self._pixels(key)
        self._ahead.append(key)
        return [*images, *self._policy.settings(drawn)]

    @property
    def _decodes(self) -> bool:
        return isinstance(self._split.store, Files)

    def _pixels(self, key: Key) -> list[Any]:
        return [np.stack([self._split.read(int(index)) for index in key.indices])]

    def _encoded(self, key: Key) -> list[Any]:
        """Return files, and what `place` says of each: first and last corner, size, offset."""
        store = self._split.store
        assert isinstance(store, Files)
        files, places = zip(
            *(store.encoded(int(self._split.rows[index])) for index in key.indices), strict=True
        )
        box = np.array([place.box for place in places], np.float32)
        size = np.array([(place.height, place.width) for place in places], np.float32)
        start = np.array([(-place.top, -place.left) for place in places], np.int32)
        data: list[NDArray[np.uint8]] = [np.frombuffer(file, np.uint8) for file in files]
        return [data, box[:, 1::-1].copy(), box[:, :1:-1].copy(), size, start]

    def _build(self, batch_size: int) -> Any:
        """Return the pipeline: images, or files to be decoded, then the policy's operators."""
        from nvidia.dali import Pipeline, fn, types

        form, gpu = self._split.form, self._device.type == "cuda"
        operations = self._policy.operations
        kinds = [(types.UINT8, 1), *[(types.FLOAT, 1)] * 3, (types.INT32, 1)]
        kinds = kinds if self._decodes else [(types.UINT8, 3)]
        count = len(kinds)
        kinds += [(types.FLOAT, 1)] * len(operations)
        pipeline = Pipeline(
            batch_size=batch_size,
            num_threads=self._num_threads,
            device_id=(self._device.index or 0) if gpu else None,
            prefetch_queue_depth=self._prefetch_batches,
        )
        with pipeline:
            fed = fn.external_source(
                source=self._feed,
                num_outputs=len(kinds),
                batch=True,
                dtype=[kind for kind, _ in kinds],
                ndim=[dimensions for _, dimensions in kinds],
                layout=["" if self._decodes else "HWC"] + [""] * (len(kinds) - 1),
            )
            images, values = fed[0], fed[count:]
            if self._decodes:
                images = self._decode("mixed" if gpu else "cpu", *fed[:count])
            elif gpu:
                images = images.gpu()
            pipeline.set_outputs(self._policy.in_dali(images, values, form.channels))
        pipeline.build()
        return pipeline

    def _decode(self, device: str, files: Any, first: Any, last: Any, size: Any, start: Any) -> Any:
        """Add decoding by the data's rule: RGB or grey, resized as Pillow does, placed."""
        from nvidia.dali import fn, types

        form = self._split.form
        mode = types.RGB if form.channels == 3 else types.GRAY
        images = fn.decoders.image(
            files, device=device, output_type=mode, jpeg_fancy_upsampling=True
        )
        images = fn.resize(
            images,
            size=size,
            roi_start=first,
            roi_end=last,
            interp_type=types.INTERP_CUBIC,
            antialias=True,
        )
        return fn.slice(
            images,
            start=start,
            shape=[form.size, form.size],
            axes=[0, 1],
            out_of_bounds_policy="pad",
            fill_values=0.0,
        )
