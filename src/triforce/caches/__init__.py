"""Caches of keys and values, each in a layout of its own; `base` says what a pass asks of one."""
