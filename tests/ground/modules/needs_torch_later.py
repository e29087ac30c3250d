"""A command that needs torch only when it runs."""


def run() -> None:
    """Print torch's version."""
    import torch

    print(torch.__version__)
