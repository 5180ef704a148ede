"""What a run keeps on disk: checkpoints, resuming, metrics, exports, adapters."""
