"""The files of a run: checkpoints, resuming, metrics, exports, adapters."""
