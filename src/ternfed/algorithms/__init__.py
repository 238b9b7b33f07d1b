"""One file per algorithm: its client half and its server half side by side.

An algorithm is found by name (`tfedavg` is `ternfed.algorithms.tfedavg:algorithm`) or as `module:function` in anyone's
own package; nothing is registered. The function takes a `Network` and its own settings and returns an `Algorithm`.
"""
