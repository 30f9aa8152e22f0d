"""The classes that Hydra wants to find here; what they do is in cvexp."""

from collections.abc import Sequence
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

Jobs = Sequence[Sequence[str]]


class Isolated(Launcher):
    """hydra/launcher=isolated: each job in a fresh process.

    Args:
        jobs: how many at a time; auto for one on each accelerator, or one on a CPU.
    """

    def __init__(self, jobs: Any) -> None:
        self._jobs = jobs

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Start the process that jobs are forked from: its imports take a while."""
        from cvexp import child

        self._config, self._loader = config, hydra_context.config_loader
        child.start_server()

    def launch(self, job_overrides: Jobs, initial_job_idx: int) -> list[JobReturn]:
        """Run the jobs that are left to do."""
        from cvexp import launcher

        configs = [self._loader.load_sweep_config(self._config, list(o)) for o in job_overrides]
        return launcher.launch(self._config, configs, self._jobs, initial_job_idx)


class Grid(BasicSweeper):
    """hydra/sweeper=grid: every combination, but for what sweep.pair and sweep.exclude say."""

    def sweep(self, arguments: list[str]) -> Any:
        """Launch the combinations."""
        from cvexp import design

        assert self.config is not None
        assert self.hydra_context is not None
        assert self.launcher is not None
        typed = [*self._parse_config(), *arguments]
        jobs = design.combinations(typed, self.config.sweep, self.hydra_context.config_loader)
        return [self.launcher.launch(jobs, initial_job_idx=0)]


class Optuna(BasicSweeper):
    """hydra/sweeper=optuna: trials chosen one after another.

    Args:
        metric: of validation, at a run's last epoch.
        n_trials: of the study in all.
        n_jobs: chosen at a time.
        seed: of the sampler.
    """

    def __init__(self, metric: str, n_trials: int, n_jobs: int, seed: int, **grid: Any) -> None:
        super().__init__(**grid)
        self._asked = (metric, n_trials, n_jobs, seed)

    def sweep(self, arguments: list[str]) -> Any:
        """Ask, launch, tell."""
        from cvexp import search

        assert self.config is not None
        assert self.hydra_context is not None
        assert self.launcher is not None
        typed = [*self._parse_config(), *arguments]
        space = search.space(typed, self.hydra_context.config_loader)
        return search.run(space, self.config, self.launcher.launch, *self._asked)
