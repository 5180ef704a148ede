"""What one asks of a model besides continuing text: `embed`, `fill`, `classify`, `score`,
`translate`, `evaluate`."""
