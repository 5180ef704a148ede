"""What one asks of a model besides going on with a text: `embed`, `fill`, `classify`, `score`, `translate`, `evaluate`."""
