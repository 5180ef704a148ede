"""The native engine against the peers: `python -m bench.native decode prefill …`, or `sightline
bench`."""
