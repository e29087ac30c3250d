"""How many threads the numerical libraries use, and how they wait.

Invariant: called before torch is imported, else the way of waiting stays what it was.
"""

from __future__ import annotations

import os


def set_threads(threads: int) -> None:
    """Give torch a number of threads (0: as many as there are cores), and let idle ones sleep.

    OpenMP's threads spin while they wait for each other, which ruins a machine that has anything else to do, such as
    stepping environments.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if threads:
        import torch

        torch.set_num_threads(threads)
