"""Landscapes on which samplers are compared; ``TUNING`` was looked at, ``HELD_OUT`` was not."""
