"""Attention scores as lengths and angles, and RoPE by frequency."""
