"""Plug-ins for trainers: losses, estimators and constraints of this library in their place.

`gdpo.integrations.verl`, `.trl`, `.ms_swift`, `.slime`, `.openrlhf` and `.skyrl` are imported one
at a time, each where its trainer is installed. A page with what to change stands in
examples/python/trainers for each.
"""
