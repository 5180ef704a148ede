"""Training: samples in a deterministic order, one loop, checkpoints that survive interruptions."""
