"""Independent jobs, several at a time, in processes of one thread each."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import Any

import torch
from tqdm.auto import tqdm


def run_all(jobs: Sequence[Callable[[], Any]], *, workers: int, progress: str = "fits") -> None:
    """Run jobs that leave their results on disk, `workers` at a time; the first error ends them all.

    Small networks run fastest on one thread, so that several processes share the cores best. However this one ends, the
    others end with it.
    """
    if workers == 1:
        for job in tqdm(jobs, desc=progress, unit="fit"):
            job()
        return
    with ProcessPoolExecutor(workers, get_context("spawn"), _begin) as pool:
        started = [pool.submit(_quiet, job) for job in jobs]
        try:
            for done in tqdm(as_completed(started), total=len(jobs), desc=progress, unit="fit"):
                done.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _begin() -> None:
    torch.set_num_threads(1)
    Thread(target=_follow, daemon=True).start()


def _follow() -> None:
    """End with the process that started this one: when that is killed, nobody else says so."""
    if parent := parent_process():
        parent.join()
        os._exit(1)


def _quiet(job: Callable[[], Any]) -> None:
    """The result stays on disk: it need not travel between processes."""
    job()
