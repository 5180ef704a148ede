"""Commands that look inside a model: trace, heads, explain."""
