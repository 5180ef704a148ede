"""Logits to text: `randomness` is the stream of draws, `sampling` the changes to one row of logits
and the choice from it, `decode` the loop, `beam` and `speculative` other ways through it, `text`
what a reader sees of it."""
