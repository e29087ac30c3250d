"""Sandboxes: where agents' commands run. `base` is the contract; each implementation is a file of its own."""
