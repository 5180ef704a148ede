"""Training: samples in a fixed order, one loop, states that survive anything."""
