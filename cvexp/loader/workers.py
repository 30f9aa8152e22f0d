"""loader=albumentations: one image at a time, in the main process or in workers."""

import gc
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from typing import Annotated, Any

import cv2
import numpy as np
import torch
from annotated_types import Ge, Gt
from torch.utils.data import DataLoader, Dataset

from cvexp.augmentation import Policy, none
from cvexp.data import Data, Split
from cvexp.loader.batches import Batch, Batches, BatchSize, Key, Loaders, Order, Prefetch, orders
from cvexp.signals import ASKING


def albumentations(
    data: Data,
    policy: Policy,
    seed: int,
    device: torch.device,
    /,
    *,
    batch_size: BatchSize,
    num_workers: Annotated[int, Ge(0)],
    prefetch_batches: Prefetch,
    timeout_s: Annotated[float, Gt(0)],
    drop_last: bool,
) -> Loaders:
    """Return loaders that augment each image on its own with albumentations' kernels."""
    _one_thread()
    batches = {
        name: Batches(
            order,
            _Engine(
                _Images(data.splits[name], policy if name == "train" else none(), seed),
                num_workers,
                prefetch_batches,
                timeout_s,
                pin_memory=device.type == "cuda",
            ),
        )
        for name, order in orders(data, seed, batch_size, drop_last).items()
    }
    where = f"{num_workers} workers" if num_workers else "the main process"
    return Loaders(**batches, description=f"albumentations in {where}")


def _one_thread() -> None:
    """Switch off OpenCV's own thread pool: it burns a second core for no gain."""
    cv2.setNumThreads(0)


def _begin(worker: int) -> None:
    """Set a worker up; what asks the whole run to end leaves it to its parent to end it."""
    _one_thread()
    for number in ASKING:
        signal.signal(number, signal.SIG_IGN)


class _Images(Dataset[Batch]):
    """A split whose items are whole batches: one draw of parameters for all of a batch's images."""

    def __init__(self, split: Split, policy: Policy, seed: int) -> None:
        self._split, self._policy, self._seed = split, policy, seed

    def __getitem__(self, key: Key) -> Batch:
        drawn = self._policy.draw(self._seed, key.epoch, key.draws, self._split.size)
        images = np.stack(
            [
                self._policy.on_image(self._split.read(int(index)), drawn, position)
                for position, index in enumerate(key.indices)
            ]
        )
        return Batch(
            torch.from_numpy(images).permute(0, 3, 1, 2),  # channels_last in memory
            torch.from_numpy(self._split.labels[key.indices]),
            torch.from_numpy(key.indices),
        )


class _Engine:
    """Walk an order with torch's DataLoader; its workers, once started, serve every epoch."""

    def __init__(
        self,
        images: _Images,
        num_workers: int,
        prefetch_batches: int,
        timeout_s: float,
        *,
        pin_memory: bool,
    ) -> None:
        self._num_workers, self._timeout_s = num_workers, timeout_s
        self._keys = _Keys()
        self._loader: DataLoader[Batch] = DataLoader(
            images,
            sampler=self._keys,
            batch_size=None,
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
            prefetch_factor=prefetch_batches if num_workers else None,
            pin_memory=pin_memory,
            worker_init_fn=_begin,
            generator=torch.Generator(),  # or each epoch would draw from the global one
        )

    def __call__(self, order: Order) -> Iterator[Batch]:
        self._keys.order = order
        if not self._num_workers:
            yield from self._loader
            return
        watchdog = _Watchdog(self._timeout_s, self._workers)
        try:
            with watchdog, _frozen():
                batches = iter(self._loader)
            while True:
                with watchdog:
                    batch = next(batches)
                yield batch
        except StopIteration:
            return
        except Exception as error:  # a worker's own, or whatever its death led to
            cause = self._cause(str(error), watchdog.barked)
            self.close()  # until then torch goes on raising, at any moment, for the one that died
            raise RuntimeError(cause) from error
        finally:
            watchdog.close()

    def _workers(self) -> list[Any]:
        iterator: Any = self._loader._iterator  # torch has no public way to them
        return [] if iterator is None else iterator._workers

    def _cause(self, reason: str, hung: bool) -> str:
        """Return what befell the workers as one line; torch says it in many."""
        if hung:
            return (
                f"the workers gave no batch within loader.timeout_s={self._timeout_s:g} seconds: "
                "one hangs, or is slower than that"
            )
        if not reason.startswith("Caught") and (died := self._died()):
            return (
                f"a worker process died ({died}); if memory ran out, take less than "
                f"loader.num_workers={self._num_workers}"
            )
        return reason.strip().splitlines()[-1]  # of a traceback: the error itself

    def _died(self) -> str | None:
        """Return how a worker died, or None while all live; its end may show a moment late."""
        workers = {worker.sentinel: worker for worker in self._workers()}
        ended = [workers[sentinel] for sentinel in wait(list(workers), timeout=1.0)]
        for worker in ended:  # its files are closed; the kernel has yet to give its exit code
            worker.join(1.0)
        codes = [worker.exitcode for worker in ended if worker.exitcode is not None]
        if not codes:
            return None
        return signal.Signals(-codes[0]).name if codes[0] < 0 else f"exit code {codes[0]}"

    def close(self) -> None:
        """Stop the workers: left to the garbage collector, each takes five seconds to notice."""
        iterator: Any = self._loader._iterator
        if iterator is not None and self._num_workers:
            self._loader._iterator = None
            with suppress(RuntimeError):  # torch's, once more, for one that died long ago
                iterator._shutdown_workers()
            for worker in iterator._workers:
                worker.kill()


@contextmanager
def _frozen() -> Iterator[None]:
    """Keep what is garbage here from being collected in the processes that are forked meanwhile.

    Their copy of a DALI pipeline would wait for threads that they do not have, or crash.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class _Keys:
    """The keys of whatever order is walked next: a DataLoader keeps its sampler for life."""

    order: Order

    def __iter__(self) -> Iterator[Key]:
        return iter(self.order)

    def __len__(self) -> int:
        return len(self.order)


class _Watchdog:
    """Kill the workers that let a `with` block wait for longer than timeout_s.

    torch's own timeout does not see a worker that stops while it hands a batch over.
    """

    def __init__(self, timeout_s: float, workers: Callable[[], list[Any]]) -> None:
        self._timeout_s, self._workers = timeout_s, workers
        self._deadline: float | None = None
        self._closed = threading.Event()
        self.barked = False
        threading.Thread(target=self._watch, daemon=True).start()

    def __enter__(self) -> None:
        self._deadline = time.monotonic() + self._timeout_s

    def __exit__(self, *error: object) -> None:
        self._deadline = None

    def _watch(self) -> None:
        while not self._closed.wait(self._timeout_s / 10):
            deadline = self._deadline
            if deadline is not None and time.monotonic() > deadline:
                self.barked = True
                for worker in self._workers():
                    worker.kill()
                return

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()
