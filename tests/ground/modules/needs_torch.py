"""A command whose module needs torch to be imported."""

import torch


def run() -> None:
    """Print torch's version."""
    print(torch.__version__)
