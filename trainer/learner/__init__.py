"""Learning from credited episodes: packing, losses, the optimiser step, checkpoints."""
