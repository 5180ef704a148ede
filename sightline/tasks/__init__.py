"""Tasks other than generation: `embed`, `fill`, `classify`, `score`, `translate`, `evaluate`."""
