"""Adapters: what autotune knows about each inference server."""
