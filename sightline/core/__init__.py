"""Tensors in, tensors out: the mathematics of the Transformer.

Read in the order that data flows: embedding → positions → masks → attention → multi_head → residual
→ feed_forward → block → stack → output → model. `hypersphere` is nGPT, `cache` the KV
cache, `check` the argument checks.
"""
