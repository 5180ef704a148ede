"""Edits of activations, patching sweeps, metrics, and the difference between two models."""
