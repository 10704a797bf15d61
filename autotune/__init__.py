"""Finds the best launch configuration of an LLM inference server by measuring it."""

__version__ = "0.1.0"
