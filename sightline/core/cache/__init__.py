"""The KV cache: `Cache`, the per-layer stores behind it, and slots for continuous batching."""
